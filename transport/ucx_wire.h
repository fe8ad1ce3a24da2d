/* The bytes of ucx that travel outside of UCX.
 *
 * On a lane's link, a TCP connection, once each way, the consumer first: the hello.
 * - a greeting (lane_wire.h)
 * - u32, that many bytes (1 to UCX_ADDRESS_MAX_BYTES): the address of its UCX worker
 *
 * Then from the consumer UCX_CONNECTED, one byte, when its endpoint is. After that the link says only one thing: its end.
 *
 * Over UCX only the source speaks, in active messages with UCX_PIECE_ID: a header with UCX_MARK (lane_wire.h), and `length` bytes of
 * payload by rendezvous. */
#ifndef KVFERRY_TRANSPORT_UCX_WIRE_H
#define KVFERRY_TRANSPORT_UCX_WIRE_H

#include "transport/lane_wire.h"

#define UCX_ADDRESS_MAX_BYTES 4096
#define UCX_HELLO_HEAD_BYTES (LANE_GREETING_BYTES + 4)
#define UCX_HELLO_MAX_BYTES (UCX_HELLO_HEAD_BYTES + UCX_ADDRESS_MAX_BYTES)
#define UCX_CONNECTED 0x63u /* "c" */
#define UCX_PIECE_ID 1
#define UCX_MARK 0x63656970u /* "piec" */

static const struct lane_greeting ucx_greeting = {
    .magic = {'k', 'v', 'f', 'u', 'c', 'x', ' ', '\n'}, .version = 1};

/* Returns how many bytes the greeting and the address take. */
size_t ucx_hello_write(const struct kvf_nonce *nonce, const void *address, uint32_t address_bytes,
                       uint8_t bytes[UCX_HELLO_MAX_BYTES]);
/* Of UCX_HELLO_HEAD_BYTES: the length of the address that follows. 0: none that is legal. */
uint32_t ucx_hello_address_bytes(const uint8_t *head);

#endif
