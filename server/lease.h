/* Leases: what this node, as a source, holds for one Read of a peer.
 *
 *   QUEUED    waits for places on its lane, then in admission for its charges and memory, of which
 *             nothing is held meanwhile
 *   GRANTED   Grants are out; each hit is pinned, loaded where it is not resident, and offered to
 *             the lane as it lands
 *   RELEASED  the consumer is done, or the session is gone: nothing new is sent; each extent goes
 *             back when our own read and send on it have ended
 *   (freed)   after the last of them
 *
 * After admission nothing here waits for memory. What goes wrong later is a Fault of that one
 * block, told when nothing touches it any more. A PENDING block holds nothing; it ends as Committed
 * or, when its put was aborted or recovery has not found it, as a Fault. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_LEASE_H
#define KVFERRY_SERVER_LEASE_H

#include "server/admission.h"
#include "server/awaited.h"
#include "server/index.h"
#include "server/load.h"
#include "server/stats.h"
#include "transport/transport.h"

/* What all leases share. */
struct kvf_leases {
    struct kvf_loop *loop;
    struct kvf_index *index;
    struct kvf_loads *loads;
    struct kvf_admission *admission;
    struct kvf_counters *counters;
    struct kvf_awaited *awaited; /* NULL: no SSD tier */
    uint64_t max_grant_bytes;
    uint64_t max_lease_ns;
    uint64_t open; /* leases that exist */
};

/* The lane that the leases of a session share, and how many blocks more it can have open. A lease takes
 * a place for each block before it asks admission, so that nobody else waits for what only its session
 * lacks; where there are too few it waits, behind those of its lane that came before. */
struct kvf_lease_lane {
    struct kvf_lane *lane; /* NULL: it is closing */
    uint64_t places;
    struct kvf_list waiting;
};
void kvf_lease_lane_init(struct kvf_lease_lane *shared, struct kvf_lane *lane,
                         const struct kvf_transport_traits *traits);

struct kvf_lease;

struct kvf_lease_events {
    /* Before any Fault or token; may run inside kvf_lease_start, or whatever gives back places. */
    void (*granted)(struct kvf_lease *lease);
    /* instead of granted; the lease is gone after it */
    void (*refused)(struct kvf_lease *lease, const struct kvf_refusal *refusal);
    /* Its bytes will not come; a pending one will not be committed. */
    void (*fault)(struct kvf_lease *lease, uint32_t block, enum kvf_code code);
    void (*committed)(struct kvf_lease *lease, uint32_t block, uint64_t length);
    /* 2 s over its deadline and not released: end the session. */
    void (*overdue)(struct kvf_lease *lease);
};

enum kvf_lease_state {
    KVF_LEASE_QUEUED = 0, /* from create on; refused or released it never is GRANTED */
    KVF_LEASE_GRANTED,    /* set by admission; events may come */
    KVF_LEASE_RELEASED,   /* set by release; only `freed` comes */
};

struct kvf_lease_block {
    /* Asked for. */
    struct kvf_key key;
    uint64_t length;
    struct kvf_generation pin; /* none: any */
    /* Granted. */
    enum kvf_code code;
    enum kvf_tier tier;
    struct kvf_entry *entry; /* pinned while held */

    struct kvf_lease *lease;
    bool starts;          /* it gave the entry its extent and starts its load */
    bool loading;         /* its load is not gone yet */
    bool on_lane;         /* the lane may read it */
    bool watching;        /* PENDING: a put */
    bool awaiting;        /* PENDING: recovery may still find it */
    enum kvf_code failed; /* its load failed: a Fault once the lane has let go */
    uint64_t charge;
    struct kvf_load_waiter waiter;
    struct kvf_entry_watch watch;
    struct kvf_await await;
};

/* What became of a lease, for whoever tells about it. */
struct kvf_lease_account {
    uint64_t start_ns;
    uint64_t granted_ns; /* 0: never granted */
    enum kvf_code code;  /* OK, or why it was refused */
    uint32_t hits;       /* granted blocks */
    uint32_t sent;       /* of them, those that were sent whole */
    uint64_t sent_bytes;
};

struct kvf_lease {
    /* Set by the caller between create and start. */
    uint64_t id;
    uint64_t instance; /* of the engine behind it: lanes serve instances in turns */
    uint64_t deadline_ns;
    bool stop_at_first_miss;
    bool denied; /* every block looks missing, in every other way it is like any lease */
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    struct kvf_lease_lane *lane;
    struct kvf_party *party; /* who asks: kept until `freed` */
    bool speculative;
    const struct kvf_lease_events *events;
    /* Once, last, whatever came before. What it was asked for, its party and its account can be read until this returns. */
    void (*freed)(void *user, const struct kvf_lease *lease);
    void *user;
    struct kvf_list node; /* the session's; taken out when freed */

    uint32_t block_count;
    struct kvf_lease_block *blocks;

    /* lease's own */
    struct kvf_leases *leases;
    enum kvf_lease_state state;
    struct kvf_request request;
    struct kvf_timer timer;
    struct kvf_lane_read lane_read;
    struct kvf_lane_block *lane_blocks;
    uint32_t held;              /* blocks whose entry is pinned */
    uint32_t places;            /* of its lane, that it has taken */
    struct kvf_list place_node; /* among those that wait for some */
    bool working;
    struct kvf_lease_account account;
};

/* NULL: out of memory. */
struct kvf_lease *kvf_lease_create(struct kvf_leases *leases, uint32_t block_count);
/* Refused or granted comes, perhaps inside. */
void kvf_lease_start(struct kvf_lease *lease);
/* Somebody waits for it now: no longer speculative. Fine in every state. */
void kvf_lease_raise(struct kvf_lease *lease);
/* The source stops offering what has not been sent. */
void kvf_lease_cancel(struct kvf_lease *lease);
/* The consumer is done, or its session gone; then the lane is to be closed first, for the consumer has not said that it
 * is done reading. No event comes any more but `freed`, perhaps inside.
 * Until then it may be called again, which does nothing. */
void kvf_lease_release(struct kvf_lease *lease);
/* The consumer found these bytes bad: check our own copy. */
void kvf_lease_recheck(struct kvf_lease *lease, uint32_t block);

#endif
