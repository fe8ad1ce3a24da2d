/* recover: a real daemon starts over a store full of small records. READY, the first hit and the end of recovery, counted
 * from its exec, beside plain reads of what recovery has to read.
 *
 *   recover DEVICE DIR RECORDS PAIRS KVFERRYD
 *
 * DIR gets a store of RECORDS records of 4 KiB, which must not be there yet, and the daemon's run directory. The newest
 * record is asked for as soon as the daemon can be reached; then one that was never there, whose miss is answered when
 * recovery has ended. The row tells the end; a line on stderr tells all three.
 *
 * Parts: the store, a round of ours, a round of plain reads, main. */
#include "base/block.h"
#include "base/crc32c.h"
#include "client/kvferry.h"
#include "storage/storage.h"
#include "tests/bench/rounds.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SPACE "bench/recover"
#define AT_ONCE 16384u
#define WAIT_S 120.0

struct bench {
    const char *kvferryd;
    char store_path[400], run_dir[400], capacity[32];
    uint64_t records, capacity_mib;
    double ready_s[ROUNDS_MAX], hit_s[ROUNDS_MAX];
    unsigned rounds;
};

static struct bench bench;

extern char **environ;

/* ---- the store ---- */

static uint64_t ended, started;

static void found(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location)
{
    (void)recovery, (void)record, (void)location;
}

static void recovered(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    (void)result;
    recovery->context = NULL;
}

/* As an engine's prefix hash: 32 bytes. */
static struct kvf_key key_of(uint64_t number)
{
    struct kvf_key key;
    uint8_t bytes[32];
    bench_fill(bytes, sizeof(bytes), number + 1);
    (void)kvf_key_set(&key, bytes, sizeof(bytes));
    return key;
}

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    (void)location;
    bench_check(status, "append");
    ended++;
    if (started == bench.records)
        return;
    append->record.key = key_of(started);
    append->record.generation.counter = ++started;
    kvf_store_append(append->store, append);
}

static void append_all(struct kvf_store *store, struct kvf_loop *loop,
                       const struct kvf_arena *arena)
{
    static struct kvf_append appends[AT_ONCE];
    for (size_t i = 0; i < AT_ONCE && started < bench.records; i++) {
        appends[i] = (struct kvf_append){
            .record = {.namespace = SPACE,
                       .key = key_of(started),
                       .generation = {.epoch = 1, .counter = started + 1},
                       .length = KVF_PAGE,
                       .crc32c = kvf_crc32c(0, arena->base, KVF_PAGE)},
            .extent = {.arena = arena, .bytes = KVF_PAGE},
            .ended = append_ended,
        };
        started++;
        kvf_store_append(store, &appends[i]);
    }
    while (ended < bench.records)
        kvf_loop_run_once(loop, 1000);
}

static void fill(void)
{
    struct kvf_loop *loop;
    struct kvf_arena arena;
    struct kvf_store *store;
    struct kvf_why why = {.text = ""};
    bench_check(kvf_loop_create(&loop), "loop");
    bench_check(kvf_arena_create(KVF_MIB, 0, false, &arena, &why), "arena");
    const struct kvf_arena *arenas[] = {&arena};
    const char *paths[] = {bench.store_path};
    struct kvf_store_options options = {.loop = loop,
                                        .paths = paths,
                                        .path_count = 1,
                                        .capacity_bytes = bench.capacity_mib * KVF_MIB,
                                        .read_threads = 1,
                                        .arenas = arenas,
                                        .arena_count = 1};
    struct kvf_recovery recovery = {.found = found, .ended = recovered, .context = &bench};
    if (mkdir(bench.store_path, 0700) != 0)
        bench_die("%s: %s", bench.store_path, strerror(errno));
    if (!kvf_is_ok(kvf_store_open(&options, &store, &why)) ||
        !kvf_is_ok(kvf_store_recover(store, &recovery, &why)))
        bench_die("%s", why.text);
    while (recovery.context != NULL)
        kvf_loop_run_once(loop, 1000);
    append_all(store, loop, &arena);
    kvf_store_close(store);
    kvf_arena_close(&arena);
    kvf_loop_destroy(loop);
}

/* ---- a round of ours ---- */

static pid_t start_daemon(void)
{
    char *arguments[] = {(char *)(uintptr_t)bench.kvferryd,
                         "--run-dir",
                         bench.run_dir,
                         "--http",
                         "127.0.0.1:0",
                         "--pool-mib",
                         "256",
                         "--ssd-path",
                         bench.store_path,
                         "--ssd-capacity-mib",
                         bench.capacity,
                         NULL};
    posix_spawn_file_actions_t quiet;
    pid_t pid;
    (void)posix_spawn_file_actions_init(&quiet);
    (void)posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, bench.kvferryd, &quiet, NULL, arguments, environ) != 0)
        bench_die("%s does not start", bench.kvferryd);
    (void)posix_spawn_file_actions_destroy(&quiet);
    return pid;
}

static struct kvf_client *reach_daemon(double start)
{
    char path[512];
    struct kvf_client *client;
    struct kvf_why why;
    const struct timespec pause = {.tv_nsec = 2000000};
    (void)snprintf(path, sizeof(path), "%s/engine.sock", bench.run_dir);
    struct kvf_client_options options = {.socket_path = path, .name = "bench"};
    while (!kvf_is_ok(kvf_client_open(&options, &client, &why))) {
        if (bench_now_s() - start > WAIT_S)
            bench_die("the daemon cannot be reached: %s", why.text);
        (void)nanosleep(&pause, NULL);
    }
    return client;
}

/* Until the answer. */
static void get(struct kvf_client *client, uint64_t number, enum kvf_code code)
{
    struct kvf_get_options options = {.ns = SPACE, .timeout_ms = 30000};
    struct kvf_get_block block = {.key = key_of(number), .length = KVF_PAGE};
    bench_check(kvf_get(client, &options, &block, 1, NULL), "get");
    if (block.code != code)
        bench_die("record %llu: %s", (unsigned long long)number, kvf_code_name(block.code));
    kvf_get_release(client, &block, 1);
}

static double round_ours(void *context)
{
    int status = -1;
    unsigned at = bench.rounds++ % ROUNDS_MAX;
    (void)context;
    double start = bench_now_s();
    pid_t pid = start_daemon();
    struct kvf_client *client = reach_daemon(start);
    bench.ready_s[at] = bench_now_s() - start;
    get(client, bench.records - 1, KVF_OK);
    bench.hit_s[at] = bench_now_s() - start;
    get(client, bench.records, KVF_NOT_FOUND);
    double took = bench_now_s() - start;
    (void)kvf_client_close(client);
    (void)kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_die("the daemon ended with status %d", status);
    return took;
}

/* ---- a round of plain reads ---- */

static void read_plainly(int fd, uint8_t *to, uint64_t bytes, uint64_t offset)
{
    if (pread(fd, to, bytes, (off_t)offset) != (ssize_t)bytes)
        bench_die("a segment cannot be read: %s", strerror(errno));
}

/* Header page, footer page and index of every segment, one after the other. */
static double round_plain(void *context)
{
    static uint8_t *memory;
    uint64_t index_offset, index_bytes;
    (void)context;
    if (memory == NULL)
        memory = bench_memory(64 * KVF_MIB);
    double start = bench_now_s();
    for (unsigned i = 0;; i++) {
        char path[512];
        struct stat file;
        (void)snprintf(path, sizeof(path), "%s/segment-%05u", bench.store_path, i);
        int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &file) != 0)
            break;
        read_plainly(fd, memory, KVF_PAGE, 0);
        read_plainly(fd, memory, KVF_PAGE, (uint64_t)file.st_size - KVF_PAGE);
        memcpy(&index_offset, memory + 48, sizeof(index_offset)); /* see storage/format.c */
        memcpy(&index_bytes, memory + 56, sizeof(index_bytes));
        if (index_bytes > 0 && index_bytes <= 64 * KVF_MIB)
            read_plainly(fd, memory, kvf_round_up_page(index_bytes), index_offset);
        (void)close(fd);
    }
    return bench_now_s() - start;
}

/* ---- main ---- */

static int compare(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static double median_ms(double *seconds, unsigned count)
{
    qsort(seconds, count, sizeof(*seconds), compare);
    return seconds[count / 2] * 1e3;
}

int main(int argc, char **argv)
{
    static struct rounds rounds;
    if (argc != 6)
        bench_die("recover DEVICE DIR RECORDS PAIRS KVFERRYD");
    bench.records = bench_number(argv[3]);
    bench.kvferryd = argv[5];
    if (bench.records == 0)
        bench_die("RECORDS: 1 or more");
    (void)snprintf(bench.store_path, sizeof(bench.store_path), "%s/store", argv[2]);
    (void)snprintf(bench.run_dir, sizeof(bench.run_dir), "%s/run", argv[2]);
    /* Header, index and a page each; three segments more than are filled, so that nothing is reclaimed. */
    bench.capacity_mib = bench.records * (KVF_PAGE + 400) / KVF_MIB + 4 * 260;
    (void)snprintf(bench.capacity, sizeof(bench.capacity), "%llu",
                   (unsigned long long)bench.capacity_mib);
    fill();
    rounds = (struct rounds){.name = "recover",
                             .device = argv[1],
                             .block_bytes = KVF_PAGE,
                             .round_bytes = bench.records * KVF_PAGE,
                             .unit = ROUNDS_MS};
    rounds_run(&rounds, (unsigned)bench_number(argv[4]), round_ours, round_plain, NULL, NULL);
    rounds_print(&rounds);
    (void)fprintf(stderr, "   %llu records: READY after %.0f ms, the first hit after %.0f ms\n",
                  (unsigned long long)bench.records, median_ms(bench.ready_s, bench.rounds),
                  median_ms(bench.hit_s, bench.rounds));
    return 0;
}
