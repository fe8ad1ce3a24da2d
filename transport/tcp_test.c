/* What only tcp can be told: a raw socket plays the stranger, the consumer or the source. */
#include "transport/tcp_wire.h"
#include "transport/testbed.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- a raw peer ---- */

static void raw_send(int fd, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    while (count > 0) {
        ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the other side has closed: what some tests want */
        at += sent;
        count -= (size_t)sent;
    }
}

struct socket_state {
    int fd;
    bool ended;
};

static bool has_ended(void *argument)
{
    struct socket_state *socket_state = argument;
    char bytes[4096];
    for (;;) {
        ssize_t got = recv(socket_state->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (got > 0)
            continue;
        return got == 0 || (errno != EAGAIN && errno != EINTR);
    }
}

/* Serve until the other side has closed this connection. */
static void raw_wait_end(int fd)
{
    struct socket_state socket_state = {.fd = fd};
    testbed_wait(has_ended, &socket_state);
    (void)close(fd);
}

static void raw_receive(int fd, void *bytes, size_t count)
{
    uint8_t *at = bytes;
    while (count > 0) {
        ssize_t got = recv(fd, at, count, 0);
        assert_true(got > 0);
        at += got;
        count -= (size_t)got;
    }
}

static uint64_t source_errors(void)
{
    return testbed_stats(&testbed.source).protocol_errors;
}

/* A raw consumer whose lane is open at the source. */
static int raw_consumer(void)
{
    uint8_t greeting[LANE_GREETING_BYTES];
    testbed_invite(TESTBED_WAIT_S * 1000);
    int fd = testbed_socket_connected();
    lane_greeting_write(&tcp_greeting, &testbed.nonces.connect, greeting);
    raw_send(fd, greeting, sizeof(greeting));
    raw_receive(fd, greeting, sizeof(greeting));
    assert_true(lane_greeting_is(&tcp_greeting, greeting));
    assert_true(lane_greeting_has_nonce(greeting, &testbed.nonces.accept));
    return fd;
}

struct raw_source {
    int listener, fd;
};

/* A raw source that our consumer connects to; it has heard the consumer's greeting and said nothing. */
static struct raw_source raw_source_silent(uint64_t timeout_ms)
{
    int port;
    struct raw_source raw = {.listener = testbed_socket_listening(&port)};
    memset(&testbed.nonces, 0x5c, sizeof(testbed.nonces));
    testbed_end_connect(&testbed.consumer, port, &testbed.nonces, timeout_ms);
    raw.fd = accept(raw.listener, NULL, NULL);
    assert_true(raw.fd >= 0);
    uint8_t greeting[LANE_GREETING_BYTES];
    raw_receive(raw.fd, greeting, sizeof(greeting));
    assert_true(lane_greeting_has_nonce(greeting, &testbed.nonces.connect));
    return raw;
}

static struct raw_source raw_source_open(void)
{
    struct raw_source raw = raw_source_silent(TESTBED_WAIT_S * 1000);
    uint8_t greeting[LANE_GREETING_BYTES];
    lane_greeting_write(&tcp_greeting, &testbed.nonces.accept, greeting);
    raw_send(raw.fd, greeting, sizeof(greeting));
    testbed_wait_opened(&testbed.consumer);
    return raw;
}

static void raw_source_end(struct raw_source *raw)
{
    (void)close(raw->fd);
    (void)close(raw->listener);
}

static void send_frame(int fd, struct lane_header header, const uint8_t *payload)
{
    uint8_t bytes[LANE_HEADER_BYTES];
    lane_header_write(TCP_MARK, &header, bytes);
    raw_send(fd, bytes, sizeof(bytes));
    if (payload != NULL)
        raw_send(fd, payload, header.length);
}

/* ---- strangers at the port ---- */

static void port__garbage__ended_counted_and_lanes_still_open(void **state)
{
    (void)state;
    uint8_t garbage[4096];
    for (unsigned i = 0; i < sizeof(garbage); i++)
        garbage[i] = (uint8_t)testbed_random(256);
    for (unsigned i = 0; i < 20; i++) {
        int fd = testbed_socket_connected();
        raw_send(fd, garbage, LANE_GREETING_BYTES + testbed_random(4000));
        raw_wait_end(fd);
    }
    assert_int_equal(source_errors(), 20);
    testbed_lanes_open();
}

/* None of them opens anything, each is counted, and the lane that they were after still opens. */
static void port__ten_thousand_guessed_nonces__none_opens_and_the_right_one_does(void **state)
{
    (void)state;
    enum { GUESSES = 10000, AT_ONCE = 50 };
    testbed_invite(TESTBED_WAIT_S * 1000);
    for (unsigned guess = 0; guess < GUESSES; guess += AT_ONCE) {
        int fds[AT_ONCE];
        for (unsigned i = 0; i < AT_ONCE; i++) {
            struct kvf_nonce nonce = testbed.nonces.connect;
            uint8_t greeting[LANE_GREETING_BYTES];
            if ((guess + i) % 2 == 0) /* every second one is as near as can be */
                nonce.bytes[testbed_random(KVF_NONCE_BYTES)] ^= (uint8_t)(1 << testbed_random(8));
            else
                for (unsigned byte = 0; byte < KVF_NONCE_BYTES; byte++)
                    nonce.bytes[byte] = (uint8_t)testbed_random(256);
            lane_greeting_write(&tcp_greeting, &nonce, greeting);
            fds[i] = testbed_socket_connected();
            raw_send(fds[i], greeting, sizeof(greeting));
        }
        for (unsigned i = 0; i < AT_ONCE; i++) {
            char byte; /* the lane's thread refuses, our loop has no part in it */
            assert_true(recv(fds[i], &byte, 1, 0) <= 0);
            (void)close(fds[i]);
        }
    }
    assert_int_equal(source_errors(), GUESSES);
    assert_false(testbed.source.opened);
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_wait_opened(&testbed.source);
}

static void port__other_version__ended(void **state)
{
    (void)state;
    uint8_t greeting[LANE_GREETING_BYTES];
    testbed_invite(TESTBED_WAIT_S * 1000);
    lane_greeting_write(&tcp_greeting, &testbed.nonces.connect, greeting);
    greeting[8]++;
    int fd = testbed_socket_connected();
    raw_send(fd, greeting, sizeof(greeting));
    raw_wait_end(fd);
    assert_int_equal(source_errors(), 1);
    assert_non_null(testbed.source.lane);
}

static void port__closes_in_the_middle_of_its_greeting__counted(void **state)
{
    (void)state;
    uint8_t greeting[LANE_GREETING_BYTES];
    testbed_invite(TESTBED_WAIT_S * 1000);
    lane_greeting_write(&tcp_greeting, &testbed.nonces.connect, greeting);
    int fd = testbed_socket_connected();
    raw_send(fd, greeting, 47);
    (void)shutdown(fd, SHUT_WR);
    raw_wait_end(fd);
    assert_int_equal(source_errors(), 1);
    assert_false(testbed.source.opened);
}

static void port__says_nothing__ended_after_its_time(void **state)
{
    (void)state;
    int fd = testbed_socket_connected();
    raw_wait_end(fd);
    assert_int_equal(source_errors(), 1);
}

static void port__greeting_byte_by_byte__opens(void **state)
{
    (void)state;
    uint8_t greeting[LANE_GREETING_BYTES];
    testbed_invite(TESTBED_WAIT_S * 1000);
    lane_greeting_write(&tcp_greeting, &testbed.nonces.connect, greeting);
    int fd = testbed_socket_connected();
    for (unsigned i = 0; i < sizeof(greeting); i++) {
        raw_send(fd, greeting + i, 1);
        if (i % 8 == 0)
            testbed_serve_ms(1);
    }
    testbed_wait_opened(&testbed.source);
    (void)close(fd);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_UNAVAILABLE);
}

/* More strangers than there are places: the oldest go, and who knows a nonce still gets in at once. */
static void port__flood_of_silent_strangers__a_lane_still_opens(void **state)
{
    (void)state;
    enum { STRANGERS = 200 };
    int fds[STRANGERS];
    for (unsigned i = 0; i < STRANGERS; i++)
        fds[i] = testbed_socket_connected();
    testbed_lanes_open();
    assert_true(source_errors() >= STRANGERS - 64);
    for (unsigned i = 0; i < STRANGERS; i++)
        raw_wait_end(fds[i]);
    assert_int_equal(source_errors(), STRANGERS);
    assert_true(testbed.source.opened);
}

/* Without descriptors accept fails; the listener must neither spin nor stay dead. */
static void port__out_of_descriptors_for_a_while__accepts_again(void **state)
{
    (void)state;
    struct rlimit before, none;
    int fd = testbed_socket_connected();
    testbed_serve_ms(20);
    int waiting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port =
                                      htons((uint16_t)kvf_transport_port(testbed.source.transport)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int connected = connect(waiting, (struct sockaddr *)&address, sizeof(address));
    testbed_serve_ms(300);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(connected, 0);
    raw_wait_end(waiting);
    raw_wait_end(fd);
    assert_int_equal(source_errors(), 2);
    testbed_lanes_open();
}

/* ---- a consumer that misbehaves ---- */

static void consumer__speaks_after_its_greeting__lane_ends_with_protocol(void **state)
{
    (void)state;
    int fd = raw_consumer();
    raw_send(fd, "x", 1);
    testbed_wait_closed(&testbed.source);
    assert_int_equal(testbed.source.closed.code, KVF_PROTOCOL);
    assert_int_equal(source_errors(), 1);
    (void)close(fd);
}

/* Frames of a block come in order, without gap or overlap, and none is longer than a piece. */
static void source__frames_on_the_wire__continue_each_other(void **state)
{
    (void)state;
    struct testbed_read *from = testbed_read_make(&testbed.source, 9, 7, 3);
    static const uint64_t lengths[3] = {5 * KVF_MIB + 17, 4096, 1};
    uint64_t done[3] = {0};
    for (uint32_t i = 0; i < 3; i++)
        testbed_read_set(from, i, i * 8 * KVF_MIB, lengths[i], lengths[i]);
    int fd = raw_consumer();
    testbed_offer(from);
    uint8_t *payload = malloc(KVF_LANE_PIECE_BYTES);
    assert_non_null(payload);
    while (done[0] + done[1] + done[2] < lengths[0] + lengths[1] + lengths[2]) {
        uint8_t bytes[LANE_HEADER_BYTES];
        struct lane_header header;
        raw_receive(fd, bytes, sizeof(bytes));
        assert_true(lane_header_read(TCP_MARK, bytes, &header));
        assert_int_equal(header.read, 9);
        assert_true(header.block < 3);
        assert_int_equal(header.offset, done[header.block]);
        raw_receive(fd, payload, header.length);
        assert_int_equal(memcmp(payload,
                                testbed.pattern + header.block * 8 * KVF_MIB + header.offset,
                                header.length),
                         0);
        done[header.block] += header.length;
    }
    testbed_wait_ended(from);
    assert_int_equal(from->ended_ok, 3);
    free(payload);
    free(from);
    (void)close(fd);
}

/* The consumer reads nothing: a block whose frame has begun keeps its memory until the frame or the lane ends. */
static void source__withdrawn_within_a_frame__frame_is_finished_first(void **state)
{
    (void)state;
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
    testbed_read_set(from, 0, 0, 40 * KVF_MIB, 40 * KVF_MIB);
    int fd = raw_consumer();
    testbed_offer(from);
    testbed_serve_ms(200);
    kvf_lane_withdraw(&from->read, 0);
    testbed_serve_ms(50);
    uint64_t done = 0;
    uint8_t *payload = malloc(KVF_LANE_PIECE_BYTES);
    assert_non_null(payload);
    uint64_t sent = testbed_stats(&testbed.source).sent_bytes;
    while (from->ended == 0 || done < testbed_stats(&testbed.source).sent_bytes) {
        uint8_t bytes[LANE_HEADER_BYTES];
        struct lane_header header;
        raw_receive(fd, bytes, sizeof(bytes));
        assert_true(lane_header_read(TCP_MARK, bytes, &header));
        assert_int_equal(header.offset, done);
        raw_receive(fd, payload, header.length);
        assert_int_equal(memcmp(payload, testbed.pattern + header.offset, header.length), 0);
        done += header.length;
        testbed_serve_ms(1);
    }
    assert_true(done < 40 * KVF_MIB);
    assert_true(done <= sent + KVF_LANE_PIECE_BYTES);
    assert_int_equal(from->blocks[0].status.code, KVF_CANCELLED);
    free(payload);
    free(from);
    (void)close(fd);
}

/* ---- a source that misbehaves ---- */

static void source__never_answers__closed_with_deadline(void **state)
{
    (void)state;
    struct raw_source raw = raw_source_silent(1000); /* within it our greeting must have come */
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_DEADLINE);
    raw_source_end(&raw);
}

static void source__answers_garbage__protocol(void **state)
{
    (void)state;
    struct raw_source raw = raw_source_silent(TESTBED_WAIT_S * 1000);
    uint8_t garbage[LANE_GREETING_BYTES] = {0};
    raw_send(raw.fd, garbage, sizeof(garbage));
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
    raw_source_end(&raw);
}

static void source__closes_instead_of_answering__unavailable(void **state)
{
    (void)state;
    struct raw_source raw = raw_source_silent(TESTBED_WAIT_S * 1000);
    raw_source_end(&raw);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
}

/* Blocks 0 (10000 bytes, of which 1000 have arrived), 1 (10000 bytes) and 2 (not expected) of Read 5. */
static struct testbed_read *expect_begun(struct raw_source *raw)
{
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 5, 7, 3);
    testbed_read_set(to, 0, KVF_MIB, 10000, 0);
    testbed_read_set(to, 1, 2 * KVF_MIB, 10000, 0);
    *raw = raw_source_open();
    testbed_expect(to);
    send_frame(raw->fd, (struct lane_header){.read = 5, .block = 0, .offset = 0, .length = 1000},
               testbed.pattern);
    return to;
}

static bool first_bytes_are_here(void *argument)
{
    (void)argument;
    return testbed_stats(&testbed.consumer).received_bytes == 1000;
}

static void source__illegal_frame__lane_ends_with_protocol_and_nothing_is_written(void **state)
{
    (void)state;
    static const struct lane_header frames[] = {
        {.read = 6, .block = 0, .offset = 0, .length = 100}, /* from the future */
        {.read = 0, .block = 0, .offset = 0, .length = 100}, /* no id */
        {.read = UINT64_MAX, .block = 0, .offset = 0, .length = 100},
        {.read = 5, .block = 0, .offset = 0, .length = 100}, /* overlap */
        {.read = 5, .block = 0, .offset = 999, .length = 100},
        {.read = 5, .block = 0, .offset = 1001, .length = 100}, /* gap */
        {.read = 5, .block = 0, .offset = UINT64_MAX, .length = 100},
        {.read = 5, .block = 0, .offset = 1000, .length = 9001}, /* too long */
        {.read = 5, .block = 1, .offset = 0, .length = 1 << 20},
        {.read = 5, .block = 1, .offset = 0, .length = 0}, /* no frame at all */
        {.read = 5, .block = 1, .offset = 0, .length = (1 << 20) + 1},
        {.read = 5, .block = 1, .offset = 0, .length = UINT32_MAX},
        {.read = 5, .block = 2, .offset = 0, .length = 1}, /* not expected */
        {.read = 5, .block = 3, .offset = 0, .length = 1}, /* no such block */
        {.read = 5, .block = UINT32_MAX, .offset = 0, .length = 1},
    };
    for (unsigned i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        struct raw_source raw;
        struct testbed_read *to = expect_begun(&raw);
        testbed_wait(first_bytes_are_here, NULL);
        memset(testbed.consumer.arena.base, TESTBED_SENTINEL, TESTBED_ARENA_BYTES);
        send_frame(raw.fd, frames[i], NULL);
        raw_send(raw.fd, testbed.pattern, 2 * KVF_MIB);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
        assert_int_equal(to->ended, 2);
        assert_int_equal(to->blocks[0].status.code, KVF_PROTOCOL);
        assert_int_equal(testbed_stats(&testbed.consumer).protocol_errors, 1);
        assert_true(testbed_is_untouched(testbed.consumer.arena.base, TESTBED_ARENA_BYTES));
        raw_source_end(&raw);
        free(to);
        testbed_close();
        testbed_open("tcp");
    }
}

static void source__more_for_a_block_that_is_whole__protocol(void **state)
{
    (void)state;
    struct raw_source raw;
    struct testbed_read *to = expect_begun(&raw);
    send_frame(raw.fd, (struct lane_header){.read = 5, .block = 0, .offset = 1000, .length = 9000},
               testbed.pattern);
    send_frame(raw.fd, (struct lane_header){.read = 5, .block = 0, .offset = 10000, .length = 1},
               testbed.pattern);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(to->blocks[0].status.code, KVF_OK);
    assert_int_equal(to->blocks[1].status.code, KVF_PROTOCOL);
    raw_source_end(&raw);
    free(to);
}

static bool all_discarded(void *argument)
{
    uint64_t *bytes = argument;
    return testbed_stats(&testbed.consumer).discarded_bytes >= *bytes;
}

/* What was expected once is discarded and counted; the lane goes on. */
static void source__frames_for_blocks_that_were_taken_back__discarded(void **state)
{
    (void)state;
    struct raw_source raw;
    struct testbed_read *to = expect_begun(&raw);
    /* A frame that is under way when its block is withdrawn. */
    testbed_wait(first_bytes_are_here, NULL);
    struct lane_header header = {.read = 5, .block = 0, .offset = 1000, .length = 9000};
    uint8_t bytes[LANE_HEADER_BYTES];
    lane_header_write(TCP_MARK, &header, bytes);
    raw_send(raw.fd, bytes, sizeof(bytes));
    raw_send(raw.fd, testbed.pattern, 10);
    kvf_lane_withdraw(&to->read, KVF_LANE_ALL_BLOCKS);
    testbed_wait_ended(to);
    assert_int_equal(to->blocks[0].status.code, KVF_CANCELLED);
    free(to);
    memset(testbed.consumer.arena.base, TESTBED_SENTINEL, TESTBED_ARENA_BYTES);
    raw_send(raw.fd, testbed.pattern, 8990);
    /* Frames of Reads that have ended, and of ones below them. */
    send_frame(raw.fd, (struct lane_header){.read = 5, .block = 1, .offset = 0, .length = 10000},
               testbed.pattern);
    send_frame(raw.fd, (struct lane_header){.read = 2, .block = 77, .offset = 5, .length = 1 << 20},
               testbed.pattern);
    uint64_t least = 8990 + 10000 + KVF_MIB;
    testbed_wait(all_discarded, &least);
    assert_true(testbed_is_untouched(testbed.consumer.arena.base, TESTBED_ARENA_BYTES));
    assert_true(testbed.consumer.opened);
    raw_source_end(&raw);
}

/* Whatever sizes the network cuts the stream into. */
static void source__stream_in_odd_pieces__arrives(void **state)
{
    (void)state;
    enum { BLOCKS = 40 };
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, BLOCKS);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, BLOCKS);
    uint8_t *stream = malloc(8 * KVF_MIB);
    assert_non_null(stream);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint64_t length = 1 + testbed_random(i % 4 == 0 ? 300000 : 6000), done = 0;
        testbed_read_set(to, i, i * KVF_MIB, length, 0);
        testbed_read_set(from, i, i * KVF_MIB, length, length);
        while (done < length) {
            uint64_t now = 1 + testbed_random(length - done);
            struct lane_header header = {
                .read = 1, .block = i, .offset = done, .length = (uint32_t)now};
            lane_header_write(TCP_MARK, &header, stream + bytes);
            memcpy(stream + bytes + LANE_HEADER_BYTES, testbed.pattern + i * KVF_MIB + done, now);
            bytes += LANE_HEADER_BYTES + now;
            done += now;
        }
        assert_true(bytes < 7 * KVF_MIB);
    }
    struct raw_source raw = raw_source_open();
    testbed_expect(to);
    for (uint64_t at = 0; at < bytes;) {
        uint64_t now = 1 + testbed_random(testbed_random(3) ? 100 : 40000);
        now = now < bytes - at ? now : bytes - at;
        raw_send(raw.fd, stream + at, now);
        at += now;
        if (testbed_random(8) == 0)
            kvf_loop_run_once(testbed.loop, 1);
    }
    testbed_wait_ended(to);
    for (uint32_t i = 0; i < BLOCKS; i++)
        testbed_check_ok(to, from, i);
    raw_source_end(&raw);
    free(stream);
    free(to);
    free(from);
}

/* The receiver's turn ends now and then short of the end of the last frame: what is left must not wait for more. */
static void source__stops_wherever_a_turn_ends__all_arrives(void **state)
{
    (void)state;
    enum { ROUNDS = 300 };
    struct raw_source raw = raw_source_open();
    for (uint64_t id = 1; id <= ROUNDS; id++) {
        uint32_t last = 1 + (uint32_t)testbed_random(400000);
        struct testbed_read *to = testbed_read_make(&testbed.consumer, id, 7, 1);
        testbed_read_set(to, 0, 0, KVF_MIB + last, 0);
        testbed_expect(to);
        send_frame(raw.fd, (struct lane_header){.read = id, .length = KVF_MIB}, testbed.pattern);
        send_frame(raw.fd, (struct lane_header){.read = id, .offset = KVF_MIB, .length = last},
                   testbed.pattern);
        testbed_wait_ended(to);
        assert_int_equal(to->ended_ok, 1);
        free(to);
    }
    raw_source_end(&raw);
}

static void take__on_tcp__protocol(void **state)
{
    (void)state;
    struct raw_source raw;
    struct testbed_read *to = expect_begun(&raw);
    uint8_t token[8] = {0};
    assert_int_equal(kvf_lane_take(&to->read, 0, token, sizeof(token)).code, KVF_PROTOCOL);
    raw_source_end(&raw);
    testbed_wait_ended(to);
    free(to);
}

#define TEST(function) TESTBED_TEST("tcp", function)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(port__garbage__ended_counted_and_lanes_still_open),
        TEST(port__ten_thousand_guessed_nonces__none_opens_and_the_right_one_does),
        TEST(port__other_version__ended),
        TEST(port__closes_in_the_middle_of_its_greeting__counted),
        TEST(port__says_nothing__ended_after_its_time),
        TEST(port__greeting_byte_by_byte__opens),
        TEST(port__flood_of_silent_strangers__a_lane_still_opens),
        TEST(port__out_of_descriptors_for_a_while__accepts_again),
        TEST(consumer__speaks_after_its_greeting__lane_ends_with_protocol),
        TEST(source__frames_on_the_wire__continue_each_other),
        TEST(source__withdrawn_within_a_frame__frame_is_finished_first),
        TEST(source__never_answers__closed_with_deadline),
        TEST(source__answers_garbage__protocol),
        TEST(source__closes_instead_of_answering__unavailable),
        TEST(source__illegal_frame__lane_ends_with_protocol_and_nothing_is_written),
        TEST(source__more_for_a_block_that_is_whole__protocol),
        TEST(source__frames_for_blocks_that_were_taken_back__discarded),
        TEST(source__stream_in_odd_pieces__arrives),
        TEST(source__stops_wherever_a_turn_ends__all_arrives),
        TEST(take__on_tcp__protocol),
    };
    return cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
