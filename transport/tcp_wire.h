/* What travels on a tcp lane. All numbers are little-endian.
 *
 * Greeting, once each way, the consumer first, 48 bytes:
 * - magic (8 bytes), version u32, zero u32, nonce (32 bytes)
 *
 * Then only the source speaks, in frames: a header of 32 bytes and `length` bytes of payload.
 * - mark u32, zero u32, read u64, block u32, length u32 (1 to 1 MiB), offset u64 */
#ifndef KVFERRY_TRANSPORT_TCP_WIRE_H
#define KVFERRY_TRANSPORT_TCP_WIRE_H

#include "transport/lane_listen.h"

#include <stdbool.h>
#include <stdint.h>

#define TCP_VERSION 1
#define TCP_GREETING_BYTES LANE_GREETING_BYTES
#define TCP_HEADER_BYTES 32

struct tcp_header {
    uint64_t read;
    uint64_t offset;
    uint32_t block;
    uint32_t length;
};

void tcp_header_write(const struct tcp_header *header, uint8_t bytes[TCP_HEADER_BYTES]);
/* False: no header of ours, or a length that no frame has. */
bool tcp_header_read(const uint8_t bytes[TCP_HEADER_BYTES], struct tcp_header *header);

void tcp_greeting_write(const struct kvf_nonce *nonce, uint8_t bytes[TCP_GREETING_BYTES]);
/* False: not our magic or version. The nonce is not looked at. */
bool tcp_greeting_is_ours(const uint8_t bytes[TCP_GREETING_BYTES]);
/* Takes the same time whatever differs. */
bool tcp_greeting_has_nonce(const uint8_t bytes[TCP_GREETING_BYTES], const struct kvf_nonce *nonce);

extern const struct lane_greeting tcp_greeting; /* the two above */

#endif
