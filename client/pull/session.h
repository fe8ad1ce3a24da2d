/* session: one Peer.Session call and one lane to a source. When either part ends, both end.
 *
 *   CALLING   the call is started, Hello sent; Welcome has not come
 *   JOINING   Welcome came, the lane is connecting
 *   OPEN      Reads go up, answers come down
 *   LEAVING   ended by us in good order: half-closed, the source's answer is due; no Read is open
 *   ENDING    broken or given up: both parts are being closed, blocks come back from the lane
 * It is freed when both parts are gone. What it did not finish goes back to its pull only then. */
#ifndef KVFERRY_CLIENT_PULL_SESSION_H
#define KVFERRY_CLIENT_PULL_SESSION_H

#include "client/pull/source.h"

#define SESSION_REMEMBERED_IDS 32

enum session_state {
    SESSION_CALLING = 0,
    SESSION_JOINING,
    SESSION_OPEN,
    SESSION_LEAVING,
    SESSION_ENDING,
    SESSION_STATE_COUNT
};

struct session {
    struct kvf_source *source;
    uint64_t number; /* among those of this source, from 1 */
    enum session_state state;
    struct kvf_status why; /* of LEAVING and ENDING */
    char text[256]; /* why it ends, in words, for the log; the call's, unless we know better */
    struct kvf_rpc_channel *channel;
    struct kvf_rpc_call *call;       /* NULL: closed */
    struct kvf_lane *lane;           /* NULL: none yet, or closed */
    struct kvf_transport *transport; /* of the lane; NULL before Welcome */
    uint64_t hello_ns;               /* what was avoided then was not offered */
    struct kvf_timer timer;          /* bounds CALLING + JOINING, and LEAVING */
    struct kvf_post gone;
    bool was_open;
    bool fell_back; /* its lane did not open, and there is another transport to try */
    bool answered;  /* a Read got its Grants or was refused */
    bool draining;

    /* From Welcome. */
    uint64_t boot_epoch;
    uint64_t max_grant_bytes;
    uint32_t max_blocks;
    uint32_t max_open_reads;

    uint64_t last_id;
    struct kvf_list reads;          /* open ones, oldest first */
    struct kvf_list finished_reads; /* whose Release is due */
    uint32_t open_reads;
    uint32_t parked_reads; /* of them: those that hold nothing and only wait for Committed */
    /* Ids that we released before they were answered: their Grants may still be on the way, and
     * count. */
    uint64_t unanswered[SESSION_REMEMBERED_IDS];
    unsigned unanswered_next;
};

/* Sets source->session. Nothing is called back inside. */
KVF_MUST_USE struct kvf_status session_start(struct kvf_source *source);
/* Close both parts now. Harmless when it is ending already. */
void session_end(struct session *session, struct kvf_status why);
/* Say goodbye; no Read may be open. */
void session_leave(struct session *session);
/* The source drains: Reads go on, what is pending there will not come. */
void session_drain(struct session *session);
/* Ask for as much as the bounds allow; or leave, with no Read open, where a better transport may be tried again. */
void session_pump(struct session *session);

/* False: the session cannot take Reads, or cancels and releases of them. */
static inline bool session_is_open(const struct session *session)
{
    return session->state == SESSION_OPEN;
}

void session_send(struct session *session, const Kvferry__SessionUp *up);

#endif
