/* Opening, recovering, counting and closing; reading and appending live in reader.c and writer.c. */
#include "storage/core.h"
#include "storage/drive.h"
#include "storage/reader.h"
#include "storage/recover.h"
#include "storage/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Where the caller leaves the choice to us: two of the largest blocks, with their headers and the index. */
#define MOST_SEGMENT_BYTES (2 * KVF_BLOCK_MAX_BYTES + 4 * KVF_MIB)
#define LEAST_SEGMENT_BYTES (KVF_BLOCK_MAX_BYTES + 2 * KVF_MIB)

/* ---- what is asked for ---- */

static struct kvf_status invalid(struct kvf_why *why, const char *text)
{
    return kvf_why_set(why, kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0), "%s", text);
}

/* Three segments where they fit, so that a small drive keeps most of what it holds while one is being freed. */
static uint64_t default_segment_bytes(uint64_t capacity_bytes)
{
    uint64_t third = capacity_bytes / 3 / KVF_MIB * KVF_MIB;
    uint64_t bytes = third < MOST_SEGMENT_BYTES ? third : MOST_SEGMENT_BYTES;
    return bytes > LEAST_SEGMENT_BYTES ? bytes : LEAST_SEGMENT_BYTES;
}

/* Fill in the defaults and refuse what cannot be. */
static struct kvf_status settle_options(const struct kvf_store_options *asked,
                                        struct kvf_store_options *options, struct kvf_why *why)
{
    *options = *asked;
    uint64_t segment_bytes = asked->segment_bytes != 0
                                 ? asked->segment_bytes
                                 : default_segment_bytes(asked->capacity_bytes);
    options->read_threads = asked->read_threads != 0 ? asked->read_threads : 8;
    options->queue_depth = asked->queue_depth != 0 ? asked->queue_depth : 32;
    options->inflight_bytes = asked->inflight_bytes != 0 ? asked->inflight_bytes : 16 * KVF_MIB;
    options->io_bytes = asked->io_bytes != 0 ? asked->io_bytes : KVF_MIB;
    options->probe_ms = asked->probe_ms != 0 ? asked->probe_ms : 5000;
    if (options->path_count == 0 || options->paths == NULL)
        return invalid(why, "no path is given: name a directory for the SSD store (--ssd-path)");
    if (options->io_bytes % KVF_PAGE != 0 || options->io_bytes > KVF_BLOCK_MAX_BYTES)
        return invalid(
            why,
            "the longest piece of a read must be 4 KiB to 128 MiB, in whole 4 KiB (--ssd-io-kib)");
    if (options->queue_depth > 4096)
        return invalid(
            why, "a ring has at most 4096 entries: lower the queue depth (--ssd-queue-depth)");
    if (options->read_threads > 1024)
        return invalid(why,
                       "more than 1024 reader threads are asked for: lower --ssd-read-threads");
    if (segment_bytes % KVF_PAGE != 0 || segment_bytes < 16 * KVF_PAGE ||
        segment_bytes > KVF_SEGMENT_MAX_BYTES)
        return invalid(why, "segments must have 64 KiB to 1 TiB, in whole 4 KiB");
    if (options->capacity_bytes / segment_bytes < 2)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0),
                           "a capacity of %llu MiB is less than two segments: give at least %llu "
                           "(--ssd-capacity-mib)",
                           (unsigned long long)(options->capacity_bytes / KVF_MIB),
                           (unsigned long long)((2 * segment_bytes + KVF_MIB - 1) / KVF_MIB));
    if (options->capacity_bytes / segment_bytes > KVF_SEGMENTS_MAX)
        return invalid(
            why, "a path takes at most 65536 segments: lower the capacity (--ssd-capacity-mib)");
    return kvf_ok();
}

/* ---- the engine ---- */

static int forbidding_sysctl(void)
{
    char text[8] = "0";
    int fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    return bytes > 0 ? text[0] - '0' : 0;
}

/* In words, why the kernel says `error` when a ring is opened. */
static const char *why_forbidden(int error)
{
    if (error == EPERM && forbidding_sysctl() > 0)
        return "io_uring is forbidden by the sysctl kernel.io_uring_disabled";
    if (error == EPERM || error == EACCES)
        return "io_uring is forbidden by a seccomp profile or security module: allow "
               "io_uring_setup, io_uring_enter, "
               "io_uring_register";
    if (error == ENOSYS)
        return "io_uring is hidden by a seccomp profile or missing in this kernel";
    if (error == ENOMEM)
        return "io_uring finds no lockable memory: raise RLIMIT_MEMLOCK (ulimit -l)";
    return "io_uring does not start";
}

/* 0 or an errno. */
static int probe_uring(void)
{
    struct kvf_ring *ring;
    int wake_fd = eventfd(0, EFD_CLOEXEC);
    if (wake_fd < 0)
        return errno;
    int error = kvf_engine_uring.open(4, wake_fd, &ring);
    if (error == 0)
        kvf_engine_uring.close(ring);
    (void)close(wake_fd);
    return -error;
}

/* *note: why it is not io_uring, for kvf_store_io_text. */
static struct kvf_status choose_engine(enum kvf_store_io io, const struct kvf_engine **engine,
                                       const char **note, struct kvf_why *why)
{
    *engine = &kvf_engine_pread;
    *note = "as asked for";
    if (io == KVF_STORE_IO_PREAD)
        return kvf_ok();
    int error = probe_uring();
    if (error == 0) {
        *engine = &kvf_engine_uring;
        return kvf_ok();
    }
    *note = why_forbidden(error);
    if (io == KVF_STORE_IO_AUTO)
        return kvf_ok();
    return kvf_why_set(why, kvf_fail(KVF_MODULE_STORAGE, KVF_UNSUPPORTED, error),
                       "%s (%s); or start with --ssd-io auto", *note, strerror(error));
}

KVF_PRINTF(2, 3)
static void say(struct kvf_store *store, const char *format, ...)
{
    size_t used = strlen(store->io_text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(store->io_text + used, sizeof(store->io_text) - used, format, arguments);
    va_end(arguments);
}

static void say_io(struct kvf_store *store, const char *note)
{
    char buffers[256];
    if (store->engine == &kvf_engine_pread) {
        say(store, "pread: %s", note);
    } else {
        kvf_readers_text(store->readers, buffers, sizeof(buffers));
        say(store, "io_uring, %s", buffers);
    }
    for (size_t i = 0; i < store->drive_count; i++) {
        const struct kvf_drive *drive = &store->drives[i];
        if (drive->was_old)
            say(store, "; %.100s held an older format and starts empty", drive->path);
        if (!drive->direct)
            say(store, "; %.100s refuses O_DIRECT and goes through the page cache", drive->path);
        if (drive->in_memory)
            say(store, "; %.100s is a tmpfs: memory that a reboot empties", drive->path);
    }
}

/* ---- opening ---- */

/* A store that is there already keeps its segments' size, unless the caller names one. */
static struct kvf_status choose_geometry(struct kvf_drive *drive, const struct kvf_marker *marker,
                                         const struct kvf_store_options *options,
                                         struct kvf_why *why)
{
    drive->segment_bytes = options->segment_bytes;
    if (drive->segment_bytes == 0 && !drive->created && !drive->was_old)
        drive->segment_bytes = marker->segment_bytes;
    if (drive->segment_bytes == 0)
        drive->segment_bytes = default_segment_bytes(options->capacity_bytes);
    drive->segment_count = (uint32_t)(options->capacity_bytes / drive->segment_bytes);
    return kvf_drive_check(drive, marker, why);
}

static struct kvf_status open_drives(struct kvf_store *store, struct kvf_marker *markers,
                                     struct kvf_why *why)
{
    const struct kvf_store_options *options = &store->options;
    uint64_t epoch = 0;
    for (size_t i = 0; i < store->drive_count; i++) {
        KVF_TRY(kvf_drive_lock(&store->drives[i], options->paths[i], &markers[i], why));
        epoch = markers[i].boot_epoch > epoch ? markers[i].boot_epoch : epoch;
    }
    for (size_t i = 0; i < store->drive_count; i++)
        KVF_TRY(choose_geometry(&store->drives[i], &markers[i], options, why));
    store->boot_epoch = epoch + 1;
    for (size_t i = 0; i < store->drive_count; i++)
        KVF_TRY(kvf_drive_prepare(&store->drives[i], &markers[i], store->boot_epoch, why));
    return kvf_ok();
}

static void stop_threads(struct kvf_store *store)
{
    kvf_readers_stop(store->readers);
    kvf_writer_stop(store->writer);
    store->readers = NULL;
    store->writer = NULL;
}

static void close_all(struct kvf_store *store, bool undo)
{
    stop_threads(store);
    for (size_t i = 0; store->drives != NULL && i < store->drive_count; i++)
        kvf_drive_close(&store->drives[i], undo);
    (void)pthread_mutex_destroy(&store->lock);
    free(store->tails);
    free(store->drives);
    free(store);
}

static struct kvf_status create(const struct kvf_store_options *options,
                                const struct kvf_engine *engine, struct kvf_store **give)
{
    struct kvf_store *store = calloc(1, sizeof(*store));
    if (store == NULL)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    kvf_assert(pthread_mutex_init(&store->lock, NULL) == 0);
    store->loop = options->loop;
    store->options = *options;
    store->engine = engine;
    store->drive_count = options->path_count;
    kvf_list_init(&store->asks);
    store->drives = calloc(store->drive_count, sizeof(*store->drives));
    store->tails = calloc(store->drive_count, sizeof(struct kvf_read *));
    if (store->drives == NULL || store->tails == NULL) {
        close_all(store, false);
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    }
    for (size_t i = 0; i < store->drive_count; i++) {
        struct kvf_drive *drive = &store->drives[i];
        drive->index = (uint32_t)i;
        drive->directory_fd = -1;
        kvf_list_init(&drive->turns[0]);
        kvf_list_init(&drive->turns[1]);
        kvf_list_init(&drive->incoming);
        kvf_list_init(&drive->carries);
        kvf_list_init(&drive->frees);
    }
    *give = store;
    return kvf_ok();
}

static struct kvf_status start_threads(struct kvf_store *store, struct kvf_why *why)
{
    KVF_TRY(kvf_readers_start(store, why));
    return kvf_writer_start(store, why);
}

/* The probe may have got its ring and the threads not theirs: rings count against RLIMIT_MEMLOCK (Linux 6.14). */
static struct kvf_status start_threads_somehow(struct kvf_store *store, const char **note,
                                               struct kvf_why *why)
{
    struct kvf_status status = start_threads(store, why);
    if (status.code != KVF_NO_MEMORY || status.detail != ENOMEM ||
        store->engine != &kvf_engine_uring || store->options.io != KVF_STORE_IO_AUTO)
        return status;
    stop_threads(store);
    store->engine = &kvf_engine_pread;
    *note = why_forbidden(ENOMEM);
    return start_threads(store, why);
}

static struct kvf_status open_with(const struct kvf_store_options *asked,
                                   const struct kvf_engine *engine, const char *note,
                                   struct kvf_store **give, struct kvf_why *why)
{
    struct kvf_store_options options;
    struct kvf_store *store = NULL;
    if (why != NULL)
        why->text[0] = '\0';
    KVF_TRY(settle_options(asked, &options, why));
    struct kvf_marker *markers = calloc(options.path_count, sizeof(*markers));
    struct kvf_status status = markers != NULL ? create(&options, engine, &store)
                                               : kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    if (kvf_is_ok(status))
        status = open_drives(store, markers, why);
    free(markers);
    if (kvf_is_ok(status))
        status = start_threads_somehow(store, &note, why);
    if (!kvf_is_ok(status)) {
        if (store != NULL)
            close_all(store, true);
        return kvf_say_no_memory(status, why);
    }
    say_io(store, note);
    store->options.paths = NULL;
    *give = store;
    return kvf_ok();
}

struct kvf_status kvf_store_open_engine(const struct kvf_store_options *options,
                                        const struct kvf_engine *engine, struct kvf_store **give,
                                        struct kvf_why *why)
{
    return open_with(options, engine, "as asked for", give, why);
}

struct kvf_status kvf_store_open(const struct kvf_store_options *options, struct kvf_store **give,
                                 struct kvf_why *why)
{
    const struct kvf_engine *engine;
    const char *note;
    KVF_TRY(choose_engine(options->io, &engine, &note, why));
    return open_with(options, engine, note, give, why);
}

struct kvf_status kvf_store_recover(struct kvf_store *store, struct kvf_recovery *recovery,
                                    struct kvf_why *why)
{
    kvf_assert(!store->recovered);
    KVF_TRY(kvf_recover_start(store, recovery, why));
    store->recovered = true;
    return kvf_ok();
}

/* ---- asking ---- */

uint64_t kvf_store_boot_epoch(const struct kvf_store *store)
{
    return store->boot_epoch;
}

const char *kvf_store_io_text(const struct kvf_store *store)
{
    return store->io_text;
}

size_t kvf_store_drive_count(const struct kvf_store *store)
{
    return store->drive_count;
}

size_t kvf_store_segment_count(const struct kvf_store *store, size_t drive)
{
    kvf_assert(drive < store->drive_count);
    return store->drives[drive].segment_count;
}

uint64_t kvf_store_carry_bytes(const struct kvf_store *store, size_t drive)
{
    kvf_assert(drive < store->drive_count);
    return kvf_drive_kept_bytes(&store->drives[drive]) - store->drives[drive].segment_bytes / 8;
}

uint64_t kvf_store_segment_used_bytes(const struct kvf_store *store, size_t drive, uint32_t segment)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&store->lock;
    kvf_assert(drive < store->drive_count && segment < store->drives[drive].segment_count);
    (void)pthread_mutex_lock(lock);
    uint64_t bytes = store->drives[drive].segments[segment].used_bytes;
    (void)pthread_mutex_unlock(lock);
    return bytes;
}

void kvf_store_stats(const struct kvf_store *store, size_t index, struct kvf_drive_stats *stats)
{
    kvf_assert(index < store->drive_count);
    const struct kvf_drive *drive = &store->drives[index];
    pthread_mutex_t *lock =
        (pthread_mutex_t *)&store->lock; /* the only thing that a const store changes */
    (void)pthread_mutex_lock(lock);
    *stats = drive->stats;
    stats->path = drive->path;
    stats->capacity_bytes = drive->segment_count * drive->segment_bytes;
    stats->read_only = drive->error != 0;
    stats->recovering = drive->unread_count > 0;
    (void)pthread_mutex_unlock(lock);
}

void kvf_store_close(struct kvf_store *store)
{
    if (store == NULL)
        return;
    kvf_assert(store->recovering == NULL);
    for (size_t i = 0; i < store->drive_count; i++) {
        struct kvf_drive_stats stats;
        kvf_store_stats(store, i, &stats);
        kvf_assert(stats.reads_in_flight == 0 && stats.writes_in_flight == 0);
    }
    close_all(store, false);
}
