/* get_dram: kvf_get of blocks that lie in the local daemon's DRAM, without copy and without check, beside a bare echo: one
 * message there, one back, over SOCK_SEQPACKET, as long as ours, between the same cores.
 *
 *   get_dram BLOCK_BYTES BLOCKS PAIRS
 *
 * and from the environment, as `run` sets it: RUN_DIR, SOURCE_CORE (the daemon's and the echo's), CONSUMER_CORE. On one core it is the
 * time that both need; on two it is mostly the host's time to wake the other core. The release is not timed:
 * it has no answer. */
#include "client/engine/wire.h"
#include "proto/engine.pb-c.h"
#include "tests/bench/daemon.h"
#include "tests/bench/rounds.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCKS_MAX 64u
#define NS "bench/get_dram"

struct bench {
    struct kvf_client *client;
    struct kvf_get_block blocks[BLOCKS_MAX];
    size_t count;
    uint64_t block_bytes;
    int echo;
    size_t request_bytes, answer_bytes;
};

/* ---- the echo ---- */

static size_t length_of_request(const struct bench *bench)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineGet get = KVFERRY__ENGINE_GET__INIT;
    Kvferry__EngineName names[BLOCKS_MAX], *pointers[BLOCKS_MAX];
    char ns[] = NS;
    for (size_t i = 0; i < bench->count; i++) {
        const struct kvf_key *key = &bench->blocks[i].key;
        kvferry__engine_name__init(&names[i]);
        names[i].key = (ProtobufCBinaryData){key->length, (uint8_t *)(uintptr_t)key->bytes};
        names[i].length = bench->block_bytes;
        pointers[i] = &names[i];
    }
    get.namespace_ = ns;
    get.n_blocks = bench->count;
    get.blocks = pointers;
    get.deadline_us = DAEMON_TIMEOUT_MS * 1000ull;
    request.id = 1000;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request.get = &get;
    return kvferry__engine_request__get_packed_size(&request);
}

/* Of an answer like the one that filled blocks[]. */
static size_t length_of_answer(const struct bench *bench)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineReady ready = KVFERRY__ENGINE_READY__INIT;
    Kvferry__EngineBlock found[BLOCKS_MAX], *pointers[BLOCKS_MAX];
    for (size_t i = 0; i < bench->count; i++) {
        const struct kvf_get_block *block = &bench->blocks[i];
        kvferry__engine_block__init(&found[i]);
        found[i].offset = i * bench->block_bytes;
        found[i].length = block->length;
        found[i].crc32c = block->crc32c;
        found[i].tier = (uint32_t)block->tier;
        found[i].generation_epoch = block->generation.epoch;
        found[i].generation_counter = block->generation.counter;
        pointers[i] = &found[i];
    }
    ready.n_blocks = bench->count;
    ready.blocks = pointers;
    ready.prefix = (uint32_t)bench->count;
    reply.id = 1000;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_READY;
    reply.ready = &ready;
    return kvferry__engine_reply__get_packed_size(&reply);
}

__attribute__((noreturn)) static void serve(int fd, size_t answer_bytes)
{
    static uint8_t message[KVF_WIRE_MAX_BYTES], answer[KVF_WIRE_MAX_BYTES];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin((int)bench_number(bench_setting("SOURCE_CORE")));
    while (recv(fd, message, sizeof(message), 0) > 0)
        if (send(fd, answer, answer_bytes, MSG_NOSIGNAL) != (ssize_t)answer_bytes)
            break;
    _exit(0);
}

static void start_echo(struct bench *bench)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        bench_die("socketpair: %s", strerror(errno));
    int child = fork();
    if (child < 0)
        bench_die("fork: %s", strerror(errno));
    if (child == 0) {
        (void)close(pair[0]);
        serve(pair[1], bench->answer_bytes);
    }
    (void)close(pair[1]);
    bench->echo = pair[0];
}

static double round_echo(void *context)
{
    static uint8_t message[KVF_WIRE_MAX_BYTES];
    struct bench *bench = context;
    double start = bench_now_s();
    if (send(bench->echo, message, bench->request_bytes, MSG_NOSIGNAL) !=
            (ssize_t)bench->request_bytes ||
        recv(bench->echo, message, sizeof(message), 0) != (ssize_t)bench->answer_bytes)
        bench_die("the echo is gone");
    return bench_now_s() - start;
}

/* ---- ours ---- */

static double round_ours(void *context)
{
    struct bench *bench = context;
    struct kvf_get_options options = {.ns = NS, .timeout_ms = DAEMON_TIMEOUT_MS};
    size_t prefix = 0;
    for (size_t i = 0; i < bench->count; i++)
        bench->blocks[i].length = bench->block_bytes;
    double start = bench_now_s();
    bench_check(kvf_get(bench->client, &options, bench->blocks, bench->count, &prefix), "get");
    double took = bench_now_s() - start;
    if (prefix != bench->count || bench->blocks[0].tier != KVF_TIER_DRAM ||
        bench->blocks[0].origin != KVF_ORIGIN_LOCAL)
        bench_die("not every block came from DRAM");
    kvf_get_release(bench->client, bench->blocks, bench->count);
    return took;
}

static void open_bench(struct bench *bench)
{
    daemon_client(bench_setting("RUN_DIR"), &bench->client);
    for (size_t i = 0; i < bench->count; i++) {
        daemon_put(bench->client, NS, i, bench->block_bytes);
        daemon_key(&bench->blocks[i].key, i);
    }
    (void)round_ours(bench); /* knows what an answer looks like */
    bench->request_bytes = length_of_request(bench);
    bench->answer_bytes = length_of_answer(bench);
    start_echo(bench);
    bench_pin((int)bench_number(bench_setting("CONSUMER_CORE")));
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "get_dram", .device = "memory", .unit = ROUNDS_MS};
    static struct bench bench;
    if (argc != 4)
        bench_die("get_dram BLOCK_BYTES BLOCKS PAIRS");
    bench.block_bytes = rounds.block_bytes = bench_number(argv[1]);
    bench.count = (size_t)bench_number(argv[2]);
    if (bench.count < 1 || bench.count > BLOCKS_MAX)
        bench_die("BLOCKS: 1 to %u", BLOCKS_MAX);
    rounds.round_bytes = bench.count * bench.block_bytes;
    open_bench(&bench);
    rounds_run(&rounds, (unsigned)bench_number(argv[3]), round_ours, round_echo, NULL, &bench);
    bool same_core = strcmp(bench_setting("SOURCE_CORE"), bench_setting("CONSUMER_CORE")) == 0;
    rounds_more(&rounds, "\"same_core\": %s, \"blocks\": %zu, \"p99\": %.4f, \"limit_p99\": %.4f",
                same_core ? "true" : "false", bench.count,
                1e3 * rounds_quantile(rounds.ours_s, rounds.n, 0.99),
                1e3 * rounds_quantile(rounds.limit_s, rounds.n, 0.99));
    rounds_print(&rounds);
    (void)kvf_client_close(bench.client);
    return 0;
}
