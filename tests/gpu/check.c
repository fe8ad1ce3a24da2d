/* check: client/device on a real GPU. Every byte of several pages, to the cache and back, in each layout; what is in the cache is read by plain
 * copies, chunk by chunk.
 *
 *   check [LIBRARY]
 *
 * Exit 77 with a line that says why: there is no device here. */
#include "client/cli/pattern.h"
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

#define PAGES 5u
#define EXIT_NO_DEVICE 77

static struct gpu gpu;
static struct kvf_geometry geometry;
static struct kvf_arena arena; /* the blocks, then as much again for what comes back */
static uint64_t block_bytes, chunk_bytes;

static void must(bool right, const char *layout, const char *what)
{
    if (right)
        return;
    (void)fprintf(stderr, "check: %s: %s\n", layout, what);
    exit(1);
}

static uint8_t *block_at(uint64_t page, bool back)
{
    return arena.base + (page + (back ? PAGES : 0)) * block_bytes;
}

static void copy(const char *layout, const struct kvf_cache *cache, bool back, void *after)
{
    struct kvf_copy_pair pairs[PAGES];
    struct kvf_copy copy = {.direction = back ? KVF_COPY_FROM_CACHE : KVF_COPY_TO_CACHE,
                            .cache = *cache,
                            .pairs = pairs,
                            .count = PAGES,
                            .after = after};
    for (uint64_t page = 0; page < PAGES; page++)
        pairs[page] = (struct kvf_copy_pair){block_at(page, back), PAGES - 1 - page};
    struct kvf_status status = kvf_copy_start(gpu.device, &copy);
    if (kvf_is_ok(status))
        status = kvf_copy_wait(&copy, 30000);
    must(kvf_is_ok(status), layout, kvf_device_error(gpu.device, status));
    must(copy.bytes == PAGES * block_bytes, layout, "not every byte was copied");
    (void)printf("%-24s %s %llu calls a block\n", layout, back ? "D2H" : "H2D",
                 (unsigned long long)(copy.calls / PAGES));
}

static uint64_t chunk_at(const struct kvf_cache *cache, uint64_t page, uint32_t layer,
                         uint32_t plane)
{
    uint64_t base = cache->chunks != NULL ? cache->chunks[layer * geometry.planes + plane]
                                          : cache->base + layer * geometry.layer_stride +
                                                plane * geometry.plane_stride;
    return base + page * geometry.page_stride;
}

/* The block as the cache has it. */
static void read_plainly(const struct kvf_cache *cache, uint64_t page, uint8_t *to)
{
    for (uint32_t layer = 0; layer < geometry.layers; layer++)
        for (uint32_t plane = 0; plane < geometry.planes; plane++, to += chunk_bytes)
            gpu_plain(&gpu, KVF_COPY_FROM_CACHE, chunk_at(cache, page, layer, plane), to,
                      chunk_bytes);
    gpu_wait(&gpu);
}

static void compare(const char *layout, const char *what)
{
    for (uint64_t page = 0; page < PAGES; page++)
        must(pattern_compare(pattern_of(1, page), block_at(page, true), (size_t)block_bytes) ==
                 block_bytes,
             layout, what);
    memset(block_at(0, true), 0, (size_t)(PAGES * block_bytes));
}

/* The event of a stream that has produced something, as an engine has. */
static struct CUevent_st *produce(void)
{
    struct CUevent_st *event = NULL;
    must(gpu.driver.event_create(&event, CUDA_EVENT_DISABLE_TIMING_) == CUDA_SUCCESS_ &&
             gpu.driver.event_record(event, gpu.stream) == CUDA_SUCCESS_,
         "event", "cannot be recorded");
    return event;
}

static void round_trip(const char *layout, const struct kvf_cache *cache)
{
    copy(layout, cache, false, NULL);
    for (uint64_t page = 0; page < PAGES; page++)
        read_plainly(cache, PAGES - 1 - page, block_at(page, true));
    compare(layout, "the cache has other bytes");
    struct CUevent_st *event = produce();
    copy(layout, cache, true, event);
    compare(layout, "other bytes came back");
    must(gpu.driver.event_destroy(event) == CUDA_SUCCESS_, layout, "an event cannot be destroyed");
}

static void check_one_allocation(void)
{
    struct kvf_cache cache = {.geometry = &geometry, .pages = PAGES};
    cache.base = gpu_allocate(&gpu, PAGES * block_bytes);
    kvf_geometry_page_first(&geometry);
    round_trip("page-first", &cache);
    kvf_geometry_layer_first(&geometry, PAGES);
    round_trip("layer-first", &cache);
    geometry.layer_stride = PAGES * chunk_bytes;
    geometry.plane_stride = geometry.layers * PAGES * chunk_bytes;
    round_trip("all of K before all of V", &cache);
    gpu_free(&gpu, cache.base);
}

static void check_tensors(void)
{
    uint64_t chunks[72], tensors[36];
    struct kvf_cache cache = {.geometry = &geometry, .pages = PAGES, .chunks = chunks};
    geometry.page_stride = chunk_bytes;
    geometry.layer_stride = geometry.plane_stride = 0;
    for (uint32_t layer = 0; layer < geometry.layers; layer++) {
        tensors[layer] = gpu_allocate(&gpu, 2 * PAGES * chunk_bytes);
        chunks[2 * layer] = tensors[layer];
        chunks[2 * layer + 1] = tensors[layer] + PAGES * chunk_bytes;
    }
    round_trip("a tensor a layer", &cache);
    for (uint32_t layer = 0; layer < geometry.layers; layer++)
        gpu_free(&gpu, tensors[layer]);
}

int main(int argc, char **argv)
{
    struct kvf_why why = {.text = ""};
    struct kvf_status status = gpu_open(argc > 1 ? argv[1] : NULL, &gpu, &why);
    if (!kvf_is_ok(status)) {
        (void)fprintf(stderr, "check: %s\n", why.text);
        return status.code == KVF_UNSUPPORTED ? EXIT_NO_DEVICE : 1;
    }
    (void)printf("on %s\n", kvf_device_name(gpu.device));
    geometry = gpu_geometry();
    chunk_bytes = kvf_geometry_chunk_bytes(&geometry);
    block_bytes = kvf_geometry_block_bytes(&geometry);
    gpu_arena(&gpu, 2 * PAGES * block_bytes, &arena);
    for (uint64_t page = 0; page < PAGES; page++)
        pattern_fill(pattern_of(1, page), block_at(page, false), (size_t)block_bytes);
    struct kvf_range again = {arena.base, arena.bytes};
    must(!kvf_is_ok(kvf_device_pin(gpu.device, &again, 1)), "pin", "twice was not refused");
    check_one_allocation();
    check_tensors();
    gpu_arena_free(&gpu, &arena);
    gpu_close(&gpu);
    return 0;
}
