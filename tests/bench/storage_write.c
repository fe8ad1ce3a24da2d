/* storage_write: appends to an open store until all are durable, beside fio writing as many bytes with as many
 * fdatasyncs.
 *
 *   storage_write DEVICE DIR BLOCK_BYTES PAIRS
 *
 * DIR gets a store, which must not be there yet, and fio's file, which may. Both write over what was written before (the
 * first filling of a preallocated file costs the filesystem more), in pieces of at most 1 MiB, 8 in flight. How often
 * the store syncs is its own affair: its last round says it, and fio syncs as often.
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

#define IO_BYTES KVF_MIB /* the writer's piece */
#define DEPTH 8u         /* and how many it has in flight */

#define ROUND_BYTES (288 * KVF_MIB) /* whole blocks of 9 MiB */
#define ARENA_BYTES                                                                                \
    (72 * KVF_MIB) /* blocks share their memory: a cold page is no matter of the drive's */
#define STRIDE UINT64_C(7919) /* in places of that memory; no divisor of their number */
#define CAPACITY_BYTES (1024 * KVF_MIB)
#define FIO_LOOPS 2u /* over the file: fio counts in whole milliseconds */

struct bench {
    char store_path[512];
    char fio_file[512];
    struct kvf_loop *loop;
    struct kvf_arena arena;
    struct kvf_store *store;
    uint64_t block_bytes;
    uint32_t count, ended;
    uint64_t generation;
    uint64_t syncs; /* of the last round of ours */
    struct kvf_append *appends;
};

static struct bench bench;

/* ---- the store ---- */

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    (void)context;
    kvf_store_free(bench.store, drive, segment, sequence);
}

static void found(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location)
{
    (void)recovery, (void)record, (void)location;
}

static void recovered(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    (void)result;
    *(bool *)recovery->context = true;
}

static void store_open(const char *path)
{
    struct kvf_why why = {.text = ""};
    bool ended = false;
    struct kvf_recovery recovery = {.found = found, .ended = recovered, .context = &ended};
    const struct kvf_arena *arenas[] = {&bench.arena};
    struct kvf_store_options options = {
        .loop = bench.loop,
        .paths = &path,
        .path_count = 1,
        .capacity_bytes = CAPACITY_BYTES,
        .io = KVF_STORE_IO_URING,
        .arenas = arenas,
        .arena_count = 1,
        .reclaim = reclaim,
    };
    if (mkdir(path, 0700) != 0)
        bench_die("%s: %s", path, strerror(errno));
    if (!kvf_is_ok(kvf_store_open(&options, &bench.store, &why)) ||
        !kvf_is_ok(kvf_store_recover(bench.store, &recovery, &why)))
        bench_die("%s", why.text);
    while (!ended)
        kvf_loop_run_once(bench.loop, 1000);
}

/* Blocks that follow each other do not lie beside each other in memory. */
static struct kvf_extent extent_of(uint32_t block)
{
    uint64_t place = block * STRIDE % (ARENA_BYTES / bench.block_bytes);
    return (struct kvf_extent){&bench.arena, place * bench.block_bytes, bench.block_bytes};
}

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    (void)append, (void)location;
    bench_check(status, "append");
    bench.ended++;
}

/* An engine brings the checksum with it, so it is not part of a round. */
static void make_appends(void)
{
    for (uint32_t i = 0; i < bench.count; i++) {
        struct kvf_append *append = &bench.appends[i];
        append->record = (struct kvf_record){
            .namespace = "bench/blocks",
            .length = bench.block_bytes,
            .crc32c = kvf_crc32c(0, kvf_extent_at(extent_of(i)), bench.block_bytes),
        };
        (void)kvf_key_set(&append->record.key, &i, sizeof(i));
        append->extent = extent_of(i);
        append->ended = append_ended;
    }
}

static uint64_t count_syncs(void)
{
    struct kvf_drive_stats stats;
    kvf_store_stats(bench.store, 0, &stats);
    return stats.write_syncs;
}

/* ---- a round of ours ---- */

static double round_ours(void *context)
{
    (void)context;
    uint64_t syncs = count_syncs();
    bench.ended = 0;
    double start = bench_now_s();
    for (uint32_t i = 0; i < bench.count; i++) {
        bench.appends[i].record.generation = (struct kvf_generation){1, ++bench.generation};
        kvf_store_append(bench.store, &bench.appends[i]);
    }
    while (bench.ended < bench.count) {
        if (bench_now_s() - start > 120)
            bench_die("the store took more than 120 s");
        kvf_loop_run_once(bench.loop, 1000);
    }
    double seconds = bench_now_s() - start;
    bench.syncs = count_syncs() - syncs;
    return seconds;
}

/* ---- a round of fio ---- */

static double seconds_of(const char *json)
{
    cJSON *root = cJSON_Parse(json);
    cJSON *job = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "jobs"), 0);
    cJSON *writes = cJSON_GetObjectItem(job, "write");
    double ms = cJSON_GetNumberValue(cJSON_GetObjectItem(writes, "runtime"));
    double bytes = cJSON_GetNumberValue(cJSON_GetObjectItem(writes, "io_bytes"));
    double syncs = cJSON_GetNumberValue(
        cJSON_GetObjectItem(cJSON_GetObjectItem(cJSON_GetObjectItem(job, "sync"), "lat_ns"), "N"));
    if (!(ms > 0) || !(bytes >= (double)(ROUND_BYTES * FIO_LOOPS)) || !(syncs >= 1))
        bench_die("fio said something else than a result: %.200s", json);
    cJSON_Delete(root);
    return ms / 1e3 / FIO_LOOPS;
}

/* With io_uring fio counts what is queued, not what it has written, and syncs up to ten times as often as it is told;
 * with libaio it does as told and is as fast. Its buffers lie on huge pages, as ours do where the kernel has them. */
static double round_fio(void *context)
{
    static char json[1 << 16];
    char command[1024];
    (void)context;
    uint64_t io =
        bench.block_bytes < IO_BYTES && bench.block_bytes > KVF_PAGE ? bench.block_bytes : IO_BYTES;
    uint64_t writes = ROUND_BYTES / io;
    uint64_t every = bench.syncs > 0 ? writes / bench.syncs : 16;
    (void)snprintf(command, sizeof(command),
                   "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=limit --filename='%s' "
                   "--rw=write --overwrite=1 --ioengine=libaio "
                   "--direct=1 --bs=%llu --iodepth=%u --size=%llu --loops=%u --fdatasync=%llu "
                   "--thread --output-format=json",
                   bench.fio_file, (unsigned long long)io, DEPTH, (unsigned long long)ROUND_BYTES,
                   FIO_LOOPS, (unsigned long long)(every > 0 ? every : 1));
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        bench_die("fio: %s", strerror(errno));
    size_t bytes = fread(json, 1, sizeof(json) - 1, pipe);
    json[bytes] = '\0';
    if (pclose(pipe) != 0)
        bench_die("fio failed: install it, or see: %s", command);
    return seconds_of(json);
}

/* How often the last round was synced, and the bytes written for a byte appended since the store was opened. */
static void tell_cost(struct rounds *rounds)
{
    struct kvf_drive_stats stats;
    kvf_store_stats(bench.store, 0, &stats);
    rounds_more(rounds, "\"syncs\": %llu", (unsigned long long)bench.syncs);
    rounds_more(rounds, "\"written\": %.4f",
                (double)stats.write_device_bytes / (double)stats.write_payload_bytes);
}

static void bench_open(const char *directory, uint64_t block_bytes)
{
    if (block_bytes % KVF_PAGE != 0 || block_bytes == 0 || ARENA_BYTES % block_bytes != 0)
        bench_die("BLOCK_BYTES: whole pages, a divisor of %llu", (unsigned long long)ARENA_BYTES);
    (void)snprintf(bench.store_path, sizeof(bench.store_path), "%s/store", directory);
    (void)snprintf(bench.fio_file, sizeof(bench.fio_file), "%s/fio", directory);
    plain_file_make(bench.fio_file, ROUND_BYTES);
    bench.block_bytes = block_bytes;
    bench.count = (uint32_t)(ROUND_BYTES / block_bytes);
    bench.appends = bench_allocate(bench.count * sizeof(*bench.appends));
    bench_check(kvf_loop_create(&bench.loop), "loop");
    bench_check(kvf_arena_create(ARENA_BYTES, 0, false, &bench.arena, NULL), "arena");
    bench_fill(bench.arena.base, ARENA_BYTES, block_bytes);
    make_appends();
    store_open(bench.store_path);
    for (uint64_t done = 0; done < 2 * CAPACITY_BYTES; done += ROUND_BYTES) /* every segment once */
        (void)round_ours(NULL);
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "storage_write", .unit = ROUNDS_GB_PER_S};
    if (argc != 5)
        bench_die("storage_write DEVICE DIR BLOCK_BYTES PAIRS");
    rounds.device = argv[1];
    rounds.block_bytes = bench_number(argv[3]);
    rounds.round_bytes = ROUND_BYTES;
    bench_open(argv[2], rounds.block_bytes);
    rounds_run(&rounds, (unsigned)bench_number(argv[4]), round_ours, round_fio, NULL, NULL);
    tell_cost(&rounds);
    rounds_print(&rounds);
    kvf_store_close(bench.store);
    return 0;
}
