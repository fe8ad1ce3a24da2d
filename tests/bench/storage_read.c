/* storage_read: read sets over an open store, beside fio with the same sizes and the same total depth.
 *
 *   storage_read DEVICE DIR BLOCK_BYTES PAIRS
 *
 * DIR gets a store, which must not be there yet, and fio's file, which may. Both read as many bytes in sequence; the
 * store's land in extents of their own, as a Read's do. A row each for 1, 2 and 4 sets that are started at once and share
 * the blocks; a pair is a round of each of them and one round of fio. fio takes its own time (its start does not count)
 * and its own CPU time.
 *
 * Parts: a round of ours, a round of fio, pairs, main. */
#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"
#include "tests/bench/stored.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_BYTES (144 * KVF_MIB)      /* whole blocks of 9 MiB */
#define SMALL_ROUND_BYTES (32 * KVF_MIB) /* of 4 KiB: 8192 blocks */
#define FIO_BYTES_MIN (288 * KVF_MIB)    /* fio counts in whole milliseconds */
#define FIO_JOBS_MAX 2u
#define ROWS 3u

static const uint32_t sets_of_row[ROWS] = {1, 2, 4};

struct bench {
    struct rounds rows[ROWS];
    struct stored stored;
    uint64_t block_bytes, round_bytes;
    char fio_file[512];
    unsigned fio_jobs;
    double fio_cpu_s; /* of the last round */
};

static struct bench bench;

static void round_ours(unsigned row, unsigned at)
{
    double cpu = bench_cpu_s(0);
    bench.rows[row].ours_s[at] = stored_read(&bench.stored, sets_of_row[row]);
    bench.rows[row].ours_cpu_s += bench_cpu_s(0) - cpu;
}

/* ---- a round of fio ---- */

static double number_of(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

static double seconds_of(const char *json, uint64_t bytes)
{
    cJSON *root = cJSON_Parse(json);
    cJSON *job = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "jobs"), 0);
    cJSON *read = cJSON_GetObjectItem(job, "read");
    double rate = number_of(read, "bw_bytes"), moved = number_of(read, "io_bytes");
    if (!(rate > 0) || !(moved >= (double)bytes))
        bench_die("fio said something else than a result: %.200s", json);
    /* Per cents of the sum of the jobs' times, in ms. */
    double cpu_s = (number_of(job, "usr_cpu") + number_of(job, "sys_cpu")) / 100 *
                   number_of(job, "job_runtime") / 1e3;
    bench.fio_cpu_s = cpu_s / moved * (double)bench.round_bytes;
    cJSON_Delete(root);
    return (double)bench.round_bytes / rate;
}

/* With malloc on huge pages: fio's buffers are otherwise single pages, of which the drive sees many short runs. */
static void fio_command(char *command, size_t size, uint64_t loops)
{
    uint64_t block = bench.block_bytes, jobs = bench.fio_jobs;
    uint64_t io = block < STORED_IO_BYTES ? block : STORED_IO_BYTES;
    uint64_t in_flight = STORED_INFLIGHT_BYTES / io;
    uint64_t depth = in_flight < STORED_DEPTH ? in_flight : STORED_DEPTH;
    (void)snprintf(command, size,
                   "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=limit --filename='%s' "
                   "--rw=read --ioengine=io_uring --direct=1 --fixedbufs=1 --bs=%llu "
                   "--iodepth=%llu --numjobs=%llu --size=%llu --offset_increment=%llu "
                   "--loops=%llu --invalidate=0 --thread --group_reporting --output-format=json",
                   bench.fio_file, (unsigned long long)io, (unsigned long long)(depth / jobs),
                   (unsigned long long)jobs, (unsigned long long)(bench.round_bytes / jobs),
                   (unsigned long long)(bench.round_bytes / jobs), (unsigned long long)loops);
}

static double round_fio(void)
{
    static char json[1 << 16];
    char command[1024];
    uint64_t loops = FIO_BYTES_MIN / bench.round_bytes;
    fio_command(command, sizeof(command), loops);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        bench_die("fio: %s", strerror(errno));
    size_t bytes = fread(json, 1, sizeof(json) - 1, pipe);
    json[bytes] = '\0';
    if (pclose(pipe) != 0)
        bench_die("fio failed: install it, or see: %s", command);
    return seconds_of(json, bench.round_bytes * loops);
}

/* fio's best: blocks of 4 KiB cost it so much CPU that two jobs may beat one. */
static void choose_jobs(void)
{
    double best = 0;
    unsigned best_jobs = 1;
    for (unsigned jobs = 1; jobs <= FIO_JOBS_MAX && bench.block_bytes < KVF_MIB / 16; jobs++) {
        bench.fio_jobs = jobs;
        double took = round_fio(), again = round_fio();
        took = took < again ? took : again;
        if (best == 0 || took < best) {
            best = took;
            best_jobs = jobs;
        }
    }
    bench.fio_jobs = best_jobs;
}

/* ---- pairs ---- */

static void limit_of_all(unsigned at)
{
    double took = round_fio();
    for (unsigned row = 0; row < ROWS; row++) {
        bench.rows[row].limit_s[at] = took;
        bench.rows[row].limit_cpu_s += bench.fio_cpu_s;
    }
}

/* Every second one runs in the other order. */
static void run_pair(unsigned at, bool limit_first)
{
    if (limit_first)
        limit_of_all(at);
    for (unsigned i = 0; i < ROWS; i++)
        round_ours(limit_first ? i : ROWS - 1 - i, at);
    if (!limit_first)
        limit_of_all(at);
}

static void run_pairs(unsigned pairs)
{
    if (pairs < 1 || pairs > ROUNDS_MAX)
        bench_die("PAIRS: 1 to %d", ROUNDS_MAX);
    for (unsigned i = 0; i < ROUNDS_WARM_UP; i++)
        run_pair(0, i % 2 != 0);
    for (unsigned row = 0; row < ROWS; row++) {
        bench.rows[row].n = pairs;
        bench.rows[row].ours_cpu_s = bench.rows[row].limit_cpu_s = 0;
    }
    for (unsigned i = 0; i < pairs; i++)
        run_pair(i, i % 2 != 0);
}

static void bench_open(const char *device, const char *directory, uint64_t block_bytes)
{
    char path[512];
    bench.block_bytes = block_bytes;
    bench.round_bytes = block_bytes < KVF_MIB / 16 ? SMALL_ROUND_BYTES : ROUND_BYTES;
    if (block_bytes == 0 || bench.round_bytes % block_bytes != 0)
        bench_die("BLOCK_BYTES: a divisor of %llu", (unsigned long long)bench.round_bytes);
    for (unsigned row = 0; row < ROWS; row++)
        bench.rows[row] = (struct rounds){
            .name = "storage_read",
            .device = device,
            .block_bytes = block_bytes,
            .round_bytes = bench.round_bytes,
            .unit = ROUNDS_GB_PER_S,
        };
    (void)snprintf(path, sizeof(path), "%s/store", directory);
    (void)snprintf(bench.fio_file, sizeof(bench.fio_file), "%s/fio", directory);
    plain_file_make(bench.fio_file, ROUND_BYTES);
    stored_open(&bench.stored, &(struct stored_options){
                                   .path = path,
                                   .block_bytes = block_bytes,
                                   .count = (uint32_t)(bench.round_bytes / block_bytes),
                                   .threads = STORED_THREADS,
                                   .engine = &kvf_engine_uring,
                               });
}

int main(int argc, char **argv)
{
    if (argc != 5)
        bench_die("storage_read DEVICE DIR BLOCK_BYTES PAIRS");
    bench_open(argv[1], argv[2], bench_number(argv[3]));
    choose_jobs();
    run_pairs((unsigned)bench_number(argv[4]));
    for (unsigned row = 0; row < ROWS; row++) {
        rounds_more(&bench.rows[row], "\"sets\": %u, \"fio_jobs\": %u", sets_of_row[row],
                    bench.fio_jobs);
        rounds_print(&bench.rows[row]);
    }
    stored_close(&bench.stored);
    return 0;
}
