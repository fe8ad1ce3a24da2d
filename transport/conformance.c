/* Parts: bytes arrive right, turns, taking back, the lane's end, opening, the other process dies or
 * stops. */
#include "transport/conformance.h"

#include "transport/testbed.h"

#include "base/clock.h"
#include "base/crc32c.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *transport_name;

static int set_up(void **state)
{
    (void)state;
    testbed_open(transport_name);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    testbed_close();
    return 0;
}

/* ---- bytes ---- */

static void transfer__odd_sizes_and_places__equal_and_nothing_else_touched(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1,       2,
                                       31,      32,
                                       33,      63,
                                       64,      65,
                                       4095,    4096,
                                       4097,    32767,
                                       32769,   65535,
                                       65536,   65537,
                                       262143,  262144,
                                       262145,  1048575,
                                       1048576, 1048577,
                                       2097153, 9437184,
                                       9437185, TESTBED_ARENA_BYTES};
    testbed_lanes_open();
    uint8_t *arena = testbed.consumer.arena.base;
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t length = lengths[i], room = TESTBED_ARENA_BYTES - length + 1;
        struct testbed_read *to = testbed_read_make(&testbed.consumer, i + 1, 7, 1);
        struct testbed_read *from = testbed_read_make(&testbed.source, i + 1, 7, 1);
        testbed_read_set(to, 0, testbed_random(room), length, 0);
        testbed_read_set(from, 0, testbed_random(room), length, length);
        memset(arena, TESTBED_SENTINEL, TESTBED_ARENA_BYTES);
        testbed_expect(to);
        testbed_offer(from);
        testbed_wait_ended(to);
        testbed_wait_ended(from);
        assert_int_equal(from->blocks[0].status.code, KVF_OK);
        testbed_check_ok(to, from, 0);
        struct kvf_extent extent = to->blocks[0].extent;
        uint64_t after = extent.offset + extent.bytes;
        assert_true(testbed_is_untouched(arena, extent.offset));
        assert_true(testbed_is_untouched(arena + after, TESTBED_ARENA_BYTES - after));
        free(to);
        free(from);
    }
}

static void transfer__block_of_128_mib__equal(void **state)
{
    (void)state;
    struct kvf_arena from_arena, to_arena;
    uint64_t length = KVF_BLOCK_MAX_BYTES;
    assert_true(kvf_is_ok(kvf_arena_create(length, 2, false, &from_arena, NULL)));
    assert_true(kvf_is_ok(kvf_arena_create(length, 3, false, &to_arena, NULL)));
    memcpy(from_arena.base, testbed.pattern, TESTBED_ARENA_BYTES);
    memcpy(from_arena.base + TESTBED_ARENA_BYTES, testbed.pattern + 1, TESTBED_ARENA_BYTES - 1);
    testbed_lanes_open();
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
    to->blocks[0].extent = (struct kvf_extent){&to_arena, 0, length};
    from->blocks[0].extent = (struct kvf_extent){&from_arena, 0, length};
    to->blocks[0].length = from->blocks[0].length = from->blocks[0].landed_bytes = length;
    to->expected = from->expected = 1;
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    assert_int_equal(to->blocks[0].status.code, KVF_OK);
    assert_int_equal(memcmp(to_arena.base, from_arena.base, length), 0);
    assert_int_equal(to->blocks[0].crc32c, kvf_crc32c(0, from_arena.base, length));
    free(to);
    free(from);
    testbed_lanes_close();
    kvf_arena_close(&from_arena);
    kvf_arena_close(&to_arena);
}

static void transfer__before_the_lane_is_open__arrives(void **state)
{
    (void)state;
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 2);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 2);
    testbed_read_set(to, 1, 4096, 5000, 0);
    testbed_read_set(from, 1, 8192, 5000, 5000);
    testbed_invite(TESTBED_WAIT_S * 1000);
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    testbed_check_ok(to, from, 1);
    assert_int_equal(to->ended_count[0], 0);
    free(to);
    free(from);
}

static void transfer__many_small_blocks__all_arrive(void **state)
{
    (void)state;
    testbed_lanes_open();
    for (uint64_t round = 1; round <= 20; round++) {
        struct testbed_read *to = testbed_read_make(&testbed.consumer, round, 7, 500);
        struct testbed_read *from = testbed_read_make(&testbed.source, round, 7, 500);
        for (uint32_t i = 0; i < 500; i++) {
            uint64_t length = 1 + testbed_random(8192);
            testbed_read_set(to, i, i * 8192u, length, 0);
            testbed_read_set(from, i, testbed_random(TESTBED_ARENA_BYTES / 2), length, length);
        }
        testbed_expect(to);
        testbed_offer(from);
        testbed_wait_ended(to);
        testbed_wait_ended(from);
        for (uint32_t i = 0; i < 500; i++)
            testbed_check_ok(to, from, i);
        free(to);
        free(from);
    }
}

#define READS 8
#define BLOCKS 8

/* Let a random block land a random step further; false when all have landed. */
static bool land_something(struct testbed_read **from, uint64_t (*landed)[BLOCKS])
{
    uint32_t first = (uint32_t)testbed_random(READS * BLOCKS);
    for (uint32_t n = 0; n < READS * BLOCKS; n++) {
        uint32_t i = (first + n) % (READS * BLOCKS), r = i / BLOCKS, b = i % BLOCKS;
        uint64_t length = from[r]->blocks[b].length;
        if (landed[r][b] == length)
            continue;
        landed[r][b] += 1 + testbed_random(300000);
        if (landed[r][b] > length)
            landed[r][b] = length;
        kvf_lane_landed(&from[r]->read, b, landed[r][b]);
        return true;
    }
    return false;
}

static void transfer__64_blocks_landing_in_steps__all_arrive(void **state)
{
    (void)state;
    struct testbed_read *to[READS], *from[READS];
    uint64_t landed[READS][BLOCKS] = {0};
    uint64_t slot = TESTBED_ARENA_BYTES / (READS * BLOCKS);
    testbed_lanes_open();
    for (uint32_t r = 0; r < READS; r++) {
        to[r] = testbed_read_make(&testbed.consumer, r + 1, r % 3, BLOCKS);
        from[r] = testbed_read_make(&testbed.source, r + 1, r % 3, BLOCKS);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            uint64_t length = 1 + testbed_random(slot);
            testbed_read_set(to[r], b, (r * BLOCKS + b) * slot, length, 0);
            testbed_read_set(from[r], b, (b * READS + r) * slot, length, 0);
        }
        testbed_expect(to[r]);
        testbed_offer(from[r]);
    }
    while (land_something(from, landed))
        if (testbed_random(4) == 0)
            kvf_loop_run_once(testbed.loop, 0);
    for (uint32_t r = 0; r < READS; r++) {
        testbed_wait_ended(to[r]);
        testbed_wait_ended(from[r]);
        for (uint32_t b = 0; b < BLOCKS; b++)
            testbed_check_ok(to[r], from[r], b);
    }
    for (uint32_t r = 0; r < READS; r++) {
        free(to[r]);
        free(from[r]);
    }
}

static void transfer__source_memory_reused_once_it_has_ended__right_bytes_arrive(void **state)
{
    (void)state;
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 16);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 16);
    for (uint32_t i = 0; i < 16; i++) {
        testbed_read_set(to, i, i * 4 * KVF_MIB, 2 * KVF_MIB + i, 0);
        testbed_read_set(from, i, i * 4 * KVF_MIB, 2 * KVF_MIB + i, 2 * KVF_MIB + i);
    }
    from->scribble = true;
    testbed_lanes_open();
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(from);
    testbed_wait_ended(to);
    for (uint32_t i = 0; i < 16; i++)
        testbed_check_ok(to, from, i);
    free(to);
    free(from);
}

static void stats__after_transfers__count_payload(void **state)
{
    (void)state;
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 2);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 2);
    for (uint32_t i = 0; i < 2; i++) {
        testbed_read_set(to, i, i * 8192, 5000, 0);
        testbed_read_set(from, i, i * 8192, 5000, 5000);
    }
    testbed_lanes_open();
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    assert_int_equal(testbed_stats(&testbed.source).sent_bytes, 10000);
    assert_int_equal(testbed_stats(&testbed.consumer).received_bytes, 10000);
    assert_int_equal(testbed_stats(&testbed.consumer).discarded_bytes, 0);
    assert_int_equal(testbed_stats(&testbed.consumer).protocol_errors, 0);
    free(to);
    free(from);
}

/* ---- turns ---- */

/* Two Reads of these instances, the first much longer, both offered before anything is sent. */
static void offer_long_and_short(struct testbed_read *to[2], struct testbed_read *from[2],
                                 uint64_t instance_of_short)
{
    static const uint64_t lengths[2] = {48 * KVF_MIB, 2 * KVF_MIB};
    testbed_lanes_open();
    testbed_stall(&testbed.source);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t instance = i == 0 ? 1 : instance_of_short;
        to[i] = testbed_read_make(&testbed.consumer, i + 1, instance, 1);
        from[i] = testbed_read_make(&testbed.source, i + 1, instance, 1);
        testbed_read_set(to[i], 0, i * 48 * KVF_MIB, lengths[i], 0);
        testbed_read_set(from[i], 0, i * 48 * KVF_MIB, lengths[i], lengths[i]);
        testbed_expect(to[i]);
        testbed_offer(from[i]);
    }
    testbed_go_on();
    for (uint32_t i = 0; i < 2; i++) {
        testbed_wait_ended(to[i]);
        testbed_wait_ended(from[i]);
        testbed_check_ok(to[i], from[i], 0);
    }
}

static void turns__short_read_behind_a_long_one__ends_first(void **state)
{
    (void)state;
    for (uint64_t instance = 1; instance <= 2; instance++) {
        struct testbed_read *to[2], *from[2];
        offer_long_and_short(to, from, instance);
        assert_true(to[1]->last_event < to[0]->last_event);
        assert_true(from[1]->last_event < from[0]->last_event);
        for (uint32_t i = 0; i < 2; i++) {
            free(to[i]);
            free(from[i]);
        }
        testbed_lanes_close();
    }
}

/* Instance 1 has seven Reads, instance 2 has one: by turns between instances the one is served as
 * much as the seven together, so it ends when at most about as many bytes of theirs have gone. */
static void turns__one_read_of_an_instance_against_seven__ends_before_them(void **state)
{
    (void)state;
    struct testbed_read *to[8], *from[8];
    testbed_lanes_open();
    testbed_stall(&testbed.source);
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t instance = i == 7 ? 2 : 1;
        to[i] = testbed_read_make(&testbed.consumer, i + 1, instance, 1);
        from[i] = testbed_read_make(&testbed.source, i + 1, instance, 1);
        testbed_read_set(to[i], 0, i * 8 * KVF_MIB, 7 * KVF_MIB, 0);
        testbed_read_set(from[i], 0, i * 8 * KVF_MIB, 7 * KVF_MIB, 7 * KVF_MIB);
        testbed_expect(to[i]);
        testbed_offer(from[i]);
    }
    testbed_go_on();
    for (uint32_t i = 0; i < 8; i++)
        testbed_wait_ended(to[i]);
    for (uint32_t i = 0; i < 8; i++)
        testbed_wait_ended(from[i]);
    for (uint32_t i = 0; i < 7; i++)
        assert_true(to[7]->last_event < to[i]->last_event);
    for (uint32_t i = 0; i < 8; i++) {
        free(to[i]);
        free(from[i]);
    }
}

/* ---- taking back ---- */

static void withdraw__offered_block_that_has_not_landed__cancelled_and_lane_goes_on(void **state)
{
    (void)state;
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 2);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 2);
    for (uint32_t i = 0; i < 2; i++) {
        testbed_read_set(to, i, i * KVF_MIB, 100000, 0);
        testbed_read_set(from, i, i * KVF_MIB, 100000, i == 0 ? 50000 : 0);
    }
    testbed_lanes_open();
    testbed_expect(to);
    testbed_offer(from);
    kvf_lane_withdraw(&from->read, 0);
    kvf_lane_landed(&from->read, 0, 100000);
    kvf_lane_landed(&from->read, 1, 100000);
    testbed_wait_ended(from);
    assert_int_equal(from->blocks[0].status.code, KVF_CANCELLED);
    assert_int_equal(from->blocks[1].status.code, KVF_OK);
    kvf_lane_landed(&from->read, 0, 100000);
    kvf_lane_withdraw(&from->read, KVF_LANE_ALL_BLOCKS);
    kvf_lane_withdraw(&to->read, 0);
    testbed_wait_ended(to);
    assert_int_equal(to->blocks[0].status.code, KVF_CANCELLED);
    testbed_check_ok(to, from, 1);
    free(to);
    free(from);
}

static void withdraw__expected_blocks_at_once__cancelled_and_memory_left_alone(void **state)
{
    (void)state;
    testbed_lanes_open();
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 4);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 4);
    for (uint32_t i = 0; i < 4; i++) {
        testbed_read_set(to, i, i * 4 * KVF_MIB, 3 * KVF_MIB, 0);
        testbed_read_set(from, i, i * 4 * KVF_MIB, 3 * KVF_MIB, 3 * KVF_MIB);
    }
    testbed_expect(to);
    kvf_lane_withdraw(&to->read, KVF_LANE_ALL_BLOCKS);
    testbed_wait_ended(to);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(to->blocks[i].status.code, KVF_CANCELLED);
    free(to);

    testbed_offer(from);
    testbed_wait_ended(from);
    assert_int_equal(from->ended_ok, 4);
    free(from);
    assert_true(testbed_is_untouched(testbed.consumer.arena.base, TESTBED_ARENA_BYTES));

    /* What came for nobody was counted, and the lane is as good as before. */
    to = testbed_read_make(&testbed.consumer, 2, 7, 1);
    from = testbed_read_make(&testbed.source, 2, 7, 1);
    testbed_read_set(to, 0, 0, 9 * KVF_MIB, 0);
    testbed_read_set(from, 0, 0, 9 * KVF_MIB, 9 * KVF_MIB);
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    testbed_check_ok(to, from, 0);
    assert_int_equal(testbed_stats(&testbed.consumer).discarded_bytes, 12 * KVF_MIB);
    free(to);
    free(from);
}

/* Blocks that were given back are overwritten at once and must stay so. */
static void check_storm_round(struct testbed_read *to, struct testbed_read *from)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        if (kvf_is_ok(to->blocks[b].status)) {
            testbed_check_ok(to, from, b);
            continue;
        }
        assert_int_equal(to->blocks[b].status.code, KVF_CANCELLED);
        struct kvf_extent extent = to->blocks[b].extent;
        assert_true(testbed_is_untouched(kvf_extent_at(extent), extent.bytes));
    }
}

static void storm_round(uint64_t id, uint64_t half)
{
    struct testbed_read *to = testbed_read_make(&testbed.consumer, id, id % 2, BLOCKS);
    struct testbed_read *from = testbed_read_make(&testbed.source, id, id % 2, BLOCKS);
    uint64_t slot = TESTBED_ARENA_BYTES / 2 / BLOCKS;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint64_t length = 1 + testbed_random(testbed_random(2) ? 5000 : slot);
        uint64_t place = half + b * slot;
        testbed_read_set(to, b, place, length, 0);
        testbed_read_set(from, b, place, length, testbed_random(length + 1));
        memcpy(kvf_extent_at(from->blocks[b].extent), testbed.pattern + place, length);
    }
    to->scribble = from->scribble = true;
    testbed_expect(to);
    testbed_offer(from);
    for (unsigned i = 0; i < 40; i++) {
        uint32_t b = (uint32_t)testbed_random(BLOCKS);
        uint64_t what = testbed_random(10);
        if (what == 0)
            kvf_lane_withdraw(&to->read, b);
        else if (what == 1)
            kvf_lane_withdraw(&from->read, b);
        else if (what < 8)
            kvf_lane_landed(&from->read, b, from->blocks[b].length);
        else
            kvf_loop_run_once(testbed.loop, (int)testbed_random(2));
    }
    kvf_lane_withdraw(&from->read, KVF_LANE_ALL_BLOCKS);
    testbed_wait_ended(from);
    kvf_lane_withdraw(&to->read, KVF_LANE_ALL_BLOCKS);
    testbed_wait_ended(to);
    check_storm_round(to, from);
    free(to);
    free(from);
}

static void withdraw__at_random_on_both_sides__each_ends_once_and_is_let_go(void **state)
{
    (void)state;
    testbed_lanes_open();
    for (uint64_t id = 1; id <= 150; id++)
        storm_round(id, id % 2 * (TESTBED_ARENA_BYTES / 2));
    assert_true(testbed.source.opened && testbed.consumer.opened);
}

/* ---- the end of a lane ---- */

static struct testbed_read *make_big(struct testbed_end *end, uint64_t id, uint64_t landed)
{
    struct testbed_read *read = testbed_read_make(end, id, 7, 2);
    testbed_read_set(read, 0, 0, 20 * KVF_MIB, landed);
    testbed_read_set(read, 1, 32 * KVF_MIB, 20 * KVF_MIB, landed);
    return read;
}

/* Both sides have blocks under way that cannot finish; one side closes. */
static void close_with_blocks_under_way(struct testbed_end *closing, struct testbed_end *other)
{
    struct testbed_read *to = make_big(&testbed.consumer, 1, 0);
    struct testbed_read *from = make_big(&testbed.source, 1, 10 * KVF_MIB);
    struct testbed_read *mine = closing == &testbed.consumer ? to : from;
    struct testbed_read *others = closing == &testbed.consumer ? from : to;
    testbed_lanes_open();
    testbed_expect(to);
    testbed_offer(from);
    testbed_serve_ms((unsigned)testbed_random(4));
    kvf_lane_close(closing->lane);
    kvf_lane_close(closing->lane);
    assert_int_equal(mine->ended, 0);
    testbed_wait_closed(closing);
    assert_int_equal(mine->ended, 2);
    assert_int_equal(mine->blocks[0].status.code, KVF_CANCELLED);
    assert_int_equal(mine->blocks[1].status.code, KVF_CANCELLED);
    assert_int_equal(closing->closed.code, KVF_OK);
    testbed_wait_closed(other);
    assert_int_equal(others->ended, 2);
    assert_int_equal(others->blocks[0].status.code, KVF_UNAVAILABLE);
    assert_int_equal(other->closed.code, KVF_UNAVAILABLE);
    free(to);
    free(from);
}

static void close__by_the_consumer_under_way__all_end(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        close_with_blocks_under_way(&testbed.consumer, &testbed.source);
}

static void close__by_the_source_under_way__all_end(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        close_with_blocks_under_way(&testbed.source, &testbed.consumer);
}

static void close__then_withdraw_and_land__ends_once(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct testbed_read *from = make_big(&testbed.source, 1, KVF_MIB);
        testbed_lanes_open();
        testbed_offer(from);
        for (uint64_t landed = 2; landed <= 8; landed++) {
            kvf_lane_landed(&from->read, (uint32_t)landed % 2, landed * KVF_MIB);
            if (landed == 2 + (uint64_t)i % 7)
                kvf_lane_close(testbed.source.lane);
        }
        kvf_lane_withdraw(&from->read, 1);
        testbed_wait_closed(&testbed.source);
        assert_int_equal(from->ended, 2);
        free(from);
        testbed_wait_closed(&testbed.consumer);
    }
}

static void close__other_side_first__late_reads_still_end(void **state)
{
    (void)state;
    testbed_lanes_open();
    kvf_lane_close(testbed.source.lane);
    for (uint64_t id = 1; testbed.consumer.lane != NULL; id++) {
        struct testbed_read *to = make_big(&testbed.consumer, id, 0);
        testbed_expect(to);
        assert_int_equal(to->ended, 0);
        testbed_wait_ended(to);
        assert_int_equal(to->ended_ok, 0);
        free(to);
        testbed_serve_ms(1);
    }
    assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
}

/* What the source sent whole before it closed may still arrive or not, but never half as OK. */
static void close__by_the_source_after_sending__ends_with_truth(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct testbed_read *to = make_big(&testbed.consumer, 1, 0);
        struct testbed_read *from = make_big(&testbed.source, 1, 20 * KVF_MIB);
        testbed_lanes_open();
        testbed_expect(to);
        testbed_offer(from);
        testbed_serve_ms((unsigned)testbed_random(20));
        kvf_lane_close(testbed.source.lane);
        testbed_wait_closed(&testbed.consumer);
        testbed_wait_closed(&testbed.source);
        assert_int_equal(to->ended, 2);
        for (uint32_t b = 0; b < 2; b++)
            if (kvf_is_ok(to->blocks[b].status))
                testbed_check_ok(to, from, b);
        free(to);
        free(from);
    }
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    (void)closedir(directory);
    return count;
}

static void close__1000_times__no_descriptor_is_left(void **state)
{
    (void)state;
    testbed_lanes_open();
    testbed_lanes_close();
    unsigned before = open_descriptors();
    for (int i = 0; i < 1000; i++) {
        testbed_invite(TESTBED_WAIT_S * 1000);
        testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
        for (uint64_t rounds = testbed_random(6); rounds > 0; rounds--)
            kvf_loop_run_once(testbed.loop, 1);
        testbed_lanes_close();
    }
    /* After it no half-open connection of the rounds above is left unserved. */
    testbed_lanes_open();
    testbed_lanes_close();
    testbed_serve_ms(1200); /* a connection that never said its nonce has one second */
    assert_int_equal(open_descriptors(), before);
}

/* ---- opening ---- */

static void invite__nobody_comes__closed_with_deadline(void **state)
{
    (void)state;
    testbed_invite(20);
    struct testbed_read *from = make_big(&testbed.source, 1, 0);
    testbed_offer(from);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_DEADLINE);
    assert_int_equal(testbed.source.opened_count, 0);
    assert_int_equal(from->blocks[0].status.code, KVF_DEADLINE);
    assert_int_equal(from->ended, 2);
    free(from);
    /* A nonce whose time is over opens nothing. */
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
}

static void connect__wrong_nonce__refused_and_the_right_one_still_opens(void **state)
{
    (void)state;
    testbed_invite(TESTBED_WAIT_S * 1000);
    for (int i = 0; i < 10; i++) {
        struct kvf_lane_nonces guess = testbed.nonces;
        guess.connect.bytes[testbed_random(KVF_NONCE_BYTES)] ^= (uint8_t)(1 << i % 8);
        testbed_connect(&guess, TESTBED_WAIT_S * 1000);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
    }
    assert_int_equal(testbed_stats(&testbed.source).protocol_errors, 10);
    assert_int_equal(testbed.source.closed_count, 0);
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
    testbed_read_set(to, 0, 0, 100, 0);
    testbed_read_set(from, 0, 0, 100, 100);
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    testbed_check_ok(to, from, 0);
    free(to);
    free(from);
}

static void connect__nonce_used_before__refused(void **state)
{
    (void)state;
    testbed_lanes_open();
    struct testbed_end first = testbed.consumer;
    struct testbed_end second = {.transport = first.transport};
    assert_true(kvf_is_ok(kvf_lane_connect(second.transport, testbed_address(), &testbed.nonces,
                                           kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S,
                                           &testbed_events, &second, &second.lane)));
    testbed_wait_closed(&second);
    assert_int_equal(second.closed.code, KVF_UNAVAILABLE);
    assert_int_equal(second.opened_count, 0);
    assert_true(testbed.source.opened && testbed.consumer.opened);
}

static void connect__wrong_answer__denied(void **state)
{
    (void)state;
    testbed_invite(TESTBED_WAIT_S * 1000);
    struct kvf_lane_nonces other = testbed.nonces;
    other.accept.bytes[31] ^= 1;
    testbed_connect(&other, TESTBED_WAIT_S * 1000);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_DENIED);
    assert_int_equal(testbed_stats(&testbed.consumer).protocol_errors, 1);
}

static void invite__deadline_already_over__closed_with_deadline(void **state)
{
    (void)state;
    testbed_invite(0);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_DEADLINE);
}

static void connect__bad_address__invalid_and_no_lane(void **state)
{
    (void)state;
    static const char *const addresses[] = {"", ":", "127.0.0.1", "127.0.0.1:port", ":80"};
    struct kvf_lane *lane = NULL;
    for (unsigned i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        struct kvf_status status =
            kvf_lane_connect(testbed.consumer.transport, addresses[i], &testbed.nonces,
                             kvf_clock_now_ns(), &testbed_events, NULL, &lane);
        assert_int_equal(status.code, KVF_INVALID);
        assert_null(lane);
    }
}

static void invite__many_lanes_at_once__each_nonce_opens_its_own(void **state)
{
    (void)state;
    enum { LANES = 32 };
    static struct testbed_end source[LANES], consumer[LANES];
    struct kvf_lane_nonces nonces[LANES];
    uint64_t deadline = kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S;
    for (unsigned i = 0; i < LANES; i++) {
        source[i] = consumer[i] = (struct testbed_end){0};
        assert_true(kvf_is_ok(kvf_lane_invite(testbed.source.transport, deadline, &testbed_events,
                                              &source[i], &nonces[i], &source[i].lane)));
    }
    for (unsigned i = LANES; i-- > 0;)
        assert_true(kvf_is_ok(kvf_lane_connect(testbed.consumer.transport, testbed_address(),
                                               &nonces[i], deadline, &testbed_events, &consumer[i],
                                               &consumer[i].lane)));
    for (unsigned i = 0; i < LANES; i++) {
        struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
        struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
        testbed_read_set(to, 0, i * KVF_MIB, 300000 + i, 0);
        testbed_read_set(from, 0, (LANES - i) * KVF_MIB, 300000 + i, 300000 + i);
        kvf_lane_expect(consumer[i].lane, &to->read);
        kvf_lane_offer(source[i].lane, &from->read);
        testbed_wait_ended(to);
        testbed_wait_ended(from);
        testbed_check_ok(to, from, 0);
        free(to);
        free(from);
    }
    for (unsigned i = 0; i < LANES; i++) {
        kvf_lane_close(source[i].lane);
        kvf_lane_close(consumer[i].lane);
    }
    for (unsigned i = 0; i < LANES; i++) {
        testbed_wait_closed(&source[i]);
        testbed_wait_closed(&consumer[i]);
    }
}

/* ---- the other process ---- */

struct invitation {
    int port;
    struct kvf_lane_nonces nonces;
};

struct other {
    pid_t pid;
    int to, from;
};

static struct other start_other(const char *role)
{
    int to[2], from[2];
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    posix_spawn_file_actions_t actions;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    (void)posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    (void)posix_spawn_file_actions_addclose(&actions, to[1]);
    (void)posix_spawn_file_actions_addclose(&actions, from[0]);
    char program[] = "/proc/self/exe", argument[16];
    (void)snprintf(argument, sizeof(argument), "%s", role);
    char *arguments[] = {program, argument, NULL};
    struct other other = {.to = to[1], .from = from[0]};
    assert_int_equal(posix_spawn(&other.pid, program, &actions, NULL, arguments, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(to[0]);
    (void)close(from[1]);
    return other;
}

static void end_other(struct other *other)
{
    (void)kill(other->pid, SIGKILL);
    (void)waitpid(other->pid, NULL, 0);
    (void)close(other->to);
    (void)close(other->from);
}

static bool consumer_is_open(void *argument)
{
    (void)argument;
    return testbed.consumer.opened;
}

static bool source_is_open(void *argument)
{
    (void)argument;
    return testbed.source.opened;
}

static bool half_has_arrived(void *argument)
{
    (void)argument;
    return testbed_stats(&testbed.consumer).received_bytes >= 20 * KVF_MIB;
}

/* A source in another process that has sent half of each of two blocks and sends no more. */
static struct other start_source(struct testbed_read *to)
{
    struct other other = start_other("source");
    struct invitation invitation;
    assert_int_equal(read(other.from, &invitation, sizeof(invitation)), sizeof(invitation));
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", invitation.port);
    assert_true(
        kvf_is_ok(kvf_lane_connect(testbed.consumer.transport, address, &invitation.nonces,
                                   kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S,
                                   &testbed_events, &testbed.consumer, &testbed.consumer.lane)));
    testbed_expect(to);
    assert_int_equal(write(other.to, "r", 1), 1);
    testbed_wait(consumer_is_open, NULL);
    testbed_wait(half_has_arrived, NULL);
    assert_int_equal(to->ended, 0);
    return other;
}

static struct other start_consumer(void)
{
    struct other other = start_other("consumer");
    testbed_invite(TESTBED_WAIT_S * 1000);
    struct invitation invitation = {.port = kvf_transport_port(testbed.source.transport),
                                    .nonces = testbed.nonces};
    assert_int_equal(write(other.to, &invitation, sizeof(invitation)), sizeof(invitation));
    testbed_wait(source_is_open, NULL);
    char ready;
    assert_int_equal(read(other.from, &ready, 1), 1);
    return other;
}

static void death__of_the_source__blocks_end_unavailable(void **state)
{
    (void)state;
    struct testbed_read *to = make_big(&testbed.consumer, 1, 0);
    struct other other = start_source(to);
    assert_int_equal(kill(other.pid, SIGKILL), 0);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
    assert_int_equal(to->ended, 2);
    assert_int_equal(to->blocks[0].status.code, KVF_UNAVAILABLE);
    assert_int_equal(to->blocks[1].status.code, KVF_UNAVAILABLE);
    end_other(&other);
    free(to);
}

static void stop__of_the_source__nothing_ends_until_we_close(void **state)
{
    (void)state;
    struct testbed_read *to = make_big(&testbed.consumer, 1, 0);
    struct other other = start_source(to);
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    testbed_serve_ms(100);
    assert_int_equal(to->ended, 0);
    assert_true(testbed.consumer.opened);
    kvf_lane_close(testbed.consumer.lane);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_OK);
    assert_int_equal(to->ended, 2);
    assert_int_equal(to->blocks[0].status.code, KVF_CANCELLED);
    end_other(&other);
    free(to);
}

static void death__of_the_consumer__blocks_end_unavailable(void **state)
{
    (void)state;
    struct testbed_read *from = make_big(&testbed.source, 1, 10 * KVF_MIB);
    struct other other = start_consumer();
    testbed_offer(from);
    testbed_serve_ms(20);
    assert_int_equal(kill(other.pid, SIGKILL), 0);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_UNAVAILABLE);
    assert_int_equal(from->ended, 2);
    assert_int_equal(from->blocks[0].status.code, KVF_UNAVAILABLE);
    end_other(&other);
    free(from);
}

static void stop__of_the_consumer__source_lets_go_when_it_closes(void **state)
{
    (void)state;
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 2);
    testbed_read_set(from, 0, 0, 40 * KVF_MIB, 40 * KVF_MIB);
    testbed_read_set(from, 1, 40 * KVF_MIB, 20 * KVF_MIB, 20 * KVF_MIB);
    struct other other = start_consumer();
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    testbed_offer(from);
    testbed_serve_ms(200);
    kvf_lane_withdraw(&from->read, KVF_LANE_ALL_BLOCKS);
    testbed_serve_ms(20);
    assert_true(testbed.source.opened);
    kvf_lane_close(testbed.source.lane);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_OK);
    assert_int_equal(from->ended, 2);
    assert_int_equal(from->blocks[0].status.code, KVF_CANCELLED);
    assert_int_equal(from->blocks[1].status.code, KVF_CANCELLED);
    end_other(&other);
    free(from);
}

/* A stopped consumer of one lane costs the other lanes of the same threads nothing. */
static void stop__of_one_consumer__other_lanes_go_on(void **state)
{
    (void)state;
    struct testbed_read *stuck = testbed_read_make(&testbed.source, 1, 7, 1);
    testbed_read_set(stuck, 0, 0, 60 * KVF_MIB, 60 * KVF_MIB);
    struct other other = start_consumer();
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    testbed_offer(stuck);
    struct kvf_lane *stuck_lane = testbed.source.lane;
    struct testbed_end saved = testbed.source;
    for (int i = 0; i < 4; i++) {
        struct testbed_read *to = make_big(&testbed.consumer, 1, 0);
        struct testbed_read *from = make_big(&testbed.source, 1, 20 * KVF_MIB);
        struct testbed_end source = {.transport = testbed.source.transport};
        struct kvf_lane_nonces nonces;
        uint64_t deadline = kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S;
        assert_true(kvf_is_ok(kvf_lane_invite(source.transport, deadline, &testbed_events, &source,
                                              &nonces, &source.lane)));
        testbed_connect(&nonces, TESTBED_WAIT_S * 1000);
        testbed_expect(to);
        kvf_lane_offer(source.lane, &from->read);
        testbed_wait_ended(to);
        testbed_wait_ended(from);
        testbed_check_ok(to, from, 0);
        kvf_lane_close(source.lane);
        kvf_lane_close(testbed.consumer.lane);
        testbed_wait_closed(&source);
        testbed_wait_closed(&testbed.consumer);
        free(to);
        free(from);
    }
    assert_ptr_equal(testbed.source.lane, stuck_lane);
    assert_ptr_equal(saved.lane, stuck_lane);
    assert_int_equal(stuck->ended, 0);
    kvf_lane_close(stuck_lane);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(stuck->blocks[0].status.code, KVF_CANCELLED);
    end_other(&other);
    free(stuck);
}

/* ---- the program ---- */

static bool never(void *argument)
{
    (void)argument;
    return false;
}

static int be_source(void)
{
    testbed_open(transport_name);
    testbed_invite(TESTBED_WAIT_S * 1000);
    struct invitation invitation = {.port = kvf_transport_port(testbed.source.transport),
                                    .nonces = testbed.nonces};
    if (write(1, &invitation, sizeof(invitation)) != sizeof(invitation))
        return 1;
    char asked; /* the Read, which comes after the expect */
    if (read(0, &asked, 1) != 1)
        return 1;
    testbed_offer(make_big(&testbed.source, 1, 10 * KVF_MIB));
    testbed_wait(never, NULL);
    return 0;
}

static int be_consumer(void)
{
    testbed_open(transport_name);
    struct invitation invitation;
    if (read(0, &invitation, sizeof(invitation)) != sizeof(invitation))
        return 1;
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", invitation.port);
    if (!kvf_is_ok(kvf_lane_connect(testbed.consumer.transport, address, &invitation.nonces,
                                    kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S,
                                    &testbed_events, &testbed.consumer, &testbed.consumer.lane)))
        return 1;
    testbed_expect(make_big(&testbed.consumer, 1, 0));
    testbed_wait(consumer_is_open, NULL);
    if (write(1, "r", 1) != 1)
        return 1;
    testbed_wait(never, NULL);
    return 0;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

static int run_suite(void)
{
    const struct CMUnitTest tests[] = {
        TEST(transfer__odd_sizes_and_places__equal_and_nothing_else_touched),
        TEST(transfer__block_of_128_mib__equal),
        TEST(transfer__before_the_lane_is_open__arrives),
        TEST(transfer__many_small_blocks__all_arrive),
        TEST(transfer__64_blocks_landing_in_steps__all_arrive),
        TEST(transfer__source_memory_reused_once_it_has_ended__right_bytes_arrive),
        TEST(stats__after_transfers__count_payload),
        TEST(turns__short_read_behind_a_long_one__ends_first),
        TEST(turns__one_read_of_an_instance_against_seven__ends_before_them),
        TEST(withdraw__offered_block_that_has_not_landed__cancelled_and_lane_goes_on),
        TEST(withdraw__expected_blocks_at_once__cancelled_and_memory_left_alone),
        TEST(withdraw__at_random_on_both_sides__each_ends_once_and_is_let_go),
        TEST(close__by_the_consumer_under_way__all_end),
        TEST(close__by_the_source_under_way__all_end),
        TEST(close__then_withdraw_and_land__ends_once),
        TEST(close__other_side_first__late_reads_still_end),
        TEST(close__by_the_source_after_sending__ends_with_truth),
        TEST(close__1000_times__no_descriptor_is_left),
        TEST(invite__nobody_comes__closed_with_deadline),
        TEST(invite__many_lanes_at_once__each_nonce_opens_its_own),
        TEST(connect__wrong_nonce__refused_and_the_right_one_still_opens),
        TEST(connect__nonce_used_before__refused),
        TEST(connect__wrong_answer__denied),
        TEST(invite__deadline_already_over__closed_with_deadline),
        TEST(connect__bad_address__invalid_and_no_lane),
        TEST(death__of_the_source__blocks_end_unavailable),
        TEST(death__of_the_consumer__blocks_end_unavailable),
        TEST(stop__of_the_source__nothing_ends_until_we_close),
        TEST(stop__of_the_consumer__source_lets_go_when_it_closes),
        TEST(stop__of_one_consumer__other_lanes_go_on),
    };
    return cmocka_run_group_tests_name("transport_conformance", tests, NULL, NULL);
}

int conformance_run(const char *transport, int argc, char **argv)
{
    transport_name = transport;
    if (argc == 2 && strcmp(argv[1], "source") == 0)
        return be_source();
    if (argc == 2 && strcmp(argv[1], "consumer") == 0)
        return be_consumer();
    return run_suite();
}
