/* kvferry get NS KEY... -o DIR [--source HOST:PORT]: each block into a file of its own, whole or not at all; or one block to
 * stdout (-o -). */
#include "base/clock.h"
#include "client/cli/cli.h"
#include "client/cli/delivery.h"
#include "client/cli/names.h"

#include <stdlib.h>

struct fetch {
    const struct cli_options *options;
    const char *ns;
    struct kvf_client *client;
    struct kvf_get_block *blocks;
    size_t count;
    uint64_t deadline_ns;
    struct delivery delivery;
};

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

static void take_block(struct fetch *fetch, const struct kvf_get_block *block, const char *limit)
{
    delivery_take(&fetch->delivery, &(struct delivered){.key = block->key,
                                                        .code = block->code,
                                                        .limit = limit,
                                                        .data = block->data,
                                                        .length = block->length,
                                                        .tier = block->tier,
                                                        .origin = block->origin});
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
    /* A block that a source finds too large is TOO_LARGE in an answer that is OK. */
    char limit[WORDS_LIMIT_ROOM];
    words_limit(limit, "--query-limit-per-instance-mib", kvf_client_max_get_bytes(fetch->client));
    if (told)
        mark(blocks, count, (enum kvf_code)status.code);
    else if (!kvf_is_ok(status))
        return status;
    for (size_t i = 0; i < count; i++) {
        /* Beside the others it did not fit: it is asked for alone below. */
        if (!told && count > 1 && blocks[i].code == KVF_TOO_LARGE)
            continue;
        take_block(fetch, &blocks[i], told ? limit : NULL);
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

static enum words_exit run(struct fetch *fetch)
{
    enum words_exit code =
        cli_open("get", fetch->options->run_dir, fetch->options->timeout_ms, &fetch->client);
    if (code != WORDS_EXIT_OK)
        return code;
    code = delivery_begin(&fetch->delivery, "get", fetch->options->output, fetch->options->source,
                          fetch->options->json);
    if (code != WORDS_EXIT_OK) {
        (void)kvf_client_close(fetch->client);
        return code;
    }
    struct kvf_status status = fetch_all(fetch);
    if (!kvf_is_ok(status))
        code = words_say("get", status, NULL);
    (void)kvf_client_close(fetch->client);
    if (kvf_is_ok(status))
        return delivery_finish(&fetch->delivery, fetch->ns);
    return words_exit_worse(delivery_abandon(&fetch->delivery), code);
}

enum words_exit cli_get(const struct cli_options *options, char **arguments, size_t count)
{
    struct kvf_why why = {""};
    if (!kvf_is_ok(names_namespace(arguments[0], &why)) ||
        (options->source != NULL && !kvf_is_ok(names_address("--source", options->source, &why))))
        return words_usage("get: %s", why.text);
    enum words_exit code = delivery_judge("get", options->output, options->json, count - 1);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_key *keys = NULL;
    struct fetch fetch = {.options = options,
                          .ns = arguments[0],
                          .deadline_ns = kvf_clock_now_ns() + options->timeout_ms * KVF_NS_PER_MS};
    struct kvf_status status = names_keys(arguments + 1, count - 1, &keys, &fetch.count, &why);
    if (status.code == KVF_INVALID)
        return words_usage("get: %s", why.text);
    if (!kvf_is_ok(status))
        return words_say("get", status, NULL);
    fetch.blocks = calloc(fetch.count, sizeof(*fetch.blocks));
    if (fetch.blocks == NULL) {
        code = words_say("get", kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
    } else {
        for (size_t i = 0; i < fetch.count; i++)
            fetch.blocks[i].key = keys[i];
        code = run(&fetch);
    }
    free(fetch.blocks);
    free(keys);
    return code;
}
