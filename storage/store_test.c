/* The suite that both engines pass: what is written comes back, now and after a restart. */
#include "base/test.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void round_trip(const struct kvf_engine *engine, uint64_t length)
{
    struct fixture f;
    fixture_init(&f, engine, kvf_round_up_page(length) + KVF_MIB);
    f.options.segment_bytes = kvf_round_up_page(length) + KVF_MIB;
    f.options.capacity_bytes = 3 * f.options.segment_bytes;
    f.options.io_bytes = KVF_MIB;
    fixture_open(&f);
    assert_int_equal(f.found_count, 0);

    struct fixture_block block;
    assert_int_equal(fixture_put(&f, &block, length, length).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &block, length).code, KVF_OK);
    struct kvf_drive_stats stats = fixture_stats(&f);
    assert_int_equal(stats.read_payload_bytes, length);
    assert_int_equal(stats.read_device_bytes, kvf_round_up_page(length));
    assert_int_equal(stats.read_sqes, (length + KVF_MIB - 1) / KVF_MIB);
    assert_int_equal(stats.read_sets, 1);
    assert_int_equal(stats.write_payload_bytes, length);
    assert_true(stats.write_device_bytes >= length + 2 * KVF_PAGE);
    assert_int_equal(stats.used_bytes, kvf_round_up_page(length));
    assert_int_equal(stats.reads_in_flight + stats.writes_in_flight, 0);

    fixture_reopen(&f);
    assert_int_equal(f.found_count, 1);
    const struct fixture_found *found = fixture_find(&f, length);
    assert_non_null(found);
    assert_int_equal(found->record.length, length);
    assert_int_equal(found->record.crc32c, block.append.record.crc32c);
    assert_true(kvf_generation_equal(found->record.generation, block.append.record.generation));
    assert_memory_equal(&found->location, &block.location, sizeof(block.location));
    block.location = found->location;
    assert_int_equal(fixture_get(&f, &block, length).code, KVF_OK);
    assert_int_equal(fixture_stats(&f).used_bytes, kvf_round_up_page(length));
    fixture_fini(&f);
}

static void store__block_of_any_length__comes_back_now_and_after_restart(void **state)
{
    const uint64_t lengths[] = {1,       4095,    4096,         4097,
                                1124352, 4497408, 64 * KVF_MIB, KVF_BLOCK_MAX_BYTES};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        round_trip(host_engine(state), lengths[i]);
}

static void store__smallest_pieces_of_a_large_block__all_land(void **state)
{
    struct fixture f;
    uint64_t length = 12 * KVF_MIB + 5;
    fixture_init(&f, host_engine(state), 16 * KVF_MIB);
    f.options.io_bytes = KVF_PAGE;
    f.options.queue_depth = 1000; /* more than the bitmap of pieces behind a gap holds */
    f.options.segment_bytes = 16 * KVF_MIB;
    f.options.capacity_bytes = 32 * KVF_MIB;
    fixture_open(&f);
    struct fixture_block block;
    assert_int_equal(fixture_put(&f, &block, 1, length).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &block, length).code, KVF_OK);
    assert_int_equal(fixture_stats(&f).read_sqes, kvf_round_up_page(length) / KVF_PAGE);
    assert_true(block.landed_calls > 0);
    fixture_fini(&f);
}

enum { SETS = 6, READS = 9, BLOCKS = SETS * READS };

static void store__several_sets_at_once__each_byte_right(void **state)
{
    struct fixture f;
    static struct fixture_block blocks[BLOCKS];
    uint64_t slot = 704 << 10;
    fixture_init(&f, host_engine(state), BLOCKS * slot);
    f.options.capacity_bytes = 64 * KVF_MIB;
    fixture_open(&f);
    for (unsigned i = 0; i < BLOCKS; i++)
        fixture_append(&f, &blocks[i], i, 1 + (i * 77777) % (slot - 1), i * slot);
    fixture_wait(&f, blocks, BLOCKS);
    for (unsigned round = 0; round < 5; round++) {
        struct kvf_read *reads[SETS][READS];
        struct kvf_read_set sets[SETS];
        for (unsigned i = 0; i < BLOCKS; i++) {
            assert_int_equal(blocks[i].status.code, KVF_OK);
            fixture_aim(&f, &blocks[i], blocks[i].append.record.length, i * slot);
            if (i % 2 == 1)
                blocks[i].read.landed = NULL;
            reads[i % SETS][i / SETS] = &blocks[i].read;
        }
        for (unsigned s = 0; s < SETS; s++) {
            sets[s] = (struct kvf_read_set){.reads = reads[s], .count = READS};
            kvf_store_read(f.store, &sets[s]);
        }
        fixture_wait(&f, blocks, BLOCKS);
        for (unsigned i = 0; i < BLOCKS; i++) {
            assert_int_equal(blocks[i].status.code, KVF_OK);
            assert_true(fixture_is_right(&f, &blocks[i]));
        }
    }
    struct kvf_drive_stats stats = fixture_stats(&f);
    assert_int_equal(stats.read_sets, 5 * SETS);
    assert_int_equal(stats.read_payload_bytes, 5 * stats.write_payload_bytes);
    assert_int_equal(stats.reads_in_flight + stats.writes_in_flight, 0);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, BLOCKS);
    fixture_fini(&f);
}

static void store__set_with_one_bad_read__the_others_are_right(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_open(&f);
    struct fixture_block blocks[4];
    struct kvf_read *reads[4];
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(fixture_put(&f, &blocks[i], i, 5000).code, KVF_OK);
        fixture_aim(&f, &blocks[i], 5000, i * 2 * KVF_PAGE);
        reads[i] = &blocks[i].read;
    }
    blocks[0].read.location.sequence++;
    blocks[1].read.location.segment = 1000;
    blocks[2].read.location.drive = 1;
    struct kvf_read_set set = {.reads = reads, .count = 4};
    kvf_store_read(f.store, &set);
    fixture_wait(&f, blocks, 4);
    assert_int_equal(blocks[0].status.code, KVF_STALE);
    assert_int_equal(blocks[1].status.code, KVF_INVALID);
    assert_int_equal(blocks[2].status.code, KVF_INVALID);
    assert_int_equal(blocks[3].status.code, KVF_OK);
    assert_true(fixture_is_right(&f, &blocks[3]));
    assert_int_equal(fixture_stats(&f).reads_in_flight, 0);
    fixture_fini(&f);
}

static void read__misaligned_or_outside_its_arena__invalid(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_open(&f);
    struct fixture_block block;
    assert_int_equal(fixture_put(&f, &block, 1, 5000).code, KVF_OK);
    struct kvf_read *reads[] = {&block.read};
    struct kvf_read_set set = {.reads = reads, .count = 1};
    const struct kvf_drive_stats before = fixture_stats(&f);
    for (unsigned i = 0; i < 5; i++) {
        fixture_aim(&f, &block, 5000, 0);
        block.read.location.offset += i == 0 ? 512 : 0;
        block.read.location.offset += i == 1 ? 4 * KVF_MIB : 0;
        block.read.extent.offset += i == 2 ? 512 : 0;
        block.read.extent.offset += i == 3 ? KVF_MIB - KVF_PAGE : 0;
        block.read.extent.bytes = i == 4 ? KVF_PAGE : block.read.extent.bytes;
        kvf_store_read(f.store, &set);
        fixture_wait(&f, &block, 1);
        assert_int_equal(block.status.code, KVF_INVALID);
    }
    assert_int_equal(fixture_stats(&f).read_sqes,
                     before.read_sqes); /* the kernel never heard of it */
    fixture_append(&f, &block, 2, 5000, 0);
    fixture_wait(&f, &block, 1);
    block.ended = false;
    block.append.extent.offset += 512;
    const uint64_t written = fixture_stats(&f).write_device_bytes;
    kvf_store_append(f.store, &block.append);
    fixture_wait(&f, &block, 1);
    assert_int_equal(block.status.code, KVF_INVALID);
    assert_int_equal(fixture_stats(&f).write_device_bytes, written);
    fixture_fini(&f);
}

static void append__record_that_cannot_be__invalid_or_too_large_and_counted(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), 4 * KVF_MIB);
    fixture_open(&f);
    struct fixture_block block;
    fixture_append(&f, &block, 1, 3 * KVF_MIB, 0); /* longer than a segment */
    fixture_wait(&f, &block, 1);
    assert_int_equal(block.status.code, KVF_TOO_LARGE);
    block.ended = false;
    block.append.record.namespace = "no slash";
    kvf_store_append(f.store, &block.append);
    fixture_wait(&f, &block, 1);
    assert_int_equal(block.status.code, KVF_INVALID);
    assert_int_equal(fixture_stats(&f).dropped, 2);
    assert_int_equal(fixture_stats(&f).writes_in_flight, 0);
    /* as large as can be */
    assert_int_equal(fixture_put(&f, &block, 2, 2 * KVF_MIB - 4 * KVF_PAGE).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &block, 2 * KVF_MIB - 4 * KVF_PAGE).code, KVF_OK);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, 1);
    fixture_fini(&f);
}

/* ---- many segments, giving back ---- */

static void store__fuller_than_its_capacity__asks_for_the_oldest_and_goes_on(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    f.frees_at_once = true;
    fixture_open(&f);
    enum { COUNT = 120 }; /* of 300 KiB: more than twice the capacity */
    static struct fixture_block blocks[COUNT];
    uint64_t length = 300 << 10;
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, length).code, KVF_OK);
    assert_true(f.reclaim_count > 4);
    for (unsigned i = 1; i < f.reclaim_count; i++)
        assert_true(f.reclaims[i].sequence > f.reclaims[i - 1].sequence);
    assert_true(fixture_stats(&f).used_bytes <= f.options.capacity_bytes);

    uint64_t oldest_left = f.reclaims[f.reclaim_count - 1].sequence + 1;
    unsigned left = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        struct kvf_status status = fixture_get(&f, &blocks[i], length);
        assert_int_equal(status.code,
                         blocks[i].location.sequence < oldest_left ? KVF_STALE : KVF_OK);
        left += kvf_is_ok(status);
    }
    assert_true(left >= 30);
    /* What was given back is not found again: it is marked on the drive. */
    fixture_reopen(&f);
    assert_int_equal(f.found_count, left);
    for (unsigned i = 0; i < f.found_count; i++)
        assert_true(f.found[i].location.sequence >= oldest_left);
    assert_int_equal(fixture_stats(&f).used_bytes, left * kvf_round_up_page(length));
    fixture_fini(&f);
}

static void store__no_free_segment__appends_wait_until_one_is_given_back(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), 8 * KVF_MIB);
    f.options.capacity_bytes = 4 * KVF_MIB; /* two segments */
    fixture_open(&f);
    struct fixture_block blocks[3];
    for (unsigned i = 0; i < 3; i++)
        fixture_append(&f, &blocks[i], i, KVF_MIB + 1, i * 2 * KVF_MIB);
    fixture_wait(&f, blocks, 2);
    while (f.reclaim_count == 0)
        kvf_loop_run_once(f.loop, 1000);
    for (unsigned i = 0; i < 5; i++)
        kvf_loop_run_once(f.loop, 10);
    assert_false(blocks[2].ended);
    assert_int_equal(fixture_stats(&f).writes_in_flight, 1);
    assert_int_equal(f.reclaims[0].sequence, blocks[0].location.sequence);
    kvf_store_free(f.store, f.reclaims[0].drive, f.reclaims[0].segment, f.reclaims[0].sequence);
    fixture_wait(&f, blocks, 3);
    assert_int_equal(blocks[2].status.code, KVF_OK);
    assert_int_equal(blocks[2].location.segment, f.reclaims[0].segment);
    assert_true(blocks[2].location.sequence > f.reclaims[0].sequence);
    assert_int_equal(fixture_get(&f, &blocks[0], KVF_MIB + 1).code, KVF_STALE);
    assert_int_equal(fixture_get(&f, &blocks[2], KVF_MIB + 1).code, KVF_OK);
    fixture_fini(&f);
}

static void store__restarted_often__keeps_everything(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    struct fixture_block block;
    uint64_t epoch = 0;
    for (unsigned i = 0; i < 6; i++) {
        fixture_open(&f);
        assert_true(kvf_store_boot_epoch(f.store) > epoch);
        epoch = kvf_store_boot_epoch(f.store);
        assert_int_equal(f.found_count, i);
        assert_int_equal(fixture_put(&f, &block, i, 10000).code, KVF_OK);
        fixture_close(&f);
    }
    fixture_open(&f);
    for (unsigned i = 0; i < 6; i++) {
        const struct fixture_found *found = fixture_find(&f, i);
        assert_non_null(found);
        block.seed = i;
        block.location = found->location;
        assert_int_equal(fixture_get(&f, &block, 10000).code, KVF_OK);
    }
    fixture_fini(&f);
}

static void store__started_and_stopped_often__ends_clean(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    for (unsigned i = 0; i < 50; i++) {
        fixture_open(&f);
        fixture_close(&f);
    }
    fixture_fini(&f);
}

/* ---- several drives ---- */

static void store__two_drives__share_the_blocks_and_one_set_reads_both(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), 16 * KVF_MIB);
    fixture_add_drive(&f);
    fixture_open(&f);
    static struct fixture_block blocks[30];
    struct kvf_read *reads[30];
    unsigned on[2] = {0};
    for (unsigned i = 0; i < 30; i++)
        fixture_append(&f, &blocks[i], i, 400000, i * 500 * UINT64_C(1024));
    fixture_wait(&f, blocks, 30);
    for (unsigned i = 0; i < 30; i++) {
        assert_int_equal(blocks[i].status.code, KVF_OK);
        on[blocks[i].location.drive]++;
        fixture_aim(&f, &blocks[i], 400000, i * 500 * UINT64_C(1024));
        reads[i] = &blocks[i].read;
    }
    assert_true(on[0] > 0 && on[1] > 0);
    struct kvf_read_set set = {.reads = reads, .count = 30};
    kvf_store_read(f.store, &set);
    fixture_wait(&f, blocks, 30);
    for (unsigned i = 0; i < 30; i++)
        assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
    struct kvf_drive_stats stats;
    kvf_store_stats(f.store, 1, &stats);
    assert_string_equal(stats.path, f.other);
    assert_int_equal(stats.read_sets, 1);
    assert_int_equal(stats.read_payload_bytes, on[1] * 400000);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, 30);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store__block_of_any_length__comes_back_now_and_after_restart),
        cmocka_unit_test(store__smallest_pieces_of_a_large_block__all_land),
        cmocka_unit_test(store__several_sets_at_once__each_byte_right),
        cmocka_unit_test(store__set_with_one_bad_read__the_others_are_right),
        cmocka_unit_test(read__misaligned_or_outside_its_arena__invalid),
        cmocka_unit_test(append__record_that_cannot_be__invalid_or_too_large_and_counted),
        cmocka_unit_test(store__fuller_than_its_capacity__asks_for_the_oldest_and_goes_on),
        cmocka_unit_test(store__no_free_segment__appends_wait_until_one_is_given_back),
        cmocka_unit_test(store__restarted_often__keeps_everything),
        cmocka_unit_test(store__started_and_stopped_often__ends_clean),
        cmocka_unit_test(store__two_drives__share_the_blocks_and_one_set_reads_both),
    };
    return HOST_RUN_TESTS("store", tests);
}
