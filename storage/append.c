#include "storage/append.h"

#include "storage/writer.h"

/* ---- telling the owner ---- */

/* Under the lock, but not while the owner is told. */
static void tell_asks(struct kvf_store *store)
{
    for (struct kvf_list *node; (node = kvf_list_pop_front(&store->asks)) != NULL;) {
        struct kvf_segment *segment = kvf_container(node, struct kvf_segment, node);
        uint64_t sequence = segment->sequence;
        uint32_t drive = segment->drive;
        (void)pthread_mutex_unlock(&store->lock);
        store->options.reclaim(store->options.context, drive, segment->number, sequence);
        (void)pthread_mutex_lock(&store->lock);
    }
}

/* On the owner's thread. A post may come before the end, only to ask for segments; at the end it may stand for many. */
static void run_post(struct kvf_post *post)
{
    struct kvf_append *append = kvf_container(post, struct kvf_append, post);
    struct kvf_store *store = append->store;
    struct kvf_list ended;
    kvf_list_init(&ended);
    (void)pthread_mutex_lock(&store->lock);
    tell_asks(store);
    append->posted = false;
    if (append->finished) {
        kvf_list_push_back(&ended, &append->node);
        kvf_list_splice_back(&ended, &append->others);
    }
    kvf_list_for_each (node, &ended) {
        const struct kvf_append *one = kvf_container(node, struct kvf_append, node);
        store->drives[one->location.drive].stats.writes_in_flight--;
    }
    (void)pthread_mutex_unlock(&store->lock);
    for (struct kvf_list *node; (node = kvf_list_pop_front(&ended)) != NULL;) {
        struct kvf_append *one = kvf_container(node, struct kvf_append, node);
        one->ended(one, one->status, one->location);
    }
}

void kvf_append_carry_asks(struct kvf_store *store, struct kvf_append *append)
{
    (void)pthread_mutex_lock(&store->lock);
    bool must = !append->posted;
    append->posted = true;
    (void)pthread_mutex_unlock(&store->lock);
    if (must) /* nobody else ends this append, so it is still there */
        kvf_loop_post(store->loop, &append->post);
}

struct kvf_append *kvf_append_end(struct kvf_list *ended)
{
    struct kvf_append *first = NULL;
    for (struct kvf_list *node; (node = kvf_list_pop_front(ended)) != NULL;) {
        struct kvf_append *append = kvf_container(node, struct kvf_append, node);
        append->finished = true;
        if (append->posted)
            continue; /* that post finds it finished */
        append->posted = true;
        if (first == NULL)
            first = append;
        else
            kvf_list_push_back(&first->others, &append->node);
    }
    return first;
}

/* ---- the owner's calls ---- */

static struct kvf_status check_append(const struct kvf_store *store,
                                      const struct kvf_append *append)
{
    const struct kvf_record *record = &append->record;
    uint64_t bytes = kvf_round_up_page(record->length);
    if (record->length == 0 || record->length > KVF_BLOCK_MAX_BYTES || record->key.length == 0 ||
        record->key.length > KVF_KEY_MAX_BYTES || record->namespace == NULL ||
        !kvf_namespace_is_valid(record->namespace))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0);
    if (!kvf_append_is_carried(append) &&
        (append->extent.offset % KVF_PAGE != 0 || append->extent.bytes < bytes))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0);
    /* Header, one group, index and footer: each at least a page. */
    if (bytes + 4 * KVF_PAGE > store->drives[0].segment_bytes)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_TOO_LARGE, 0);
    return kvf_ok();
}

/* Where it is carried over from. Under the lock. */
static struct kvf_status check_source(const struct kvf_store *store,
                                      const struct kvf_append *append)
{
    const struct kvf_location *from = &append->from;
    uint64_t bytes = kvf_round_up_page(append->record.length);
    if (from->drive >= store->drive_count ||
        from->segment >= store->drives[from->drive].segment_count || from->sequence == 0 ||
        from->offset % KVF_PAGE != 0 || from->offset > store->drives[from->drive].segment_bytes ||
        bytes > store->drives[from->drive].segment_bytes - from->offset)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0);
    const struct kvf_segment *segment = &store->drives[from->drive].segments[from->segment];
    if (segment->state != KVF_SEGMENT_SEALED || segment->sequence != from->sequence)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_STALE, 0);
    return kvf_ok();
}

static bool has_less_to_do(const struct kvf_drive *a, const struct kvf_drive *b)
{
    return a->queued_bytes != b->queued_bytes ? a->queued_bytes < b->queued_bytes
                                              : a->stats.used_bytes < b->stats.used_bytes;
}

/* The one with the least to do (then: the emptiest) that still takes writes; NULL: none does. Under the lock. */
static struct kvf_drive *choose_drive(struct kvf_store *store)
{
    struct kvf_drive *best = NULL;
    for (size_t i = 0; i < store->drive_count; i++) {
        struct kvf_drive *drive = &store->drives[i];
        if (drive->error == 0 && (best == NULL || has_less_to_do(drive, best)))
            best = drive;
    }
    return best;
}

/* What is carried over stays on its drive, so that each drive pays for its own segments. */
static struct kvf_drive *drive_for(struct kvf_store *store, const struct kvf_append *append)
{
    bool carried = kvf_append_is_carried(append) && kvf_is_ok(append->status);
    if (carried && store->drives[append->from.drive].error == 0)
        return &store->drives[append->from.drive];
    return choose_drive(store);
}

void kvf_store_append(struct kvf_store *store, struct kvf_append *append)
{
    kvf_assert(store->recovered);
    append->store = store;
    append->post.run = run_post;
    append->posted = append->finished = false;
    append->location = (struct kvf_location){0};
    append->status = check_append(store, append);
    kvf_list_init(&append->node);
    kvf_list_init(&append->others);

    bool wake = false;
    (void)pthread_mutex_lock(&store->lock);
    bool carried = kvf_append_is_carried(append);
    if (carried && kvf_is_ok(append->status))
        append->status = check_source(store, append);
    struct kvf_drive *drive = drive_for(store, append);
    if (drive == NULL) {
        drive = &store->drives[0];
        if (kvf_is_ok(append->status))
            append->status = kvf_io_status(drive->error);
    }
    drive->stats.writes_in_flight++;
    append->location.drive = drive->index;
    if (kvf_is_ok(append->status)) {
        drive->queued_bytes += kvf_round_up_page(append->record.length);
        kvf_list_push_back(carried ? &drive->carries : &drive->incoming, &append->node);
        wake = drive->writer_waits && kvf_writer_has_news(store->writer);
    } else {
        drive->stats.dropped += !carried;
        drive->stats.carries_failed += carried;
        append->posted = append->finished = true;
        kvf_loop_post(store->loop, &append->post);
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (wake)
        kvf_writer_wake(store->writer);
}

bool kvf_store_ask_instead(struct kvf_store *store, uint32_t drive_index, uint32_t asked,
                           uint32_t instead, uint64_t *sequence)
{
    kvf_assert(drive_index < store->drive_count);
    struct kvf_drive *drive = &store->drives[drive_index];
    kvf_assert(asked < drive->segment_count && instead < drive->segment_count);
    struct kvf_segment *other = &drive->segments[instead];
    (void)pthread_mutex_lock(&store->lock);
    kvf_assert(drive->segments[asked].asked);
    bool may = other->state == KVF_SEGMENT_SEALED && !other->asked;
    if (may) {
        drive->segments[asked].asked = false;
        other->asked = true;
        *sequence = other->sequence;
    }
    (void)pthread_mutex_unlock(&store->lock);
    return may;
}

void kvf_store_free(struct kvf_store *store, uint32_t drive_index, uint32_t segment_number,
                    uint64_t sequence)
{
    kvf_assert(drive_index < store->drive_count &&
               segment_number < store->drives[drive_index].segment_count);
    struct kvf_drive *drive = &store->drives[drive_index];
    struct kvf_segment *segment = &drive->segments[segment_number];
    bool wake = false;
    (void)pthread_mutex_lock(&store->lock);
    if (segment->state == KVF_SEGMENT_SEALED && segment->sequence == sequence) {
        segment->state = KVF_SEGMENT_FREEING;
        drive->stats.used_bytes -= segment->used_bytes;
        segment->used_bytes = 0;
        kvf_list_remove(&segment->node); /* it may be about to be asked for */
        kvf_list_push_back(&drive->frees, &segment->node);
        wake = kvf_writer_has_news(store->writer);
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (wake)
        kvf_writer_wake(store->writer);
}
