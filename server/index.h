/* The index: every block that this node has, in DRAM, on SSD or on its way, by (namespace, key);
 * and the cache over it.
 *
 * An entry is one generation of one key. While it is linked a look-up finds it; unlinked it lives
 * on for those who pin it: evicting, forgetting or a new generation only unlink. A pin is the right
 * to touch the entry and its extent; memory and entry go with the last one. What is resident, clean
 * and unpinned is cached: it may be evicted at any time.
 *
 * A block that lies only on SSD has no entry but a small record (server/cold.h), for there are many
 * of them. Pinning unfolds the record into an entry; when the entry is neither pinned nor resident
 * any more, it is folded into a record again. Looking needs no entry: kvf_index_find tells by
 * value. A block that finds no memory on the way is a miss.
 *
 *   PENDING  an engine writes its extent; it becomes READY at commit or goes at abort
 *   PULLING  its bytes come from a source; it becomes READY when all are verified or goes
 *   READY    it has content: resident (its extent holds all bytes), on SSD, or both
 *
 * Owner thread: the Manager's. Nothing here blocks or calls out, but for the hook `freed`. */
#ifndef KVFERRY_SERVER_INDEX_H
#define KVFERRY_SERVER_INDEX_H

#include "base/block.h"
#include "base/list.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/table.h"
#include "server/space.h"
#include "storage/storage.h"

struct kvf_index;
struct kvf_load;
struct kvf_stake;

enum kvf_entry_state {
    KVF_ENTRY_PENDING = 0, /* a put has its place and writes it: found, but not to be had */
    KVF_ENTRY_PULLING,     /* a source's bytes are on their way: a miss to everybody but its Gets */
    KVF_ENTRY_READY,       /* by commit, verified pull or record: it has a generation, for good */
};

struct kvf_entry {
    struct kvf_table_node node;
    struct kvf_space *space;
    struct kvf_key key;
    enum kvf_entry_state state;
    bool linked;
    uint32_t pins;
    struct kvf_generation generation; /* none until READY */
    uint64_t length;
    uint32_t crc32c; /* set when READY */

    struct kvf_extent extent; /* bytes 0: no memory */
    bool resident;            /* the extent holds every byte */
    bool verified;            /* and their CRC was checked here, or they were put here */
    bool dirty;               /* put, and not yet on the SSD that it is bound for */
    bool refused;             /* its last write failed */
    bool pulled;              /* came from a source: evicted before what was put here */
    bool hot;                 /* pinned by kvf_index_pin since its record was written */
    bool sifted;              /* its segment is given back, and it stays: see kvf_index_reclaim */
    bool on_ssd;
    uint8_t failures; /* reads of its record that failed in a row */
    struct kvf_location location;
    struct kvf_load *load; /* the one that fills or checks the extent now */

    struct kvf_list cache_node; /* while resident, clean and unpinned */
    struct kvf_stake *stake;    /* while on SSD; likewise segment_node */
    struct kvf_list segment_node;
    struct kvf_list watches; /* who waits for PENDING to end */
    uint64_t pinned_bytes;   /* what the pinned gauge counts for it */
};

/* Told once when the watched entry is PENDING no longer; the entry may be unlinked then. */
struct kvf_entry_watch {
    struct kvf_list node;
    void (*settled)(struct kvf_entry_watch *watch);
};

struct kvf_index_options {
    struct kvf_pool *pool;
    struct kvf_store *store;   /* NULL: no SSD tier */
    uint64_t boot_epoch;       /* of the generations given here */
    const struct kvf_acl *acl; /* of the tenants' shares; NULL: there are none */
    unsigned sift_blocks;      /* looked at in one kvf_index_sift; 0: about a millisecond's worth */
    /* Memory became free or evictable: whoever waits for memory may try again. */
    void (*freed)(void *context);
    void *context;
};

KVF_MUST_USE struct kvf_status kvf_index_create(const struct kvf_index_options *options,
                                                struct kvf_index **give);
/* No entry may be pinned (asserted), unless `abandon`. */
void kvf_index_destroy(struct kvf_index *index, bool abandon);

/* What the index knows of a block. Good until the index changes; making room changes it, too. */
struct kvf_found {
    struct kvf_entry *entry; /* NULL: it lies only on SSD; not pinned */
    enum kvf_entry_state state;
    struct kvf_generation generation; /* none until READY */
    uint64_t length;
    uint32_t crc32c;
    bool resident;
    bool hot;
    bool on_ssd;
    struct kvf_location location; /* while on_ssd */
    uint64_t hash;                /* this and what follows are the index's own */
    uint32_t record;
};

/* What the key names now. False: nothing. */
bool kvf_index_find(const struct kvf_index *index, const char *ns, const struct kvf_key *key,
                    struct kvf_found *found);
/* The entry of what was just found, pinned; it is hot from now on. NULL: the process is out of
 * memory. */
struct kvf_entry *kvf_index_pin(struct kvf_index *index, const struct kvf_found *found);
/* What was just found is not found any more, as by kvf_index_unlink. */
void kvf_index_forget(struct kvf_index *index, const struct kvf_found *found);
/* A new linked entry, PENDING or PULLING, with one pin that is the caller's. What the key named
 * before is unlinked; but what lies only on SSD stays behind PULLING, and is found again after it. NULL: the process is out of memory. */
struct kvf_entry *kvf_index_add(struct kvf_index *index, const char *ns, const struct kvf_key *key,
                                uint64_t length, enum kvf_entry_state state);
/* Not found any more; watchers are told. Fine when it is unlinked already. */
void kvf_index_unlink(struct kvf_index *index, struct kvf_entry *entry);
/* Its bytes are whole: it becomes READY, as a new generation. Watchers are told. */
void kvf_entry_ready(struct kvf_index *index, struct kvf_entry *entry, uint32_t crc32c);

void kvf_entry_pin(struct kvf_index *index, struct kvf_entry *entry);
/* The last unpin of an unlinked entry frees it, that of a resident one makes it evictable, that of
 * one that lies only on SSD folds it. */
void kvf_entry_unpin(struct kvf_index *index, struct kvf_entry *entry);
/* The entry (pinned) gets this extent to be filled. Takes it. */
void kvf_entry_give_extent(struct kvf_index *index, struct kvf_entry *entry,
                           struct kvf_extent *extent);
/* The entry (pinned) loses its extent, for its bytes did not come. */
void kvf_entry_drop_extent(struct kvf_index *index, struct kvf_entry *entry);

void kvf_entry_watch(struct kvf_entry *entry, struct kvf_entry_watch *watch);
void kvf_entry_unwatch(struct kvf_entry_watch *watch);

/* Memory for `bytes` of a block of this tenant (NULL: nobody's), evicting what is cached. While the tenant would be above
 * its share its own coldest go; then those of whoever has more than is safe, its own, anybody's. BUSY: too much is
 * pinned. */
KVF_MUST_USE struct kvf_status kvf_index_room(struct kvf_index *index, struct kvf_tenant *tenant,
                                              uint64_t bytes, struct kvf_extent *extent);
/* The same as far as the share goes, for who takes several rooms before entries have them: room for all of them together.
 * False: the tenant holds too much, nothing was evicted. */
KVF_MUST_USE bool kvf_index_within_share(struct kvf_index *index, struct kvf_tenant *tenant,
                                         uint64_t bytes);
/* Give back what kvf_index_room gave and no entry took. */
void kvf_index_return_room(struct kvf_index *index, struct kvf_extent *extent);
/* Evict all that is cached in DRAM. */
void kvf_index_evict_all(struct kvf_index *index, uint64_t *blocks, uint64_t *bytes);

/* To enter and leave, and to look at. */
struct kvf_tenants *kvf_index_tenants(struct kvf_index *index);
/* The ACL was read again. Whoever is above the share that it gives now loses blocks, the coldest in DRAM and the oldest
 * on SSD; what is pinned in DRAM goes when it is not any more. */
void kvf_index_reload_shares(struct kvf_index *index);

/* Call `each` for every linked entry, in no order (what lies only on SSD has none); it may pin, and
 * change nothing else. */
void kvf_index_each(struct kvf_index *index, void (*each)(void *context, struct kvf_entry *entry),
                    void *context);

/* ---- SSD ---- */

/* A record that recovery found. The newest generation of a key wins. What is being put or pulled now
 * hides it, and it is found again when that goes without having come to an end of its own. */
void kvf_index_recovered(struct kvf_index *index, const struct kvf_record *record,
                         struct kvf_location location);
/* Its record is durable there, and not hot. Not believed when that filling of the segment was
 * reclaimed meanwhile. Its tenant's oldest records go while there are more than its share. */
void kvf_entry_stored(struct kvf_index *index, struct kvf_entry *entry, struct kvf_location where);
/* A read of the entry (pinned, not resident) failed, and its bytes may be right all the same. It is not linked any more;
 * a record stays in its place, for the next read. False: that was the third failure in a row, or there is no memory, and
 * nothing stays. */
KVF_MUST_USE bool kvf_entry_not_read(struct kvf_index *index, struct kvf_entry *entry);
/* A read of this location begins, ends. A segment is given back to the store only between them. */
void kvf_index_hold_segment(struct kvf_index *index, struct kvf_location where);
void kvf_index_unhold_segment(struct kvf_index *index, struct kvf_location where);
/* The store wants this segment: its records are unlinked, it is freed when no read holds it. What is
 * safe for its tenant stays until it is moved, and hot ones of others do, up to hot_bytes; keep_bytes
 * at most in all. They are not hot any more. True: that is more than the loop may be held for; the
 * rest is done by kvf_index_sift, until that says false, and can be found until then. */
bool kvf_index_reclaim(struct kvf_index *index, uint32_t drive, uint32_t segment, uint64_t sequence,
                       uint64_t hot_bytes, uint64_t keep_bytes);
bool kvf_index_sift(struct kvf_index *index, uint32_t drive);
/* Are there shares of the SSD? Then it matters which segment is given back. */
bool kvf_index_shares_ssd(const struct kvf_index *index);
/* What of a segment is safe for its tenants and would have to be moved now, and how old it is. */
struct kvf_index_cost {
    uint64_t bytes;
    uint64_t sequence;
};

struct kvf_index_cost kvf_index_cost(struct kvf_index *index, uint32_t drive, uint32_t segment);

/* A block that stays in a segment which the store wants. The namespace is the index's. */
struct kvf_kept {
    struct kvf_record record;
    struct kvf_location location;
};

/* Up to `max` of those in the segment of this drive that was asked for first; how many. Whoever
 * wants to move them holds the segment meanwhile. */
size_t kvf_index_kept(struct kvf_index *index, uint32_t drive, struct kvf_kept *kept, size_t max);
/* This generation of the block lies at `to` now, or (NULL) on SSD no more. Fine when it is another
 * one by now, or none. */
void kvf_index_move(struct kvf_index *index, const struct kvf_record *record,
                    struct kvf_location from, const struct kvf_location *to);

struct kvf_index_stats {
    uint64_t blocks;         /* that are known, and unlinked ones that are still pinned */
    uint64_t entries;        /* of them: those that do not lie only on SSD */
    uint64_t bytes;          /* that the index itself takes */
    uint64_t evicted_blocks; /* from SSD, so far, for their segment was given back */
    uint64_t pinned_bytes;
    uint64_t clean_bytes; /* cached: resident, clean, unpinned */
};

void kvf_index_get_stats(const struct kvf_index *index, struct kvf_index_stats *stats);

#endif
