/* kvferry pull NS KEY... --source HOST:PORT -o DIR: a prefix from a source's daemon into files, without a daemon here.
 *
 * The same client/pull as in the daemon, with a small pool of its own: first the lengths are asked for, then as many
 * blocks at a time as the pool holds are pulled, each written when its bytes have been checked. */
#include "client/pull/pull.h"
#include "base/address.h"
#include "base/clock.h"
#include "base/pool.h"
#include "client/cli/cli.h"
#include "client/cli/delivery.h"
#include "client/cli/names.h"

#include <stdlib.h>
#include <sys/random.h>

/* Two of the largest blocks. */
#define POOL_BYTES (2 * KVF_BLOCK_MAX_BYTES)
#define BATCHES_IN_FLIGHT 2

struct puller {
    const struct cli_options *options;
    const char *ns;
    uint64_t deadline_ns;
    struct kvf_lookup_block *wanted;
    struct kvf_pull_block *blocks; /* of the pull that is open */
    size_t count, done;
    struct delivery delivery;

    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_pool *pool;
    struct kvf_transport *transport;
    struct kvf_source *source;
    struct kvf_rpc_tls *tls; /* NULL: plaintext */
    struct kvf_pull_stats stats;
    struct kvf_lookup lookup;
    struct kvf_pull pull;
    bool answered;     /* the look-up, or the pull with all its blocks, is over */
    bool refused;      /* and that was said */
    size_t quarantine; /* blocks that the lane has not let go of */
};

/* ---- life ---- */

static struct kvf_status open_transport(struct puller *puller, struct kvf_why *why)
{
    const struct kvf_arena *arena = kvf_pool_arena(puller->pool, 0);
    struct kvf_transport_options options = {
        .loop = puller->loop, .lane_threads = 1, .arenas = &arena, .arena_count = 1};
    return kvf_transport_open("tcp", &options, &puller->transport, why);
}

/* The first one is worth a line; every block says its code anyhow. */
static void note_refused(void *context, struct kvf_source *source,
                         const struct kvf_pull_refusal *refusal)
{
    struct puller *puller = context;
    char text[160];
    (void)source;
    if (puller->refused)
        return;
    puller->refused = true;
    kvf_pull_refusal_text(refusal, text, sizeof(text));
    words_note("pull: %.80s refused a Read: %s", puller->options->source, text);
}

static struct kvf_status open_source(struct puller *puller)
{
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1] = "";
    uint64_t instance = 0;
    memcpy(tenant, puller->ns, kvf_namespace_tenant_bytes(puller->ns));
    if (getrandom(&instance, sizeof(instance), 0) != (ssize_t)sizeof(instance))
        return kvf_fail(KVF_MODULE_CLIENT, KVF_IO, 0);
    struct kvf_source_options options = {.loop = puller->loop,
                                         .rpc = puller->rpc,
                                         .transports = kvf_transports_only(puller->transport),
                                         .address = puller->options->source,
                                         .tenant = tenant,
                                         .tls = puller->tls,
                                         .node_id = "kvferry-pull",
                                         .process_instance = instance,
                                         .stats = &puller->stats,
                                         .refused = note_refused,
                                         .context = puller};
    return kvf_source_create(&options, &puller->source);
}

static struct kvf_status open_tls(struct puller *puller, struct kvf_why *why)
{
    const struct cli_options *options = puller->options;
    struct kvf_rpc_tls_files files = {options->tls_cert, options->tls_key, options->tls_ca};
    return options->tls_cert != NULL ? kvf_rpc_tls_open(&files, &puller->tls, why) : kvf_ok();
}

static struct kvf_status open_parts(struct puller *puller, struct kvf_why *why)
{
    KVF_TRY(open_tls(puller, why));
    KVF_TRY(kvf_loop_create(&puller->loop));
    KVF_TRY(kvf_rpc_create(puller->loop, &puller->rpc));
    KVF_TRY(kvf_pool_create(POOL_BYTES, false, &puller->pool, why));
    KVF_TRY(open_transport(puller, why));
    return open_source(puller);
}

static void note_closed(void *context)
{
    ((struct puller *)context)->source = NULL;
}

static void close_parts(struct puller *puller)
{
    if (puller->source != NULL)
        kvf_source_close(puller->source, note_closed, puller);
    while (puller->source != NULL || puller->quarantine > 0)
        kvf_loop_run_once(puller->loop, -1);
    kvf_transport_close(puller->transport);
    kvf_rpc_destroy(puller->rpc);
    kvf_rpc_tls_close(puller->tls);
    kvf_pool_destroy(puller->pool, false);
    kvf_loop_destroy(puller->loop);
}

/* ---- how long are they? ---- */

static void lookup_ended(struct kvf_lookup *lookup)
{
    kvf_container(lookup, struct puller, lookup)->answered = true;
}

/* The source's word on every key; without one, each key is as missing as the others. */
static struct kvf_status ask_lengths(struct puller *puller, struct kvf_why *why)
{
    puller->lookup = (struct kvf_lookup){.namespace = puller->ns,
                                         .deadline_ns = puller->deadline_ns,
                                         .blocks = puller->wanted,
                                         .block_count = (uint32_t)puller->count,
                                         .ended = lookup_ended};
    puller->answered = false;
    kvf_lookup_start(puller->source, &puller->lookup);
    while (!puller->answered)
        kvf_loop_run_once(puller->loop, -1);
    struct kvf_status first = puller->wanted[0].status;
    if (first.code != KVF_UNAVAILABLE)
        return kvf_ok();
    return kvf_why_set(
        why, first,
        "no kvferryd answers at %.80s: start it with that --listen, or name another; both "
        "or neither speak TLS",
        puller->options->source);
}

/* One that is being put has a length, and a Read waits for its commit. */
static bool can_come(const struct kvf_lookup_block *wanted)
{
    return (wanted->status.code == KVF_OK || wanted->status.code == KVF_PENDING) &&
           wanted->length > 0 && wanted->length <= KVF_BLOCK_MAX_BYTES;
}

static void deliver_miss(struct puller *puller, const struct kvf_key *key, struct kvf_status why)
{
    unsigned code = why.code == KVF_OK ? KVF_PROTOCOL : why.code;
    delivery_take(&puller->delivery, &(struct delivered){.key = *key, .code = code});
}

/* ---- pulling ---- */

static void block_ended(struct kvf_pull *pull, uint32_t index)
{
    struct puller *puller = kvf_container(pull, struct puller, pull);
    struct kvf_pull_block *block = &pull->blocks[index];
    if (!kvf_is_ok(block->status)) {
        deliver_miss(puller, &block->key, block->status);
    } else {
        struct delivered delivered = {.key = block->key,
                                      .code = KVF_OK,
                                      .data = kvf_extent_at(block->extent),
                                      .length = block->length,
                                      .tier = block->tier,
                                      .origin = KVF_ORIGIN_REMOTE};
        delivery_take(&puller->delivery, &delivered);
    }
    if (block->state == KVF_PULL_QUARANTINED)
        puller->quarantine++;
    else
        kvf_pool_free(puller->pool, &block->extent);
}

static void block_freed(struct kvf_pull *pull, uint32_t index)
{
    struct puller *puller = kvf_container(pull, struct puller, pull);
    kvf_pool_free(puller->pool, &pull->blocks[index].extent);
    puller->quarantine--;
}

static void pull_ended(struct kvf_pull *pull)
{
    kvf_container(pull, struct puller, pull)->answered = true;
}

/* Places for the next blocks, as many as there is room for: at least one. */
static uint32_t place_blocks(struct puller *puller)
{
    uint32_t placed = 0;
    for (; puller->done < puller->count; puller->done++) {
        const struct kvf_lookup_block *wanted = &puller->wanted[puller->done];
        if (!can_come(wanted)) {
            deliver_miss(puller, &wanted->key, wanted->status);
            continue;
        }
        struct kvf_pull_block *block = &puller->blocks[placed];
        *block = (struct kvf_pull_block){.key = wanted->key, .length = wanted->length};
        if (!kvf_is_ok(kvf_pool_alloc(puller->pool, wanted->length, &block->extent)))
            break;
        placed++;
    }
    return placed;
}

static void pull_all(struct puller *puller)
{
    uint32_t placed;
    /* Blocks in quarantine are past the deadline: the next ones would be, too, but each hears so. */
    while (puller->quarantine == 0 && (placed = place_blocks(puller)) > 0) {
        puller->pull = (struct kvf_pull){.namespace = puller->ns,
                                         .instance = 1,
                                         .deadline_ns = puller->deadline_ns,
                                         .batches_in_flight = BATCHES_IN_FLIGHT,
                                         .blocks = puller->blocks,
                                         .block_count = placed,
                                         .block_ended = block_ended,
                                         .ended = pull_ended,
                                         .freed = block_freed};
        puller->answered = false;
        kvf_pull_start(puller->source, &puller->pull);
        while (!puller->answered)
            kvf_loop_run_once(puller->loop, -1);
    }
    for (; puller->done < puller->count; puller->done++)
        deliver_miss(puller, &puller->wanted[puller->done].key,
                     kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0));
}

/* ---- the command ---- */

static enum words_exit run(struct puller *puller)
{
    struct kvf_why why = {""};
    enum words_exit code = delivery_begin(&puller->delivery, "pull", puller->options->output,
                                          puller->options->source, puller->options->json);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = open_parts(puller, &why);
    if (kvf_is_ok(status))
        status = ask_lengths(puller, &why);
    if (kvf_is_ok(status))
        pull_all(puller);
    else
        code = words_say("pull", status, why.text);
    close_parts(puller);
    if (kvf_is_ok(status))
        return delivery_finish(&puller->delivery, puller->ns);
    return words_exit_worse(delivery_abandon(&puller->delivery), code);
}

static enum words_exit judge_source(const struct cli_options *options)
{
    struct kvf_address address;
    struct kvf_why why = {""};
    if (options->source == NULL)
        return words_usage(
            "pull: --source HOST:PORT is missing: name the daemon that has the blocks");
    if (!kvf_is_ok(names_address("--source", options->source, &why)))
        return words_usage("pull: %s", why.text);
    bool tls = options->tls_cert != NULL;
    if (tls != (options->tls_key != NULL) || tls != (options->tls_ca != NULL))
        return words_usage("pull: TLS needs --tls-cert, --tls-key and --tls-ca together");
    if (!tls && kvf_address_parse(options->source, &address) && !kvf_address_is_loopback(&address))
        return words_usage("pull: --source %.80s is off loopback and needs TLS: give --tls-cert, "
                           "--tls-key and --tls-ca",
                           options->source);
    return WORDS_EXIT_OK;
}

static enum words_exit pull_keys(struct puller *puller, const struct kvf_key *keys)
{
    puller->wanted = calloc(puller->count, sizeof(*puller->wanted));
    puller->blocks = calloc(puller->count, sizeof(*puller->blocks));
    enum words_exit code = WORDS_EXIT_FAILED;
    if (puller->wanted == NULL || puller->blocks == NULL) {
        code = words_say("pull", kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
    } else {
        for (size_t i = 0; i < puller->count; i++)
            puller->wanted[i].key = keys[i];
        code = run(puller);
    }
    free(puller->wanted);
    free(puller->blocks);
    return code;
}

enum words_exit cli_pull(const struct cli_options *options, char **arguments, size_t count)
{
    struct kvf_why why = {""};
    struct kvf_key *keys = NULL;
    struct puller puller = {.options = options,
                            .ns = arguments[0],
                            .deadline_ns =
                                kvf_clock_now_ns() + options->timeout_ms * KVF_NS_PER_MS};
    if (!kvf_is_ok(names_namespace(puller.ns, &why)))
        return words_usage("pull: %s", why.text);
    enum words_exit code = delivery_judge("pull", options->output, options->json, count - 1);
    if (code == WORDS_EXIT_OK)
        code = judge_source(options);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = names_keys(arguments + 1, count - 1, &keys, &puller.count, &why);
    if (status.code == KVF_INVALID)
        return words_usage("pull: %s", why.text);
    if (!kvf_is_ok(status))
        return words_say("pull", status, NULL);
    code = pull_keys(&puller, keys);
    free(keys);
    return code;
}
