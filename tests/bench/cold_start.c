/* cold_start: a daemon with a large pool, started over a drive that has blocks: how long until it is READY, and the
 * first read after that beside a warm one.
 *
 *   cold_start DEVICE DIR POOL_MIB STARTS
 *
 * DIR gets the drive. From the environment: KVFERRYD, KVFERRY, RUN_DIR (of the daemon, may be there). A read is a
 * kvf_get of 8 blocks of 9 MiB from SSD; a warm one follows an eviction. READY is when an engine can register. */
#include "tests/bench/daemon.h"
#include "tests/bench/rounds.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS "bench/cold"
#define BLOCKS 8u
#define BLOCK_BYTES (9 * KVF_MIB)
#define STARTS_MAX 9u
#define WARM_READS 5u
#define READY_S_MAX 60.0
#define CAPACITY_MIB "1040"

struct bench {
    char drive[512];
    const char *pool_mib, *run_dir;
    int pid;
    struct kvf_client *client;
    double ready_s[STARTS_MAX];
    uint64_t registrations;
};

static void exec_daemon(const struct bench *bench)
{
    const char *kvferryd = bench_setting("KVFERRYD");
    char log[512];
    (void)snprintf(log, sizeof(log), "%s.log", bench->run_dir);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (fd >= 0)
        (void)dup2(fd, STDERR_FILENO);
    (void)execl(kvferryd, kvferryd, "--run-dir", bench->run_dir, "--http", "127.0.0.1:0",
                "--pool-mib", bench->pool_mib, "--ssd-path", bench->drive, "--ssd-capacity-mib",
                CAPACITY_MIB, NULL);
    _exit(127);
}

/* Seconds to READY; leaves a client. */
static double start_daemon(struct bench *bench)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    double start = bench_now_s();
    bench->pid = fork();
    if (bench->pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (bench->pid == 0)
        exec_daemon(bench);
    while (!daemon_try_client(bench->run_dir, &bench->client)) {
        if (bench_now_s() - start > READY_S_MAX || waitpid(bench->pid, NULL, WNOHANG) != 0)
            bench_die("the daemon did not become ready: see %s.log", bench->run_dir);
        (void)nanosleep(&ms, NULL);
    }
    return bench_now_s() - start;
}

static void stop_daemon(struct bench *bench)
{
    int status = -1;
    (void)kvf_client_close(bench->client);
    (void)kill(bench->pid, SIGTERM);
    if (waitpid(bench->pid, &status, 0) != bench->pid || status != 0)
        bench_die("the daemon ended with %d", status);
}

static double read_blocks(struct bench *bench)
{
    struct kvf_get_options options = {.ns = NS, .timeout_ms = DAEMON_TIMEOUT_MS};
    struct kvf_get_block blocks[BLOCKS];
    for (uint64_t i = 0; i < BLOCKS; i++) {
        blocks[i] = (struct kvf_get_block){.length = BLOCK_BYTES};
        daemon_key(&blocks[i].key, i);
    }
    double start = bench_now_s();
    bench_check(kvf_get(bench->client, &options, blocks, BLOCKS, NULL), "get");
    double took = bench_now_s() - start;
    for (uint64_t i = 0; i < BLOCKS; i++)
        if (blocks[i].code != KVF_OK || blocks[i].tier != KVF_TIER_SSD)
            bench_die("block %llu did not come from the SSD", (unsigned long long)i);
    kvf_get_release(bench->client, blocks, BLOCKS);
    return took;
}

static void one_start(struct bench *bench, struct rounds *rounds)
{
    double warm[WARM_READS];
    bench->ready_s[rounds->n] = start_daemon(bench);
    rounds->ours_s[rounds->n] = read_blocks(bench);
    bench->registrations = daemon_drive_stat(bench->run_dir, "registrations");
    for (unsigned i = 0; i < WARM_READS; i++) {
        daemon_command(bench->run_dir, "evict", "--dram");
        warm[i] = read_blocks(bench);
    }
    rounds->limit_s[rounds->n++] = rounds_quantile(warm, WARM_READS, 0.5);
    stop_daemon(bench);
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "cold_start", .unit = ROUNDS_MS};
    static struct bench bench;
    if (argc != 5)
        bench_die("cold_start DEVICE DIR POOL_MIB STARTS");
    rounds.device = argv[1];
    rounds.block_bytes = BLOCK_BYTES;
    rounds.round_bytes = BLOCKS * BLOCK_BYTES;
    bench.pool_mib = argv[3];
    bench.run_dir = bench_setting("RUN_DIR");
    unsigned starts = (unsigned)bench_number(argv[4]);
    if (starts < 1 || starts > STARTS_MAX)
        bench_die("STARTS: 1 to %u", STARTS_MAX);
    (void)snprintf(bench.drive, sizeof(bench.drive), "%s/cold", argv[2]);
    if (mkdir(bench.drive, 0700) != 0)
        bench_die("%s: %s", bench.drive, strerror(errno));
    (void)start_daemon(&bench);
    for (uint64_t i = 0; i < BLOCKS; i++)
        daemon_put(bench.client, NS, i, BLOCK_BYTES);
    daemon_command(bench.run_dir, "sync", "--durable");
    stop_daemon(&bench);
    while (rounds.n < starts)
        one_start(&bench, &rounds);
    rounds_more(&rounds, "\"pool_mib\": %s, \"registrations\": %llu, \"ready_ms\": %.0f",
                bench.pool_mib, (unsigned long long)bench.registrations,
                rounds_quantile(bench.ready_s, starts, 0.5) * 1e3);
    rounds_print(&rounds);
    return 0;
}
