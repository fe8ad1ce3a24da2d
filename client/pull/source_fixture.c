#include "client/pull/source_fixture.h"

#include "base/crc32c.h"
#include "proto/peer.h"
#include "proto/peer.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture fx;

struct fx_session {
    struct kvf_list node;
    struct kvf_rpc_call *call; /* NULL: closed */
    struct kvf_lane *lane;     /* NULL: closed */
};

struct fx_read {
    struct kvf_list node;
    struct kvf_lane_read lane;
    struct kvf_lane_block lane_blocks[FIXTURE_BLOCKS];
    uint32_t blocks[FIXTURE_BLOCKS]; /* index of the source's block */
    struct fx_session *session;      /* NULL: gone */
    uint32_t lane_open;
    bool answered, released;
};

void run_for_ms(uint64_t ms)
{
    uint64_t until = kvf_clock_now_ns() + ms * KVF_NS_PER_MS;
    while (kvf_clock_now_ns() < until)
        kvf_loop_run_once(fx.loop, 1);
}

/* ---- messages of the source ---- */

static void send_bytes(struct fx_session *session, const void *data, size_t length)
{
    if (session->call != NULL)
        kvf_rpc_call_send(session->call, (struct kvf_bytes){.data = data, .length = length});
}

static void send_down(struct fx_session *session, const Kvferry__SessionDown *down)
{
    static uint8_t bytes[1 << 16];
    assert_true(kvferry__session_down__get_packed_size(down) <= sizeof(bytes));
    send_bytes(session, bytes, kvferry__session_down__pack(down, bytes));
}

static void send_grants(struct fx_session *session, const struct fx_read *read, uint64_t id,
                        uint32_t count, bool generations)
{
    Kvferry__GrantBlock blocks[FIXTURE_BLOCKS], *pointers[FIXTURE_BLOCKS];
    Kvferry__Generation generation[FIXTURE_BLOCKS];
    for (uint32_t i = 0; i < count; i++) {
        const struct fixture_block *block = &fx.blocks[read->blocks[i]];
        kvferry__grant_block__init(&blocks[i]);
        kvferry__generation__init(&generation[i]);
        pointers[i] = &blocks[i];
        blocks[i].code = block->code;
        if (block->code != KVF_OK)
            continue;
        generation[i].epoch = block->generation.epoch;
        generation[i].counter = block->generation.counter;
        blocks[i].generation = generations ? &generation[i] : NULL;
        blocks[i].length = block->granted_length > 0 ? block->granted_length : block->length;
        blocks[i].crc32c = block->crc32c ^ (block->corrupt ? 1 : 0);
        blocks[i].tier = block->tier;
    }
    Kvferry__Grants grants = KVFERRY__GRANTS__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    grants.id = id;
    grants.n_blocks = count;
    grants.blocks = pointers;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_GRANTS;
    down.grants = &grants;
    send_down(session, &down);
}

static void send_fault(struct fx_session *session, uint64_t id, uint32_t block, uint32_t code)
{
    Kvferry__Fault fault = KVFERRY__FAULT__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    fault.id = id;
    fault.block = block;
    fault.code = code;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_FAULT;
    down.fault = &fault;
    send_down(session, &down);
}

static void send_committed(struct fx_session *session, uint64_t id, uint32_t block, uint64_t length)
{
    Kvferry__Committed committed = KVFERRY__COMMITTED__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    committed.id = id;
    committed.block = block;
    committed.length = length;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_COMMITTED;
    down.committed = &committed;
    send_down(session, &down);
}

static void send_refused(struct fx_session *session, uint64_t id, uint32_t code)
{
    Kvferry__Refused refused = KVFERRY__REFUSED__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    refused.id = id;
    refused.code = code;
    refused.waited_us = 2000000;
    refused.short_bytes = 4096;
    refused.short_of = KVF_SHORT_OF_IDENTITY;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_REFUSED;
    down.refused = &refused;
    send_down(session, &down);
}

static void send_tokens(struct fx_session *session, uint64_t id)
{
    Kvferry__Token token = KVFERRY__TOKEN__INIT, *pointer = &token;
    Kvferry__Tokens tokens = KVFERRY__TOKENS__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    token.token.data = (uint8_t[]){1, 2, 3};
    token.token.len = 3;
    tokens.id = id;
    tokens.n_tokens = 1;
    tokens.tokens = &pointer;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_TOKENS;
    down.tokens = &tokens;
    send_down(session, &down);
}

static void send_drain_notice(struct fx_session *session)
{
    Kvferry__DrainNotice notice = KVFERRY__DRAIN_NOTICE__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_DRAIN_NOTICE;
    down.drain_notice = &notice;
    send_down(session, &down);
}

static void send_welcome(struct fx_session *session, const struct kvf_lane_nonces *given)
{
    char address[64];
    struct kvf_lane_nonces nonces = *given;
    Kvferry__Welcome welcome = KVFERRY__WELCOME__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    bool nobody = fx.welcome == WELCOME_NO_LANE, name = fx.welcome == WELCOME_NAME;
    (void)snprintf(address, sizeof(address), "%s:%d", name ? "localhost" : "",
                   nobody ? 1 : kvf_transport_port(fx.source_transport));
    if (fx.welcome == WELCOME_WRONG_NONCE)
        nonces.accept.bytes[3] ^= 1;
    welcome.version = fx.welcome == WELCOME_VERSION ? 2 : 1;
    welcome.node_id = (char *)(uintptr_t) "source";
    welcome.boot_epoch = fx.boot_epoch;
    welcome.transport = (char *)(uintptr_t)(fx.welcome == WELCOME_TRANSPORT ? "pigeon" : "tcp");
    welcome.data_address = address;
    welcome.connect_nonce.data = nonces.connect.bytes;
    welcome.connect_nonce.len = fx.welcome == WELCOME_SHORT_NONCE ? 31 : KVF_NONCE_BYTES;
    welcome.accept_nonce.data = nonces.accept.bytes;
    welcome.accept_nonce.len = KVF_NONCE_BYTES;
    welcome.max_grant_bytes = fx.max_grant_bytes;
    welcome.max_blocks_per_read = fx.max_blocks;
    welcome.max_open_reads = fx.max_open_reads;
    welcome.max_message_bytes = fx.max_message_bytes;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_WELCOME;
    down.welcome = &welcome;
    send_down(session, &down);
}

/* ---- Reads at the source ---- */

static void free_if_over(struct fx_read *read)
{
    if (read->lane_open > 0 || (!read->released && read->session != NULL))
        return;
    kvf_list_remove(&read->node);
    fx.open_reads--;
    free(read);
}

static void source_block_ended(struct kvf_lane_read *lane_read, uint32_t block)
{
    struct fx_read *read = kvf_container(lane_read, struct fx_read, lane);
    (void)block;
    read->lane_open--;
    free_if_over(read);
}

static void offer(struct fx_read *read)
{
    if (read->session->lane == NULL)
        return;
    for (uint32_t i = 0; i < read->lane.block_count; i++) {
        const struct fixture_block *block = &fx.blocks[read->blocks[i]];
        if (block->code != KVF_OK)
            continue;
        read->lane_blocks[i].extent =
            (struct kvf_extent){.arena = &fx.source_arena,
                                .offset = block->offset,
                                .bytes = kvf_round_up_page(block->length)};
        read->lane_blocks[i].length = block->length;
        read->lane_blocks[i].landed_bytes = block->stall_at > 0 ? block->stall_at : block->length;
        read->lane_open++;
    }
    if (read->lane_open > 0)
        kvf_lane_offer(read->session->lane, &read->lane);
}

static void grant(struct fx_read *read)
{
    send_grants(read->session, read, read->lane.id, read->lane.block_count, true);
    read->answered = true;
    for (uint32_t i = 0; i < read->lane.block_count; i++)
        if (fx.blocks[read->blocks[i]].fault != 0)
            send_fault(read->session, read->lane.id, i, fx.blocks[read->blocks[i]].fault);
}

void fixture_grant(void)
{
    kvf_list_for_each_safe (node, &fx.reads) {
        struct fx_read *read = kvf_container(node, struct fx_read, node);
        if (!read->answered && !read->released && read->session != NULL)
            grant(read);
    }
}

void fixture_commit(uint32_t block)
{
    fx.blocks[block].code = KVF_OK;
    kvf_list_for_each_safe (node, &fx.reads) {
        struct fx_read *read = kvf_container(node, struct fx_read, node);
        if (read->session == NULL || read->released)
            continue;
        for (uint32_t i = 0; i < read->lane.block_count; i++)
            if (read->blocks[i] == block)
                send_committed(read->session, read->lane.id, i, fx.blocks[block].length);
    }
}

void fixture_land(uint32_t block)
{
    fx.blocks[block].stall_at = 0;
    fixture_land_to(block, fx.blocks[block].length);
}

void fixture_land_to(uint32_t block, uint64_t bytes)
{
    kvf_list_for_each_safe (node, &fx.reads) {
        struct fx_read *read = kvf_container(node, struct fx_read, node);
        for (uint32_t i = 0; i < read->lane.block_count; i++)
            if (read->blocks[i] == block && read->lane_blocks[i].length > 0 &&
                read->session != NULL)
                kvf_lane_landed(&read->lane, i, bytes);
    }
}

static bool is_scripted(void)
{
    unsigned n = fx.log.reads - 1;
    return n >= fx.answer_after && (fx.answer_times == 0 || n < fx.answer_after + fx.answer_times);
}

static void answer_read(struct fx_read *read)
{
    static const uint8_t garbage[] = {0x12, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x01};
    struct fx_session *session = read->session;
    uint64_t id = read->lane.id;
    uint32_t count = read->lane.block_count;
    switch (is_scripted() ? fx.answer : ANSWER_GRANT) {
    case ANSWER_GRANT:
        grant(read);
        offer(read);
        break;
    case ANSWER_GRANT_LATER:
        offer(read);
        break;
    case ANSWER_REFUSE:
        send_refused(session, id, fx.refuse_code);
        read->answered = read->released = true;
        break;
    case ANSWER_SILENT:
        break;
    case ANSWER_GRANT_TWICE:
        fx.blocks[read->blocks[0]].stall_at = 1;
        grant(read);
        offer(read);
        grant(read);
        break;
    case ANSWER_WRONG_COUNT:
        send_grants(session, read, id, count - 1, true);
        break;
    case ANSWER_FUTURE_ID:
        send_grants(session, read, id + 1, count, true);
        break;
    case ANSWER_ID_ZERO:
        send_grants(session, read, 0, count, true);
        break;
    case ANSWER_GARBAGE:
        send_bytes(session, garbage, sizeof(garbage));
        break;
    case ANSWER_EMPTY:
        send_bytes(session, garbage, 0);
        break;
    case ANSWER_WELCOME_AGAIN:
        send_welcome(session, &(struct kvf_lane_nonces){0});
        break;
    case ANSWER_NO_GENERATION:
        send_grants(session, read, id, count, false);
        break;
    case ANSWER_FAULT_FIRST:
        send_fault(session, id, 0, KVF_IO);
        break;
    case ANSWER_FAULT_INDEX:
        fx.blocks[read->blocks[0]].stall_at = 1;
        grant(read);
        offer(read);
        send_fault(session, id, count, KVF_IO);
        break;
    case ANSWER_FAULT_OK:
        fx.blocks[read->blocks[0]].stall_at = 1;
        grant(read);
        offer(read);
        send_fault(session, id, 0, KVF_OK);
        break;
    case ANSWER_COMMITTED_INDEX:
        fx.blocks[read->blocks[0]].stall_at = 1;
        grant(read);
        offer(read);
        send_committed(session, id, UINT32_MAX, 1);
        break;
    case ANSWER_REFUSE_OK:
        send_refused(session, id, KVF_OK);
        break;
    case ANSWER_REFUSE_THEN_GRANT:
        send_refused(session, id, KVF_BUSY);
        send_grants(session, read, id, count, true);
        read->answered = read->released = true;
        break;
    case ANSWER_TOKENS:
        fx.blocks[read->blocks[0]].stall_at = 1;
        grant(read);
        offer(read);
        send_tokens(session, id);
        break;
    case ANSWER_DROP_CALL:
        offer(read);
        kvf_rpc_call_cancel(session->call);
        break;
    case ANSWER_CLOSE_LANE:
        grant(read);
        offer(read);
        kvf_lane_close(session->lane);
        break;
    }
    free_if_over(read);
}

static void note_read(const Kvferry__Read *message)
{
    unsigned n = fx.log.reads++;
    assert_true(n < LOG_MAX);
    fx.log.read_id[n] = message->id;
    fx.log.read_blocks[n] = (uint32_t)message->n_blocks;
    fx.log.read_deadline_us[n] = message->deadline_us;
    fx.log.read_instance[n] = message->instance;
    fx.log.read_stops[n] = message->stop_at_first_miss;
    fx.log.read_first_key[n] = message->blocks[0]->key.data[0];
    for (size_t i = 0; i < message->n_blocks; i++)
        fx.log.read_bytes[n] += message->blocks[i]->length;
}

/* As a source counts them: those not released. */
static void note_peak(void)
{
    unsigned open = 0;
    kvf_list_for_each (node, &fx.reads)
        open += !kvf_container(node, struct fx_read, node)->released;
    if (open > fx.log.open_reads_peak)
        fx.log.open_reads_peak = open;
}

static void take_read(struct fx_session *session, const Kvferry__Read *message)
{
    assert_true(message->n_blocks > 0 && message->n_blocks <= FIXTURE_BLOCKS);
    assert_string_equal(message->namespace_, SPACE);
    note_read(message);
    struct fx_read *read = calloc(1, sizeof(*read));
    assert_non_null(read);
    read->session = session;
    read->lane = (struct kvf_lane_read){.id = message->id,
                                        .instance = message->instance,
                                        .blocks = read->lane_blocks,
                                        .block_count = (uint32_t)message->n_blocks,
                                        .ended = source_block_ended};
    for (size_t i = 0; i < message->n_blocks; i++) {
        assert_int_equal(message->blocks[i]->key.len, 2);
        read->blocks[i] = message->blocks[i]->key.data[0];
        assert_true(read->blocks[i] < fx.block_count);
    }
    kvf_list_push_back(&fx.reads, &read->node);
    fx.open_reads++;
    note_peak();
    answer_read(read);
}

static struct fx_read *find_read(const struct fx_session *session, uint64_t id)
{
    kvf_list_for_each (node, &fx.reads) {
        struct fx_read *read = kvf_container(node, struct fx_read, node);
        if (read->session == session && read->lane.id == id && !read->released)
            return read;
    }
    return NULL;
}

static void take_release(struct fx_session *session, const Kvferry__Release *release)
{
    unsigned n = fx.log.releases++;
    fx.log.release_id[n] = release->id;
    fx.log.release_bad_count[n] = release->n_bad_blocks;
    fx.log.release_bad[n] = release->n_bad_blocks > 0 ? release->bad_blocks[0] : UINT32_MAX;
    struct fx_read *read = find_read(session, release->id);
    assert_non_null(read); /* once, and only of a Read that is open */
    read->released = true;
    if (read->lane_open > 0)
        kvf_lane_withdraw(&read->lane, KVF_LANE_ALL_BLOCKS);
    free_if_over(read);
}

static void take_cancel(struct fx_session *session, const Kvferry__Cancel *cancel)
{
    fx.log.cancel_id[fx.log.cancels++] = cancel->id;
    struct fx_read *read = find_read(session, cancel->id);
    if (read != NULL && read->lane_open > 0)
        kvf_lane_withdraw(&read->lane, KVF_LANE_ALL_BLOCKS);
}

/* ---- sessions at the source ---- */

static void session_over(struct fx_session *session)
{
    if (session->call != NULL || session->lane != NULL)
        return;
    kvf_list_for_each_safe (node, &fx.reads) {
        struct fx_read *read = kvf_container(node, struct fx_read, node);
        if (read->session != session)
            continue;
        read->session = NULL;
        free_if_over(read);
    }
    kvf_list_remove(&session->node);
    free(session);
}

static void source_lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    struct fx_session *session = user;
    (void)lane, (void)status;
    session->lane = NULL;
    fx.open_lanes--;
    if (session->call != NULL)
        kvf_rpc_call_cancel(session->call);
    session_over(session);
}

static const struct kvf_lane_events source_lane_events = {.closed = source_lane_closed};

static void source_lane_opened(struct kvf_lane *lane, void *user)
{
    (void)lane, (void)user;
}

static void invite(struct fx_session *session)
{
    static struct kvf_lane_events events;
    struct kvf_lane_nonces nonces;
    events = source_lane_events;
    events.opened = source_lane_opened;
    assert_true(
        kvf_is_ok(kvf_lane_invite(fx.source_transport, kvf_clock_now_ns() + 10 * KVF_NS_PER_S,
                                  &events, session, &nonces, &session->lane)));
    fx.open_lanes++;
    send_welcome(session, &nonces);
}

static void take_hello(struct fx_session *session, const Kvferry__Hello *hello)
{
    static const uint8_t garbage[] = {0xff, 0xff};
    fx.log.hellos++;
    assert_int_equal(hello->version, 1);
    assert_int_equal(hello->n_transports, 1);
    assert_string_equal(hello->transports[0], "tcp");
    (void)snprintf(fx.log.tenant, sizeof(fx.log.tenant), "%s", hello->tenant);
    fx.log.instance = hello->instance;
    fx.log.purpose = (int)hello->purpose;
    if (fx.welcome == WELCOME_SILENT)
        return;
    if (fx.welcome == WELCOME_GARBAGE)
        send_bytes(session, garbage, sizeof(garbage));
    else if (fx.welcome == WELCOME_DRAIN_NOTICE)
        send_drain_notice(session);
    else if (fx.welcome == WELCOME_GRANTS)
        send_grants(session, NULL, 1, 0, true);
    else if (fx.welcome == WELCOME_BUSY)
        kvf_rpc_call_finish(session->call, kvf_fail(KVF_MODULE_SERVER, KVF_BUSY, 0), "full");
    else
        invite(session);
}

static void session_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct fx_session *session = user;
    (void)call;
    Kvferry__SessionUp *up = kvferry__session_up__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(up);
    if (up->message_case == KVFERRY__SESSION_UP__MESSAGE_HELLO)
        take_hello(session, up->hello);
    else if (up->message_case == KVFERRY__SESSION_UP__MESSAGE_READ)
        take_read(session, up->read);
    else if (up->message_case == KVFERRY__SESSION_UP__MESSAGE_RELEASE)
        take_release(session, up->release);
    else if (up->message_case == KVFERRY__SESSION_UP__MESSAGE_CANCEL)
        take_cancel(session, up->cancel);
    else if (up->message_case == KVFERRY__SESSION_UP__MESSAGE_RAISE)
        fx.log.raise_id[fx.log.raises++] = up->raise->id;
    kvferry__session_up__free_unpacked(up, NULL);
}

static void session_half_closed(struct kvf_rpc_call *call, void *user)
{
    (void)user;
    fx.log.half_closes++;
    kvf_rpc_call_finish(call, kvf_ok(), "");
}

static void session_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                           const char *text)
{
    struct fx_session *session = user;
    (void)call, (void)status, (void)text;
    session->call = NULL;
    fx.open_sessions--;
    fx.log.calls_closed++;
    if (session->lane != NULL)
        kvf_lane_close(session->lane);
    session_over(session);
}

static const struct kvf_rpc_events session_events = {
    .message = session_message, .half_closed = session_half_closed, .closed = session_closed};

static void session_called(struct kvf_rpc_call *call, void *context)
{
    struct fx_session *session = calloc(1, sizeof(*session));
    (void)context;
    assert_non_null(session);
    session->call = call;
    kvf_list_push_back(&fx.sessions, &session->node);
    fx.open_sessions++;
    kvf_rpc_call_accept(call, &session_events, session);
}

void fixture_drain_notice(void)
{
    kvf_list_for_each (node, &fx.sessions)
        send_drain_notice(kvf_container(node, struct fx_session, node));
}

void fixture_drop_calls(void)
{
    kvf_list_for_each (node, &fx.sessions)
        kvf_rpc_call_cancel(kvf_container(node, struct fx_session, node)->call);
}

void fixture_close_lanes(void)
{
    kvf_list_for_each (node, &fx.sessions)
        kvf_lane_close(kvf_container(node, struct fx_session, node)->lane);
}

/* ---- look-ups at the source ---- */

static void answer_lookup(struct kvf_rpc_call *call, const Kvferry__LookupRequest *request)
{
    static Kvferry__LookupBlock blocks[8192], *pointers[8192];
    static Kvferry__Generation generations[8192];
    static uint8_t bytes[1 << 20];
    Kvferry__LookupReply reply = KVFERRY__LOOKUP_REPLY__INIT;
    assert_true(request->n_keys <= 8192);
    for (size_t i = 0; i < request->n_keys; i++) {
        const struct fixture_block *block = &fx.blocks[request->keys[i].data[0]];
        kvferry__lookup_block__init(&blocks[i]);
        kvferry__generation__init(&generations[i]);
        pointers[i] = &blocks[i];
        bool known = request->keys[i].data[0] < fx.block_count;
        blocks[i].code = known ? block->code : KVF_NOT_FOUND;
        if (blocks[i].code != KVF_OK)
            continue;
        generations[i].epoch = block->generation.epoch;
        generations[i].counter = block->generation.counter;
        blocks[i].generation = &generations[i];
        blocks[i].length = block->granted_length > 0 ? block->granted_length : block->length;
        blocks[i].tier = block->tier;
    }
    reply.n_blocks = request->n_keys - (fx.lookup_short ? 1 : 0);
    reply.blocks = pointers;
    reply.boot_epoch = fx.boot_epoch;
    reply.draining = fx.lookup_draining;
    size_t length = kvferry__lookup_reply__pack(&reply, bytes);
    if (fx.lookup_garbage)
        memset(bytes, 0xff, length);
    kvf_rpc_call_send(call, (struct kvf_bytes){.data = bytes, .length = length});
    kvf_rpc_call_finish(call, kvf_ok(), "");
}

static void lookup_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)user;
    fx.log.lookups++;
    if (fx.lookup_silent)
        return;
    Kvferry__LookupRequest *request =
        kvferry__lookup_request__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(request);
    assert_string_equal(request->namespace_, SPACE);
    answer_lookup(call, request);
    kvferry__lookup_request__free_unpacked(request, NULL);
}

static const struct kvf_rpc_events lookup_events = {.message = lookup_message};

static void lookup_called(struct kvf_rpc_call *call, void *context)
{
    (void)context;
    kvf_rpc_call_accept(call, &lookup_events, NULL);
}

/* ---- life of the source ---- */

static const struct kvf_rpc_method methods[] = {
    {.path = KVF_PEER_SESSION, .called = session_called},
    {.path = KVF_PEER_LOOKUP, .called = lookup_called},
};

static void note(void *flag)
{
    *(bool *)flag = true;
}

void fixture_start_server(void)
{
    struct kvf_why why = {0};
    char address[64];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", fx.port);
    struct kvf_status status =
        kvf_rpc_server_start(fx.rpc, address, NULL, methods, 2, &fx.server, &why);
    if (!kvf_is_ok(status))
        fail_msg("%s", why.text);
    fx.port = kvf_rpc_server_port(fx.server);
    (void)snprintf(fx.address, sizeof(fx.address), "127.0.0.1:%d", fx.port);
}

void fixture_stop_server(void)
{
    bool stopped = false;
    if (fx.server == NULL)
        return;
    kvf_rpc_server_stop(fx.server, 0, note, &stopped);
    run_until(stopped);
    fx.server = NULL;
}

void fixture_add_blocks(uint32_t count, uint64_t length)
{
    uint64_t used = 0;
    if (fx.block_count > 0) {
        const struct fixture_block *last = &fx.blocks[fx.block_count - 1];
        used = last->offset + kvf_round_up_page(last->length);
    }
    for (uint32_t n = 0; n < count; n++) {
        uint32_t i = fx.block_count++;
        struct fixture_block *block = &fx.blocks[i];
        assert_true(i < FIXTURE_BLOCKS && used + length <= FIXTURE_ARENA_BYTES);
        *block = (struct fixture_block){.length = length,
                                        .offset = used,
                                        .generation = {7, i + 1},
                                        .tier = i % 2 == 0 ? KVF_TIER_SSD : KVF_TIER_DRAM};
        assert_true(kvf_key_set(&block->key, (uint8_t[]){(uint8_t)i, 'k'}, 2));
        uint8_t *at = fx.source_arena.base + used;
        for (uint64_t b = 0; b < length; b++)
            at[b] = (uint8_t)(b * 31 + b / 4096 + i * 7 + 1);
        block->crc32c = kvf_crc32c(0, at, length);
        used += kvf_round_up_page(length);
    }
}

static void open_transport(const struct kvf_arena *arena, struct kvf_transport **give)
{
    const struct kvf_arena *arenas[] = {arena};
    struct kvf_transport_options options = {
        .loop = fx.loop, .lane_threads = 1, .arenas = arenas, .arena_count = 1};
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, give, NULL)));
}

int fixture_set_up(void **state)
{
    (void)state;
    memset(&fx, 0, sizeof(fx));
    kvf_list_init(&fx.sessions);
    kvf_list_init(&fx.reads);
    fx.boot_epoch = 7;
    fx.max_blocks = 4096;
    fx.max_open_reads = 16;
    fx.max_grant_bytes = 1024 * KVF_MIB;
    assert_true(kvf_is_ok(kvf_loop_create(&fx.loop)));
    assert_true(kvf_is_ok(kvf_rpc_create(fx.loop, &fx.rpc)));
    assert_true(kvf_is_ok(kvf_arena_create(FIXTURE_ARENA_BYTES, 0, false, &fx.source_arena, NULL)));
    assert_true(kvf_is_ok(kvf_arena_create(FIXTURE_ARENA_BYTES, 0, false, &fx.arena, NULL)));
    open_transport(&fx.source_arena, &fx.source_transport);
    open_transport(&fx.arena, &fx.transport);
    assert_true(kvf_is_ok(kvf_transport_listen(fx.source_transport, "127.0.0.1:0", NULL)));
    fixture_start_server();
    fixture_create_source(false);
    return 0;
}

int fixture_tear_down(void **state)
{
    (void)state;
    if (fx.source != NULL)
        fixture_close_source();
    assert_int_equal(fx.stats.quarantine_bytes, 0);
    fixture_stop_server();
    run_until(fx.open_lanes == 0);
    assert_int_equal(fx.open_sessions, 0);
    assert_int_equal(fx.open_reads, 0);
    kvf_transport_close(fx.source_transport);
    kvf_transport_close(fx.transport);
    kvf_rpc_destroy(fx.rpc);
    kvf_loop_destroy(fx.loop);
    kvf_arena_close(&fx.source_arena);
    kvf_arena_close(&fx.arena);
    return 0;
}

/* ---- the consumer ---- */

static void draining(void *context, struct kvf_source *source)
{
    (void)context;
    assert_ptr_equal(source, fx.source);
    fx.draining_calls++;
}

static void refused(void *context, struct kvf_source *source,
                    const struct kvf_pull_refusal *refusal)
{
    (void)context;
    assert_ptr_equal(source, fx.source);
    fx.refusals++;
    kvf_pull_refusal_text(refusal, fx.refusal_text, sizeof(fx.refusal_text));
}

static bool may_serve(void *context, const char *tenant, const char *identity)
{
    (void)context;
    assert_string_equal(tenant, "t");
    assert_string_equal(identity, "");
    return !fx.deny;
}

void fixture_create_source(bool speculative)
{
    struct kvf_source_options options = {
        .loop = fx.loop,
        .rpc = fx.rpc,
        .transports = kvf_transports_only(fx.transport),
        .address = fx.address,
        .tenant = TENANT,
        .node_id = "consumer",
        .boot_epoch = 3,
        .process_instance = 99,
        .speculative = speculative,
        .stats = &fx.stats,
        .may_serve = may_serve,
        .draining = draining,
        .refused = refused,
    };
    assert_true(kvf_is_ok(kvf_source_create(&options, &fx.source)));
}

void fixture_close_source(void)
{
    fx.source_closed = false;
    kvf_source_close(fx.source, note, &fx.source_closed);
    run_until(fx.source_closed);
    fx.source = NULL;
}

static void block_ended(struct kvf_pull *pull, uint32_t i)
{
    struct wanted *wanted = kvf_container(pull, struct wanted, pull);
    assert_int_equal(wanted->ended, 0);
    assert_int_equal(wanted->block_calls[i]++, 0);
    assert_true(wanted->blocks[i].state >= KVF_PULL_ENDED);
    wanted->told_state[i] = wanted->blocks[i].state;
    wanted->blocks_ended++;
    if (wanted->on_block != NULL)
        wanted->on_block(wanted, i);
}

static void pull_ended(struct kvf_pull *pull)
{
    struct wanted *wanted = kvf_container(pull, struct wanted, pull);
    assert_int_equal(wanted->ended++, 0);
    assert_int_equal(wanted->blocks_ended, pull->block_count);
    wanted->ended_ns = kvf_clock_now_ns();
    if (wanted->on_ended != NULL)
        wanted->on_ended(wanted);
}

static void block_freed(struct kvf_pull *pull, uint32_t i)
{
    struct wanted *wanted = kvf_container(pull, struct wanted, pull);
    assert_int_equal(wanted->block_calls[i]++, 1);
    assert_int_equal(wanted->told_state[i], KVF_PULL_QUARANTINED);
    assert_int_equal(wanted->blocks[i].state, KVF_PULL_ENDED);
    wanted->freed++;
}

void want(struct wanted *wanted, uint32_t first, uint32_t count, uint64_t ms)
{
    memset(wanted, 0, sizeof(*wanted));
    wanted->pull = (struct kvf_pull){
        .namespace = SPACE,
        .instance = 5,
        .deadline_ns = kvf_clock_now_ns() + ms * KVF_NS_PER_MS,
        .batches_in_flight = 2,
        .blocks = wanted->blocks,
        .block_count = count,
        .block_ended = block_ended,
        .ended = pull_ended,
        .freed = block_freed,
    };
    for (uint32_t i = 0; i < count; i++) {
        struct kvf_pull_block *block = &wanted->blocks[i];
        block->key = fx.blocks[first + i].key;
        block->length = fx.blocks[first + i].length;
        block->extent = (struct kvf_extent){
            .arena = &fx.arena, .offset = fx.arena_used, .bytes = kvf_round_up_page(block->length)};
        fx.arena_used += block->extent.bytes;
        assert_true(fx.arena_used <= FIXTURE_ARENA_BYTES);
        memset(kvf_extent_at(block->extent), 0xee, block->extent.bytes);
    }
}

void want_and_wait(struct wanted *wanted, uint32_t first, uint32_t count)
{
    want(wanted, first, count, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted->pull);
    assert_int_equal(wanted->blocks_ended, 0);
    run_until(wanted->ended == 1);
}

void assert_here(const struct wanted *wanted, uint32_t i)
{
    const struct kvf_pull_block *block = &wanted->blocks[i];
    const struct fixture_block *there = &fx.blocks[block->key.bytes[0]];
    assert_string_equal(kvf_code_name(block->status.code), "OK");
    assert_int_equal(block->state, KVF_PULL_ENDED);
    assert_true(kvf_generation_equal(block->generation, there->generation));
    assert_int_equal(block->crc32c, there->crc32c);
    assert_int_equal(block->tier, there->tier);
    const uint8_t *at = kvf_extent_at(block->extent);
    assert_memory_equal(at, fx.source_arena.base + there->offset, block->length);
    for (uint64_t b = block->length; b < block->extent.bytes; b++)
        assert_int_equal(at[b], 0);
}

void assert_missed(const struct wanted *wanted, uint32_t i, enum kvf_code code)
{
    assert_int_equal(wanted->block_calls[i] > 0, 1);
    assert_string_equal(kvf_code_name(wanted->blocks[i].status.code), kvf_code_name(code));
    assert_true(kvf_generation_is_none(wanted->blocks[i].generation));
}

void assert_all_here(const struct wanted *wanted)
{
    for (uint32_t i = 0; i < wanted->pull.block_count; i++)
        assert_here(wanted, i);
}

void assert_all_missed(const struct wanted *wanted, enum kvf_code code)
{
    for (uint32_t i = 0; i < wanted->pull.block_count; i++)
        assert_missed(wanted, i, code);
}
