/* Parts: choosing the next piece; landing a finished one; telling the owner; the thread. */
#include "storage/reader.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/thread.h"
#include "storage/pin.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DONE_MAX 64 /* completions handled at once */
#define TAKE_PIECES_MAX                                                                            \
    32 /* pieces one reader takes at once before it leaves the rest to another */
#define TAKE_BYTES_MAX (8 * KVF_MIB)
#define RETRIES_MAX 32     /* of a piece, without progress */
#define GAP_PIECES_MAX 256 /* bits of kvf_read.landed_pieces */

/* One request in a ring. Owned by its reader, so that nobody else touches it. */
struct read_piece {
    struct kvf_io io;
    struct kvf_read *read;
    struct kvf_drive *drive;
    uint64_t start; /* in the block */
    uint64_t bytes; /* whole pages */
    uint64_t done;  /* of them */
    uint64_t limit; /* longest request to the kernel; halved when it says EAGAIN */
    unsigned retries;
    struct read_piece *next;
};

struct kvf_reader {
    struct kvf_store *store;
    struct kvf_readers *all;
    unsigned number;
    pthread_t thread;
    bool started;
    int wake_fd;
    struct kvf_ring *ring;
    struct kvf_ring *spare;    /* for when it breaks */
    struct read_piece *pieces; /* all */
    struct read_piece *idle;   /* linked by next */
    struct read_piece *again;  /* to be given to the ring once more; linked by next */
    size_t next_drive;
    bool fixed;                 /* the arenas are fixed buffers of the ring */
    int open_error, fix_result; /* set before `ready` is posted */
    uint64_t fix_ns;
    sem_t ready;

    /* under store->lock */
    unsigned in_flight;
    bool sleeping; /* in its ring, or about to */
};

struct kvf_readers {
    struct kvf_store *store;
    unsigned count;
    unsigned pieces_each;
    struct kvf_pin pin;
    bool stop; /* under store->lock */
    struct kvf_reader readers[];
};

/* ---- choosing the next piece; all under the lock ---- */

static uint64_t next_piece_bytes(const struct kvf_store *store, const struct kvf_read *read)
{
    uint64_t left = kvf_round_up_page(read->length) - read->next_offset;
    return left < store->options.io_bytes ? left : store->options.io_bytes;
}

/* The pieces behind the first gap must fit the bitmap that remembers them. */
static bool gap_allows(const struct kvf_store *store, const struct kvf_read *read)
{
    return (read->next_offset - read->front_bytes) / store->options.io_bytes < GAP_PIECES_MAX;
}

static bool window_allows(const struct kvf_store *store, const struct kvf_drive *drive,
                          uint64_t bytes)
{
    return drive->read_pieces == 0 || (drive->read_pieces < store->options.queue_depth &&
                                       drive->read_bytes + bytes <= store->options.inflight_bytes);
}

static struct kvf_read *first_in_turn(const struct kvf_store *store, const struct kvf_list *turns)
{
    kvf_list_for_each (node, turns) {
        struct kvf_read *read = kvf_container(node, struct kvf_read, node);
        if (gap_allows(store, read))
            return read;
    }
    return NULL;
}

/* The read whose piece is next on this drive, if the window has room for it. */
static struct kvf_read *next_read(const struct kvf_store *store, const struct kvf_drive *drive)
{
    struct kvf_read *read = first_in_turn(store, &drive->turns[0]);
    if (read == NULL)
        read = first_in_turn(store, &drive->turns[1]);
    return read != NULL && window_allows(store, drive, next_piece_bytes(store, read)) ? read : NULL;
}

/* Nothing more of this read is to be submitted: the set's next one on this drive takes over its place. */
static void leave_turns(struct kvf_read *read)
{
    if (kvf_list_is_empty(&read->node))
        return;
    if (read->next_in_set != NULL) {
        read->next_in_set->turn_left = read->turn_left;
        kvf_list_insert_before(&read->next_in_set->node, &read->node);
    }
    kvf_list_remove(&read->node);
}

static void count_turn(struct kvf_store *store, struct kvf_drive *drive, struct kvf_read *read,
                       uint64_t bytes)
{
    struct kvf_read *front = read;
    read->next_offset += bytes;
    read->turn_left = read->turn_left > bytes ? read->turn_left - bytes : 0;
    if (read->next_offset == kvf_round_up_page(read->length)) {
        leave_turns(read);
        front = read->next_in_set;
    }
    if (front == NULL || front->turn_left > 0)
        return;
    front->turn_left = store->options.io_bytes;
    kvf_list_remove(&front->node);
    kvf_list_push_back(&drive->turns[front->speculative], &front->node);
}

static int buffer_of(const struct kvf_reader *reader, const struct kvf_arena *arena)
{
    const struct kvf_store_options *options = &reader->store->options;
    if (!reader->fixed)
        return -1;
    if (arena->id < options->arena_count && options->arenas[arena->id] == arena)
        return (int)arena->id;
    for (size_t i = 0; i < options->arena_count; i++)
        if (options->arenas[i] == arena)
            return (int)i;
    return -1;
}

/* (Re)fill the request from what is not done yet. */
static void aim(const struct kvf_reader *reader, struct read_piece *piece)
{
    uint64_t left = piece->bytes - piece->done, at = piece->start + piece->done;
    piece->io.bytes = left < piece->limit ? left : piece->limit;
    piece->io.memory = kvf_extent_at(piece->read->extent) + at;
    piece->io.offset = piece->read->location.offset + at;
    piece->io.buffer =
        buffer_of(reader, piece->read->extent.arena); /* of this ring: it may be a new one */
}

static struct read_piece *take_piece(struct kvf_reader *reader, struct kvf_drive *drive,
                                     struct kvf_read *read)
{
    struct read_piece *piece = reader->idle;
    reader->idle = piece->next;
    uint64_t bytes = next_piece_bytes(reader->store, read);
    *piece = (struct read_piece){
        .io = {.kind = KVF_IO_READ, .fd = drive->segments[read->location.segment].fd},
        .read = read,
        .drive = drive,
        .start = read->next_offset,
        .bytes = bytes,
        .limit = bytes,
    };
    aim(reader, piece);
    drive->read_pieces++;
    drive->read_bytes += bytes;
    drive->stats.read_sqes++;
    read->pieces_in_flight++;
    reader->in_flight++;
    count_turn(reader->store, drive, read, bytes);
    return piece;
}

static bool work_is_left(const struct kvf_store *store)
{
    for (size_t i = 0; i < store->drive_count; i++)
        if (next_read(store, &store->drives[i]) != NULL)
            return true;
    return false;
}

/* As many as the window, this ring and a fair share allow; `room` of the ring. Linked by next. */
static struct read_piece *take_pieces(struct kvf_reader *reader, unsigned room)
{
    struct kvf_store *store = reader->store;
    struct read_piece *first = NULL, **last = &first;
    uint64_t bytes = 0;
    unsigned taken = 0;
    size_t without = 0; /* drives in a row that had nothing */
    while (without < store->drive_count && taken < room && taken < TAKE_PIECES_MAX &&
           bytes < TAKE_BYTES_MAX && reader->idle != NULL) {
        struct kvf_drive *drive = &store->drives[reader->next_drive];
        reader->next_drive = (reader->next_drive + 1) % store->drive_count;
        struct kvf_read *read = next_read(store, drive);
        if (read == NULL) {
            without++;
            continue;
        }
        without = 0;
        struct read_piece *piece = take_piece(reader, drive, read);
        *last = piece;
        last = &piece->next;
        bytes += piece->bytes;
        taken++;
    }
    return first;
}

/* A sleeper with a free slot, an idle one if there is one; it counts as awake from here on. */
static struct kvf_reader *pick_sleeper(struct kvf_store *store)
{
    struct kvf_reader *best = NULL;
    for (unsigned i = 0; i < store->readers->count; i++) {
        struct kvf_reader *reader = &store->readers->readers[i];
        if (!reader->sleeping || reader->idle == NULL)
            continue;
        if (best == NULL || (best->in_flight > 0 && reader->in_flight == 0))
            best = reader;
        if (best->in_flight == 0)
            break;
    }
    if (best != NULL)
        best->sleeping = false;
    return best;
}

static void wake(struct kvf_reader *reader)
{
    (void)eventfd_write(reader->wake_fd, 1);
}

/* ---- landing a finished piece; under the lock ---- */

/* Bit `at`, counted from the front. */
static void set_landed(struct kvf_read *read, uint64_t at)
{
    read->landed_pieces[at / 64] |= UINT64_C(1) << (at % 64);
}

/* Move the front over all pieces that landed without a gap. */
static void advance_front(const struct kvf_store *store, struct kvf_read *read)
{
    uint64_t end = kvf_round_up_page(read->length);
    while (read->landed_pieces[0] & 1) {
        uint64_t left = end - read->front_bytes;
        read->front_bytes += left < store->options.io_bytes ? left : store->options.io_bytes;
        for (size_t i = 0; i < 4; i++) {
            uint64_t carry = i < 3 ? read->landed_pieces[i + 1] << 63 : 0;
            read->landed_pieces[i] = read->landed_pieces[i] >> 1 | carry;
        }
    }
}

static void fail_read(struct kvf_read *read, int error)
{
    if (kvf_is_ok(read->status))
        read->status = kvf_fail(KVF_MODULE_STORAGE, KVF_IO, error);
    leave_turns(read);
}

static void zero_tail(const struct kvf_read *read)
{
    memset(kvf_extent_at(read->extent) + read->length, 0,
           kvf_round_up_page(read->length) - read->length);
}

/* True when the owner is to be told and no post is on its way yet. Once the last piece has landed and this returned
 * false, the read may be gone. */
static bool land(struct kvf_reader *reader, struct read_piece *piece, int error)
{
    struct kvf_store *store = reader->store;
    struct kvf_read *read = piece->read;
    struct kvf_drive *drive = piece->drive;
    drive->read_pieces--;
    drive->read_bytes -= piece->bytes;
    drive->stats.read_device_bytes += piece->done;
    read->pieces_in_flight--;
    reader->in_flight--;
    if (error != 0) {
        fail_read(read, error);
    } else {
        uint64_t front = read->front_bytes;
        set_landed(read, (piece->start - front) / store->options.io_bytes);
        advance_front(store, read);
    }
    bool failed = !kvf_is_ok(read->status);
    if (!failed && read->front_bytes == kvf_round_up_page(read->length)) {
        zero_tail(read);
        drive->stats.read_payload_bytes += read->length;
        read->finished = true;
    }
    if (failed && read->pieces_in_flight == 0)
        read->finished = true;
    bool news =
        read->finished || (!failed && read->landed != NULL && read->front_bytes > read->told_bytes);
    if (!news || read->posted)
        return false;
    read->posted = true;
    return true;
}

/* Works out what a completion means. True: the piece is finished (*error 0 or an errno); false: ask for the rest. */
static bool judge(struct read_piece *piece, int *error)
{
    int result = piece->io.result;
    *error = 0;
    if (result > 0) {
        /* What came is believed up to the last whole page, so that the next request is aligned. */
        uint64_t got = (uint64_t)result & ~(KVF_PAGE - 1);
        piece->done += got;
        piece->retries = got > 0 ? 0 : piece->retries + 1;
    } else if (result == -EAGAIN || result == -EINTR || result == -EBUSY) {
        piece->retries++;
        if (result == -EAGAIN && piece->limit > KVF_PAGE)
            piece->limit = kvf_round_up_page(piece->limit / 2);
    } else {
        *error = result < 0 ? -result : ENODATA; /* the file ends where a record should be */
        return true;
    }
    if (piece->done == piece->bytes)
        return true;
    if (piece->retries <= RETRIES_MAX)
        return false;
    *error = result < 0 ? -result : EIO;
    return true;
}

/* ---- telling the owner ---- */

/* On the owner's thread. Under the lock nobody else is between "this is news" and "posted", so a finished read is told
 * once and is not touched afterwards. */
static void run_post(struct kvf_post *post)
{
    struct kvf_read *read = kvf_container(post, struct kvf_read, post);
    struct kvf_store *store = read->store;
    (void)pthread_mutex_lock(&store->lock);
    read->posted = false;
    bool finished = read->finished;
    uint64_t landed = read->front_bytes;
    bool more = landed > read->told_bytes;
    read->told_bytes = landed;
    if (finished && read->location.drive < store->drive_count) {
        struct kvf_drive_stats *stats = &store->drives[read->location.drive].stats;
        stats->reads_in_flight--;
        stats->read_errors += read->status.code == KVF_IO;
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (finished)
        read->ended(read, read->status);
    else if (more && read->landed != NULL)
        read->landed(read, landed);
}

/* ---- the thread ---- */

static void fix_buffers(struct kvf_reader *reader)
{
    struct kvf_store *store = reader->store;
    uint64_t start = kvf_clock_now_ns();
    reader->fix_result = kvf_pin_ring(&reader->all->pin, reader->ring);
    reader->fix_ns = kvf_clock_now_ns() - start;
    reader->fixed = reader->fix_result >= 0;
    (void)pthread_mutex_lock(&store->lock);
    store->drives[0].stats.registrations += reader->fix_result == KVF_FIX_REGISTERED;
    (void)pthread_mutex_unlock(&store->lock);
}

/* A ring that failed as a whole is empty by now: open another, or do without io_uring. */
static void replace_ring(struct kvf_reader *reader)
{
    reader->ring =
        kvf_ring_replace(reader->ring, reader->all->pieces_each, reader->wake_fd, &reader->spare);
    fix_buffers(reader);
}

struct turn {
    struct kvf_io *done[DONE_MAX];
    unsigned done_count;
    struct kvf_read *news[DONE_MAX];
    unsigned news_count;
};

static void land_all(struct kvf_reader *reader, struct turn *turn)
{
    turn->news_count = 0;
    for (unsigned i = 0; i < turn->done_count; i++) {
        struct read_piece *piece = kvf_container(turn->done[i], struct read_piece, io);
        struct kvf_read *read = piece->read;
        int error;
        if (!judge(piece, &error)) {
            aim(reader, piece);
            piece->drive->stats.read_sqes++;
            piece->next = reader->again;
            reader->again = piece;
            continue;
        }
        if (land(reader, piece, error))
            turn->news[turn->news_count++] = read;
        piece->next = reader->idle;
        reader->idle = piece;
    }
}

static void start_all(struct kvf_reader *reader, struct read_piece *piece)
{
    while (piece != NULL) {
        struct read_piece *next = piece->next;
        reader->ring->engine->add(reader->ring, &piece->io);
        piece = next;
    }
}

/* Those that were in the ring before go first. Returns the room that is left. */
static unsigned start_again(struct kvf_reader *reader)
{
    const struct kvf_engine *engine = reader->ring->engine;
    while (reader->again != NULL && engine->room(reader->ring) > 0) {
        struct read_piece *piece = reader->again;
        reader->again = piece->next;
        engine->add(reader->ring, &piece->io);
    }
    return engine->room(reader->ring);
}

/* One round: what is back lands, what the window allows starts, the owner hears, and then the sleep. */
static bool serve(struct kvf_reader *reader, struct turn *turn)
{
    struct kvf_store *store = reader->store;
    const struct kvf_engine *engine = reader->ring->engine;
    (void)pthread_mutex_lock(&store->lock);
    reader->sleeping = false; /* whatever ended the sleep: work that is left goes to another one */
    land_all(reader, turn);
    struct read_piece *taken = take_pieces(reader, start_again(reader));
    bool left = work_is_left(store);
    struct kvf_reader *other = left ? pick_sleeper(store) : NULL;
    bool go_on = left && other == NULL && taken != NULL;
    bool end = reader->all->stop && reader->in_flight == 0;
    reader->sleeping = !go_on && !end;
    (void)pthread_mutex_unlock(&store->lock);

    for (unsigned i = 0; i < turn->news_count; i++)
        kvf_loop_post(store->loop, &turn->news[i]->post);
    if (other != NULL)
        wake(other);
    if (end)
        return false;
    start_all(reader, taken);
    turn->done_count =
        engine->turn(reader->ring, turn->done, DONE_MAX, go_on ? KVF_WAIT_NOT : KVF_WAIT_EVER);
    return true;
}

static void *run_reader(void *context)
{
    struct kvf_reader *reader = context;
    struct kvf_readers *all = reader->all;
    reader->open_error =
        reader->store->engine->open(all->pieces_each, reader->wake_fd, &reader->ring);
    bool failed = reader->open_error != 0;
    if (!failed)
        fix_buffers(reader);
    (void)sem_post(&reader->ready);
    if (failed)
        return NULL;
    struct turn turn = {.done_count = 0};
    while (serve(reader, &turn))
        if (reader->ring->engine->is_broken(reader->ring))
            replace_ring(reader);
    reader->ring->engine->close(reader->ring);
    return NULL;
}

static struct kvf_status start_reader(struct kvf_readers *all, unsigned number)
{
    struct kvf_reader *reader = &all->readers[number];
    char name[16];
    reader->store = all->store;
    reader->all = all;
    reader->number = number;
    reader->pieces = calloc(all->pieces_each, sizeof(*reader->pieces));
    reader->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (reader->pieces == NULL || reader->wake_fd < 0)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, errno);
    if (kvf_engine_pread.open(1, reader->wake_fd, &reader->spare) != 0)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, ENOMEM);
    for (unsigned i = 0; i < all->pieces_each; i++) {
        reader->pieces[i].next = reader->idle;
        reader->idle = &reader->pieces[i];
    }
    kvf_assert(sem_init(&reader->ready, 0, 0) == 0);
    (void)snprintf(name, sizeof(name), "kvf-read-%u", number % 1000);
    int error = kvf_thread_start(&reader->thread, name, run_reader, reader);
    if (error != 0)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, error);
    reader->started = true;
    while (sem_wait(&reader->ready) != 0)
        continue;
    if (reader->open_error != 0)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, -reader->open_error);
    return kvf_ok();
}

static unsigned pieces_each(const struct kvf_store *store)
{
    size_t window = store->options.queue_depth * store->drive_count;
    return window < 4095 ? (unsigned)window
                         : 4095; /* and one entry for the wake-up: a ring has at most 4096 */
}

struct kvf_status kvf_readers_start(struct kvf_store *store, struct kvf_why *why)
{
    const struct kvf_store_options *options = &store->options;
    unsigned count = options->read_threads;
    struct kvf_readers *all = calloc(1, sizeof(*all) + count * sizeof(all->readers[0]));
    if (all == NULL)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    store->readers = all;
    all->store = store;
    all->count = count;
    all->pieces_each = pieces_each(store);
    for (unsigned i = 0; i < count; i++)
        all->readers[i].wake_fd = -1;
    if (!kvf_pin_init(&all->pin, store->engine, options->arenas, options->arena_count,
                      options->locked_bytes, count))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    store->drives[0].stats.registrations = all->pin.registrations;
    for (unsigned i = 0; i < count; i++) {
        struct kvf_status status = start_reader(all, i);
        if (!kvf_is_ok(status))
            return kvf_why_set(why, status,
                               "cannot start reader %u of %u: %s: lower --ssd-read-threads or "
                               "raise RLIMIT_MEMLOCK (ulimit -l)",
                               i + 1, count, strerror(status.detail));
    }
    for (unsigned i = 0; i < count && !all->pin.off; i++)
        kvf_pin_count(&all->pin, all->readers[i].fix_result, all->readers[i].fix_ns);
    return kvf_ok();
}

void kvf_readers_text(const struct kvf_readers *all, char *text, size_t bytes)
{
    kvf_pin_text(&all->pin, text, bytes);
}

void kvf_readers_stop(struct kvf_readers *all)
{
    if (all == NULL)
        return;
    (void)pthread_mutex_lock(&all->store->lock);
    all->stop = true;
    (void)pthread_mutex_unlock(&all->store->lock);
    for (unsigned i = 0; i < all->count; i++) {
        struct kvf_reader *reader = &all->readers[i];
        if (reader->started) {
            wake(reader);
            (void)pthread_join(reader->thread, NULL);
            (void)sem_destroy(&reader->ready);
        }
        kvf_engine_pread.close(reader->spare);
        if (reader->wake_fd >= 0)
            (void)close(reader->wake_fd);
        free(reader->pieces);
    }
    kvf_pin_fini(&all->pin, all->store->engine);
    free(all);
}

/* ---- starting a set; the owner ---- */

static bool extent_holds(struct kvf_extent extent, uint64_t bytes)
{
    return extent.arena != NULL && extent.offset % KVF_PAGE == 0 && bytes <= extent.bytes &&
           extent.offset <= extent.arena->bytes && bytes <= extent.arena->bytes - extent.offset;
}

/* What is asked for must exist; what lies there is not judged. Under the lock. */
static struct kvf_status check_read(const struct kvf_store *store, const struct kvf_read *read)
{
    const struct kvf_location *at = &read->location;
    struct kvf_status invalid = kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0);
    if (at->drive >= store->drive_count || at->segment >= store->drives[at->drive].segment_count ||
        read->length == 0 || read->length > KVF_BLOCK_MAX_BYTES)
        return invalid;
    const struct kvf_drive *drive = &store->drives[at->drive];
    const struct kvf_segment *segment = &drive->segments[at->segment];
    uint64_t bytes = kvf_round_up_page(read->length);
    if (!extent_holds(read->extent, bytes) || at->offset % KVF_PAGE != 0 ||
        at->offset > drive->segment_bytes || bytes > drive->segment_bytes - at->offset)
        return invalid;
    if (at->sequence != segment->sequence ||
        (segment->state == KVF_SEGMENT_FREE || segment->state == KVF_SEGMENT_FREEING))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_STALE, 0);
    return kvf_ok();
}

static void prepare_read(struct kvf_store *store, struct kvf_read *read, bool speculative)
{
    read->store = store;
    read->speculative = speculative;
    read->post.run = run_post;
    kvf_list_init(&read->node);
    read->next_in_set = NULL;
    read->next_offset = read->front_bytes = read->told_bytes = 0;
    read->turn_left = store->options.io_bytes;
    memset(read->landed_pieces, 0, sizeof(read->landed_pieces));
    read->pieces_in_flight = 0;
    read->posted = read->finished = false;
    read->status = check_read(store, read);
}

/* Behind the set's earlier reads on this drive; the first one takes the set's place in the turns. */
static void enter_turns(struct kvf_store *store, struct kvf_read *read)
{
    struct kvf_drive *drive = &store->drives[read->location.drive];
    struct kvf_read **tail = &store->tails[drive->index];
    if (*tail != NULL) {
        (*tail)->next_in_set = read;
    } else {
        kvf_list_push_back(&drive->turns[read->speculative], &read->node);
        drive->stats.read_sets++;
    }
    *tail = read;
}

void kvf_store_read(struct kvf_store *store, struct kvf_read_set *set)
{
    struct kvf_reader *reader = NULL;
    memset(store->tails, 0, store->drive_count * sizeof(struct kvf_read *));
    kvf_assert(store->recovered && set->count > 0);
    (void)pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < set->count; i++) {
        struct kvf_read *read = set->reads[i];
        prepare_read(store, read, set->speculative);
        if (read->location.drive < store->drive_count)
            store->drives[read->location.drive].stats.reads_in_flight++;
        if (kvf_is_ok(read->status)) {
            enter_turns(store, read);
        } else {
            read->posted = read->finished = true;
            kvf_loop_post(store->loop, &read->post);
        }
    }
    if (work_is_left(store))
        reader = pick_sleeper(store);
    (void)pthread_mutex_unlock(&store->lock);
    if (reader != NULL)
        wake(reader);
}

/* Only a front read is in the turns; those behind it follow it there. */
void kvf_store_raise(struct kvf_store *store, struct kvf_read_set *set)
{
    (void)pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < set->count && set->speculative; i++) {
        struct kvf_read *read = set->reads[i];
        read->speculative = false;
        if (kvf_list_is_empty(&read->node))
            continue;
        kvf_list_remove(&read->node);
        kvf_list_push_back(&store->drives[read->location.drive].turns[0], &read->node);
    }
    (void)pthread_mutex_unlock(&store->lock);
    set->speculative = false;
}
