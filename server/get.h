/* Get: from a list of keys to pinned extents, by way of DRAM, SSD and sources; and the look-up that
 * only asks.
 *
 *   PLANNING  what is where, how long is it: the index, puts that are PENDING, Lookup at sources
 *   QUEUED    in admission with the sum of whole pages; nothing is held
 *   LOADING   every block has its charge, and its extent and load or is pinned where it lay
 *   ANSWERED  `answered` has run; what is OK stays pinned until it is released
 *
 * A block that fails in one place is asked for in the next (other copies, other sources) while time
 * is left. What would end as a miss while recovery may still find it waits for that, without an
 * extent. What is still pending when a quarter of the time is left (at most 200 ms) is a miss, if others wait with it, so
 * that these can be had by then. At the deadline what is not there is a miss; the caller hears at once, while loads that
 * cannot stop keep their charge until they have. The struct frees itself when it is answered (or
 * dropped), all blocks are released and no load is left. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_GET_H
#define KVFERRY_SERVER_GET_H

#include "server/admission.h"
#include "server/awaited.h"
#include "server/index.h"
#include "server/load.h"
#include "server/put.h"
#include "server/sources.h"
#include "server/stats.h"

struct get;

/* What all Gets share. The owner may change read_batch_bytes and read_batches_in_flight at any
 * time. */
struct gets {
    struct kvf_loop *loop;
    struct kvf_index *index;
    struct kvf_loads *loads;
    struct kvf_admission *admission;
    struct kvf_sources *sources; /* NULL: no way to pull (no transport) */
    struct kvf_counters *counters;
    struct kvf_awaited *awaited; /* NULL: no SSD tier */
    const char *const *peers;    /* sources to ask when a request has no hint, in order */
    size_t peer_count;
    uint64_t read_batch_bytes;
    unsigned read_batches_in_flight;
    struct puts *puts; /* NULL, or who writes what a Get shows to be worth it: */
    bool keep_hits;    /* blocks that were put here, at their first hit */
    bool keep_pulled;  /* blocks that were pulled */
    uint64_t open;     /* Gets that exist */
};

enum get_item_state {
    GET_NEW = 0,  /* to be looked up in the index, then in sources from `source` on */
    GET_PENDING,  /* waits for a put's commit here, or for recovery to find it */
    GET_ASKING,   /* waits for a source's Lookup */
    GET_PLANNED,  /* its length is known: goes to admission */
    GET_LOADING,  /* charged, pinned, waits for its load */
    GET_HELD,     /* charged, pinned, has every checked byte */
    GET_FOUND,    /* look-up only: it is there */
    GET_MISSED,   /* `code` says why */
    GET_RELEASED, /* was held */
};

/* One block of a Get. The caller sets key and length. */
struct get_item {
    struct kvf_key key;
    uint64_t length;         /* 0: any; in the answer: the block's */
    enum kvf_code code;      /* OK, or why it is a miss */
    struct kvf_entry *entry; /* HELD: pinned: extent, generation, crc32c */
    enum kvf_tier tier;
    enum kvf_origin origin;

    enum get_item_state state;
    struct get *get;
    uint32_t source; /* next source to ask */
    uint64_t charge; /* bytes of the reservation that it holds */
    bool starts;     /* it gave the entry its extent and starts its load */
    bool loading;    /* its load is not gone yet */
    bool not_read;   /* the drive failed: only what is in DRAM, or a source, is tried now */
    bool pending;    /* ASKING: the source said PENDING; to be asked again after a pause */
    bool awaits;     /* PENDING: for recovery */
    struct kvf_entry_watch watch;
    struct kvf_await await;
    struct kvf_load_waiter waiter;
};

struct get {
    /* Set by the caller between create and start. */
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    char hint[280];          /* source to ask before the peers; empty: none */
    uint64_t instance;       /* on whose behalf */
    struct kvf_party *party; /* who asks; must outlive the Get: its owner drops the Get
                                           first, and counts it out */
    uint64_t deadline_ns;
    bool stop_at_first_miss;
    bool lookup_only;
    void (*answered)(struct get *get); /* once; may run inside get_start; not after get_drop */
    void (*freed)(void *user);         /* once, last */
    void *user;

    /* The answer. */
    struct kvf_status status;   /* of the Get as a whole: OK, BUSY, TOO_LARGE */
    struct kvf_refusal refusal; /* of BUSY and TOO_LARGE: what it lacked */
    uint32_t item_count;
    struct get_item *items;

    /* get's own */
    struct gets *gets;
    struct kvf_request request;
    struct kvf_timer timer;
    struct kvf_timer lookup_timer;
    struct kvf_lookup lookup;
    uint32_t *lookup_items; /* which item each block of the look-up is */
    unsigned lookup_tries;
    uint32_t waits; /* items that wait for a commit, an answer or a load */
    bool hurries;   /* the last of its time: what is pending now is not waited for */
    bool lookup_open, answered_done, dropped, working;
};

/* NULL: out of memory. */
struct get *get_create(struct gets *gets, uint32_t item_count);
void get_start(struct get *get);
/* Give one held block back; anything else is ignored. */
void get_release(struct get *get, uint32_t item);
/* Who holds this block says that its bytes are not those of its checksum. They are checked here as well, and the block
 * is dropped only if that is so. */
void get_report_bad(struct get *get, uint32_t item);
/* The caller is gone: no answer, everything is given back as soon as it can be. The pointer is
 * dead. Legal once, at any time after create. */
void get_drop(struct get *get);
/* Answer now: what is not there yet is CANCELLED. */
void get_cancel(struct get *get);
/* Blocks from the first on that came without a gap. */
uint32_t get_prefix(const struct get *get);

#endif
