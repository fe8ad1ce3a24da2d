/* Reads of a session: what the consumer says about them, and what its leases answer. */
#include "base/clock.h"
#include "base/log.h"
#include "server/peer_session.h"

#include <stdlib.h>

/* ---- what goes down ---- */

void peer_send_refused(struct session *session, uint64_t id, enum kvf_code code, uint64_t waited_ns,
                       uint64_t short_bytes)
{
    Kvferry__Refused refused = KVFERRY__REFUSED__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    refused.id = id;
    refused.code = (uint32_t)code;
    refused.waited_us = waited_ns / KVF_NS_PER_US;
    refused.short_bytes = short_bytes;
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

static void read_refused(struct kvf_lease *lease, enum kvf_code code, uint64_t waited_ns,
                         uint64_t short_bytes)
{
    peer_send_refused(lease->user, lease->id, code, waited_ns, short_bytes);
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
    struct session *session = lease->user;
    kvf_log_warning("peers", "session of \"%s\" ended by force: Read %llu is 2 s over its deadline",
                    session->identity->name, (unsigned long long)lease->id);
    peer_end(session, KVF_DEADLINE, "a Read was not released within 2 s of its deadline");
}

static const struct kvf_lease_events lease_events = {
    .granted = read_granted,
    .refused = read_refused,
    .fault = read_fault,
    .committed = read_committed,
    .overdue = read_overdue,
};

static void lease_freed(void *user, uint32_t block_count)
{
    struct session *session = user;
    session->lease_count--;
    session->identity->open_blocks -= block_count;
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

/* NULL, or what is wrong with the Read. */
static const char *judge_read(const struct session *session, const Kvferry__Read *read)
{
    if (read->id <= session->last_id)
        return "Read ids must rise";
    if (read->n_blocks < 1 || read->n_blocks > session->peers->options.max_blocks_per_read)
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
    lease->lane = session->lane;
    lease->identity_budget = &session->identity->budget;
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

void peer_take_read(struct session *session, const Kvferry__Read *read)
{
    const char *wrong = judge_read(session, read);
    if (wrong != NULL) {
        peer_protocol_error(session, wrong);
        return;
    }
    session->last_id = read->id;
    struct kvf_lease *lease = NULL;
    enum kvf_code code = KVF_OK;
    if (session->peers->draining)
        code = KVF_DRAINING;
    else if (session->lease_count >= KVF_MAX_LEASES || open_reads(session) >= KVF_MAX_OPEN_READS ||
             session->identity->open_blocks + read->n_blocks > KVF_MAX_BLOCKS_PER_IDENTITY)
        code = KVF_BUSY;
    else if ((lease = kvf_lease_create(session->peers->options.leases, (uint32_t)read->n_blocks)) ==
             NULL)
        code = KVF_BUSY;
    if (code != KVF_OK) {
        peer_send_refused(session, read->id, code, 0, 0);
        return;
    }
    fill_lease(session, lease, read);
    session->lease_count++;
    session->identity->open_blocks += read->n_blocks;
    kvf_list_push_back(&session->leases, &lease->node);
    kvf_lease_start(lease);
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
