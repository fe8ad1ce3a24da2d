/* What the wires of several transports have in common. All numbers are little-endian.
 *
 * Greeting, once each way, the consumer first, 48 bytes:
 * - magic (8 bytes), version u32, zero u32, nonce (32 bytes)
 *
 * Header of a piece, 32 bytes:
 * - mark u32, zero u32, read u64, block u32, length u32 (1 to 1 MiB), offset u64 */
#ifndef KVFERRY_TRANSPORT_LANE_WIRE_H
#define KVFERRY_TRANSPORT_LANE_WIRE_H

#include "transport/transport.h"

#include <endian.h>
#include <string.h>

#define LANE_GREETING_BYTES 48
#define LANE_HEADER_BYTES 32

/* Whose greeting it is. */
struct lane_greeting {
    char magic[8];
    uint32_t version;
};

struct lane_header {
    uint64_t read;
    uint64_t offset;
    uint32_t block;
    uint32_t length;
};

void lane_greeting_write(const struct lane_greeting *greeting, const struct kvf_nonce *nonce,
                         uint8_t bytes[LANE_GREETING_BYTES]);
/* False: another magic or version. The nonce is not looked at. */
bool lane_greeting_is(const struct lane_greeting *greeting,
                      const uint8_t bytes[LANE_GREETING_BYTES]);
/* Takes the same time whatever differs. */
bool lane_greeting_has_nonce(const uint8_t bytes[LANE_GREETING_BYTES],
                             const struct kvf_nonce *nonce);

void lane_header_write(uint32_t mark, const struct lane_header *header,
                       uint8_t bytes[LANE_HEADER_BYTES]);
/* Any bytes. False: another mark, or a length that no piece has. */
bool lane_header_read(uint32_t mark, const uint8_t bytes[LANE_HEADER_BYTES],
                      struct lane_header *header);

static inline void lane_put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

static inline void lane_put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static inline uint32_t lane_get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

static inline uint64_t lane_get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

#endif
