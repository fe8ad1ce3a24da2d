/* kvferry get NS KEY... -o DIR [--source HOST:PORT]: each block into a file of its own, whole or not at all. */
#include "base/clock.h"
#include "client/cli/cli.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/names.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

struct fetch {
    const struct cli_options *options;
    const char *ns;
    struct kvf_client *client;
    struct kvf_get_block *blocks;
    size_t count;
    uint64_t deadline_ns;
    cJSON *list; /* --json: one object a block; NULL otherwise */
    enum words_exit code;
    uint64_t found, bytes;
};

/* ---- what came ---- */

static const char *tier_name(enum kvf_tier tier)
{
    return tier == KVF_TIER_SSD ? "ssd" : tier == KVF_TIER_DRAM ? "dram" : "none";
}

static const char *origin_name(enum kvf_origin origin)
{
    return origin == KVF_ORIGIN_REMOTE ? "remote" : "local";
}

static void report_found(struct fetch *fetch, const struct kvf_get_block *block, const char *key,
                         const char *path)
{
    fetch->found++;
    fetch->bytes += block->length;
    if (fetch->list == NULL) {
        (void)printf("%s %" PRIu64 " bytes %s %s\n", key, block->length, tier_name(block->tier),
                     origin_name(block->origin));
        return;
    }
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "key", key);
    (void)cJSON_AddStringToObject(object, "status", "OK");
    json_add_number(object, "bytes", block->length);
    (void)cJSON_AddStringToObject(object, "tier", tier_name(block->tier));
    (void)cJSON_AddStringToObject(object, "origin", origin_name(block->origin));
    (void)cJSON_AddStringToObject(object, "file", path);
    (void)cJSON_AddItemToArray(fetch->list, object);
}

static void report_missing(struct fetch *fetch, const struct kvf_get_block *block, const char *key)
{
    fetch->code = words_exit_worse(fetch->code, words_exit_of_block(block->code));
    words_note("get: %s: %s (%s); %s", key, words_meaning(block->code), kvf_code_name(block->code),
               words_remedy(block->code));
    if (fetch->list == NULL)
        return;
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "key", key);
    (void)cJSON_AddStringToObject(object, "status", kvf_code_name(block->code));
    (void)cJSON_AddItemToArray(fetch->list, object);
}

static void take_block(struct fetch *fetch, const struct kvf_get_block *block)
{
    char key[KVF_KEY_TEXT_ROOM], name[FILES_NAME_ROOM], path[PATH_MAX];
    kvf_key_text(&block->key, key);
    if (block->code != KVF_OK) {
        report_missing(fetch, block, key);
        return;
    }
    files_name(&block->key, name);
    struct kvf_why why = {""};
    struct kvf_status status = kvf_fail(KVF_MODULE_CLIENT, KVF_IO, ENAMETOOLONG);
    if (snprintf(path, sizeof(path), "%s/%s", fetch->options->output, name) < (int)sizeof(path))
        status = files_write(path, block->data, (size_t)block->length, &why);
    if (kvf_is_ok(status)) {
        report_found(fetch, block, key, path);
        return;
    }
    (void)words_say("get", status, why.text);
    fetch->code = words_exit_worse(fetch->code, WORDS_EXIT_FAILED);
}

/* ---- asking ---- */

static void mark(struct kvf_get_block *blocks, size_t count, enum kvf_code code)
{
    for (size_t i = 0; i < count; i++)
        blocks[i].code = code;
}

static struct kvf_status ask(struct fetch *fetch, struct kvf_get_block *blocks, size_t count)
{
    uint64_t left_ms = kvf_clock_left_ns(fetch->deadline_ns, kvf_clock_now_ns()) / KVF_NS_PER_MS;
    if (left_ms == 0)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0);
    struct kvf_get_options options = {.ns = fetch->ns,
                                      .source = fetch->options->source,
                                      .timeout_ms = left_ms,
                                      .flags = KVF_GET_VERIFY};
    return kvf_get(fetch->client, &options, blocks, count, NULL);
}

/* Ask for `count` blocks and write what came. TOO_LARGE comes back only where fewer at a time may fit. */
static struct kvf_status fetch_some(struct fetch *fetch, struct kvf_get_block *blocks, size_t count)
{
    struct kvf_status status = ask(fetch, blocks, count);
    if (status.code == KVF_TOO_LARGE && count > 1)
        return status;
    /* The daemon is there, but these blocks will not come. */
    bool told =
        status.code == KVF_DEADLINE || status.code == KVF_TOO_LARGE || status.code == KVF_BUSY;
    if (told)
        mark(blocks, count, (enum kvf_code)status.code);
    else if (!kvf_is_ok(status))
        return status;
    for (size_t i = 0; i < count; i++) {
        /* Beside the others it did not fit: it is asked for alone below. */
        if (!told && count > 1 && blocks[i].code == KVF_TOO_LARGE)
            continue;
        take_block(fetch, &blocks[i]);
    }
    kvf_get_release(fetch->client, blocks, count);
    for (size_t i = 0; !told && count > 1 && i < count; i++) {
        if (blocks[i].code != KVF_TOO_LARGE)
            continue;
        blocks[i].length = 0;
        KVF_TRY(fetch_some(fetch, &blocks[i], 1));
    }
    return kvf_ok();
}

/* How long the blocks are is not known beforehand: too long a list is halved until it fits. */
static struct kvf_status fetch_all(struct fetch *fetch)
{
    size_t most = CLI_CALL_BLOCKS;
    for (size_t done = 0; done < fetch->count;) {
        size_t count = fetch->count - done < most ? fetch->count - done : most;
        struct kvf_status status = fetch_some(fetch, fetch->blocks + done, count);
        if (status.code == KVF_TOO_LARGE) {
            most = count / 2;
            continue;
        }
        KVF_TRY(status);
        done += count;
    }
    return kvf_ok();
}

/* ---- the command ---- */

static bool is_repeated(const struct kvf_get_block *blocks, size_t count, const struct kvf_key *key)
{
    for (size_t i = 0; i < count; i++) {
        if (kvf_key_equal(&blocks[i].key, key))
            return true;
    }
    return false;
}

/* Each key once, in the order of the command line. */
static enum words_exit read_keys(struct fetch *fetch, char **texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kvf_key key;
        struct kvf_why why = {""};
        if (!kvf_is_ok(names_key(texts[i], &key, &why)))
            return words_usage("get: %s", why.text);
        if (!is_repeated(fetch->blocks, fetch->count, &key))
            fetch->blocks[fetch->count++].key = key;
    }
    return WORDS_EXIT_OK;
}

static enum words_exit finish(struct fetch *fetch)
{
    if (fetch->list == NULL)
        return fetch->code;
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "namespace", fetch->ns);
    json_add_number(object, "found", fetch->found);
    json_add_number(object, "missing", fetch->count - fetch->found);
    json_add_number(object, "bytes", fetch->bytes);
    (void)cJSON_AddItemToObject(object, "blocks", fetch->list);
    fetch->list = NULL;
    return words_exit_worse(fetch->code, json_print(object));
}

static enum words_exit run(struct fetch *fetch)
{
    struct kvf_why why = {""};
    enum words_exit code =
        cli_open("get", fetch->options->run_dir, fetch->options->timeout_ms, &fetch->client);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = files_make_directory(fetch->options->output, &why);
    if (!kvf_is_ok(status)) {
        (void)kvf_client_close(fetch->client);
        return words_say("get", status, why.text);
    }
    fetch->list = fetch->options->json ? cJSON_CreateArray() : NULL;
    status = fetch_all(fetch);
    if (!kvf_is_ok(status))
        fetch->code = words_exit_worse(fetch->code, words_say("get", status, NULL));
    (void)kvf_client_close(fetch->client);
    code = kvf_is_ok(status) ? finish(fetch) : fetch->code;
    cJSON_Delete(fetch->list);
    return code;
}

enum words_exit cli_get(const struct cli_options *options, char **arguments, size_t count)
{
    struct kvf_why why = {""};
    if (!kvf_is_ok(names_namespace(arguments[0], &why)) ||
        (options->source != NULL && !kvf_is_ok(names_address("--source", options->source, &why))))
        return words_usage("get: %s", why.text);
    if (options->output == NULL || options->output[0] == '\0')
        return words_usage("get: -o DIR is missing: name the directory for the blocks");
    struct fetch fetch = {.options = options,
                          .ns = arguments[0],
                          .blocks = calloc(count - 1, sizeof(*fetch.blocks)),
                          .deadline_ns = kvf_clock_now_ns() + options->timeout_ms * KVF_NS_PER_MS};
    if (fetch.blocks == NULL)
        return words_say("get", kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
    enum words_exit code = read_keys(&fetch, arguments + 1, count - 1);
    if (code == WORDS_EXIT_OK)
        code = run(&fetch);
    free(fetch.blocks);
    return code;
}
