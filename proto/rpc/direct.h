/* rpc.h without gRPC: calls end in this process, and what the far end says is a function's argument. For fuzz targets,
 * which drive the real services and clients with foreign bytes, a hundred times faster than over sockets. A program that
 * links this before //proto/rpc gets all of rpc.h from here. Test only; owner thread: the loop's.
 *
 * The rules of rpc.h hold: messages come one at a time and never inside a function of the call's user, a message beyond
 * the limit ends the call, `closed` is last and comes by the loop. There is no time: deadlines of calls never pass. */
#ifndef KVFERRY_PROTO_RPC_DIRECT_H
#define KVFERRY_PROTO_RPC_DIRECT_H

#include "proto/rpc/rpc.h"

#include <stdbool.h>

/* The far end of one call; zeroed before. Must stay until `call` is NULL again. */
struct direct_far {
    struct kvf_rpc_call *call; /* NULL: there is none, or it has closed */
    unsigned heard;            /* messages that came to this end since it has the call */
};

/* As a client: call a method that a server of this process offers. */
void direct_call(struct direct_far *far, const char *path);
/* As a server: take the oldest call of this method that nobody has taken. False: there is none. */
bool direct_take(struct direct_far *far, const char *path);
/* As nobody: every call that was not taken fails like one whose server is not there. */
void direct_refuse_all(void);

/* What the far end does; nothing where the call has ended. */
void direct_say(struct direct_far *far, const void *bytes, size_t length);
void direct_half_close(struct direct_far *far);
void direct_hang_up(struct direct_far *far, struct kvf_status status);

#endif
