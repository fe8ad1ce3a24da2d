/* A drive, as the writer sees it. It has some batches of records that take turns (each is given out when the one before
 * is; they are synced and end in their order) and one for the service of segments: SEAL runs only while no group is under way, so that an index never
 * names a record that is not durable; FREE runs beside anything.
 *
 * Writer thread only; nothing here does I/O. */
#ifndef KVFERRY_STORAGE_LANE_H
#define KVFERRY_STORAGE_LANE_H

#include "storage/batch.h"

struct kvf_lane {
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
KVF_MUST_USE bool kvf_lane_init(struct kvf_lane *lane, struct kvf_store *store,
                                struct kvf_drive *drive);
void kvf_lane_fini(struct kvf_lane *lane);

/* What the owner has queued since the last time. Under the lock. */
void kvf_lane_take_incoming(struct kvf_lane *lane);
/* End what failed and start what may start. True when another drive has got something to do; `lanes` are all of the
 * store's, in the order of its drives. */
bool kvf_lane_step(struct kvf_lane *lane, struct kvf_lane *lanes);
/* How long nothing is to be done for this drive unless something comes: a wait_ms of engine.h. Under the lock. */
int kvf_lane_wait_ms(const struct kvf_lane *lane);
/* The groups from the oldest (0) to the newest. */
struct kvf_batch *kvf_lane_group(struct kvf_lane *lane, unsigned age);
/* Would something new in the queue be begun at once? Else what is under way brings the writer back. */
bool kvf_lane_waits(struct kvf_lane *lane);
/* All pieces of the batch are back: is its fdatasync next, in the order of the groups? */
bool kvf_lane_may_sync(struct kvf_lane *lane, const struct kvf_batch *batch);
/* Everything of it is back; batch->error says how it went. */
void kvf_lane_end_batch(struct kvf_lane *lane, struct kvf_batch *batch);
/* No append will come any more: seal what is open, so that the next start finds its records by the index. A read-only
 * drive is left as it is. */
void kvf_lane_finish(struct kvf_lane *lane);
bool kvf_lane_is_idle(const struct kvf_lane *lane);

#endif
