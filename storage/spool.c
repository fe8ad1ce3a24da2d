/* Parts: segments; ending batches; moving the drive on. */
#include "storage/spool.h"

#include "base/clock.h"

#include "storage/append.h"

/* ---- segments ---- */

/* The one to ask for next. While recovery has not told the oldest one, nothing younger goes in its place: recovery is to
 * take it first. */
static struct kvf_segment *oldest_sealed(struct kvf_drive *drive)
{
    struct kvf_segment *oldest = NULL;
    for (uint32_t i = 0; i < drive->segment_count; i++) {
        struct kvf_segment *segment = &drive->segments[i];
        bool sealed = segment->state == KVF_SEGMENT_SEALED && !segment->asked;
        if ((sealed || segment->state == KVF_SEGMENT_UNREAD) &&
            (oldest == NULL || segment->sequence < oldest->sequence))
            oldest = segment;
    }
    drive->wants_oldest = oldest != NULL && oldest->state == KVF_SEGMENT_UNREAD;
    return drive->wants_oldest ? NULL : oldest;
}

/* Keep two segments free, or on their way to be (one, where there are only a few). The message rides on an append that
 * has not ended: one that has would leave a post behind that nobody waits for. */
static void ask_for_segments(struct kvf_spool *spool, struct kvf_append *carrier)
{
    struct kvf_store *store = spool->store;
    struct kvf_drive *drive = spool->drive;
    uint32_t wanted = drive->segment_count >= 4 ? 2 : 1;
    bool asked = false;
    (void)pthread_mutex_lock(&store->lock);
    while (store->options.reclaim != NULL && drive->free_count + drive->asked_count < wanted) {
        struct kvf_segment *segment = oldest_sealed(drive);
        if (segment == NULL)
            break;
        segment->asked = true;
        drive->asked_count++;
        kvf_list_push_back(&store->asks, &segment->node);
        asked = true;
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (asked)
        kvf_append_carry_asks(store, carrier);
}

/* Never used before, on any boot. */
static uint64_t new_sequence(struct kvf_spool *spool)
{
    return spool->store->boot_epoch << 32 | ++spool->fillings;
}

/* What recovery has found to go on with. */
static void take_rest(struct kvf_spool *spool)
{
    struct kvf_store *store = spool->store;
    (void)pthread_mutex_lock(&store->lock);
    struct kvf_rest rest = spool->drive->rest;
    spool->drive->rest = (struct kvf_rest){0};
    (void)pthread_mutex_unlock(&store->lock);
    if (rest.segment != NULL)
        kvf_filling_go_on(&spool->filling, &rest);
}

/* The free segment that becomes the open one; false when there is none, or (*later) may not be taken yet. */
static bool take_segment(struct kvf_spool *spool, bool *later)
{
    struct kvf_store *store = spool->store;
    struct kvf_drive *drive = spool->drive;
    take_rest(spool);
    (void)pthread_mutex_lock(&store->lock);
    *later = drive->newest != NULL || drive->rest.segment != NULL;
    for (uint32_t i = 0; i < drive->segment_count && spool->filling.segment == NULL && !*later;
         i++) {
        struct kvf_segment *segment = &drive->segments[i];
        if (segment->state != KVF_SEGMENT_FREE)
            continue;
        segment->state = KVF_SEGMENT_OPEN;
        segment->asked = false;
        segment->used_bytes = 0;
        segment->sequence = new_sequence(spool);
        drive->free_count--;
        kvf_filling_start(&spool->filling, segment);
    }
    (void)pthread_mutex_unlock(&store->lock);
    return spool->filling.segment != NULL;
}

static void set_segment_state(struct kvf_spool *spool, struct kvf_segment *segment,
                              enum kvf_segment_state state)
{
    struct kvf_store *store = spool->store;
    (void)pthread_mutex_lock(&store->lock);
    segment->state = state;
    if (state == KVF_SEGMENT_FREE) {
        spool->drive->free_count++;
        spool->drive->asked_count -= segment->asked;
        segment->asked = false;
    }
    (void)pthread_mutex_unlock(&store->lock);
}

/* ---- ending ---- */

/* Under the lock. */
static void settle_append(struct kvf_spool *spool, struct kvf_append *append,
                          struct kvf_status status)
{
    struct kvf_drive *drive = spool->drive;
    uint64_t bytes = kvf_round_up_page(append->record.length);
    bool carried = kvf_append_is_carried(append), ok = kvf_is_ok(status);
    append->status = status;
    append->location.drive = drive->index;
    drive->queued_bytes -= bytes;
    if (ok) {
        drive->stats.used_bytes += bytes;
        drive->segments[append->location.segment].used_bytes += bytes;
    }
    drive->stats.write_payload_bytes += ok && !carried ? append->record.length : 0;
    drive->stats.carried_bytes += ok && carried ? append->record.length : 0;
    drive->stats.carried_blocks += ok && carried;
    drive->stats.carries_failed += !ok && carried;
    drive->stats.dropped += !ok && !carried;
}

/* All of them, with this status, or where that is OK each with its own (of what it was copied from). Empties the list.
 * One lock and one post for all: a group of small blocks has thousands. */
static void end_appends(struct kvf_spool *spool, struct kvf_list *appends, struct kvf_status status)
{
    struct kvf_store *store = spool->store;
    (void)pthread_mutex_lock(&store->lock);
    kvf_list_for_each (node, appends) {
        struct kvf_append *append = kvf_append_at(node);
        settle_append(spool, append, kvf_is_ok(status) ? append->status : status);
    }
    struct kvf_append *posted = kvf_append_end(appends);
    (void)pthread_mutex_unlock(&store->lock);
    if (posted != NULL)
        kvf_loop_post(store->loop, &posted->post);
}

static void end_append(struct kvf_spool *spool, struct kvf_append *append, struct kvf_status status)
{
    struct kvf_list one;
    kvf_list_init(&one);
    kvf_list_push_back(&one, &append->node);
    end_appends(spool, &one, status);
}

static int drive_error(struct kvf_spool *spool)
{
    struct kvf_store *store = spool->store;
    (void)pthread_mutex_lock(&store->lock);
    int error = spool->drive->error;
    (void)pthread_mutex_unlock(&store->lock);
    return error;
}

/* The drive takes nothing more until a probe goes through. */
static void fail_drive(struct kvf_spool *spool, int error)
{
    struct kvf_store *store = spool->store;
    (void)pthread_mutex_lock(&store->lock);
    if (spool->drive->error == 0)
        spool->drive->error = error;
    (void)pthread_mutex_unlock(&store->lock);
    spool->probe_at_ns = kvf_clock_now_ns() + store->options.probe_ms * KVF_NS_PER_MS;
}

static void revive_drive(struct kvf_spool *spool)
{
    (void)pthread_mutex_lock(&spool->store->lock);
    spool->drive->error = 0;
    (void)pthread_mutex_unlock(&spool->store->lock);
    spool->probe_at_ns = 0;
}

static void end_group(struct kvf_spool *spool, struct kvf_batch *batch)
{
    int error = batch->error;
    if (error != 0)
        kvf_batch_roll_back(&spool->filling, batch);
    end_appends(spool, &batch->appends, error == 0 ? kvf_ok() : kvf_io_status(error));
}

static void end_free(struct kvf_spool *spool, struct kvf_batch *batch)
{
    if (batch->error == 0)
        set_segment_state(spool, batch->segment, KVF_SEGMENT_FREE);
    else
        kvf_list_push_front(&spool->frees, &batch->segment->node);
}

static void end_resume(struct kvf_filling *filling, int error)
{
    if (error != 0)
        return;
    if (filling->resume == KVF_RESUME_UNSEAL)
        filling->is_sealed = false;
    filling->resume = filling->resume == KVF_RESUME_MARK ? KVF_RESUME_UNSEAL : KVF_RESUME_DONE;
}

void kvf_spool_end_batch(struct kvf_spool *spool, struct kvf_batch *batch)
{
    int error = batch->error;
    if (error != 0)
        fail_drive(spool, error);
    switch (batch->kind) {
    case KVF_BATCH_RECORDS:
        end_group(spool, batch);
        break;
    case KVF_BATCH_SEAL:
        if (error == 0) {
            set_segment_state(spool, batch->segment, KVF_SEGMENT_SEALED);
            spool->filling.segment = NULL;
        }
        break;
    case KVF_BATCH_FREE:
        end_free(spool, batch);
        break;
    case KVF_BATCH_RESUME:
        end_resume(&spool->filling, error);
        break;
    case KVF_BATCH_VOID:
        if (error == 0)
            spool->filling.void_count = 0;
        break;
    case KVF_BATCH_PROBE:
        break;
    }
    batch->state = KVF_BATCH_IDLE;
    if (batch != &spool->service)
        return;
    if (spool->probing && error == 0)
        revive_drive(spool);
    spool->probing = false;
}

/* ---- moving on ---- */

struct kvf_batch *kvf_spool_group(struct kvf_spool *spool, unsigned age)
{
    return &spool->groups[(spool->next_group + age) % KVF_GROUPS_UNDER_WAY];
}

static bool groups_are_idle(const struct kvf_spool *spool)
{
    for (unsigned i = 0; i < KVF_GROUPS_UNDER_WAY; i++)
        if (spool->groups[i].state != KVF_BATCH_IDLE)
            return false;
    return true;
}

/* The drive with the least to do that takes writes, or NULL. Under the lock. */
static struct kvf_spool *other_spool(const struct kvf_store *store, struct kvf_spool *spools)
{
    struct kvf_spool *other = NULL;
    for (size_t i = 0; i < store->drive_count; i++)
        if (store->drives[i].error == 0 &&
            (other == NULL || store->drives[i].queued_bytes < other->drive->queued_bytes))
            other = &spools[i];
    return other;
}

static struct kvf_append *pop_first(struct kvf_spool *spool)
{
    struct kvf_list *node = kvf_list_pop_front(&spool->carries);
    if (node == NULL)
        node = kvf_list_pop_front(&spool->queue);
    return node != NULL ? kvf_append_at(node) : NULL;
}

/* With other drives what is queued goes to them, else it ends. True when something was moved. */
static bool abandon_queue(struct kvf_spool *spool, struct kvf_spool *spools, int error)
{
    bool moved = false;
    struct kvf_store *store = spool->store;
    for (struct kvf_append *append; (append = pop_first(spool)) != NULL;) {
        uint64_t bytes = kvf_round_up_page(append->record.length);
        (void)pthread_mutex_lock(&store->lock);
        struct kvf_spool *other = other_spool(store, spools);
        if (other != NULL) {
            spool->drive->queued_bytes -= bytes;
            spool->drive->stats.writes_in_flight--;
            other->drive->queued_bytes += bytes;
            other->drive->stats.writes_in_flight++;
            append->location.drive = other->drive->index;
            kvf_list_push_back(kvf_append_is_carried(append) ? &other->carries : &other->queue,
                               &append->node);
        }
        (void)pthread_mutex_unlock(&store->lock);
        if (other == NULL)
            end_append(spool, append, kvf_io_status(error));
        else
            moved = true;
    }
    return moved;
}

/* No segment is open, and none is free. What is carried over comes from one that is to be freed: it must not wait for
 * that. The rest waits, unless nobody could give one back. */
static void wait_for_segment(struct kvf_spool *spool)
{
    const struct kvf_status full = kvf_fail(KVF_MODULE_STORAGE, KVF_NO_SPACE, 0);
    end_appends(spool, &spool->carries, full);
    if (spool->store->options.reclaim == NULL)
        end_appends(spool, &spool->queue, full);
    else if (!kvf_list_is_empty(&spool->queue))
        ask_for_segments(spool, kvf_append_at(spool->queue.next));
}

/* While no other segment is free but one is to be, what is put leaves the end of the open one to what is carried over
 * from there. */
static uint64_t bytes_kept(struct kvf_spool *spool)
{
    const struct kvf_drive *drive = spool->drive;
    (void)pthread_mutex_lock(&spool->store->lock);
    bool kept = drive->free_count == 0 && drive->asked_count > 0;
    (void)pthread_mutex_unlock(&spool->store->lock);
    return kept ? kvf_drive_kept_bytes(drive) : 0;
}

static bool group_may_start(struct kvf_spool *spool)
{
    const struct kvf_batch *newest = kvf_spool_group(spool, KVF_GROUPS_UNDER_WAY - 1);
    bool out = newest->state != KVF_BATCH_WRITING || kvf_batch_is_out(newest);
    return out && kvf_spool_group(spool, 0)->state == KVF_BATCH_IDLE;
}

static bool is_quiet(const struct kvf_spool *spool)
{
    return groups_are_idle(spool) && spool->service.state == KVF_BATCH_IDLE;
}

/* The open segment is full. True: nothing of it is to be written. */
static bool end_filling(struct kvf_spool *spool)
{
    struct kvf_filling *filling = &spool->filling;
    if (!filling->is_sealed) {
        kvf_batch_start_seal(filling, &spool->service);
        return false;
    }
    set_segment_state(spool, filling->segment, KVF_SEGMENT_SEALED);
    filling->segment = NULL;
    return true;
}

static void start_group(struct kvf_spool *spool)
{
    struct kvf_filling *filling = &spool->filling;
    if (filling->resume == KVF_RESUME_DONE) {
        kvf_batch_start_group(filling, kvf_spool_group(spool, 0), &spool->carries, &spool->queue);
        spool->next_group = (spool->next_group + 1) % KVF_GROUPS_UNDER_WAY;
    } else if (spool->service.state == KVF_BATCH_IDLE) {
        kvf_batch_start_resume(filling, &spool->service);
    }
}

/* Start the next thing for what is queued, if it may start now. True: look once more. */
static bool start_next(struct kvf_spool *spool)
{
    struct kvf_filling *filling = &spool->filling;
    bool carried = !kvf_list_is_empty(&spool->carries);
    bool later = false;
    if ((!carried && kvf_list_is_empty(&spool->queue)) || !group_may_start(spool))
        return false;
    if (filling->segment == NULL && !take_segment(spool, &later)) {
        if (!later)
            wait_for_segment(spool);
        return false;
    }
    struct kvf_append *first = kvf_append_at(carried ? spool->carries.next : spool->queue.next);
    if (filling->is_new || filling->resume != KVF_RESUME_DONE)
        ask_for_segments(spool, first);
    filling->kept_bytes = bytes_kept(spool);
    if (kvf_filling_takes(filling, first)) {
        start_group(spool);
        return false;
    }
    return (carried || filling->kept_bytes == 0) && is_quiet(spool) && end_filling(spool);
}

/* All pieces are back: the fdatasync is next, in the order of the groups. */
bool kvf_spool_may_sync(struct kvf_spool *spool, const struct kvf_batch *batch)
{
    if (batch->state != KVF_BATCH_WRITTEN)
        return false;
    if (batch->kind != KVF_BATCH_RECORDS)
        return true;
    unsigned age = 0;
    while (kvf_spool_group(spool, age)->state == KVF_BATCH_IDLE)
        age++;
    return kvf_spool_group(spool, age) == batch;
}

static void start_free(struct kvf_spool *spool)
{
    struct kvf_list *node = kvf_list_pop_front(&spool->frees);
    kvf_batch_start_free(spool->drive, kvf_container(node, struct kvf_segment, node),
                         &spool->service);
}

static void settle(struct kvf_spool *spool, struct kvf_batch *batch)
{
    if (batch->state == KVF_BATCH_IDLE || batch->in_flight > 0)
        return;
    if (batch->error == 0 && batch->kind == KVF_BATCH_RECORDS)
        batch->error = drive_error(spool); /* the group before it failed */
    if (batch->error != 0)
        kvf_spool_end_batch(spool, batch);
}

static struct kvf_segment *free_segment(struct kvf_spool *spool)
{
    struct kvf_segment *found = NULL;
    (void)pthread_mutex_lock(&spool->store->lock);
    for (uint32_t i = 0; i < spool->drive->segment_count && found == NULL; i++)
        if (spool->drive->segments[i].state == KVF_SEGMENT_FREE)
            found = &spool->drive->segments[i];
    if (found != NULL)
        found->sequence = new_sequence(spool);
    (void)pthread_mutex_unlock(&spool->store->lock);
    return found;
}

/* Nothing of it is durable, perhaps not even its header. */
static void give_up_empty(struct kvf_spool *spool)
{
    struct kvf_filling *filling = &spool->filling;
    if (filling->segment == NULL || filling->record_count > 0)
        return;
    set_segment_state(spool, filling->segment, KVF_SEGMENT_FREEING);
    kvf_list_push_front(&spool->frees, &filling->segment->node);
    filling->segment = NULL;
}

/* A write that is due anyway, if there is one. The open segment goes on where its last durable group ends, as if the
 * failed ones had never been: to seal it here would cost its rest, and so an old segment's blocks before their time. */
static void start_probe(struct kvf_spool *spool)
{
    struct kvf_filling *filling = &spool->filling;
    spool->probing = true;
    spool->probe_at_ns = 0;
    give_up_empty(spool);
    if (filling->segment != NULL && filling->void_count > 0)
        kvf_batch_start_void(filling, &spool->service);
    else if (filling->segment != NULL && filling->is_full)
        kvf_batch_start_seal(filling, &spool->service);
    else if (filling->segment != NULL && filling->resume != KVF_RESUME_DONE)
        kvf_batch_start_resume(filling, &spool->service);
    else if (!kvf_list_is_empty(&spool->frees))
        start_free(spool);
    else
        kvf_batch_start_probe(spool->drive, free_segment(spool), &spool->service);
}

static void step_read_only(struct kvf_spool *spool)
{
    uint64_t now = kvf_clock_now_ns();
    if (!is_quiet(spool))
        return;
    if (spool->probe_at_ns == 0) /* read-only since recovery */
        spool->probe_at_ns = now + spool->store->options.probe_ms * KVF_NS_PER_MS;
    if (now >= spool->probe_at_ns)
        start_probe(spool);
}

/* No segment is open, free, or may be one day: recovery could not read any of them. */
static bool is_used_up(struct kvf_spool *spool)
{
    bool used_up = spool->filling.segment == NULL;
    (void)pthread_mutex_lock(&spool->store->lock);
    for (uint32_t i = 0; i < spool->drive->segment_count && used_up; i++)
        used_up = spool->drive->segments[i].state == KVF_SEGMENT_LOST;
    (void)pthread_mutex_unlock(&spool->store->lock);
    return used_up;
}

/* The older group first. */
bool kvf_spool_step(struct kvf_spool *spool, struct kvf_spool *spools)
{
    for (unsigned age = 0; age < KVF_GROUPS_UNDER_WAY; age++)
        settle(spool, kvf_spool_group(spool, age));
    settle(spool, &spool->service);
    if (!kvf_list_is_empty(&spool->queue) && is_used_up(spool))
        fail_drive(spool, ENOSPC);
    int error = drive_error(spool);
    if (error != 0) {
        bool moved = abandon_queue(spool, spools, error);
        step_read_only(spool);
        return moved;
    }
    if (spool->service.state == KVF_BATCH_IDLE && !kvf_list_is_empty(&spool->frees))
        start_free(spool);
    while (start_next(spool))
        continue;
    return false;
}

bool kvf_spool_waits(struct kvf_spool *spool)
{
    return group_may_start(spool) || spool->drive->error != 0;
}

int kvf_spool_wait_ms(const struct kvf_spool *spool)
{
    if (spool->drive->error == 0 || spool->probe_at_ns == 0)
        return KVF_WAIT_EVER;
    uint64_t left = kvf_clock_left_ns(spool->probe_at_ns, kvf_clock_now_ns());
    return (int)(left / KVF_NS_PER_MS) + 1;
}

void kvf_spool_take_incoming(struct kvf_spool *spool)
{
    kvf_list_splice_back(&spool->queue, &spool->drive->incoming);
    kvf_list_splice_back(&spool->carries, &spool->drive->carries);
    kvf_list_splice_back(&spool->frees, &spool->drive->frees);
}

bool kvf_spool_is_idle(const struct kvf_spool *spool)
{
    return is_quiet(spool) && kvf_list_is_empty(&spool->frees);
}

void kvf_spool_finish(struct kvf_spool *spool)
{
    struct kvf_filling *filling = &spool->filling;
    bool failed = drive_error(spool) != 0;
    while (failed && !kvf_list_is_empty(&spool->frees))
        (void)kvf_list_pop_front(&spool->frees);
    if (failed || !kvf_spool_is_idle(spool) || !kvf_list_is_empty(&spool->queue) ||
        !kvf_list_is_empty(&spool->carries))
        return;
    if (filling->segment == NULL)
        take_rest(spool);
    if (filling->segment != NULL && filling->record_count > 0 && !filling->is_sealed)
        kvf_batch_start_seal(filling, &spool->service);
}

bool kvf_spool_init(struct kvf_spool *spool, struct kvf_store *store, struct kvf_drive *drive)
{
    spool->store = store;
    spool->drive = drive;
    kvf_list_init(&spool->queue);
    kvf_list_init(&spool->carries);
    kvf_list_init(&spool->frees);
    spool->service.spool = spool;
    bool ok = kvf_filling_init(&spool->filling, drive) && kvf_batch_init(&spool->service);
    for (unsigned i = 0; i < KVF_GROUPS_UNDER_WAY; i++) {
        spool->groups[i].spool = spool;
        ok = ok && kvf_batch_init(&spool->groups[i]);
    }
    return ok;
}

void kvf_spool_fini(struct kvf_spool *spool)
{
    for (unsigned i = 0; i < KVF_GROUPS_UNDER_WAY; i++)
        kvf_batch_fini(&spool->groups[i]);
    kvf_batch_fini(&spool->service);
    kvf_filling_fini(&spool->filling);
}
