#include "base/arena.h"

#include "base/block.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define HUGE_BYTES (2 * KVF_MIB)
#define COLLAPSE 25 /* MADV_COLLAPSE of kernel 6.1; this libc does not know it yet */

/* At a multiple of 2 MiB, where the kernel can map huge pages. */
static struct kvf_status map_whole(struct kvf_arena *arena)
{
    uint64_t room = arena->bytes + HUGE_BYTES;
    uint8_t *start =
        mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, errno);
    uint64_t before = -(uintptr_t)start % HUGE_BYTES;
    void *base = mmap(start + before, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      arena->fd, 0);
    int error = errno;
    if (base == MAP_FAILED) {
        (void)munmap(start, room);
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, error);
    }
    if (before > 0)
        (void)munmap(start, before);
    (void)munmap(start + before + arena->bytes, HUGE_BYTES - before);
    arena->base = base;
    return kvf_ok();
}

/* As much in huge pages as the host has to give, unreserved: a drive's request names runs of memory, and where they are
 * single pages it runs out of names long before it has its depth (a virtio queue of 256 holds one request of 1 MiB, an
 * NVMe driver cuts it). The kernel needs one page that is there to make the huge one of. Without it all works, slower. */
static void join_pages(const struct kvf_arena *arena)
{
    uint64_t bytes = arena->bytes / HUGE_BYTES * HUGE_BYTES;
    for (uint64_t at = 0; at < bytes; at += HUGE_BYTES)
        if (fallocate(arena->fd, 0, (off_t)at, (off_t)KVF_PAGE) != 0)
            return;
    (void)madvise(arena->base, bytes, COLLAPSE);
}

static int take_pages(const struct kvf_arena *arena, bool hugepages)
{
    if (!hugepages)
        join_pages(arena);
    /* The rest is taken now, so that a host without the memory says so here and not by a signal later. */
    return posix_fallocate(arena->fd, 0, (off_t)arena->bytes);
}

struct kvf_status kvf_arena_create(uint64_t bytes, uint32_t id, bool hugepages,
                                   struct kvf_arena *arena, struct kvf_why *why)
{
    *arena = (struct kvf_arena){.bytes = bytes, .id = id, .fd = -1};
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugepages ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    struct kvf_status status = kvf_ok();
    kvf_assert(bytes > 0 && bytes % KVF_PAGE == 0 && bytes <= KVF_ARENA_MAX_BYTES);

    arena->fd = memfd_create("kvferry-arena", flags);
    int error = arena->fd < 0 ? errno : 0;
    if (error == 0 && ftruncate(arena->fd, (off_t)bytes) != 0)
        error = errno;
    if (error == 0 && fcntl(arena->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0)
        error = errno;
    if (error == 0)
        status = map_whole(arena);
    if (error == 0 && kvf_is_ok(status))
        error = take_pages(arena, hugepages);
    if (error != 0)
        status = kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, error);
    if (kvf_is_ok(status))
        return status;
    kvf_arena_close(arena);
    return kvf_why_set(why, status, "cannot take %llu MiB for an arena: %s",
                       (unsigned long long)(bytes / KVF_MIB),
                       hugepages ? "reserve huge pages (vm.nr_hugepages) or drop --hugepages"
                                 : "lower --pool-mib or give the process more memory");
}

struct kvf_status kvf_arena_map(int fd, uint64_t bytes, uint32_t id, struct kvf_arena *arena)
{
    *arena = (struct kvf_arena){.bytes = bytes, .id = id, .fd = fd};
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0 || bytes == 0 ||
        bytes > KVF_ARENA_MAX_BYTES || (uint64_t)file.st_size != bytes) {
        (void)close(fd);
        *arena = (struct kvf_arena){.fd = -1};
        return kvf_fail(KVF_MODULE_BASE, KVF_INVALID, 0);
    }
    struct kvf_status status = map_whole(arena);
    if (!kvf_is_ok(status))
        kvf_arena_close(arena);
    return status;
}

void kvf_arena_close(struct kvf_arena *arena)
{
    if (arena->base != NULL)
        (void)munmap(arena->base, arena->bytes);
    if (arena->bytes != 0 && arena->fd >= 0)
        (void)close(arena->fd);
    *arena = (struct kvf_arena){.fd = -1};
}
