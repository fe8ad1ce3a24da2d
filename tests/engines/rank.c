/* A fake engine rank: it has a paged KV cache in host memory, prefills pages and puts them, gets pages and decodes from them, and does what its stdin
 * says: one command a line, one answer a line, which begins with OK or the name of a code. tests/daemons drives it.
 *
 *   open RUN_DIR NAME MODEL DTYPE TP_RANK TP_SIZE LAYOUT PAGES   layout: page or layer; answers the block's length and the fingerprint
 *   wait MS                                                       until a daemon has it
 *   prefill TENANT MS FIRST COUNT                                 pages FIRST.. are computed, copied to places in the arenas, and put
 *   decode TENANT SOURCE MS FIRST COUNT                           the prefix is got, copied from the arenas to the cache, and compared there
 *   restore TENANT SOURCE MS FIRST COUNT                          the same through memory of its own, which libkvferry copies to (a host pool)
 *   state, stats, close, die
 *
 * Page i has the key "pI" in every namespace; its content follows from i and from the whole namespace, so that another rank's, model's, dtype's or
 * tenant's block is seen at once. SOURCE `-`: none.
 *
 * Parts: models and the cache, answers, put, get, commands. */
#include "base/block.h"
#include "client/cli/pattern.h"
#include "client/device/device.h"
#include "client/kvferry.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORDS_MAX 10
#define ITEMS_MAX 512u
#define SENTINEL 0xa5

static const struct model {
    const char *name;
    uint32_t layers, planes, page_tokens, elements; /* of a token, of all ranks together */
    bool replicated;
} models[] = {
    {"qwen3-8b", 36, 2, 64, 8 * 128, false},
    {"deepseek-v3", 61, 1, 64, 576, true},
    {"tiny", 4, 2, 16, 512, false},
    {"tiny-2", 4, 2, 16, 512, false},
};

static struct rank {
    struct kvf_engine *engine;
    struct kvf_device *device;
    struct kvf_geometry geometry;
    struct kvf_cache cache;
    uint8_t *pages, *block; /* the cache; one block, to make and to compare */
    uint64_t block_bytes;
    struct kvf_item items[ITEMS_MAX];
    struct kvf_copy_pair pairs[ITEMS_MAX];
} rank;

/* ---- models and the cache ---- */

static uint64_t seed_of(const char *ns)
{
    uint64_t seed = 0;
    for (; *ns != '\0'; ns++)
        seed = pattern_mix(seed ^ (uint8_t)*ns);
    return seed;
}

static uint8_t *chunk_of(uint64_t page, uint32_t layer, uint32_t plane)
{
    return rank.pages + page * rank.geometry.page_stride + layer * rank.geometry.layer_stride +
           plane * rank.geometry.plane_stride;
}

/* Chunk by chunk, without client/device, which is what is tested. */
static void move_chunks(uint64_t page, bool to_cache)
{
    uint64_t chunk = kvf_geometry_chunk_bytes(&rank.geometry);
    uint8_t *at = rank.block;
    for (uint32_t layer = 0; layer < rank.geometry.layers; layer++)
        for (uint32_t plane = 0; plane < rank.geometry.planes; plane++, at += chunk)
            memcpy(to_cache ? chunk_of(page, layer, plane) : at,
                   to_cache ? at : chunk_of(page, layer, plane), (size_t)chunk);
}

static void compute(const char *ns, uint64_t id)
{
    pattern_fill(pattern_of(seed_of(ns), id), rank.block, (size_t)rank.block_bytes);
    move_chunks(id % rank.cache.pages, true);
}

static bool cache_is_right(const char *ns, uint64_t id)
{
    move_chunks(id % rank.cache.pages, false);
    return pattern_compare(pattern_of(seed_of(ns), id), rank.block, (size_t)rank.block_bytes) ==
           rank.block_bytes;
}

/* False: it has said why. */
static bool copy_pages(enum kvf_copy_direction direction, size_t count, uint64_t *calls)
{
    struct kvf_copy copy = {
        .direction = direction, .cache = rank.cache, .pairs = rank.pairs, .count = count};
    if (count == 0)
        return true;
    struct kvf_status status = kvf_copy_start(rank.device, &copy);
    if (kvf_is_ok(status))
        status = kvf_copy_wait(&copy, 10000);
    *calls += copy.calls;
    if (!kvf_is_ok(status))
        (void)printf("%s the copies failed\n", kvf_code_name(status.code));
    return kvf_is_ok(status);
}

/* ---- answers ---- */

static uint64_t number(const char *word)
{
    return strtoull(word, NULL, 10);
}

struct result {
    struct kvf_status status;
    uint64_t counts[KVF_CODE_COUNT];
    uint64_t prefix, bytes, calls, wrong, dram, ssd, remote_dram, remote_ssd;
};

static void count_items(struct result *result, size_t count, bool found)
{
    for (size_t i = 0; i < count; i++) {
        const struct kvf_item *item = &rank.items[i];
        bool ssd = item->tier == KVF_TIER_SSD;
        result->counts[item->code]++;
        if (item->code != KVF_OK)
            continue;
        result->bytes += item->length;
        if (found && item->origin == KVF_ORIGIN_REMOTE)
            *(ssd ? &result->remote_ssd : &result->remote_dram) += 1;
        else if (found)
            *(ssd ? &result->ssd : &result->dram) += 1;
    }
}

static void answer(const struct result *result)
{
    (void)printf("%s prefix=%" PRIu64 " bytes=%" PRIu64 " calls=%" PRIu64 " wrong=%" PRIu64
                 " dram=%" PRIu64 " ssd=%" PRIu64 " remote_dram=%" PRIu64 " remote_ssd=%" PRIu64,
                 kvf_code_name(result->status.code), result->prefix, result->bytes, result->calls,
                 result->wrong, result->dram, result->ssd, result->remote_dram, result->remote_ssd);
    for (unsigned code = 0; code < KVF_CODE_COUNT; code++)
        if (result->counts[code] > 0)
            (void)printf(" %s=%" PRIu64, kvf_code_name(code), result->counts[code]);
    (void)printf("\n");
}

static void fill_items(uint64_t first, size_t count, uint64_t length, uint8_t *memory)
{
    for (size_t i = 0; i < count; i++) {
        char text[32];
        int bytes = snprintf(text, sizeof(text), "p%" PRIu64, first + i);
        rank.items[i] = (struct kvf_item){.length = length,
                                          .memory = memory != NULL ? memory + i * length : NULL};
        (void)kvf_key_set(&rank.items[i].key, text, (size_t)bytes);
    }
}

/* Those that are in place, and their pages. */
static size_t pair_items(uint64_t first, size_t count)
{
    size_t paired = 0;
    for (size_t i = 0; i < count; i++)
        if (rank.items[i].data != NULL)
            rank.pairs[paired++] =
                (struct kvf_copy_pair){rank.items[i].data, (first + i) % rank.cache.pages};
    return paired;
}

/* As many at once as have a page, and as the daemon lets one engine hold. */
static size_t window(uint64_t left, uint64_t most_bytes)
{
    uint64_t most = most_bytes / kvf_round_up_page(rank.block_bytes);
    most = most < rank.cache.pages ? most : rank.cache.pages;
    most = most < ITEMS_MAX ? most : ITEMS_MAX;
    most = most > 0 ? most : 1;
    return (size_t)(left < most ? left : most);
}

static struct kvf_op *wait_for_commit(void)
{
    struct kvf_op *op;
    while ((op = kvf_engine_next(rank.engine)) == NULL) /* it ends by its deadline */
        (void)usleep(200);
    return op;
}

/* ---- put ---- */

static bool prefill_window(const char *ns, uint64_t ms, uint64_t first, size_t count,
                           struct result *result)
{
    struct kvf_op op = {
        .kind = KVF_OP_PUT, .ns = ns, .timeout_ms = ms, .items = rank.items, .count = count};
    for (size_t i = 0; i < count; i++)
        compute(ns, first + i);
    fill_items(first, count, rank.block_bytes, NULL);
    result->status = kvf_engine_run(rank.engine, &op);
    size_t paired = pair_items(first, count);
    if (!copy_pages(KVF_COPY_FROM_CACHE, paired, &result->calls))
        return false;
    if (kvf_is_ok(result->status) && paired > 0 &&
        kvf_is_ok(kvf_engine_commit(rank.engine, &op, ms)))
        result->status = wait_for_commit()->status;
    kvf_engine_release(rank.engine, rank.items, count);
    result->prefix += op.prefix;
    count_items(result, count, false);
    return true;
}

static void prefill(const char *ns, uint64_t ms, uint64_t first, uint64_t count)
{
    struct result result = {0};
    while (count > 0 && kvf_is_ok(result.status)) {
        size_t some = window(count, kvf_engine_max_put_bytes(rank.engine) / 2);
        if (!prefill_window(ns, ms, first, some, &result))
            return;
        first += some;
        count -= some;
    }
    answer(&result);
}

/* ---- get ---- */

static bool decode_window(struct kvf_op *op, uint64_t first, struct result *result)
{
    fill_items(first, op->count, 0, NULL);
    memset(rank.pages, SENTINEL, (size_t)(rank.cache.pages * rank.block_bytes));
    result->status = kvf_engine_run(rank.engine, op);
    if (!copy_pages(KVF_COPY_TO_CACHE, pair_items(first, op->count), &result->calls))
        return false;
    for (size_t i = 0; i < op->count; i++)
        result->wrong += rank.items[i].data != NULL && (rank.items[i].length != rank.block_bytes ||
                                                        !cache_is_right(op->ns, first + i));
    kvf_engine_release(rank.engine, rank.items, op->count);
    return true;
}

/* The pages of the cache serve as the host pool. */
static bool restore_window(struct kvf_op *op, uint64_t first, struct result *result)
{
    fill_items(first, op->count, rank.block_bytes, rank.pages);
    memset(rank.pages, SENTINEL, (size_t)(rank.cache.pages * rank.block_bytes));
    result->status = kvf_engine_run(rank.engine, op);
    for (size_t i = 0; i < op->count; i++)
        result->wrong +=
            rank.items[i].code == KVF_OK &&
            pattern_compare(pattern_of(seed_of(op->ns), first + i), rank.items[i].memory,
                            (size_t)rank.block_bytes) != rank.block_bytes;
    return true;
}

static void get(const char *ns, char **words, uint64_t ms, bool in_place)
{
    struct result result = {0};
    uint64_t first = number(words[4]), count = number(words[5]);
    struct kvf_op op = {.kind = KVF_OP_GET,
                        .flags = KVF_OP_VERIFY | KVF_OP_STOP_AT_FIRST_MISS,
                        .ns = ns,
                        .source = strcmp(words[2], "-") != 0 ? words[2] : NULL,
                        .timeout_ms = ms,
                        .items = rank.items};
    while (count > 0 && kvf_is_ok(result.status)) {
        op.count = window(count, in_place ? kvf_engine_max_get_bytes(rank.engine) : UINT64_MAX);
        if (!(in_place ? decode_window : restore_window)(&op, first, &result))
            return;
        result.prefix += op.prefix;
        count_items(&result, op.count, true);
        first += op.count;
        count -= op.count;
        if (op.prefix < op.count)
            break;
    }
    answer(&result);
}

/* ---- commands ---- */

static bool choose_model(const char *name, unsigned dtype, uint32_t tp_rank, uint32_t tp_size)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        const struct model *model = &models[i];
        if (strcmp(model->name, name) != 0)
            continue;
        rank.geometry = (struct kvf_geometry){
            .model = model->name,
            .dtype = (enum kvf_dtype)dtype,
            .layers = model->layers,
            .planes = model->planes,
            .page_tokens = model->page_tokens,
            .token_elements = model->replicated ? model->elements : model->elements / tp_size,
            .tp_rank = tp_rank,
            .tp_size = tp_size,
            .replicated = model->replicated};
        return kvf_is_ok(kvf_geometry_check(&rank.geometry, NULL));
    }
    return false;
}

static unsigned dtype_of(const char *name)
{
    unsigned dtype = 1;
    while (kvf_dtype_bytes(dtype) > 0 && strcmp(kvf_dtype_name(dtype), name) != 0)
        dtype++;
    return dtype;
}

static void make_cache(const char *layout, uint64_t pages)
{
    if (strcmp(layout, "page") == 0)
        kvf_geometry_page_first(&rank.geometry);
    else
        kvf_geometry_layer_first(&rank.geometry, pages);
    rank.block_bytes = kvf_geometry_block_bytes(&rank.geometry);
    rank.pages = malloc((size_t)(pages * rank.block_bytes));
    rank.block = malloc((size_t)rank.block_bytes);
    if (rank.pages == NULL || rank.block == NULL)
        abort();
    rank.cache = (struct kvf_cache){
        .geometry = &rank.geometry, .pages = pages, .base = (uint64_t)(uintptr_t)rank.pages};
}

static void do_open(char **words)
{
    struct kvf_why why = {.text = ""};
    char path[200], ns[KVF_NAMESPACE_MAX_BYTES + 1];
    struct kvf_device_options host = {.kind = KVF_DEVICE_HOST};
    struct kvf_engine_options options = {
        .socket_path = path, .name = words[2], .geometry = &rank.geometry};
    (void)snprintf(path, sizeof(path), "%s/engine.sock", words[1]);
    if (!choose_model(words[3], dtype_of(words[4]), (uint32_t)number(words[5]),
                      (uint32_t)number(words[6]))) {
        (void)printf("INVALID no such model or ranks\n");
        return;
    }
    make_cache(words[7], number(words[8]));
    struct kvf_status status = kvf_device_open(&host, &rank.device, &why);
    if (kvf_is_ok(status))
        status = kvf_engine_open(&options, &rank.engine, &why);
    if (kvf_is_ok(status))
        status = kvf_geometry_namespace(&rank.geometry, "t", ns);
    if (kvf_is_ok(status))
        (void)printf("OK block_bytes=%" PRIu64 " fingerprint=%s\n", rank.block_bytes, ns + 2);
    else
        (void)printf("%s %s\n", kvf_code_name(status.code), why.text);
}

static void do_close(void)
{
    kvf_engine_close(rank.engine);
    kvf_device_close(rank.device);
    free(rank.pages);
    free(rank.block);
    memset(&rank, 0, sizeof(rank));
}

static void do_wait(uint64_t ms)
{
    struct kvf_why why = {.text = ""};
    struct kvf_status status = kvf_engine_wait_up(rank.engine, ms, &why);
    (void)printf("%s %s\n", kvf_code_name(status.code), why.text);
}

static void do_stats(void)
{
    struct kvf_stats stats;
    kvf_engine_stats(rank.engine, &stats);
    (void)printf("OK put_blocks=%" PRIu64 " get_bytes=%" PRIu64 " unavailable=%" PRIu64
                 " copied_bytes=%" PRIu64 " registrations=%" PRIu64 " drain_notices=%" PRIu64
                 " held=%" PRIu64 "\n",
                 stats.put_blocks, stats.get_bytes, stats.get_unavailable, stats.copied_bytes,
                 stats.registrations, stats.drain_notices, stats.held_blocks);
}

static void do_io(char **words, size_t count)
{
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    if (!kvf_is_ok(kvf_geometry_namespace(&rank.geometry, words[1], ns)))
        (void)printf("INVALID no such tenant\n");
    else if (count == 5)
        prefill(ns, number(words[2]), number(words[3]), number(words[4]));
    else
        get(ns, words, number(words[3]), strcmp(words[0], "decode") == 0);
}

static const struct command {
    const char *name;
    size_t words;
} commands[] = {{"open", 9},  {"wait", 2},  {"prefill", 5}, {"decode", 6}, {"restore", 6},
                {"state", 1}, {"stats", 1}, {"close", 1},   {"die", 1}};

static bool is_complete(char **words, size_t count)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, words[0]) == 0)
            return commands[i].words == count &&
                   (rank.engine != NULL) != (strcmp(words[0], "open") == 0);
    return false;
}

static void obey(char **words, size_t count)
{
    static const char *const states[] = {"DOWN", "UP", "DRAINING"};
    if (!is_complete(words, count)) {
        (void)printf("INVALID no such command, wrong number of words, or not the time for it\n");
    } else if (strcmp(words[0], "open") == 0) {
        do_open(words);
    } else if (strcmp(words[0], "wait") == 0) {
        do_wait(number(words[1]));
    } else if (strcmp(words[0], "state") == 0) {
        (void)printf("OK state=%s\n", states[kvf_engine_state(rank.engine)]);
    } else if (strcmp(words[0], "stats") == 0) {
        do_stats();
    } else if (strcmp(words[0], "close") == 0) {
        do_close();
        (void)printf("OK\n");
    } else if (strcmp(words[0], "die") == 0) {
        (void)raise(SIGKILL);
    } else {
        do_io(words, count);
    }
}

int main(void)
{
    char line[1024];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *words[WORDS_MAX] = {0}, *rest = NULL;
        size_t count = 0;
        for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < WORDS_MAX;
             word = strtok_r(NULL, " \n", &rest))
            words[count++] = word;
        if (count > 0)
            obey(words, count);
        (void)fflush(stdout);
    }
    if (rank.engine != NULL)
        do_close();
    return 0;
}
