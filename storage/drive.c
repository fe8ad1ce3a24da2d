#include "storage/drive.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define MARKER_NAME "kvferry.store"
#define MARKER_TEMP_NAME "kvferry.store.new"
#define WRITES_END_NS (10 * KVF_NS_PER_S)
#define WRITES_PAUSE_NS (10 * KVF_NS_PER_MS)

void kvf_segment_name(uint32_t number, char name[KVF_SEGMENT_NAME_BYTES])
{
    (void)snprintf(name, KVF_SEGMENT_NAME_BYTES, "segment-%05u", number);
}

static struct kvf_status fail(enum kvf_code code, int error)
{
    return kvf_fail(KVF_MODULE_STORAGE, code, error);
}

/* ---- looking ---- */

static bool may_lie_in_empty_directory(const char *name)
{
    static const char *const names[] = {".", "..", "lost+found", MARKER_TEMP_NAME};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* DENIED with the name of what lies there. */
static struct kvf_status check_empty(const struct kvf_drive *drive, struct kvf_why *why)
{
    int fd = openat(drive->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        int error = errno;
        if (fd >= 0)
            (void)close(fd);
        return kvf_why_set(why, fail(KVF_IO, error),
                           "%s: cannot list it (%s): it must be readable for the daemon's user",
                           drive->path, strerror(error));
    }
    struct kvf_status status = kvf_ok();
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (may_lie_in_empty_directory(entry->d_name))
            continue;
        status = kvf_why_set(
            why, fail(KVF_DENIED, 0),
            "%s: not empty (%.40s) and no kvferry store: give an empty directory of its own",
            drive->path, entry->d_name);
        break;
    }
    (void)closedir(directory);
    return status;
}

static struct kvf_status read_marker(const struct kvf_drive *drive, int fd,
                                     struct kvf_marker *marker, struct kvf_why *why)
{
    uint8_t page[KVF_PAGE];
    ssize_t bytes = pread(fd, page, sizeof(page), 0);
    if (bytes < 0)
        return kvf_why_set(why, fail(KVF_IO, errno),
                           "%s/%s: cannot read it (%s): look at the kernel's log and the drive",
                           drive->path, MARKER_NAME, strerror(errno));
    struct kvf_status status = kvf_marker_decode(page, (size_t)bytes, marker);
    if (status.code == KVF_UNSUPPORTED)
        return kvf_why_set(
            why, status,
            "%s: the store was written by a newer kvferry: use that one, or empty the directory",
            drive->path);
    if (!kvf_is_ok(status))
        return kvf_why_set(
            why, fail(KVF_CORRUPT, 0),
            "%s/%s: damaged, so nothing here can be trusted: empty the directory to start anew",
            drive->path, MARKER_NAME);
    return kvf_ok();
}

static struct kvf_status look(struct kvf_drive *drive, struct kvf_marker *marker,
                              struct kvf_why *why)
{
    int fd = openat(drive->directory_fd, MARKER_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        KVF_TRY(check_empty(drive, why));
        drive->created = true;
        return kvf_ok();
    }
    if (fd < 0)
        return kvf_why_set(why, fail(KVF_IO, errno),
                           "%s/%s: cannot open it (%s): it must be readable for the daemon's user",
                           drive->path, MARKER_NAME, strerror(errno));
    struct kvf_status status = read_marker(drive, fd, marker, why);
    (void)close(fd);
    drive->was_old = kvf_is_ok(status) && marker->version < KVF_FORMAT_VERSION;
    return status;
}

static struct kvf_status lock(struct kvf_drive *drive, const char *path, struct kvf_why *why)
{
    drive->directory_fd = -1;
    drive->path = strdup(path);
    if (drive->path == NULL)
        return fail(KVF_NO_MEMORY, 0);
    drive->directory_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (drive->directory_fd < 0)
        return kvf_why_set(why, fail(KVF_IO, errno),
                           "%s: %s: make the directory, writable for the daemon's user", path,
                           strerror(errno));
    if (flock(drive->directory_fd, LOCK_EX | LOCK_NB) != 0)
        return kvf_why_set(
            why, fail(errno == EWOULDBLOCK ? KVF_BUSY : KVF_IO, errno),
            errno == EWOULDBLOCK
                ? "%s: in use by another daemon, or named twice: stop that one, or name each drive "
                  "once"
                : "%s: the filesystem cannot lock it: use a local one, such as ext4 or xfs",
            path);
    return kvf_ok();
}

struct kvf_status kvf_drive_lock(struct kvf_drive *drive, const char *path,
                                 struct kvf_marker *marker, struct kvf_why *why)
{
    *marker = (struct kvf_marker){0};
    KVF_TRY(lock(drive, path, why));
    if (faccessat(drive->directory_fd, ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0)
        return kvf_why_set(why, fail(KVF_IO, errno),
                           "%s: %s: it must be writable for the daemon's user", path,
                           strerror(errno));
    return look(drive, marker, why);
}

struct kvf_status kvf_drive_lock_to_read(struct kvf_drive *drive, const char *path,
                                         struct kvf_marker *marker, struct kvf_why *why)
{
    *marker = (struct kvf_marker){0};
    KVF_TRY(lock(drive, path, why));
    KVF_TRY(look(drive, marker, why));
    if (drive->created)
        return kvf_why_set(why, fail(KVF_INVALID, 0),
                           "%s: holds no kvferry store: name the directory that a daemon used",
                           path);
    drive->uuid = marker->uuid;
    drive->segment_bytes = marker->segment_bytes;
    drive->segment_count = (uint32_t)marker->segment_count;
    return kvf_ok();
}

/* Looking leaves no trace: without the owner's rights the access time may move. */
int kvf_drive_open_to_read(const struct kvf_drive *drive, uint32_t number)
{
    static const int extra[] = {O_DIRECT | O_NOATIME, O_DIRECT, 0};
    char name[KVF_SEGMENT_NAME_BYTES];
    int fd = -1;
    kvf_segment_name(number, name);
    for (size_t i = 0; i < sizeof(extra) / sizeof(extra[0]) && fd < 0; i++) {
        fd = openat(drive->directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | extra[i]);
        if (fd < 0 && errno != EINVAL && errno != EPERM)
            break;
    }
    return fd >= 0 ? fd : -errno;
}

struct kvf_status kvf_drive_check(const struct kvf_drive *drive, const struct kvf_marker *marker,
                                  struct kvf_why *why)
{
    const uint64_t segment_bytes = drive->segment_bytes;
    if (drive->created || drive->was_old)
        return kvf_ok();
    if (marker->segment_bytes != segment_bytes)
        return kvf_why_set(why, fail(KVF_INVALID, 0),
                           "%s: the store has segments of %llu bytes, not %llu: empty the "
                           "directory to change that",
                           drive->path, (unsigned long long)marker->segment_bytes,
                           (unsigned long long)segment_bytes);
    if (marker->segment_count > drive->segment_count)
        return kvf_why_set(why, fail(KVF_INVALID, 0),
                           "%s: the store has %llu MiB and cannot shrink to %llu: ask for at least "
                           "as much, or empty "
                           "the directory",
                           drive->path,
                           (unsigned long long)(marker->segment_count * segment_bytes / KVF_MIB),
                           (unsigned long long)(drive->segment_count * segment_bytes / KVF_MIB));
    return kvf_ok();
}

/* ---- making ---- */

/* By another name, then renamed: there is always one whole marker. */
static int write_marker(const struct kvf_drive *drive, const struct kvf_marker *marker)
{
    uint8_t page[KVF_PAGE];
    kvf_marker_encode(marker, page);
    int fd = openat(drive->directory_fd, MARKER_TEMP_NAME,
                    O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    int error = 0;
    ssize_t written = pwrite(fd, page, sizeof(page), 0);
    if (written != (ssize_t)sizeof(page))
        error = written < 0 ? errno : ENOSPC;
    if (error == 0 && fsync(fd) != 0)
        error = errno;
    (void)close(fd);
    if (error == 0 &&
        renameat(drive->directory_fd, MARKER_TEMP_NAME, drive->directory_fd, MARKER_NAME) != 0)
        error = errno;
    if (error == 0 && fsync(drive->directory_fd) != 0)
        error = errno;
    if (error != 0)
        (void)unlinkat(drive->directory_fd, MARKER_TEMP_NAME, 0);
    return error;
}

static struct kvf_status save_marker(const struct kvf_drive *drive, const struct kvf_marker *marker,
                                     struct kvf_why *why)
{
    int error = write_marker(drive, marker);
    if (error == 0)
        return kvf_ok();
    return kvf_why_set(why, kvf_io_status(error),
                       "%s/%s: cannot write it (%s): look at the kernel's log and the drive",
                       drive->path, MARKER_NAME, strerror(error));
}

/* Segment files of an older format, or left by a start that was killed. */
static void remove_segments_from(const struct kvf_drive *drive, uint32_t first)
{
    int fd = openat(drive->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        unsigned number;
        char end;
        if (sscanf(entry->d_name, "segment-%9u%c", &number, &end) == 1 && number >= first)
            (void)unlinkat(drive->directory_fd, entry->d_name, 0);
    }
    (void)closedir(directory);
}

/* What direct I/O needs of addresses, lengths and offsets; 0: the kernel says that there is none here. */
static uint32_t direct_alignment(int fd)
{
    struct statx file;
    memset(&file, 0, sizeof(file));
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &file) != 0 ||
        (file.stx_mask & STATX_DIOALIGN) == 0)
        return KVF_PAGE; /* an older kernel, or a filesystem that does not say */
    if (file.stx_dio_mem_align == 0 || file.stx_dio_offset_align == 0)
        return 0;
    return file.stx_dio_mem_align > file.stx_dio_offset_align ? file.stx_dio_mem_align
                                                              : file.stx_dio_offset_align;
}

/* Where O_DIRECT is refused the page cache it is. */
static int open_segment_file(struct kvf_drive *drive, const char *name, uint32_t *alignment)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    if (drive->direct) {
        int fd = openat(drive->directory_fd, name, flags | O_DIRECT, 0600);
        if (fd < 0 && errno != EINVAL)
            return -1;
        *alignment = fd >= 0 ? direct_alignment(fd) : 0;
        if (*alignment != 0)
            return fd;
        if (fd >= 0)
            (void)close(fd);
        drive->direct = false;
    }
    return openat(drive->directory_fd, name, flags, 0600);
}

/* A daemon that was killed has left the directory at once, but the kernel may still be writing for it, and holds the
 * segment's file until that has ended. What it writes must not land behind what we have read, or upon what we append. */
static struct kvf_status wait_for_writes(const struct kvf_drive *drive, int fd, const char *name,
                                         struct kvf_why *why)
{
    uint64_t end_ns = kvf_clock_now_ns() + WRITES_END_NS;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return kvf_why_set(why, fail(KVF_IO, errno),
                               "%s/%s: the filesystem cannot lock it: use a local one, such as "
                               "ext4 or xfs",
                               drive->path, name);
        if (kvf_clock_now_ns() >= end_ns)
            return kvf_why_set(why, fail(KVF_BUSY, 0),
                               "%s/%s: what the daemon before was writing has not ended: look at "
                               "the kernel's log and the drive, then start again",
                               drive->path, name);
        (void)nanosleep(&(struct timespec){.tv_nsec = WRITES_PAUSE_NS}, NULL);
    }
    return kvf_ok();
}

static struct kvf_status open_segment(struct kvf_drive *drive, struct kvf_segment *segment,
                                      struct kvf_why *why)
{
    char name[KVF_SEGMENT_NAME_BYTES];
    uint32_t alignment = 0;
    kvf_segment_name(segment->number, name);
    segment->fd = open_segment_file(drive, name, &alignment);
    if (segment->fd < 0)
        return kvf_why_set(why, fail(KVF_IO, errno), "%s/%s: %s%s", drive->path, name,
                           strerror(errno),
                           errno == EMFILE ? ": raise the limit of open files (ulimit -n)"
                                           : ": look at the kernel's log and the drive");
    KVF_TRY(wait_for_writes(drive, segment->fd, name, why));
    /* Everything here is aligned to pages: address, length and offset. */
    if (alignment != 0 && KVF_PAGE % alignment != 0)
        return kvf_why_set(
            why, fail(KVF_UNSUPPORTED, 0),
            "%s: direct I/O there is in units of %u bytes, and ours are of %u: use a "
            "drive and filesystem with blocks of 4 KiB or less",
            drive->path, alignment, (unsigned)KVF_PAGE);
    struct stat file;
    if (fstat(segment->fd, &file) != 0 || !S_ISREG(file.st_mode))
        return kvf_why_set(why, fail(KVF_IO, errno),
                           "%s/%s: not a plain file: empty the directory to start anew",
                           drive->path, name);
    if ((uint64_t)file.st_size == drive->segment_bytes)
        return kvf_ok();
    /* New, or its making was interrupted: its header page reads as zeros, that is free. If somebody else cut it, recovery
     * judges what is left. */
    int error = 0;
    if ((uint64_t)file.st_size > drive->segment_bytes &&
        ftruncate(segment->fd, (off_t)drive->segment_bytes) != 0)
        error = errno;
    if (error == 0)
        error = posix_fallocate(segment->fd, 0, (off_t)drive->segment_bytes);
    if (error != 0)
        return kvf_why_set(
            why, kvf_io_status(error),
            "%s: cannot take %llu MiB (%s): free some space or lower the capacity", drive->path,
            (unsigned long long)(drive->segment_count * drive->segment_bytes / KVF_MIB),
            strerror(error));
    return kvf_ok();
}

static struct kvf_status open_segments(struct kvf_drive *drive, struct kvf_why *why)
{
    drive->segments = calloc(drive->segment_count, sizeof(*drive->segments));
    if (drive->segments == NULL)
        return fail(KVF_NO_MEMORY, 0);
    for (uint32_t i = 0; i < drive->segment_count; i++) {
        drive->segments[i].fd = -1;
        drive->segments[i].number = i;
        drive->segments[i].drive = drive->index;
        kvf_list_init(&drive->segments[i].node);
    }
    for (uint32_t i = 0; i < drive->segment_count; i++)
        KVF_TRY(open_segment(drive, &drive->segments[i], why));
    if (fsync(drive->directory_fd) != 0)
        return kvf_why_set(why, kvf_io_status(errno),
                           "%s: cannot sync it (%s): look at the kernel's log and the drive",
                           drive->path, strerror(errno));
    return kvf_ok();
}

/* Asked before the first byte is taken: a preallocation that fails half way fills the drive for everybody until it is
 * undone. The `count` segments do not exist yet. */
static struct kvf_status check_room(const struct kvf_drive *drive, uint64_t count,
                                    struct kvf_why *why)
{
    struct statvfs room;
    if (fstatvfs(drive->directory_fd, &room) != 0)
        return kvf_why_set(
            why, fail(KVF_IO, errno),
            "%s: cannot ask for its free space (%s): look at the kernel's log and the drive",
            drive->path, strerror(errno));
    uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    if (count * drive->segment_bytes <= free_bytes)
        return kvf_ok();
    return kvf_why_set(
        why, fail(KVF_NO_SPACE, ENOSPC),
        "%s: the capacity needs %llu MiB more and %llu are free: free some space or lower "
        "the capacity (--ssd-capacity-mib)",
        drive->path, (unsigned long long)(count * drive->segment_bytes / KVF_MIB),
        (unsigned long long)(free_bytes / KVF_MIB));
}

struct kvf_status kvf_drive_prepare(struct kvf_drive *drive, struct kvf_marker *marker,
                                    uint64_t boot_epoch, struct kvf_why *why)
{
    bool fresh = drive->created || drive->was_old;
    const uint32_t segment_count = drive->segment_count;
    drive->created_first = fresh ? 0 : (uint32_t)marker->segment_count;
    struct statfs filesystem;
    drive->direct = true;
    drive->in_memory =
        fstatfs(drive->directory_fd, &filesystem) == 0 && filesystem.f_type == TMPFS_MAGIC;
    if (fresh || marker->segment_count < segment_count) {
        /* What lies there beyond the marker's count is of an older format or of a start that was killed. */
        remove_segments_from(drive, drive->created_first);
        KVF_TRY(check_room(drive, segment_count - drive->created_first, why));
    }
    if (fresh) {
        if (getrandom(marker->uuid.bytes, sizeof(marker->uuid.bytes), 0) !=
            (ssize_t)sizeof(marker->uuid.bytes))
            return kvf_why_set(why, fail(KVF_IO, errno), "%s: no random numbers: %s", drive->path,
                               strerror(errno));
        marker->segment_count =
            0; /* until they exist: a start that is killed here is simply made again */
    }
    drive->uuid = marker->uuid;
    marker->version = KVF_FORMAT_VERSION;
    marker->segment_bytes = drive->segment_bytes;
    marker->boot_epoch = boot_epoch;
    KVF_TRY(save_marker(drive, marker, why));
    KVF_TRY(open_segments(drive, why));
    if (marker->segment_count == segment_count)
        return kvf_ok();
    marker->segment_count = segment_count;
    return save_marker(drive, marker, why);
}

void kvf_drive_close(struct kvf_drive *drive, bool undo)
{
    for (uint32_t i = 0; drive->segments != NULL && i < drive->segment_count; i++)
        if (drive->segments[i].fd >= 0)
            (void)close(drive->segments[i].fd);
    if (undo && drive->segments != NULL)
        remove_segments_from(drive, drive->created_first);
    if (undo && drive->created && drive->directory_fd >= 0)
        (void)unlinkat(drive->directory_fd, MARKER_NAME, 0);
    if (drive->path != NULL && drive->directory_fd >= 0)
        (void)close(drive->directory_fd);
    free(drive->segments);
    free(drive->path);
    free(drive->rest.index);
    *drive = (struct kvf_drive){.directory_fd = -1};
}
