/* storage_read: one read set over an open store, beside fio with the same sizes and the same depth.
 *
 *   storage_read DEVICE DIR BLOCK_BYTES PAIRS
 *
 * DIR gets a store, which must not be there yet, and fio's file, which may. Both read ROUND_BYTES in sequence; the
 * store's bytes land in extents of their own, as a Read's do. fio takes its own time (its start does not count).
 *
 * Parts: the store and its blocks, a round of ours, a round of fio, main. */
#include "base/block.h"
#include "base/crc32c.h"
#include "storage/storage.h"
#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The daemon's own defaults. */
#define READ_THREADS 8u
#define QUEUE_DEPTH 32u
#define INFLIGHT_BYTES (16 * KVF_MIB)
#define IO_BYTES KVF_MIB

#define ROUND_BYTES (288 * KVF_MIB) /* whole blocks of 9 MiB */
#define FIO_LOOPS 2u                /* over the file: fio counts in whole milliseconds */

struct bench {
    char store_path[512];
    char fio_file[512];
    struct kvf_loop *loop;
    struct kvf_arena arena;
    struct kvf_store *store;
    struct kvf_recovery recovery; /* context: NULL once it has ended */
    uint64_t block_bytes;
    uint32_t count, ended;
    struct kvf_append *appends;
    struct kvf_read *reads;
    struct kvf_read **set;
};

static struct bench bench;

/* ---- the store ---- */

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    (void)context, (void)drive, (void)segment, (void)sequence; /* there is room for all */
}

static void found(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location)
{
    (void)recovery, (void)record, (void)location;
}

static void recovered(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    (void)result;
    recovery->context = NULL;
}

static void store_open(const char *path)
{
    struct kvf_why why = {.text = ""};
    const struct kvf_arena *arenas[] = {&bench.arena};
    struct kvf_store_options options = {
        .loop = bench.loop,
        .paths = &path,
        .path_count = 1,
        .capacity_bytes = 1024 * KVF_MIB,
        .io = KVF_STORE_IO_URING,
        .read_threads = READ_THREADS,
        .queue_depth = QUEUE_DEPTH,
        .inflight_bytes = INFLIGHT_BYTES,
        .io_bytes = IO_BYTES,
        .arenas = arenas,
        .arena_count = 1,
        .reclaim = reclaim,
    };
    bench.recovery = (struct kvf_recovery){.found = found, .ended = recovered, .context = &bench};
    if (mkdir(path, 0700) != 0)
        bench_die("%s: %s", path, strerror(errno));
    if (!kvf_is_ok(kvf_store_open(&options, &bench.store, &why)) ||
        !kvf_is_ok(kvf_store_recover(bench.store, &bench.recovery, &why)))
        bench_die("%s", why.text);
    while (bench.recovery.context != NULL)
        kvf_loop_run_once(bench.loop, 1000);
}

static struct kvf_extent extent_of(uint32_t block)
{
    return (struct kvf_extent){&bench.arena, block * bench.block_bytes, bench.block_bytes};
}

static void wait_ended(void)
{
    double start = bench_now_s();
    while (bench.ended < bench.count) {
        if (bench_now_s() - start > 120)
            bench_die("the store took more than 120 s");
        kvf_loop_run_once(bench.loop, 1000);
    }
}

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    bench_check(status, "append");
    bench.reads[append - bench.appends].location = location;
    bench.ended++;
}

static void append_blocks(void)
{
    bench.ended = 0;
    for (uint32_t i = 0; i < bench.count; i++) {
        struct kvf_append *append = &bench.appends[i];
        append->record = (struct kvf_record){
            .namespace = "bench/blocks",
            .generation = {1, i + 1},
            .length = bench.block_bytes,
            .crc32c = kvf_crc32c(0, kvf_extent_at(extent_of(i)), bench.block_bytes),
        };
        (void)kvf_key_set(&append->record.key, &i, sizeof(i));
        append->extent = extent_of(i);
        append->ended = append_ended;
        kvf_store_append(bench.store, append);
    }
    wait_ended();
}

/* ---- a round of ours ---- */

static void read_ended(struct kvf_read *read, struct kvf_status status)
{
    (void)read;
    bench_check(status, "read");
    bench.ended++;
}

static double round_ours(void *context)
{
    (void)context;
    bench.ended = 0;
    double start = bench_now_s();
    for (uint32_t i = 0; i < bench.count; i++) {
        bench.reads[i] = (struct kvf_read){
            .location = bench.reads[i].location,
            .extent = extent_of(i),
            .length = bench.block_bytes,
            .ended = read_ended,
        };
        bench.set[i] = &bench.reads[i];
    }
    struct kvf_read_set set = {.reads = bench.set, .count = bench.count};
    kvf_store_read(bench.store, &set);
    wait_ended();
    return bench_now_s() - start;
}

/* Every block reads back as it was written, into memory that held something else. */
static void check_blocks(void)
{
    memset(bench.arena.base, 0xa5, ROUND_BYTES);
    (void)round_ours(NULL);
    for (uint32_t i = 0; i < bench.count; i++)
        if (kvf_crc32c(0, kvf_extent_at(extent_of(i)), bench.block_bytes) !=
            bench.appends[i].record.crc32c)
            bench_die("block %u came back with other bytes", i);
}

/* ---- a round of fio ---- */

static double seconds_of(const char *json)
{
    cJSON *root = cJSON_Parse(json);
    cJSON *read =
        cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "jobs"), 0), "read");
    double rate = cJSON_GetNumberValue(cJSON_GetObjectItem(read, "bw_bytes"));
    double bytes = cJSON_GetNumberValue(cJSON_GetObjectItem(read, "io_bytes"));
    if (!(rate > 0) || !(bytes >= (double)(ROUND_BYTES * FIO_LOOPS)))
        bench_die("fio said something else than a result: %.200s", json);
    cJSON_Delete(root);
    return (double)ROUND_BYTES / rate;
}

static double round_fio(void *context)
{
    static char json[1 << 16];
    char command[1024];
    (void)context;
    uint64_t io = bench.block_bytes < IO_BYTES ? bench.block_bytes : IO_BYTES;
    uint64_t depth = INFLIGHT_BYTES / io < QUEUE_DEPTH ? INFLIGHT_BYTES / io : QUEUE_DEPTH;
    (void)snprintf(command, sizeof(command),
                   "fio --name=limit --filename='%s' --rw=read --ioengine=io_uring --direct=1 "
                   "--fixedbufs=1 --bs=%llu --iodepth=%llu --size=%llu --loops=%u --invalidate=0 "
                   "--thread --output-format=json",
                   bench.fio_file, (unsigned long long)io, (unsigned long long)depth,
                   (unsigned long long)ROUND_BYTES, FIO_LOOPS);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        bench_die("fio: %s", strerror(errno));
    size_t bytes = fread(json, 1, sizeof(json) - 1, pipe);
    json[bytes] = '\0';
    if (pclose(pipe) != 0)
        bench_die("fio failed: install it, or see: %s", command);
    return seconds_of(json);
}

static void bench_open(const char *directory, uint64_t block_bytes)
{
    if (block_bytes % KVF_PAGE != 0 || block_bytes == 0 || ROUND_BYTES % block_bytes != 0)
        bench_die("BLOCK_BYTES: whole pages, a divisor of %llu", (unsigned long long)ROUND_BYTES);
    (void)snprintf(bench.store_path, sizeof(bench.store_path), "%s/store", directory);
    (void)snprintf(bench.fio_file, sizeof(bench.fio_file), "%s/fio", directory);
    plain_file_make(bench.fio_file, ROUND_BYTES);
    bench.block_bytes = block_bytes;
    bench.count = (uint32_t)(ROUND_BYTES / block_bytes);
    bench.appends = bench_allocate(bench.count * sizeof(*bench.appends));
    bench.reads = bench_allocate(bench.count * sizeof(*bench.reads));
    bench.set = bench_allocate(bench.count * sizeof(*bench.set));
    bench_check(kvf_loop_create(&bench.loop), "loop");
    bench_check(kvf_arena_create(ROUND_BYTES, 0, false, &bench.arena, NULL), "arena");
    bench_fill(bench.arena.base, ROUND_BYTES, block_bytes);
    store_open(bench.store_path);
    append_blocks();
    check_blocks();
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "storage_read", .unit = ROUNDS_GB_PER_S};
    if (argc != 5)
        bench_die("storage_read DEVICE DIR BLOCK_BYTES PAIRS");
    rounds.device = argv[1];
    rounds.block_bytes = bench_number(argv[3]);
    rounds.round_bytes = ROUND_BYTES;
    bench_open(argv[2], rounds.block_bytes);
    rounds_run(&rounds, (unsigned)bench_number(argv[4]), round_ours, round_fio, NULL, NULL);
    rounds_print(&rounds);
    kvf_store_close(bench.store);
    return 0;
}
