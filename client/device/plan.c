/* Parts: where a chunk lies, rows, copies, making. */
#include "client/device/plan.h"

/* ---- where a chunk lies ---- */

struct row {
    uint64_t block_offset, address, width;
};

/* The `at`th chunk in the walk's order, as a row. */
static struct row chunk_at(const struct plan_walk *walk, uint32_t at)
{
    const struct plan *plan = walk->plan;
    const struct kvf_geometry *geometry = plan->cache->geometry;
    uint32_t layer = walk->by_plane ? at % geometry->layers : at / geometry->planes;
    uint32_t plane = walk->by_plane ? at / geometry->layers : at % geometry->planes;
    uint32_t index = layer * geometry->planes + plane;
    uint64_t base = plan->cache->chunks != NULL ? plan->cache->chunks[index]
                                                : plan->cache->base + layer * plan->layer_stride +
                                                      plane * plan->plane_stride;
    return (struct row){.block_offset = index * plan->chunk_bytes,
                        .address = base + walk->page * plan->page_stride,
                        .width = plan->chunk_bytes};
}

/* ---- rows ---- */

/* The chunks from `at` on that touch; *after: the first that does not. */
static struct row row_at(const struct plan_walk *walk, uint32_t at, uint32_t *after)
{
    struct row row = chunk_at(walk, at);
    while (++at < walk->plan->chunks) {
        struct row next = chunk_at(walk, at);
        if (next.block_offset != row.block_offset + row.width ||
            next.address != row.address + row.width)
            break;
        row.width += next.width;
    }
    *after = at;
    return row;
}

/* ---- copies ---- */

/* Whether this row continues the copy; the second one decides the pitches. */
static bool append(struct plan_copy *copy, const struct row *row, uint64_t max_pitch)
{
    if (row->width != copy->width)
        return false;
    if (copy->rows > 1 &&
        (row->block_offset != copy->block_offset + copy->rows * copy->block_pitch ||
         row->address != copy->address + copy->rows * copy->cache_pitch))
        return false;
    if (copy->rows == 1) {
        uint64_t block_pitch = row->block_offset - copy->block_offset;
        uint64_t cache_pitch = row->address - copy->address;
        if (row->block_offset < copy->block_offset || row->address < copy->address ||
            block_pitch < row->width || cache_pitch < row->width || block_pitch > max_pitch ||
            cache_pitch > max_pitch)
            return false;
        copy->block_pitch = block_pitch;
        copy->cache_pitch = cache_pitch;
    }
    copy->rows++;
    return true;
}

struct plan_walk plan_begin(const struct plan *plan, uint64_t page)
{
    return (struct plan_walk){.plan = plan, .page = page, .by_plane = plan->by_plane};
}

bool plan_next(struct plan_walk *walk, struct plan_copy *copy)
{
    uint32_t after;
    if (walk->next >= walk->plan->chunks)
        return false;
    struct row row = row_at(walk, walk->next, &after);
    *copy = (struct plan_copy){.block_offset = row.block_offset,
                               .block_pitch = row.width,
                               .address = row.address,
                               .cache_pitch = row.width,
                               .width = row.width,
                               .rows = 1};
    for (walk->next = after; walk->next < walk->plan->chunks; walk->next = after) {
        row = row_at(walk, walk->next, &after);
        if (!append(copy, &row, walk->plan->max_pitch))
            break;
    }
    return true;
}

/* ---- making ---- */

static uint64_t count_copies(struct plan *plan, bool by_plane)
{
    struct plan_walk walk = plan_begin(plan, 0);
    struct plan_copy copy;
    uint64_t count = 0;
    walk.by_plane = by_plane;
    while (plan_next(&walk, &copy))
        count++;
    return count;
}

static bool has_way(const struct plan *plan)
{
    const struct kvf_geometry *geometry = plan->cache->geometry;
    return plan->page_stride >= plan->chunk_bytes &&
           (plan->cache->chunks != NULL || ((geometry->layers == 1 || plan->layer_stride > 0) &&
                                            (geometry->planes == 1 || plan->plane_stride > 0)));
}

struct kvf_status plan_make(const struct kvf_cache *cache, uint64_t max_pitch, struct plan *plan)
{
    struct kvf_geometry strides = *cache->geometry;
    if ((strides.page_stride | strides.layer_stride | strides.plane_stride) == 0)
        kvf_geometry_page_first(&strides);
    *plan = (struct plan){.cache = cache,
                          .chunk_bytes = kvf_geometry_chunk_bytes(&strides),
                          .chunks = strides.layers * strides.planes,
                          .max_pitch = max_pitch,
                          .page_stride = strides.page_stride,
                          .layer_stride = strides.layer_stride,
                          .plane_stride = strides.plane_stride};
    if (cache->pages == 0 || !has_way(plan))
        return kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    plan->by_plane = strides.planes > 1 && count_copies(plan, true) < count_copies(plan, false);
    return kvf_ok();
}
