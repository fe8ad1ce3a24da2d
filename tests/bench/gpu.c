/* gpu: copies between blocks and a paged cache on a GPU, beside the driver's plain pinned copy of the same bytes; and restores from SSD.
 *
 *   gpu probe             exit 0: there is a device; 77: there is none, and a line says why
 *   gpu copies PAIRS      12 blocks of 9 MiB each way, page-first and layer-first. Limit: a flat copy for each block
 *   gpu restore PAIRS     1 and 12 blocks: from the drive of the daemon at RUN_DIR to a layer-first cache, in ms. Limit: reads of as much from
 *                         PLAIN_FILE, O_DIRECT, 1 MiB, 8 in flight, that nobody receives, and then flat copies
 *
 * From the environment: CUDA_LIBRARY (else libcuda.so.1); for restore RUN_DIR, KVFERRY, PLAIN_FILE, SOURCE_CORE. */
#include "tests/gpu/gpu.h"
#include "tests/bench/daemon.h"
#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS "bench/gpu"
#define BLOCKS 12u
#define PAGES 64u
#define COPY_MS 30000u

struct bench {
    struct gpu gpu;
    struct kvf_geometry geometry;
    struct kvf_cache cache;
    uint64_t block_bytes, flat; /* flat: where plain copies go */
    struct kvf_copy_pair pairs[BLOCKS];
    size_t count;
    enum kvf_copy_direction direction;
    /* restore */
    const char *run_dir;
    struct kvf_client *client;
    struct plain_source source;
    struct kvf_get_block blocks[BLOCKS];
};

static struct bench bench;

static void copy(void)
{
    struct kvf_copy copy = {.direction = bench.direction,
                            .cache = bench.cache,
                            .pairs = bench.pairs,
                            .count = bench.count};
    bench_check(kvf_copy_start(bench.gpu.device, &copy), "kvf_copy_start");
    bench_check(kvf_copy_wait(&copy, COPY_MS), "kvf_copy_wait");
}

static void copy_flat(void)
{
    for (size_t i = 0; i < bench.count; i++)
        gpu_plain(&bench.gpu, bench.direction, bench.flat + i * bench.block_bytes,
                  bench.pairs[i].block, bench.block_bytes);
    gpu_wait(&bench.gpu);
}

static double round_copy(void *context)
{
    double start = bench_now_s();
    (void)context;
    copy();
    return bench_now_s() - start;
}

static double round_flat(void *context)
{
    double start = bench_now_s();
    (void)context;
    copy_flat();
    return bench_now_s() - start;
}

/* ---- copies ---- */

static void use_arena(struct kvf_arena *arena)
{
    gpu_arena(&bench.gpu, BLOCKS * bench.block_bytes, arena);
    bench_fill(arena->base, (size_t)arena->bytes, 1);
    for (size_t i = 0; i < BLOCKS;
         i++) /* pages that do not follow each other, as in a cache that lives */
        bench.pairs[i] =
            (struct kvf_copy_pair){arena->base + i * bench.block_bytes, (i * 23 + 5) % PAGES};
    bench.count = BLOCKS;
}

static void run_copies(unsigned pairs)
{
    static struct rounds rounds;
    static const char *const names[2][2] = {{"gpu_h2d_page", "gpu_h2d_layer"},
                                            {"gpu_d2h_page", "gpu_d2h_layer"}};
    struct kvf_arena arena;
    use_arena(&arena);
    for (unsigned direction = 0; direction < 2; direction++) {
        for (unsigned layer_first = 0; layer_first < 2; layer_first++) {
            if (layer_first)
                kvf_geometry_layer_first(&bench.geometry, PAGES);
            else
                kvf_geometry_page_first(&bench.geometry);
            bench.direction = (enum kvf_copy_direction)direction;
            rounds = (struct rounds){.name = names[direction][layer_first],
                                     .device = "gpu",
                                     .block_bytes = bench.block_bytes,
                                     .round_bytes = BLOCKS * bench.block_bytes,
                                     .unit = ROUNDS_GB_PER_S};
            rounds_run(&rounds, pairs, round_copy, round_flat, NULL, NULL);
            rounds_print(&rounds);
        }
    }
    gpu_arena_free(&bench.gpu, &arena);
}

/* ---- restore ---- */

static void get_from_drive(void)
{
    const struct kvf_get_options options = {.ns = NS, .timeout_ms = DAEMON_TIMEOUT_MS};
    size_t prefix = 0;
    for (size_t i = 0; i < bench.count; i++) {
        bench.blocks[i] = (struct kvf_get_block){.length = bench.block_bytes};
        daemon_key(&bench.blocks[i].key, i);
    }
    bench_check(kvf_get(bench.client, &options, bench.blocks, bench.count, &prefix), "kvf_get");
    if (prefix < bench.count || bench.blocks[0].tier != KVF_TIER_SSD)
        bench_die("not every block came from the drive");
    for (size_t i = 0; i < bench.count; i++)
        bench.pairs[i] = (struct kvf_copy_pair){(void *)(uintptr_t)bench.blocks[i].data, i};
}

static double round_restore(void *context)
{
    (void)context;
    daemon_command(bench.run_dir, "evict", "--dram");
    double start = bench_now_s();
    get_from_drive();
    copy();
    double took = bench_now_s() - start;
    kvf_get_release(bench.client, bench.blocks, bench.count);
    return took;
}

static double round_plain_restore(void *context)
{
    struct kvf_arena *arena = context;
    double reads = plain_reads_only(&bench.source, bench.count * bench.block_bytes);
    for (size_t i = 0; i < bench.count; i++)
        bench.pairs[i].block = arena->base + i * bench.block_bytes;
    double start = bench_now_s();
    copy_flat();
    return reads + bench_now_s() - start;
}

static void pin_daemon(void)
{
    size_t count = kvf_client_arena_count(bench.client);
    struct kvf_range *ranges = bench_allocate(count * sizeof(*ranges));
    for (size_t i = 0; i < count; i++)
        ranges[i].base = kvf_client_arena(bench.client, i, &ranges[i].bytes);
    bench_check(kvf_device_pin(bench.gpu.device, ranges, count), "kvf_device_pin");
    free(ranges);
}

static void run_restore(unsigned pairs)
{
    static const size_t counts[] = {1, BLOCKS};
    static struct rounds rounds;
    struct kvf_arena arena;
    bench.run_dir = bench_setting("RUN_DIR");
    plain_file_make(bench_setting("PLAIN_FILE"), BLOCKS * bench.block_bytes);
    plain_source_start(&bench.source, (int)bench_number(bench_setting("SOURCE_CORE")),
                       BLOCKS * bench.block_bytes, bench_setting("PLAIN_FILE"));
    use_arena(&arena);
    daemon_client(bench.run_dir, &bench.client);
    pin_daemon();
    for (size_t i = 0; i < BLOCKS; i++)
        daemon_put(bench.client, NS, i, bench.block_bytes);
    daemon_command(bench.run_dir, "sync", "--durable");
    kvf_geometry_layer_first(&bench.geometry, PAGES);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        bench.count = counts[i];
        rounds = (struct rounds){.name = "gpu_restore",
                                 .device = "gpu",
                                 .block_bytes = bench.block_bytes,
                                 .round_bytes = bench.count * bench.block_bytes,
                                 .unit = ROUNDS_MS};
        rounds_more(&rounds, "\"blocks\": %zu", bench.count);
        rounds_run(&rounds, pairs, round_restore, round_plain_restore, NULL, &arena);
        rounds_print(&rounds);
    }
    plain_source_stop(&bench.source);
    gpu_arena_free(&bench.gpu, &arena);
}

int main(int argc, char **argv)
{
    struct kvf_why why = {.text = ""};
    if (argc < 2 || (strcmp(argv[1], "probe") != 0 && argc != 3))
        bench_die("usage: gpu probe | gpu copies PAIRS | gpu restore PAIRS");
    struct kvf_status status = gpu_open(getenv("CUDA_LIBRARY"), &bench.gpu, &why);
    if (status.code == KVF_UNSUPPORTED) {
        (void)fprintf(stderr, "gpu: %s\n", why.text);
        return 77;
    }
    bench_check(status, why.text);
    if (argc == 2)
        return 0;
    bench.geometry = gpu_geometry();
    bench.block_bytes = kvf_geometry_block_bytes(&bench.geometry);
    bench.flat = gpu_allocate(&bench.gpu, BLOCKS * bench.block_bytes);
    bench.cache = (struct kvf_cache){.geometry = &bench.geometry,
                                     .pages = PAGES,
                                     .base = gpu_allocate(&bench.gpu, PAGES * bench.block_bytes)};
    if (strcmp(argv[1], "copies") == 0)
        run_copies((unsigned)bench_number(argv[2]));
    else
        run_restore((unsigned)bench_number(argv[2]));
    return 0; /* the process' end gives all of it back */
}
