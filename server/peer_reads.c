/* Reads of a session: what the consumer says about them, and what its leases answer. */
#include "base/clock.h"
#include "base/log.h"
#include "server/peer_session.h"

#include <stdlib.h>

/* ---- what goes down ---- */

void peer_send_refused(struct session *session, uint64_t id, const struct kvf_refusal *refusal)
{
    Kvferry__Refused refused = KVFERRY__REFUSED__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    refused.id = id;
    refused.code = (uint32_t)refusal->code;
    refused.waited_us = refusal->waited_ns / KVF_NS_PER_US;
    refused.short_bytes = refusal->short_bytes;
    refused.short_of = (uint32_t)refusal->shortage;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_REFUSED;
    down.refused = &refused;
    peer_send(session, &down);
}

static void read_granted(struct kvf_lease *lease)
{
    struct session *session = lease->user;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    Kvferry__Grants grants = KVFERRY__GRANTS__INIT;
    Kvferry__GrantBlock *blocks = calloc(lease->block_count, sizeof(*blocks));
    Kvferry__Generation *generations = calloc(lease->block_count, sizeof(*generations));
    grants.blocks = calloc(lease->block_count, sizeof(Kvferry__GrantBlock *));
    if (blocks == NULL || generations == NULL || grants.blocks == NULL) {
        peer_end(session, KVF_NO_MEMORY, "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < lease->block_count; i++) {
        const struct kvf_lease_block *from = &lease->blocks[i];
        Kvferry__GrantBlock *to = grants.blocks[i] = &blocks[i];
        kvferry__grant_block__init(to);
        to->code = (uint32_t)from->code;
        if (from->entry == NULL)
            continue;
        kvferry__generation__init(&generations[i]);
        generations[i].epoch = from->entry->generation.epoch;
        generations[i].counter = from->entry->generation.counter;
        to->generation = &generations[i];
        to->length = from->entry->length;
        to->crc32c = from->entry->crc32c;
        to->tier = (uint32_t)from->tier;
    }
    grants.id = lease->id;
    grants.n_blocks = lease->block_count;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_GRANTS;
    down.grants = &grants;
    peer_send(session, &down);
out:
    free(blocks);
    free(generations);
    free(grants.blocks);
}

void peer_tokens(struct kvf_lane *lane, void *user, struct kvf_lane_read *read,
                 const struct kvf_lane_token *tokens, size_t count)
{
    enum { AT_ONCE = 64 };
    Kvferry__Token messages[AT_ONCE], *pointers[AT_ONCE];
    (void)lane;
    while (count > 0) {
        size_t now = count < AT_ONCE ? count : AT_ONCE;
        Kvferry__Tokens message = KVFERRY__TOKENS__INIT;
        Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
        for (size_t i = 0; i < now; i++) {
            pointers[i] = &messages[i];
            kvferry__token__init(&messages[i]);
            messages[i].block = tokens[i].block;
            messages[i].token.len = tokens[i].length;
            messages[i].token.data = (uint8_t *)(uintptr_t)tokens[i].bytes;
        }
        message.id = read->id;
        message.n_tokens = now;
        message.tokens = pointers;
        down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_TOKENS;
        down.tokens = &message;
        peer_send(user, &down);
        tokens += now;
        count -= now;
    }
}

static void read_refused(struct kvf_lease *lease, const struct kvf_refusal *refusal)
{
    peer_send_refused(lease->user, lease->id, refusal);
}

static void read_fault(struct kvf_lease *lease, uint32_t block, enum kvf_code code)
{
    Kvferry__Fault fault = KVFERRY__FAULT__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    fault.id = lease->id;
    fault.block = block;
    fault.code = (uint32_t)code;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_FAULT;
    down.fault = &fault;
    peer_send(lease->user, &down);
}

static void read_committed(struct kvf_lease *lease, uint32_t block, uint64_t length)
{
    Kvferry__Committed committed = KVFERRY__COMMITTED__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    committed.id = lease->id;
    committed.block = block;
    committed.length = length;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_COMMITTED;
    down.committed = &committed;
    peer_send(lease->user, &down);
}

static void read_overdue(struct kvf_lease *lease)
{
    peer_end_by_force(lease->user, KVF_DEADLINE, "overdue",
                      "a Read was not released within 2 s of its deadline");
}

static const struct kvf_lease_events lease_events = {
    .granted = read_granted,
    .refused = read_refused,
    .fault = read_fault,
    .committed = read_committed,
    .overdue = read_overdue,
};

static const char *outcome_of(const struct kvf_lease_account *account)
{
    if (account->code != KVF_OK)
        return kvf_code_name(account->code);
    if (account->granted_ns == 0)
        return kvf_code_name(KVF_CANCELLED);
    if (account->hits == 0)
        return kvf_code_name(KVF_NOT_FOUND);
    return account->sent == account->hits ? kvf_code_name(KVF_OK) : "PARTLY";
}

/* A denied Read has been told of as a denial. */
static void audit_read(const struct session *session, const struct kvf_lease *lease)
{
    const struct kvf_lease_account *account = &lease->account;
    uint64_t now_ns = kvf_clock_now_ns();
    struct kvf_audit_read read = {
        .identity = session->identity->name,
        .tenant = session->tenant,
        .id = lease->id,
        .blocks = lease->block_count,
        .hits = account->hits,
        .sent = account->sent,
        .bytes = account->sent_bytes,
        .outcome = outcome_of(account),
        .waited_ns = (account->granted_ns > 0 ? account->granted_ns : now_ns) - account->start_ns,
        .took_ns = now_ns - account->start_ns,
        .key = &lease->blocks[0].key,
    };
    if (!lease->denied)
        kvf_audit_read(session->peers->options.audit, &read);
}

static void lease_freed(void *user, const struct kvf_lease *lease)
{
    struct session *session = user;
    audit_read(session, lease);
    kvf_parties_leave(lease->party);
    session->lease_count--;
    session->identity->open_blocks -= lease->block_count;
    peer_settle(session);
}

static struct kvf_lease *find_lease(struct session *session, uint64_t id)
{
    kvf_list_for_each (node, &session->leases) {
        struct kvf_lease *lease = kvf_container(node, struct kvf_lease, node);
        if (lease->id == id && lease->state != KVF_LEASE_RELEASED)
            return lease;
    }
    return NULL;
}

static uint32_t open_reads(const struct session *session)
{
    uint32_t count = 0;
    kvf_list_for_each (node, &session->leases)
        count += kvf_container(node, struct kvf_lease, node)->state != KVF_LEASE_RELEASED;
    return count;
}

/* ---- what comes up ---- */

static bool namespace_is_tenants(const char *ns, const char *tenant)
{
    return kvf_namespace_is_valid(ns) && kvf_namespace_tenant_bytes(ns) == strlen(tenant) &&
           memcmp(ns, tenant, strlen(tenant)) == 0;
}

uint32_t peer_max_blocks(const struct session *session)
{
    uint32_t most = session->peers->options.max_blocks_per_read;
    uint32_t lane_blocks = kvf_transport_traits(session->transport)->lane_blocks;
    return lane_blocks > 0 && lane_blocks < most ? lane_blocks : most;
}

/* NULL, or what is wrong with the Read. */
static const char *judge_read(const struct session *session, const Kvferry__Read *read)
{
    if (read->id <= session->last_id)
        return "Read ids must rise";
    if (read->n_blocks < 1 || read->n_blocks > peer_max_blocks(session))
        return "a Read names 1 to max_blocks_per_read blocks";
    if (!namespace_is_tenants(read->namespace_, session->tenant))
        return "the namespace is not of the session's tenant";
    for (size_t i = 0; i < read->n_blocks; i++) {
        const Kvferry__ReadBlock *block = read->blocks[i];
        if (block->key.len < 1 || block->key.len > KVF_KEY_MAX_BYTES || block->length < 1 ||
            block->length > KVF_BLOCK_MAX_BYTES)
            return "a block has a key of 1 to 64 bytes and a length of 1 B to 128 MiB";
    }
    return NULL;
}

static void fill_lease(struct session *session, struct kvf_lease *lease, const Kvferry__Read *read)
{
    const uint64_t most_us = UINT64_C(1000000) * 86400;
    uint64_t deadline_us = read->deadline_us < most_us ? read->deadline_us : most_us;
    lease->id = read->id;
    lease->instance = read->instance;
    lease->deadline_ns = kvf_clock_now_ns() + deadline_us * KVF_NS_PER_US;
    lease->stop_at_first_miss = read->stop_at_first_miss;
    strcpy(lease->ns, read->namespace_);
    lease->lane = &session->shared;
    lease->speculative = session->speculative;
    lease->events = &lease_events;
    lease->freed = lease_freed;
    lease->user = session;
    for (size_t i = 0; i < read->n_blocks; i++) {
        const Kvferry__ReadBlock *from = read->blocks[i];
        struct kvf_lease_block *to = &lease->blocks[i];
        (void)kvf_key_set(&to->key, from->key.data, from->key.len);
        to->length = from->length;
        if (from->generation != NULL)
            to->pin = (struct kvf_generation){from->generation->epoch, from->generation->counter};
    }
}

static bool too_many_are_open(const struct session *session, const Kvferry__Read *read)
{
    return session->lease_count >= KVF_MAX_LEASES || open_reads(session) >= KVF_MAX_OPEN_READS ||
           session->identity->open_blocks + read->n_blocks > KVF_MAX_BLOCKS_PER_IDENTITY;
}

static void refuse_read(struct session *session, const Kvferry__Read *read,
                        const struct kvf_refusal *refusal)
{
    struct kvf_key key;
    (void)kvf_key_set(&key, read->blocks[0]->key.data, read->blocks[0]->key.len);
    struct kvf_audit_read line = {.identity = session->identity->name,
                                  .tenant = session->tenant,
                                  .id = read->id,
                                  .blocks = (uint32_t)read->n_blocks,
                                  .outcome = kvf_code_name(refusal->code),
                                  .key = &key};
    kvf_audit_read(session->peers->options.audit, &line);
    peer_send_refused(session, read->id, refusal);
}

/* Decided at each Read. What is denied goes the way of what is missing, admission and all, and looks the same. */
static bool is_denied(const struct session *session)
{
    const struct kvf_peers_options *options = &session->peers->options;
    if (kvf_acl_may(options->acl, session->identity->name, session->tenant, KVF_RIGHT_READ))
        return false;
    kvf_audit_denied(options->audit, session->identity->name, session->tenant, "read", "no_right");
    return true;
}

static struct kvf_lease *make_lease(struct session *session, const Kvferry__Read *read)
{
    struct kvf_lease *lease =
        kvf_lease_create(session->peers->options.leases, (uint32_t)read->n_blocks);
    if (lease == NULL)
        return NULL;
    fill_lease(session, lease, read);
    lease->denied = is_denied(session);
    session->lease_count++;
    session->identity->open_blocks += read->n_blocks;
    kvf_list_push_back(&session->leases, &lease->node);
    return lease;
}

void peer_take_read(struct session *session, const Kvferry__Read *read)
{
    const char *wrong = judge_read(session, read);
    if (wrong != NULL) {
        peer_protocol_error(session, wrong);
        return;
    }
    session->last_id = read->id;
    struct kvf_refusal refusal = {.code = KVF_BUSY};
    if (session->peers->draining) {
        refusal.code = KVF_DRAINING;
    } else if (too_many_are_open(session, read)) {
        refusal.shortage = KVF_SHORT_OF_READS;
    } else {
        struct kvf_party *party =
            kvf_parties_join_instance(session->party, session->instance, read->instance);
        struct kvf_lease *lease = party != NULL ? make_lease(session, read) : NULL;
        if (lease != NULL) {
            lease->party = party;
            kvf_lease_start(lease);
            return;
        }
        if (party != NULL)
            kvf_parties_leave(party);
    }
    refuse_read(session, read, &refusal);
}

void peer_take_release(struct session *session, const Kvferry__Release *release)
{
    struct kvf_lease *lease = find_lease(session, release->id);
    if (release->id > session->last_id) {
        peer_protocol_error(session, "a Release names an id from the future");
        return;
    }
    if (lease == NULL)
        return; /* it crossed with Refused */
    for (size_t i = 0; i < release->n_bad_blocks; i++)
        kvf_lease_recheck(lease, release->bad_blocks[i]);
    kvf_lease_release(lease);
}

void peer_take_cancel(struct session *session, uint64_t id)
{
    struct kvf_lease *lease = find_lease(session, id);
    if (id > session->last_id)
        peer_protocol_error(session, "a Cancel names an id from the future");
    else if (lease != NULL && lease->state == KVF_LEASE_QUEUED)
        kvf_lease_release(lease);
    else if (lease != NULL)
        kvf_lease_cancel(lease);
}

void peer_take_raise(struct session *session, uint64_t id)
{
    struct kvf_lease *lease = find_lease(session, id);
    if (id > session->last_id)
        peer_protocol_error(session, "a Raise names an id from the future");
    else if (lease != NULL)
        kvf_lease_raise(lease);
}
