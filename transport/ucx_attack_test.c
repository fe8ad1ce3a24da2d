/* What only ucx can be told: peers that keep to nothing, on the link and over UCX. Over RDMA where there is a device, else
 * over TCP. */
#include "transport/ucx_raw.h"

#include "base/clock.h"
#include "base/crc32c.h"

#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>

/* Blocks 0 and 1 of 3 MiB, block 2 is none. */
static struct testbed_read *expect_three(void)
{
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 3);
    testbed_read_set(to, 0, 0, 3 * KVF_MIB, 0);
    testbed_read_set(to, 1, 4 * KVF_MIB, 3 * KVF_MIB, 0);
    testbed_expect(to);
    return to;
}

static void assert_nothing_was_written(void)
{
    assert_true(testbed_is_untouched(testbed.consumer.arena.base, TESTBED_ARENA_BYTES));
}

/* Who ends a lane says nothing more over UCX: the other one's send may end when it gives up. */
static void serve_until_closed(struct ucx_raw *raw, struct testbed_end *end)
{
    for (unsigned i = 0; i < 1000 && end->lane != NULL; i++)
        ucx_raw_serve_ms(raw, 10);
    assert_null(end->lane);
}

/* The consumer's lane ends for what the raw source has said, and with it all that expect_three expected. */
static void check_protocol(struct ucx_raw *raw, struct testbed_read *to)
{
    serve_until_closed(raw, &testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
    assert_int_equal(to->ended, 2);
    assert_int_equal(to->blocks[0].status.code, KVF_PROTOCOL);
    assert_nothing_was_written();
    ucx_raw_end(raw);
    free(to);
}

/* ---- a source's pieces ---- */

static void source__honest_pieces__arrive(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_source();
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    testbed_read_set(to, 0, 0, 2 * KVF_MIB, 0);
    testbed_expect(to);
    for (uint32_t i = 0; i < 2; i++)
        ucx_raw_piece(raw,
                      &(struct lane_header){.read = 1, .offset = i * KVF_MIB, .length = KVF_MIB},
                      testbed.pattern + i * KVF_MIB);
    ucx_raw_wait_ended(raw, 2);
    testbed_wait_ended(to);
    assert_int_equal(to->blocks[0].status.code, KVF_OK);
    assert_int_equal(to->blocks[0].crc32c, kvf_crc32c(0, testbed.pattern, 2 * KVF_MIB));
    assert_memory_equal(testbed.consumer.arena.base, testbed.pattern, 2 * KVF_MIB);
    ucx_raw_end(raw);
    testbed_wait_closed(&testbed.consumer);
    free(to);
}

static void source__illegal_piece__lane_ends_with_protocol_and_nothing_is_written(void **state)
{
    (void)state;
    static const struct lane_header headers[] = {
        {.read = 2, .length = 4096},                       /* never expected */
        {.read = 0, .length = 4096},                       /* no id */
        {.read = UINT64_MAX, .length = 4096},              /* never expected */
        {.read = 1, .block = 3, .length = 4096},           /* no such block */
        {.read = 1, .block = UINT32_MAX, .length = 4096},  /* nor this */
        {.read = 1, .block = 2, .length = 4096},           /* not expected */
        {.read = 1, .offset = 1, .length = 4096},          /* a gap */
        {.read = 1, .offset = 3 * KVF_MIB, .length = 1},   /* past the end */
        {.read = 1, .offset = UINT64_MAX, .length = 4096}, /* wraps */
    };
    for (unsigned i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        struct ucx_raw *raw = ucx_raw_source();
        struct testbed_read *to = expect_three();
        ucx_raw_piece(raw, &headers[i], testbed.pattern);
        check_protocol(raw, to);
    }
    assert_int_equal(testbed_stats(&testbed.consumer).protocol_errors,
                     sizeof(headers) / sizeof(headers[0]));
}

static void source__header_or_message_of_another_kind__protocol(void **state)
{
    (void)state;
    enum { REPLY = UCP_AM_SEND_FLAG_REPLY, RNDV = UCP_AM_SEND_FLAG_RNDV | REPLY };
    static const struct {
        size_t header_bytes, bytes;
        uint32_t flags;
    } messages[] = {
        {0, 4096, RNDV},                                           /* no header */
        {LANE_HEADER_BYTES - 1, 4096, RNDV},                       /* a short one */
        {LANE_HEADER_BYTES + 1, 4096, RNDV},                       /* a long one */
        {LANE_HEADER_BYTES, 4095, RNDV},                           /* less than it says */
        {LANE_HEADER_BYTES, 2 * KVF_MIB, RNDV},                    /* more than it says */
        {LANE_HEADER_BYTES, 4096, REPLY | UCP_AM_SEND_FLAG_EAGER}, /* not by rendezvous */
        {LANE_HEADER_BYTES, 0, REPLY},                             /* nothing */
    };
    for (unsigned i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
        struct ucx_raw *raw = ucx_raw_source();
        struct testbed_read *to = expect_three();
        uint8_t header[LANE_HEADER_BYTES + 1] = {0};
        lane_header_write(UCX_MARK, &(struct lane_header){.read = 1, .length = 4096}, header);
        ucx_raw_send(raw, UCX_PIECE_ID, header, messages[i].header_bytes, testbed.pattern,
                     messages[i].bytes, messages[i].flags);
        check_protocol(raw, to);
    }
}

static void source__random_headers__never_written_and_lane_ends(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        uint8_t header[64];
        struct ucx_raw *raw = ucx_raw_source();
        struct testbed_read *to = expect_three();
        assert_int_equal(getrandom(header, sizeof(header), 0), sizeof(header));
        ucx_raw_send(raw, UCX_PIECE_ID, header, testbed_random(sizeof(header) + 1), testbed.pattern,
                     1 + testbed_random(KVF_MIB), UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY);
        check_protocol(raw, to);
    }
}

static void source__pieces_for_blocks_that_were_taken_back__refused_and_counted(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_source();
    struct testbed_read *to = expect_three();
    kvf_lane_withdraw(&to->read, 0);
    for (uint32_t i = 0; i < 3; i++)
        ucx_raw_piece(raw,
                      &(struct lane_header){.read = 1, .offset = i * KVF_MIB, .length = KVF_MIB},
                      testbed.pattern);
    ucx_raw_wait_ended(raw, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(raw->statuses[i], UCS_ERR_CANCELED);
    assert_int_equal(to->blocks[0].status.code, KVF_CANCELLED);
    assert_int_equal(testbed_stats(&testbed.consumer).discarded_bytes, 3 * KVF_MIB);
    assert_true(testbed.consumer.opened);
    assert_nothing_was_written();
    kvf_lane_close(testbed.consumer.lane);
    testbed_wait_closed(&testbed.consumer);
    ucx_raw_end(raw);
    free(to);
}

static void source__more_pieces_than_it_may_have_under_way__protocol(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_source();
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    testbed_read_set(to, 0, 0, 32 * KVF_MIB, 0);
    testbed_expect(to);
    for (uint32_t i = 0; i < 12; i++)
        ucx_raw_piece(raw,
                      &(struct lane_header){.read = 1, .offset = i * KVF_MIB, .length = KVF_MIB},
                      testbed.pattern);
    /* All are announced; none can end while its source does not move: over RDMA they do, and then there is no excess. */
    for (unsigned i = 0; i < 100 && testbed.consumer.lane != NULL; i++) {
        (void)ucx.ucp_worker_progress(raw->worker);
        testbed_serve_ms(10);
        if (!testbed.ucx_over_tcp && testbed_stats(&testbed.consumer).received_bytes > 0)
            break;
    }
    if (testbed.ucx_over_tcp)
        assert_null(testbed.consumer.lane);
    ucx_raw_end(raw);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(to->ended, 1);
    free(to);
}

/* ---- who hangs ---- */

/* Over RDMA the consumer reads without the source's help: nothing hangs there. */
static void source__announces_and_stops__lane_ends_two_seconds_after_taking_back(void **state)
{
    (void)state;
    if (!testbed.ucx_over_tcp)
        return;
    struct ucx_raw *raw = ucx_raw_source();
    struct testbed_read *to = expect_three();
    ucx_raw_piece(raw, &(struct lane_header){.read = 1, .length = KVF_MIB}, testbed.pattern);
    ucx_raw_wait_ended(
        raw, 1); /* now they are connected, and the next announcement needs nothing more */
    ucx_raw_piece(raw, &(struct lane_header){.read = 1, .offset = KVF_MIB, .length = KVF_MIB},
                  testbed.pattern);
    testbed_serve_ms(100);
    uint64_t start = kvf_clock_now_ns();
    kvf_lane_withdraw(&to->read, KVF_LANE_ALL_BLOCKS);
    testbed_serve_ms(100);
    assert_int_equal(to->ended, 1);
    assert_int_equal(to->blocks[1].status.code, KVF_CANCELLED);
    testbed_wait_closed(&testbed.consumer);
    assert_true(kvf_clock_now_ns() - start >= 2 * KVF_NS_PER_S);
    assert_int_equal(testbed.consumer.closed.code, KVF_DEADLINE);
    assert_int_equal(to->ended, 2);
    assert_int_equal(to->blocks[0].status.code, KVF_DEADLINE);
    free(to);
    ucx_raw_end(raw);
}

static void consumer__never_answers__lane_ends_two_seconds_after_taking_back(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_consumer();
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 2);
    testbed_read_set(from, 0, 0, 8 * KVF_MIB, 8 * KVF_MIB);
    testbed_read_set(from, 1, 8 * KVF_MIB, 8 * KVF_MIB, 0);
    testbed_offer(from);
    for (unsigned i = 0; i < 1000 && raw->announced < 4; i++)
        ucx_raw_serve_ms(raw, 5);
    assert_int_equal(raw->announced, 4); /* and not a fifth */
    ucx_raw_serve_ms(raw, 50);
    assert_int_equal(raw->announced, 4);
    uint64_t start = kvf_clock_now_ns();
    kvf_lane_withdraw(&from->read, KVF_LANE_ALL_BLOCKS);
    testbed_wait_closed(&testbed.source);
    assert_true(kvf_clock_now_ns() - start >= 2 * KVF_NS_PER_S);
    assert_int_equal(testbed.source.closed.code, KVF_DEADLINE);
    assert_int_equal(from->ended, 2);
    assert_int_equal(from->blocks[0].status.code, KVF_DEADLINE);
    assert_int_equal(from->blocks[1].status.code, KVF_CANCELLED);
    ucx_raw_end(raw);
    free(from);
}

static void consumer__refuses_all__blocks_end_as_sent(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_consumer();
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
    testbed_read_set(from, 0, 0, 8 * KVF_MIB, 8 * KVF_MIB);
    raw->refuses = true;
    testbed_offer(from);
    for (unsigned i = 0; i < 1000 && from->ended == 0; i++)
        ucx_raw_serve_ms(raw, 5);
    assert_int_equal(from->ended_ok, 1);
    assert_int_equal(testbed_stats(&testbed.source).sent_bytes, 0);
    ucx_raw_end(raw);
    testbed_wait_closed(&testbed.source);
    free(from);
}

static void consumer__sends_a_piece__protocol(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_consumer();
    ucx_raw_piece(raw, &(struct lane_header){.read = 1, .length = 4096}, testbed.pattern);
    serve_until_closed(raw, &testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_PROTOCOL);
    ucx_raw_end(raw);
}

/* ---- a third one ---- */

static void stranger__who_knows_the_address__refused_and_counted_and_the_lane_goes_on(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_source();
    struct ucx_raw *stranger = ucx_raw_stranger(raw->heard);
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    testbed_read_set(to, 0, 0, KVF_MIB, 0);
    testbed_expect(to);
    ucx_raw_piece(stranger, &(struct lane_header){.read = 1, .length = KVF_MIB},
                  testbed.pattern + KVF_MIB);
    ucx_raw_wait_ended(stranger, 1);
    assert_int_equal(stranger->statuses[0], UCS_ERR_CANCELED);
    assert_nothing_was_written();
    assert_true(testbed.consumer.opened);
    assert_int_equal(testbed_stats(&testbed.consumer).discarded_bytes, KVF_MIB);
    assert_int_equal(testbed_stats(&testbed.consumer).protocol_errors, 1);
    ucx_raw_end(stranger);
    ucx_raw_piece(raw, &(struct lane_header){.read = 1, .length = KVF_MIB}, testbed.pattern);
    ucx_raw_wait_ended(raw, 1);
    testbed_wait_ended(to);
    assert_int_equal(to->ended_ok, 1);
    assert_memory_equal(testbed.consumer.arena.base, testbed.pattern, KVF_MIB);
    ucx_raw_end(raw);
    testbed_wait_closed(&testbed.consumer);
    free(to);
}

/* ---- the link ---- */

static void link__bytes_after_the_hello__protocol(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_source();
    assert_int_equal(send(raw->fd, "x", 1, MSG_NOSIGNAL), 1);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
    ucx_raw_end(raw);
    raw = ucx_raw_consumer();
    assert_int_equal(send(raw->fd, "x", 1, MSG_NOSIGNAL), 1);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_PROTOCOL);
    ucx_raw_end(raw);
}

static void link__address_that_is_none_or_too_long__protocol(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, UCX_ADDRESS_MAX_BYTES + 1, UINT32_MAX - 1};
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct ucx_raw *raw = ucx_raw_consumer_half(TESTBED_WAIT_S * 1000);
        ucx_raw_say(raw, &testbed.nonces.connect, lengths[i], SIZE_MAX);
        testbed_wait_closed(&testbed.source);
        assert_int_equal(testbed.source.closed.code, KVF_PROTOCOL);
        ucx_raw_end(raw);
        raw = ucx_raw_source_half(TESTBED_WAIT_S * 1000);
        ucx_raw_say(raw, &testbed.nonces.accept, lengths[i], SIZE_MAX);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
        ucx_raw_end(raw);
    }
}

static void link__wrong_nonce_before_an_address__ucx_never_sees_it(void **state)
{
    (void)state;
    struct kvf_nonce guess = {{1, 2, 3}};
    struct ucx_raw *raw = ucx_raw_source_half(TESTBED_WAIT_S * 1000);
    ucx_raw_say(raw, &guess, UINT32_MAX, SIZE_MAX);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_DENIED);
    ucx_raw_end(raw);
}

static void link__part_of_a_hello_then_nothing__deadline_or_unavailable(void **state)
{
    (void)state;
    static const size_t parts[] = {
        0, 1, LANE_GREETING_BYTES, UCX_HELLO_HEAD_BYTES, UCX_HELLO_HEAD_BYTES + 1, SIZE_MAX};
    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct ucx_raw *raw = ucx_raw_source_half(400);
        ucx_raw_say(raw, &testbed.nonces.accept, UINT32_MAX, parts[i]);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_DEADLINE);
        ucx_raw_end(raw);
        raw = ucx_raw_source_half(TESTBED_WAIT_S * 1000);
        ucx_raw_say(raw, &testbed.nonces.accept, UINT32_MAX, parts[i]);
        ucx_raw_end(raw);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
    }
}

/* From the whole hello on UCX is connecting. */
static void link__consumer_says_its_nonce_and_stops__deadline(void **state)
{
    (void)state;
    static const size_t parts[] = {LANE_GREETING_BYTES, UCX_HELLO_HEAD_BYTES,
                                   UCX_HELLO_HEAD_BYTES + 1, SIZE_MAX};
    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct ucx_raw *raw = ucx_raw_consumer_half(400);
        ucx_raw_say(raw, &testbed.nonces.connect, UINT32_MAX, parts[i]);
        testbed_wait_closed(&testbed.source);
        assert_int_equal(testbed.source.closed.code, KVF_DEADLINE);
        assert_int_equal(testbed.source.opened_count, 0);
        ucx_raw_end(raw);
    }
}

static void link__consumer_says_its_nonce_and_goes__lane_unavailable(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_consumer_half(TESTBED_WAIT_S * 1000);
    ucx_raw_say(raw, &testbed.nonces.connect, UINT32_MAX, UCX_HELLO_HEAD_BYTES);
    ucx_raw_end(raw);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_UNAVAILABLE);
    assert_int_equal(testbed.source.opened_count, 0);
}

/* Whatever of UCX's own talk is under way by then. The lane holds its piece back until the consumer has said that it is
 * connected, and so it keeps nothing for a connection that comes about. */
static void link__consumer_connects_and_goes__lane_unavailable(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        struct ucx_raw *raw = ucx_raw_consumer_connecting();
        struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
        testbed_read_set(from, 0, 0, KVF_MIB, KVF_MIB);
        testbed_offer(from);
        for (uint64_t turns = testbed_random(8); turns > 0; turns--)
            (void)ucx.ucp_worker_progress(raw->worker);
        assert_int_equal(testbed.source.opened_count, 0);
        ucx_raw_end(raw);
        testbed_wait_closed(&testbed.source);
        assert_int_equal(testbed.source.closed.code, KVF_UNAVAILABLE);
        testbed_wait_ended(from);
        assert_int_equal(from->blocks[0].status.code, KVF_UNAVAILABLE);
        free(from);
    }
}

static void link__connected_said_twice_or_by_a_source__protocol(void **state)
{
    (void)state;
    static const uint8_t byte = UCX_CONNECTED;
    struct ucx_raw *raw = ucx_raw_consumer();
    assert_int_equal(send(raw->fd, &byte, sizeof(byte), MSG_NOSIGNAL), sizeof(byte));
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_PROTOCOL);
    ucx_raw_end(raw);
    raw = ucx_raw_source();
    assert_int_equal(send(raw->fd, &byte, sizeof(byte), MSG_NOSIGNAL), sizeof(byte));
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
    ucx_raw_end(raw);
}

static void link__source_closed_while_the_consumer_says_half__gone(void **state)
{
    (void)state;
    struct ucx_raw *raw = ucx_raw_consumer_half(TESTBED_WAIT_S * 1000);
    ucx_raw_say(raw, &testbed.nonces.connect, UINT32_MAX, UCX_HELLO_HEAD_BYTES);
    testbed_serve_ms(20);
    kvf_lane_close(testbed.source.lane);
    testbed_wait_closed(&testbed.source);
    ucx_raw_end(raw);
}

#define TEST(function) TESTBED_TEST("ucx", function)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(source__honest_pieces__arrive),
        TEST(source__illegal_piece__lane_ends_with_protocol_and_nothing_is_written),
        TEST(source__header_or_message_of_another_kind__protocol),
        TEST(source__random_headers__never_written_and_lane_ends),
        TEST(source__pieces_for_blocks_that_were_taken_back__refused_and_counted),
        TEST(source__more_pieces_than_it_may_have_under_way__protocol),
        TEST(source__announces_and_stops__lane_ends_two_seconds_after_taking_back),
        TEST(consumer__never_answers__lane_ends_two_seconds_after_taking_back),
        TEST(consumer__refuses_all__blocks_end_as_sent),
        TEST(consumer__sends_a_piece__protocol),
        TEST(stranger__who_knows_the_address__refused_and_counted_and_the_lane_goes_on),
        TEST(link__bytes_after_the_hello__protocol),
        TEST(link__address_that_is_none_or_too_long__protocol),
        TEST(link__wrong_nonce_before_an_address__ucx_never_sees_it),
        TEST(link__part_of_a_hello_then_nothing__deadline_or_unavailable),
        TEST(link__consumer_says_its_nonce_and_stops__deadline),
        TEST(link__consumer_says_its_nonce_and_goes__lane_unavailable),
        TEST(link__consumer_connects_and_goes__lane_unavailable),
        TEST(link__connected_said_twice_or_by_a_source__protocol),
        TEST(link__source_closed_while_the_consumer_says_half__gone),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    testbed.ucx_over_tcp = !testbed_can_open("ucx");
    if (testbed.ucx_over_tcp && !testbed_can_open("ucx"))
        return 0;
    return cmocka_run_group_tests_name("ucx_attack", tests, NULL, NULL);
}
