/* Loads, in four parts: what all have in common, reading from SSD, checking, pulling from a
 * source. */
#include "server/load.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct batch;

struct kvf_load {
    struct kvf_loads *loads;
    struct batch *batch;
    struct kvf_entry *entry; /* pinned until the load is over */
    struct kvf_list waiters;
    uint64_t started_ns;
    uint64_t landed_bytes;
    enum kvf_tier source_tier;
    struct kvf_read read;
    struct kvf_job check;
    uint32_t checked_crc32c;
};

/* Loads that were started together, in one piece of memory that goes with the last of them. */
struct batch {
    struct kvf_loads *loads;
    size_t left; /* loads that are not over; for a pull one more, until it has ended */
    struct kvf_read_set set;
    struct kvf_pull pull;
    struct kvf_read **reads;
    struct kvf_pull_block *blocks; /* NULL: not a pull */
    bool pull_over;                /* it has told every result */
    struct kvf_load items[];
};

/* A block that somebody found bad. By name: a doubt pins nothing. */
struct doubt {
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    struct kvf_key key;
};

#define DOUBTS_MAX 64
#define LINES_PER_SECOND 1

struct kvf_loads {
    struct kvf_loads_options options;
    uint64_t open;
    uint64_t checks; /* with the worker */
    struct doubt doubts[DOUBTS_MAX];
    unsigned first_doubt, doubt_count;
    struct kvf_log_limit lost, not_read; /* lines: a drive that dies loses thousands of blocks */
};

/* ---- what all have in common ---- */

static struct batch *make_batch(struct kvf_loads *loads, struct kvf_entry *const *entries,
                                size_t count)
{
    struct batch *batch = calloc(1, sizeof(*batch) + count * sizeof(batch->items[0]));
    if (batch == NULL)
        return NULL;
    batch->loads = loads;
    batch->left = count;
    for (size_t i = 0; i < count; i++) {
        struct kvf_load *load = &batch->items[i];
        kvf_assert(entries[i]->load == NULL && entries[i]->extent.bytes > 0);
        load->loads = loads;
        load->batch = batch;
        load->entry = entries[i];
        load->started_ns = kvf_clock_now_ns();
        kvf_list_init(&load->waiters);
    }
    return batch;
}

/* Nothing can fail any more: the entries have these loads. */
static void attach(struct batch *batch, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kvf_load *load = &batch->items[i];
        kvf_entry_pin(load->loads->options.index, load->entry);
        load->entry->load = load;
        load->loads->open++;
    }
}

static void leave_batch(struct batch *batch)
{
    if (--batch->left > 0)
        return;
    free(batch->reads);
    free(batch->blocks);
    free(batch);
}

/* Tell the result to those who want it now: all, or only those who do not ask for checked bytes. */
static void tell_ended(struct kvf_load *load, struct kvf_status status, bool all)
{
    kvf_list_for_each_safe (node, &load->waiters) {
        struct kvf_load_waiter *waiter = kvf_container(node, struct kvf_load_waiter, node);
        if (waiter->told || (waiter->verified && !all))
            continue;
        waiter->told = true;
        if (!all)
            kvf_list_remove(&waiter->node);
        waiter->ended(waiter, status);
        if (!all) {
            waiter->load = NULL;
            waiter->gone(waiter);
        }
    }
}

/* The load touches nothing of the entry any more. */
static void over(struct kvf_load *load)
{
    struct kvf_entry *entry = load->entry;
    struct kvf_list *node;
    entry->load = NULL;
    load->loads->open--;
    while ((node = kvf_list_pop_front(&load->waiters)) != NULL) {
        struct kvf_load_waiter *waiter = kvf_container(node, struct kvf_load_waiter, node);
        waiter->load = NULL;
        waiter->gone(waiter);
    }
    kvf_entry_unpin(load->loads->options.index, entry);
    leave_batch(load->batch);
}

static void fail(struct kvf_load *load, struct kvf_status status)
{
    kvf_index_unlink(load->loads->options.index, load->entry);
    tell_ended(load, status, true);
}

static void say_lost(struct kvf_load *load, struct kvf_status status)
{
    struct kvf_loads *loads = load->loads;
    uint64_t unsaid;
    if (!kvf_log_may(&loads->lost, LINES_PER_SECOND, kvf_clock_now_ns(), &unsaid))
        return;
    struct kvf_drive_stats drive = {.path = "DRAM"};
    if (load->entry->on_ssd)
        kvf_store_stats(loads->options.store, load->entry->location.drive, &drive);
    unsigned long long lost = unsaid + 1;
    if (status.code == KVF_CORRUPT)
        kvf_log_error("loads",
                      "lost %llu blocks, now one of %s: not the bytes of its checksum: test the "
                      "drive and the memory",
                      lost, drive.path);
    else
        kvf_log_error("loads",
                      "lost %llu blocks, now one of %s: cannot read it (%s): look at the kernel's "
                      "log and the drive",
                      lost, drive.path,
                      status.detail != 0 ? strerror(status.detail)
                                         : kvf_code_name((enum kvf_code)status.code));
}

static void say_not_read(struct kvf_load *load, struct kvf_status status)
{
    struct kvf_loads *loads = load->loads;
    uint64_t unsaid;
    if (!kvf_log_may(&loads->not_read, LINES_PER_SECOND, kvf_clock_now_ns(), &unsaid))
        return;
    struct kvf_drive_stats drive;
    kvf_store_stats(loads->options.store, load->read.location.drive, &drive);
    kvf_log_warning("loads",
                    "%llu reads of blocks failed, now one of %s, and will be tried again: %s",
                    (unsigned long long)unsaid + 1, drive.path, strerror(status.detail));
}

/* What was ours is no longer: damaged, or not to be read. */
static void lose(struct kvf_load *load, struct kvf_status status)
{
    load->loads->options.counters
        ->dropped[status.code == KVF_CORRUPT ? KVF_DROP_CORRUPT : KVF_DROP_READ_ERROR]++;
    say_lost(load, status);
    fail(load, status);
}

static void count_stage(struct kvf_load *load, enum kvf_stage stage, uint64_t since_ns)
{
    kvf_histogram_add(&load->loads->options.counters->stages[stage], kvf_clock_now_ns() - since_ns);
}

/* The whole set, for reads go out in its order. What comes from a source, or is here, has no set. */
static void raise_read(struct kvf_load *load)
{
    if (load->batch->set.speculative)
        kvf_store_raise(load->loads->options.store, &load->batch->set);
}

void kvf_load_raise(struct kvf_load_waiter *waiter)
{
    waiter->speculative = false;
    if (waiter->load != NULL)
        raise_read(waiter->load);
}

void kvf_load_join(struct kvf_loads *loads, struct kvf_entry *entry, struct kvf_load_waiter *waiter)
{
    struct kvf_load *load = entry->load;
    if (!kvf_list_is_empty(&load->waiters))
        loads->options.counters->coalesced_loads++;
    waiter->told = false;
    waiter->load = load;
    kvf_list_push_back(&load->waiters, &waiter->node);
    if (!waiter->speculative)
        raise_read(load);
}

static bool is_listened_to(const struct kvf_load *load)
{
    kvf_list_for_each (node, &load->waiters)
        if (!kvf_container(node, struct kvf_load_waiter, node)->told)
            return true;
    return false;
}

void kvf_load_leave(struct kvf_load_waiter *waiter)
{
    if (waiter->load == NULL || waiter->told)
        return;
    struct batch *batch = waiter->load->batch;
    waiter->told = true;
    if (batch->blocks == NULL || batch->pull_over)
        return;
    for (uint32_t i = 0; i < batch->pull.block_count; i++)
        if (batch->blocks[i].state < KVF_PULL_ENDED && is_listened_to(&batch->items[i]))
            return;
    kvf_pull_cancel(&batch->pull);
}

uint64_t kvf_load_landed_bytes(const struct kvf_entry *entry)
{
    return entry->resident ? entry->length : entry->load != NULL ? entry->load->landed_bytes : 0;
}

enum kvf_tier kvf_load_source_tier(const struct kvf_entry *entry)
{
    return entry->load != NULL ? entry->load->source_tier : KVF_TIER_NONE;
}

uint64_t kvf_loads_open(const struct kvf_loads *loads)
{
    return loads->open;
}

/* ---- checking: on the worker's thread ---- */

static void check_work(struct kvf_job *job)
{
    struct kvf_load *load = kvf_container(job, struct kvf_load, check);
    load->checked_crc32c = kvf_crc32c(0, kvf_extent_at(load->entry->extent), load->entry->length);
}

static void check_next_doubt(struct kvf_loads *loads);

static void check_done(struct kvf_job *job)
{
    struct kvf_load *load = kvf_container(job, struct kvf_load, check);
    struct kvf_loads *loads = load->loads;
    loads->checks--;
    count_stage(load, KVF_STAGE_VERIFY, load->started_ns);
    if (load->checked_crc32c == load->entry->crc32c) {
        load->entry->verified = true;
        tell_ended(load, kvf_ok(), true);
    } else {
        lose(load, kvf_fail(KVF_MODULE_SERVER, KVF_CORRUPT, 0));
    }
    over(load);
    check_next_doubt(loads);
}

static void start_check(struct kvf_load *load)
{
    load->started_ns = kvf_clock_now_ns();
    load->loads->checks++;
    load->check.work = check_work;
    load->check.done = check_done;
    kvf_worker_start(load->loads->options.worker, &load->check);
}

bool kvf_load_check(struct kvf_loads *loads, struct kvf_entry *entry)
{
    kvf_assert(entry->resident);
    struct batch *batch = make_batch(loads, &entry, 1);
    if (batch == NULL)
        return false;
    batch->items[0].landed_bytes = entry->length;
    entry->verified = false; /* whoever asks now waits for what comes out */
    attach(batch, 1);
    start_check(&batch->items[0]);
    return true;
}

/* Behind all checks that somebody waits for. */
static void check_next_doubt(struct kvf_loads *loads)
{
    while (loads->checks == 0 && loads->doubt_count > 0) {
        const struct doubt *doubt = &loads->doubts[loads->first_doubt];
        struct kvf_found found;
        loads->first_doubt = (loads->first_doubt + 1) % DOUBTS_MAX;
        loads->doubt_count--;
        if (kvf_index_find(loads->options.index, doubt->ns, &doubt->key, &found) &&
            found.entry != NULL && found.resident && found.entry->load == NULL)
            (void)kvf_load_check(loads, found.entry);
    }
}

void kvf_load_doubt(struct kvf_loads *loads, const struct kvf_entry *entry)
{
    if (loads->doubt_count == DOUBTS_MAX)
        return; /* who meets it again says so again */
    unsigned at = (loads->first_doubt + loads->doubt_count++) % DOUBTS_MAX;
    strcpy(loads->doubts[at].ns, entry->space->text);
    loads->doubts[at].key = entry->key;
    check_next_doubt(loads);
}

/* ---- reading from SSD ---- */

static void read_landed(struct kvf_read *read, uint64_t landed_bytes)
{
    struct kvf_load *load = kvf_container(read, struct kvf_load, read);
    load->landed_bytes = landed_bytes;
    kvf_list_for_each_safe (node, &load->waiters) {
        struct kvf_load_waiter *waiter = kvf_container(node, struct kvf_load_waiter, node);
        if (!waiter->verified && waiter->landed != NULL)
            waiter->landed(waiter, landed_bytes);
    }
}

/* The drive may only have hiccuped: a path that flaps must not empty the cache. */
static void not_read(struct kvf_load *load, struct kvf_status status)
{
    if (status.code != KVF_IO || !kvf_entry_not_read(load->loads->options.index, load->entry)) {
        lose(load, status);
        return;
    }
    say_not_read(load, status);
    tell_ended(load, status, true);
}

static void read_ended(struct kvf_read *read, struct kvf_status status)
{
    struct kvf_load *load = kvf_container(read, struct kvf_load, read);
    kvf_index_unhold_segment(load->loads->options.index, read->location);
    if (!kvf_is_ok(status)) {
        not_read(load, status);
        over(load);
        return;
    }
    load->entry->failures = 0;
    count_stage(load, KVF_STAGE_LOAD, load->started_ns);
    load->entry->resident = true;
    load->landed_bytes = load->entry->length;
    tell_ended(load, kvf_ok(), false);
    if (kvf_list_is_empty(&load->waiters))
        over(load);
    else
        start_check(load);
}

bool kvf_load_from_ssd(struct kvf_loads *loads, struct kvf_entry *const *entries, size_t count,
                       bool speculative)
{
    struct batch *batch = make_batch(loads, entries, count);
    if (batch == NULL)
        return false;
    batch->reads = calloc(count, sizeof(struct kvf_read *));
    if (batch->reads == NULL) {
        free(batch);
        return false;
    }
    attach(batch, count);
    for (size_t i = 0; i < count; i++) {
        struct kvf_read *read = &batch->items[i].read;
        read->location = entries[i]->location;
        read->extent = entries[i]->extent;
        read->length = entries[i]->length;
        read->landed = read_landed;
        read->ended = read_ended;
        batch->reads[i] = read;
        kvf_index_hold_segment(loads->options.index, read->location);
    }
    batch->set.reads = batch->reads;
    batch->set.count = count;
    batch->set.speculative = speculative;
    kvf_store_read(loads->options.store, &batch->set);
    return true;
}

/* ---- pulling from a source ---- */

static void pull_block_ended(struct kvf_pull *pull, uint32_t index)
{
    struct batch *batch = kvf_container(pull, struct batch, pull);
    struct kvf_load *load = &batch->items[index];
    const struct kvf_pull_block *block = &batch->blocks[index];
    if (kvf_is_ok(block->status)) {
        count_stage(load, KVF_STAGE_READ, load->started_ns);
        load->source_tier = block->tier;
        load->entry->pulled = true;
        kvf_entry_ready(load->loads->options.index, load->entry, block->crc32c);
        tell_ended(load, kvf_ok(), true);
        kvf_awaited_look(load->loads->options.awaited, load->entry->space->text, &load->entry->key);
    } else {
        fail(load, block->status);
    }
    if (block->state != KVF_PULL_QUARANTINED)
        over(load);
}

static void pull_freed(struct kvf_pull *pull, uint32_t index)
{
    over(&kvf_container(pull, struct batch, pull)->items[index]);
}

static void pull_ended(struct kvf_pull *pull)
{
    struct batch *batch = kvf_container(pull, struct batch, pull);
    batch->pull_over = true;
    leave_batch(batch);
}

bool kvf_load_from_source(struct kvf_loads *loads, const struct kvf_load_pull *how,
                          struct kvf_entry *const *entries, size_t count)
{
    struct batch *batch = make_batch(loads, entries, count);
    if (batch == NULL)
        return false;
    batch->blocks = calloc(count, sizeof(*batch->blocks));
    if (batch->blocks == NULL) {
        free(batch);
        return false;
    }
    attach(batch, count);
    batch->left++;
    for (size_t i = 0; i < count; i++) {
        batch->blocks[i].key = entries[i]->key;
        batch->blocks[i].length = entries[i]->length;
        batch->blocks[i].extent = entries[i]->extent;
    }
    batch->pull = (struct kvf_pull){
        .namespace = entries[0]->space->text, /* lives as long as its entries */
        .instance = how->instance,
        .deadline_ns = how->deadline_ns,
        .batch_bytes = how->batch_bytes,
        .batches_in_flight = how->batches_in_flight,
        .stop_at_first_miss = how->stop_at_first_miss,
        .blocks = batch->blocks,
        .block_count = (uint32_t)count,
        .block_ended = pull_block_ended,
        .ended = pull_ended,
        .freed = pull_freed,
    };
    kvf_pull_start(how->source, &batch->pull);
    return true;
}

/* ---- life ---- */

struct kvf_status kvf_loads_create(const struct kvf_loads_options *options, struct kvf_loads **give)
{
    struct kvf_loads *loads = calloc(1, sizeof(*loads));
    if (loads == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    loads->options = *options;
    *give = loads;
    return kvf_ok();
}

void kvf_loads_destroy(struct kvf_loads *loads)
{
    kvf_assert(loads == NULL || loads->open == 0);
    free(loads);
}
