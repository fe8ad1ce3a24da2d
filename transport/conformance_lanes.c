/* The suite's cases about lanes: their end, and how they open or do not. */
#include "transport/conformance_cases.h"

#include "base/clock.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- the end of a lane ---- */

struct testbed_read *conformance_big(struct testbed_end *end, uint64_t id, uint64_t landed)
{
    struct testbed_read *read = testbed_read_make(end, id, 7, 2);
    testbed_read_set(read, 0, 0, 20 * KVF_MIB, landed);
    testbed_read_set(read, 1, 32 * KVF_MIB, 20 * KVF_MIB, landed);
    return read;
}

/* Both sides have blocks under way that cannot finish; one side closes. */
static void close_with_blocks_under_way(struct testbed_end *closing, struct testbed_end *other)
{
    struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
    struct testbed_read *from = conformance_big(&testbed.source, 1, 10 * KVF_MIB);
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

void close__by_the_consumer_under_way__all_end(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        close_with_blocks_under_way(&testbed.consumer, &testbed.source);
}

void close__by_the_source_under_way__all_end(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        close_with_blocks_under_way(&testbed.source, &testbed.consumer);
}

/* What has ended is overwritten at once, and nothing that was on its way may still land there. */
void close__by_the_consumer_while_bytes_come__memory_is_let_go(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
        struct testbed_read *from = conformance_big(&testbed.source, 1, 20 * KVF_MIB);
        to->scribble = true;
        testbed_lanes_open();
        testbed_expect(to);
        testbed_offer(from);
        testbed_serve_ms((unsigned)testbed_random(20));
        kvf_lane_close(testbed.consumer.lane);
        testbed_wait_closed(&testbed.consumer);
        testbed_wait_closed(&testbed.source);
        testbed_serve_ms(5);
        assert_int_equal(to->ended, 2);
        for (uint32_t b = 0; b < 2; b++) {
            struct kvf_extent extent = to->blocks[b].extent;
            if (kvf_is_ok(to->blocks[b].status))
                testbed_check_ok(to, from, b);
            else
                assert_true(testbed_is_untouched(kvf_extent_at(extent), extent.bytes));
        }
        free(to);
        free(from);
    }
}

void close__then_withdraw_and_land__ends_once(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct testbed_read *from = conformance_big(&testbed.source, 1, KVF_MIB);
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

void close__other_side_first__late_reads_still_end(void **state)
{
    (void)state;
    testbed_lanes_open();
    kvf_lane_close(testbed.source.lane);
    for (uint64_t id = 1; testbed.consumer.lane != NULL; id++) {
        struct testbed_read *to = conformance_big(&testbed.consumer, id, 0);
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
void close__by_the_source_after_sending__ends_with_truth(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
        struct testbed_read *from = conformance_big(&testbed.source, 1, 20 * KVF_MIB);
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

/* More, or fewer where a lane takes its time, by KVF_TRANSPORT_CYCLES. */
void close__1000_times__no_descriptor_is_left(void **state)
{
    (void)state;
    const char *wanted = getenv("KVF_TRANSPORT_CYCLES");
    unsigned long cycles = wanted != NULL ? strtoul(wanted, NULL, 10) : 1000;
    assert_true(cycles > 0);
    testbed_lanes_open();
    testbed_lanes_close();
    unsigned before = testbed_descriptors();
    for (unsigned long i = 0; i < cycles; i++) {
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
    assert_int_equal(testbed_descriptors(), before);
}

/* ---- an idle lane ---- */

static uint64_t cpu_ns(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * KVF_NS_PER_S +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

/* A thread that spins would take the whole second. */
void idle__open_lane_after_a_transfer__sleeps(void **state)
{
    (void)state;
    testbed_lanes_open();
    testbed_check_transfer(3 * KVF_MIB);
    uint64_t before = cpu_ns();
    (void)sleep(1);
    assert_true(cpu_ns() - before < KVF_NS_PER_S / 4);
}

/* ---- opening ---- */

void invite__nobody_comes__closed_with_deadline(void **state)
{
    (void)state;
    testbed_invite(20);
    struct testbed_read *from = conformance_big(&testbed.source, 1, 0);
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

void connect__wrong_nonce__refused_and_the_right_one_still_opens(void **state)
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
    testbed_check_transfer(100);
}

void connect__nonce_used_before__refused(void **state)
{
    (void)state;
    testbed_lanes_open();
    struct testbed_end first = testbed.consumer;
    struct testbed_end second = {.transport = first.transport};
    testbed_end_connect(&second, testbed_port(), &testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_wait_closed(&second);
    assert_int_equal(second.closed.code, KVF_UNAVAILABLE);
    assert_int_equal(second.opened_count, 0);
    assert_true(testbed.source.opened && testbed.consumer.opened);
}

void connect__wrong_answer__denied(void **state)
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

void invite__deadline_already_over__closed_with_deadline(void **state)
{
    (void)state;
    testbed_invite(0);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_DEADLINE);
}

void connect__bad_address__invalid_and_no_lane(void **state)
{
    (void)state;
    static const char *const addresses[] = {"", ":", "127.0.0.1", "127.0.0.1:port", ":80"};
    struct kvf_lane *lane = NULL;
    for (unsigned i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        struct kvf_status status =
            kvf_lane_connect(testbed.consumer.transport, addresses[i], KVF_ANY_DEVICE,
                             &testbed.nonces, kvf_clock_now_ns(), &testbed_events, NULL, &lane);
        assert_int_equal(status.code, KVF_INVALID);
        assert_null(lane);
    }
}

void invite__many_lanes_at_once__each_nonce_opens_its_own(void **state)
{
    (void)state;
    enum { LANES = 32 };
    static struct testbed_end source[LANES], consumer[LANES];
    struct kvf_lane_nonces nonces[LANES];
    for (unsigned i = 0; i < LANES; i++) {
        source[i] = (struct testbed_end){.transport = testbed.source.transport};
        consumer[i] = (struct testbed_end){.transport = testbed.consumer.transport};
        testbed_end_invite(&source[i], &nonces[i], TESTBED_WAIT_S * 1000);
    }
    for (unsigned i = LANES; i-- > 0;)
        testbed_end_connect(&consumer[i], testbed_port(), &nonces[i], TESTBED_WAIT_S * 1000);
    for (unsigned i = 0; i < LANES; i++) {
        struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
        struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
        testbed_read_set(to, 0, i * KVF_MIB, 300000 + i, 0);
        testbed_read_set(from, 0, (LANES - i) * KVF_MIB, 300000 + i, 300000 + i);
        testbed_transfer(consumer[i].lane, to, source[i].lane, from);
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
