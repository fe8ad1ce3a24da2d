/* source: one source for one tenant, as the other parts of pull see it. It has at most one session
 * at a time; the next one is opened when every part of the last one is gone, so that a destination
 * never has two lanes. */
#ifndef KVFERRY_CLIENT_PULL_SOURCE_H
#define KVFERRY_CLIENT_PULL_SOURCE_H

#include "client/pull/pull.h"
#include "client/pull/wire.h"

struct session;
struct pull_read;

struct kvf_source {
    struct kvf_source_options options; /* strings and all, see source.c */
    char *address;
    char *tenant;
    struct wire wire;

    struct session *session; /* NULL: none, and nothing of the last one is left */
    uint64_t session_count;
    uint64_t boot_epoch; /* as the last Welcome told it; 0: never met */
    struct {             /* by transport: no lane opened over it */
        uint64_t until_ns, pause_ns;
    } avoid[KVF_TRANSPORTS_MAX];
    const struct kvf_transport *last_transport; /* over which a lane opened; NULL: none yet */
    uint64_t backoff_ns;                        /* 0: the last attempt was fine */
    uint64_t next_attempt_ns;
    struct kvf_status backoff_why;

    struct kvf_list ready;      /* pulls that have something to ask for and may, next one first */
    struct kvf_list others;     /* all other pulls */
    struct kvf_list delivering; /* pulls that have news for their caller */
    uint32_t pull_count;
    struct kvf_list free_reads;
    struct kvf_list resting_reads; /* finished, free when the present event is over */
    uint32_t free_read_count;

    struct kvf_rpc_channel *lookup_channel; /* opened by the first look-up */
    bool lookup_known;       /* who answers there has been asked and may serve: keys may be told */
    struct kvf_list lookups; /* with a call */
    struct kvf_list failed_lookups; /* to be told so from the post */

    struct kvf_post post;
    bool posted;
    bool draining;
    bool tell_draining; /* options.draining is to be called */
    bool closing;
    void (*closed)(void *context);
    void *closed_context;
};

static inline struct kvf_status pull_fail(enum kvf_code code)
{
    return kvf_fail(KVF_MODULE_CLIENT, code, 0);
}

/* The end of every event handler: ask for what may be asked for now, tell what there is to tell. */
void source_settle(struct kvf_source *source);
/* The same, soon: for calls of the user, inside which no callback may run. */
void source_settle_soon(struct kvf_source *source);

/* Put the pull into the list where it belongs now. */
void source_place_pull(struct kvf_pull *pull);
/* It is in no list any more and not counted. */
void source_forget_pull(struct kvf_pull *pull);

/* An attempt to reach the source came to nothing, because of `why`: until the back-off is over new
 * pulls fail at once. */
void source_back_off(struct kvf_source *source, struct kvf_status why);
/* It answered something sensible. */
void source_answered(struct kvf_source *source);
/* OK, or why nobody should try now. */
KVF_MUST_USE struct kvf_status source_may_try(const struct kvf_source *source);
/* May the one at the other end of this call, which has answered, serve our tenant? */
bool source_may_serve(const struct kvf_source *source, const struct kvf_rpc_call *call);
/* It told that it drains. */
void source_drains(struct kvf_source *source);
/* A session is open: with this boot. */
void source_is_open(struct kvf_source *source, uint64_t boot_epoch);
/* Pulls wait and there is no session. Nothing is called back inside. */
void source_connect(struct kvf_source *source);
/* The source's session is gone with all its parts; source->session is NULL. again: what waits is worth another one. */
void source_session_gone(struct kvf_source *source, bool again, struct kvf_status why);

/* pull.c: as kvf_pull_cancel, without telling soon. */
void pull_take_back(struct kvf_pull *pull);

/* lookup.c */
void lookups_cancel(struct kvf_source *source);
void lookups_tell_failed(struct kvf_source *source);

#endif
