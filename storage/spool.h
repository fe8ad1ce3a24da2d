/* The spool of a drive: what is on its way to it, as the writer sees it. It has some batches of records that take turns
 * (each is given out when the one before it is; they are synced and end in their order) and one for the service of
 * segments: SEAL runs only while no group is under way, so that an index never names a record that is not durable; FREE
 * runs beside anything.
 *
 * Writer thread only; nothing here does I/O. */
#ifndef KVFERRY_STORAGE_SPOOL_H
#define KVFERRY_STORAGE_SPOOL_H

#include "storage/batch.h"

struct kvf_spool {
    struct kvf_store *store;
    struct kvf_drive *drive;
    struct kvf_list queue;   /* of kvf_append.node: not in a batch yet */
    struct kvf_list carries; /* likewise, those carried over: they go first */
    struct kvf_list frees;   /* of kvf_segment.node */
    struct kvf_batch groups[KVF_GROUPS_UNDER_WAY];
    unsigned
        next_group; /* the one to build next; those behind it, in turn, are the older the nearer they are */
    struct kvf_batch service;
    unsigned pieces_in_flight; /* counted by the writer */
    struct kvf_filling filling;
    uint32_t fillings; /* sequences given since open */
    /* While the drive is read-only: it takes nothing, and now and then one write tries whether the cause is gone. */
    uint64_t probe_at_ns; /* 0: none is planned */
    bool probing;         /* `service` is one */
};

/* False: no memory; fini is due all the same. */
KVF_MUST_USE bool kvf_spool_init(struct kvf_spool *spool, struct kvf_store *store,
                                 struct kvf_drive *drive);
void kvf_spool_fini(struct kvf_spool *spool);

/* What the owner has queued since the last time. Under the lock. */
void kvf_spool_take_incoming(struct kvf_spool *spool);
/* End what failed and start what may start. True when another drive has got something to do; `spools` are all of the
 * store's, in the order of its drives. */
bool kvf_spool_step(struct kvf_spool *spool, struct kvf_spool *spools);
/* How long nothing is to be done for this drive unless something comes: a wait_ms of engine.h. Under the lock. */
int kvf_spool_wait_ms(const struct kvf_spool *spool);
/* The groups from the oldest (0) to the newest. */
struct kvf_batch *kvf_spool_group(struct kvf_spool *spool, unsigned age);
/* Would something new in the queue be begun at once? Else what is under way brings the writer back. */
bool kvf_spool_waits(struct kvf_spool *spool);
/* All pieces of the batch are back: is its fdatasync next, in the order of the groups? */
bool kvf_spool_may_sync(struct kvf_spool *spool, const struct kvf_batch *batch);
/* Everything of it is back; batch->error says how it went. */
void kvf_spool_end_batch(struct kvf_spool *spool, struct kvf_batch *batch);
/* No append will come any more: seal what is open, so that the next start finds its records by the index. A read-only
 * drive is left as it is. */
void kvf_spool_finish(struct kvf_spool *spool);
bool kvf_spool_is_idle(const struct kvf_spool *spool);

#endif
