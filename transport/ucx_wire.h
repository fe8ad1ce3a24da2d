/* The bytes of ucx that travel outside of UCX. All numbers are little-endian.
 *
 * On a lane's link, a TCP connection, once each way, the consumer first:
 * - greeting, 48 bytes: magic (8 bytes), version u32, zero u32, nonce (32 bytes)
 * - u32, that many bytes (1 to UCX_ADDRESS_MAX_BYTES): the address of its UCX worker
 *
 * After that the link says only one thing: its end.
 *
 * Over UCX only the source speaks, in active messages with UCX_PIECE_ID: a header of 32 bytes, and `length` bytes of
 * payload by rendezvous.
 * - mark u32, zero u32, read u64, block u32, length u32 (1 to 1 MiB), offset u64 */
#ifndef KVFERRY_TRANSPORT_UCX_WIRE_H
#define KVFERRY_TRANSPORT_UCX_WIRE_H

#include "transport/lane_listen.h"

#define UCX_VERSION 1
#define UCX_ADDRESS_MAX_BYTES 4096
#define UCX_HELLO_HEAD_BYTES (LANE_GREETING_BYTES + 4)
#define UCX_HELLO_MAX_BYTES (UCX_HELLO_HEAD_BYTES + UCX_ADDRESS_MAX_BYTES)
#define UCX_PIECE_ID 1
#define UCX_HEADER_BYTES 32

struct ucx_header {
    uint64_t read;
    uint64_t offset;
    uint32_t block;
    uint32_t length;
};

void ucx_header_write(const struct ucx_header *header, uint8_t bytes[UCX_HEADER_BYTES]);
/* Any bytes. False: no header of ours, or a length that no piece has. */
bool ucx_header_read(const void *bytes, size_t count, struct ucx_header *header);

/* Returns how many bytes the greeting and the address take. */
size_t ucx_hello_write(const struct kvf_nonce *nonce, const void *address, uint32_t address_bytes,
                       uint8_t bytes[UCX_HELLO_MAX_BYTES]);
/* Of UCX_HELLO_HEAD_BYTES: the length of the address that follows. 0: none that is legal. */
uint32_t ucx_hello_address_bytes(const uint8_t *head);

extern const struct lane_greeting ucx_greeting;

#endif
