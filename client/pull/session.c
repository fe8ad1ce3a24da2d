/* session, in six parts: states, the end, which transport, which NIC, opening, messages. */
#include "client/pull/session.h"

#include "base/clock.h"
#include "base/log.h"
#include "client/pull/address.h"
#include "client/pull/read.h"
#include "client/pull/results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAVE_NS KVF_NS_PER_S
#define AVOID_MIN_NS (5 * KVF_NS_PER_S)
#define AVOID_MAX_NS (3600 * KVF_NS_PER_S)
#define MAX_NIC_ADDRESSES 64
#define MAX_OPEN_READS 256 /* they are searched one by one */

/* ---- states ---- */

static void set_state(struct session *session, enum session_state state)
{
    static const bool allowed[SESSION_STATE_COUNT][SESSION_STATE_COUNT] = {
        [SESSION_CALLING] = {[SESSION_JOINING] = true, [SESSION_ENDING] = true},
        [SESSION_JOINING] = {[SESSION_OPEN] = true, [SESSION_ENDING] = true},
        [SESSION_OPEN] = {[SESSION_LEAVING] = true, [SESSION_ENDING] = true},
        [SESSION_LEAVING] = {[SESSION_ENDING] = true},
    };
    kvf_assert(allowed[session->state][state]);
    session->state = state;
}

void session_send(struct session *session, const Kvferry__SessionUp *up)
{
    struct kvf_bytes bytes = wire_pack(&session->source->wire, &up->base);
    if (bytes.data == NULL)
        session_end(session, pull_fail(KVF_NO_MEMORY));
    else if (session->call != NULL)
        kvf_rpc_call_send(session->call, bytes);
}

void session_drain(struct session *session)
{
    if (session->state != SESSION_OPEN)
        return;
    kvf_list_for_each_safe (node, &session->reads)
        read_drain(kvf_container(node, struct pull_read, node));
}

/* ---- the end ---- */

static void gone(struct kvf_post *post)
{
    struct session *session = kvf_container(post, struct session, gone);
    struct kvf_source *source = session->source;
    bool was_open = session->was_open, fell_back = session->fell_back;
    struct kvf_status why = session->why;
    reads_rested(source);
    while (!kvf_list_is_empty(&session->reads))
        read_sweep(kvf_container(session->reads.next, struct pull_read, node));
    reads_release(session);
    kvf_rpc_channel_close(session->channel);
    source->session = NULL;
    if (!kvf_is_ok(why) && !session->answered && !fell_back)
        source_back_off(source, why);
    if (!kvf_is_ok(why) && !source->closing)
        kvf_log(was_open ? KVF_LOG_INFO : KVF_LOG_WARNING, "pull", "session with %s ended: %s%s%s",
                source->address, kvf_code_name(why.code), session->text[0] != '\0' ? ": " : "",
                session->text);
    free(session);
    source_session_gone(source, was_open || fell_back, why);
    source_settle(source);
}

static void part_is_closed(struct session *session)
{
    if (session->call != NULL || session->lane != NULL)
        return;
    kvf_timer_stop(session->source->options.loop, &session->timer);
    session->gone.run = gone;
    kvf_loop_post(session->source->options.loop, &session->gone);
}

void session_end(struct session *session, struct kvf_status why)
{
    if (session->state == SESSION_ENDING)
        return;
    if (session->state != SESSION_LEAVING)
        session->why = why;
    set_state(session, SESSION_ENDING);
    kvf_timer_stop(session->source->options.loop, &session->timer);
    if (session->call != NULL)
        kvf_rpc_call_cancel(session->call);
    if (session->lane != NULL)
        kvf_lane_close(session->lane);
}

void session_leave(struct session *session)
{
    if (session->state < SESSION_OPEN) {
        session_end(session, pull_fail(KVF_CANCELLED));
        return;
    }
    if (session->state != SESSION_OPEN)
        return;
    kvf_assert(session->open_reads == 0);
    reads_release(session);
    if (session->state != SESSION_OPEN)
        return;
    session->why = kvf_ok();
    set_state(session, SESSION_LEAVING);
    /* The lane goes when the source has answered: closed now, it could overtake our last Release. */
    kvf_rpc_call_half_close(session->call);
    kvf_timer_start(session->source->options.loop, &session->timer, kvf_clock_now_ns() + LEAVE_NS);
}

/* ---- which transport ---- */

static bool is_avoided(const struct kvf_source *source, size_t transport)
{
    return source->avoid[transport].until_ns > kvf_clock_now_ns();
}

/* How we call the session's transport: its place among ours. */
static size_t index_of(const struct session *session)
{
    const struct kvf_transports *ours = &session->source->options.transports;
    size_t at = 0;
    while (ours->list[at] != session->transport)
        at++;
    return at;
}

/* A better one was avoided when it opened, and may be tried again. */
static bool is_second_best(const struct session *session)
{
    if (session->state != SESSION_OPEN)
        return false;
    for (size_t i = index_of(session); i-- > 0;)
        if (session->source->avoid[i].until_ns > session->hello_ns &&
            !is_avoided(session->source, i))
            return true;
    return false;
}

static void avoid(struct kvf_source *source, size_t transport)
{
    uint64_t pause_ns = 2 * source->avoid[transport].pause_ns;
    pause_ns = pause_ns < AVOID_MIN_NS ? AVOID_MIN_NS : pause_ns;
    pause_ns = pause_ns > AVOID_MAX_NS ? AVOID_MAX_NS : pause_ns;
    source->avoid[transport].pause_ns = pause_ns;
    source->avoid[transport].until_ns = kvf_clock_now_ns() + pause_ns;
    kvf_log_warning("pull", "no lane from %s opens over %s: for %llu s another transport is used",
                    source->address, kvf_transport_name(source->options.transports.list[transport]),
                    (unsigned long long)(pause_ns / KVF_NS_PER_S));
}

/* The lane does not open though the source answers: over another transport it may, if there is one. */
static void fall_back(struct session *session)
{
    struct kvf_source *source = session->source;
    if (session->state != SESSION_JOINING)
        return;
    size_t failed = index_of(session);
    for (size_t i = 0; i < source->options.transports.count; i++)
        if (i != failed && !is_avoided(source, i))
            session->fell_back = true;
    if (session->fell_back)
        avoid(source, failed);
}

void session_pump(struct session *session)
{
    struct kvf_source *source = session->source;
    if (session->open_reads == 0 && !kvf_list_is_empty(&source->ready) && is_second_best(session)) {
        session_leave(session); /* who waits goes to the next one */
        return;
    }
    while (session->state == SESSION_OPEN && !session->draining &&
           session->open_reads < session->max_open_reads && !kvf_list_is_empty(&source->ready))
        read_ask(session, kvf_container(source->ready.next, struct kvf_pull, node));
}

static void timed_out(struct kvf_timer *timer)
{
    struct session *session = kvf_container(timer, struct session, timer);
    struct kvf_source *source = session->source;
    fall_back(session);
    session_end(session, pull_fail(KVF_UNAVAILABLE));
    source_settle(source);
}

static void call_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                        const char *text)
{
    struct session *session = user;
    struct kvf_source *source = session->source;
    (void)call;
    session->call = NULL;
    if (session->state != SESSION_ENDING)
        (void)snprintf(session->text, sizeof(session->text), "%s", text);
    /* The codes that tell a caller something; all others mean that there is nobody to talk to. */
    bool telling =
        status.code == KVF_BUSY || status.code == KVF_DRAINING || status.code == KVF_DENIED;
    if (!telling)
        fall_back(session); /* the source may know sooner than we */
    session_end(session, telling ? status : pull_fail(KVF_UNAVAILABLE));
    part_is_closed(session);
    source_settle(source);
}

static void lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    struct session *session = user;
    struct kvf_source *source = session->source;
    (void)lane;
    (void)status;
    session->lane = NULL;
    fall_back(session);
    session_end(session, pull_fail(KVF_UNAVAILABLE));
    part_is_closed(session);
    source_settle(source);
}

/* ---- which NIC ---- */

static bool has_device(const struct kvf_source *source, const struct kvf_transport *transport)
{
    return source->options.device < kvf_transport_traits(transport)->device_count;
}

static size_t device_of(const struct kvf_source *source, const struct kvf_transport *transport)
{
    return has_device(source, transport) ? source->options.device : KVF_ANY_DEVICE;
}

/* Empty: it has none. */
static const char *device_name(const struct kvf_source *source,
                               const struct kvf_transport *transport)
{
    return has_device(source, transport)
               ? kvf_transport_traits(transport)->devices[source->options.device]
               : "";
}

/* For Hello, when the transport is not known yet: one NIC is one session. */
static const char *nic_name(const struct kvf_source *source)
{
    const struct kvf_transports *ours = &source->options.transports;
    for (size_t i = 0; i < ours->count; i++)
        if (has_device(source, ours->list[i]))
            return device_name(source, ours->list[i]);
    return "";
}

/* ---- opening ---- */

static const char *why_this_one(const struct session *session)
{
    size_t at = index_of(session);
    if (at == 0)
        return "both have it";
    for (size_t i = 0; i < at; i++)
        if (session->source->avoid[i].until_ns > session->hello_ns)
            return "over a better one none opened";
    return "the source has no better one";
}

/* Worth a line where there is a choice, and only when it changes. */
static void tell_transport(struct session *session)
{
    struct kvf_source *source = session->source;
    const char *device = device_name(source, session->transport);
    if (source->options.transports.count > 1 && source->last_transport != session->transport)
        kvf_log_info("pull", "lanes from %s come over %s%s%s: %s", source->address,
                     kvf_transport_name(session->transport), device[0] != '\0' ? " by " : "",
                     device, why_this_one(session));
    source->last_transport = session->transport;
}

static void lane_opened(struct kvf_lane *lane, void *user)
{
    struct session *session = user;
    (void)lane;
    if (session->state != SESSION_JOINING)
        return;
    set_state(session, SESSION_OPEN);
    kvf_timer_stop(session->source->options.loop, &session->timer);
    session->was_open = true;
    tell_transport(session);
    session->source->avoid[index_of(session)].pause_ns = 0;
    source_is_open(session->source, session->boot_epoch);
    source_settle(session->source);
}

static const struct kvf_lane_events lane_events = {.opened = lane_opened, .closed = lane_closed};

static void set_limits(struct session *session, const Kvferry__Welcome *welcome)
{
    size_t message_bytes = welcome->max_message_bytes;
    if (message_bytes == 0 || message_bytes > KVF_RPC_MAX_MESSAGE_BYTES)
        message_bytes = KVF_RPC_MAX_MESSAGE_BYTES;
    size_t blocks = message_bytes > WIRE_READ_HEAD_BYTES + WIRE_READ_BLOCK_BYTES
                        ? (message_bytes - WIRE_READ_HEAD_BYTES) / WIRE_READ_BLOCK_BYTES
                        : 1;
    if (blocks > WIRE_MAX_BLOCKS)
        blocks = WIRE_MAX_BLOCKS;
    if (welcome->max_blocks_per_read > 0 && blocks > welcome->max_blocks_per_read)
        blocks = welcome->max_blocks_per_read;
    session->max_blocks = (uint32_t)blocks;
    session->max_grant_bytes = welcome->max_grant_bytes > 0 ? welcome->max_grant_bytes : UINT64_MAX;
    session->max_open_reads = welcome->max_open_reads > 0 ? welcome->max_open_reads : 1;
    if (session->max_open_reads > MAX_OPEN_READS)
        session->max_open_reads = MAX_OPEN_READS;
}

/* PROTOCOL: it is none. DENIED: we may not believe bytes from this source. UNSUPPORTED: another
 * version, or a transport that we did not offer. */
static struct kvf_status check_welcome(struct session *session, const Kvferry__Welcome *welcome)
{
    if (welcome->version != KVF_PEER_VERSION) {
        (void)snprintf(session->text, sizeof(session->text), KVF_PEER_VERSIONS_DIFFER,
                       KVF_PEER_VERSION, welcome->version);
        return pull_fail(KVF_UNSUPPORTED);
    }
    if (kvf_transports_find(&session->source->options.transports, welcome->transport) == NULL)
        return pull_fail(KVF_UNSUPPORTED);
    if (!source_may_serve(session->source, session->call))
        return pull_fail(KVF_DENIED);
    if (welcome->connect_nonce.len != KVF_NONCE_BYTES ||
        welcome->accept_nonce.len != KVF_NONCE_BYTES)
        return pull_fail(KVF_PROTOCOL);
    return kvf_ok();
}

/* Of the source's NICs the one that is nearest to ours; where that says nothing, its data address. */
static bool lane_address(const struct session *session, const Kvferry__Welcome *welcome,
                         char address[ADDRESS_MAX_BYTES])
{
    const struct kvf_source *source = session->source;
    const char *peer = kvf_rpc_call_peer(session->call);
    char candidate[ADDRESS_MAX_BYTES];
    unsigned best = 0;
    bool chooses = has_device(source, session->transport);
    for (size_t i = 0; chooses && i < welcome->n_nic_addresses && i < MAX_NIC_ADDRESSES; i++) {
        if (!address_of_lane(welcome->nic_addresses[i], peer, candidate))
            return false;
        unsigned near =
            kvf_transport_nearness(session->transport, source->options.device, candidate);
        if (near <= best)
            continue;
        best = near;
        memcpy(address, candidate, sizeof(candidate));
    }
    return best > 0 || address_of_lane(welcome->data_address, peer, address);
}

static struct kvf_status welcomed(struct session *session, const Kvferry__Welcome *welcome)
{
    struct kvf_source *source = session->source;
    struct kvf_lane_nonces nonces;
    char address[ADDRESS_MAX_BYTES];
    KVF_TRY(check_welcome(session, welcome));
    session->transport = kvf_transports_find(&source->options.transports, welcome->transport);
    if (!lane_address(session, welcome, address))
        return pull_fail(KVF_PROTOCOL);
    memcpy(nonces.connect.bytes, welcome->connect_nonce.data, KVF_NONCE_BYTES);
    memcpy(nonces.accept.bytes, welcome->accept_nonce.data, KVF_NONCE_BYTES);
    session->boot_epoch = welcome->boot_epoch;
    set_limits(session, welcome);
    KVF_TRY(kvf_lane_connect(session->transport, address, device_of(source, session->transport),
                             &nonces, session->timer.deadline_ns, &lane_events, session,
                             &session->lane));
    set_state(session, SESSION_JOINING);
    return kvf_ok();
}

static void send_hello(struct session *session)
{
    struct kvf_source *source = session->source;
    char *transports[KVF_TRANSPORTS_MAX];
    session->hello_ns = kvf_clock_now_ns();
    Kvferry__Hello hello = KVFERRY__HELLO__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    hello.version = KVF_PEER_VERSION;
    hello.tenant = source->tenant;
    hello.purpose =
        source->options.speculative ? KVFERRY__PURPOSE__SPECULATIVE : KVFERRY__PURPOSE__DEMAND;
    hello.node_id = (char *)(uintptr_t)source->options.node_id;
    hello.boot_epoch = source->options.boot_epoch;
    hello.instance = source->options.process_instance;
    hello.nic = (char *)(uintptr_t)nic_name(source);
    for (size_t i = 0; i < source->options.transports.count; i++)
        if (!is_avoided(source, i))
            transports[hello.n_transports++] =
                (char *)(uintptr_t)kvf_transport_name(source->options.transports.list[i]);
    hello.transports = transports;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_HELLO;
    up.hello = &hello;
    session_send(session, &up);
}

static void call_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes);

static const struct kvf_rpc_events call_events = {.message = call_message, .closed = call_closed};

struct kvf_status session_start(struct kvf_source *source)
{
    struct session *session = calloc(1, sizeof(*session));
    if (session == NULL)
        return pull_fail(KVF_NO_MEMORY);
    session->source = source;
    session->number = ++source->session_count;
    session->timer.fire = timed_out;
    kvf_list_init(&session->reads);
    kvf_list_init(&session->finished_reads);
    /* A channel of its own: nothing of the last session's connection, not even its back-off, is
     * left. */
    struct kvf_status status = kvf_rpc_channel_open(source->options.rpc, source->address,
                                                    source->options.tls, &session->channel, NULL);
    if (!kvf_is_ok(status))
        goto free_session;
    status = kvf_rpc_call_start(session->channel, KVF_PEER_SESSION, 0, &call_events, session,
                                &session->call);
    if (!kvf_is_ok(status))
        goto close_channel;
    source->session = session;
    kvf_timer_start(source->options.loop, &session->timer,
                    kvf_clock_now_ns() + KVF_PEER_HANDSHAKE_NS);
    send_hello(session);
    return kvf_ok();

close_channel:
    kvf_rpc_channel_close(session->channel);
free_session:
    free(session);
    return pull_fail(KVF_UNAVAILABLE);
}

/* ---- messages ---- */

static bool is_remembered(struct session *session, uint64_t id)
{
    for (unsigned i = 0; i < SESSION_REMEMBERED_IDS; i++) {
        if (session->unanswered[i] != id)
            continue;
        session->unanswered[i] = 0;
        return true;
    }
    return false;
}

/* The open Read with this id. NULL with *legal: it is over, the message has crossed with our
 * Release. */
static struct pull_read *find(struct session *session, uint64_t id, bool *legal)
{
    *legal = id >= 1 && id <= session->last_id;
    kvf_list_for_each (node, &session->reads) {
        struct pull_read *read = kvf_container(node, struct pull_read, node);
        if (read->lane.id == id)
            return read;
    }
    return NULL;
}

static bool answer(struct session *session, const Kvferry__SessionDown *down)
{
    bool legal;
    session->answered = true;
    source_answered(session->source);
    if (down->message_case == KVFERRY__SESSION_DOWN__MESSAGE_REFUSED) {
        struct pull_read *read = find(session, down->refused->id, &legal);
        return read != NULL ? read_refused(read, down->refused) : legal;
    }
    struct pull_read *read = find(session, down->grants->id, &legal);
    if (read != NULL)
        return read_granted(read, down->grants);
    if (legal && is_remembered(session, down->grants->id))
        session->source->options.stats->reads++;
    return legal;
}

static bool open_message(struct session *session, const Kvferry__SessionDown *down)
{
    bool legal = true;
    struct pull_read *read = NULL;
    switch (down->message_case) {
    case KVFERRY__SESSION_DOWN__MESSAGE_GRANTS:
    case KVFERRY__SESSION_DOWN__MESSAGE_REFUSED:
        return answer(session, down);
    case KVFERRY__SESSION_DOWN__MESSAGE_TOKENS:
        read = find(session, down->tokens->id, &legal);
        return read != NULL ? read_tokens(read, down->tokens) : legal;
    case KVFERRY__SESSION_DOWN__MESSAGE_FAULT:
        read = find(session, down->fault->id, &legal);
        return read != NULL ? read_fault(read, down->fault) : legal;
    case KVFERRY__SESSION_DOWN__MESSAGE_COMMITTED:
        read = find(session, down->committed->id, &legal);
        return read != NULL ? read_committed(read, down->committed) : legal;
    case KVFERRY__SESSION_DOWN__MESSAGE_DRAIN_NOTICE:
        source_drains(session->source);
        return true;
    case KVFERRY__SESSION_DOWN__MESSAGE_WELCOME:
    case KVFERRY__SESSION_DOWN__MESSAGE__NOT_SET:
    case _KVFERRY__SESSION_DOWN__MESSAGE__CASE_IS_INT_SIZE:
        return false;
    }
    return false;
}

static struct kvf_status take_message(struct session *session, const Kvferry__SessionDown *down)
{
    if (down == NULL)
        return pull_fail(KVF_PROTOCOL);
    if (session->state == SESSION_CALLING) {
        if (down->message_case == KVFERRY__SESSION_DOWN__MESSAGE_WELCOME)
            return welcomed(session, down->welcome);
        if (down->message_case == KVFERRY__SESSION_DOWN__MESSAGE_DRAIN_NOTICE)
            return pull_fail(KVF_DRAINING);
        return pull_fail(KVF_PROTOCOL);
    }
    return open_message(session, down) ? kvf_ok() : pull_fail(KVF_PROTOCOL);
}

static void call_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct session *session = user;
    struct kvf_source *source = session->source;
    (void)call;
    if (session->state >= SESSION_LEAVING)
        return;
    reads_rested(source);
    struct kvf_status status = take_message(session, wire_unpack_down(&source->wire, bytes));
    if (!kvf_is_ok(status))
        session_end(session, status);
    source_settle(source);
}
