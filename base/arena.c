#include "base/arena.h"

#include "base/block.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static struct kvf_status map_whole(struct kvf_arena *arena)
{
    void *base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd, 0);
    if (base == MAP_FAILED)
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, errno);
    arena->base = base;
    return kvf_ok();
}

struct kvf_status kvf_arena_create(uint64_t bytes, uint32_t id, bool hugepages,
                                   struct kvf_arena *arena, struct kvf_why *why)
{
    *arena = (struct kvf_arena){.bytes = bytes, .id = id, .fd = -1};
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugepages ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    struct kvf_status status = kvf_ok();
    kvf_assert(bytes > 0 && bytes % KVF_PAGE == 0 && bytes <= KVF_ARENA_MAX_BYTES);

    arena->fd = memfd_create("kvferry-arena", flags);
    /* Pages are taken now, so that a host without the memory says so here and not by a signal later. */
    int error = arena->fd < 0 ? errno : 0;
    if (error == 0 && ftruncate(arena->fd, (off_t)bytes) != 0)
        error = errno;
    if (error == 0)
        error = posix_fallocate(arena->fd, 0, (off_t)bytes);
    if (error == 0 && fcntl(arena->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0)
        error = errno;
    if (error != 0)
        status = kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, error);
    else
        status = map_whole(arena);
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
