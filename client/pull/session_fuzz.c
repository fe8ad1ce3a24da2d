/* libFuzzer over what a source may say to a consumer that looks up and pulls four blocks of it: Lookup's answer, the
 * session's messages, and the bytes on the lane. The first byte: bit 0: a valid Welcome and an open lane go first. Then
 * pieces; the first byte of each says where it goes. What is reported as there must be there, and at the end nothing may be
 * held. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/test.h"
#include "client/pull/pull.h"
#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "proto/rpc/direct.h"
#include "tests/corpus/pieces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCKS 4u
#define BLOCK_BYTES 5000u
#define EXTENT_BYTES 8192u
#define WAIT_S 20
#define GREETING_BYTES                                                                             \
    48 /* magic, version, zero, then the nonce: what a lane begins with, both ways */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct kvf_loop *loop;
static struct kvf_rpc *rpc;
static struct kvf_transport *transport;
static struct kvf_arena arena;
static int listener;
static uint16_t port;

/* What one input is about. */
static struct {
    struct kvf_source *source;
    struct kvf_pull_stats stats;
    struct kvf_pull pull;
    struct kvf_pull_block blocks[BLOCKS];
    struct kvf_lookup lookup;
    struct kvf_lookup_block lookup_blocks[BLOCKS];
    unsigned pull_ended, lookup_ended, closed;
    struct direct_far session, lookup_call;
    int lane; /* -1: none */
} it;

#define run_until(condition)                                                                       \
    do {                                                                                           \
        uint64_t until_ = kvf_clock_now_ns() + WAIT_S * KVF_NS_PER_S;                              \
        while (!(condition)) {                                                                     \
            assert_true(kvf_clock_now_ns() < until_);                                              \
            kvf_loop_run_once(loop, 1);                                                            \
        }                                                                                          \
    } while (0)

/* A foreign Welcome names where the lane is: nobody is dialled here but this program itself. */
int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    const struct sockaddr_in *to = (const struct sockaddr_in *)(const void *)address;
    if (address->sa_family != AF_INET || ntohs(to->sin_port) != port ||
        to->sin_addr.s_addr != htonl(INADDR_LOOPBACK)) {
        errno = ECONNREFUSED;
        return -1;
    }
    return (int)syscall(SYS_connect, fd, address, bytes);
}

static void start(void)
{
    static const struct kvf_arena *const arenas[] = {&arena};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    assert_true(kvf_is_ok(kvf_loop_create(&loop)));
    assert_true(kvf_is_ok(kvf_rpc_create(loop, &rpc)));
    assert_true(kvf_is_ok(kvf_arena_create(KVF_MIB, 0, false, &arena, NULL)));
    struct kvf_transport_options options = {
        .loop = loop, .lane_threads = 1, .arenas = arenas, .arena_count = 1};
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, &transport, NULL)));
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    port = ntohs(address.sin_port);
}

/* ---- the consumer ---- */

static void block_ended(struct kvf_pull *pull, uint32_t i)
{
    const struct kvf_pull_block *block = &pull->blocks[i];
    if (kvf_is_ok(block->status))
        assert_int_equal(block->crc32c, kvf_crc32c(0, kvf_extent_at(block->extent), block->length));
}

static void pull_ended(struct kvf_pull *pull)
{
    (void)pull;
    it.pull_ended++;
}

static void block_freed(struct kvf_pull *pull, uint32_t i)
{
    (void)pull, (void)i;
}

static void lookup_ended(struct kvf_lookup *lookup)
{
    (void)lookup;
    it.lookup_ended++;
}

static void source_closed(void *context)
{
    (void)context;
    it.closed++;
}

static void begin(void)
{
    struct kvf_source_options options = {.loop = loop,
                                         .rpc = rpc,
                                         .transports = kvf_transports_only(transport),
                                         .address = "127.0.0.1:1",
                                         .tenant = "t",
                                         .node_id = "fuzz",
                                         .boot_epoch = 7,
                                         .process_instance = 1,
                                         .stats = &it.stats};
    memset(&it, 0, sizeof(it));
    it.lane = -1;
    assert_true(kvf_is_ok(kvf_source_create(&options, &it.source)));
    it.pull = (struct kvf_pull){.namespace = "t/f",
                                .deadline_ns = kvf_clock_now_ns() + WAIT_S * KVF_NS_PER_S,
                                .batch_bytes = 2 * EXTENT_BYTES,
                                .batches_in_flight = 2,
                                .blocks = it.blocks,
                                .block_count = BLOCKS,
                                .block_ended = block_ended,
                                .ended = pull_ended,
                                .freed = block_freed};
    it.lookup = (struct kvf_lookup){.namespace = "t/f",
                                    .deadline_ns = it.pull.deadline_ns,
                                    .blocks = it.lookup_blocks,
                                    .block_count = BLOCKS,
                                    .ended = lookup_ended};
    for (uint8_t i = 0; i < BLOCKS; i++) {
        it.blocks[i].length = BLOCK_BYTES;
        it.blocks[i].extent =
            (struct kvf_extent){.arena = &arena, .offset = i * EXTENT_BYTES, .bytes = EXTENT_BYTES};
        assert_true(kvf_key_set(&it.blocks[i].key, (uint8_t[]){i, 'k'}, 2));
        it.lookup_blocks[i].key = it.blocks[i].key;
    }
    kvf_lookup_start(it.source, &it.lookup);
    kvf_pull_start(it.source, &it.pull);
    run_until(direct_take(&it.session, KVF_PEER_SESSION));
    run_until(direct_take(&it.lookup_call, KVF_PEER_LOOKUP));
}

static void finish(void)
{
    if (it.lane >= 0)
        (void)close(it.lane);
    direct_hang_up(&it.session, kvf_fail(KVF_MODULE_PROTO, KVF_UNAVAILABLE, 0));
    direct_hang_up(&it.lookup_call, kvf_fail(KVF_MODULE_PROTO, KVF_UNAVAILABLE, 0));
    if (it.pull_ended == 0)
        kvf_pull_cancel(&it.pull);
    kvf_source_close(it.source, source_closed, NULL);
    run_until((direct_refuse_all(), it.closed > 0));
    assert_int_equal(it.pull_ended, 1);
    assert_int_equal(it.lookup_ended, 1);
    assert_int_equal(it.stats.quarantine_bytes, 0);
    assert_null(it.session.call);
    assert_null(it.lookup_call.call);
}

/* ---- the source ---- */

static void say_welcome(void)
{
    static uint8_t nonce[KVF_NONCE_BYTES] = "said by the lane, both ways";
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    Kvferry__Welcome welcome = KVFERRY__WELCOME__INIT;
    uint8_t bytes[256];
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    welcome.version = KVF_PEER_VERSION;
    welcome.transport = (char *)(uintptr_t) "tcp";
    welcome.data_address = address;
    welcome.boot_epoch = 7;
    welcome.connect_nonce = welcome.accept_nonce = (ProtobufCBinaryData){sizeof(nonce), nonce};
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_WELCOME;
    down.welcome = &welcome;
    direct_say(&it.session, bytes, kvferry__session_down__pack(&down, bytes));
}

/* The consumer's greeting, said back: both nonces are the same here. */
static void open_lane(void)
{
    uint8_t greeting[GREETING_BYTES];
    say_welcome();
    run_until((it.lane = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
    size_t heard = 0;
    while (heard < sizeof(greeting)) {
        ssize_t got = recv(it.lane, greeting + heard, sizeof(greeting) - heard, 0);
        assert_true(got > 0);
        heard += (size_t)got;
    }
    assert_int_equal(send(it.lane, greeting, sizeof(greeting), MSG_NOSIGNAL), sizeof(greeting));
    unsigned hello = it.session.heard;
    run_until(it.session.heard > hello || it.session.call == NULL); /* the first Read */
}

static void say(uint8_t where, const uint8_t *bytes, size_t length)
{
    if (where % 4 == 1 && it.lane >= 0) {
        (void)send(it.lane, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        kvf_loop_run_once(loop, 1); /* the lane's thread has to take it */
    } else if (where % 4 == 2) {
        direct_say(&it.lookup_call, bytes, length);
    } else {
        direct_say(&it.session, bytes, length);
    }
    kvf_loop_run_once(loop, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *piece;
    size_t length;
    if (loop == NULL)
        start();
    if (bytes == 0)
        return 0;
    struct pieces pieces = {data + 1, bytes - 1};
    begin();
    if (data[0] & 1)
        open_lane();
    while (pieces_next(&pieces, &piece, &length))
        if (length > 0)
            say(piece[0], piece + 1, length - 1);
    finish();
    return 0;
}
