/* Which copies take a block to its page of a cache: as few as the cache's layout allows. Pure.
 *
 * Chunks that touch, in the block and in the cache, are one row; rows of equal length at equal distances, in both, are one copy. The chunks are
 * taken in the block's order or plane by plane, whichever gives fewer copies. */
#ifndef KVFERRY_CLIENT_DEVICE_PLAN_H
#define KVFERRY_CLIENT_DEVICE_PLAN_H

#include "client/device/device.h"

struct plan_copy {
    uint64_t block_offset,
        block_pitch; /* pitch: from row to row; equals width where there is one row */
    uint64_t address, cache_pitch;
    uint64_t width; /* of a row */
    uint64_t rows;
};

struct plan {
    const struct kvf_cache *cache;
    uint64_t chunk_bytes;
    uint32_t chunks; /* of a block */
    uint64_t max_pitch;
    uint64_t page_stride, layer_stride, plane_stride;
    bool by_plane;
};

/* INVALID: there is no way to the chunks, or pages would overlap. max_pitch: the longest that a 2-D copy takes. Borrows the cache. */
KVF_MUST_USE struct kvf_status plan_make(const struct kvf_cache *cache, uint64_t max_pitch,
                                         struct plan *plan);

/* The copies of one page, one after the other. */
struct plan_walk {
    const struct plan *plan;
    uint64_t page;
    uint32_t next; /* chunk, in the plan's order */
    bool by_plane;
};

struct plan_walk plan_begin(const struct plan *plan, uint64_t page);
/* False: there are no more. */
bool plan_next(struct plan_walk *walk, struct plan_copy *copy);

#endif
