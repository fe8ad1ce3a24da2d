/* The peer service, in four parts: sending, sessions and their end, messages from the consumer,
 * life. peer_session.h has the map of the module. */
#include "server/peers.h"

#include "base/clock.h"
#include "base/log.h"
#include "proto/peer.h"
#include "server/peer_session.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_NIC_ADDRESSES 32
#define MAX_QUEUED_BYTES (8u << 20) /* messages to a consumer that does not read */

/* ---- sending ---- */

static void unread_timeout(struct kvf_timer *timer);

void peer_send(struct session *session, const Kvferry__SessionDown *down)
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

static void send_drain_notice(struct session *session)
{
    Kvferry__DrainNotice notice = KVFERRY__DRAIN_NOTICE__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_DRAIN_NOTICE;
    down.drain_notice = &notice;
    peer_send(session, &down);
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

void peer_set_state(struct session *session, enum session_state to)
{
    static const bool allowed[][SESSION_CLOSING + 1] = {
        [SESSION_HELLO] = {[SESSION_WELCOMED] = true, [SESSION_CLOSING] = true},
        [SESSION_WELCOMED] = {[SESSION_OPEN] = true, [SESSION_CLOSING] = true},
        [SESSION_OPEN] = {[SESSION_CLOSING] = true},
        [SESSION_CLOSING] = {false},
    };
    kvf_assert(allowed[session->state][to]);
    session->state = to;
}

static void free_if_over(struct session *session)
{
    if (session->state != SESSION_CLOSING || session->call != NULL || session->lane != NULL ||
        session->lease_count > 0 || session->working)
        return;
    kvf_list_remove(&session->node);
    session->peers->session_count--;
    if (session->party != NULL)
        kvf_parties_leave(session->party);
    leave_identity(session->identity);
    free(session);
}

void peer_end(struct session *session, enum kvf_code code, const char *text)
{
    if (session->state == SESSION_CLOSING) {
        free_if_over(session);
        return;
    }
    peer_set_state(session, SESSION_CLOSING);
    kvf_timer_stop(session->peers->options.loop, &session->timer);
    bool working = session->working;
    session->working = true;
    session->shared.lane = NULL;
    if (session->lane != NULL)
        kvf_lane_close(session->lane); /* before its leases go: the consumer may be reading */
    kvf_list_for_each_safe (node, &session->leases)
        kvf_lease_release(kvf_container(node, struct kvf_lease, node));
    if (session->call != NULL)
        kvf_rpc_call_finish(session->call, kvf_fail(KVF_MODULE_SERVER, code, 0), text);
    session->working = working;
    free_if_over(session);
}

void peer_protocol_error(struct session *session, const char *text)
{
    kvf_log_warning("peers", "session of \"%s\" ended: %s", session->identity->name, text);
    peer_end(session, KVF_PROTOCOL, text);
}

void peer_end_by_force(struct session *session, enum kvf_code code, const char *reason,
                       const char *text)
{
    kvf_log_warning("peers", "session of \"%s\" ended by force: %s", session->identity->name, text);
    kvf_audit_forced(session->peers->options.audit, session->identity->name, session->tenant,
                     reason);
    peer_end(session, code, text);
}

static void open_timeout(struct kvf_timer *timer)
{
    peer_end(kvf_container(timer, struct session, timer), KVF_DEADLINE,
             "call and lane were not open within a second");
}

static void unread_timeout(struct kvf_timer *timer)
{
    peer_end_by_force(kvf_container(timer, struct session, timer), KVF_BUSY, "unread",
                      "the consumer does not read what this node sends");
}

void peer_settle(struct session *session)
{
    if (session->peers->draining && session->lease_count == 0 && !session->working)
        peer_end(session, KVF_DRAINING, "this node is draining");
    else
        free_if_over(session);
}

static void lane_opened(struct kvf_lane *lane, void *user)
{
    struct session *session = user;
    (void)lane;
    if (session->state != SESSION_WELCOMED)
        return;
    peer_set_state(session, SESSION_OPEN);
    kvf_timer_stop(session->peers->options.loop, &session->timer);
}

static void lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    struct session *session = user;
    (void)lane;
    session->lane = NULL;
    peer_end(session, kvf_is_ok(status) ? KVF_CANCELLED : (enum kvf_code)status.code,
             "the lane ended");
}

static const struct kvf_lane_events lane_events = {
    .opened = lane_opened, .tokens = peer_tokens, .closed = lane_closed};

/* ---- messages from the consumer ---- */

/* The same consumer begins anew: its older session ends first. */
static void end_older(struct session *session)
{
    kvf_list_for_each_safe (node, &session->peers->sessions) {
        struct session *other = kvf_container(node, struct session, node);
        if (other != session && other->state != SESSION_CLOSING && other->state != SESSION_HELLO &&
            other->identity == session->identity && other->instance == session->instance &&
            other->speculative == session->speculative &&
            strcmp(other->tenant, session->tenant) == 0 && strcmp(other->nic, session->nic) == 0)
            peer_end(other, KVF_CANCELLED, "the same consumer opened a new session");
    }
}

/* The most that one Read may be granted. What a tenant may have says nothing to who may not read it. */
static uint64_t largest_grant(const struct session *session)
{
    const struct kvf_peers_options *options = &session->peers->options;
    uint64_t most = options->leases->max_grant_bytes;
    if (!kvf_acl_may(options->acl, session->identity->name, session->tenant, KVF_RIGHT_READ))
        return most;
    uint64_t share =
        kvf_tenants_limit(kvf_index_tenants(options->index), session->tenant, KVF_SHARE_DRAM);
    share = share < KVF_PAGE ? KVF_PAGE : share;
    return share < most ? share : most;
}

static void send_welcome(struct session *session, const struct kvf_lane_nonces *nonces)
{
    const struct kvf_peers_options *options = &session->peers->options;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    Kvferry__Welcome welcome = KVFERRY__WELCOME__INIT;
    char own_port[16], addresses[MAX_NIC_ADDRESSES][KVF_TRANSPORT_ADDRESS_BYTES];
    char *nic_addresses[MAX_NIC_ADDRESSES];
    (void)snprintf(own_port, sizeof(own_port), ":%d", kvf_transport_port(session->transport));
    welcome.version = KVF_PEER_VERSION;
    welcome.node_id = (char *)(uintptr_t)options->node_id;
    welcome.boot_epoch = options->boot_epoch;
    welcome.transport = (char *)(uintptr_t)kvf_transport_name(session->transport);
    welcome.data_address =
        options->data_advertise != NULL ? (char *)(uintptr_t)options->data_advertise : own_port;
    if (options->data_advertise == NULL)
        welcome.n_nic_addresses =
            kvf_transport_addresses(session->transport, addresses, MAX_NIC_ADDRESSES);
    for (size_t i = 0; i < welcome.n_nic_addresses; i++)
        nic_addresses[i] = addresses[i];
    welcome.nic_addresses = nic_addresses;
    welcome.connect_nonce =
        (ProtobufCBinaryData){KVF_NONCE_BYTES, (uint8_t *)(uintptr_t)nonces->connect.bytes};
    welcome.accept_nonce =
        (ProtobufCBinaryData){KVF_NONCE_BYTES, (uint8_t *)(uintptr_t)nonces->accept.bytes};
    welcome.max_grant_bytes = session->max_grant_bytes = largest_grant(session);
    welcome.max_blocks_per_read = peer_max_blocks(session);
    welcome.max_open_reads = KVF_MAX_OPEN_READS;
    welcome.max_message_bytes = (uint32_t)KVF_RPC_MAX_MESSAGE_BYTES;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_WELCOME;
    down.welcome = &welcome;
    peer_send(session, &down);
}

/* A device that cannot keep what one peer may read from another one serves a node of one tenant. Without an ACL all
 * tenants share one trust. */
static bool may_carry(const struct kvf_peers *peers, const struct kvf_transport *transport)
{
    return !kvf_transport_traits(transport)->single_tenant ||
           !kvf_acl_has_tenants(peers->options.acl);
}

/* The first that the consumer names and we can use. NULL: none. */
static struct kvf_transport *choose_transport(const struct kvf_peers *peers,
                                              const Kvferry__Hello *hello)
{
    const struct kvf_transports *ours = &peers->options.transports;
    for (size_t i = 0; i < hello->n_transports; i++) {
        struct kvf_transport *found = kvf_transports_find(ours, hello->transports[i]);
        if (found != NULL && may_carry(peers, found))
            return found;
    }
    return NULL;
}

/* Who has no identity (no TLS) counts as its process, or all of them would share one budget. */
static bool join_party(struct session *session, const Kvferry__Hello *hello)
{
    char name[128];
    const char *identity = session->identity->name;
    if (identity[0] == '\0') {
        (void)snprintf(name, sizeof(name), "%.64s/%llx", hello->node_id,
                       (unsigned long long)hello->instance);
        identity = name;
    }
    session->party = kvf_parties_join(&session->peers->parties, identity);
    return session->party != NULL;
}

static void take_hello(struct session *session, const Kvferry__Hello *hello)
{
    struct kvf_peers *peers = session->peers;
    struct kvf_lane_nonces nonces;
    if (hello->version != KVF_PEER_VERSION) {
        char text[128];
        (void)snprintf(text, sizeof(text), KVF_PEER_VERSIONS_DIFFER, KVF_PEER_VERSION,
                       hello->version);
        peer_end(session, KVF_UNSUPPORTED, text);
        return;
    }
    if (!kvf_tenant_is_valid(hello->tenant) || strlen(hello->nic) >= sizeof(session->nic)) {
        peer_protocol_error(session, "Hello names no valid tenant or NIC");
        return;
    }
    session->transport = choose_transport(peers, hello);
    if (session->transport == NULL) {
        peer_end(session, KVF_UNSUPPORTED,
                 "no common transport: give both nodes the same --transport");
        return;
    }
    strcpy(session->tenant, hello->tenant);
    strcpy(session->nic, hello->nic);
    session->instance = hello->instance;
    session->speculative = hello->purpose == KVFERRY__PURPOSE__SPECULATIVE;
    end_older(session);
    if (!join_party(session, hello)) {
        peer_end(session, KVF_NO_MEMORY, "out of memory");
        return;
    }
    struct kvf_status status = kvf_lane_invite(session->transport, session->timer.deadline_ns,
                                               &lane_events, session, &nonces, &session->lane);
    if (!kvf_is_ok(status)) {
        peer_end(session, (enum kvf_code)status.code, "no lane can be opened now");
        return;
    }
    kvf_lease_lane_init(&session->shared, session->lane, kvf_transport_traits(session->transport));
    peer_set_state(session, SESSION_WELCOMED);
    send_welcome(session, &nonces);
}

static void dispatch(struct session *session, const Kvferry__SessionUp *up)
{
    bool hello = up->message_case == KVFERRY__SESSION_UP__MESSAGE_HELLO;
    if (hello != (session->state == SESSION_HELLO)) {
        peer_protocol_error(session, "Hello comes first, and once");
        return;
    }
    switch (up->message_case) {
    case KVFERRY__SESSION_UP__MESSAGE_HELLO:
        take_hello(session, up->hello);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_READ:
        peer_take_read(session, up->read);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_RELEASE:
        peer_take_release(session, up->release);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_CANCEL:
        peer_take_cancel(session, up->cancel->id);
        return;
    case KVFERRY__SESSION_UP__MESSAGE_RAISE:
        peer_take_raise(session, up->raise->id);
        return;
    case KVFERRY__SESSION_UP__MESSAGE__NOT_SET:
    case _KVFERRY__SESSION_UP__MESSAGE__CASE_IS_INT_SIZE:
        break;
    }
    peer_protocol_error(session, "a message of no known kind");
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
        peer_protocol_error(session, "a message that is no SessionUp, or names far too much");
    else
        dispatch(session, up);
    session->working = false;
    peer_settle(session);
}

static void session_half_closed(struct kvf_rpc_call *call, void *user)
{
    (void)call;
    peer_end(user, KVF_OK, "");
}

static void session_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                           const char *text)
{
    struct session *session = user;
    (void)call;
    (void)text;
    session->call = NULL;
    peer_end(session, (enum kvf_code)status.code, "");
}

static const struct kvf_rpc_events session_events = {
    .message = session_message,
    .half_closed = session_half_closed,
    .closed = session_closed,
};

bool peer_admit_caller(struct kvf_peers *peers, struct kvf_rpc_call *call, const char *what)
{
    const char *identity = kvf_rpc_call_identity(call);
    if (kvf_acl_knows(peers->options.acl, identity))
        return true;
    kvf_audit_denied(peers->options.audit, identity, "", what, "unknown_identity");
    kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_DENIED, 0),
                        "the ACL of this node does not name this identity");
    return false;
}

static void session_called(struct kvf_rpc_call *call, void *context)
{
    struct kvf_peers *peers = context;
    if (!peer_admit_caller(peers, call, "session"))
        return;
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

/* ---- life ---- */

void kvf_peers_methods(struct kvf_peers *peers, struct kvf_rpc_method methods[KVF_PEERS_METHODS])
{
    methods[0] = (struct kvf_rpc_method){KVF_PEER_SESSION, session_called, peers};
    methods[1] = (struct kvf_rpc_method){KVF_PEER_LOOKUP, peer_lookup_called, peers};
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
            peer_send_refused(session, lease->id, &(struct kvf_refusal){.code = KVF_DRAINING});
            lease->account.code = KVF_DRAINING;
            kvf_lease_release(lease);
        }
        session->working = false;
        peer_settle(session);
    }
}

void kvf_peers_rights_changed(struct kvf_peers *peers)
{
    const struct kvf_acl *acl = peers->options.acl;
    kvf_list_for_each_safe (node, &peers->sessions) {
        struct session *session = kvf_container(node, struct session, node);
        const char *name = session->identity->name;
        bool keeps = session->state == SESSION_HELLO
                         ? kvf_acl_knows(acl, name)
                         : kvf_acl_may(acl, name, session->tenant, KVF_RIGHT_READ);
        if (session->state == SESSION_CLOSING)
            continue;
        if (!keeps)
            peer_end_by_force(session, KVF_CANCELLED, "rights",
                              "what this identity may do on this node has changed");
        else if (session->transport != NULL && !may_carry(peers, session->transport))
            peer_end_by_force(session, KVF_CANCELLED, "tenants",
                              "this node has more than one tenant now, and its NIC cannot keep "
                              "them apart");
        else if (session->state != SESSION_HELLO &&
                 largest_grant(session) < session->max_grant_bytes)
            peer_end(session, KVF_CANCELLED, "its tenant has a smaller share now: ask anew");
    }
}

void kvf_peers_force(struct kvf_peers *peers)
{
    peers->draining = true;
    kvf_list_for_each_safe (node, &peers->sessions) {
        struct session *session = kvf_container(node, struct session, node);
        if (session->state != SESSION_CLOSING)
            peer_end_by_force(session, KVF_DRAINING, "drain", "this node is going away");
    }
}

uint64_t kvf_peers_sessions(const struct kvf_peers *peers)
{
    return peers->session_count;
}

void kvf_peers_list(const struct kvf_peers *peers, struct kvf_overview_peers *give)
{
    static const char *const states[] = {
        [SESSION_HELLO] = "calling",
        [SESSION_WELCOMED] = "joining",
        [SESSION_OPEN] = "open",
        [SESSION_CLOSING] = "closing",
    };
    kvf_list_for_each (node, &peers->sessions) {
        const struct session *session = kvf_container(node, struct session, node);
        kvf_overview_add_peer(give, (struct kvf_overview_peer){
                                        .who = session->identity->name,
                                        .tenant = session->tenant,
                                        .state = states[session->state],
                                        .leases = session->lease_count,
                                    });
    }
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
    kvf_parties_init(&peers->parties, options->per_identity_limit_bytes);
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
