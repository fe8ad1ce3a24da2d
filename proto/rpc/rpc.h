/* The one wrapper round gRPC's C core: calls as streams of byte messages, on an event loop.
 *
 * There is one kind of call. Both sides send messages (serialized protobuf, but this layer sees bytes only) and receive
 * them; a unary call is one that carries one message each way. gRPC's own threads do the I/O; a thread of ours waits on
 * the completion queue and posts; every callback below runs on the loop's thread, in order, one at a time.
 *
 * Life of a call:
 *   OPEN     messages go both ways
 *   CLOSED   `closed` has run: exactly once, last of all callbacks. The call's memory is gone when it returns.
 * A client call is closed when the server's status has come, or cancel, deadline or a broken connection has taken its
 * place. A server call is closed when its status has left or can leave no more.
 *
 * Owner thread of everything here: the loop's. Durations inside, never points in time. Keepalive is 5 s + 5 s on both
 * sides, reconnect back-off at most 2 s, retries are off, each channel has a connection of its own.
 * gRPC may bear threads in any call, and they inherit the mask: who waits for signals in a descriptor blocks them in
 * the loop's thread before kvf_rpc_create. */
#ifndef KVFERRY_PROTO_RPC_RPC_H
#define KVFERRY_PROTO_RPC_RPC_H

#include "base/loop.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kvf_rpc;         /* gRPC itself, its queue and our thread: one per process is enough */
struct kvf_rpc_server;  /* one listening address */
struct kvf_rpc_channel; /* a connection to one server; connects by itself */
struct kvf_rpc_call;

/* Longest message either side accepts; a longer one ends its call. */
#define KVF_RPC_MAX_MESSAGE_BYTES ((size_t)1 << 20)

struct kvf_bytes {
    const uint8_t *data;
    size_t length;
};

/* What a call tells its user. `call->user` is the user's. A NULL callback is skipped. */
struct kvf_rpc_events {
    /* A whole message; the bytes are borrowed for the time of the callback. */
    void (*message)(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes);
    /* The other side sends no more: it half-closed or finished, or it is gone. Only `closed` tells which. */
    void (*half_closed)(struct kvf_rpc_call *call, void *user);
    /* The end. On the client: the server's status, or what came in its place (UNAVAILABLE, DEADLINE, CANCELLED,
     * UNSUPPORTED for an unknown method). On the server: OK when our status has been handed to gRPC, CANCELLED when the
     * client was gone before. `text` is the server's message, never NULL. */
    void (*closed)(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                   const char *text);
};

/* Where one side's TLS material lies, PEM. */
struct kvf_rpc_tls_files {
    const char *certificate_path; /* our chain */
    const char *key_path;
    const char *ca_path; /* who may sign the other side */
};

/* That material as it was read last, all three files together. Servers use it for their next handshake, channels for
 * those that are opened from then on; connections that are open stay as they are. */
struct kvf_rpc_tls;

/* A method that a server offers: "/kvferry.Peer/Session". `called` runs for each new call and must set events and user
 * by kvf_rpc_call_accept before it returns, or end the call with kvf_rpc_call_finish. */
struct kvf_rpc_method {
    const char *path;
    void (*called)(struct kvf_rpc_call *call, void *context);
    void *context;
};

KVF_MUST_USE struct kvf_status kvf_rpc_create(struct kvf_loop *loop, struct kvf_rpc **give);
/* Every server, channel and call must be gone: their last callbacks have run. Joins the thread. NULL is fine. */
void kvf_rpc_destroy(struct kvf_rpc *rpc);

/* Read and check the files (paths are copied). INVALID: *why says which is wrong. */
KVF_MUST_USE struct kvf_status kvf_rpc_tls_open(const struct kvf_rpc_tls_files *files,
                                                struct kvf_rpc_tls **give, struct kvf_why *why);
/* Read them again. On error what was read before stays in use. */
KVF_MUST_USE struct kvf_status kvf_rpc_tls_reload(struct kvf_rpc_tls *tls, struct kvf_why *why);
/* One line for the operator: our identity and how long the certificate is good. False: every peer will refuse it, and
 * the line says so. */
bool kvf_rpc_tls_describe(const struct kvf_rpc_tls *tls, struct kvf_why *text);
/* Only after kvf_rpc_destroy: gRPC's threads read it. NULL is fine. */
void kvf_rpc_tls_close(struct kvf_rpc_tls *tls);

/* Listen on "HOST:PORT" (port 0: any, see kvf_rpc_server_port) or "unix:/path". tls NULL: plaintext. tls and methods are
 * borrowed for the server's life; calls of any other method are answered UNIMPLEMENTED at once. The port is not shared:
 * a taken one is an error (UNAVAILABLE, *why says so). */
KVF_MUST_USE struct kvf_status
kvf_rpc_server_start(struct kvf_rpc *rpc, const char *address, struct kvf_rpc_tls *tls,
                     const struct kvf_rpc_method *methods, size_t method_count,
                     struct kvf_rpc_server **give, struct kvf_why *why);
int kvf_rpc_server_port(const struct kvf_rpc_server *server);
/* New calls end UNAVAILABLE; open ones go on until grace_ms is over, then they are cancelled. `stopped` runs once, when
 * the last call's `closed` has run and the server is gone. */
void kvf_rpc_server_stop(struct kvf_rpc_server *server, uint64_t grace_ms,
                         void (*stopped)(void *context), void *context);

/* The address is "HOST:PORT" or "unix:/path". Does not connect before the first call. */
KVF_MUST_USE struct kvf_status kvf_rpc_channel_open(struct kvf_rpc *rpc, const char *address,
                                                    struct kvf_rpc_tls *tls,
                                                    struct kvf_rpc_channel **give,
                                                    struct kvf_why *why);
/* The calls on it must be closed already. NULL is fine. */
void kvf_rpc_channel_close(struct kvf_rpc_channel *channel);

/* Begin a client call. timeout_ms 0: none (a session). events is borrowed until `closed`. A failed connect (one attempt
 * takes at most 1 s) closes it UNAVAILABLE; while the channel backs off, so does every further call, at once. */
KVF_MUST_USE struct kvf_status kvf_rpc_call_start(struct kvf_rpc_channel *channel, const char *path,
                                                  uint64_t timeout_ms,
                                                  const struct kvf_rpc_events *events, void *user,
                                                  struct kvf_rpc_call **give);

/* Server side, inside `called`. */
void kvf_rpc_call_accept(struct kvf_rpc_call *call, const struct kvf_rpc_events *events,
                         void *user);

/* Queue a message; the bytes are copied. Never blocks; order is kept. After the call has ended or half-closed it is
 * dropped silently (`closed` tells). */
void kvf_rpc_call_send(struct kvf_rpc_call *call, struct kvf_bytes bytes);
/* Bytes queued but not yet taken by gRPC: for bounds, not for pacing. */
size_t kvf_rpc_call_queued_bytes(const struct kvf_rpc_call *call);
/* Client side: we send no more. */
void kvf_rpc_call_half_close(struct kvf_rpc_call *call);
/* Server side: after what is queued, end the call with this status (OK, or its gRPC equivalent) and text. */
void kvf_rpc_call_finish(struct kvf_rpc_call *call, struct kvf_status status, const char *text);
/* Either side: end it now; what is queued may be lost. After this, and after finish, only `closed` runs. */
void kvf_rpc_call_cancel(struct kvf_rpc_call *call);

/* The other side: its address as "ipv4:127.0.0.1:4711"; with TLS the one URI SAN of its certificate. Where there is not
 * exactly one, the call ends by itself, DENIED (UNAUTHENTICATED to gRPC) with a text that says why: a server's user
 * never hears of it, a client's hears `closed`. Without TLS the identity is empty. A server knows both from the beginning, a client from its first `message` (or `half_closed`) on;
 * they are empty until then. Both borrowed from the call. */
const char *kvf_rpc_call_peer(const struct kvf_rpc_call *call);
const char *kvf_rpc_call_identity(const struct kvf_rpc_call *call);

#endif
