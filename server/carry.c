#include "server/carry.h"

#include "base/log.h"

#include <stdlib.h>

#define BATCH 256 /* blocks */

struct carry {
    struct kvf_append append;
    struct lane *lane;
    char ns[KVF_NAMESPACE_MAX_BYTES + 1]; /* the index may forget it meanwhile */
};

/* What goes on for one drive: a batch out of one segment. */
struct lane {
    struct kvf_carries *carries;
    uint32_t drive;
    size_t open;              /* carries of the batch that have not ended */
    struct kvf_post sift;     /* goes on with a segment of many blocks */
    bool sifting;             /* it is on its way */
    bool said;                /* the log knows that this drive is full */
    struct kvf_location held; /* the segment, while any is open */
    struct carry items[BATCH];
};

struct kvf_carries {
    struct kvf_loop *loop;
    struct kvf_index *index;
    struct kvf_store *store;
    struct kvf_kept kept[BATCH]; /* scratch of start_batch */
    size_t lane_count;
    struct lane *lanes;
};

static void start_batch(struct lane *lane);

static void carry_ended(struct kvf_append *append, struct kvf_status status,
                        struct kvf_location location)
{
    struct lane *lane = kvf_container(append, struct carry, append)->lane;
    struct kvf_index *index = lane->carries->index;
    kvf_index_move(index, &append->record, append->from, kvf_is_ok(status) ? &location : NULL);
    if (--lane->open > 0)
        return;
    kvf_index_unhold_segment(index, lane->held);
    start_batch(lane);
}

static void start_carry(struct lane *lane, struct carry *carry, const struct kvf_kept *kept)
{
    carry->lane = lane;
    strcpy(carry->ns, kept->record.namespace);
    carry->append =
        (struct kvf_append){.record = kept->record, .from = kept->location, .ended = carry_ended};
    carry->append.record.namespace = carry->ns;
    kvf_store_append(lane->carries->store, &carry->append);
}

/* Neighbours on the drive are copied together. */
static int compare_offsets(const void *a, const void *b)
{
    const struct kvf_kept *x = a, *y = b;
    return (x->location.offset > y->location.offset) - (x->location.offset < y->location.offset);
}

/* The next ones, if there are any. */
static void start_batch(struct lane *lane)
{
    struct kvf_carries *carries = lane->carries;
    struct kvf_kept *kept = carries->kept;
    size_t count = kvf_index_kept(carries->index, lane->drive, kept, BATCH);
    if (count == 0)
        return;
    qsort(kept, count, sizeof(*kept), compare_offsets);
    lane->open = count;
    lane->held = kept[0].location;
    kvf_index_hold_segment(carries->index, lane->held);
    for (size_t i = 0; i < count; i++)
        start_carry(lane, &lane->items[i], &kept[i]);
}

/* A segment of small blocks has tens of thousands: the loop's other guests come in between. */
static void sift_or_carry(struct lane *lane, bool more)
{
    if (more && !lane->sifting) {
        lane->sifting = true;
        kvf_loop_post(lane->carries->loop, &lane->sift);
    } else if (!more && lane->open == 0) {
        start_batch(lane);
    }
}

static void run_sift(struct kvf_post *post)
{
    struct lane *lane = kvf_container(post, struct lane, sift);
    lane->sifting = false;
    sift_or_carry(lane, kvf_index_sift(lane->carries->index, lane->drive));
}

static bool is_cheaper(struct kvf_index_cost a, struct kvf_index_cost b)
{
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.sequence < b.sequence;
}

/* The segment to give back, at first the one that is asked for: the oldest. */
static void choose(struct kvf_carries *carries, uint32_t drive, uint32_t *segment,
                   uint64_t *sequence)
{
    struct kvf_index_cost least = kvf_index_cost(carries->index, drive, *segment);
    const size_t count = kvf_store_segment_count(carries->store, drive);
    for (uint32_t other = 0; other < count && least.bytes > 0; other++) {
        struct kvf_index_cost cost = kvf_index_cost(carries->index, drive, other);
        if (!is_cheaper(cost, least) ||
            kvf_store_segment_used_bytes(carries->store, drive, other) == 0 ||
            !kvf_store_ask_instead(carries->store, drive, *segment, other, sequence))
            continue;
        *segment = other;
        least = cost;
    }
}

/* Once per drive and start: from here on its oldest blocks go, which metrics count. */
static void say_full(struct lane *lane)
{
    struct kvf_drive_stats drive;
    if (lane->said)
        return;
    lane->said = true;
    kvf_store_stats(lane->carries->store, lane->drive, &drive);
    kvf_log_info("carry",
                 "%s is full (%llu MiB of records in %llu): from now on its oldest blocks are "
                 "evicted for new ones, see ssd_evicted_blocks_total",
                 drive.path, (unsigned long long)(drive.used_bytes / KVF_MIB),
                 (unsigned long long)(drive.capacity_bytes / KVF_MIB));
}

void kvf_carries_reclaim(struct kvf_carries *carries, uint32_t drive, uint32_t segment,
                         uint64_t sequence)
{
    struct lane *lane = &carries->lanes[drive];
    say_full(lane);
    if (kvf_index_shares_ssd(carries->index))
        choose(carries, drive, &segment, &sequence);
    uint64_t hot_bytes = kvf_store_segment_used_bytes(carries->store, drive, segment) / 4;
    uint64_t keep_bytes = kvf_store_carry_bytes(carries->store, drive);
    sift_or_carry(lane, kvf_index_reclaim(carries->index, drive, segment, sequence, hot_bytes,
                                          keep_bytes > hot_bytes ? keep_bytes : hot_bytes));
}

uint64_t kvf_carries_open(const struct kvf_carries *carries)
{
    uint64_t open = 0;
    for (size_t i = 0; carries != NULL && i < carries->lane_count; i++)
        open += carries->lanes[i].open + carries->lanes[i].sifting;
    return open;
}

struct kvf_status kvf_carries_create(struct kvf_loop *loop, struct kvf_index *index,
                                     struct kvf_store *store, struct kvf_carries **give)
{
    struct kvf_carries *carries = calloc(1, sizeof(*carries));
    if (carries == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    carries->loop = loop;
    carries->index = index;
    carries->store = store;
    carries->lane_count = kvf_store_drive_count(store);
    carries->lanes = calloc(carries->lane_count, sizeof(*carries->lanes));
    if (carries->lanes == NULL) {
        free(carries);
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    }
    for (size_t i = 0; i < carries->lane_count; i++) {
        carries->lanes[i].carries = carries;
        carries->lanes[i].drive = (uint32_t)i;
        carries->lanes[i].sift.run = run_sift;
    }
    *give = carries;
    return kvf_ok();
}

void kvf_carries_destroy(struct kvf_carries *carries)
{
    if (carries == NULL)
        return;
    kvf_assert(kvf_carries_open(carries) == 0);
    free(carries->lanes);
    free(carries);
}
