/* What the files of proto/rpc share.
 *
 *   rpc.c          gRPC itself, the completion queue and its thread, addresses
 *   call.c         a call on either side: what is sent, what comes, the end
 *   channel.c      the client's connection
 *   server.c       listening, new calls, stopping
 *   accept.c       how a listener survives a shortage of descriptors
 *   credentials.c  TLS material, who the other side is, what a failed handshake means
 *   certificate.c  what our own certificate says
 *   code.c         kvferry's codes and gRPC's
 *
 * Owner thread of every struct here: the loop's. The queue's thread only sets `ok` in a tag and
 * posts it. */
#ifndef KVFERRY_PROTO_RPC_RPC_INTERNAL_H
#define KVFERRY_PROTO_RPC_RPC_INTERNAL_H

#include "base/list.h"
#include "base/log.h"
#include "proto/rpc/rpc.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>

/* One thing that gRPC was asked for and will answer on the queue; `done` then runs on the loop's
 * thread. */
struct rpc_tag {
    struct kvf_post post;
    void (*done)(struct rpc_tag *tag, bool ok);
    bool ok;
};

struct kvf_rpc {
    struct kvf_loop *loop;
    grpc_completion_queue *queue;
    pthread_t thread;
    size_t users; /* servers and channels that are still there */
};

struct kvf_rpc_channel {
    struct kvf_rpc *rpc;
    grpc_channel *channel;
    size_t calls; /* not yet closed */
    bool tls;
};

enum rpc_server_state {
    RPC_SERVER_SERVING,
    RPC_SERVER_STOPPING, /* by kvf_rpc_server_stop: new calls are refused, open ones go on */
    RPC_SERVER_CLOSING,  /* the calls have ended or the grace is over: gRPC ends its connections */
    RPC_SERVER_SHUT,     /* gRPC is done; what is left are calls whose `closed` has not run */
};

struct kvf_rpc_server {
    struct kvf_rpc *rpc;
    grpc_server *server;
    const struct kvf_rpc_method *methods; /* borrowed */
    size_t method_count;
    int port;
    bool tls;
    enum rpc_server_state state;
    size_t calls; /* not yet closed */
    struct kvf_log_limit refusals;

    struct rpc_tag request; /* for the next call, whatever its method */
    bool requesting;
    grpc_call *incoming;
    grpc_call_details details;
    grpc_metadata_array metadata;

    struct rpc_tag shutdown;
    struct kvf_timer grace;
    void (*stopped)(void *context);
    void *context;
};

struct rpc_message {
    struct rpc_message *next;
    grpc_byte_buffer *buffer;
    size_t length;
};

/* What leaves. */
enum rpc_out_state {
    RPC_OUT_OPEN,   /* messages are taken */
    RPC_OUT_ENDING, /* half-close or finish was asked for: it leaves behind what is queued */
    RPC_OUT_OVER,   /* the end is with gRPC, or nothing can leave any more */
};

struct kvf_rpc_call {
    struct kvf_rpc *rpc;
    struct kvf_rpc_channel *channel; /* client side, else NULL */
    struct kvf_rpc_server *server;   /* server side, else NULL */
    grpc_call *call;
    const struct kvf_rpc_events *events; /* never NULL */
    void *user;
    bool deaf; /* cancelled or finished by us: only `closed` is of interest any more */

    size_t pending; /* tags that are not back; the call lives at least as long */
    bool over;      /* gRPC has said that the call has ended */

    struct rpc_tag send;
    bool sending;      /* the send tag is out */
    bool initial_sent; /* so are the initial metadata, or they need not be */
    enum rpc_out_state out;
    struct rpc_message *current; /* with gRPC */
    struct rpc_message *first, *last;
    size_t queued_bytes;          /* of current and of all behind it */
    grpc_status_code finish_code; /* server side */
    grpc_slice finish_text;

    struct rpc_tag receive;
    grpc_byte_buffer *received;

    struct rpc_tag end; /* client: the status; server: the close */
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    int cancelled;

    struct kvf_post begin; /* client: starts the first batches once the caller has had its say */

    char *peer;        /* gRPC's; NULL until known */
    char *identity;    /* ours; NULL when there is none */
    bool heard;        /* client side: a message has come */
    const char *fault; /* client side: why the server is nobody to us */
};

/* One number among the arguments of a channel or server. */
#define RPC_INTEGER_ARG(name, number)                                                              \
    {                                                                                              \
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)(name), .value.integer = (number)      \
    }

/* rpc.c */
void rpc_tag_init(struct rpc_tag *tag, void (*done)(struct rpc_tag *tag, bool ok));
/* Round each call that hands work to gRPC. What it can do at once, it does inside that call; the
 * answer is then caught here instead of waking the queue's thread, which would only post it back to
 * us. NULL: nothing was caught. What was caught may be any tag, and its `done` has still to run:
 * handle it, or post it. */
void rpc_early_begin(struct kvf_rpc *rpc);
struct rpc_tag *rpc_early_end(struct kvf_rpc *rpc);
/* The tag as gRPC wants it, at the moment when it is handed over. */
void *rpc_tag_lend(struct rpc_tag *tag);
/* May a line about what strangers do be logged now? At most a few each second. Any thread. */
bool rpc_may_log(void);
KVF_MUST_USE struct kvf_status rpc_address_check(const char *address, struct kvf_why *why);
bool rpc_address_is_unix(const char *address);

/* call.c */
/* A call has come in: takes it. method NULL: nobody offers it. */
void rpc_call_serve(struct kvf_rpc_server *server, grpc_call *call,
                    const struct kvf_rpc_method *method);

/* server.c */
/* A server call's `closed` has run and its memory is gone. */
void rpc_server_call_gone(struct kvf_rpc_server *server);

/* credentials.c: tls NULL is plaintext. */
/* NULL: out of memory. */
grpc_channel_credentials *rpc_credentials_client(struct kvf_rpc_tls *tls);
grpc_server_credentials *rpc_credentials_server(struct kvf_rpc_tls *tls);
/* The one URI SAN of the other side's certificate, to be freed. NULL: it has no identity, *fault says
 * why. */
char *rpc_credentials_identity(grpc_call *call, const char **fault);
/* What gRPC says about a handshake that failed, in words for whoever runs this side. NULL: nothing about TLS is in
 * it. `heard`: the other side has answered before. */
const char *rpc_credentials_explain(const char *text, bool tls, bool heard);

/* certificate.c: what a PEM text says. */
struct rpc_certificate {
    char uri[256]; /* its first URI SAN, cut; "" */
    unsigned uri_count;
    char until[32]; /* the end of its time, UTC */
    int64_t seconds_left;
};

/* The first certificate in it. False: there is none. */
bool rpc_certificate_read(const char *pem, struct rpc_certificate *give);
bool rpc_certificate_has_key(const char *pem, const char *key_pem);

/* code.c */
grpc_status_code rpc_code_to_grpc(enum kvf_code code);
/* What a gRPC status means here; detail is the gRPC code. */
struct kvf_status rpc_code_from_grpc(grpc_status_code code, const char *text);
struct kvf_status rpc_fail(enum kvf_code code, int detail);

#endif
