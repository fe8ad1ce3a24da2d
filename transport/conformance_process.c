/* The suite's cases in which the other process dies or stops, and that process itself. */
#include "transport/conformance_cases.h"

#include "base/clock.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the other process ---- */

struct invitation {
    int port;
    struct kvf_lane_nonces nonces;
};

struct other {
    pid_t pid;
    int to, from;
};

/* ---- tokens between the two ---- */

struct far_token {
    uint32_t block, length;
    uint8_t bytes[KVF_TOKEN_MAX_BYTES];
};

static int tell_fd;
static struct kvf_watch hearing;
static struct testbed_read *hearer;

static void tell_far(struct testbed_read *from, const struct kvf_lane_token *tokens, size_t count)
{
    (void)from;
    for (size_t i = 0; i < count; i++) {
        struct far_token token = {.block = tokens[i].block, .length = tokens[i].length};
        memcpy(token.bytes, tokens[i].bytes, tokens[i].length);
        (void)!write(tell_fd, &token, sizeof(token));
    }
}

static void hear_token(struct kvf_watch *watch, uint32_t events)
{
    struct far_token token;
    (void)events;
    if (read(watch->fd, &token, sizeof(token)) != sizeof(token))
        kvf_watch_stop(testbed.loop, watch);
    else if (hearer->ended < hearer->expected)
        assert_true(kvf_is_ok(
            kvf_lane_take(&hearer->read, token.block, token.bytes, (uint8_t)token.length)));
}

static void hear_tokens(int fd, struct testbed_read *to)
{
    hearer = to;
    hearing = (struct kvf_watch){.fd = fd, .events = EPOLLIN, .ready = hear_token};
    assert_true(kvf_is_ok(kvf_watch_start(testbed.loop, &hearing)));
}

/* ---- its life ---- */

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
    kvf_watch_stop(testbed.loop, &hearing);
    testbed.tell = NULL;
    (void)kill(other->pid, SIGKILL);
    (void)waitpid(other->pid, NULL, 0);
    (void)close(other->to);
    (void)close(other->from);
}

static bool half_has_arrived(void *argument)
{
    (void)argument;
    return testbed.needs_tokens || testbed_stats(&testbed.consumer).received_bytes >= 20 * KVF_MIB;
}

static bool some_has_arrived(void *argument)
{
    (void)argument;
    return testbed_stats(&testbed.consumer).received_bytes >= KVF_MIB;
}

static struct other start_source(const char *role, struct testbed_read *to)
{
    struct other other = start_other(role);
    struct invitation invitation;
    assert_int_equal(read(other.from, &invitation, sizeof(invitation)), sizeof(invitation));
    testbed_end_connect(&testbed.consumer, invitation.port, &invitation.nonces,
                        TESTBED_WAIT_S * 1000);
    testbed_expect(to);
    assert_int_equal(write(other.to, "r", 1), 1);
    hear_tokens(other.from, to);
    testbed_wait_opened(&testbed.consumer);
    return other;
}

/* It has half of each of two blocks, has sent it (where tokens are needed it sends nothing of a
 * half) and sends no more. */
static struct other start_half_source(struct testbed_read *to)
{
    struct other other = start_source("source", to);
    testbed_wait(half_has_arrived, NULL);
    assert_int_equal(to->ended, 0);
    return other;
}

/* It is about to connect. */
static struct other start_opening_consumer(uint64_t timeout_ms)
{
    char ready;
    struct other other = start_other("consumer");
    assert_int_equal(read(other.from, &ready, 1), 1);
    testbed_invite(timeout_ms);
    struct invitation invitation = {.port = testbed_port(), .nonces = testbed.nonces};
    assert_int_equal(write(other.to, &invitation, sizeof(invitation)), sizeof(invitation));
    return other;
}

/* We are about to connect to it. */
static struct other start_opening_source(uint64_t timeout_ms)
{
    struct other other = start_other("source");
    struct invitation invitation;
    assert_int_equal(read(other.from, &invitation, sizeof(invitation)), sizeof(invitation));
    testbed_end_connect(&testbed.consumer, invitation.port, &invitation.nonces, timeout_ms);
    return other;
}

static struct other start_consumer(void)
{
    struct other other = start_opening_consumer(TESTBED_WAIT_S * 1000);
    char ready;
    testbed_wait_opened(&testbed.source);
    assert_int_equal(read(other.from, &ready, 1), 1);
    tell_fd = other.to;
    testbed.tell = tell_far;
    return other;
}

/* Each block of the other process's Read is right or ended in this way. */
static void check_right_or(const struct testbed_read *to, enum kvf_code code)
{
    struct testbed_read *from = conformance_big(&testbed.source, 1, 20 * KVF_MIB);
    assert_int_equal(to->ended, 2);
    for (uint32_t i = 0; i < 2; i++)
        if (!kvf_is_ok(to->blocks[i].status))
            assert_int_equal(to->blocks[i].status.code, code);
        else
            testbed_check_ok(to, from, i);
    free(from);
}

void death__of_the_source_while_bytes_come__right_or_unavailable(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
        struct other other = start_source("whole source", to);
        testbed_wait(some_has_arrived, NULL);
        testbed_serve_ms((unsigned)testbed_random(10));
        assert_int_equal(kill(other.pid, SIGKILL), 0);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
        check_right_or(to, KVF_UNAVAILABLE);
        end_other(&other);
        free(to);
        testbed_reopen(0);
    }
}

/* A NIC that the consumer reads from needs nobody: then all arrives. */
void stop__of_the_source_while_bytes_come__right_or_cancelled(void **state)
{
    (void)state;
    struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
    struct other other = start_source("whole source", to);
    testbed_wait(some_has_arrived, NULL);
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    if (testbed.needs_tokens)
        testbed_wait_ended(to);
    testbed_serve_ms(50);
    assert_true(testbed.consumer.opened);
    kvf_lane_close(testbed.consumer.lane);
    testbed_wait_closed(&testbed.consumer);
    check_right_or(to, KVF_CANCELLED);
    assert_true(!testbed.needs_tokens || to->ended_ok == 2);
    end_other(&other);
    free(to);
}

void death__of_the_consumer_while_bytes_go__source_memory_comes_back(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        struct testbed_read *from = conformance_big(&testbed.source, 1, 20 * KVF_MIB);
        struct other other = start_consumer();
        testbed_offer(from);
        testbed_serve_ms(5 + 10 * i);
        assert_int_equal(kill(other.pid, SIGKILL), 0);
        testbed_wait_closed(&testbed.source);
        assert_int_equal(testbed.source.closed.code, KVF_UNAVAILABLE);
        assert_int_equal(from->ended, 2);
        end_other(&other);
        free(from);
    }
}

void death__of_the_source__blocks_end_unavailable(void **state)
{
    (void)state;
    struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
    struct other other = start_half_source(to);
    assert_int_equal(kill(other.pid, SIGKILL), 0);
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
    assert_int_equal(to->ended, 2);
    assert_int_equal(to->blocks[0].status.code, KVF_UNAVAILABLE);
    assert_int_equal(to->blocks[1].status.code, KVF_UNAVAILABLE);
    end_other(&other);
    free(to);
}

void stop__of_the_source__nothing_ends_until_we_close(void **state)
{
    (void)state;
    struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
    struct other other = start_half_source(to);
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

void death__of_the_consumer__blocks_end_unavailable(void **state)
{
    (void)state;
    struct testbed_read *from = conformance_big(&testbed.source, 1, 10 * KVF_MIB);
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

void stop__of_the_consumer__source_lets_go_when_it_closes(void **state)
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
void stop__of_one_consumer__other_lanes_go_on(void **state)
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
        struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
        struct testbed_read *from = conformance_big(&testbed.source, 1, 20 * KVF_MIB);
        struct testbed_end source = {.transport = testbed.source.transport};
        struct kvf_lane_nonces nonces;
        uint64_t deadline = kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S;
        assert_true(kvf_is_ok(kvf_lane_invite(source.transport, deadline, &testbed_events, &source,
                                              &nonces, &source.lane)));
        testbed_connect(&nonces, TESTBED_WAIT_S * 1000);
        testbed_transfer(testbed.consumer.lane, to, source.lane, from);
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

/* ---- while it opens ---- */

static bool is_open_or_over(void *argument)
{
    const struct testbed_end *end = argument;
    return end->opened || end->lane == NULL;
}

/* The other one gets the signal at some point of `span_ms`. Whether the lane has opened or not, it ends. */
static void hit_while_it_opens(struct testbed_end *end, int signal, uint64_t span_ms)
{
    uint64_t timeout_ms = 2 * span_ms + 200;
    struct other other = end == &testbed.source ? start_opening_consumer(timeout_ms)
                                                : start_opening_source(timeout_ms);
    testbed_serve_ms((unsigned)testbed_random(span_ms + 1));
    assert_int_equal(kill(other.pid, signal), 0);
    testbed_wait(is_open_or_over, end);
    if (end->lane != NULL && signal == SIGSTOP)
        kvf_lane_close(end->lane);
    testbed_wait_closed(end);
    enum kvf_code code = end->closed.code;
    assert_true(code == KVF_UNAVAILABLE || code == KVF_DEADLINE ||
                (code == KVF_OK && signal == SIGSTOP));
    end_other(&other);
}

static uint64_t opening_ms(struct testbed_end *end)
{
    struct other other = end == &testbed.source ? start_opening_consumer(TESTBED_WAIT_S * 1000)
                                                : start_opening_source(TESTBED_WAIT_S * 1000);
    uint64_t begun = kvf_clock_now_ns();
    testbed_wait_opened(end);
    uint64_t took = kvf_clock_now_ns() - begun;
    kvf_lane_close(end->lane);
    testbed_wait_closed(end);
    end_other(&other);
    return 1 + took / KVF_NS_PER_MS;
}

static void hit_often_while_it_opens(int signal)
{
    struct testbed_end *ends[] = {&testbed.source, &testbed.consumer};
    for (unsigned e = 0; e < 2; e++) {
        uint64_t span_ms = opening_ms(ends[e]);
        for (unsigned i = 0; i < 8; i++)
            hit_while_it_opens(ends[e], signal, span_ms);
    }
    testbed_lanes_open();
    testbed_check_transfer(100000);
}

void death__of_the_other_while_it_opens__lane_ends(void **state)
{
    (void)state;
    hit_often_while_it_opens(SIGKILL);
}

void stop__of_the_other_while_it_opens__lane_ends(void **state)
{
    (void)state;
    hit_often_while_it_opens(SIGSTOP);
}

static bool never(void *argument)
{
    (void)argument;
    return false;
}

int conformance_be_source(const char *transport, uint64_t landed)
{
    testbed_open(transport);
    tell_fd = 1;
    testbed.tell = tell_far;
    testbed_invite(TESTBED_WAIT_S * 1000);
    struct invitation invitation = {.port = testbed_port(), .nonces = testbed.nonces};
    if (write(1, &invitation, sizeof(invitation)) != sizeof(invitation))
        return 1;
    char asked; /* the Read, which comes after the expect */
    if (read(0, &asked, 1) != 1)
        return 1;
    testbed_offer(conformance_big(&testbed.source, 1, landed));
    testbed_wait(never, NULL);
    return 0;
}

int conformance_be_consumer(const char *transport)
{
    testbed_open(transport);
    struct invitation invitation;
    if (write(1, "o", 1) != 1 || read(0, &invitation, sizeof(invitation)) != sizeof(invitation))
        return 1;
    testbed_end_connect(&testbed.consumer, invitation.port, &invitation.nonces,
                        TESTBED_WAIT_S * 1000);
    struct testbed_read *to = conformance_big(&testbed.consumer, 1, 0);
    testbed_expect(to);
    testbed_wait_opened(&testbed.consumer);
    if (write(1, "r", 1) != 1)
        return 1;
    hear_tokens(0, to);
    testbed_wait(never, NULL);
    return 0;
}
