/* pull: the consumer's side of a source. Keeps one session (call and lane) to one source for one
 * tenant, packs wanted blocks into Reads, lets their bytes land in the caller's extents, checks
 * every CRC32C, releases. The daemon and the command `kvferry pull` are its two users.
 *
 * Owner thread of everything: the loop's. The caller embeds struct kvf_pull with its array of
 * blocks and leaves both alone until `ended`. Every block gets its result once, every pull ends
 * once, at the latest at its deadline. A block's extent is the caller's again when its
 * `block_ended` runs with state ENDED. After a forced end the lane may still touch it: then the
 * state is QUARANTINED, and `freed` says when it is over. */
#ifndef KVFERRY_CLIENT_PULL_PULL_H
#define KVFERRY_CLIENT_PULL_PULL_H

#include "base/arena.h"
#include "base/block.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/status.h"
#include "proto/rpc/rpc.h"
#include "transport/transport.h"

#include <stddef.h>
#include <stdint.h>

/* One source for one tenant, connected when first needed. */
struct kvf_source;

/* Counted since creation of the shared `struct kvf_pull_stats`, verified bytes only. */
struct kvf_pull_stats {
    uint64_t reads;            /* Reads that got Grants, retries included */
    uint64_t blocks;           /* verified */
    uint64_t bytes;            /* verified, of the blocks' lengths */
    uint64_t misses;           /* blocks that did not come, whatever the reason */
    uint64_t quarantine_bytes; /* now: extents that a broken session may still touch */
};

/* Why a source refused a Read, as it says itself. */
struct kvf_pull_refusal {
    struct kvf_status status; /* BUSY, TOO_LARGE, DRAINING, ... */
    uint32_t short_of;        /* enum kvf_shortage of proto/peer.h, or what we do not know */
    uint64_t waited_ns;
    uint64_t short_bytes;
};

struct kvf_source_options {
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_transports transports; /* the preferred one first; the source chooses among them */
    size_t device; /* lanes leave by this one of the transport's; of no meaning where it has none */
    const char *address;       /* HOST:PORT of the source's --listen; copied */
    const char *tenant;        /* copied */
    struct kvf_rpc_tls *tls;   /* NULL: plaintext; borrowed for life */
    const char *node_id;       /* ours; borrowed for life */
    uint64_t boot_epoch;       /* ours */
    uint64_t process_instance; /* random per start */
    bool speculative;          /* nobody waits for these pulls yet; kvf_pull_raise: somebody does */
    struct kvf_pull_stats *stats; /* shared by all sources; borrowed for life */
    /* May this identity (the source's one URI SAN; empty without TLS) serve this tenant? Answered at
     * once. With TLS no key is told to who may not, without it nothing that he says is believed. NULL: anyone may. */
    bool (*may_serve)(void *context, const char *tenant, const char *identity);
    /* The source told us that it drains, or came back as another boot: nothing to do but to know.
     * May be NULL. */
    void (*draining)(void *context, struct kvf_source *source);
    /* A Read was refused: for the log; each of its blocks ends with the code as well. May be NULL. */
    void (*refused)(void *context, struct kvf_source *source,
                    const struct kvf_pull_refusal *refusal);
    void *context;
};

/* One line: "BUSY after 2.0 s, 9437184 bytes short of the identity's own share". */
void kvf_pull_refusal_text(const struct kvf_pull_refusal *refusal, char *text, size_t room);

KVF_MUST_USE struct kvf_status kvf_source_create(const struct kvf_source_options *options,
                                                 struct kvf_source **give);
/* End the session. Pulls that are open end with CANCELLED; `closed` runs once when nothing of ours
 * is in flight any more and the source's memory is gone. */
void kvf_source_close(struct kvf_source *source, void (*closed)(void *context), void *context);
/* may_serve would answer otherwise now: a session with a source that may not serve any more is ended. */
void kvf_source_rights_changed(struct kvf_source *source);
/* True when no pull and no lookup is open: the caller may close it without harm. */
bool kvf_source_is_idle(const struct kvf_source *source);
/* How many pulls are open. */
uint32_t kvf_source_pulls(const struct kvf_source *source);
/* Its last lane left by its device, or none has opened yet. */
bool kvf_source_uses_device(const struct kvf_source *source);
/* DRAINING was told and no new session has been opened since; misses until a READY daemon is there
 * again. */
bool kvf_source_is_draining(const struct kvf_source *source);

enum kvf_pull_block_state {
    KVF_PULL_WAITING = 0, /* not in a Read yet, or to be asked for once more */
    KVF_PULL_ASKED,       /* in a Read that is open */
    KVF_PULL_ENDED,       /* has its result; the extent is the caller's */
    KVF_PULL_QUARANTINED, /* has its result; the lane may still touch the extent: `freed` comes */
};

/* One wanted block. The caller sets the first part. */
struct kvf_pull_block {
    struct kvf_key key;
    struct kvf_generation pin; /* none: any */
    uint64_t length;           /* exact, from a Lookup or the caller */
    struct kvf_extent extent;  /* destination: whole pages */

    /* The result. */
    struct kvf_status status; /* OK: every byte is there, CRC equal, the tail of the last page zero.
                                 Else a miss and why: NOT_FOUND, PENDING, STALE, CORRUPT, BUSY,
                                 TOO_LARGE, DRAINING, DEADLINE, UNAVAILABLE, CANCELLED, IO */
    struct kvf_generation generation; /* the source's */
    uint32_t crc32c;
    enum kvf_tier tier; /* at the source, when it was granted */

    enum kvf_pull_block_state state;

    /* pull's own */
    struct kvf_list node;
    uint8_t commits; /* times that Committed made us ask again */
    bool postponed;  /* WAITING, but not to be asked for before the pull's reask_ns */
    bool told;       /* `block_ended` has run */
};

/* One batch of blocks from one source. */
struct kvf_pull {
    const char *namespace; /* borrowed until ended */
    uint64_t instance;     /* on whose behalf */
    uint64_t deadline_ns;
    uint64_t batch_bytes;       /* --read-batch-mib; 0: what is demanded now in one Read */
    unsigned batches_in_flight; /* >= 1 */
    bool stop_at_first_miss;
    struct kvf_pull_block *blocks; /* keys occur once */
    uint32_t block_count;
    void (*block_ended)(struct kvf_pull *pull, uint32_t block);
    /* After every block's block_ended. The pull struct is the caller's again unless quarantined
     * blocks remain. */
    void (*ended)(struct kvf_pull *pull);
    /* A quarantined block's extent is the caller's again; with the last one the struct is, too. */
    void (*freed)(struct kvf_pull *pull, uint32_t block);

    /* pull's own */
    struct kvf_source *source;
    struct kvf_list node;
    struct kvf_list deliver_node;
    struct kvf_list done; /* blocks whose news the caller has not heard */
    struct kvf_timer timer;
    uint32_t open_blocks;    /* not told */
    uint32_t askable_blocks; /* WAITING and not postponed */
    uint32_t next_block;     /* the first that may be askable */
    uint32_t reads_open;     /* Reads in flight, without those that only wait for Committed */
    uint32_t quarantined_blocks;
    uint32_t first_miss;     /* block_count: none */
    uint64_t broken_session; /* the one that broke last */
    uint64_t reask_ns, reask_pause_ns;
    unsigned breaks;
    bool cancelled, raised, told;
};

/* Start. Results come by the callbacks, never inside this call. */
void kvf_pull_start(struct kvf_source *source, struct kvf_pull *pull);
/* Take it back: the blocks that have no result yet end CANCELLED as soon as they can. */
void kvf_pull_cancel(struct kvf_pull *pull);
/* A speculative pull that somebody now waits for. */
void kvf_pull_raise(struct kvf_pull *pull);

struct kvf_lookup_block {
    struct kvf_key key;
    /* The answer. */
    struct kvf_status status; /* OK, PENDING, NOT_FOUND, or why there was no answer */
    uint64_t length;
    struct kvf_generation generation;
    enum kvf_tier tier;
};

/* A question to the source: pins nothing. */
struct kvf_lookup {
    const char *namespace; /* borrowed until ended */
    uint64_t deadline_ns;
    struct kvf_lookup_block *blocks;
    uint32_t block_count;
    /* Once; when there was no answer every block says why. */
    void (*ended)(struct kvf_lookup *lookup);

    /* pull's own */
    struct kvf_source *source;
    struct kvf_list node;
    struct kvf_rpc_call *call;
    struct kvf_status failure;
    uint32_t first;  /* of the page of blocks that is being asked for */
    bool introduces; /* this call names no key: it wants to hear who answers */
    bool answered;
};

void kvf_lookup_start(struct kvf_source *source, struct kvf_lookup *lookup);
/* `ended` still runs. */
void kvf_lookup_cancel(struct kvf_lookup *lookup);

#endif
