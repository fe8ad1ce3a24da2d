#include "tests/bench/stored.h"

#include "base/arena.h"
#include "base/crc32c.h"
#include "tests/bench/rounds.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define WAIT_S 120.0

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
    *(bool *)recovery->context = true;
}

static void store_open(struct stored *stored, const struct stored_options *wanted)
{
    struct kvf_why why = {.text = ""};
    bool ended = false;
    struct kvf_recovery recovery = {.found = found, .ended = recovered, .context = &ended};
    const struct kvf_arena *arenas[] = {&stored->arena};
    struct kvf_store_options options = {
        .loop = stored->loop,
        .paths = &wanted->path,
        .path_count = 1,
        .capacity_bytes = 1024 * KVF_MIB,
        .io = KVF_STORE_IO_URING,
        .read_threads = wanted->threads,
        .queue_depth = STORED_DEPTH,
        .inflight_bytes = STORED_INFLIGHT_BYTES,
        .io_bytes = STORED_IO_BYTES,
        .arenas = arenas,
        .arena_count = 1,
        .reclaim = reclaim,
    };
    if (mkdir(wanted->path, 0700) != 0)
        bench_die("%s: %s", wanted->path, strerror(errno));
    if (!kvf_is_ok(kvf_store_open_engine(&options, wanted->engine, &stored->store, &why)) ||
        !kvf_is_ok(kvf_store_recover(stored->store, &recovery, &why)))
        bench_die("%s", why.text);
    while (!ended)
        kvf_loop_run_once(stored->loop, 1000);
}

static struct kvf_extent extent_of(const struct stored *stored, uint32_t block)
{
    return (struct kvf_extent){&stored->arena, block * stored->block_bytes, stored->block_bytes};
}

void stored_wait(struct stored *stored, uint32_t count)
{
    double start = bench_now_s();
    while (stored->ended < count) {
        if (bench_now_s() - start > WAIT_S)
            bench_die("the store took more than %.0f s", WAIT_S);
        kvf_loop_run_once(stored->loop, 1000);
    }
    stored->ended = 0;
}

/* One store is written at a time; the callback has no context of its own. */
static struct stored *writing;

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    bench_check(status, "append");
    writing->reads[append - writing->appends].location = location;
    writing->ended++;
}

static void append_blocks(struct stored *stored)
{
    writing = stored;
    for (uint32_t i = 0; i < stored->count; i++) {
        struct kvf_append *append = &stored->appends[i];
        append->record = (struct kvf_record){
            .namespace = "bench/blocks",
            .generation = {1, i + 1},
            .length = stored->block_bytes,
            .crc32c = kvf_crc32c(0, kvf_extent_at(extent_of(stored, i)), stored->block_bytes),
        };
        (void)kvf_key_set(&append->record.key, &i, sizeof(i));
        append->extent = extent_of(stored, i);
        append->ended = append_ended;
        kvf_store_append(stored->store, append);
    }
    stored_wait(stored, stored->count);
}

/* Reads of several stores may be under way: each knows its own by its extent. */
static void read_ended(struct kvf_read *read, struct kvf_status status)
{
    const struct kvf_arena *arena = read->extent.arena;
    bench_check(status, "read");
    kvf_container(arena, struct stored, arena)->ended++;
}

void stored_start(struct stored *stored, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        stored->reads[i] = (struct kvf_read){
            .location = stored->reads[i].location,
            .extent = extent_of(stored, i),
            .length = stored->block_bytes,
            .ended = read_ended,
        };
        stored->list[i] = &stored->reads[i];
    }
    struct kvf_read_set set = {.reads = stored->list + first, .count = count};
    kvf_store_read(stored->store, &set);
}

double stored_read(struct stored *stored, uint32_t sets)
{
    uint32_t first = 0;
    double start = bench_now_s();
    for (uint32_t i = 0; i < sets; i++) {
        uint32_t end = (uint32_t)((uint64_t)stored->count * (i + 1) / sets);
        stored_start(stored, first, end - first);
        first = end;
    }
    stored_wait(stored, stored->count);
    return bench_now_s() - start;
}

/* Every block reads back as it was written, into memory that held something else. */
static void check_blocks(struct stored *stored)
{
    memset(stored->arena.base, 0xa5, stored->arena.bytes);
    (void)stored_read(stored, 1);
    for (uint32_t i = 0; i < stored->count; i++)
        if (kvf_crc32c(0, kvf_extent_at(extent_of(stored, i)), stored->block_bytes) !=
            stored->appends[i].record.crc32c)
            bench_die("block %u came back with other bytes", i);
}

void stored_open(struct stored *stored, const struct stored_options *options)
{
    uint64_t bytes = options->block_bytes * options->count;
    if (bytes == 0 || options->block_bytes % KVF_PAGE != 0)
        bench_die("blocks are whole pages here");
    *stored = (struct stored){.block_bytes = options->block_bytes, .count = options->count};
    stored->appends = bench_allocate(stored->count * sizeof(*stored->appends));
    stored->reads = bench_allocate(stored->count * sizeof(*stored->reads));
    stored->list = bench_allocate(stored->count * sizeof(struct kvf_read *));
    bench_check(kvf_loop_create(&stored->loop), "loop");
    bench_check(kvf_arena_create(bytes, 0, false, &stored->arena, NULL), "arena");
    bench_fill(stored->arena.base, bytes, options->block_bytes);
    store_open(stored, options);
    append_blocks(stored);
    check_blocks(stored);
}

void stored_close(struct stored *stored)
{
    kvf_store_close(stored->store);
    kvf_arena_close(&stored->arena);
}
