/* One restore, and the blocks for it. Parts: begin and end, fill, restore, `bench fill`. */
#include "base/clock.h"
#include "client/cli/admin.h"
#include "client/cli/bench.h"
#include "client/cli/names.h"
#include "client/cli/pattern.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SYNC_TIMEOUT_MS UINT64_C(600000)
#define SENTINEL 0xA5
#define FILL_BLOCKS UINT64_C(16)

/* ---- begin and end ---- */

enum words_exit bench_begin(struct bench *bench, const char *what,
                            const struct cli_options *options, char **arguments, size_t count)
{
    struct kvf_why why = {""};
    *bench = (struct bench){.options = options, .block_bytes = options->block_bytes};
    if (bench->block_bytes == 0)
        bench->block_bytes = BENCH_BLOCK_BYTES;
    (void)snprintf(bench->own_ns, sizeof(bench->own_ns), "bench/b%" PRIu64 "-s%" PRIu64,
                   bench->block_bytes, options->seed);
    bench->ns = count > 0 ? arguments[0] : bench->own_ns;
    if (!kvf_is_ok(names_namespace(bench->ns, &why)))
        return words_usage("%s: %s", what, why.text);
    if (options->source != NULL && !kvf_is_ok(names_address("--source", options->source, &why)))
        return words_usage("%s: %s", what, why.text);
    return WORDS_EXIT_OK;
}

enum words_exit bench_open(struct bench *bench, const char *what, size_t blocks)
{
    const struct cli_options *options = bench->options;
    enum words_exit code = cli_open(what, options->run_dir, options->timeout_ms, &bench->client);
    if (code != WORDS_EXIT_OK)
        return code;
    uint64_t wanted = blocks * kvf_round_up_page(bench->block_bytes);
    uint64_t most = kvf_client_max_get_bytes(bench->client);
    if (wanted > most)
        return words_usage("%s: %zu blocks of %" PRIu64
                           " bytes are more than one Get of this daemon holds (%" PRIu64
                           " bytes, --query-limit-per-instance-mib): use fewer or smaller ones, or "
                           "a larger pool",
                           what, blocks, bench->block_bytes, most);
    bench->blocks_most = blocks;
    bench->destination = aligned_alloc(KVF_PAGE, wanted);
    return bench->destination != NULL
               ? WORDS_EXIT_OK
               : words_say(what, kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
}

struct kvf_status bench_close(struct bench *bench)
{
    struct kvf_status status = kvf_client_close(bench->client);
    free(bench->destination);
    bench->client = NULL;
    bench->destination = NULL;
    return status;
}

/* ---- fill ---- */

/* Put blocks [first, first + count); OK when all of them are there now. */
static struct kvf_status put_some(struct bench *bench, struct kvf_client *client, size_t first,
                                  size_t count)
{
    struct kvf_put puts[CLI_CALL_BLOCKS];
    uint64_t seed = bench->options->seed;
    for (size_t i = 0; i < count; i++)
        puts[i] =
            (struct kvf_put){.key = pattern_key(seed, first + i), .length = bench->block_bytes};
    KVF_TRY(kvf_put_begin(client, bench->ns, puts, count, bench->options->timeout_ms));
    for (size_t i = 0; i < count; i++) {
        if (puts[i].code == KVF_OK)
            pattern_fill(pattern_of(seed, first + i), puts[i].data, (size_t)puts[i].length);
    }
    KVF_TRY(kvf_put_commit(client, puts, count));
    for (size_t i = 0; i < count; i++) {
        if (puts[i].code != KVF_OK && puts[i].code != KVF_EXISTS)
            return kvf_fail(KVF_MODULE_CLIENT, puts[i].code, 0);
    }
    return kvf_ok();
}

/* How many are still here: a pool without a drive lets the first go to make room for the last. */
static struct kvf_status count_kept(struct bench *bench, struct kvf_client *client, size_t blocks,
                                    size_t *kept)
{
    struct kvf_get_block there[CLI_CALL_BLOCKS];
    struct kvf_get_options options = {.ns = bench->ns, .timeout_ms = bench->options->timeout_ms};
    *kept = 0;
    for (size_t i = 0; i < blocks; i++)
        there[i] = (struct kvf_get_block){.key = pattern_key(bench->options->seed, i)};
    KVF_TRY(kvf_lookup(client, &options, there, blocks, NULL));
    for (size_t i = 0; i < blocks; i++)
        *kept += there[i].code != KVF_NOT_FOUND;
    return kvf_ok();
}

static enum words_exit put_all(struct bench *bench, const char *what, const char *run_dir,
                               size_t blocks)
{
    struct kvf_client *client = NULL;
    struct kvf_status status = kvf_ok();
    enum words_exit code = cli_open(what, run_dir, bench->options->timeout_ms, &client);
    if (code != WORDS_EXIT_OK)
        return code;
    size_t most =
        (size_t)(kvf_client_max_put_bytes(client) / kvf_round_up_page(bench->block_bytes));
    most = most == 0 ? 1 : most < CLI_CALL_BLOCKS ? most : CLI_CALL_BLOCKS;
    for (size_t at = 0; at < blocks && kvf_is_ok(status); at += most)
        status = put_some(bench, client, at, blocks - at < most ? blocks - at : most);
    size_t kept = blocks;
    if (kvf_is_ok(status))
        status = count_kept(bench, client, blocks, &kept);
    (void)kvf_client_close(client);
    if (!kvf_is_ok(status))
        return words_say(what, status, NULL);
    if (kept == blocks)
        return WORDS_EXIT_OK;
    words_note("%s: %zu of %zu blocks had to leave for the others: put fewer or smaller ones, or "
               "give that daemon a larger pool or an --ssd-path",
               what, blocks - kept, blocks);
    return WORDS_EXIT_FAILED;
}

static struct kvf_status has_ssd(struct admin *admin, uint64_t timeout_ms, bool *has,
                                 struct kvf_why *why)
{
    char *text = NULL;
    KVF_TRY(admin_stat(admin, timeout_ms, &text, why));
    cJSON *object = cJSON_Parse(text);
    *has = cJSON_GetObjectItemCaseSensitive(object, "ssd") != NULL;
    cJSON_Delete(object);
    free(text);
    return kvf_ok();
}

static struct kvf_status settle(struct admin *admin, uint64_t timeout_ms, struct kvf_why *why)
{
    struct admin_reply reply;
    bool has;
    KVF_TRY(has_ssd(admin, timeout_ms, &has, why));
    if (!has)
        return kvf_ok();
    KVF_TRY(admin_sync(admin, true, SYNC_TIMEOUT_MS, &reply, why));
    return admin_evict(admin, true, timeout_ms, &reply, why);
}

enum words_exit bench_fill(struct bench *bench, const char *what, const char *run_dir,
                           size_t blocks)
{
    struct admin *admin = NULL;
    struct kvf_why why = {""};
    enum words_exit code = put_all(bench, what, run_dir, blocks);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = admin_open(run_dir, &admin, &why);
    if (kvf_is_ok(status))
        status = settle(admin, bench->options->timeout_ms, &why);
    admin_close(admin);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say(what, status, why.text);
}

/* ---- restore ---- */

struct kvf_status bench_forget(struct bench *bench, size_t blocks)
{
    struct kvf_key keys[CLI_CALL_BLOCKS];
    for (size_t i = 0; i < blocks; i++)
        keys[i] = pattern_key(bench->options->seed, i);
    return kvf_forget(bench->client, bench->ns, keys, blocks, NULL);
}

static char *place_of(const struct bench *bench, size_t block)
{
    return bench->destination + block * kvf_round_up_page(bench->block_bytes);
}

static void copy_out(struct bench *bench, size_t blocks, struct bench_restore *restore)
{
    uint64_t start = kvf_clock_now_ns();
    for (size_t i = 0; i < blocks; i++) {
        const struct kvf_get_block *block = &bench->blocks[i];
        if (block->code != KVF_OK)
            continue;
        memcpy(place_of(bench, i), block->data, (size_t)block->length);
        restore->bytes += block->length;
    }
    restore->copy_ns = kvf_clock_now_ns() - start;
}

static void judge(const struct bench *bench, size_t i, struct bench_restore *restore)
{
    const struct kvf_get_block *block = &bench->blocks[i];
    if (block->code != KVF_OK) {
        restore->missing++;
        if (restore->reason == KVF_OK)
            restore->reason = block->code;
        return;
    }
    bool is_ssd = block->tier == KVF_TIER_SSD;
    if (block->origin == KVF_ORIGIN_REMOTE)
        *(is_ssd ? &restore->remote_ssd : &restore->remote_dram) += 1;
    else
        *(is_ssd ? &restore->ssd : &restore->dram) += 1;
    struct pattern pattern = pattern_of(bench->options->seed, i);
    size_t wanted = (size_t)bench->block_bytes;
    restore->mismatches += pattern_compare(pattern, place_of(bench, i), wanted) != wanted;
}

struct kvf_status bench_restore(struct bench *bench, size_t blocks, struct bench_restore *restore)
{
    struct kvf_get_options options = {.ns = bench->ns,
                                      .source = bench->options->source,
                                      .timeout_ms = bench->options->timeout_ms,
                                      .flags = KVF_GET_VERIFY};
    *restore = (struct bench_restore){.reason = KVF_OK};
    memset(bench->destination, SENTINEL, blocks * kvf_round_up_page(bench->block_bytes));
    for (size_t i = 0; i < blocks; i++)
        bench->blocks[i] = (struct kvf_get_block){.key = pattern_key(bench->options->seed, i),
                                                  .length = bench->block_bytes};
    uint64_t start = kvf_clock_now_ns();
    struct kvf_status status = kvf_get(bench->client, &options, bench->blocks, blocks, NULL);
    restore->get_ns = kvf_clock_now_ns() - start;
    if (!kvf_is_ok(status) && status.code != KVF_BUSY && status.code != KVF_DEADLINE)
        return status;
    copy_out(bench, blocks, restore);
    kvf_get_release(bench->client, bench->blocks, blocks);
    for (size_t i = 0; i < blocks; i++)
        judge(bench, i, restore);
    return bench_forget(bench, blocks);
}

/* ---- bench fill ---- */

enum words_exit cli_bench_fill(const struct cli_options *options, char **arguments, size_t count)
{
    struct bench bench;
    struct kvf_why why = {""};
    uint64_t blocks = FILL_BLOCKS;
    enum words_exit code = bench_begin(&bench, "bench fill", options, arguments, count);
    if (code != WORDS_EXIT_OK)
        return code;
    if (options->blocks != NULL &&
        !kvf_is_ok(names_number("--blocks", options->blocks, 1, CLI_CALL_BLOCKS, &blocks, &why)))
        return words_usage("bench fill: %s", why.text);
    code = bench_fill(&bench, "bench fill", options->run_dir, (size_t)blocks);
    if (code == WORDS_EXIT_OK)
        (void)printf("%" PRIu64 " blocks of %" PRIu64 " bytes are in %s\n", blocks,
                     bench.block_bytes, bench.ns);
    return code;
}
