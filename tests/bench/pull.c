/* pull_dram, pull_ssd, small_N: kvf_get at a real decode daemon whose blocks lie at a real prefill daemon, beside a
 * plain socket, or a plain pipe over a file on the same drive.
 *
 *   pull NAME DEVICE BLOCK_BYTES COUNT PAIRS
 *
 * and from the environment, as `run` sets it: PREFILL_DIR and DECODE_DIR (their --run-dirs), SOURCE (prefill's
 * --listen), KVFERRY (the command), PLAIN_FILE, SOURCE_CORE, CONSUMER_CORE. A NAME that ends with ssd pulls from the
 * source's SSD, any other from its DRAM; one that begins with small_ is told in ms.
 *
 * Only kvf_get is timed. Before it the consumer forgets the blocks and, for ssd, the source evicts its DRAM; after it
 * every block is checked to have come from that tier of the other node, and in the warm-up that its bytes are right. */
#include "base/block.h"
#include "client/engine/kvferry.h"
#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_MS 30000u

struct bench {
    struct kvf_client *prefill, *decode;
    const char *prefill_dir, *kvferry, *source;
    char ns[64];
    uint64_t block_bytes;
    size_t count;
    struct kvf_get_block *blocks;
    struct kvf_key *keys;
    bool from_ssd;
    unsigned rounds;
    struct plain_source plain;
    uint8_t *plain_to;
};

extern char **environ;

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        bench_die("%s is not set: call tests/bench/run", name);
    return value;
}

/* ---- the source's blocks ---- */

static void run_kvferry(struct bench *bench, const char *command, const char *option)
{
    char *arguments[] = {(char *)bench->kvferry, "--run-dir",    (char *)bench->prefill_dir,
                         (char *)command,        (char *)option, NULL};
    posix_spawn_file_actions_t quiet;
    pid_t pid;
    int status = -1;
    (void)posix_spawn_file_actions_init(&quiet);
    (void)posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&pid, bench->kvferry, &quiet, NULL, arguments, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0)
        bench_die("kvferry %s %s failed", command, option);
    (void)posix_spawn_file_actions_destroy(&quiet);
}

static void client_open(const char *run_dir, struct kvf_client **give)
{
    char path[256];
    struct kvf_why why = {.text = ""};
    (void)snprintf(path, sizeof(path), "%s/engine.sock", run_dir);
    struct kvf_client_options options = {.socket_path = path, .name = "bench"};
    if (!kvf_is_ok(kvf_client_open(&options, give, &why)))
        bench_die("%s", why.text);
}

static void put_block(struct bench *bench, size_t index)
{
    struct kvf_put put = {.key = bench->keys[index], .length = bench->block_bytes};
    bench_check(kvf_put_begin(bench->prefill, bench->ns, &put, 1, TIMEOUT_MS), "put");
    if (put.code == KVF_EXISTS)
        return;
    bench_check(kvf_fail(KVF_MODULE_SERVER, put.code, 0), "put");
    bench_fill(put.data, put.length, index);
    bench_check(kvf_put_commit(bench->prefill, &put, 1), "commit");
    bench_check(kvf_fail(KVF_MODULE_SERVER, put.code, 0), "commit");
}

static void put_blocks(struct bench *bench)
{
    for (size_t i = 0; i < bench->count; i++) {
        uint64_t key = i;
        (void)kvf_key_set(&bench->keys[i], &key, sizeof(key));
        put_block(bench, i);
    }
    run_kvferry(bench, "sync", "--durable"); /* no write runs beside what is measured */
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

static double round_ours(void *context)
{
    struct bench *bench = context;
    struct kvf_get_options options = {
        .ns = bench->ns, .source = bench->source, .timeout_ms = TIMEOUT_MS};
    bench_check(kvf_forget(bench->decode, bench->ns, bench->keys, bench->count, NULL), "forget");
    if (bench->from_ssd)
        run_kvferry(bench, "evict", "--dram");
    for (size_t i = 0; i < bench->count; i++)
        bench->blocks[i] = (struct kvf_get_block){
            .key = bench->keys[i], .length = bench->block_bytes}; /* as an engine knows it */
    double start = bench_now_s();
    struct kvf_status status = kvf_get(bench->decode, &options, bench->blocks, bench->count, NULL);
    double took = bench_now_s() - start;
    bench_check(status, "get");
    bench->rounds++;
    check_origin(bench);
    if (bench->rounds <= ROUNDS_WARM_UP)
        check_bytes(bench);
    kvf_get_release(bench->decode, bench->blocks, bench->count);
    return took;
}

/* ---- rounds of the limits ---- */

static double round_socket(void *context)
{
    struct bench *bench = context;
    return plain_from_memory(&bench->plain, bench->plain_to, bench->block_bytes * bench->count);
}

static double round_pipe(void *context)
{
    struct bench *bench = context;
    return plain_from_file(&bench->plain, bench->plain_to, bench->block_bytes * bench->count);
}

static double round_reads(void *context)
{
    struct bench *bench = context;
    return plain_reads_only(&bench->plain, bench->block_bytes * bench->count);
}

static void bench_open(struct bench *bench, uint64_t round_bytes)
{
    const char *file = bench->from_ssd ? setting("PLAIN_FILE") : NULL;
    bench->prefill_dir = setting("PREFILL_DIR");
    bench->kvferry = setting("KVFERRY");
    bench->source = setting("SOURCE");
    bench->blocks = bench_allocate(bench->count * sizeof(*bench->blocks));
    bench->keys = bench_allocate(bench->count * sizeof(*bench->keys));
    (void)snprintf(bench->ns, sizeof(bench->ns), "bench/%llu",
                   (unsigned long long)bench->block_bytes);
    if (file != NULL)
        plain_file_make(file, round_bytes);
    plain_source_start(&bench->plain, (int)bench_number(setting("SOURCE_CORE")), round_bytes, file);
    bench_pin((int)bench_number(setting("CONSUMER_CORE")));
    bench->plain_to = bench_memory(round_bytes);
    client_open(bench->prefill_dir, &bench->prefill);
    client_open(setting("DECODE_DIR"), &bench->decode);
}

int main(int argc, char **argv)
{
    static struct rounds rounds;
    static struct bench bench;
    if (argc != 6)
        bench_die("pull NAME DEVICE BLOCK_BYTES COUNT PAIRS");
    bench.from_ssd = strlen(argv[1]) > 3 && strcmp(argv[1] + strlen(argv[1]) - 3, "ssd") == 0;
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
    rounds_run(&rounds, (unsigned)bench_number(argv[5]), round_ours,
               bench.from_ssd ? round_pipe : round_socket, bench.from_ssd ? round_reads : NULL,
               &bench);
    rounds_print(&rounds);
    (void)kvf_client_close(bench.decode);
    (void)kvf_client_close(bench.prefill);
    plain_source_stop(&bench.plain);
    return 0;
}
