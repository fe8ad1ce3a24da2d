/* consumers_N: N consumers that pull from the DRAM of one source at once, each with a session and a lane of its own,
 * beside one of them that pulls as much alone.
 *
 *   consumers DEVICE BLOCK_BYTES CONSUMERS PAIRS
 *
 * and from the environment, as `run` sets it: PREFILL_DIR, SOURCE, CONSUMER_CORE. The consumers are sources of
 * client/pull in this process, which share its threads; a round pulls PULLS blocks for each. Both sides write to the
 * same memory: a block's place for every consumer. */
#include "base/block.h"
#include "base/clock.h"
#include "base/pool.h"
#include "client/pull/pull.h"
#include "tests/bench/daemon.h"
#include "tests/bench/rounds.h"

#include <stdio.h>
#include <unistd.h>

#define CONSUMERS_MAX 64u
#define PULLS 2u
#define KEYS 8u
#define ALONE_DEPTH 2u /* pulls that the lone consumer has open, KEYS blocks each */

struct bench;

/* Pulls that follow each other. */
struct chain {
    struct kvf_pull pull;
    struct kvf_pull_block blocks[KEYS];
    struct bench *bench;
    struct kvf_source *source;
    uint32_t first_place; /* of the next pull; its blocks lie from there on */
    uint32_t place_step;
    uint32_t block_count;
    uint32_t left;
};

struct bench {
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_pool *pool;
    struct kvf_transport *transport;
    struct kvf_pull_stats stats;
    struct kvf_source *sources[CONSUMERS_MAX];
    struct kvf_extent places[CONSUMERS_MAX];
    struct chain chains[CONSUMERS_MAX];
    char ns[64];
    uint64_t block_bytes;
    uint32_t consumers;
    uint32_t open_chains;
};

/* ---- one chain ---- */

static void block_ended(struct kvf_pull *pull, uint32_t index)
{
    const struct kvf_pull_block *block = &pull->blocks[index];
    bench_check(block->status, "a block");
    if (block->tier != KVF_TIER_DRAM)
        bench_die("a block came from tier %d", (int)block->tier);
}

static void pull_ended(struct kvf_pull *pull);

static void pull_next(struct chain *chain)
{
    const struct bench *bench = chain->bench;
    for (uint32_t i = 0; i < chain->block_count; i++) {
        uint32_t place = (chain->first_place + i) % bench->consumers;
        chain->blocks[i] =
            (struct kvf_pull_block){.length = bench->block_bytes, .extent = bench->places[place]};
        daemon_key(&chain->blocks[i].key, place % KEYS);
    }
    chain->first_place += chain->place_step;
    chain->left--;
    chain->pull =
        (struct kvf_pull){.namespace = bench->ns,
                          .instance = 1,
                          .deadline_ns = kvf_clock_now_ns() + DAEMON_TIMEOUT_MS * KVF_NS_PER_MS,
                          .batches_in_flight = 2,
                          .blocks = chain->blocks,
                          .block_count = chain->block_count,
                          .block_ended = block_ended,
                          .ended = pull_ended};
    kvf_pull_start(chain->source, &chain->pull);
}

static void pull_ended(struct kvf_pull *pull)
{
    struct chain *chain = kvf_container(pull, struct chain, pull);
    if (chain->left > 0)
        pull_next(chain);
    else
        chain->bench->open_chains--;
}

/* ---- the rounds ---- */

static double run_chains(struct bench *bench, uint32_t count)
{
    double start = bench_now_s();
    bench->open_chains = count;
    for (uint32_t i = 0; i < count; i++)
        pull_next(&bench->chains[i]);
    while (bench->open_chains > 0)
        kvf_loop_run_once(bench->loop, -1);
    return bench_now_s() - start;
}

static double round_all(void *context)
{
    struct bench *bench = context;
    for (uint32_t i = 0; i < bench->consumers; i++)
        bench->chains[i] = (struct chain){.bench = bench,
                                          .source = bench->sources[i],
                                          .first_place = i,
                                          .block_count = 1,
                                          .left = PULLS};
    return run_chains(bench, bench->consumers);
}

static double round_alone(void *context)
{
    struct bench *bench = context;
    for (uint32_t i = 0; i < ALONE_DEPTH; i++)
        bench->chains[i] = (struct chain){.bench = bench,
                                          .source = bench->sources[0],
                                          .first_place = i * KEYS,
                                          .place_step = ALONE_DEPTH * KEYS,
                                          .block_count = KEYS,
                                          .left = PULLS * bench->consumers / KEYS / ALONE_DEPTH};
    return run_chains(bench, ALONE_DEPTH);
}

/* ---- life ---- */

static void put_blocks(struct bench *bench)
{
    struct kvf_client *prefill;
    daemon_client(bench_setting("PREFILL_DIR"), &prefill);
    (void)snprintf(bench->ns, sizeof(bench->ns), "bench/%llu",
                   (unsigned long long)bench->block_bytes);
    for (uint32_t i = 0; i < KEYS; i++)
        daemon_put(prefill, bench->ns, i, bench->block_bytes);
    (void)kvf_client_close(prefill);
    daemon_command(bench_setting("PREFILL_DIR"), "sync", "--durable");
}

static void open_consumer(struct bench *bench, uint32_t number)
{
    struct kvf_source_options options = {.loop = bench->loop,
                                         .rpc = bench->rpc,
                                         .transports = kvf_transports_only(bench->transport),
                                         .address = bench_setting("SOURCE"),
                                         .tenant = "bench",
                                         .node_id = "bench-consumers",
                                         .process_instance = (uint64_t)getpid() << 32 | number,
                                         .stats = &bench->stats};
    bench_check(kvf_source_create(&options, &bench->sources[number]), "source");
    bench_check(kvf_pool_alloc(bench->pool, bench->block_bytes, &bench->places[number]), "a place");
}

static void bench_open(struct bench *bench)
{
    struct kvf_why why = {.text = ""};
    /* A third more than all places: the last one need not be an exact fit. */
    uint64_t mib = (bench->block_bytes * bench->consumers * 4 / 3 >> 20) + 1;
    put_blocks(bench);
    bench_pin((int)bench_number(bench_setting("CONSUMER_CORE")));
    bench_check(kvf_loop_create(&bench->loop), "loop");
    bench_check(kvf_rpc_create(bench->loop, &bench->rpc), "rpc");
    bench_check(kvf_pool_create(mib << 20, false, &bench->pool, &why), "pool");
    const struct kvf_arena *arena = kvf_pool_arena(bench->pool, 0);
    struct kvf_transport_options options = {
        .loop = bench->loop, .arenas = &arena, .arena_count = 1};
    bench_check(kvf_transport_open("tcp", &options, &bench->transport, &why), "transport");
    for (uint32_t i = 0; i < bench->consumers; i++)
        open_consumer(bench, i);
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.unit = ROUNDS_GB_PER_S};
    static struct bench bench;
    char name[32];
    if (argc != 5)
        bench_die("consumers DEVICE BLOCK_BYTES CONSUMERS PAIRS");
    rounds.device = argv[1];
    rounds.block_bytes = bench.block_bytes = bench_number(argv[2]);
    bench.consumers = (uint32_t)bench_number(argv[3]);
    if (bench.consumers > CONSUMERS_MAX || bench.consumers == 0 ||
        bench.consumers % (KEYS * ALONE_DEPTH) != 0)
        bench_die("CONSUMERS: a multiple of %u up to %u", KEYS * ALONE_DEPTH, CONSUMERS_MAX);
    (void)snprintf(name, sizeof(name), "consumers_%u", bench.consumers);
    rounds.name = name;
    rounds.round_bytes = bench.block_bytes * bench.consumers * PULLS;
    bench_open(&bench);
    rounds_run(&rounds, (unsigned)bench_number(argv[4]), round_all, round_alone, NULL, &bench);
    rounds_print(&rounds);
    _exit(0); /* sessions and lanes go with the process */
}
