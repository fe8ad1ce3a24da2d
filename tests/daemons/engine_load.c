/* An engine under load, as inference makes it: one request in flight, each over the blocks of one prefix. What the
 * daemon has is got and compared byte by byte; what it lacks is computed (the pattern is written) and put.
 *
 *   engine_load RUN_DIR NAME NS SEED PREFIXES BLOCKS BLOCK_BYTES SECONDS [SOURCE]
 *
 * Prefixes are taken at random, from SEED, and every eighth request is about a fresh one. With a SOURCE blocks come from there and
 * nothing is put; each request forgets what it got, so that the next one pulls again. SECONDS 0: until told to end.
 * PREFIXES 0: it asks for nothing, and only listens.
 *
 * It ends, having unregistered, when the time is up, at SIGTERM, when the daemon drains, or when it is gone; then it
 * prints one line of JSON. Exit 0: no byte was wrong and nothing failed that may not. 1: else. */
#include "base/block.h"
#include "base/clock.h"
#include "client/cli/pattern.h"
#include "client/kvferry.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS_MAX 512
#define FRESH_EVERY 8
#define TIMEOUT_MS 20000
#define FIRST_FRESH 1000000u
#define LATENCIES_MAX (1u << 20)

struct load {
    struct kvf_client *client;
    const char *ns, *source;
    uint64_t seed, prefixes, block_bytes;
    size_t block_count;
    struct kvf_get_block blocks[BLOCKS_MAX];
    struct kvf_put puts[BLOCKS_MAX];
    uint32_t *latencies_us; /* of requests, in their order */
    /* What came of it. */
    uint64_t requests, got, put, busy, missing, wrong, dram, ssd, remote;
    uint64_t started_ns, last_ns, longest_gap_ns, longest_gap_at_ns;
    const char *ended;
};

static volatile sig_atomic_t told_to_end;

static void note_end(int number)
{
    (void)number;
    told_to_end = 1;
}

static uint64_t id_of(uint64_t prefix, size_t block)
{
    return prefix * BLOCKS_MAX + block;
}

/* ---- one request ---- */

static void judge(struct load *load, const struct kvf_get_block *block, uint64_t id)
{
    if (block->code == KVF_BUSY)
        load->busy++;
    if (block->code != KVF_OK) {
        load->missing++;
        return;
    }
    load->got++;
    load->remote += block->origin == KVF_ORIGIN_REMOTE;
    *(block->tier == KVF_TIER_SSD ? &load->ssd : &load->dram) += 1;
    load->wrong += block->length != load->block_bytes ||
                   pattern_compare(pattern_of(load->seed, id), block->data,
                                   (size_t)load->block_bytes) != load->block_bytes;
}

static struct kvf_status get(struct load *load, uint64_t prefix)
{
    struct kvf_get_options options = {
        .ns = load->ns, .source = load->source, .timeout_ms = TIMEOUT_MS, .flags = KVF_GET_VERIFY};
    for (size_t i = 0; i < load->block_count; i++)
        load->blocks[i] = (struct kvf_get_block){.key = pattern_key(load->seed, id_of(prefix, i)),
                                                 .length = load->block_bytes};
    struct kvf_status status =
        kvf_get(load->client, &options, load->blocks, load->block_count, NULL);
    if (!kvf_is_ok(status) && status.code != KVF_BUSY)
        return status;
    for (size_t i = 0; i < load->block_count; i++)
        judge(load, &load->blocks[i], id_of(prefix, i));
    return kvf_ok();
}

/* What is missing is computed and put. */
static struct kvf_status put(struct load *load, uint64_t prefix)
{
    size_t count = 0, ids[BLOCKS_MAX];
    for (size_t i = 0; i < load->block_count; i++)
        if (load->blocks[i].code != KVF_OK) {
            ids[count] = id_of(prefix, i);
            load->puts[count++] =
                (struct kvf_put){.key = load->blocks[i].key, .length = load->block_bytes};
        }
    if (count == 0)
        return kvf_ok();
    struct kvf_status status = kvf_put_begin(load->client, load->ns, load->puts, count, TIMEOUT_MS);
    if (!kvf_is_ok(status))
        return status.code == KVF_BUSY ? kvf_ok() : status;
    for (size_t i = 0; i < count; i++) {
        load->busy += load->puts[i].code == KVF_BUSY;
        if (load->puts[i].code == KVF_OK)
            pattern_fill(pattern_of(load->seed, ids[i]), load->puts[i].data,
                         (size_t)load->block_bytes);
    }
    status = kvf_put_commit(load->client, load->puts, count);
    for (size_t i = 0; i < count; i++)
        load->put += load->puts[i].code == KVF_OK;
    return status;
}

static struct kvf_status forget(struct load *load)
{
    struct kvf_key keys[BLOCKS_MAX];
    for (size_t i = 0; i < load->block_count; i++)
        keys[i] = load->blocks[i].key;
    return kvf_forget(load->client, load->ns, keys, load->block_count, NULL);
}

static struct kvf_status request(struct load *load, uint64_t prefix)
{
    uint64_t got_before = load->got;
    struct kvf_status status = get(load, prefix);
    kvf_get_release(load->client, load->blocks, load->block_count);
    if (!kvf_is_ok(status))
        return status;
    if (load->source == NULL)
        return put(load, prefix);
    if (load->got == got_before) /* its source is away */
        (void)usleep(10000);
    return forget(load);
}

/* ---- all of them ---- */

static void note_completion(struct load *load, uint64_t began_ns)
{
    uint64_t now_ns = kvf_clock_now_ns(), gap_ns = now_ns - load->last_ns;
    if (load->requests < LATENCIES_MAX)
        load->latencies_us[load->requests] = (uint32_t)((now_ns - began_ns) / KVF_NS_PER_US);
    load->requests++;
    if (gap_ns > load->longest_gap_ns) {
        load->longest_gap_ns = gap_ns;
        load->longest_gap_at_ns = now_ns - load->started_ns;
    }
    load->last_ns = now_ns;
}

static struct kvf_status listen_only(struct load *load)
{
    struct kvf_status status = kvf_ok();
    while (kvf_is_ok(status) && told_to_end == 0) {
        struct pollfd watch = {.fd = kvf_client_fd(load->client), .events = POLLIN};
        (void)poll(&watch, 1, 1000); /* SIGTERM between the look and the wait costs a second */
        status = kvf_client_poll(load->client);
    }
    if (kvf_is_ok(status))
        load->ended = "told";
    return status;
}

static struct kvf_status run(struct load *load, uint64_t seconds)
{
    uint64_t end_ns = seconds > 0 ? load->last_ns + seconds * KVF_NS_PER_S : UINT64_MAX;
    uint64_t chance = load->seed;
    for (uint64_t turn = 0; kvf_clock_now_ns() < end_ns; turn++) {
        uint64_t began_ns = kvf_clock_now_ns();
        bool fresh = turn % FRESH_EVERY == FRESH_EVERY - 1 && load->source == NULL;
        if (told_to_end != 0) {
            load->ended = "told";
            return kvf_ok();
        }
        struct kvf_status status =
            request(load, fresh ? FIRST_FRESH + turn : pattern_random(&chance) % load->prefixes);
        if (!kvf_is_ok(status))
            return status;
        note_completion(load, began_ns);
    }
    load->ended = "time";
    return kvf_ok();
}

static int by_size(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static double percentile_ms(const struct load *load, unsigned per_cent)
{
    uint64_t count = load->requests < LATENCIES_MAX ? load->requests : LATENCIES_MAX;
    if (count == 0)
        return 0;
    size_t at = (count - 1) * per_cent / 100;
    return load->latencies_us[at] / 1e3;
}

static void print(struct load *load, struct kvf_status closed)
{
    uint64_t count = load->requests < LATENCIES_MAX ? load->requests : LATENCIES_MAX;
    qsort(load->latencies_us, count, sizeof(*load->latencies_us), by_size);
    (void)printf("{\"ended\": \"%s\", \"requests\": %" PRIu64 ", \"got\": %" PRIu64
                 ", \"put\": %" PRIu64 ", \"missing\": %" PRIu64 ", \"busy\": %" PRIu64
                 ", \"wrong\": %" PRIu64 ", \"dram\": %" PRIu64 ", \"ssd\": %" PRIu64
                 ", \"remote\": %" PRIu64 ", \"longest_gap_s\": %.3f, \"longest_gap_at_s\": %.3f, "
                 "\"p50_ms\": %.3f, \"p99_ms\": %.3f, \"daemon_was_gone\": %d}\n",
                 load->ended, load->requests, load->got, load->put, load->missing, load->busy,
                 load->wrong, load->dram, load->ssd, load->remote,
                 (double)load->longest_gap_ns / KVF_NS_PER_S,
                 (double)load->longest_gap_at_ns / KVF_NS_PER_S, percentile_ms(load, 50),
                 percentile_ms(load, 99), (int)closed.detail);
}

static uint64_t number(const char *word)
{
    return strtoull(word, NULL, 10);
}

/* The daemon's leaving is no failure of ours. */
static bool is_farewell(struct kvf_status status)
{
    return kvf_is_ok(status) || status.code == KVF_DRAINING || status.code == KVF_UNAVAILABLE;
}

static bool open_client(struct load *load, const char *run_dir, const char *name)
{
    struct kvf_why why = {.text = ""};
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/engine.sock", run_dir);
    struct kvf_client_options options = {.socket_path = path, .name = name};
    if (!kvf_is_ok(kvf_client_open(&options, &load->client, &why))) {
        (void)fprintf(stderr, "engine_load: %s\n", why.text);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct load load;
    if (argc < 9 || argc > 10)
        return 2;
    load.ns = argv[3];
    load.seed = number(argv[4]);
    load.prefixes = number(argv[5]);
    load.block_count = (size_t)number(argv[6]);
    load.block_bytes = number(argv[7]);
    load.source = argc == 10 ? argv[9] : NULL;
    load.latencies_us = calloc(LATENCIES_MAX, sizeof(*load.latencies_us));
    if (load.latencies_us == NULL || load.block_count > BLOCKS_MAX)
        return 2;
    (void)signal(SIGTERM, note_end);
    if (!open_client(&load, argv[1], argv[2]))
        return 1;
    (void)printf("{\"registered\": true}\n");
    (void)fflush(stdout);
    load.started_ns = load.last_ns = kvf_clock_now_ns();
    struct kvf_status status = load.prefixes > 0 ? run(&load, number(argv[8])) : listen_only(&load);
    struct kvf_status closed = kvf_client_close(load.client);
    if (load.ended == NULL)
        load.ended = kvf_code_name(status.code);
    print(&load, closed);
    free(load.latencies_us);
    return is_farewell(status) && kvf_is_ok(closed) && load.wrong == 0 ? 0 : 1;
}
