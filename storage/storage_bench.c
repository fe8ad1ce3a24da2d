/* How fast blocks come back from a directory: appends them, then reads them all again and again in some sets at once,
 * and prints one line of JSON. For comparison with fio on the same drive.
 *
 *     storage_bench --path DIR [--blocks 64] [--block-bytes 9437184] [--sets 1] [--seconds 5] [--rounds 0]
 *                   [--threads 8] [--depth 32] [--inflight-mib 16] [--io-kib 1024] [--io auto|uring|pread]
 *
 * Each of the sets holds blocks / sets reads and is started again when its last read has ended; `set_ms` is the time
 * from a set's start to that moment. With --rounds every set runs so often and --seconds is not looked at. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/pool.h"
#include "storage/storage.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct block {
    struct kvf_append append;
    struct kvf_read read;
    struct kvf_location location;
    struct set *set;
};

struct set {
    struct bench *bench;
    struct kvf_read_set reads;
    size_t left;
    unsigned long rounds;
    uint64_t started_ns;
};

struct bench {
    const char *path;
    const char *io;
    unsigned long blocks, block_bytes, sets, seconds, rounds, threads, depth, inflight_mib, io_kib;
    struct kvf_loop *loop;
    struct kvf_pool *pool;
    struct kvf_store *store;
    struct block *block;
    struct set *set;
    size_t busy;
    uint64_t end_ns;
    uint64_t bytes;
    uint64_t *set_ns; /* of every set that ended */
    size_t set_count, set_room;
    bool failed;
};

static void fail(struct bench *bench, const char *what, struct kvf_status status)
{
    (void)fprintf(stderr, "%s: %s (%d)\n", what, kvf_code_name(status.code), status.detail);
    bench->failed = true;
}

/* ---- writing ---- */

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    struct block *block = kvf_container(append, struct block, append);
    block->location = location;
    if (!kvf_is_ok(status))
        fail(block->set->bench, "append", status);
    block->set->bench->busy--;
}

static void write_blocks(struct bench *bench)
{
    for (size_t i = 0; i < bench->blocks && !bench->failed; i++) {
        struct block *block = &bench->block[i];
        struct kvf_extent extent;
        block->set = &bench->set[i % bench->sets];
        if (!kvf_is_ok(kvf_pool_alloc(bench->pool, bench->block_bytes, &extent))) {
            bench->failed = true;
            return;
        }
        memset(kvf_extent_at(extent), 0, extent.bytes);
        memset(kvf_extent_at(extent), (int)i + 1, bench->block_bytes);
        block->append = (struct kvf_append){
            .record = {.namespace = "bench/bench",
                       .generation = {.epoch = kvf_store_boot_epoch(bench->store), .counter = i},
                       .length = bench->block_bytes,
                       .crc32c = kvf_crc32c(0, kvf_extent_at(extent), bench->block_bytes)},
            .extent = extent,
            .ended = append_ended,
        };
        (void)kvf_key_set(&block->append.record.key, &i, sizeof(i));
        bench->busy++;
        kvf_store_append(bench->store, &block->append);
    }
    while (bench->busy > 0)
        kvf_loop_run_once(bench->loop, -1);
}

/* ---- reading ---- */

static void start_set(struct set *set)
{
    set->left = set->reads.count;
    set->started_ns = kvf_clock_now_ns();
    set->bench->busy++;
    kvf_store_read(set->bench->store, &set->reads);
}

static void read_ended(struct kvf_read *read, struct kvf_status status)
{
    struct block *block = kvf_container(read, struct block, read);
    struct set *set = block->set;
    struct bench *bench = set->bench;
    if (!kvf_is_ok(status))
        fail(bench, "read", status);
    bench->bytes += read->length;
    if (--set->left > 0)
        return;
    uint64_t now = kvf_clock_now_ns();
    bench->busy--;
    if (bench->set_count < bench->set_room)
        bench->set_ns[bench->set_count++] = now - set->started_ns;
    bool more = bench->rounds > 0 ? ++set->rounds < bench->rounds : now < bench->end_ns;
    if (more && !bench->failed)
        start_set(set);
}

static void read_blocks(struct bench *bench)
{
    struct kvf_read **reads = calloc(bench->blocks, sizeof(struct kvf_read *));
    size_t each = bench->blocks / bench->sets;
    if (reads == NULL)
        abort();
    for (size_t i = 0; i < each * bench->sets; i++) {
        struct block *block = &bench->block[i];
        struct set *set = &bench->set[i / each];
        block->set = set;
        block->read = (struct kvf_read){
            .location = block->location,
            .extent = block->append.extent,
            .length = bench->block_bytes,
            .ended = read_ended,
        };
        reads[i] = &block->read;
        set->reads = (struct kvf_read_set){.reads = reads + i / each * each, .count = each};
    }
    bench->end_ns = kvf_clock_now_ns() + bench->seconds * KVF_NS_PER_S;
    for (size_t i = 0; i < bench->sets; i++)
        start_set(&bench->set[i]);
    while (bench->busy > 0)
        kvf_loop_run_once(bench->loop, -1);
    free(reads);
}

/* ---- the rest ---- */

static void give_back(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    struct bench *bench = context;
    kvf_store_free(bench->store, drive, segment, sequence);
}

/* What an earlier run left is of no use. */
static void forget(void *context, const struct kvf_record *record, struct kvf_location location)
{
    (void)context, (void)record, (void)location;
}

static bool open_store(struct bench *bench)
{
    struct kvf_why why = {""};
    uint64_t bytes = bench->blocks * kvf_round_up_page(bench->block_bytes);
    uint64_t pool_bytes = (bytes + bytes / 8 + 2 * KVF_MIB) & ~(KVF_MIB - 1);
    static const struct kvf_arena *arenas[1024];
    struct kvf_status status = kvf_loop_create(&bench->loop);
    if (kvf_is_ok(status))
        status = kvf_pool_create(pool_bytes, false, &bench->pool, &why);
    for (size_t i = 0; kvf_is_ok(status) && i < kvf_pool_arena_count(bench->pool); i++)
        arenas[i] = kvf_pool_arena(bench->pool, i);
    struct kvf_store_options options = {
        .loop = bench->loop,
        .paths = &bench->path,
        .path_count = 1,
        .capacity_bytes = (bytes / (240 * KVF_MIB) + 4) * 256 * KVF_MIB,
        .io = strcmp(bench->io, "uring") == 0   ? KVF_STORE_IO_URING
              : strcmp(bench->io, "pread") == 0 ? KVF_STORE_IO_PREAD
                                                : KVF_STORE_IO_AUTO,
        .read_threads = (unsigned)bench->threads,
        .queue_depth = (unsigned)bench->depth,
        .inflight_bytes = bench->inflight_mib * KVF_MIB,
        .io_bytes = bench->io_kib << 10,
        .arenas = arenas,
        .reclaim = give_back,
        .context = bench,
    };
    if (kvf_is_ok(status)) {
        options.arena_count = kvf_pool_arena_count(bench->pool);
        status = kvf_store_open(&options, &bench->store, &why);
    }
    if (kvf_is_ok(status))
        status = kvf_store_recover(bench->store, forget, bench, &why);
    if (!kvf_is_ok(status))
        (void)fprintf(stderr, "storage_bench: %s: %s\n", kvf_code_name(status.code), why.text);
    return kvf_is_ok(status);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(struct bench *bench, uint64_t read_ns, uint64_t write_ns)
{
    uint64_t written = bench->blocks * bench->block_bytes;
    qsort(bench->set_ns, bench->set_count, sizeof(bench->set_ns[0]), compare);
    double p50 = (double)bench->set_ns[bench->set_count / 2] / 1e6;
    double p99 = (double)bench->set_ns[bench->set_count * 99 / 100] / 1e6;
    (void)printf("{\"gb_per_s\": %.3f, \"write_gb_per_s\": %.3f, \"set_ms\": {\"p50\": %.4f, "
                 "\"p99\": %.4f, \"n\": %zu}, "
                 "\"blocks\": %lu, \"block_bytes\": %lu, \"sets\": %lu, \"io\": \"%s\"}\n",
                 (double)bench->bytes / (double)read_ns, (double)written / (double)write_ns, p50,
                 p99, bench->set_count, bench->blocks, bench->block_bytes, bench->sets,
                 kvf_store_io_text(bench->store));
}

static bool parse(struct bench *bench, int argc, char **argv)
{
    static const struct option options[] = {
        {"path", 1, NULL, 'p'},    {"blocks", 1, NULL, 'n'},  {"block-bytes", 1, NULL, 'b'},
        {"sets", 1, NULL, 's'},    {"seconds", 1, NULL, 't'}, {"rounds", 1, NULL, 'r'},
        {"threads", 1, NULL, 'T'}, {"depth", 1, NULL, 'd'},   {"inflight-mib", 1, NULL, 'f'},
        {"io-kib", 1, NULL, 'k'},  {"io", 1, NULL, 'i'},      {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        unsigned long number = optarg != NULL ? strtoul(optarg, NULL, 10) : 0;
        switch (c) {
        case 'p':
            bench->path = optarg;
            break;
        case 'n':
            bench->blocks = number;
            break;
        case 'b':
            bench->block_bytes = number;
            break;
        case 's':
            bench->sets = number;
            break;
        case 't':
            bench->seconds = number;
            break;
        case 'r':
            bench->rounds = number;
            break;
        case 'T':
            bench->threads = number;
            break;
        case 'd':
            bench->depth = number;
            break;
        case 'f':
            bench->inflight_mib = number;
            break;
        case 'k':
            bench->io_kib = number;
            break;
        case 'i':
            bench->io = optarg;
            break;
        default:
            return false;
        }
    }
    return bench->path != NULL && bench->block_bytes > 0 &&
           bench->block_bytes <= KVF_BLOCK_MAX_BYTES && bench->sets > 0 &&
           bench->blocks >= bench->sets;
}

int main(int argc, char **argv)
{
    struct bench bench = {.io = "auto",
                          .blocks = 64,
                          .block_bytes = 9 * KVF_MIB,
                          .sets = 1,
                          .seconds = 5,
                          .threads = 8,
                          .depth = 32,
                          .inflight_mib = 16,
                          .io_kib = 1024,
                          .set_room = 1 << 20};
    if (!parse(&bench, argc, argv)) {
        (void)fprintf(
            stderr,
            "usage: storage_bench --path DIR [--blocks N] [--block-bytes N] [--sets N] ...\n");
        return 2;
    }
    bench.block = calloc(bench.blocks, sizeof(*bench.block));
    bench.set = calloc(bench.sets, sizeof(*bench.set));
    bench.set_ns = calloc(bench.set_room, sizeof(*bench.set_ns));
    if (bench.block == NULL || bench.set == NULL || bench.set_ns == NULL || !open_store(&bench))
        return 1;
    for (size_t i = 0; i < bench.sets; i++)
        bench.set[i].bench = &bench;
    uint64_t start_ns = kvf_clock_now_ns();
    write_blocks(&bench);
    uint64_t written_ns = kvf_clock_now_ns();
    if (!bench.failed)
        read_blocks(&bench);
    uint64_t read_ns = kvf_clock_now_ns();
    if (!bench.failed)
        report(&bench, read_ns - written_ns, written_ns - start_ns);
    kvf_store_close(bench.store);
    kvf_pool_destroy(bench.pool, true);
    kvf_loop_destroy(bench.loop);
    free(bench.block);
    free(bench.set);
    free(bench.set_ns);
    return bench.failed;
}
