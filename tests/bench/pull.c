/* pull_dram, pull_ssd, small_N: kvf_get at a real decode daemon whose blocks lie at a real prefill daemon, beside a
 * plain socket, or a plain pipe over a file on the same drive, or another system that serves the same blocks.
 *
 *   pull NAME DEVICE BLOCK_BYTES COUNT PAIRS
 *
 * and from the environment, as `run` sets it: PREFILL_DIR and DECODE_DIR (their --run-dirs), SOURCE (prefill's
 * --listen), KVFERRY (the command), PREFILL_PID, DECODE_PID, PLAIN_FILE, SOURCE_CORE, CONSUMER_CORE. A NAME with _ssd
 * pulls from the source's SSD, any other from its DRAM; one that begins with small_ is told in ms. Beside a peer: PEER
 * (memcached or nginx), PEER_PORT, PEER_PID, and for nginx PEER_ROOT, its document root.
 *
 * Only kvf_get is timed. Before it the consumer forgets the blocks and, for ssd, the source evicts its DRAM; after it
 * every block is checked to have come from that tier of the other node, and in the warm-up that its bytes are right. */
#include "base/block.h"
#include "tests/bench/daemon.h"
#include "tests/bench/peer.h"
#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    struct kvf_client *prefill, *decode;
    const char *prefill_dir, *source;
    char ns[64];
    uint64_t block_bytes;
    size_t count;
    struct kvf_get_block *blocks;
    struct kvf_key *keys;
    bool from_ssd;
    unsigned rounds;
    struct plain_source plain;
    uint8_t *plain_to;
    struct peer *peer; /* NULL: the limit is a plain program */
    int prefill_pid, decode_pid, peer_pid;
    struct rounds *row;
};

/* ---- the source's blocks ---- */

static void put_blocks(struct bench *bench)
{
    for (size_t i = 0; i < bench->count; i++) {
        daemon_key(&bench->keys[i], i);
        daemon_put(bench->prefill, bench->ns, i, bench->block_bytes);
    }
    daemon_command(bench->prefill_dir, "sync",
                   "--durable"); /* no write runs beside what is measured */
}

/* ---- a round of ours ---- */

static void check_bytes(const struct bench *bench)
{
    uint8_t *expected = bench_allocate(bench->block_bytes);
    for (size_t i = 0; i < bench->count; i++) {
        bench_fill(expected, bench->block_bytes, i);
        if (memcmp(expected, bench->blocks[i].data, bench->block_bytes) != 0)
            bench_die("block %zu came with other bytes", i);
    }
    free(expected);
}

static void check_origin(const struct bench *bench)
{
    /* The first round after the put may find in DRAM, or on SSD, what later rounds find as they should. */
    bool is_first = bench->rounds == 1;
    enum kvf_tier tier = bench->from_ssd ? KVF_TIER_SSD : KVF_TIER_DRAM;
    for (size_t i = 0; i < bench->count; i++) {
        const struct kvf_get_block *block = &bench->blocks[i];
        bench_check(kvf_fail(KVF_MODULE_SERVER, block->code, 0), "a block");
        if (block->length != bench->block_bytes || block->origin != KVF_ORIGIN_REMOTE ||
            (block->tier != tier && !is_first))
            bench_die("block %zu: %llu bytes from tier %d, origin %d", i,
                      (unsigned long long)block->length, (int)block->tier, (int)block->origin);
    }
}

/* Both daemons and the engine, which is this process. */
static double cpu_of_ours(const struct bench *bench)
{
    return bench_cpu_s(bench->prefill_pid) + bench_cpu_s(bench->decode_pid) + bench_cpu_s(0);
}

static double round_ours(void *context)
{
    struct bench *bench = context;
    struct kvf_get_options options = {
        .ns = bench->ns, .source = bench->source, .timeout_ms = DAEMON_TIMEOUT_MS};
    bench_check(kvf_forget(bench->decode, bench->ns, bench->keys, bench->count, NULL), "forget");
    if (bench->from_ssd)
        daemon_command(bench->prefill_dir, "evict", "--dram");
    for (size_t i = 0; i < bench->count; i++)
        bench->blocks[i] = (struct kvf_get_block){
            .key = bench->keys[i], .length = bench->block_bytes}; /* as an engine knows it */
    double cpu = cpu_of_ours(bench), start = bench_now_s();
    struct kvf_status status = kvf_get(bench->decode, &options, bench->blocks, bench->count, NULL);
    double took = bench_now_s() - start;
    bench->row->ours_cpu_s += cpu_of_ours(bench) - cpu;
    bench_check(status, "get");
    bench->rounds++;
    check_origin(bench);
    if (bench->rounds <= ROUNDS_WARM_UP)
        check_bytes(bench);
    kvf_get_release(bench->decode, bench->blocks, bench->count);
    return took;
}

/* ---- rounds of the limits ---- */

static double cpu_of_limit(const struct bench *bench)
{
    return bench_cpu_s(bench->peer != NULL ? bench->peer_pid : bench->plain.pid) + bench_cpu_s(0);
}

static double round_socket(void *context)
{
    struct bench *bench = context;
    double cpu = cpu_of_limit(bench);
    double took =
        plain_from_memory(&bench->plain, bench->plain_to, bench->block_bytes * bench->count);
    bench->row->limit_cpu_s += cpu_of_limit(bench) - cpu;
    return took;
}

static double round_pipe(void *context)
{
    struct bench *bench = context;
    double cpu = cpu_of_limit(bench);
    double took =
        plain_from_file(&bench->plain, bench->plain_to, bench->block_bytes * bench->count);
    bench->row->limit_cpu_s += cpu_of_limit(bench) - cpu;
    return took;
}

static double round_peer(void *context)
{
    struct bench *bench = context;
    double cpu = cpu_of_limit(bench);
    double took = peer_get(bench->peer, bench->plain_to);
    bench->row->limit_cpu_s += cpu_of_limit(bench) - cpu;
    if (bench->rounds <= ROUNDS_WARM_UP)
        peer_check(bench->peer, bench->plain_to);
    return took;
}

static double round_reads(void *context)
{
    struct bench *bench = context;
    return plain_reads_only(&bench->plain, bench->block_bytes * bench->count);
}

static void limit_open(struct bench *bench, uint64_t round_bytes)
{
    const char *peer = getenv("PEER"), *file = bench->from_ssd ? bench_setting("PLAIN_FILE") : NULL;
    if (peer != NULL) {
        bool is_nginx = strcmp(peer, "nginx") == 0;
        bench->peer = bench_allocate(sizeof(*bench->peer));
        bench->peer_pid = (int)bench_number(bench_setting("PEER_PID"));
        peer_open(bench->peer, is_nginx ? PEER_NGINX : PEER_MEMCACHED,
                  (uint16_t)bench_number(bench_setting("PEER_PORT")),
                  is_nginx ? bench_setting("PEER_ROOT") : NULL, bench->block_bytes, bench->count);
        return;
    }
    if (file != NULL)
        plain_file_make(file, round_bytes);
    plain_source_start(&bench->plain, (int)bench_number(bench_setting("SOURCE_CORE")), round_bytes,
                       file);
}

static void bench_open(struct bench *bench, uint64_t round_bytes)
{
    bench->prefill_dir = bench_setting("PREFILL_DIR");
    bench->source = bench_setting("SOURCE");
    bench->blocks = bench_allocate(bench->count * sizeof(*bench->blocks));
    bench->keys = bench_allocate(bench->count * sizeof(*bench->keys));
    (void)snprintf(bench->ns, sizeof(bench->ns), "bench/%llu",
                   (unsigned long long)bench->block_bytes);
    bench->prefill_pid = (int)bench_number(bench_setting("PREFILL_PID"));
    bench->decode_pid = (int)bench_number(bench_setting("DECODE_PID"));
    limit_open(bench, round_bytes);
    bench_pin((int)bench_number(bench_setting("CONSUMER_CORE")));
    bench->plain_to = bench_memory(round_bytes);
    daemon_client(bench->prefill_dir, &bench->prefill);
    daemon_client(bench_setting("DECODE_DIR"), &bench->decode);
}

static rounds_round *round_of_limit(const struct bench *bench)
{
    if (bench->peer != NULL)
        return round_peer;
    return bench->from_ssd ? round_pipe : round_socket;
}

int main(int argc, char **argv)
{
    static struct rounds rounds;
    static struct bench bench;
    if (argc != 6)
        bench_die("pull NAME DEVICE BLOCK_BYTES COUNT PAIRS");
    bench.from_ssd = strstr(argv[1], "_ssd") != NULL;
    bench.row = &rounds;
    bench.block_bytes = bench_number(argv[3]);
    bench.count = bench_number(argv[4]);
    if (bench.block_bytes == 0 || bench.count == 0)
        bench_die("BLOCK_BYTES and COUNT: 1 or more");
    rounds.name = argv[1];
    rounds.device = argv[2];
    rounds.block_bytes = bench.block_bytes;
    rounds.round_bytes = bench.block_bytes * bench.count;
    rounds.unit = strncmp(argv[1], "small_", 6) == 0 ? ROUNDS_MS : ROUNDS_GB_PER_S;
    bench_open(&bench, rounds.round_bytes);
    put_blocks(&bench);
    rounds_run(&rounds, (unsigned)bench_number(argv[5]), round_ours, round_of_limit(&bench),
               bench.from_ssd && bench.peer == NULL ? round_reads : NULL, &bench);
    if (getenv("TLS_DIR") != NULL)
        rounds_more(&rounds, "\"tls\": true"); /* between the daemons */
    rounds_print(&rounds);
    (void)kvf_client_close(bench.decode);
    (void)kvf_client_close(bench.prefill);
    if (bench.peer == NULL)
        plain_source_stop(&bench.plain);
    return 0;
}
