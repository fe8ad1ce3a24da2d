/* gRPC's listener (1.51) gives up for ever when accept4 fails, whatever for: it logs one line, and from then on
 * connections wait in the kernel's queue for nobody, even when there is nothing amiss any more. So this process has an
 * accept4 of its own, in front of libc's. Without a descriptor left it takes the connection with one kept in reserve,
 * closes it, and says EAGAIN: the client sees a closed connection and tries again; the listener lives. For want of memory
 * it waits for a moment, and what is about one connection only is left behind with it.
 *
 * It stands in front of every accept4 of the process, and does each of them the same service: without it a
 * level-triggered loop would spin on a connection that it cannot take. */
#ifndef KVFERRY_PROTO_RPC_ACCEPT_H
#define KVFERRY_PROTO_RPC_ACCEPT_H

#include <stdint.h>

/* Put the descriptor in reserve. Any number of times, any thread. */
void rpc_accept_init(void);
/* Connections that were closed for want of descriptors, since the start. */
uint64_t rpc_accept_dropped(void);

#endif
