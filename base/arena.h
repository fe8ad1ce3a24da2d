/* An arena: up to 1 GiB of DRAM in a memfd, sealed against resizing.
 *
 * The daemon creates it; engines map the same memory from the descriptor that travels over engine.sock. Both see one
 * struct, so that an extent has one shape everywhere. Immutable after creation, hence free to use from every thread. */
#ifndef KVFERRY_BASE_ARENA_H
#define KVFERRY_BASE_ARENA_H

#include "base/status.h"

#include <stdint.h>

struct kvf_arena {
    uint8_t *base;  /* this process's mapping, page-aligned */
    uint64_t bytes; /* a multiple of 4 KiB, at most KVF_ARENA_MAX_BYTES */
    uint32_t id;    /* the daemon's number for it, the same in engines */
    int fd;         /* owned */
};

/* A range of an arena. One block = one extent. `bytes` is whole pages; 0 bytes = no extent. */
struct kvf_extent {
    const struct kvf_arena *arena;
    uint64_t offset;
    uint64_t bytes;
};

static inline uint8_t *kvf_extent_at(struct kvf_extent extent)
{
    return extent.arena->base + extent.offset;
}

/* Make one. hugepages: 2 MiB pages, bytes must be a multiple of 2 MiB and the host must have them reserved.
 * Errors: NO_MEMORY with the errno. Gives *arena. */
KVF_MUST_USE struct kvf_status kvf_arena_create(uint64_t bytes, uint32_t id, bool hugepages,
                                                struct kvf_arena *arena, struct kvf_why *why);

/* Map one that somebody else made. Takes fd, also on error. Checks the seals and the size before touching it:
 * INVALID when they are not what an arena has. */
KVF_MUST_USE struct kvf_status kvf_arena_map(int fd, uint64_t bytes, uint32_t id,
                                             struct kvf_arena *arena);

/* Unmap and close; a zeroed struct is fine. */
void kvf_arena_close(struct kvf_arena *arena);

#endif
