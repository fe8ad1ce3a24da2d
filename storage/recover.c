/* Parts: slices, segments, the threads, looking at headers, the owner's side. */
#include "storage/recover.h"

#include "base/clock.h"
#include "base/thread.h"
#include "storage/scan.h"
#include "storage/writer.h"

#include <semaphore.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define LOOKERS 16 /* header pages are read so many at a time */
#define SCANNERS_MAX 8
#define SCANNERS_PER_DRIVE_MAX 4
#define SLICE_RECORDS 128
#define TELL_NS (1 * KVF_NS_PER_MS) /* how long the owner is held at once, and one slice more */

/* Records on their way to the owner. */
struct slice {
    struct kvf_list node; /* in recovering->slices */
    struct kvf_location location;
    uint32_t count;
    struct kvf_record_head heads[SLICE_RECORDS];
};

struct scanner {
    struct kvf_recovering *recovering;
    struct kvf_scan scan;
    pthread_t thread;
    sem_t taken; /* the owner is through with the slice */
    struct slice slice;
};

/* The UNREAD segments of a drive, by sequence; under the lock. */
struct shelf {
    struct kvf_segment **segments;
    uint32_t oldest, end; /* what is left: [oldest, end) */
};

struct kvf_recovering {
    struct kvf_store *store;
    struct kvf_recovery *recovery;
    uint64_t start_ns;
    struct shelf *shelves; /* one a drive */
    struct scanner *scanners;
    size_t scanner_count;
    atomic_bool stop;
    struct kvf_post end;

    /* under store->lock */
    size_t running;
    struct kvf_list slices;
    bool posted; /* `tell` is on its way, or runs */
    struct kvf_post tell;
    struct kvf_recovery_result result;
};

static void lock(const struct kvf_recovering *recovering)
{
    (void)pthread_mutex_lock(&recovering->store->lock);
}

static void unlock(const struct kvf_recovering *recovering)
{
    (void)pthread_mutex_unlock(&recovering->store->lock);
}

/* ---- slices ---- */

static void tell_slice(struct kvf_recovering *recovering, const struct slice *slice)
{
    struct kvf_recovery *recovery = recovering->recovery;
    struct kvf_location location = slice->location;
    for (uint32_t i = 0; i < slice->count && !atomic_load(&recovering->stop); i++) {
        location.offset = slice->heads[i].offset;
        recovery->found(recovery, &slice->heads[i].record, location);
        recovering->result.records++;
    }
}

/* On the owner's thread: slices until its time is over; the rest in the loop's next round. */
static void run_tell(struct kvf_post *post)
{
    struct kvf_recovering *recovering = kvf_container(post, struct kvf_recovering, tell);
    uint64_t start_ns = kvf_clock_now_ns();
    do {
        lock(recovering);
        struct kvf_list *node = kvf_list_pop_front(&recovering->slices);
        recovering->posted = node != NULL;
        unlock(recovering);
        if (node == NULL)
            return;
        struct slice *slice = kvf_container(node, struct slice, node);
        tell_slice(recovering, slice);
        (void)sem_post(&kvf_container(slice, struct scanner, slice)->taken);
    } while (kvf_clock_now_ns() - start_ns < TELL_NS);
    kvf_loop_post(recovering->store->loop, post);
}

/* On the scanner's thread: the owner gets the slice, and has taken it on return. */
static void hand_over(struct scanner *scanner)
{
    struct kvf_recovering *recovering = scanner->recovering;
    if (scanner->slice.count == 0)
        return;
    lock(recovering);
    kvf_list_push_back(&recovering->slices, &scanner->slice.node);
    bool post = !recovering->posted;
    recovering->posted = true;
    unlock(recovering);
    if (post)
        kvf_loop_post(recovering->store->loop, &recovering->tell);
    while (sem_wait(&scanner->taken) != 0)
        continue;
    scanner->slice.count = 0;
}

static void found(struct kvf_scan *scan, const struct kvf_record_head *head)
{
    struct scanner *scanner = kvf_container(scan, struct scanner, scan);
    struct slice *slice = &scanner->slice;
    if (atomic_load(&scanner->recovering->stop))
        return;
    struct kvf_record_head *copy = &slice->heads[slice->count++];
    *copy = *head;
    copy->record.namespace = copy->namespace;
    if (slice->count == SLICE_RECORDS)
        hand_over(scanner);
}

/* ---- segments ---- */

/* The newest one, for it is the likeliest to be asked for; the oldest one when the writer waits for it. */
static struct kvf_segment *next_segment(struct scanner *scanner)
{
    struct kvf_recovering *recovering = scanner->recovering;
    struct kvf_drive *drive = scanner->scan.drive;
    struct shelf *shelf = &recovering->shelves[drive->index];
    struct kvf_segment *segment = NULL;
    lock(recovering);
    if (shelf->oldest < shelf->end && !atomic_load(&recovering->stop))
        segment =
            drive->wants_oldest ? shelf->segments[shelf->oldest++] : shelf->segments[--shelf->end];
    drive->wants_oldest = false;
    scanner->scan.is_newest = segment != NULL && segment == drive->newest;
    unlock(recovering);
    return segment;
}

/* Under the lock. */
static void note_error(struct kvf_recovering *recovering, const struct kvf_segment *segment,
                       const char *what, int error)
{
    if (recovering->result.why.text[0] == '\0')
        (void)kvf_why_set(
            &recovering->result.why, kvf_ok(),
            "%s: segment %u cannot be %s (%s): look at the kernel's log and the drive",
            recovering->store->drives[segment->drive].path, segment->number, what, strerror(error));
}

/* Recovery is through with the segment that the writer waits for. Under the lock. */
static void let_writer_go(struct scanner *scanner)
{
    struct kvf_scan *scan = &scanner->scan;
    struct kvf_drive *drive = scan->drive;
    drive->newest = NULL;
    if (scan->rest.segment == NULL)
        return;
    scan->rest.segment->state = KVF_SEGMENT_OPEN;
    drive->rest = scan->rest;
    scan->rest = (struct kvf_rest){0};
}

/* The owner knows all that the segment holds. */
static void end_segment(struct scanner *scanner, struct kvf_segment *segment,
                        enum kvf_segment_state state)
{
    struct kvf_recovering *recovering = scanner->recovering;
    struct kvf_recovery_result *result = &recovering->result;
    const struct kvf_scan *scan = &scanner->scan;
    struct kvf_drive *drive = scan->drive;
    lock(recovering);
    segment->state = state;
    segment->used_bytes = scan->used_bytes;
    drive->stats.used_bytes += scan->used_bytes;
    drive->free_count += state == KVF_SEGMENT_FREE;
    drive->unread_count--;
    if (segment == drive->newest)
        let_writer_go(scanner);
    result->segments++;
    result->scanned += scan->by_groups;
    result->unreadable += state == KVF_SEGMENT_LOST;
    if (scan->read_error != 0)
        note_error(recovering, segment, "read", scan->read_error);
    if (scan->write_error != 0) {
        note_error(recovering, segment, "sealed, the drive is read-only", scan->write_error);
        drive->error = drive->error != 0 ? drive->error : scan->write_error;
    }
    bool wake = drive->queued_bytes > 0 || scan->write_error != 0;
    unlock(recovering);
    if (wake) /* it may ask for this one, fill it, or plan when to try the drive again */
        kvf_writer_wake(recovering->store->writer);
}

/* ---- the threads ---- */

/* It stays UNREAD: the writer takes another one. */
static void give_up_newest(struct scanner *scanner)
{
    lock(scanner->recovering);
    scanner->scan.drive->newest = NULL;
    unlock(scanner->recovering);
    kvf_writer_wake(scanner->recovering->store->writer);
}

static void *run_scanner(void *context)
{
    struct scanner *scanner = context;
    struct kvf_recovering *recovering = scanner->recovering;
    for (struct kvf_segment *segment; (segment = next_segment(scanner)) != NULL;) {
        scanner->slice.location = (struct kvf_location){
            .drive = segment->drive, .segment = segment->number, .sequence = segment->sequence};
        enum kvf_segment_state state = kvf_scan_segment(&scanner->scan, segment);
        hand_over(scanner);
        if (state != KVF_SEGMENT_UNREAD && !atomic_load(&recovering->stop))
            end_segment(scanner, segment, state);
        free(scanner->scan.rest.index);
        scanner->scan.rest = (struct kvf_rest){0};
    }
    if (atomic_load(&recovering->stop))
        give_up_newest(scanner);
    struct kvf_loop *loop = recovering->store->loop;
    lock(recovering);
    bool last = --recovering->running == 0;
    unlock(recovering);
    if (last) /* else it may be gone already */
        kvf_loop_post(loop, &recovering->end);
    return NULL;
}

static size_t scanners_per_drive(const struct kvf_store *store)
{
    size_t count = SCANNERS_MAX / store->drive_count;
    count = count < SCANNERS_PER_DRIVE_MAX ? count : SCANNERS_PER_DRIVE_MAX;
    return count > 0 ? count : 1;
}

static bool make_scanners(struct kvf_recovering *recovering)
{
    struct kvf_store *store = recovering->store;
    size_t count = scanners_per_drive(store) * store->drive_count;
    recovering->scanners = calloc(count, sizeof(*recovering->scanners));
    if (recovering->scanners == NULL)
        return false;
    for (; recovering->scanner_count < count; recovering->scanner_count++) {
        struct scanner *scanner = &recovering->scanners[recovering->scanner_count];
        scanner->recovering = recovering;
        kvf_list_init(&scanner->slice.node);
        scanner->scan.drive = &store->drives[recovering->scanner_count % store->drive_count];
        scanner->scan.found = found;
        scanner->scan.stop = &recovering->stop;
        kvf_assert(sem_init(&scanner->taken, 0, 0) == 0);
        if (!kvf_scan_init(&scanner->scan)) {
            recovering->scanner_count++;
            return false;
        }
    }
    return true;
}

/* ---- looking at headers ---- */

/* All lookers share it: the next segment to look at, drive by drive in turns. */
struct look {
    struct kvf_recovering *recovering;
    atomic_size_t next;
    size_t count; /* the most segments of a drive, times the drives */
};

static void look_at(struct kvf_recovering *recovering, struct kvf_segment *segment, uint8_t *page)
{
    struct kvf_drive *drive = &recovering->store->drives[segment->drive];
    int error;
    enum kvf_segment_state state = kvf_scan_header(drive, segment, page, &error);
    lock(recovering);
    segment->state = state;
    segment->used_bytes = 0;
    drive->free_count += state == KVF_SEGMENT_FREE;
    drive->unread_count += state == KVF_SEGMENT_UNREAD;
    if (state == KVF_SEGMENT_LOST) {
        recovering->result.segments++;
        recovering->result.unreadable++;
        note_error(recovering, segment, "read", error);
    }
    unlock(recovering);
}

static void *run_look(void *context)
{
    struct look *look = context;
    struct kvf_store *store = look->recovering->store;
    alignas(KVF_PAGE) uint8_t page[KVF_PAGE];
    for (size_t i; (i = atomic_fetch_add(&look->next, 1)) < look->count;) {
        struct kvf_drive *drive = &store->drives[i % store->drive_count];
        size_t number = i / store->drive_count;
        if (number < drive->segment_count)
            look_at(look->recovering, &drive->segments[number], page);
    }
    return NULL;
}

/* What does not start is not needed: this thread looks as well. */
static void look_at_headers(struct kvf_recovering *recovering)
{
    struct kvf_store *store = recovering->store;
    struct look look = {.recovering = recovering};
    pthread_t threads[LOOKERS];
    unsigned started = 0;
    for (size_t i = 0; i < store->drive_count; i++)
        if (look.count < store->drives[i].segment_count * store->drive_count)
            look.count = store->drives[i].segment_count * store->drive_count;
    while (started < LOOKERS && started < look.count &&
           kvf_thread_start(&threads[started], "kvf-look", run_look, &look) == 0)
        started++;
    (void)run_look(&look);
    while (started > 0)
        (void)pthread_join(threads[--started], NULL);
}

static int by_sequence(const void *a, const void *b)
{
    const struct kvf_segment *const *x = a, *const *y = b;
    return ((*x)->sequence > (*y)->sequence) - ((*x)->sequence < (*y)->sequence);
}

static bool fill_shelves(struct kvf_recovering *recovering)
{
    struct kvf_store *store = recovering->store;
    recovering->shelves = calloc(store->drive_count, sizeof(*recovering->shelves));
    for (size_t d = 0; recovering->shelves != NULL && d < store->drive_count; d++) {
        struct kvf_drive *drive = &store->drives[d];
        struct shelf *shelf = &recovering->shelves[d];
        shelf->segments = calloc(drive->segment_count, sizeof(struct kvf_segment *));
        if (shelf->segments == NULL)
            return false;
        for (uint32_t i = 0; i < drive->segment_count; i++)
            if (drive->segments[i].state == KVF_SEGMENT_UNREAD)
                shelf->segments[shelf->end++] = &drive->segments[i];
        qsort(shelf->segments, shelf->end, sizeof(struct kvf_segment *), by_sequence);
        drive->newest = shelf->end > 0 ? shelf->segments[shelf->end - 1] : NULL;
    }
    return recovering->shelves != NULL;
}

/* ---- the owner's side ---- */

static void free_recovering(struct kvf_recovering *recovering)
{
    for (size_t i = 0; i < recovering->scanner_count; i++) {
        kvf_scan_fini(&recovering->scanners[i].scan);
        (void)sem_destroy(&recovering->scanners[i].taken);
    }
    for (size_t d = 0; recovering->shelves != NULL && d < recovering->store->drive_count; d++)
        free(recovering->shelves[d].segments);
    free(recovering->shelves);
    free(recovering->scanners);
    free(recovering);
}

/* The last scanner has gone. `tell` may have been posted again behind us, with nothing left to tell: let it pass. */
static void run_end(struct kvf_post *post)
{
    struct kvf_recovering *recovering = kvf_container(post, struct kvf_recovering, end);
    struct kvf_store *store = recovering->store;
    struct kvf_recovery *recovery = recovering->recovery;
    lock(recovering);
    bool posted = recovering->posted;
    unlock(recovering);
    if (posted) {
        kvf_loop_post(store->loop, post);
        return;
    }
    for (size_t i = 0; i < recovering->scanner_count; i++)
        (void)pthread_join(recovering->scanners[i].thread, NULL);
    struct kvf_recovery_result result = recovering->result;
    result.took_ns = kvf_clock_now_ns() - recovering->start_ns;
    result.cancelled = atomic_load(&recovering->stop);
    store->recovering = NULL;
    free_recovering(recovering);
    recovery->ended(recovery, &result);
}

/* The lock keeps those that have started from their first segment until it is known that all have. */
static struct kvf_status start_scanners(struct kvf_recovering *recovering, struct kvf_why *why)
{
    int error = 0;
    size_t started = 0;
    lock(recovering);
    recovering->running = recovering->scanner_count;
    while (started < recovering->scanner_count && error == 0) {
        struct scanner *scanner = &recovering->scanners[started];
        error = kvf_thread_start(&scanner->thread, "kvf-recover", run_scanner, scanner);
        started += error == 0;
    }
    atomic_store(&recovering->stop, error != 0);
    unlock(recovering);
    if (error == 0)
        return kvf_ok();
    while (started > 0)
        (void)pthread_join(recovering->scanners[--started].thread, NULL);
    return kvf_why_set(why, kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, error),
                       "cannot start a thread for recovery (%s): raise the limit of threads",
                       strerror(error));
}

struct kvf_status kvf_recover_start(struct kvf_store *store, struct kvf_recovery *recovery,
                                    struct kvf_why *why)
{
    struct kvf_recovering *recovering = calloc(1, sizeof(*recovering));
    struct kvf_status status = kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    if (recovering == NULL)
        return kvf_say_no_memory(status, why);
    recovering->store = store;
    recovering->recovery = recovery;
    recovering->start_ns = kvf_clock_now_ns();
    recovering->tell.run = run_tell;
    recovering->end.run = run_end;
    kvf_list_init(&recovering->slices);
    if (make_scanners(recovering)) {
        look_at_headers(recovering);
        if (fill_shelves(recovering))
            status = start_scanners(recovering, why);
    }
    if (!kvf_is_ok(status)) {
        free_recovering(recovering);
        return kvf_say_no_memory(status, why);
    }
    store->recovering = recovering;
    return kvf_ok();
}

void kvf_store_recover_cancel(struct kvf_store *store)
{
    if (store->recovering != NULL)
        atomic_store(&store->recovering->stop, true);
}
