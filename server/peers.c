/* The peer service, in five parts: sending, sessions and their end, Reads, messages from the
 * consumer, Lookup. */
#include "server/peers.h"

#include "base/clock.h"
#include "base/log.h"
#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "proto/scratch.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_QUEUED_BYTES (8u << 20) /* messages to a consumer that does not read */

/* For the unpacked form of any message that is served: a Read of 8192 blocks, the most that can be configured, takes
 * 2 MB. Touched only where used. */
#define UNPACKED_BYTES (4u << 20)

enum session_state {
    SESSION_HELLO = 0,
    SESSION_WELCOMED,
    SESSION_OPEN,
    SESSION_CLOSING,
};

/* Who calls, over all its sessions. */
struct identity {
    struct kvf_list node;
    struct kvf_budget budget;
    uint32_t sessions;
    uint64_t open_blocks; /* of leases that exist */
    char name[];
};

struct session {
    struct kvf_list node;
    struct kvf_peers *peers;
    enum session_state state;
    struct identity *identity;
    struct kvf_rpc_call *call; /* NULL once closed */
    struct kvf_lane *lane;     /* NULL before Hello and once closed */
    struct kvf_timer timer;
    struct kvf_list leases;
    uint32_t lease_count;
    uint64_t last_id;
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1];
    uint64_t instance;
    int purpose;
    char nic[64];
    bool working;
};

struct kvf_peers {
    struct kvf_peers_options options;
    struct kvf_list sessions;
    struct kvf_list identities;
    uint64_t session_count;
    bool draining;
    uint8_t *buffer;            /* for packing: KVF_RPC_MAX_MESSAGE_BYTES */
    struct kvf_scratch scratch; /* over `unpacked`: the one message that is being taken */
    uint8_t unpacked[UNPACKED_BYTES];
};

/* ---- sending ---- */

static void unread_timeout(struct kvf_timer *timer);

static void send_down(struct session *session, const Kvferry__SessionDown *down)
{
    struct kvf_peers *peers = session->peers;
    if (session->call == NULL)
        return;
    size_t length = kvferry__session_down__get_packed_size(down);
    kvf_assert(length <= KVF_RPC_MAX_MESSAGE_BYTES);
    (void)kvferry__session_down__pack(down, peers->buffer);
    kvf_rpc_call_send(session->call, (struct kvf_bytes){peers->buffer, length});
    /* Not at once: a lease may be calling. */
    if (session->state != SESSION_CLOSING &&
        kvf_rpc_call_queued_bytes(session->call) > MAX_QUEUED_BYTES) {
        session->timer.fire = unread_timeout;
        kvf_timer_start(peers->options.loop, &session->timer, kvf_clock_now_ns());
    }
}

static void send_refused(struct session *session, uint64_t id, enum kvf_code code,
                         uint64_t waited_ns, uint64_t short_bytes)
{
    Kvferry__Refused refused = KVFERRY__REFUSED__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    refused.id = id;
    refused.code = (uint32_t)code;
    refused.waited_us = waited_ns / KVF_NS_PER_US;
    refused.short_bytes = short_bytes;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_REFUSED;
    down.refused = &refused;
    send_down(session, &down);
}

static void send_drain_notice(struct session *session)
{
    Kvferry__DrainNotice notice = KVFERRY__DRAIN_NOTICE__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_DRAIN_NOTICE;
    down.drain_notice = &notice;
    send_down(session, &down);
}

/* ---- sessions and their end ---- */

static struct identity *join_identity(struct kvf_peers *peers, const char *name)
{
    struct identity *identity = NULL;
    kvf_list_for_each (node, &peers->identities) {
        struct identity *known = kvf_container(node, struct identity, node);
        if (strcmp(known->name, name) == 0)
            identity = known;
    }
    if (identity == NULL) {
        identity = calloc(1, sizeof(*identity) + strlen(name) + 1);
        if (identity == NULL)
            return NULL;
        strcpy(identity->name, name);
        identity->budget.limit_bytes = peers->options.per_identity_limit_bytes;
        kvf_list_push_back(&peers->identities, &identity->node);
    }
    identity->sessions++;
    return identity;
}

static void leave_identity(struct identity *identity)
{
    if (--identity->sessions > 0)
        return;
    kvf_list_remove(&identity->node);
    free(identity);
}

static void free_if_over(struct session *session)
{
    if (session->state != SESSION_CLOSING || session->call != NULL || session->lane != NULL ||
        session->lease_count > 0 || session->working)
        return;
    kvf_list_remove(&session->node);
    session->peers->session_count--;
    leave_identity(session->identity);
    free(session);
}

/* End call and lane together, and every lease. The session may be gone on return, unless `working`.
 */
static void end(struct session *session, enum kvf_code code, const char *text)
{
    if (session->state == SESSION_CLOSING) {
        free_if_over(session);
        return;
    }
    session->state = SESSION_CLOSING;
    kvf_timer_stop(session->peers->options.loop, &session->timer);
    bool working = session->working;
    session->working = true;
    kvf_list_for_each_safe (node, &session->leases)
        kvf_lease_release(kvf_container(node, struct kvf_lease, node));
    if (session->lane != NULL)
        kvf_lane_close(session->lane);
    if (session->call != NULL)
        kvf_rpc_call_finish(session->call, kvf_fail(KVF_MODULE_SERVER, code, 0), text);
    session->working = working;
    free_if_over(session);
}

static void protocol_error(struct session *session, const char *text)
{
    kvf_log_warning("peers", "session of \"%s\" ended: %s", session->identity->name, text);
    end(session, KVF_PROTOCOL, text);
}

static void open_timeout(struct kvf_timer *timer)
{
    end(kvf_container(timer, struct session, timer), KVF_DEADLINE,
        "call and lane were not open within a second");
}

static void unread_timeout(struct kvf_timer *timer)
{
    struct session *session = kvf_container(timer, struct session, timer);
    kvf_log_warning("peers", "session of \"%s\" ended: it does not read what we send",
                    session->identity->name);
    end(session, KVF_BUSY, "the consumer does not read what this node sends");
}

/* After something of it has ended. It may be gone on return, unless `working`. */
static void settle(struct session *session)
{
    if (session->peers->draining && session->lease_count == 0 && !session->working)
        end(session, KVF_DRAINING, "this node is draining");
    else
        free_if_over(session);
}

static void lane_opened(struct kvf_lane *lane, void *user)
{
    struct session *session = user;
    (void)lane;
    if (session->state != SESSION_WELCOMED)
        return;
    session->state = SESSION_OPEN;
    kvf_timer_stop(session->peers->options.loop, &session->timer);
}

static void lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    struct session *session = user;
    (void)lane;
    session->lane = NULL;
    end(session, kvf_is_ok(status) ? KVF_CANCELLED : (enum kvf_code)status.code, "the lane ended");
}

static const struct kvf_lane_events lane_events = {.opened = lane_opened, .closed = lane_closed};

/* ---- Reads ---- */

static void read_granted(struct kvf_lease *lease)
{
    struct session *session = lease->user;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    Kvferry__Grants grants = KVFERRY__GRANTS__INIT;
    Kvferry__GrantBlock *blocks = calloc(lease->block_count, sizeof(*blocks));
    Kvferry__Generation *generations = calloc(lease->block_count, sizeof(*generations));
    grants.blocks = calloc(lease->block_count, sizeof(Kvferry__GrantBlock *));
    if (blocks == NULL || generations == NULL || grants.blocks == NULL) {
        end(session, KVF_NO_MEMORY, "out of memory");
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
    send_down(session, &down);
out:
    free(blocks);
    free(generations);
    free(grants.blocks);
}

static void read_refused(struct kvf_lease *lease, enum kvf_code code, uint64_t waited_ns,
                         uint64_t short_bytes)
{
    send_refused(lease->user, lease->id, code, waited_ns, short_bytes);
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
    send_down(lease->user, &down);
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
    send_down(lease->user, &down);
}

static void read_overdue(struct kvf_lease *lease)
{
    struct session *session = lease->user;
    kvf_log_warning("peers", "session of \"%s\" ended by force: Read %llu is 2 s over its deadline",
                    session->identity->name, (unsigned long long)lease->id);
    end(session, KVF_DEADLINE, "a Read was not released within 2 s of its deadline");
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
    settle(session);
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

static void take_read(struct session *session, const Kvferry__Read *read)
{
    const char *wrong = judge_read(session, read);
    if (wrong != NULL) {
        protocol_error(session, wrong);
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
        send_refused(session, read->id, code, 0, 0);
        return;
    }
    fill_lease(session, lease, read);
    session->lease_count++;
    session->identity->open_blocks += read->n_blocks;
    kvf_list_push_back(&session->leases, &lease->node);
    kvf_lease_start(lease);
}

static void take_release(struct session *session, const Kvferry__Release *release)
{
    struct kvf_lease *lease = find_lease(session, release->id);
    if (release->id > session->last_id) {
        protocol_error(session, "a Release names an id from the future");
        return;
    }
    if (lease == NULL)
        return; /* it crossed with Refused */
    for (size_t i = 0; i < release->n_bad_blocks; i++)
        kvf_lease_recheck(lease, release->bad_blocks[i]);
    kvf_lease_release(lease);
}

static void take_cancel(struct session *session, uint64_t id)
{
    struct kvf_lease *lease = find_lease(session, id);
    if (id > session->last_id)
        protocol_error(session, "a Cancel names an id from the future");
    else if (lease != NULL && lease->state == KVF_LEASE_QUEUED)
        kvf_lease_release(lease);
    else if (lease != NULL)
        kvf_lease_cancel(lease);
}

/* ---- messages from the consumer ---- */

/* The same consumer begins anew: its older session ends first. */
static void end_older(struct session *session)
{
    kvf_list_for_each_safe (node, &session->peers->sessions) {
        struct session *other = kvf_container(node, struct session, node);
        if (other != session && other->state != SESSION_CLOSING && other->state != SESSION_HELLO &&
            other->identity == session->identity && other->instance == session->instance &&
            other->purpose == session->purpose && strcmp(other->tenant, session->tenant) == 0 &&
            strcmp(other->nic, session->nic) == 0)
            end(other, KVF_CANCELLED, "the same consumer opened a new session");
    }
}

static void send_welcome(struct session *session, const struct kvf_lane_nonces *nonces)
{
    const struct kvf_peers_options *options = &session->peers->options;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    Kvferry__Welcome welcome = KVFERRY__WELCOME__INIT;
    char own_port[16];
    (void)snprintf(own_port, sizeof(own_port), ":%d", kvf_transport_port(options->transport));
    welcome.version = KVF_PEER_VERSION;
    welcome.node_id = (char *)(uintptr_t)options->node_id;
    welcome.boot_epoch = options->boot_epoch;
    welcome.transport = (char *)(uintptr_t)kvf_transport_name(options->transport);
    welcome.data_address =
        options->data_advertise != NULL ? (char *)(uintptr_t)options->data_advertise : own_port;
    welcome.connect_nonce =
        (ProtobufCBinaryData){KVF_NONCE_BYTES, (uint8_t *)(uintptr_t)nonces->connect.bytes};
    welcome.accept_nonce =
        (ProtobufCBinaryData){KVF_NONCE_BYTES, (uint8_t *)(uintptr_t)nonces->accept.bytes};
    welcome.max_grant_bytes = options->leases->max_grant_bytes;
    welcome.max_blocks_per_read = options->max_blocks_per_read;
    welcome.max_open_reads = KVF_MAX_OPEN_READS;
    welcome.max_message_bytes = (uint32_t)KVF_RPC_MAX_MESSAGE_BYTES;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_WELCOME;
    down.welcome = &welcome;
    send_down(session, &down);
}

static bool tenant_is_valid(const char *tenant)
{
    char ns[KVF_NAMESPACE_MAX_BYTES + 3];
    if (strlen(tenant) >= KVF_NAMESPACE_MAX_BYTES - 1)
        return false;
    (void)snprintf(ns, sizeof(ns), "%s/x", tenant);
    return kvf_namespace_is_valid(ns);
}

static bool speaks(const Kvferry__Hello *hello, const char *transport)
{
    for (size_t i = 0; i < hello->n_transports; i++)
        if (strcmp(hello->transports[i], transport) == 0)
            return true;
    return hello->n_transports == 0;
}

static void take_hello(struct session *session, const Kvferry__Hello *hello)
{
    struct kvf_peers *peers = session->peers;
    struct kvf_lane_nonces nonces;
    if (hello->version != KVF_PEER_VERSION) {
        end(session, KVF_UNSUPPORTED,
            "this node speaks protocol version 1: upgrade the older node");
        return;
    }
    if (!tenant_is_valid(hello->tenant) || strlen(hello->nic) >= sizeof(session->nic)) {
        protocol_error(session, "Hello names no valid tenant or NIC");
        return;
    }
    if (!speaks(hello, kvf_transport_name(peers->options.transport))) {
        end(session, KVF_UNSUPPORTED, "no common transport: give both nodes the same --transport");
        return;
    }
    strcpy(session->tenant, hello->tenant);
    strcpy(session->nic, hello->nic);
    session->instance = hello->instance;
    session->purpose = (int)hello->purpose;
    end_older(session);
    struct kvf_status status = kvf_lane_invite(peers->options.transport, session->timer.deadline_ns,
                                               &lane_events, session, &nonces, &session->lane);
    if (!kvf_is_ok(status)) {
        end(session, (enum kvf_code)status.code, "no lane can be opened now");
        return;
    }
    session->state = SESSION_WELCOMED;
    send_welcome(session, &nonces);
}

static void dispatch(struct session *session, const Kvferry__SessionUp *up)
{
    bool hello = up->message_case == KVFERRY__SESSION_UP__MESSAGE_HELLO;
    if (hello != (session->state == SESSION_HELLO)) {
        protocol_error(session, "Hello comes first, and once");
        return;
    }
    switch (up->message_case) {
    case KVFERRY__SESSION_UP__MESSAGE_HELLO:
        take_hello(session, up->hello);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_READ:
        take_read(session, up->read);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_RELEASE:
        take_release(session, up->release);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_CANCEL:
        take_cancel(session, up->cancel->id);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_RAISE:
        return; /* one order for all: nothing to raise */
    case KVFERRY__SESSION_UP__MESSAGE__NOT_SET:
    case _KVFERRY__SESSION_UP__MESSAGE__CASE_IS_INT_SIZE:
        break;
    }
    protocol_error(session, "a message of no known kind");
}

static void session_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct session *session = user;
    (void)call;
    if (session->state == SESSION_CLOSING)
        return;
    const Kvferry__SessionUp *up = kvferry__session_up__unpack(
        kvf_scratch_reset(&session->peers->scratch), bytes.length, bytes.data);
    session->working = true;
    if (up == NULL)
        protocol_error(session, "a message that is no SessionUp, or names far too much");
    else
        dispatch(session, up);
    session->working = false;
    settle(session);
}

static void session_half_closed(struct kvf_rpc_call *call, void *user)
{
    (void)call;
    end(user, KVF_OK, "");
}

static void session_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                           const char *text)
{
    struct session *session = user;
    (void)call;
    (void)text;
    session->call = NULL;
    end(session, (enum kvf_code)status.code, "");
}

static const struct kvf_rpc_events session_events = {
    .message = session_message,
    .half_closed = session_half_closed,
    .closed = session_closed,
};

static void session_called(struct kvf_rpc_call *call, void *context)
{
    struct kvf_peers *peers = context;
    if (peers->draining) {
        kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_DRAINING, 0),
                            "this node is draining");
        return;
    }
    struct session *session = calloc(1, sizeof(*session));
    struct identity *identity =
        session != NULL ? join_identity(peers, kvf_rpc_call_identity(call)) : NULL;
    if (identity == NULL || identity->sessions > KVF_MAX_SESSIONS_PER_IDENTITY) {
        free(session);
        if (identity != NULL)
            leave_identity(identity);
        kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_BUSY, 0),
                            "too many sessions of this identity");
        return;
    }
    session->peers = peers;
    session->identity = identity;
    session->call = call;
    kvf_list_init(&session->leases);
    kvf_list_push_back(&peers->sessions, &session->node);
    peers->session_count++;
    session->timer.fire = open_timeout;
    kvf_timer_start(peers->options.loop, &session->timer,
                    kvf_clock_now_ns() + KVF_PEER_HANDSHAKE_NS);
    kvf_rpc_call_accept(call, &session_events, session);
}

/* ---- Lookup ---- */

static void fill_lookup(struct kvf_peers *peers, const Kvferry__LookupRequest *request, size_t i,
                        Kvferry__LookupBlock *block, Kvferry__Generation *generation)
{
    struct kvf_key key;
    kvferry__lookup_block__init(block);
    block->code = KVF_NOT_FOUND;
    if (!kvf_namespace_is_valid(request->namespace_) ||
        !kvf_key_set(&key, request->keys[i].data, request->keys[i].len))
        return;
    struct kvf_found found;
    if (!kvf_index_find(peers->options.index, request->namespace_, &key, &found) ||
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
        for (size_t i = 0; i < count; i++) {
            reply.blocks[i] = &blocks[i];
            fill_lookup(peers, request, i, &blocks[i], &generations[i]);
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

static void lookup_called(struct kvf_rpc_call *call, void *context)
{
    kvf_rpc_call_accept(call, &lookup_events, context);
}

/* ---- life ---- */

void kvf_peers_methods(struct kvf_peers *peers, struct kvf_rpc_method methods[KVF_PEERS_METHODS])
{
    methods[0] = (struct kvf_rpc_method){KVF_PEER_SESSION, session_called, peers};
    methods[1] = (struct kvf_rpc_method){KVF_PEER_LOOKUP, lookup_called, peers};
}

void kvf_peers_drain(struct kvf_peers *peers)
{
    peers->draining = true;
    kvf_list_for_each_safe (node, &peers->sessions) {
        struct session *session = kvf_container(node, struct session, node);
        send_drain_notice(session);
        session->working = true;
        kvf_list_for_each_safe (lease_node, &session->leases) {
            struct kvf_lease *lease = kvf_container(lease_node, struct kvf_lease, node);
            if (lease->state != KVF_LEASE_QUEUED)
                continue;
            send_refused(session, lease->id, KVF_DRAINING, 0, 0);
            kvf_lease_release(lease);
        }
        session->working = false;
        settle(session);
    }
}

void kvf_peers_force(struct kvf_peers *peers)
{
    peers->draining = true;
    kvf_list_for_each_safe (node, &peers->sessions)
        end(kvf_container(node, struct session, node), KVF_DRAINING, "this node is going away");
}

uint64_t kvf_peers_sessions(const struct kvf_peers *peers)
{
    return peers->session_count;
}

uint64_t kvf_peers_quarantine_bytes(const struct kvf_peers *peers)
{
    uint64_t bytes = 0;
    kvf_list_for_each (node, &peers->sessions) {
        const struct session *session = kvf_container(node, struct session, node);
        if (session->state != SESSION_CLOSING)
            continue;
        kvf_list_for_each (lease_node, &session->leases) {
            const struct kvf_lease *lease = kvf_container(lease_node, struct kvf_lease, node);
            for (uint32_t i = 0; i < lease->block_count; i++)
                bytes += lease->blocks[i].charge;
        }
    }
    return bytes;
}

struct kvf_status kvf_peers_create(const struct kvf_peers_options *options, struct kvf_peers **give)
{
    struct kvf_peers *peers = calloc(1, sizeof(*peers));
    if (peers == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    peers->buffer = malloc(KVF_RPC_MAX_MESSAGE_BYTES);
    if (peers->buffer == NULL) {
        free(peers);
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    }
    peers->options = *options;
    kvf_scratch_init(&peers->scratch, peers->unpacked, sizeof(peers->unpacked));
    kvf_list_init(&peers->sessions);
    kvf_list_init(&peers->identities);
    *give = peers;
    return kvf_ok();
}

void kvf_peers_destroy(struct kvf_peers *peers)
{
    if (peers == NULL)
        return;
    kvf_assert(peers->session_count == 0);
    free(peers->buffer);
    free(peers);
}
