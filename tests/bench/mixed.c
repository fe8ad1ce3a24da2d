/* mixed: reads from SSD at full speed while puts fill the drive past its capacity, beside the same reads alone.
 *
 *   mixed DEVICE SECONDS
 *
 * From the environment: KVFERRY, MIXED_DIR (the --run-dir of a daemon with a pool of 256 MiB and a drive of 2080 MiB).
 * One engine puts as fast as it may, another gets READ_BLOCKS at a time, in turn through blocks that are far too many
 * for the pool and not so old that their segment is due. Half of the time alone is before, half after. */
#include "tests/bench/daemon.h"
#include "tests/bench/rounds.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS "bench/mixed"
#define BLOCK_BYTES KVF_MIB
#define READ_BLOCKS 8u
#define NEWEST 300u  /* blocks that may still be in DRAM, or dirty */
#define OLDEST 1100u /* older ones may be gone */
#define FILL 2400u   /* puts before the first read: the drive is full and gives segments back */
#define READS_MAX (1u << 17)

struct sample {
    double seconds[READS_MAX];
    unsigned count;
    double total_s;
    uint64_t missing, elsewhere; /* blocks: gone, or not from the SSD */
};

static struct kvf_client *putter, *getter;
static atomic_ulong put_count;
static atomic_bool stop;
static struct sample alone, mixed;

static void *put_on(void *context)
{
    (void)context;
    while (!atomic_load(&stop)) {
        daemon_put(putter, NS, atomic_load(&put_count), BLOCK_BYTES);
        atomic_fetch_add(&put_count, 1);
    }
    return NULL;
}

static void read_once(struct sample *sample)
{
    static uint64_t turn;
    struct kvf_get_options options = {.ns = NS, .timeout_ms = DAEMON_TIMEOUT_MS};
    struct kvf_get_block blocks[READ_BLOCKS];
    uint64_t first = atomic_load(&put_count) - OLDEST;
    for (unsigned i = 0; i < READ_BLOCKS; i++) {
        blocks[i] = (struct kvf_get_block){.length = BLOCK_BYTES};
        daemon_key(&blocks[i].key, first + turn++ % (OLDEST - NEWEST));
    }
    double start = bench_now_s();
    bench_check(kvf_get(getter, &options, blocks, READ_BLOCKS, NULL), "get");
    double took = bench_now_s() - start;
    uint64_t elsewhere = 0;
    for (unsigned i = 0; i < READ_BLOCKS; i++) {
        sample->missing += blocks[i].code != KVF_OK;
        elsewhere += blocks[i].code == KVF_OK && blocks[i].tier != KVF_TIER_SSD;
    }
    sample->elsewhere += elsewhere;
    if (elsewhere == 0 && sample->count < READS_MAX) {
        sample->seconds[sample->count++] = took;
        sample->total_s += took;
    }
    kvf_get_release(getter, blocks, READ_BLOCKS);
}

static void read_for(struct sample *sample, double seconds)
{
    double end = bench_now_s() + seconds;
    while (bench_now_s() < end)
        read_once(sample);
}

static int compare(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static double quantile_ms(struct sample *sample, double share)
{
    if (sample->count == 0)
        bench_die("no read came from the SSD alone");
    qsort(sample->seconds, sample->count, sizeof(double), compare);
    return sample->seconds[(unsigned)(share * (sample->count - 1))] * 1e3;
}

static double gb_per_s(const struct sample *sample)
{
    return (double)sample->count * READ_BLOCKS * BLOCK_BYTES / sample->total_s / 1e9;
}

int main(int argc, char **argv)
{
    const char *dir = bench_setting("MIXED_DIR");
    pthread_t thread;
    if (argc != 3)
        bench_die("mixed DEVICE SECONDS");
    double seconds = (double)bench_number(argv[2]);
    daemon_client(dir, &putter);
    daemon_client(dir, &getter);
    for (; atomic_load(&put_count) < FILL; atomic_fetch_add(&put_count, 1))
        daemon_put(putter, NS, atomic_load(&put_count), BLOCK_BYTES);
    daemon_command(dir, "sync", "--durable");
    read_for(&alone, seconds / 4);

    uint64_t payload = daemon_drive_stat(dir, "write_payload_bytes");
    uint64_t device = daemon_drive_stat(dir, "write_device_bytes");
    double start = bench_now_s();
    if (pthread_create(&thread, NULL, put_on, NULL) != 0)
        bench_die("pthread_create: %s", strerror(errno));
    read_for(&mixed, seconds);
    atomic_store(&stop, true);
    (void)pthread_join(thread, NULL);
    daemon_command(dir, "sync", "--durable");
    double wrote_s = bench_now_s() - start;
    payload = daemon_drive_stat(dir, "write_payload_bytes") - payload;
    device = daemon_drive_stat(dir, "write_device_bytes") - device;
    read_for(&alone, seconds / 4);

    double p50 = quantile_ms(&mixed, 0.5), alone_p50 = quantile_ms(&alone, 0.5);
    (void)printf("{\"name\": \"mixed\", \"device\": \"%s\", \"block_bytes\": %llu, \"ours\": %.4g, "
                 "\"limit\": %.4g, \"ratio\": %.3f, \"p99\": %.4g, \"limit_p99\": %.4g, ",
                 argv[1], (unsigned long long)BLOCK_BYTES, p50, alone_p50, alone_p50 / p50,
                 quantile_ms(&mixed, 0.99), quantile_ms(&alone, 0.99));
    (void)printf("\"read_gb_per_s\": %.3f, \"alone_gb_per_s\": %.3f, \"write_gb_per_s\": %.3f, "
                 "\"write_amplification\": %.4f, \"dropped\": %llu, \"missing\": %llu, "
                 "\"not_ssd\": %llu, \"seconds\": %.0f, \"unit\": \"ms\", \"n\": %u}\n",
                 gb_per_s(&mixed), gb_per_s(&alone), (double)payload / wrote_s / 1e9,
                 (double)device / (double)payload,
                 (unsigned long long)daemon_drive_stat(dir, "dropped"),
                 (unsigned long long)mixed.missing + alone.missing,
                 (unsigned long long)mixed.elsewhere + alone.elsewhere, seconds, mixed.count);
    (void)kvf_client_close(getter);
    (void)kvf_client_close(putter);
    return 0;
}
