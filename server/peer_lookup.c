/* Lookup: a hint about what is here; pins nothing. */
#include "proto/peer.h"
#include "server/peer_session.h"

#include <stdio.h>
#include <stdlib.h>

/* Denied: as if the index knew nothing. */
static void fill_lookup(struct kvf_peers *peers, const Kvferry__LookupRequest *request, bool denied,
                        size_t i, Kvferry__LookupBlock *block, Kvferry__Generation *generation)
{
    struct kvf_key key;
    kvferry__lookup_block__init(block);
    block->code = KVF_NOT_FOUND;
    if (!kvf_namespace_is_valid(request->namespace_) ||
        !kvf_key_set(&key, request->keys[i].data, request->keys[i].len))
        return;
    struct kvf_found found;
    if (denied || !kvf_index_find(peers->options.index, request->namespace_, &key, &found) ||
        found.state == KVF_ENTRY_PULLING) {
        if (kvf_awaited_is_open(peers->options.leases->awaited))
            block->code = KVF_PENDING; /* recovery may find it: ask again */
        return;
    }
    block->code = found.state == KVF_ENTRY_PENDING ? KVF_PENDING : KVF_OK;
    block->length = found.length;
    block->tier = found.resident ? KVF_TIER_DRAM : KVF_TIER_SSD;
    kvferry__generation__init(generation);
    generation->epoch = found.generation.epoch;
    generation->counter = found.generation.counter;
    block->generation = generation;
}

/* What is denied looks as if it were missing. */
static bool is_denied(const struct kvf_peers *peers, const struct kvf_rpc_call *call,
                      const char *ns)
{
    const char *identity = kvf_rpc_call_identity(call);
    if (kvf_acl_may(peers->options.acl, identity, ns, KVF_RIGHT_READ))
        return false;
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1];
    (void)snprintf(tenant, sizeof(tenant), "%.*s", (int)strcspn(ns, "/"), ns);
    kvf_audit_denied(peers->options.audit, identity, tenant, "lookup", "no_right");
    return true;
}

static void answer_lookup(struct kvf_peers *peers, struct kvf_rpc_call *call,
                          const Kvferry__LookupRequest *request)
{
    size_t count = request->n_keys;
    Kvferry__LookupReply reply = KVFERRY__LOOKUP_REPLY__INIT;
    Kvferry__LookupBlock *blocks = calloc(count + 1, sizeof(*blocks));
    Kvferry__Generation *generations = calloc(count + 1, sizeof(*generations));
    reply.blocks = calloc(count + 1, sizeof(Kvferry__LookupBlock *));
    struct kvf_status status = kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    if (blocks != NULL && generations != NULL && reply.blocks != NULL) {
        bool denied = count > 0 && is_denied(peers, call, request->namespace_);
        for (size_t i = 0; i < count; i++) {
            reply.blocks[i] = &blocks[i];
            fill_lookup(peers, request, denied, i, &blocks[i], &generations[i]);
        }
        reply.n_blocks = count;
        reply.boot_epoch = peers->options.boot_epoch;
        reply.draining = peers->draining;
        size_t length = kvferry__lookup_reply__get_packed_size(&reply);
        kvf_assert(length <= KVF_RPC_MAX_MESSAGE_BYTES);
        (void)kvferry__lookup_reply__pack(&reply, peers->buffer);
        kvf_rpc_call_send(call, (struct kvf_bytes){peers->buffer, length});
        status = kvf_ok();
    }
    kvf_rpc_call_finish(call, status, "");
    free(blocks);
    free(generations);
    free(reply.blocks);
}

static void lookup_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct kvf_peers *peers = user;
    const Kvferry__LookupRequest *request = kvferry__lookup_request__unpack(
        kvf_scratch_reset(&peers->scratch), bytes.length, bytes.data);
    if (request == NULL || request->n_keys > KVF_PEER_MAX_LOOKUP_KEYS)
        kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0),
                            "not a LookupRequest, or too many keys");
    else if (peers->draining)
        kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_DRAINING, 0),
                            "this node is draining");
    else
        answer_lookup(peers, call, request);
}

static void lookup_half_closed(struct kvf_rpc_call *call, void *user)
{
    (void)user;
    kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0), "no LookupRequest came");
}

static const struct kvf_rpc_events lookup_events = {.message = lookup_message,
                                                    .half_closed = lookup_half_closed};

void peer_lookup_called(struct kvf_rpc_call *call, void *context)
{
    if (peer_admit_caller(context, call, "lookup"))
        kvf_rpc_call_accept(call, &lookup_events, context);
}
