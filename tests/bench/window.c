/* window: the sliding window beside fixed groups of 32 that wait for their slowest, over the same blocks of the same
 * store. The groups are made here, of read sets: storage has no such thing.
 *
 *   window DEVICE DIR BLOCK_BYTES LATE_MS PAIRS
 *
 * With LATE_MS one read in each 32 comes back that much later, on either side. */
#include "tests/bench/rounds.h"
#include "tests/bench/slow.h"
#include "tests/bench/stored.h"

#include <stdio.h>

#define GROUP 32u
#define ROUND_BYTES (128 * KVF_MIB)

static double round_sliding(void *context)
{
    return stored_read(context, 1);
}

static double round_groups(void *context)
{
    struct stored *stored = context;
    double start = bench_now_s();
    for (uint32_t first = 0; first < stored->count; first += GROUP) {
        uint32_t left = stored->count - first, count = left < GROUP ? left : GROUP;
        stored_start(stored, first, count);
        stored_wait(stored, count);
    }
    return bench_now_s() - start;
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "window", .unit = ROUNDS_GB_PER_S};
    static struct stored stored;
    char path[512];
    if (argc != 6)
        bench_die("window DEVICE DIR BLOCK_BYTES LATE_MS PAIRS");
    rounds.device = argv[1];
    rounds.block_bytes = bench_number(argv[3]);
    rounds.round_bytes = ROUND_BYTES;
    if (rounds.block_bytes == 0 || rounds.block_bytes > STORED_IO_BYTES)
        bench_die("BLOCK_BYTES: one read each, at most 1 MiB");
    (void)snprintf(path, sizeof(path), "%s/store", argv[2]);
    stored_open(&stored, &(struct stored_options){
                             .path = path,
                             .block_bytes = rounds.block_bytes,
                             .count = (uint32_t)(ROUND_BYTES / rounds.block_bytes),
                             .threads = STORED_THREADS,
                             .engine = &slow_engine,
                         });
    unsigned late_ms = (unsigned)bench_number(argv[4]);
    slow = (struct slow){.one_in = late_ms > 0 ? GROUP : 0, .late_ms = late_ms};
    rounds_run(&rounds, (unsigned)bench_number(argv[5]), round_sliding, round_groups, NULL,
               &stored);
    rounds_more(&rounds, "\"late_ms\": %u", late_ms);
    rounds_print(&rounds);
    stored_close(&stored);
    return 0;
}
