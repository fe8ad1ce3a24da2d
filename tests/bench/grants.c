/* grants: from a Read on an open session to its Grants, for blocks in the source's DRAM, beside an echo of messages of
 * the same sizes on an open gRPC stream between the same two cores.
 *
 *   grants DEVICE BLOCK_BYTES COUNT PAIRS
 *
 * and from the environment, as `run` sets it: PREFILL_DIR, SOURCE, SOURCE_CORE, CONSUMER_CORE, and over TLS TLS_DIR with
 * prefill.crt, decode.crt, their keys and ca.crt.
 *
 * Parts: the echo (a child with a server of its own), the session, the rounds. Only the way from the message that is
 * sent to the message that comes is timed; before it both ends have been idle for PAUSE_NS, after it the blocks arrive on
 * the lane and are released. */
#include "base/block.h"
#include "base/clock.h"
#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "proto/rpc/rpc.h"
#include "tests/bench/daemon.h"
#include "tests/bench/rounds.h"
#include "transport/transport.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define ECHO_PATH "/kvferry.Bench/Echo"
#define PAUSE_NS KVF_NS_PER_MS
#define BLOCKS_MAX 64u
#define MESSAGE_MAX_BYTES 8192u

struct bench {
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_rpc_tls *tls; /* NULL: plaintext */
    struct kvf_timer pause;
    bool paused;

    struct kvf_rpc_call *echo;
    size_t echoed_bytes;

    struct kvf_rpc_call *session;
    struct kvf_transport *transport;
    struct kvf_arena arena;
    struct kvf_lane *lane;
    bool opened;
    struct kvf_lane_read read;
    struct kvf_lane_block blocks[BLOCKS_MAX];
    struct kvf_key keys[BLOCKS_MAX];
    char ns[64];
    uint64_t block_bytes;
    uint32_t count, ended;
    size_t read_bytes, grants_bytes; /* of the last messages */
    bool granted;
    double came_s; /* when the message that was waited for came */
    uint8_t out[MESSAGE_MAX_BYTES];
};

static struct kvf_rpc_tls *open_tls(const char *name)
{
    const char *dir = getenv("TLS_DIR");
    char certificate[512], key[512], ca[512];
    struct kvf_rpc_tls *tls = NULL;
    struct kvf_why why = {.text = ""};
    if (dir == NULL)
        return NULL;
    (void)snprintf(certificate, sizeof(certificate), "%s/%s.crt", dir, name);
    (void)snprintf(key, sizeof(key), "%s/%s.key", dir, name);
    (void)snprintf(ca, sizeof(ca), "%s/ca.crt", dir);
    struct kvf_rpc_tls_files files = {certificate, key, ca};
    if (!kvf_is_ok(kvf_rpc_tls_open(&files, &tls, &why)))
        bench_die("%s", why.text);
    return tls;
}

static void wait_for(struct bench *bench, const bool *flag, const char *what)
{
    uint64_t deadline = kvf_clock_now_ns() + 10 * KVF_NS_PER_S;
    while (!*flag && kvf_clock_now_ns() < deadline)
        kvf_loop_run_once(bench->loop, 1000);
    if (!*flag)
        bench_die("%s: nothing for 10 s", what);
}

static void call_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                        const char *text)
{
    (void)call, (void)user;
    bench_die("a call ended: %s %s", kvf_code_name((enum kvf_code)status.code), text);
}

/* ---- the echo ---- */

/* A message says first how long its answer shall be. */
static void echo_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    static uint8_t answer[MESSAGE_MAX_BYTES];
    uint32_t length;
    (void)user;
    if (bytes.length < sizeof(length))
        bench_die("a message to the echo is too short");
    memcpy(&length, bytes.data, sizeof(length));
    kvf_rpc_call_send(call, (struct kvf_bytes){answer, length});
}

static void echo_gone(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                      const char *text)
{
    (void)call, (void)user, (void)status, (void)text;
}

static void echo_called(struct kvf_rpc_call *call, void *context)
{
    static const struct kvf_rpc_events events = {.message = echo_message, .closed = echo_gone};
    (void)context;
    kvf_rpc_call_accept(call, &events, NULL);
}

__attribute__((noreturn)) static void echo_process(int port_pipe, int core)
{
    static const struct kvf_rpc_method method = {.path = ECHO_PATH, .called = echo_called};
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_rpc_server *server;
    struct kvf_why why = {.text = ""};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(core);
    bench_check(kvf_loop_create(&loop), "loop");
    bench_check(kvf_rpc_create(loop, &rpc), "rpc");
    if (!kvf_is_ok(kvf_rpc_server_start(rpc, "127.0.0.1:0", open_tls("prefill"), &method, 1,
                                        &server, &why)))
        bench_die("%s", why.text);
    int port = kvf_rpc_server_port(server);
    if (write(port_pipe, &port, sizeof(port)) != (ssize_t)sizeof(port))
        bench_die("the pipe is broken");
    kvf_loop_run(loop);
    _exit(0);
}

/* Before this process has threads. Returns its port; it ends with this process. */
static int echo_start(int core)
{
    int ends[2], port = 0;
    if (pipe(ends) != 0)
        bench_die("no pipe");
    int pid = fork();
    if (pid < 0)
        bench_die("no fork");
    if (pid == 0)
        echo_process(ends[1], core);
    (void)close(ends[1]);
    if (read(ends[0], &port, sizeof(port)) != (ssize_t)sizeof(port))
        bench_die("the echo did not start");
    (void)close(ends[0]);
    return port;
}

static struct kvf_rpc_call *start_call(struct bench *bench, const char *address, const char *path,
                                       const struct kvf_rpc_events *events)
{
    struct kvf_rpc_channel *channel;
    struct kvf_rpc_call *call;
    struct kvf_why why = {.text = ""};
    if (!kvf_is_ok(kvf_rpc_channel_open(bench->rpc, address, bench->tls, &channel, &why)))
        bench_die("%s: %s", address, why.text);
    bench_check(kvf_rpc_call_start(channel, path, 0, events, bench, &call), "call");
    return call;
}

static void echo_came(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct bench *bench = user;
    (void)call;
    bench->came_s = bench_now_s();
    bench->echoed_bytes = bytes.length;
    bench->granted = true;
}

static void echo_connect(struct bench *bench, int port)
{
    static const struct kvf_rpc_events events = {.message = echo_came, .closed = call_closed};
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    bench->echo = start_call(bench, address, ECHO_PATH, &events);
}

/* ---- the session ---- */

static void send_up(struct bench *bench, const Kvferry__SessionUp *up)
{
    size_t length = kvferry__session_up__get_packed_size(up);
    if (length > sizeof(bench->out))
        bench_die("a message of %zu bytes is too long", length);
    (void)kvferry__session_up__pack(up, bench->out);
    kvf_rpc_call_send(bench->session, (struct kvf_bytes){bench->out, length});
}

static void lane_opened(struct kvf_lane *lane, void *user)
{
    (void)lane;
    ((struct bench *)user)->opened = true;
}

static void lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    (void)lane, (void)user;
    bench_die("the lane ended: %s", kvf_code_name((enum kvf_code)status.code));
}

static void take_welcome(struct bench *bench, const Kvferry__Welcome *welcome)
{
    static const struct kvf_lane_events events = {.opened = lane_opened, .closed = lane_closed};
    struct kvf_lane_nonces nonces;
    char address[128];
    const char *port = strrchr(welcome->data_address, ':');
    if (port == NULL || welcome->connect_nonce.len != KVF_NONCE_BYTES ||
        welcome->accept_nonce.len != KVF_NONCE_BYTES)
        bench_die("Welcome names no data address, or no nonces");
    memcpy(nonces.connect.bytes, welcome->connect_nonce.data, KVF_NONCE_BYTES);
    memcpy(nonces.accept.bytes, welcome->accept_nonce.data, KVF_NONCE_BYTES);
    (void)snprintf(address, sizeof(address), "127.0.0.1%s", port);
    bench_check(kvf_lane_connect(bench->transport, address, KVF_ANY_DEVICE, &nonces,
                                 kvf_clock_now_ns() + KVF_PEER_HANDSHAKE_NS, &events, bench,
                                 &bench->lane),
                "lane");
}

static void take_grants(struct bench *bench, const Kvferry__Grants *grants)
{
    if (grants->id != bench->read.id || grants->n_blocks != bench->count)
        bench_die("Grants of another Read");
    for (size_t i = 0; i < grants->n_blocks; i++) {
        const Kvferry__GrantBlock *block = grants->blocks[i];
        if (block->code != KVF_OK || block->tier != KVF_TIER_DRAM)
            bench_die("block %zu: code %u, tier %u", i, block->code, block->tier);
    }
    bench->granted = true;
}

static void session_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct bench *bench = user;
    bench->came_s = bench_now_s();
    (void)call;
    Kvferry__SessionDown *down = kvferry__session_down__unpack(NULL, bytes.length, bytes.data);
    if (down == NULL)
        bench_die("the source said what is no message");
    if (down->message_case == KVFERRY__SESSION_DOWN__MESSAGE_WELCOME)
        take_welcome(bench, down->welcome);
    else if (down->message_case == KVFERRY__SESSION_DOWN__MESSAGE_GRANTS)
        take_grants(bench, down->grants);
    else
        bench_die("the source said something else than Welcome and Grants: %d",
                  (int)down->message_case);
    bench->grants_bytes = bytes.length;
    kvferry__session_down__free_unpacked(down, NULL);
}

static void session_open(struct bench *bench)
{
    static const struct kvf_rpc_events events = {.message = session_message, .closed = call_closed};
    char tcp[] = "tcp", *transports[] = {tcp}, tenant[] = "bench", node[] = "bench-grants";
    Kvferry__Hello hello = KVFERRY__HELLO__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    hello.version = KVF_PEER_VERSION;
    hello.tenant = tenant;
    hello.node_id = node;
    hello.instance = (uint64_t)getpid();
    hello.n_transports = 1;
    hello.transports = transports;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_HELLO;
    up.hello = &hello;
    bench->session = start_call(bench, bench_setting("SOURCE"), KVF_PEER_SESSION, &events);
    send_up(bench, &up);
    wait_for(bench, &bench->opened, "the session");
}

static void block_ended(struct kvf_lane_read *read, uint32_t block)
{
    struct bench *bench = kvf_container(read, struct bench, read);
    bench_check(read->blocks[block].status, "a block on the lane");
    bench->ended++;
}

static void expect_blocks(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->count; i++)
        bench->blocks[i] = (struct kvf_lane_block){
            .extent = {&bench->arena, i * bench->block_bytes, bench->block_bytes},
            .length = bench->block_bytes};
    bench->read = (struct kvf_lane_read){.id = bench->read.id + 1,
                                         .instance = 1,
                                         .blocks = bench->blocks,
                                         .block_count = bench->count,
                                         .ended = block_ended};
    bench->ended = 0;
    kvf_lane_expect(bench->lane, &bench->read);
}

/* Into bench->out. */
static void pack_read(struct bench *bench)
{
    Kvferry__ReadBlock blocks[BLOCKS_MAX], *pointers[BLOCKS_MAX];
    Kvferry__Read read = KVFERRY__READ__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    for (uint32_t i = 0; i < bench->count; i++) {
        blocks[i] = (Kvferry__ReadBlock)KVFERRY__READ_BLOCK__INIT;
        blocks[i].key = (ProtobufCBinaryData){bench->keys[i].length, bench->keys[i].bytes};
        blocks[i].length = bench->block_bytes;
        pointers[i] = &blocks[i];
    }
    read.id = bench->read.id;
    read.namespace_ = bench->ns;
    read.instance = 1;
    read.deadline_us = 10 * KVF_NS_PER_S / KVF_NS_PER_US;
    read.n_blocks = bench->count;
    read.blocks = pointers;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_READ;
    up.read = &read;
    bench->read_bytes = kvferry__session_up__get_packed_size(&up);
    if (bench->read_bytes > sizeof(bench->out))
        bench_die("a Read of %zu bytes is too long", bench->read_bytes);
    (void)kvferry__session_up__pack(&up, bench->out);
}

static void release(struct bench *bench)
{
    Kvferry__Release release = KVFERRY__RELEASE__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    release.id = bench->read.id;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_RELEASE;
    up.release = &release;
    send_up(bench, &up);
}

/* ---- the rounds ---- */

static void pause_is_over(struct kvf_timer *timer)
{
    kvf_container(timer, struct bench, pause)->paused = true;
}

/* What the round before has left is done when this is over, at both ends. */
static void pause_a_little(struct bench *bench)
{
    bench->paused = false;
    kvf_timer_start(bench->loop, &bench->pause, kvf_clock_now_ns() + PAUSE_NS);
    wait_for(bench, &bench->paused, "the pause");
}

/* Seconds from bench->out's leaving to the answer. */
static double ask(struct bench *bench, struct kvf_rpc_call *call)
{
    bench->granted = false;
    double start = bench_now_s();
    kvf_rpc_call_send(call, (struct kvf_bytes){bench->out, bench->read_bytes});
    wait_for(bench, &bench->granted, "an answer");
    return bench->came_s - start;
}

static double round_ours(void *context)
{
    struct bench *bench = context;
    pause_a_little(bench);
    expect_blocks(bench);
    pack_read(bench);
    double took = ask(bench, bench->session);
    while (bench->ended < bench->count)
        kvf_loop_run_once(bench->loop, 1000);
    release(bench);
    return took;
}

static double round_echo(void *context)
{
    struct bench *bench = context;
    /* The very first round is ours or not: before it nobody knows how long Grants are. */
    uint32_t length = (uint32_t)bench->grants_bytes;
    pause_a_little(bench);
    memcpy(bench->out, &length, sizeof(length));
    double took = ask(bench, bench->echo);
    if (bench->echoed_bytes != length)
        bench_die("the echo is %zu bytes long, not %u", bench->echoed_bytes, length);
    return took;
}

static void put_blocks(struct bench *bench)
{
    struct kvf_client *prefill;
    daemon_client(bench_setting("PREFILL_DIR"), &prefill);
    (void)snprintf(bench->ns, sizeof(bench->ns), "bench/grants");
    for (uint32_t i = 0; i < bench->count; i++) {
        daemon_key(&bench->keys[i], i);
        daemon_put(prefill, bench->ns, i, bench->block_bytes);
    }
    (void)kvf_client_close(prefill);
    daemon_command(bench_setting("PREFILL_DIR"), "sync", "--durable");
}

static void bench_open(struct bench *bench)
{
    const struct kvf_arena *arenas[] = {&bench->arena};
    int port = echo_start((int)bench_number(bench_setting("SOURCE_CORE")));
    bench_pin((int)bench_number(bench_setting("CONSUMER_CORE")));
    put_blocks(bench);
    bench->pause.fire = pause_is_over;
    bench->tls = open_tls("decode");
    bench_check(kvf_loop_create(&bench->loop), "loop");
    bench_check(kvf_rpc_create(bench->loop, &bench->rpc), "rpc");
    bench_check(kvf_arena_create(bench->count * bench->block_bytes, 0, false, &bench->arena, NULL),
                "arena");
    struct kvf_transport_options options = {
        .loop = bench->loop, .arenas = arenas, .arena_count = 1};
    bench_check(kvf_transport_open("tcp", &options, &bench->transport, NULL), "transport");
    echo_connect(bench, port);
    session_open(bench);
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "grants", .unit = ROUNDS_MS};
    static struct bench bench;
    if (argc != 5)
        bench_die("grants DEVICE BLOCK_BYTES COUNT PAIRS");
    rounds.device = argv[1];
    rounds.block_bytes = bench.block_bytes = bench_number(argv[2]);
    bench.count = (uint32_t)bench_number(argv[3]);
    if (bench.count < 1 || bench.count > BLOCKS_MAX || bench.block_bytes % KVF_PAGE != 0)
        bench_die("COUNT: 1 to %u; BLOCK_BYTES: whole pages", BLOCKS_MAX);
    bench_open(&bench);
    (void)round_ours(&bench); /* tells how long the messages are */
    rounds_run(&rounds, (unsigned)bench_number(argv[4]), round_ours, round_echo, NULL, &bench);
    rounds_more(&rounds, "\"p99\": %.3f, \"limit_p99\": %.3f, \"tls\": %s, \"blocks\": %u",
                rounds_quantile(rounds.ours_s, rounds.n, 0.99) * 1e3,
                rounds_quantile(rounds.limit_s, rounds.n, 0.99) * 1e3,
                bench.tls != NULL ? "true" : "false", bench.count);
    rounds_more(&rounds, "\"message_bytes\": [%zu, %zu]", bench.read_bytes, bench.grants_bytes);
    rounds_print(&rounds);
    _exit(0); /* calls and lane go with the process */
}
