#include "transport/tcp_wire.h"

#include "transport/lane_address.h"

#include <endian.h>
#include <string.h>

static const char magic[8] = {'k', 'v', 'f', 'l', 'a', 'n', 'e', '\n'};
static const uint32_t frame_mark = 0x6d617266; /* "fram" */

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

void tcp_header_write(const struct tcp_header *header, uint8_t bytes[TCP_HEADER_BYTES])
{
    put32(bytes, frame_mark);
    put32(bytes + 4, 0);
    put64(bytes + 8, header->read);
    put32(bytes + 16, header->block);
    put32(bytes + 20, header->length);
    put64(bytes + 24, header->offset);
}

bool tcp_header_read(const uint8_t bytes[TCP_HEADER_BYTES], struct tcp_header *header)
{
    if (get32(bytes) != frame_mark || get32(bytes + 4) != 0)
        return false;
    *header = (struct tcp_header){
        .read = get64(bytes + 8),
        .block = get32(bytes + 16),
        .length = get32(bytes + 20),
        .offset = get64(bytes + 24),
    };
    return header->length >= 1 && header->length <= KVF_LANE_PIECE_BYTES;
}

void tcp_greeting_write(const struct kvf_nonce *nonce, uint8_t bytes[TCP_GREETING_BYTES])
{
    memcpy(bytes, magic, sizeof(magic));
    put32(bytes + 8, TCP_VERSION);
    put32(bytes + 12, 0);
    memcpy(bytes + 16, nonce->bytes, KVF_NONCE_BYTES);
}

bool tcp_greeting_is_ours(const uint8_t bytes[TCP_GREETING_BYTES])
{
    return memcmp(bytes, magic, sizeof(magic)) == 0 && get32(bytes + 8) == TCP_VERSION &&
           get32(bytes + 12) == 0;
}

bool tcp_greeting_has_nonce(const uint8_t bytes[TCP_GREETING_BYTES], const struct kvf_nonce *nonce)
{
    return lane_nonce_equal(bytes + 16, nonce);
}

const struct lane_greeting tcp_greeting = {.is_ours = tcp_greeting_is_ours,
                                           .has_nonce = tcp_greeting_has_nonce};
