#include "storage/fixture.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *file, int type, struct FTW *walk)
{
    (void)file, (void)type, (void)walk;
    return remove(path);
}

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    struct fixture *f = context;
    assert_true(f->reclaim_count < FIXTURE_RECLAIMS_MAX);
    f->reclaims[f->reclaim_count++] =
        (struct kvf_location){.drive = drive, .segment = segment, .sequence = sequence};
    if (f->frees_at_once)
        kvf_store_free(f->store, drive, segment, sequence);
}

void fixture_init(struct fixture *f, const struct kvf_engine *engine, uint64_t arena_bytes)
{
    memset(f, 0, sizeof(*f));
    f->engine = engine;
    (void)snprintf(f->path, sizeof(f->path), "/tmp/kvf-storage-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    assert_true(kvf_is_ok(kvf_loop_create(&f->loop)));
    assert_true(kvf_is_ok(kvf_arena_create(arena_bytes, 0, false, &f->arena, &f->why)));
    f->found = calloc(FIXTURE_FOUND_MAX, sizeof(*f->found));
    assert_non_null(f->found);
    f->paths[0] = f->path;
    f->arenas[0] = &f->arena;
    f->options = (struct kvf_store_options){
        .loop = f->loop,
        .paths = f->paths,
        .path_count = 1,
        .capacity_bytes = 16 * KVF_MIB,
        .segment_bytes = 2 * KVF_MIB,
        .read_threads = 3,
        .queue_depth = 8,
        .inflight_bytes = 4 * KVF_MIB,
        .io_bytes = 256 << 10,
        .arenas = f->arenas,
        .arena_count = 1,
        .reclaim = reclaim,
        .context = f,
    };
}

void fixture_fini(struct fixture *f)
{
    fixture_close(f);
    kvf_loop_destroy(f->loop);
    kvf_arena_close(&f->arena);
    free(f->found);
    (void)nftw(f->path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    if (f->options.path_count > 1)
        (void)nftw(f->other, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void fixture_add_drive(struct fixture *f)
{
    (void)snprintf(f->other, sizeof(f->other), "/tmp/kvf-storage-XXXXXX");
    assert_non_null(mkdtemp(f->other));
    f->paths[1] = f->other;
    f->options.path_count = 2;
}

static void found(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location)
{
    struct fixture *f = recovery->context;
    assert_false(f->recovered);
    assert_string_equal(record->namespace, FIXTURE_NAMESPACE);
    assert_true(f->found_count < FIXTURE_FOUND_MAX);
    struct fixture_found *one = &f->found[f->found_count++];
    one->record = *record;
    one->record.namespace = FIXTURE_NAMESPACE;
    one->location = location;
    if (f->on_found != NULL)
        f->on_found(f);
}

static void recovery_ended(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    struct fixture *f = recovery->context;
    assert_false(f->recovered);
    f->recovered = true;
    f->result = *result;
}

struct kvf_status fixture_start_recovery(struct fixture *f)
{
    f->recovery = (struct kvf_recovery){.found = found, .ended = recovery_ended, .context = f};
    f->found_count = 0;
    f->recovered = false;
    return kvf_store_recover(f->store, &f->recovery, &f->why);
}

void fixture_wait_recovery(struct fixture *f)
{
    time_t end = time(NULL) + 60;
    while (!f->recovered) {
        kvf_loop_run_once(f->loop, 1000);
        assert_true(time(NULL) < end);
    }
}

struct kvf_status fixture_try_open(struct fixture *f)
{
    f->why.text[0] = '\0';
    if (f->engine != NULL)
        return kvf_store_open_engine(&f->options, f->engine, &f->store, &f->why);
    return kvf_store_open(&f->options, &f->store, &f->why);
}

void fixture_open(struct fixture *f)
{
    struct kvf_status status = fixture_try_open(f);
    if (!kvf_is_ok(status))
        print_error("%s\n", f->why.text);
    assert_int_equal(status.code, KVF_OK);
    assert_true(kvf_is_ok(fixture_start_recovery(f)));
    fixture_wait_recovery(f);
}

void fixture_close(struct fixture *f)
{
    if (f->store != NULL && f->store->recovering != NULL) {
        kvf_store_recover_cancel(f->store);
        fixture_wait_recovery(f);
    }
    kvf_store_close(f->store);
    f->store = NULL;
}

static void copy_footer(const struct fixture *f, uint32_t segment, uint8_t *page, bool back)
{
    char name[32], path[128];
    (void)snprintf(name, sizeof(name), "segment-%05u", segment);
    fixture_file_path(f, name, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t offset = (off_t)(f->options.segment_bytes - KVF_PAGE);
    assert_true(fd >= 0);
    if (back)
        assert_int_equal(pwrite(fd, page, KVF_PAGE, offset), KVF_PAGE);
    else
        assert_int_equal(pread(fd, page, KVF_PAGE, offset), KVF_PAGE);
    assert_int_equal(close(fd), 0);
}

void fixture_crash(struct fixture *f)
{
    uint32_t count = (uint32_t)(f->options.capacity_bytes / f->options.segment_bytes);
    uint8_t *pages = malloc(count * KVF_PAGE);
    assert_non_null(pages);
    for (uint32_t i = 0; i < count; i++)
        copy_footer(f, i, pages + i * KVF_PAGE, false);
    fixture_close(f);
    for (uint32_t i = 0; i < count; i++)
        copy_footer(f, i, pages + i * KVF_PAGE, true);
    free(pages);
}

void fixture_reopen(struct fixture *f)
{
    fixture_close(f);
    fixture_open(f);
}

/* ---- content ---- */

struct kvf_record fixture_record(uint64_t seed, uint64_t length, uint32_t crc32c)
{
    struct kvf_record record = {
        .namespace = FIXTURE_NAMESPACE,
        .generation = {.epoch = 7, .counter = seed},
        .length = length,
        .crc32c = crc32c,
    };
    (void)kvf_key_set(&record.key, &seed, sizeof(seed));
    return record;
}

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint32_t fixture_fill(struct fixture *f, uint64_t offset, uint64_t seed, uint64_t length)
{
    uint8_t *at = f->arena.base + offset;
    uint64_t whole = kvf_round_up_page(length);
    assert_true(offset + whole <= f->arena.bytes);
    for (uint64_t i = 0; i < whole; i += 8) {
        uint64_t word = mix(seed * UINT64_C(1000003) + i);
        memcpy(at + i, &word, sizeof(word));
    }
    memset(at + length, 0, whole - length);
    return kvf_crc32c(0, at, length);
}

bool fixture_is_right(struct fixture *f, const struct fixture_block *block)
{
    uint64_t length = block->read.length, whole = kvf_round_up_page(length);
    const uint8_t *at = f->arena.base + block->read.extent.offset;
    for (uint64_t i = 0; i < length; i += 8) {
        uint64_t word = mix(block->seed * UINT64_C(1000003) + i);
        uint64_t bytes = length - i < 8 ? length - i : 8;
        if (memcmp(at + i, &word, bytes) != 0)
            return false;
    }
    for (uint64_t i = length; i < whole; i++)
        if (at[i] != 0)
            return false;
    return true;
}

/* ---- operations ---- */

static unsigned ends;

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    struct fixture_block *block = kvf_container(append, struct fixture_block, append);
    assert_false(block->ended);
    block->ended = true;
    block->order = ++ends;
    block->status = status;
    block->location = location;
}

static void read_ended(struct kvf_read *read, struct kvf_status status)
{
    struct fixture_block *block = kvf_container(read, struct fixture_block, read);
    assert_false(block->ended);
    block->ended = true;
    block->order = ++ends;
    block->status = status;
}

/* What is said to have landed has to be there now. */
static void read_landed(struct kvf_read *read, uint64_t landed)
{
    struct fixture_block *block = kvf_container(read, struct fixture_block, read);
    assert_false(block->ended);
    assert_true(landed > block->landed && landed < read->length);
    uint64_t word = mix(block->seed * UINT64_C(1000003) + ((landed - 1) & ~UINT64_C(7)));
    uint64_t at = (landed - 1) & ~UINT64_C(7);
    assert_memory_equal(kvf_extent_at(read->extent) + at, &word, landed - at);
    block->landed = landed;
    block->landed_calls++;
}

void fixture_append(struct fixture *f, struct fixture_block *block, uint64_t seed, uint64_t length,
                    uint64_t offset)
{
    memset(block, 0, sizeof(*block));
    block->seed = seed;
    block->append.record = fixture_record(seed, length, fixture_fill(f, offset, seed, length));
    block->append.extent = (struct kvf_extent){
        .arena = &f->arena, .offset = offset, .bytes = kvf_round_up_page(length)};
    block->append.ended = append_ended;
    kvf_store_append(f->store, &block->append);
}

void fixture_aim(struct fixture *f, struct fixture_block *block, uint64_t length, uint64_t offset)
{
    memset(f->arena.base + offset, 0xa5, kvf_round_up_page(length));
    block->read = (struct kvf_read){
        .location = block->location,
        .extent = {.arena = &f->arena, .offset = offset, .bytes = kvf_round_up_page(length)},
        .length = length,
        .landed = read_landed,
        .ended = read_ended,
    };
    block->ended = false;
    block->landed = 0;
    block->landed_calls = 0;
}

void fixture_wait(struct fixture *f, struct fixture_block *blocks, unsigned count)
{
    time_t end = time(NULL) + 60;
    for (unsigned i = 0; i < count; i++)
        while (!blocks[i].ended) {
            kvf_loop_run_once(f->loop, 1000);
            assert_true(time(NULL) < end);
        }
}

struct kvf_status fixture_put(struct fixture *f, struct fixture_block *block, uint64_t seed,
                              uint64_t length)
{
    fixture_append(f, block, seed, length, 0);
    fixture_wait(f, block, 1);
    return block->status;
}

struct kvf_status fixture_get(struct fixture *f, struct fixture_block *block, uint64_t length)
{
    struct kvf_read *reads[] = {&block->read};
    struct kvf_read_set set = {.reads = reads, .count = 1};
    fixture_aim(f, block, length, 0);
    kvf_store_read(f->store, &set);
    fixture_wait(f, block, 1);
    if (kvf_is_ok(block->status) && !fixture_is_right(f, block))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_CORRUPT, 0);
    return block->status;
}

const struct fixture_found *fixture_find(const struct fixture *f, uint64_t seed)
{
    for (unsigned i = 0; i < f->found_count; i++)
        if (f->found[i].record.key.length == sizeof(seed) &&
            memcmp(f->found[i].record.key.bytes, &seed, sizeof(seed)) == 0)
            return &f->found[i];
    return NULL;
}

void fixture_expect_found(struct fixture *f)
{
    for (unsigned i = 0; i < f->found_count; i++) {
        struct fixture_block block = {.location = f->found[i].location};
        memcpy(&block.seed, f->found[i].record.key.bytes, sizeof(block.seed));
        assert_int_equal(fixture_get(f, &block, f->found[i].record.length).code, KVF_OK);
    }
}

struct kvf_drive_stats fixture_stats(const struct fixture *f)
{
    struct kvf_drive_stats stats;
    kvf_store_stats(f->store, 0, &stats);
    return stats;
}

void fixture_wait_writable(struct fixture *f)
{
    time_t end = time(NULL) + 30;
    while (fixture_stats(f).read_only) {
        assert_true(time(NULL) < end);
        (void)usleep(2000);
    }
}

void fixture_file_path(const struct fixture *f, const char *file, char path[128])
{
    (void)snprintf(path, 128, "%s/%s", f->path, file);
}

void fixture_flip(const struct fixture *f, const char *file, uint64_t offset)
{
    char path[128];
    uint8_t byte;
    fixture_file_path(f, file, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}
