/* small_sets: what a set saves, and how many reader threads small blocks want.
 *
 *   small_sets DEVICE DIR sets COUNT PAIRS      COUNT blocks of 4 KiB in one set, beside as many sets of one block that
 *                                               are all started before the first wait; limit2: one after the other
 *   small_sets DEVICE DIR threads THREADS BLOCK_BYTES COUNT PAIRS
 *                                               a set of COUNT blocks with THREADS reader threads, beside one thread
 *
 * `time_share` is the time of ours as a share of the limit's; `public` is what another system reports for it. */
#include "tests/bench/rounds.h"
#include "tests/bench/stored.h"

#include <stdio.h>
#include <string.h>

struct bench {
    struct rounds rounds;
    struct stored ours, limit; /* the same store, unless threads are compared */
};

static struct bench bench;

static double round_one_set(void *context)
{
    (void)context;
    return stored_read(&bench.ours, 1);
}

static double round_sets_of_one(void *context)
{
    (void)context;
    return stored_read(&bench.ours, bench.ours.count);
}

static double round_serial(void *context)
{
    double start = bench_now_s();
    (void)context;
    for (uint32_t i = 0; i < bench.ours.count; i++) {
        stored_start(&bench.ours, i, 1);
        stored_wait(&bench.ours, 1);
    }
    return bench_now_s() - start;
}

static double round_one_thread(void *context)
{
    (void)context;
    return stored_read(&bench.limit, 1);
}

static void open_store(struct stored *stored, const char *directory, const char *name,
                       uint32_t count, unsigned threads)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    stored_open(stored, &(struct stored_options){
                            .path = path,
                            .block_bytes = bench.rounds.block_bytes,
                            .count = count,
                            .threads = threads,
                            .engine = &kvf_engine_uring,
                        });
}

static double time_share(void)
{
    double shares[ROUNDS_MAX];
    for (unsigned i = 0; i < bench.rounds.n; i++)
        shares[i] = bench.rounds.ours_s[i] / bench.rounds.limit_s[i];
    return rounds_quantile(shares, bench.rounds.n, 0.5);
}

static void compare_sets(char **argv)
{
    uint32_t count = (uint32_t)bench_number(argv[4]);
    bench.rounds.name = "small_sets";
    bench.rounds.unit = ROUNDS_MS;
    bench.rounds.block_bytes = KVF_PAGE;
    bench.rounds.round_bytes = KVF_PAGE * count;
    open_store(&bench.ours, argv[2], "store", count, STORED_THREADS);
    rounds_run(&bench.rounds, (unsigned)bench_number(argv[5]), round_one_set, round_sets_of_one,
               round_serial, NULL);
    rounds_more(&bench.rounds, "\"blocks\": %u, \"time_share\": %.3f", count, time_share());
    if (count == 12 || count == 34)
        rounds_more(&bench.rounds, "\"public\": %.3f", count == 12 ? 0.645 : 0.903);
    rounds_print(&bench.rounds);
    stored_close(&bench.ours);
}

static void compare_threads(char **argv)
{
    unsigned threads = (unsigned)bench_number(argv[4]);
    uint32_t count = (uint32_t)bench_number(argv[6]);
    bench.rounds.name = "read_threads";
    bench.rounds.block_bytes = bench_number(argv[5]);
    bench.rounds.round_bytes = bench.rounds.block_bytes * count;
    bench.rounds.unit = bench.rounds.round_bytes < KVF_MIB ? ROUNDS_MS : ROUNDS_GB_PER_S;
    open_store(&bench.ours, argv[2], "store", count, threads);
    open_store(&bench.limit, argv[2], "store-of-one", count, 1);
    rounds_run(&bench.rounds, (unsigned)bench_number(argv[7]), round_one_set, round_one_thread,
               NULL, NULL);
    rounds_more(&bench.rounds, "\"read_threads\": %u, \"blocks\": %u", threads, count);
    rounds_print(&bench.rounds);
    stored_close(&bench.ours);
    stored_close(&bench.limit);
}

int main(int argc, char **argv)
{
    bench.rounds.device = argc > 1 ? argv[1] : "";
    if (argc == 6 && strcmp(argv[3], "sets") == 0)
        compare_sets(argv);
    else if (argc == 8 && strcmp(argv[3], "threads") == 0)
        compare_threads(argv);
    else
        bench_die(
            "small_sets DEVICE DIR sets COUNT PAIRS | threads THREADS BLOCK_BYTES COUNT PAIRS");
    return 0;
}
