/* The suite's cases about blocks: their bytes arrive right, Reads take turns, taking back. */
#include "transport/conformance_cases.h"

#include "base/crc32c.h"
#include "transport/lane_core.h"

#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

void transfer__odd_sizes_and_places__equal_and_nothing_else_touched(void **state)
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

void transfer__block_of_128_mib__equal(void **state)
{
    (void)state;
    uint64_t length = KVF_BLOCK_MAX_BYTES;
    testbed_reopen(length);
    const struct kvf_arena *from_arena = &testbed.source.extra, *to_arena = &testbed.consumer.extra;
    memcpy(from_arena->base, testbed.pattern, TESTBED_ARENA_BYTES);
    memcpy(from_arena->base + TESTBED_ARENA_BYTES, testbed.pattern + 1, TESTBED_ARENA_BYTES - 1);
    testbed_lanes_open();
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
    to->blocks[0].extent = (struct kvf_extent){to_arena, 0, length};
    from->blocks[0].extent = (struct kvf_extent){from_arena, 0, length};
    to->blocks[0].length = from->blocks[0].length = from->blocks[0].landed_bytes = length;
    to->expected = from->expected = 1;
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    assert_int_equal(to->blocks[0].status.code, KVF_OK);
    assert_int_equal(memcmp(to_arena->base, from_arena->base, length), 0);
    assert_int_equal(to->blocks[0].crc32c, kvf_crc32c(0, from_arena->base, length));
    free(to);
    free(from);
}

void transfer__before_the_lane_is_open__arrives(void **state)
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

void transfer__many_small_blocks__all_arrive(void **state)
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

void transfer__64_blocks_landing_in_steps__all_arrive(void **state)
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

void transfer__source_memory_reused_once_it_has_ended__right_bytes_arrive(void **state)
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
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    for (uint32_t i = 0; i < 16; i++)
        testbed_check_ok(to, from, i);
    free(to);
    free(from);
}

void stats__after_transfers__count_payload(void **state)
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
    testbed_hold();
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t instance = i == 0 ? 1 : instance_of_short;
        to[i] = testbed_read_make(&testbed.consumer, i + 1, instance, 1);
        from[i] = testbed_read_make(&testbed.source, i + 1, instance, 1);
        testbed_read_set(to[i], 0, i * 48 * KVF_MIB, lengths[i], 0);
        testbed_read_set(from[i], 0, i * 48 * KVF_MIB, lengths[i], lengths[i]);
        testbed_expect(to[i]);
        testbed_offer(from[i]);
    }
    testbed_let_go();
    for (uint32_t i = 0; i < 2; i++) {
        testbed_wait_ended(to[i]);
        testbed_wait_ended(from[i]);
        testbed_check_ok(to[i], from[i], 0);
    }
}

void turns__short_read_behind_a_long_one__ends_first(void **state)
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
void turns__one_read_of_an_instance_against_seven__ends_before_them(void **state)
{
    (void)state;
    struct testbed_read *to[8], *from[8];
    testbed_lanes_open();
    testbed_hold();
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t instance = i == 7 ? 2 : 1;
        to[i] = testbed_read_make(&testbed.consumer, i + 1, instance, 1);
        from[i] = testbed_read_make(&testbed.source, i + 1, instance, 1);
        testbed_read_set(to[i], 0, i * 8 * KVF_MIB, 7 * KVF_MIB, 0);
        testbed_read_set(from[i], 0, i * 8 * KVF_MIB, 7 * KVF_MIB, 7 * KVF_MIB);
        testbed_expect(to[i]);
        testbed_offer(from[i]);
    }
    testbed_let_go();
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

/* One instance has 60 Reads open, another one asks for one block: the others get a turn or two before it, however much
 * they have asked for. */
void turns__modest_read_beside_sixty__waits_for_a_few_pieces(void **state)
{
    enum { GREEDY = 60, MODEST = GREEDY };
    (void)state;
    struct testbed_read *to[GREEDY + 1], *from[GREEDY + 1];
    testbed_lanes_open();
    testbed_hold();
    for (uint32_t i = 0; i <= MODEST; i++) {
        uint64_t instance = i == MODEST ? 2 : 1;
        to[i] = testbed_read_make(&testbed.consumer, i + 1, instance, 1);
        from[i] = testbed_read_make(&testbed.source, i + 1, instance, 1);
        testbed_read_set(to[i], 0, i * KVF_MIB, KVF_MIB, 0);
        testbed_read_set(from[i], 0, i * KVF_MIB, KVF_MIB, KVF_MIB);
        testbed_expect(to[i]);
        testbed_offer(from[i]);
    }
    testbed_let_go();
    unsigned before = 0;
    for (uint32_t i = 0; i <= MODEST; i++) {
        testbed_wait_ended(to[i]);
        testbed_wait_ended(from[i]);
        testbed_check_ok(to[i], from[i], 0);
    }
    for (uint32_t i = 0; i < GREEDY; i++)
        before += to[i]->last_event < to[MODEST]->last_event;
    assert_in_range(before, 0, 4);
    for (uint32_t i = 0; i <= MODEST; i++) {
        free(to[i]);
        free(from[i]);
    }
}

static void open_lanes(struct testbed_end *source, struct testbed_end *consumer)
{
    struct kvf_lane_nonces nonces;
    *source = (struct testbed_end){.transport = testbed.source.transport};
    *consumer = (struct testbed_end){.transport = testbed.consumer.transport};
    testbed_end_invite(source, &nonces, TESTBED_WAIT_S * 1000);
    testbed_end_connect(consumer, testbed_port(), &nonces, TESTBED_WAIT_S * 1000);
    testbed_wait_opened(source);
    testbed_wait_opened(consumer);
}

/* The same on lanes of their own, as two consumers have: at most 32 MiB move for the greedy one first. The lanes share a
 * thread, for else they would share nothing but the machine. */
void turns__modest_lane_beside_sixty_reads_of_another__waits_for_32_mib_at_most(void **state)
{
    enum { GREEDY = 60, MODEST = GREEDY, LANES = 8 };
    (void)state;
    struct testbed_read *to[GREEDY + 1], *from[GREEDY + 1];
    struct testbed_end sources[LANES], consumers[LANES];
    unsigned lanes = 0, before = 0;
    testbed_lanes_open();
    do {
        assert_true(lanes < LANES);
        open_lanes(&sources[lanes], &consumers[lanes]);
    } while (sources[lanes++].lane->thread != testbed.source.lane->thread);
    assert_ptr_equal(consumers[lanes - 1].lane->thread, testbed.consumer.lane->thread);
    testbed_hold();
    for (uint32_t i = 0; i <= MODEST; i++) {
        to[i] = testbed_read_make(&testbed.consumer, i + 1, 1, 1);
        from[i] = testbed_read_make(&testbed.source, i + 1, 1, 1);
        testbed_read_set(to[i], 0, i * KVF_MIB, KVF_MIB, 0);
        testbed_read_set(from[i], 0, i * KVF_MIB, KVF_MIB, KVF_MIB);
        testbed_transfer(i == MODEST ? consumers[lanes - 1].lane : testbed.consumer.lane, to[i],
                         i == MODEST ? sources[lanes - 1].lane : testbed.source.lane, from[i]);
    }
    testbed_let_go();
    for (uint32_t i = 0; i <= MODEST; i++) {
        testbed_wait_ended(to[i]);
        testbed_wait_ended(from[i]);
        testbed_check_ok(to[i], from[i], 0);
    }
    for (uint32_t i = 0; i < GREEDY; i++)
        before += from[i]->last_event < from[MODEST]->last_event;
    assert_in_range(before, 0, 32);
    for (uint32_t i = 0; i <= MODEST; i++) {
        free(to[i]);
        free(from[i]);
    }
    while (lanes-- > 0) {
        kvf_lane_close(sources[lanes].lane);
        kvf_lane_close(consumers[lanes].lane);
        testbed_wait_closed(&sources[lanes]);
        testbed_wait_closed(&consumers[lanes]);
    }
}

/* ---- taking back ---- */

static bool first_has_ended(void *read)
{
    return ((struct testbed_read *)read)->ended_count[0] > 0;
}

static bool second_has_ended(void *read)
{
    return ((struct testbed_read *)read)->ended_count[1] > 0;
}

void withdraw__offered_block_that_has_not_landed__cancelled_and_lane_goes_on(void **state)
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
    testbed_wait(first_has_ended, from);
    testbed_wait(second_has_ended, to);
    kvf_lane_landed(&from->read, 0, 100000);
    kvf_lane_withdraw(&to->read, 0);
    testbed_wait_ended(to);
    assert_int_equal(to->blocks[0].status.code, KVF_CANCELLED);
    testbed_wait_ended(from);
    kvf_lane_withdraw(&from->read, KVF_LANE_ALL_BLOCKS);
    assert_int_equal(from->blocks[0].status.code, KVF_CANCELLED);
    assert_int_equal(from->blocks[1].status.code, KVF_OK);
    testbed_check_ok(to, from, 1);
    free(to);
    free(from);
}

void withdraw__expected_blocks_at_once__cancelled_and_memory_left_alone(void **state)
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
    assert_int_equal(testbed_stats(&testbed.consumer).discarded_bytes,
                     testbed.needs_tokens ? 0 : 12 * KVF_MIB);
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
    if (!testbed.needs_tokens)
        testbed_wait_ended(from);
    kvf_lane_withdraw(&to->read, KVF_LANE_ALL_BLOCKS);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    check_storm_round(to, from);
    free(to);
    free(from);
}

void withdraw__at_random_on_both_sides__each_ends_once_and_is_let_go(void **state)
{
    (void)state;
    testbed_lanes_open();
    for (uint64_t id = 1; id <= 150; id++)
        storm_round(id, id % 2 * (TESTBED_ARENA_BYTES / 2));
    assert_true(testbed.source.opened && testbed.consumer.opened);
}
