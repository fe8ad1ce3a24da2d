/* index: what the index costs for each block that lies only on SSD, and how long its operations take.
 *
 *   index DIR BLOCKS
 *
 * DIR is for a small store, whose segments the blocks are said to lie in. Keys have 32 bytes. The row's `ours` is the
 * memory of a block as the kernel counts it (RSS), its limit 96 bytes and the key; the other members are the index's
 * own count, and nanoseconds: recover (adding a record), find, miss, pin (unfolding a record and folding it again),
 * reclaim (a record's part of its segment's). longest_1000_us is what the slowest thousand recovers in a row took of
 * the processor: there a growth that stalls would show; longest_reclaim_us, likewise, how long giving a segment back
 * holds the daemon's loop at once. */
#include "server/index.h"
#include "base/loop.h"
#include "base/table.h"
#include "tests/bench/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SEGMENT_BYTES (UINT64_C(64) << 10)
#define SEGMENTS 256u
#define KEY_BYTES 32u
#define MOST_BYTES (96 + KEY_BYTES) /* for a block */
#define LOOKS UINT64_C(1000000)

static struct kvf_loop *loop;
static struct kvf_pool *pool;
static struct kvf_store *store;
static struct kvf_index *index_;

static void freed(void *context)
{
    (void)context;
}

static void none(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    (void)context, (void)drive, (void)segment, (void)sequence;
}

static void found_none(struct kvf_recovery *recovery, const struct kvf_record *record,
                       struct kvf_location location)
{
    (void)recovery, (void)record, (void)location;
    bench_die("the store is not empty");
}

static void recovery_ended(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    (void)result;
    *(bool *)recovery->context = true;
}

static void open_index(const char *directory)
{
    struct kvf_why why = {.text = ""};
    bool ended = false;
    struct kvf_recovery recovery = {
        .found = found_none, .ended = recovery_ended, .context = &ended};
    bench_check(kvf_loop_create(&loop), "loop");
    bench_check(kvf_pool_create(KVF_MIB, false, &pool, NULL), "pool");
    struct kvf_store_options options = {.loop = loop,
                                        .paths = &directory,
                                        .path_count = 1,
                                        .capacity_bytes = SEGMENTS * SEGMENT_BYTES,
                                        .segment_bytes = SEGMENT_BYTES,
                                        .io = KVF_STORE_IO_PREAD,
                                        .read_threads = 1,
                                        .reclaim = none};
    if (!kvf_is_ok(kvf_store_open(&options, &store, &why)) ||
        !kvf_is_ok(kvf_store_recover(store, &recovery, &why)))
        bench_die("%s", why.text);
    while (!ended)
        kvf_loop_run_once(loop, 1000);
    struct kvf_index_options how = {.pool = pool, .store = store, .boot_epoch = 2, .freed = freed};
    bench_check(kvf_index_create(&how, &index_), "index");
}

/* No two blocks of a bench have the same. */
static struct kvf_key key_of(uint64_t block)
{
    struct kvf_key key = {.length = KEY_BYTES};
    for (uint64_t i = 0; i < KEY_BYTES / 8; i++) {
        uint64_t word = kvf_hash(i, &block, sizeof(block));
        memcpy(key.bytes + 8 * i, &word, sizeof(word));
    }
    return key;
}

static void recover(uint64_t block, uint64_t blocks)
{
    struct kvf_record record = {.namespace = "tenant/fingerprint",
                                .key = key_of(block),
                                .generation = {1, block},
                                .length = KVF_MIB,
                                .crc32c = (uint32_t)block};
    struct kvf_location where = {
        .segment = (uint32_t)(block * SEGMENTS / blocks), .sequence = 1, .offset = 2 * KVF_PAGE};
    kvf_index_recovered(index_, &record, where);
}

static uint64_t rss_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*u %llu", &pages) != 1)
        bench_die("/proc/self/statm cannot be read");
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double processor_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Seconds for all; *longest for a thousand. */
static double recover_all(uint64_t blocks, double *longest)
{
    double start = bench_now_s(), before = processor_s();
    *longest = 0;
    for (uint64_t block = 0; block < blocks; block++) {
        recover(block, blocks);
        if (block % 1000 != 999)
            continue;
        double now = processor_s();
        *longest = now - before > *longest ? now - before : *longest;
        before = now;
    }
    return bench_now_s() - start;
}

static double keys_alone(uint64_t blocks)
{
    double start = bench_now_s();
    uint8_t sum = 0;
    for (uint64_t i = 0; i < LOOKS; i++)
        sum ^= key_of(i * 7919 % blocks).bytes[0];
    *(volatile uint8_t *)&sum = sum;
    return bench_now_s() - start;
}

static double find_some(uint64_t blocks, uint64_t first, bool pin)
{
    double start = bench_now_s();
    for (uint64_t i = 0; i < LOOKS; i++) {
        struct kvf_key key = key_of(first + i * 7919 % blocks);
        struct kvf_found found;
        if (kvf_index_find(index_, "tenant/fingerprint", &key, &found) != (first == 0))
            bench_die("the index is wrong about a block");
        if (pin)
            kvf_entry_unpin(index_, kvf_index_pin(index_, &found));
    }
    return bench_now_s() - start;
}

static double reclaim_all(double *longest)
{
    double start = bench_now_s(), before = processor_s();
    *longest = 0;
    for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
        bool more = kvf_index_reclaim(index_, 0, segment, 1, 0, 0);
        for (;; more = kvf_index_sift(index_, 0)) {
            double now = processor_s();
            *longest = now - before > *longest ? now - before : *longest;
            before = now;
            if (!more)
                break;
        }
    }
    return bench_now_s() - start;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        bench_die("usage: index DIR BLOCKS");
    const uint64_t blocks = bench_number(argv[2]);
    const double n = (double)blocks, looks = (double)LOOKS;
    struct kvf_index_stats stats;
    open_index(argv[1]);
    uint64_t before = rss_bytes();
    double longest, longest_reclaim, recover_s = recover_all(blocks, &longest);
    double rss = (double)(rss_bytes() - before) / n;
    kvf_index_get_stats(index_, &stats);
    if (stats.blocks != blocks)
        bench_die("%llu blocks are in the index", (unsigned long long)stats.blocks);
    double keys_s = keys_alone(blocks), find_s = find_some(blocks, 0, false) - keys_s,
           miss_s = find_some(blocks, blocks, false) - keys_s,
           pin_s = find_some(blocks, 0, true) - keys_s - find_s,
           reclaim_s = reclaim_all(&longest_reclaim);
    (void)printf("{\"name\": \"index\", \"device\": \"dram\", \"block_bytes\": %llu, ",
                 (unsigned long long)KVF_MIB);
    (void)printf(
        "\"ours\": %.1f, \"limit\": %u, \"ratio\": %.3f, \"ratio_quartiles\": [%.3f, %.3f], "
        "\"unit\": \"B\", \"n\": %llu, ",
        rss, MOST_BYTES, MOST_BYTES / rss, MOST_BYTES / rss, MOST_BYTES / rss,
        (unsigned long long)blocks);
    (void)printf("\"counted_bytes\": %.1f, \"recover_ns\": %.0f, \"find_ns\": %.0f, "
                 "\"miss_ns\": %.0f, \"pin_ns\": %.0f, \"reclaim_ns\": %.0f, "
                 "\"longest_1000_us\": %.0f, \"longest_reclaim_us\": %.0f}\n",
                 (double)stats.bytes / n, (recover_s / n - keys_s / looks) * 1e9,
                 find_s / looks * 1e9, miss_s / looks * 1e9, pin_s / looks * 1e9,
                 reclaim_s / n * 1e9, longest * 1e6, longest_reclaim * 1e6);
    kvf_index_destroy(index_, false);
    kvf_store_close(store);
    kvf_pool_destroy(pool, false);
    kvf_loop_destroy(loop);
    return 0;
}
