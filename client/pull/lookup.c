/* lookup: one unary call per page of keys, on a connection that all look-ups of a source share. With TLS the first call
 * of a connection asks for nothing, so that no key is told to who may not serve. */
#include "client/pull/source.h"

#include "base/clock.h"
#include "base/log.h"

/* The answer comes out of an index: who takes longer than this is not there. */
#define LOOKUP_MAX_NS KVF_NS_PER_S

static void ask(struct kvf_lookup *lookup);

static uint32_t page_count(const struct kvf_lookup *lookup)
{
    _Static_assert(WIRE_MAX_BLOCKS <= KVF_PEER_MAX_LOOKUP_KEYS, "a page is one Lookup");
    uint32_t left = lookup->block_count - lookup->first;
    if (lookup->introduces)
        return 0;
    return left < WIRE_MAX_BLOCKS ? left : WIRE_MAX_BLOCKS;
}

/* ---- the answer ---- */

static void take_block(struct kvf_lookup_block *block, const Kvferry__LookupBlock *answer)
{
    block->status = wire_status(answer->code);
    if (answer->code == KVF_OK && (answer->length == 0 || answer->length > KVF_BLOCK_MAX_BYTES))
        block->status = pull_fail(KVF_NOT_FOUND); /* it is no block */
    if (!kvf_is_ok(block->status))
        return;
    block->length = answer->length;
    block->generation = wire_generation(answer->generation);
    block->tier = wire_tier(answer->tier);
}

static void message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct kvf_lookup *lookup = user;
    struct kvf_source *source = lookup->source;
    Kvferry__LookupReply *reply = wire_unpack_lookup(&source->wire, bytes);
    uint32_t count = page_count(lookup);
    bool may_serve = source_may_serve(source, call);
    if (lookup->answered || reply == NULL || reply->n_blocks != count || !may_serve) {
        lookup->answered = false;
        lookup->failure = pull_fail(may_serve ? KVF_UNAVAILABLE : KVF_DENIED);
        source->lookup_known = false;
        kvf_rpc_call_cancel(call);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        take_block(&lookup->blocks[lookup->first + i], reply->blocks[i]);
    lookup->answered = true;
    source->lookup_known = true;
    source_answered(source);
    if (reply->draining)
        source_drains(source);
}

static void end(struct kvf_lookup *lookup)
{
    for (uint32_t i = lookup->first; i < lookup->block_count; i++)
        lookup->blocks[i].status = lookup->failure;
    kvf_list_remove(&lookup->node);
    lookup->ended(lookup);
}

/* Why there was no answer. Ours: cancelled, or the caller's time is up. Theirs: we are denied. Everything else means
 * nobody is there. */
static struct kvf_status why_not(const struct kvf_lookup *lookup, struct kvf_status status)
{
    if (!kvf_is_ok(lookup->failure))
        return lookup->failure;
    if (kvf_clock_now_ns() >= lookup->deadline_ns)
        return pull_fail(KVF_DEADLINE);
    return pull_fail(status.code == KVF_DENIED ? KVF_DENIED : KVF_UNAVAILABLE);
}

/* gRPC would go on failing for a while, by its own back-off; ours is enough. */
static void drop_channel(struct kvf_source *source)
{
    source->lookup_known = false;
    kvf_list_for_each (node, &source->lookups)
        if (kvf_container(node, struct kvf_lookup, node)->call != NULL)
            return;
    kvf_rpc_channel_close(source->lookup_channel);
    source->lookup_channel = NULL;
}

static void closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                   const char *text)
{
    struct kvf_lookup *lookup = user;
    struct kvf_source *source = lookup->source;
    (void)call;
    lookup->call = NULL;
    if (lookup->answered)
        lookup->first += page_count(lookup);
    else
        lookup->failure = why_not(lookup, status);
    if (lookup->failure.code == KVF_UNAVAILABLE || lookup->failure.code == KVF_DENIED) {
        if (status.code != KVF_CANCELLED && !kvf_is_ok(status)) /* else it was we who gave it up */
            kvf_log_warning("pull", "Lookup at %s failed: %s: %s", source->address,
                            kvf_code_name(status.code), text);
        source_back_off(source, lookup->failure);
        drop_channel(source);
    }
    if (kvf_is_ok(lookup->failure) && lookup->first < lookup->block_count)
        ask(lookup);
    else
        end(lookup);
    source_settle(source);
}

/* ---- the question ---- */

static const struct kvf_rpc_events events = {.message = message, .closed = closed};

static void fail_soon(struct kvf_lookup *lookup, struct kvf_status why)
{
    lookup->failure = why;
    kvf_list_remove(&lookup->node);
    kvf_list_push_back(&lookup->source->failed_lookups, &lookup->node);
    source_settle_soon(lookup->source);
}

static struct kvf_status send_keys(struct kvf_lookup *lookup)
{
    ProtobufCBinaryData keys[WIRE_MAX_BLOCKS];
    Kvferry__LookupRequest request = KVFERRY__LOOKUP_REQUEST__INIT;
    if (!lookup->introduces)
        request.namespace_ = (char *)(uintptr_t)lookup->namespace;
    request.n_keys = page_count(lookup);
    request.keys = keys;
    for (uint32_t i = 0; i < request.n_keys; i++) {
        struct kvf_key *key = &lookup->blocks[lookup->first + i].key;
        keys[i] = (ProtobufCBinaryData){.data = key->bytes, .len = key->length};
    }
    struct kvf_bytes bytes = wire_pack(&lookup->source->wire, &request.base);
    if (bytes.data == NULL)
        return pull_fail(KVF_NO_MEMORY);
    kvf_rpc_call_send(lookup->call, bytes);
    kvf_rpc_call_half_close(lookup->call);
    return kvf_ok();
}

static struct kvf_status start_call(struct kvf_lookup *lookup, uint64_t left_ns)
{
    struct kvf_source *source = lookup->source;
    if (source->lookup_channel == NULL)
        KVF_TRY(kvf_rpc_channel_open(source->options.rpc, source->address, source->options.tls,
                                     &source->lookup_channel, NULL));
    uint64_t limit_ns = left_ns < LOOKUP_MAX_NS ? left_ns : LOOKUP_MAX_NS;
    uint64_t limit_ms = (limit_ns + KVF_NS_PER_MS - 1) / KVF_NS_PER_MS;
    return kvf_rpc_call_start(source->lookup_channel, KVF_PEER_LOOKUP, limit_ms, &events, lookup,
                              &lookup->call);
}

/* Who answers is known only when he has: the first call of a connection names no key. */
static void ask(struct kvf_lookup *lookup)
{
    const struct kvf_source *source = lookup->source;
    uint64_t left_ns = kvf_clock_left_ns(lookup->deadline_ns, kvf_clock_now_ns());
    lookup->answered = false;
    lookup->introduces = source->options.tls != NULL && !source->lookup_known;
    if (left_ns == 0) {
        fail_soon(lookup, pull_fail(KVF_DEADLINE));
        return;
    }
    if (!kvf_is_ok(start_call(lookup, left_ns))) {
        lookup->call = NULL;
        fail_soon(lookup, pull_fail(KVF_UNAVAILABLE));
        return;
    }
    struct kvf_status sent = send_keys(lookup);
    if (!kvf_is_ok(sent)) {
        lookup->failure = sent;
        kvf_rpc_call_cancel(lookup->call);
    }
}

void kvf_lookup_start(struct kvf_source *source, struct kvf_lookup *lookup)
{
    lookup->source = source;
    lookup->call = NULL;
    lookup->failure = kvf_ok();
    lookup->first = 0;
    lookup->answered = false;
    kvf_list_init(&lookup->node);
    kvf_list_push_back(&source->lookups, &lookup->node);
    struct kvf_status may = source_may_try(source);
    if (!kvf_is_ok(may) || lookup->block_count == 0)
        fail_soon(lookup, may);
    else
        ask(lookup);
}

void kvf_lookup_cancel(struct kvf_lookup *lookup)
{
    if (lookup->call == NULL)
        return; /* its end is on the way */
    lookup->failure = pull_fail(KVF_CANCELLED);
    kvf_rpc_call_cancel(lookup->call);
}

void lookups_cancel(struct kvf_source *source)
{
    kvf_list_for_each (node, &source->lookups)
        kvf_lookup_cancel(kvf_container(node, struct kvf_lookup, node));
}

void lookups_tell_failed(struct kvf_source *source)
{
    struct kvf_list *node;
    struct kvf_list failed;
    kvf_list_init(&failed);
    kvf_list_splice_back(&failed, &source->failed_lookups);
    while ((node = kvf_list_pop_front(&failed)) != NULL)
        end(kvf_container(node, struct kvf_lookup, node));
}
