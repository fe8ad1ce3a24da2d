/* What the parts of the engines module share: contexts, and what each part does for the others.
 * Private to it.
 *
 *   engines.c          sockets: accepting, packets in and out, a context's end
 *   engine_messages.c  requests: Register, Unregister, Forget, and who takes the rest
 *   engine_puts.c      PutBegin, PutCommit, PutAbort
 *   engine_gets.c      Get, Lookup, Release, Cancel */
#ifndef KVFERRY_SERVER_ENGINE_CONTEXT_H
#define KVFERRY_SERVER_ENGINE_CONTEXT_H

#include "client/engine/wire.h"
#include "proto/engine.pb-c.h"
#include "proto/scratch.h"
#include "server/engines.h"

#include <sys/types.h>

enum context_state {
    CONTEXT_CONNECTED = 0, /* accepted; Register is legal, and nothing else */
    CONTEXT_REGISTERED,    /* by Register: everything else is legal, until Unregister */
    CONTEXT_LEAVING, /* by engine_leave: the socket is closed; freed when its Gets have ended and its
                        places are given back */
};

struct packet {
    struct kvf_list node;
    size_t length;
    uint8_t bytes[];
};

/* Blocks that the open requests of one context may name together: what a request costs beside the pool
 * is bounded by it. */
#define ENGINE_MAX_OPEN_BLOCKS (256u << 10)

/* For the unpacked form of any request that is answered: 512 names of 64 bytes take 0.2 MB, numbers in as many bytes as
 * a packet has 0.5 MB. Touched only where used. */
#define ENGINE_UNPACKED_BYTES (1u << 20)

/* One Get or look-up of a context, until its last block is released. */
struct engine_get {
    struct kvf_list node;
    struct context *context;
    uint64_t id;     /* of the request */
    struct get *get; /* NULL once dropped */
    uint32_t blocks;
};

/* One PutBegin that waits. */
struct engine_begin {
    struct kvf_list node;
    struct context *context;
    uint64_t id;
    struct put_begin *begin;
};

struct context {
    struct kvf_list node;
    struct kvf_engines *engines;
    enum context_state state;
    bool unregistered;
    struct kvf_watch watch; /* the socket; fd -1 once closed */
    struct kvf_list packets;
    size_t queued_bytes;
    bool
        is_deaf; /* it reads no more: nothing is sent, and what it said before it went is still taken */
    struct kvf_watch process; /* its pidfd, -1: none; watched while LEAVING with places left */
    struct kvf_timer timer;   /* CONNECTED: Register must come; LEAVING: its process must go */
    uint64_t instance;
    pid_t pid;
    char identity[24]; /* "uid:N" */
    char name[64];
    struct kvf_party party;
    uint64_t refusal_quiet_until_ns; /* no line about what is refused before that */
    uint64_t refusals_untold;        /* since the last line */
    struct kvf_list gets;
    struct kvf_list begins;
    struct kvf_list puts; /* OPEN or QUARANTINED, in order of id */
    uint64_t next_put;
    uint64_t open_blocks; /* of its Gets and waiting PutBegins */
    bool working;
};

struct kvf_engines {
    struct kvf_engines_options options;
    struct kvf_watch listener;
    struct kvf_timer accept_again;
    struct kvf_list contexts;
    uint64_t count;
    uint64_t next_instance;
    bool draining;
    uint8_t buffer[KVF_WIRE_MAX_BYTES];
    struct kvf_scratch scratch; /* over `unpacked`: the one request that is being taken */
    uint8_t unpacked[ENGINE_UNPACKED_BYTES];
};

/* ---- engines.c ---- */

/* Queue one answer; an engine that does not read is left. */
void engine_send_reply(struct context *context, const Kvferry__EngineReply *reply);
void engine_send_code(struct context *context, uint64_t id, enum kvf_code code,
                      const char *message);
/* The context is over: gives back what it holds. It may be gone on return, unless `working`. */
void engine_leave(struct context *context);
void engine_protocol_error(struct context *context, const char *text);
void engine_set_state(struct context *context, enum context_state to);
void engine_free_if_over(struct context *context);
void engine_abort_puts(struct context *context);
/* The engine hears the code alone: what was short is for whoever reads the log. `what`: a Get or a
 * PutBegin. Nothing where nothing was short. */
void engine_log_refusal(struct context *context, const char *what,
                        const struct kvf_refusal *refusal);
/* False: so many blocks more are too many for now, and the engine has been told. */
bool engine_may_open(struct context *context, uint64_t id, size_t blocks);
/* Gets and waiting PutBegins: no answers any more. */
void engine_drop_all(struct context *context);

/* ---- engine_messages.c ---- */

void engine_take(struct context *context, const Kvferry__EngineRequest *request);
/* Now + the wanted duration, at most --query-timeout-s. */
uint64_t engine_deadline(const struct context *context, uint64_t deadline_us);
/* Has its user this right for the tenant of this namespace? A no is audited; what: the request. */
bool engine_may(const struct context *context, const char *ns, enum kvf_right right,
                const char *what);
bool engine_names_are_valid(const char *ns, size_t count, Kvferry__EngineName *const *blocks);
bool engine_keys_are_valid(const char *ns, size_t count, const ProtobufCBinaryData *keys);

/* ---- engine_puts.c ---- */

void engine_take_put_begin(struct context *context, uint64_t id,
                           const Kvferry__EnginePutBegin *request);
void engine_take_put_commit(struct context *context, uint64_t id,
                            const Kvferry__EnginePutCommit *request);
void engine_take_put_abort(struct context *context, const Kvferry__EnginePutAbort *request);
/* The places that this PutBegin was answered with, and that are not committed, go back. */
void engine_abort_begun(struct context *context, uint64_t id);

/* ---- engine_gets.c ---- */

void engine_take_get(struct context *context, uint64_t id, const Kvferry__EngineGet *request);
void engine_take_lookup(struct context *context, uint64_t id, const Kvferry__EngineLookup *request);
void engine_take_release(struct context *context, const Kvferry__EngineRelease *request);
void engine_take_cancel(struct context *context, const Kvferry__EngineCancel *request);
/* No answer to it any more; its pins go. */
void engine_drop_get(struct engine_get *mine);

#endif
