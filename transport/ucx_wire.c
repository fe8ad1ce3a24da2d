#include "transport/ucx_wire.h"

size_t ucx_hello_write(const struct kvf_nonce *nonce, const void *address, uint32_t address_bytes,
                       uint8_t bytes[UCX_HELLO_MAX_BYTES])
{
    kvf_assert(address_bytes >= 1 && address_bytes <= UCX_ADDRESS_MAX_BYTES);
    lane_greeting_write(&ucx_greeting, nonce, bytes);
    lane_put32(bytes + LANE_GREETING_BYTES, address_bytes);
    memcpy(bytes + UCX_HELLO_HEAD_BYTES, address, address_bytes);
    return UCX_HELLO_HEAD_BYTES + address_bytes;
}

uint32_t ucx_hello_address_bytes(const uint8_t *head)
{
    uint32_t bytes = lane_get32(head + LANE_GREETING_BYTES);
    return bytes <= UCX_ADDRESS_MAX_BYTES ? bytes : 0;
}
