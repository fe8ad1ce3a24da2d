#include "transport/ucx_wire.h"

#include "transport/lane_address.h"

#include <endian.h>
#include <string.h>

static const char magic[8] = {'k', 'v', 'f', 'u', 'c', 'x', ' ', '\n'};
static const uint32_t piece_mark = 0x63656970; /* "piec" */

static void put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

static void put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

void ucx_header_write(const struct ucx_header *header, uint8_t bytes[UCX_HEADER_BYTES])
{
    put32(bytes, piece_mark);
    put32(bytes + 4, 0);
    put64(bytes + 8, header->read);
    put32(bytes + 16, header->block);
    put32(bytes + 20, header->length);
    put64(bytes + 24, header->offset);
}

bool ucx_header_read(const void *bytes, size_t count, struct ucx_header *header)
{
    const uint8_t *at = bytes;
    if (count != UCX_HEADER_BYTES || get32(at) != piece_mark || get32(at + 4) != 0)
        return false;
    *header = (struct ucx_header){
        .read = get64(at + 8),
        .block = get32(at + 16),
        .length = get32(at + 20),
        .offset = get64(at + 24),
    };
    return header->length >= 1 && header->length <= KVF_LANE_PIECE_BYTES;
}

size_t ucx_hello_write(const struct kvf_nonce *nonce, const void *address, uint32_t address_bytes,
                       uint8_t bytes[UCX_HELLO_MAX_BYTES])
{
    kvf_assert(address_bytes >= 1 && address_bytes <= UCX_ADDRESS_MAX_BYTES);
    memcpy(bytes, magic, sizeof(magic));
    put32(bytes + 8, UCX_VERSION);
    put32(bytes + 12, 0);
    memcpy(bytes + 16, nonce->bytes, KVF_NONCE_BYTES);
    put32(bytes + LANE_GREETING_BYTES, address_bytes);
    memcpy(bytes + UCX_HELLO_HEAD_BYTES, address, address_bytes);
    return UCX_HELLO_HEAD_BYTES + address_bytes;
}

uint32_t ucx_hello_address_bytes(const uint8_t *head)
{
    uint32_t bytes = get32(head + LANE_GREETING_BYTES);
    return bytes <= UCX_ADDRESS_MAX_BYTES ? bytes : 0;
}

static bool is_ours(const uint8_t bytes[LANE_GREETING_BYTES])
{
    return memcmp(bytes, magic, sizeof(magic)) == 0 && get32(bytes + 8) == UCX_VERSION &&
           get32(bytes + 12) == 0;
}

static bool has_nonce(const uint8_t bytes[LANE_GREETING_BYTES], const struct kvf_nonce *nonce)
{
    return lane_nonce_equal(bytes + 16, nonce);
}

const struct lane_greeting ucx_greeting = {.is_ours = is_ours, .has_nonce = has_nonce};
