/* Parts: pieces (requests to the ring); the thread.
 *
 * Owner of everything here but what core.h puts under the lock: the writer thread. */
#include "storage/writer.h"

#include "base/thread.h"
#include "storage/spool.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECES_PER_DRIVE 8 /* in flight */
#define RETRIES_MAX 32     /* of a piece, without progress */
#define DONE_MAX 64
#define HUGE_BYTES (2 * KVF_MIB)
#define PARTS_MAX 16 /* of a piece that is written from where they lie */

/* One request. What is copied from a file is read into `staging` first and then written from there. */
struct write {
    struct kvf_io io;
    struct kvf_batch *batch;
    uint64_t done;       /* of piece.bytes: read or written */
    unsigned first_part; /* not done yet */
    unsigned retries;
    struct write *next;
    uint8_t *staging;       /* KVF_PIECE_BYTES */
    struct kvf_piece piece; /* its parts in front lose what is done */
};

struct kvf_writer {
    struct kvf_store *store;
    pthread_t thread;
    bool started;
    int wake_fd;
    struct kvf_ring *ring;
    struct kvf_ring *spare; /* for when it breaks */
    int open_error;
    sem_t ready;
    struct kvf_spool *spools;
    size_t next_spool;
    struct write *writes;
    uint8_t *
        staging; /* of all writes, on huge pages where there are any; takes memory only where it was used */
    struct write *idle;
    struct write *again; /* to be given to the ring once more */
    bool gathered;       /* the last piece was copied together */

    /* under store->lock */
    bool sleeping;
    bool stop;
};

/* ---- pieces ---- */

/* The idle one that was just looked at. */
static struct write *take_write(struct kvf_writer *writer, struct kvf_batch *batch)
{
    struct write *write = writer->idle;
    writer->idle = write->next;
    write->batch = batch;
    write->io = (struct kvf_io){.fd = batch->segment->fd, .buffer = -1};
    write->done = 0;
    write->first_part = write->retries = 0;
    batch->in_flight++;
    batch->spool->pieces_in_flight++;
    return write;
}

static void aim_read(struct write *write)
{
    write->io.memory = write->staging + write->done;
    write->io.offset = write->piece.from_offset + write->done;
    write->io.bytes = write->piece.bytes - write->done;
}

static void aim_write(struct write *write)
{
    write->io.parts = write->piece.parts + write->first_part;
    write->io.part_count = write->piece.part_count - write->first_part;
    write->io.offset = write->piece.offset + write->done;
    write->io.bytes = write->piece.bytes - write->done;
}

/* (Re)fill the request from what is not done yet. */
static void aim(struct write *write)
{
    if (write->io.kind == KVF_IO_READ)
        aim_read(write);
    else if (write->io.kind == KVF_IO_WRITE)
        aim_write(write);
}

/* From many places in memory a drive would see as many short runs, and the kernel pins each: one copy costs less. */
static bool gather(struct write *write)
{
    struct kvf_piece *piece = &write->piece;
    uint8_t *at = write->staging;
    if (piece->part_count <= PARTS_MAX)
        return false;
    for (unsigned i = 0; i < piece->part_count; i++) {
        memcpy(at, piece->parts[i].iov_base, piece->parts[i].iov_len);
        at += piece->parts[i].iov_len;
    }
    piece->parts[0] = (struct iovec){.iov_base = write->staging, .iov_len = piece->bytes};
    piece->part_count = 1;
    return true;
}

static void start_piece(struct kvf_writer *writer, struct write *write)
{
    bool copied = write->piece.from_fd >= 0;
    writer->gathered = gather(write);
    write->io.kind = copied ? KVF_IO_READ : KVF_IO_WRITE;
    if (copied)
        write->io.fd = write->piece.from_fd;
    aim(write);
}

/* What is to be copied was read, or could not be: then it is zeros, which do not match its checksum. */
static void start_copy(struct write *write, int error)
{
    struct kvf_piece *piece = &write->piece;
    if (error != 0) {
        memset(write->staging, 0, piece->bytes);
        kvf_batch_spoil(write->batch, piece, error);
    }
    piece->parts[0] = (struct iovec){.iov_base = write->staging, .iov_len = piece->bytes};
    piece->part_count = 1;
    write->done = 0;
    write->retries = 0;
    write->io.kind = KVF_IO_WRITE;
    write->io.fd = write->batch->segment->fd;
    aim(write);
}

static void advance(struct write *write, uint64_t bytes)
{
    write->done += bytes;
    while (write->io.kind == KVF_IO_WRITE && bytes > 0) {
        struct iovec *part = &write->piece.parts[write->first_part];
        uint64_t here = bytes < part->iov_len ? bytes : part->iov_len;
        part->iov_base = (uint8_t *)part->iov_base + here;
        part->iov_len -= here;
        bytes -= here;
        write->first_part += part->iov_len == 0;
    }
}

/* Give out one piece or one fdatasync of this batch. */
static bool give_out(struct kvf_writer *writer, struct kvf_batch *batch)
{
    struct kvf_spool *spool = batch->spool;
    if (batch->state != KVF_BATCH_WRITING && batch->state != KVF_BATCH_WRITTEN)
        return false;
    if (spool->pieces_in_flight >= PIECES_PER_DRIVE || writer->idle == NULL ||
        writer->ring->engine->room(writer->ring) == 0)
        return false;
    if (batch->state == KVF_BATCH_WRITING && kvf_batch_next_piece(batch, &writer->idle->piece)) {
        struct write *write = take_write(writer, batch);
        start_piece(writer, write);
        writer->ring->engine->add(writer->ring, &write->io);
        return true;
    }
    if (!kvf_spool_may_sync(spool, batch) || batch->error != 0)
        return false;
    struct write *write = take_write(writer, batch);
    write->io.kind = KVF_IO_SYNC;
    batch->state = KVF_BATCH_SYNCING;
    writer->ring->engine->add(writer->ring, &write->io);
    return true;
}

static bool give_out_spool(struct kvf_writer *writer, struct kvf_spool *spool)
{
    bool given = give_out(writer, &spool->service);
    for (unsigned age = 0; age < KVF_GROUPS_UNDER_WAY && !given; age++)
        given = give_out(writer, kvf_spool_group(spool, age));
    return given;
}

/* What has to be asked once more; then in turns over the drives, one piece each. A piece that was copied together goes to
 * the kernel before the next one is copied, so that the drive is busy meanwhile. */
static void give_out_all(struct kvf_writer *writer)
{
    while (writer->again != NULL && writer->ring->engine->room(writer->ring) > 0) {
        struct write *write = writer->again;
        writer->again = write->next;
        writer->ring->engine->add(writer->ring, &write->io);
    }
    size_t without = 0, count = writer->store->drive_count;
    writer->gathered = false;
    while (without < count && !writer->gathered) {
        struct kvf_spool *spool = &writer->spools[writer->next_spool];
        writer->next_spool = (writer->next_spool + 1) % count;
        without = give_out_spool(writer, spool) ? 0 : without + 1;
    }
}

/* True when the request is over: *error 0 or an errno. */
static bool judge(struct write *write, int *error)
{
    int result = write->io.result;
    *error = 0;
    bool passing = result == -EAGAIN || result == -EINTR || result == -EBUSY;
    if (result < 0 && !passing) {
        *error = -result;
        return true;
    }
    if (write->io.kind == KVF_IO_SYNC && result >= 0)
        return true;
    uint64_t put = result > 0 ? (uint64_t)result & ~(KVF_PAGE - 1) : 0;
    advance(write, put);
    write->retries = put > 0 ? 0 : write->retries + 1;
    if (write->io.kind != KVF_IO_SYNC && write->done == write->piece.bytes)
        return true;
    if (write->retries <= RETRIES_MAX)
        return false;
    *error = result < 0 ? -result : EIO;
    return true;
}

static void finish_write(struct kvf_writer *writer, struct write *write, int error)
{
    struct kvf_batch *batch = write->batch;
    struct kvf_spool *spool = batch->spool;
    bool synced = write->io.kind == KVF_IO_SYNC;
    batch->in_flight--;
    spool->pieces_in_flight--;
    write->next = writer->idle;
    writer->idle = write;
    if (error != 0 && batch->error == 0)
        batch->error = error;
    if (batch->error != 0 || batch->in_flight > 0)
        return; /* step() ends it once everything is back */
    if (synced)
        kvf_spool_end_batch(spool, batch);
    else if (kvf_batch_is_out(batch))
        batch->state = KVF_BATCH_WRITTEN;
}

static void count(struct kvf_writer *writer, struct kvf_drive_stats *stats, const struct kvf_io *io)
{
    uint64_t bytes = io->result > 0 ? (uint64_t)io->result : 0;
    (void)pthread_mutex_lock(&writer->store->lock);
    stats->write_device_bytes += io->kind == KVF_IO_WRITE ? bytes : 0;
    stats->read_device_bytes += io->kind == KVF_IO_READ ? bytes : 0;
    stats->write_syncs += io->kind == KVF_IO_SYNC && io->result >= 0;
    (void)pthread_mutex_unlock(&writer->store->lock);
}

static void add_again(struct kvf_writer *writer, struct write *write)
{
    write->next = writer->again;
    writer->again = write;
}

static void handle(struct kvf_writer *writer, struct kvf_io *io)
{
    struct write *write = kvf_container(io, struct write, io);
    int error;
    count(writer, &write->batch->spool->drive->stats, io);
    if (!judge(write, &error)) {
        aim(write);
        add_again(writer, write);
    } else if (io->kind == KVF_IO_READ && write->batch->error == 0) {
        start_copy(write, error);
        add_again(writer, write);
    } else {
        finish_write(writer, write, io->kind == KVF_IO_READ ? 0 : error);
    }
}

/* ---- the thread ---- */

static void step_all(struct kvf_writer *writer)
{
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < writer->store->drive_count; i++)
            again |= kvf_spool_step(&writer->spools[i], writer->spools);
    }
}

static bool writer_is_idle(const struct kvf_writer *writer)
{
    for (size_t i = 0; i < writer->store->drive_count; i++)
        if (!kvf_spool_is_idle(&writer->spools[i]))
            return false;
    return true;
}

/* What the owner has queued since the last round. */
static void take_incoming(struct kvf_writer *writer, bool *stop)
{
    struct kvf_store *store = writer->store;
    (void)pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->drive_count; i++)
        kvf_spool_take_incoming(&writer->spools[i]);
    *stop = writer->stop;
    (void)pthread_mutex_unlock(&store->lock);
}

/* How long may it sleep in the ring now? Not when the owner has queued something since take_incoming. */
static int prepare_sleep(struct kvf_writer *writer, bool *end)
{
    struct kvf_store *store = writer->store;
    int wait_ms = KVF_WAIT_EVER;
    (void)pthread_mutex_lock(&store->lock);
    bool news = false;
    for (size_t i = 0; i < store->drive_count; i++) {
        struct kvf_drive *drive = &store->drives[i];
        drive->writer_waits = kvf_spool_waits(&writer->spools[i]);
        news |= !kvf_list_is_empty(&drive->frees);
        news |= drive->writer_waits &&
                (!kvf_list_is_empty(&drive->incoming) || !kvf_list_is_empty(&drive->carries));
        int spool_ms = kvf_spool_wait_ms(&writer->spools[i]);
        if (wait_ms == KVF_WAIT_EVER || (spool_ms != KVF_WAIT_EVER && spool_ms < wait_ms))
            wait_ms = spool_ms;
    }
    *end = writer->stop && !news && writer_is_idle(writer);
    writer->sleeping = !news && !*end && !writer->gathered;
    (void)pthread_mutex_unlock(&store->lock);
    return news || writer->gathered ? KVF_WAIT_NOT : wait_ms;
}

static unsigned ring_entries(const struct kvf_writer *writer)
{
    return (unsigned)(PIECES_PER_DRIVE * writer->store->drive_count);
}

static void serve(struct kvf_writer *writer)
{
    struct kvf_io *done[DONE_MAX];
    for (bool end = false, stop; !end;) {
        take_incoming(writer, &stop);
        step_all(writer);
        for (size_t i = 0; stop && i < writer->store->drive_count; i++)
            kvf_spool_finish(&writer->spools[i]);
        give_out_all(writer);
        int wait_ms = prepare_sleep(writer, &end);
        if (end)
            return;
        unsigned count = writer->ring->engine->turn(writer->ring, done, DONE_MAX, wait_ms);
        for (unsigned i = 0; i < count; i++)
            handle(writer, done[i]);
        if (writer->ring->engine->is_broken(writer->ring))
            writer->ring = kvf_ring_replace(writer->ring, ring_entries(writer), writer->wake_fd,
                                            &writer->spare);
    }
}

static void *run_writer(void *context)
{
    struct kvf_writer *writer = context;
    writer->open_error =
        writer->store->engine->open(ring_entries(writer), writer->wake_fd, &writer->ring);
    bool failed = writer->open_error != 0;
    (void)sem_post(&writer->ready);
    if (failed)
        return NULL;
    serve(writer);
    writer->ring->engine->close(writer->ring);
    return NULL;
}

static bool writer_init(struct kvf_writer *writer)
{
    size_t drives = writer->store->drive_count;
    writer->spools = calloc(drives, sizeof(*writer->spools));
    writer->writes = calloc(PIECES_PER_DRIVE * drives, sizeof(*writer->writes));
    writer->wake_fd = eventfd(0, EFD_CLOEXEC);
    const size_t staging_bytes = PIECES_PER_DRIVE * drives * KVF_PIECE_BYTES;
    writer->staging = aligned_alloc(HUGE_BYTES, staging_bytes);
    if (writer->staging != NULL)
        (void)madvise(writer->staging, staging_bytes, MADV_HUGEPAGE);
    if (writer->spools == NULL || writer->writes == NULL || writer->staging == NULL ||
        writer->wake_fd < 0 || kvf_engine_pread.open(1, writer->wake_fd, &writer->spare) != 0)
        return false;
    for (size_t i = 0; i < PIECES_PER_DRIVE * drives; i++) {
        writer->writes[i].staging = writer->staging + i * KVF_PIECE_BYTES;
        writer->writes[i].next = writer->idle;
        writer->idle = &writer->writes[i];
    }
    for (size_t i = 0; i < drives; i++)
        if (!kvf_spool_init(&writer->spools[i], writer->store, &writer->store->drives[i]))
            return false;
    return true;
}

struct kvf_status kvf_writer_start(struct kvf_store *store, struct kvf_why *why)
{
    struct kvf_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    store->writer = writer;
    writer->store = store;
    writer->wake_fd = -1;
    if (!writer_init(writer))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, errno);
    kvf_assert(sem_init(&writer->ready, 0, 0) == 0);
    int error = kvf_thread_start(&writer->thread, "kvf-write", run_writer, writer);
    if (error == 0) {
        writer->started = true;
        while (sem_wait(&writer->ready) != 0)
            continue;
        error = -writer->open_error;
    }
    if (error != 0)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, error),
                           "cannot start the writer: %s: raise RLIMIT_MEMLOCK (ulimit -l)",
                           strerror(error));
    return kvf_ok();
}

void kvf_writer_stop(struct kvf_writer *writer)
{
    if (writer == NULL)
        return;
    (void)pthread_mutex_lock(&writer->store->lock);
    writer->stop = true;
    (void)pthread_mutex_unlock(&writer->store->lock);
    if (writer->started) {
        (void)eventfd_write(writer->wake_fd, 1);
        (void)pthread_join(writer->thread, NULL);
        (void)sem_destroy(&writer->ready);
    }
    for (size_t i = 0; writer->spools != NULL && i < writer->store->drive_count; i++)
        kvf_spool_fini(&writer->spools[i]);
    kvf_engine_pread.close(writer->spare);
    if (writer->wake_fd >= 0)
        (void)close(writer->wake_fd);
    free(writer->spools);
    free(writer->writes);
    free(writer->staging);
    free(writer);
}

bool kvf_writer_has_news(struct kvf_writer *writer)
{
    bool wake = writer->sleeping;
    writer->sleeping = false;
    return wake;
}

void kvf_writer_wake(struct kvf_writer *writer)
{
    (void)eventfd_write(writer->wake_fd, 1);
}
