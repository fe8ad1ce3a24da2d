#include "transport/testbed.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "transport/lane_core.h"

#include <dirent.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct testbed testbed;

static uint64_t events_seen;
static struct kvf_list expected; /* consumer's Reads that are open */

uint64_t testbed_random(uint64_t below)
{
    uint64_t x = testbed.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    testbed.random = x;
    return x % below;
}

/* ---- open and close ---- */

static void open_end(struct testbed_end *end, uint32_t id, uint64_t extra_bytes)
{
    memset(end, 0, sizeof(*end));
    assert_true(kvf_is_ok(kvf_arena_create(TESTBED_ARENA_BYTES, id, false, &end->arena, NULL)));
    if (extra_bytes > 0)
        assert_true(kvf_is_ok(kvf_arena_create(extra_bytes, id + 2, false, &end->extra, NULL)));
    const struct kvf_arena *arenas[] = {&end->arena, &end->extra};
    struct kvf_transport_options options = {
        .loop = testbed.loop,
        .arenas = arenas,
        .arena_count = extra_bytes > 0 ? 2 : 1,
        .lane_blocks = testbed.lane_blocks > 0 ? testbed.lane_blocks : TESTBED_MAX_BLOCKS,
        .ucx_over_tcp = testbed.ucx_over_tcp};
    struct kvf_why why = {0};
    struct kvf_status status = kvf_transport_open(testbed.name, &options, &end->transport, &why);
    if (!kvf_is_ok(status))
        fail_msg("%s", why.text);
}

static void make_pattern(void)
{
    if (testbed.pattern != NULL)
        return;
    testbed.pattern = malloc(TESTBED_ARENA_BYTES);
    assert_non_null(testbed.pattern);
    for (uint64_t i = 0; i < TESTBED_ARENA_BYTES; i += 8) {
        uint64_t word = testbed_random(UINT64_MAX);
        memcpy(testbed.pattern + i, &word, 8);
    }
}

/* Loopback, or the first address of a device: those have no loopback. */
static void choose_host(void)
{
    struct kvf_nic nics[16];
    size_t count = kvf_transport_nics(testbed.name, nics, 16);
    (void)snprintf(testbed.host, sizeof(testbed.host), "127.0.0.1");
    for (size_t i = count < 16 ? count : 16; i-- > 0;)
        if (nics[i].is_active && strchr(nics[i].address, ':') == NULL)
            (void)snprintf(testbed.host, sizeof(testbed.host), "%s", nics[i].address);
}

static void open_all(uint64_t extra_bytes)
{
    char address[80];
    testbed.random = 0x9e3779b97f4a7c15;
    kvf_list_init(&expected);
    assert_true(kvf_is_ok(kvf_loop_create(&testbed.loop)));
    open_end(&testbed.source, 0, extra_bytes);
    open_end(&testbed.consumer, 1, extra_bytes);
    testbed.needs_tokens = kvf_transport_traits(testbed.source.transport)->needs_tokens;
    (void)snprintf(address, sizeof(address), "%s:0", testbed.host);
    assert_true(kvf_is_ok(kvf_transport_listen(testbed.source.transport, address, NULL)));
    make_pattern();
    memcpy(testbed.source.arena.base, testbed.pattern, TESTBED_ARENA_BYTES);
    memset(testbed.consumer.arena.base, TESTBED_SENTINEL, TESTBED_ARENA_BYTES);
}

bool testbed_can_open(const char *transport)
{
    struct kvf_transport_options options = {.ucx_over_tcp = testbed.ucx_over_tcp};
    struct kvf_transport *opened = NULL;
    struct kvf_why why = {0};
    assert_true(kvf_is_ok(kvf_loop_create(&options.loop)));
    struct kvf_status status = kvf_transport_open(transport, &options, &opened, &why);
    if (!kvf_is_ok(status))
        (void)fprintf(stderr, "SKIPPED, this host has no %s: %s\n", transport, why.text);
    kvf_transport_close(opened);
    kvf_loop_destroy(options.loop);
    return kvf_is_ok(status);
}

void testbed_open(const char *transport)
{
    (void)snprintf(testbed.name, sizeof(testbed.name), "%s", transport);
    testbed.tell = NULL;
    testbed.lane_blocks = 0;
    choose_host();
    open_all(0);
}

void testbed_reopen(uint64_t extra_bytes)
{
    testbed_close();
    open_all(extra_bytes);
}

void testbed_close(void)
{
    testbed_lanes_close();
    kvf_transport_close(testbed.source.transport);
    kvf_transport_close(testbed.consumer.transport);
    kvf_arena_close(&testbed.source.arena);
    kvf_arena_close(&testbed.consumer.arena);
    kvf_arena_close(&testbed.source.extra);
    kvf_arena_close(&testbed.consumer.extra);
    kvf_loop_destroy(testbed.loop);
    testbed.loop = NULL;
}

int testbed_set_up(void **state)
{
    testbed_open(*state);
    return 0;
}

int testbed_tear_down(void **state)
{
    (void)state;
    testbed_close();
    return 0;
}

/* ---- waiting ---- */

void testbed_wait(bool (*condition)(void *), void *argument)
{
    uint64_t end = kvf_clock_now_ns() + TESTBED_WAIT_S * KVF_NS_PER_S;
    while (!condition(argument)) {
        if (kvf_clock_now_ns() > end)
            fail_msg("waited %d s for what never came", TESTBED_WAIT_S);
        kvf_loop_run_once(testbed.loop, 100);
    }
}

void testbed_serve_ms(unsigned ms)
{
    uint64_t end = kvf_clock_now_ns() + ms * KVF_NS_PER_MS;
    while (kvf_clock_now_ns() < end)
        kvf_loop_run_once(testbed.loop, 5);
}

static sem_t stalled, go_on;

static void run_stall(struct kvf_post *post)
{
    (void)post;
    (void)sem_post(&stalled);
    (void)sem_wait(&go_on);
}

void testbed_stall(struct testbed_end *end)
{
    static struct kvf_post post = {.run = run_stall};
    (void)sem_init(&stalled, 0, 0);
    (void)sem_init(&go_on, 0, 0);
    kvf_loop_post(end->lane->thread->loop, &post);
    (void)sem_wait(&stalled);
}

void testbed_go_on(void)
{
    (void)sem_post(&go_on);
}

static bool whatever_is_whole_can_move(void *argument)
{
    (void)argument;
    kvf_list_for_each (node, &expected) {
        const struct testbed_read *from = kvf_container(node, struct testbed_read, node)->peer;
        for (uint32_t i = 0; from != NULL && i < from->read.block_count; i++)
            if (from->blocks[i].landed_bytes == from->blocks[i].length &&
                from->blocks[i].length > 0 && from->tokens[i].length == 0)
                return false;
    }
    return true;
}

void testbed_hold(void)
{
    testbed_stall(testbed.needs_tokens ? &testbed.consumer : &testbed.source);
}

void testbed_let_go(void)
{
    if (testbed.needs_tokens)
        testbed_wait(whatever_is_whole_can_move, NULL);
    testbed_go_on();
}

bool testbed_is_untouched(const uint8_t *at, uint64_t bytes)
{
    return bytes == 0 || (at[0] == TESTBED_SENTINEL && memcmp(at, at + 1, bytes - 1) == 0);
}

static bool has_ended(const struct testbed_read *read)
{
    return read->ended == read->expected;
}

static bool can_be_released(const struct testbed_read *from)
{
    for (uint32_t i = 0; i < from->read.block_count; i++)
        if (from->blocks[i].length > 0 && from->ended_count[i] == 0 &&
            from->tokens[i].length == 0 && !atomic_load(&from->blocks[i].withdrawn))
            return false;
    return true;
}

static bool read_has_ended(void *argument)
{
    struct testbed_read *read = argument;
    if (!has_ended(read) && testbed.needs_tokens && read->read.lane->is_source &&
        read->peer == NULL && can_be_released(read))
        kvf_lane_release(&read->read);
    return has_ended(read);
}

void testbed_wait_ended(struct testbed_read *read)
{
    testbed_wait(read_has_ended, read);
}

static bool end_is_open(void *argument)
{
    struct testbed_end *end = argument;
    return end->opened;
}

void testbed_wait_opened(struct testbed_end *end)
{
    testbed_wait(end_is_open, end);
}

static bool end_is_closed(void *argument)
{
    struct testbed_end *end = argument;
    return end->lane == NULL;
}

void testbed_wait_closed(struct testbed_end *end)
{
    testbed_wait(end_is_closed, end);
}

/* ---- lanes ---- */

static void note_opened(struct kvf_lane *lane, void *user)
{
    struct testbed_end *end = user;
    assert_ptr_equal(lane, end->lane);
    assert_false(end->opened);
    end->opened = true;
    end->opened_count++;
}

static void note_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    struct testbed_end *end = user;
    assert_ptr_equal(lane, end->lane);
    end->lane = NULL;
    end->opened = false;
    end->closed_count++;
    end->closed = status;
}

static void note_tokens(struct kvf_lane *lane, void *user, struct kvf_lane_read *base,
                        const struct kvf_lane_token *tokens, size_t count)
{
    struct testbed_read *read = kvf_container(base, struct testbed_read, read);
    (void)user;
    assert_ptr_equal(lane, base->lane);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        uint32_t block = tokens[i].block;
        assert_true(block < base->block_count);
        assert_int_equal(read->tokens[block].length, 0);
        assert_true(tokens[i].length > 0);
        assert_int_equal(read->ended_count[block], 0);
        read->tokens[block] = tokens[i];
        if (read->peer != NULL)
            assert_true(kvf_is_ok(
                kvf_lane_take(&read->peer->read, block, tokens[i].bytes, tokens[i].length)));
    }
    if (read->peer == NULL && testbed.tell != NULL)
        testbed.tell(read, tokens, count);
}

const struct kvf_lane_events testbed_events = {
    .opened = note_opened, .tokens = note_tokens, .closed = note_closed};

int testbed_port(void)
{
    return kvf_transport_port(testbed.source.transport);
}

void testbed_end_invite(struct testbed_end *end, struct kvf_lane_nonces *nonces,
                        uint64_t timeout_ms)
{
    uint64_t deadline = kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
    assert_true(kvf_is_ok(
        kvf_lane_invite(end->transport, deadline, &testbed_events, end, nonces, &end->lane)));
}

void testbed_end_connect(struct testbed_end *end, int port, const struct kvf_lane_nonces *nonces,
                         uint64_t timeout_ms)
{
    char address[80];
    uint64_t deadline = kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
    (void)snprintf(address, sizeof(address), "%s:%d", testbed.host, port);
    assert_true(kvf_is_ok(kvf_lane_connect(end->transport, address, KVF_ANY_DEVICE, nonces,
                                           deadline, &testbed_events, end, &end->lane)));
}

void testbed_invite(uint64_t timeout_ms)
{
    testbed_end_invite(&testbed.source, &testbed.nonces, timeout_ms);
}

void testbed_connect(const struct kvf_lane_nonces *nonces, uint64_t timeout_ms)
{
    testbed_end_connect(&testbed.consumer, testbed_port(), nonces, timeout_ms);
}

void testbed_lanes_open(void)
{
    testbed_invite(TESTBED_WAIT_S * 1000);
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_wait_opened(&testbed.source);
    testbed_wait_opened(&testbed.consumer);
}

void testbed_lanes_close(void)
{
    if (testbed.source.lane != NULL)
        kvf_lane_close(testbed.source.lane);
    if (testbed.consumer.lane != NULL)
        kvf_lane_close(testbed.consumer.lane);
    testbed_wait_closed(&testbed.source);
    testbed_wait_closed(&testbed.consumer);
}

/* ---- reads ---- */

static bool is_broken(const struct testbed_read *read)
{
    bool is_broken = read->read.lane->state >= LANE_CLOSING;
    for (uint32_t i = 0; i < read->read.block_count; i++)
        is_broken = is_broken || read->blocks[i].status.code == KVF_UNAVAILABLE;
    return is_broken;
}

/* One side's Read is over: the other side's has nobody to talk to any more. A consumer whose lane is ending says nothing,
 * or the source would let go of memory that is being read. */
static void part(struct testbed_read *read)
{
    struct testbed_read *peer = read->peer;
    kvf_list_remove(&read->node);
    if (peer == NULL)
        return;
    read->peer = peer->peer = NULL;
    if (testbed.needs_tokens && peer->read.lane->is_source && !is_broken(read))
        kvf_lane_release(&peer->read);
}

static void pair(struct testbed_read *to, struct testbed_read *from)
{
    to->peer = from;
    from->peer = to;
}

static void block_ended(struct kvf_lane_read *base, uint32_t index)
{
    struct testbed_read *read = kvf_container(base, struct testbed_read, read);
    const struct kvf_lane_block *block = &read->blocks[index];
    assert_true(index < base->block_count);
    assert_true(block->length > 0);
    read->ended_count[index]++;
    assert_int_equal(read->ended_count[index], 1);
    read->ended++;
    read->ended_ok += kvf_is_ok(block->status);
    read->last_event = ++events_seen;
    if (read->scribble && (block->extent.arena == &testbed.source.arena || block->status.code != 0))
        memset(kvf_extent_at(block->extent), TESTBED_SENTINEL, block->extent.bytes);
    if (has_ended(read))
        part(read);
}

struct testbed_read *testbed_read_make(struct testbed_end *end, uint64_t id, uint64_t instance,
                                       uint32_t block_count)
{
    struct testbed_read *read = calloc(1, sizeof(*read));
    assert_non_null(read);
    assert_true(block_count <= TESTBED_MAX_BLOCKS);
    read->read = (struct kvf_lane_read){.id = id,
                                        .instance = instance,
                                        .blocks = read->blocks,
                                        .block_count = block_count,
                                        .ended = block_ended};
    for (uint32_t i = 0; i < block_count; i++)
        read->blocks[i].extent.arena = &end->arena;
    kvf_list_init(&read->node);
    return read;
}

void testbed_read_set(struct testbed_read *read, uint32_t block, uint64_t offset, uint64_t length,
                      uint64_t landed)
{
    uint64_t bytes = kvf_round_up_page(length), most = TESTBED_ARENA_BYTES - offset;
    assert_true(length <= most);
    read->blocks[block].extent.offset = offset;
    read->blocks[block].extent.bytes = bytes < most ? bytes : most;
    read->blocks[block].length = length;
    read->blocks[block].landed_bytes = landed;
    read->expected += length > 0;
}

void testbed_expect(struct testbed_read *read)
{
    kvf_list_push_back(&expected, &read->node);
    kvf_lane_expect(testbed.consumer.lane, &read->read);
}

void testbed_offer(struct testbed_read *read)
{
    kvf_list_for_each (node, &expected) {
        struct testbed_read *to = kvf_container(node, struct testbed_read, node);
        if (to->read.id == read->read.id && to->read.lane == testbed.consumer.lane)
            pair(to, read);
    }
    kvf_lane_offer(testbed.source.lane, &read->read);
}

void testbed_transfer(struct kvf_lane *consumer, struct testbed_read *to, struct kvf_lane *source,
                      struct testbed_read *from)
{
    kvf_list_push_back(&expected, &to->node);
    pair(to, from);
    kvf_lane_expect(consumer, &to->read);
    kvf_lane_offer(source, &from->read);
}

void testbed_check_ok(const struct testbed_read *to, const struct testbed_read *from,
                      uint32_t block)
{
    const struct kvf_lane_block *block_to = &to->blocks[block];
    const uint8_t *is = kvf_extent_at(block_to->extent);
    const uint8_t *should = testbed.pattern + from->blocks[block].extent.offset;
    uint64_t length = block_to->length;
    assert_int_equal(to->ended_count[block], 1);
    assert_int_equal(block_to->status.code, KVF_OK);
    assert_int_equal(memcmp(is, should, length), 0);
    assert_int_equal(block_to->crc32c, kvf_crc32c(0, should, length));
    for (uint64_t i = length; i < block_to->extent.bytes; i++)
        assert_int_equal(is[i], 0);
}

void testbed_check_transfer(uint64_t bytes)
{
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
    testbed_read_set(to, 0, 0, bytes, 0);
    testbed_read_set(from, 0, 0, bytes, bytes);
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    testbed_check_ok(to, from, 0);
    free(to);
    free(from);
}

struct kvf_lane_stats testbed_stats(const struct testbed_end *end)
{
    struct kvf_lane_stats stats;
    kvf_transport_stats(end->transport, &stats);
    return stats;
}

/* ---- sockets and descriptors ---- */

static struct sockaddr_in on_loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int testbed_socket_connected(void)
{
    struct sockaddr_in address = on_loopback(testbed_port());
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

int testbed_socket_listening(int *port)
{
    struct sockaddr_in address = on_loopback(0);
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

unsigned testbed_descriptors(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    (void)closedir(directory);
    return count;
}
