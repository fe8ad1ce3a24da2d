#include "transport/lane_wire.h"

#include "transport/lane_address.h"

void lane_greeting_write(const struct lane_greeting *greeting, const struct kvf_nonce *nonce,
                         uint8_t bytes[LANE_GREETING_BYTES])
{
    memcpy(bytes, greeting->magic, sizeof(greeting->magic));
    lane_put32(bytes + 8, greeting->version);
    lane_put32(bytes + 12, 0);
    memcpy(bytes + 16, nonce->bytes, KVF_NONCE_BYTES);
}

bool lane_greeting_is(const struct lane_greeting *greeting,
                      const uint8_t bytes[LANE_GREETING_BYTES])
{
    return memcmp(bytes, greeting->magic, sizeof(greeting->magic)) == 0 &&
           lane_get32(bytes + 8) == greeting->version && lane_get32(bytes + 12) == 0;
}

bool lane_greeting_has_nonce(const uint8_t bytes[LANE_GREETING_BYTES],
                             const struct kvf_nonce *nonce)
{
    return lane_nonce_equal(bytes + 16, nonce);
}

void lane_header_write(uint32_t mark, const struct lane_header *header,
                       uint8_t bytes[LANE_HEADER_BYTES])
{
    lane_put32(bytes, mark);
    lane_put32(bytes + 4, 0);
    lane_put64(bytes + 8, header->read);
    lane_put32(bytes + 16, header->block);
    lane_put32(bytes + 20, header->length);
    lane_put64(bytes + 24, header->offset);
}

bool lane_header_read(uint32_t mark, const uint8_t bytes[LANE_HEADER_BYTES],
                      struct lane_header *header)
{
    if (lane_get32(bytes) != mark || lane_get32(bytes + 4) != 0)
        return false;
    *header = (struct lane_header){
        .read = lane_get64(bytes + 8),
        .block = lane_get32(bytes + 16),
        .length = lane_get32(bytes + 20),
        .offset = lane_get64(bytes + 24),
    };
    return header->length >= 1 && header->length <= KVF_LANE_PIECE_BYTES;
}
