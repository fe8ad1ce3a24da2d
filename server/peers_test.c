#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "server/node_fixture.h"
#include "server/peer_session.h"

#include <stdio.h>

static struct node node;
static struct kvf_transport *consumer_transport;
static struct kvf_arena consumer_arena;
static const struct kvf_arena *consumer_arenas[1] = {&consumer_arena};

/* What is audited. */
static struct kvf_audit *audit;
static char lines[100][400];
static unsigned line_count;

static void note(void *context, const char *line)
{
    (void)context;
    assert_true(line_count < 100);
    (void)snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
}

/* How many lines have all of this in them. */
static unsigned lines_with(const char *one, const char *other)
{
    unsigned count = 0;
    for (unsigned i = 0; i < line_count; i++)
        count += strstr(lines[i], one) != NULL && strstr(lines[i], other) != NULL;
    return count;
}

/* A consumer by hand: one call, one lane, and what came down. */
struct consumer {
    struct kvf_rpc_channel *channel;
    struct kvf_rpc_call *call; /* NULL once closed */
    struct kvf_lane *lane;
    unsigned welcomes, grants, refusals, drain_notices, commits;
    bool lane_open;
    struct kvf_lane_nonces nonces;
    char data_address[32];
    uint32_t refused_code;
    uint64_t refused_id;
    struct kvf_status status;
    uint32_t code; /* the first of the last Grants */
    struct expected {
        struct kvf_lane_read read;
        struct kvf_lane_block block;
    } expected[64]; /* by id */
    uint64_t last_expected;
};

static void take_welcome(struct consumer *consumer, const Kvferry__Welcome *welcome)
{
    consumer->welcomes++;
    assert_int_equal(welcome->connect_nonce.len, KVF_NONCE_BYTES);
    memcpy(consumer->nonces.connect.bytes, welcome->connect_nonce.data, KVF_NONCE_BYTES);
    memcpy(consumer->nonces.accept.bytes, welcome->accept_nonce.data, KVF_NONCE_BYTES);
    assert_int_equal(welcome->data_address[0], ':'); /* the host that was dialled */
    strcpy(consumer->data_address, "127.0.0.1");
    strcat(consumer->data_address, welcome->data_address);
}

static void down(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct consumer *consumer = user;
    (void)call;
    Kvferry__SessionDown *message = kvferry__session_down__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(message);
    consumer->drain_notices += message->message_case == KVFERRY__SESSION_DOWN__MESSAGE_DRAIN_NOTICE;
    consumer->commits += message->message_case == KVFERRY__SESSION_DOWN__MESSAGE_COMMITTED;
    if (message->message_case == KVFERRY__SESSION_DOWN__MESSAGE_WELCOME) {
        take_welcome(consumer, message->welcome);
    } else if (message->message_case == KVFERRY__SESSION_DOWN__MESSAGE_GRANTS) {
        consumer->grants++;
        consumer->code = message->grants->blocks[0]->code;
    } else if (message->message_case == KVFERRY__SESSION_DOWN__MESSAGE_REFUSED) {
        consumer->refusals++;
        consumer->refused_code = message->refused->code;
        consumer->refused_id = message->refused->id;
    }
    kvferry__session_down__free_unpacked(message, NULL);
}

static void closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                   const char *text)
{
    struct consumer *consumer = user;
    (void)call;
    (void)text;
    consumer->call = NULL;
    consumer->status = status;
}

static const struct kvf_rpc_events events = {.message = down, .closed = closed};

static void lane_opened(struct kvf_lane *lane, void *user)
{
    (void)lane;
    ((struct consumer *)user)->lane_open = true;
}

static void lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    (void)lane;
    (void)status;
    ((struct consumer *)user)->lane = NULL;
}

static const struct kvf_lane_events lane_events = {.opened = lane_opened, .closed = lane_closed};

static void call(struct consumer *consumer)
{
    *consumer = (struct consumer){0};
    assert_true(
        kvf_is_ok(kvf_rpc_channel_open(node_rpc, node.address, NULL, &consumer->channel, NULL)));
    assert_true(kvf_is_ok(kvf_rpc_call_start(consumer->channel, KVF_PEER_SESSION, 0, &events,
                                             consumer, &consumer->call)));
}

static void hang_up(struct consumer *consumer)
{
    if (consumer->call != NULL)
        kvf_rpc_call_cancel(consumer->call);
    if (consumer->lane != NULL)
        kvf_lane_close(consumer->lane);
    node_run_until(consumer->call == NULL && consumer->lane == NULL);
    kvf_rpc_channel_close(consumer->channel);
}

static void up(struct consumer *consumer, const Kvferry__SessionUp *message)
{
    static uint8_t bytes[1 << 20];
    size_t length = kvferry__session_up__pack(message, bytes);
    kvf_rpc_call_send(consumer->call, (struct kvf_bytes){bytes, length});
}

static void say_hello(struct consumer *consumer, uint32_t version, const char *tenant,
                      const char *transport)
{
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Hello hello = KVFERRY__HELLO__INIT;
    char *transports[] = {(char *)(uintptr_t)transport};
    hello.version = version;
    hello.tenant = (char *)(uintptr_t)tenant;
    hello.instance = 5;
    hello.n_transports = 1;
    hello.transports = transports;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_HELLO;
    message.hello = &hello;
    up(consumer, &message);
}

static void open_session(struct consumer *consumer)
{
    call(consumer);
    say_hello(consumer, KVF_PEER_VERSION, "t", "tcp");
    node_run_until(consumer->welcomes == 1);
    assert_true(kvf_is_ok(kvf_lane_connect(consumer_transport, consumer->data_address,
                                           &consumer->nonces, kvf_clock_now_ns() + KVF_NS_PER_S,
                                           &lane_events, consumer, &consumer->lane)));
    node_run_until(consumer->lane_open);
}

static void expected_ended(struct kvf_lane_read *read, uint32_t block)
{
    (void)read;
    (void)block;
}

/* All blocks land on each other: nobody looks at them. */
static void expect(struct consumer *consumer, uint64_t id)
{
    struct expected *expected = &consumer->expected[id];
    if (consumer->lane == NULL || id <= consumer->last_expected)
        return;
    assert_true(id < 64);
    consumer->last_expected = id;
    expected->block.extent = (struct kvf_extent){&consumer_arena, 0, NODE_BLOCK_BYTES};
    expected->block.length = NODE_BLOCK_BYTES;
    expected->read = (struct kvf_lane_read){
        .id = id, .blocks = &expected->block, .block_count = 1, .ended = expected_ended};
    kvf_lane_expect(consumer->lane, &expected->read);
}

static void read_blocks(struct consumer *consumer, uint64_t id, const char *ns, unsigned first,
                        size_t count, uint64_t length)
{
    static Kvferry__ReadBlock blocks[100];
    static struct kvf_key keys[100];
    Kvferry__ReadBlock *pointers[100];
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Read read = KVFERRY__READ__INIT;
    for (size_t i = 0; i < count; i++) {
        keys[i] = node_key(first + (unsigned)i);
        kvferry__read_block__init(&blocks[i]);
        blocks[i].key = (ProtobufCBinaryData){.len = keys[i].length, .data = keys[i].bytes};
        blocks[i].length = length;
        pointers[i] = &blocks[i];
    }
    expect(consumer, id);
    read.id = id;
    read.namespace_ = (char *)(uintptr_t)ns;
    read.deadline_us = 10000000;
    read.n_blocks = count;
    read.blocks = pointers;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_READ;
    message.read = &read;
    up(consumer, &message);
}

static void release(struct consumer *consumer, uint64_t id)
{
    static uint32_t bad[] = {0, 0, 7, UINT32_MAX};
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Release body = KVFERRY__RELEASE__INIT;
    body.id = id;
    body.n_bad_blocks = 4;
    body.bad_blocks = bad;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_RELEASE;
    message.release = &body;
    up(consumer, &message);
}

static void cancel(struct consumer *consumer, uint64_t id)
{
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Cancel body = KVFERRY__CANCEL__INIT;
    body.id = id;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_CANCEL;
    message.cancel = &body;
    up(consumer, &message);
}

static void raise_read(struct consumer *consumer, uint64_t id)
{
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Raise body = KVFERRY__RAISE__INIT;
    body.id = id;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_RAISE;
    message.raise = &body;
    up(consumer, &message);
}

static int set_up_with(const struct kvf_acl *acl)
{
    node_set_up();
    line_count = 0;
    assert_true(kvf_is_ok(kvf_audit_create(node_loop, note, NULL, &audit)));
    node_start(&node, &(struct node_options){
                          .ssd = true, .pool_bytes = 64 * KVF_MIB, .acl = acl, .audit = audit});
    assert_true(kvf_is_ok(kvf_arena_create(NODE_BLOCK_BYTES, 0, false, &consumer_arena, NULL)));
    struct kvf_transport_options options = {
        .loop = node_loop, .arenas = consumer_arenas, .arena_count = 1};
    return kvf_is_ok(kvf_transport_open("tcp", &options, &consumer_transport, NULL)) ? 0 : -1;
}

static int set_up(void **state)
{
    (void)state;
    return set_up_with(NULL);
}

/* Nobody here has a certificate, so nobody can be in it. */
static struct kvf_acl *acl;

static int set_up_strangers(void **state)
{
    static const char text[] = "{\"identities\": {\"spiffe://x/b\": {\"t\": [\"read\"]}}}";
    (void)state;
    assert_true(kvf_is_ok(kvf_acl_parse("test", text, strlen(text), &acl, NULL)));
    return set_up_with(acl);
}

static int tear_down(void **state)
{
    (void)state;
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    kvf_transport_close(consumer_transport);
    kvf_arena_close(&consumer_arena);
    node_stop(&node);
    kvf_audit_destroy(audit);
    kvf_acl_close(acl);
    acl = NULL;
    node_tear_down();
    return 0;
}

/* ---- beginning ---- */

static void session__call_dropped_before_hello__leaves_nothing(void **state)
{
    (void)state;
    struct consumer consumer;
    for (int i = 0; i < 3; i++) {
        call(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 1);
        hang_up(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 0);
    }
}

static void session__bad_hello__is_ended(void **state)
{
    (void)state;
    char long_tenant[300];
    memset(long_tenant, 'a', sizeof(long_tenant) - 1);
    long_tenant[sizeof(long_tenant) - 1] = '\0';
    const struct {
        uint32_t version;
        const char *tenant, *transport;
        enum kvf_code code;
    } bad[] = {
        {KVF_PEER_VERSION + 1, "t", "tcp", KVF_UNSUPPORTED},
        {KVF_PEER_VERSION, "t", "pigeons", KVF_UNSUPPORTED},
        {KVF_PEER_VERSION, "", "tcp", KVF_OK},
        {KVF_PEER_VERSION, "t/f", "tcp", KVF_OK},
        {KVF_PEER_VERSION, long_tenant, "tcp", KVF_OK},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct consumer consumer;
        call(&consumer);
        say_hello(&consumer, bad[i].version, bad[i].tenant, bad[i].transport);
        node_run_until(consumer.call == NULL);
        assert_int_equal(consumer.welcomes, 0);
        assert_int_not_equal(consumer.status.code, KVF_OK);
        if (bad[i].code != KVF_OK)
            assert_int_equal(consumer.status.code, bad[i].code);
        hang_up(&consumer);
    }
}

static void session__garbage__is_ended(void **state)
{
    (void)state;
    const uint8_t garbage[] = {0xff, 0xff, 0xff, 0xff};
    for (int length = 0; length <= 4; length += 4) {
        struct consumer consumer;
        call(&consumer);
        kvf_rpc_call_send(consumer.call, (struct kvf_bytes){garbage, (size_t)length});
        node_run_until(consumer.call == NULL);
        assert_int_not_equal(consumer.status.code, KVF_OK);
        hang_up(&consumer);
    }
}

/* A megabyte of empty blocks in one Read, or of empty keys in one Lookup, would unpack to sixty times its size. */
static size_t fill_with_empty(uint8_t *bytes, size_t room, bool is_read)
{
    const uint8_t head[] = {0x1a, 0xf0, 0xff, 0x3f}; /* a Read of 2^20 - 16 bytes */
    size_t at = 0, body = ((size_t)1 << 20) - 16;
    assert_true(room >= sizeof(head) + body);
    if (is_read) {
        memcpy(bytes, head, sizeof(head));
        at = sizeof(head);
    }
    for (size_t i = 0; i < body; i += 2) {
        bytes[at++] = is_read ? 0x2a : 0x12;
        bytes[at++] = 0;
    }
    return at;
}

static void session__half_a_million_empty_blocks__is_ended(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    struct consumer consumer;
    open_session(&consumer);
    size_t length = fill_with_empty(bytes, sizeof(bytes), true);
    kvf_rpc_call_send(consumer.call, (struct kvf_bytes){bytes, length});
    node_run_until(consumer.call == NULL);
    assert_int_not_equal(consumer.status.code, KVF_OK);
    hang_up(&consumer);
}

static void session__lane_does_not_come__is_ended(void **state)
{
    (void)state;
    struct consumer consumer;
    call(&consumer);
    say_hello(&consumer, KVF_PEER_VERSION, "t", "tcp");
    node_run_until(consumer.welcomes == 1);
    node_run_until(consumer.call == NULL);
    hang_up(&consumer);
}

static void session__the_same_consumer_again__ends_the_older_one(void **state)
{
    (void)state;
    struct consumer older, newer;
    node_put(&node, 1);
    open_session(&older);
    read_blocks(&older, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(older.grants == 1);
    open_session(&newer);
    node_run_until(older.call == NULL && older.lane == NULL);
    node_assert_idle(&node);
    assert_non_null(newer.call);
    hang_up(&newer);
    hang_up(&older);
}

/* ---- Reads ---- */

static void read__what_no_read_may_say__ends_the_session(void **state)
{
    (void)state;
    for (int bad = 0; bad < 8; bad++) {
        struct consumer consumer;
        open_session(&consumer);
        read_blocks(&consumer, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        node_run_until(consumer.grants == 1);
        assert_int_equal(consumer.code, KVF_NOT_FOUND);
        if (bad == 0)
            read_blocks(&consumer, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        else if (bad == 1)
            read_blocks(&consumer, 3, NODE_SPACE, 1, 65, NODE_BLOCK_BYTES);
        else if (bad == 2)
            read_blocks(&consumer, 3, NODE_SPACE, 1, 0, NODE_BLOCK_BYTES);
        else if (bad == 3)
            read_blocks(&consumer, 3, "u/f", 1, 1, NODE_BLOCK_BYTES);
        else if (bad == 4)
            read_blocks(&consumer, 3, NODE_SPACE, 1, 1, 0);
        else if (bad == 5)
            read_blocks(&consumer, 3, NODE_SPACE, 1, 1, KVF_BLOCK_MAX_BYTES + 1);
        else if (bad == 6)
            release(&consumer, 3);
        else
            cancel(&consumer, 3);
        node_run_until(consumer.call == NULL);
        assert_int_not_equal(consumer.status.code, KVF_OK);
        hang_up(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 0);
    }
}

static void read__more_than_may_be_open__is_busy_until_one_is_released(void **state)
{
    (void)state;
    struct consumer consumer;
    struct put *put = node_begin(&node, 1);
    open_session(&consumer);
    for (uint64_t id = 1; id <= KVF_MAX_OPEN_READS; id++)
        read_blocks(&consumer, id, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    read_blocks(&consumer, 50, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.refusals == 1);
    assert_int_equal(consumer.refused_code, KVF_BUSY);
    assert_int_equal(consumer.refused_id, 50);
    release(&consumer, 50); /* crosses: fine */
    release(&consumer, 3);
    release(&consumer, 3);
    cancel(&consumer, 4);
    read_blocks(&consumer, 51, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == KVF_MAX_OPEN_READS + 1);
    assert_int_equal(node.leases.open, KVF_MAX_OPEN_READS);
    node_commit(put, 1);
    node_run_until(consumer.commits == KVF_MAX_OPEN_READS);
    hang_up(&consumer);
}

static void read__released_while_its_blocks_load__does_not_count_as_open(void **state)
{
    (void)state;
    struct consumer consumer;
    for (unsigned block = 1; block <= 12; block++)
        node_put(&node, block);
    node_evict(&node);
    open_session(&consumer);
    for (uint64_t id = 1; id <= 3 * KVF_MAX_OPEN_READS; id++) {
        read_blocks(&consumer, id, NODE_SPACE, 1 + (unsigned)id % 12, 1, NODE_BLOCK_BYTES);
        release(&consumer, id);
    }
    node_run_until(consumer.grants + consumer.refusals == 3 * KVF_MAX_OPEN_READS);
    assert_int_equal(consumer.refusals, 0);
    node_assert_idle(&node);
    hang_up(&consumer);
}

static void read__consumer_vanishes_in_any_phase__leaves_nothing(void **state)
{
    (void)state;
    node_put(&node, 1);
    for (int phase = 0; phase < 3; phase++) {
        struct consumer consumer;
        node_evict(&node);
        open_session(&consumer);
        if (phase == 0)
            node_take_memory(&node);
        read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        if (phase == 0)
            node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_SERVE]));
        else
            node_run_until(node.leases.open == 1);
        if (phase == 2)
            node_run_until(consumer.grants == 1);
        hang_up(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 0);
        node_return_memory(&node);
        node_assert_idle(&node);
    }
}

/* ---- draining ---- */

static void drain__session_with_a_lease__ends_when_that_is_released(void **state)
{
    (void)state;
    struct consumer idle, busy;
    node_put(&node, 1);
    node_put(&node, 2);
    open_session(&busy);
    read_blocks(&busy, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    read_blocks(&busy, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(busy.grants == 2);
    cancel(&busy, 1); /* the lane gives the blocks back, the leases stay */
    cancel(&busy, 2);
    kvf_peers_drain(node.peers);
    node_run_until(busy.drain_notices == 1);
    read_blocks(&busy, 3, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(busy.refusals == 1);
    assert_int_equal(busy.refused_code, KVF_DRAINING);
    release(&busy, 1);
    release(&busy, 2);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    node_run_until(busy.call == NULL);
    assert_int_equal(busy.status.code, KVF_UNAVAILABLE); /* gRPC has no other word */
    call(&idle);
    node_run_until(idle.call == NULL);
    assert_int_equal(idle.status.code, KVF_UNAVAILABLE);
    hang_up(&busy);
    hang_up(&idle);
}

static void drain__queued_read__is_refused_and_its_session_ends(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    node_take_memory(&node);
    open_session(&consumer);
    read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_SERVE]));
    kvf_peers_drain(node.peers);
    node_run_until(consumer.call == NULL);
    assert_int_equal(consumer.refusals, 1);
    assert_int_equal(consumer.refused_code, KVF_DRAINING);
    node_return_memory(&node);
    hang_up(&consumer);
}

/* ---- Lookup ---- */

static unsigned answers;
static uint32_t lookup_codes[4];
static uint64_t lookup_count;

static void lookup_message(struct kvf_rpc_call *rpc_call, void *user, struct kvf_bytes bytes)
{
    (void)rpc_call;
    (void)user;
    Kvferry__LookupReply *reply = kvferry__lookup_reply__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(reply);
    answers++;
    lookup_count = reply->n_blocks;
    for (size_t i = 0; i < 4 && i < reply->n_blocks; i++)
        lookup_codes[i] = reply->blocks[i]->code;
    kvferry__lookup_reply__free_unpacked(reply, NULL);
}

static const struct kvf_rpc_events lookup_events = {.message = lookup_message, .closed = closed};

static enum kvf_code ask(struct kvf_bytes question)
{
    struct consumer consumer = {0};
    assert_true(
        kvf_is_ok(kvf_rpc_channel_open(node_rpc, node.address, NULL, &consumer.channel, NULL)));
    assert_true(kvf_is_ok(kvf_rpc_call_start(consumer.channel, KVF_PEER_LOOKUP, 0, &lookup_events,
                                             &consumer, &consumer.call)));
    kvf_rpc_call_send(consumer.call, question);
    kvf_rpc_call_half_close(consumer.call);
    node_run_until(consumer.call == NULL);
    kvf_rpc_channel_close(consumer.channel);
    return (enum kvf_code)consumer.status.code;
}

static enum kvf_code look_up(const char *ns, ProtobufCBinaryData *keys, size_t count)
{
    static uint8_t bytes[1 << 20];
    Kvferry__LookupRequest request = KVFERRY__LOOKUP_REQUEST__INIT;
    request.namespace_ = (char *)(uintptr_t)ns;
    request.n_keys = count;
    request.keys = keys;
    return ask((struct kvf_bytes){bytes, kvferry__lookup_request__pack(&request, bytes)});
}

static void lookup__half_a_million_empty_keys__is_invalid(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    size_t length = fill_with_empty(bytes, sizeof(bytes), false);
    assert_int_equal(ask((struct kvf_bytes){bytes, length}), KVF_INVALID);
}

static void lookup__keys_of_every_kind__are_answered_in_order(void **state)
{
    (void)state;
    static ProtobufCBinaryData keys[KVF_PEER_MAX_LOOKUP_KEYS + 1];
    struct kvf_key here = node_key(1), begun = node_key(2);
    uint8_t long_key[65] = {0};
    node_put(&node, 1);
    struct put *put = node_begin(&node, 2);
    keys[0] = (ProtobufCBinaryData){.len = here.length, .data = here.bytes};
    keys[1] = (ProtobufCBinaryData){.len = begun.length, .data = begun.bytes};
    keys[2] = (ProtobufCBinaryData){.len = 65, .data = long_key};
    keys[3] = (ProtobufCBinaryData){.len = 0};
    answers = 0;
    assert_int_equal(look_up(NODE_SPACE, keys, 4), KVF_OK);
    assert_int_equal(lookup_codes[0], KVF_OK);
    assert_int_equal(lookup_codes[1], KVF_PENDING);
    assert_int_equal(lookup_codes[2], KVF_NOT_FOUND);
    assert_int_equal(lookup_codes[3], KVF_NOT_FOUND);
    assert_int_equal(look_up("no namespace", keys, 1), KVF_OK);
    assert_int_equal(lookup_codes[0], KVF_NOT_FOUND);
    for (size_t i = 0; i <= KVF_PEER_MAX_LOOKUP_KEYS; i++)
        keys[i] = keys[0];
    assert_int_equal(look_up(NODE_SPACE, keys, KVF_PEER_MAX_LOOKUP_KEYS), KVF_OK);
    assert_int_equal(lookup_count, KVF_PEER_MAX_LOOKUP_KEYS);
    assert_int_equal(answers, 3);
    keys[0].len = 1; /* unknown */
    kvf_awaited_open(&node.awaited);
    assert_int_equal(look_up(NODE_SPACE, keys, 1), KVF_OK);
    assert_int_equal(lookup_codes[0], KVF_PENDING);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(look_up(NODE_SPACE, keys, KVF_PEER_MAX_LOOKUP_KEYS + 1), KVF_INVALID);
    put_abort(put);
}

/* ---- nonces ---- */

static void connect_lane(struct consumer *consumer, const struct consumer *whose)
{
    assert_true(kvf_is_ok(kvf_lane_connect(consumer_transport, whose->data_address, &whose->nonces,
                                           kvf_clock_now_ns() + KVF_NS_PER_S, &lane_events,
                                           consumer, &consumer->lane)));
}

/* A nonce belongs to the session, and so to the identity, that it was told to: whoever else says it opens that session's
 * lane, not one of his own, and what he asks for on his call is never sent there. */
static void nonce__of_another_session__opens_no_lane_of_ones_own(void **state)
{
    (void)state;
    struct consumer victim, thief;
    node_put(&node, 1);
    call(&victim);
    say_hello(&victim, KVF_PEER_VERSION, "t", "tcp");
    call(&thief);
    say_hello(&thief, KVF_PEER_VERSION, "u", "tcp");
    node_run_until(victim.welcomes == 1 && thief.welcomes == 1);
    connect_lane(&thief, &victim);
    node_run_until(thief.lane_open);
    node_run_until(thief.call == NULL); /* its own lane has not opened in time */
    assert_int_equal(thief.status.code, KVF_DEADLINE);
    /* Used up: its owner cannot open the lane any more, and gives the session up. */
    connect_lane(&victim, &victim);
    node_run_until(victim.lane == NULL);
    assert_false(victim.lane_open);
    hang_up(&thief);
    hang_up(&victim);
}

static void nonce__said_again_or_too_late__opens_nothing(void **state)
{
    (void)state;
    struct consumer consumer, again = {0};
    open_session(&consumer);
    connect_lane(&again, &consumer);
    node_run_until(again.lane == NULL);
    assert_false(again.lane_open);
    hang_up(&consumer);
    connect_lane(&again, &consumer); /* its session is gone */
    node_run_until(again.lane == NULL);
    assert_false(again.lane_open);

    call(&consumer);
    say_hello(&consumer, KVF_PEER_VERSION, "t", "tcp");
    node_run_until(consumer.call == NULL); /* a second has passed */
    connect_lane(&again, &consumer);
    node_run_until(again.lane == NULL);
    assert_false(again.lane_open);
    hang_up(&consumer);
}

/* ---- rights, and what is told of them ---- */

static void stranger__session_and_lookup__denied_before_anything_is_said(void **state)
{
    (void)state;
    struct consumer consumer;
    struct kvf_key key = node_key(1);
    ProtobufCBinaryData keys[] = {{.len = key.length, .data = key.bytes}};
    node_put(&node, 1);
    call(&consumer);
    node_run_until(consumer.call == NULL);
    assert_int_equal(consumer.status.code, KVF_DENIED);
    hang_up(&consumer);
    answers = 0;
    assert_int_equal(look_up(NODE_SPACE, keys, 1), KVF_DENIED);
    assert_int_equal(answers, 0);
    assert_int_equal(
        lines_with("denied identity=- tenant=-", "what=session reason=unknown_identity"), 1);
    assert_int_equal(
        lines_with("denied identity=- tenant=-", "what=lookup reason=unknown_identity"), 1);
    assert_int_equal(line_count, 2);
    assert_int_equal(kvf_peers_sessions(node.peers), 0);
}

static void audit__reads_of_every_outcome__one_line_each(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    open_session(&consumer);
    read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 1 && node.counters.serve.blocks == 1);
    release(&consumer, 1);
    read_blocks(&consumer, 2, NODE_SPACE, 7, 3, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 2);
    release(&consumer, 2);
    read_blocks(&consumer, 3, NODE_SPACE, 1, 64, 128 * KVF_MIB); /* more than the pool has */
    node_run_until(consumer.refusals == 1);
    hang_up(&consumer);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    assert_int_equal(
        lines_with("read identity=- tenant=t id=1 blocks=1 hits=1 sent=1 bytes=1048576",
                   "outcome=OK"),
        1);
    assert_int_equal(lines_with("id=1 ", " key=016b"), 1);
    assert_int_equal(lines_with("id=2 blocks=3 hits=0 sent=0 bytes=0", "outcome=NOT_FOUND"), 1);
    assert_int_equal(lines_with("id=3 blocks=64", "outcome=TOO_LARGE"), 1);
    assert_int_equal(line_count, 3);
}

static void audit__read_cut_off_by_the_session__one_line(void **state)
{
    (void)state;
    struct consumer consumer;
    struct put *put = node_begin(&node, 1);
    open_session(&consumer);
    read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 1);
    hang_up(&consumer);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    assert_int_equal(lines_with("read ", "id=1 blocks=1 hits=0"), 1);
    assert_int_equal(line_count, 1);
    put_abort(put);
}

static void audit__forced_end__one_line(void **state)
{
    (void)state;
    struct consumer consumer;
    open_session(&consumer);
    kvf_peers_force(node.peers);
    kvf_peers_force(node.peers);
    node_run_until(consumer.call == NULL);
    hang_up(&consumer);
    assert_int_equal(lines_with("forced identity=- tenant=t", "reason=drain"), 1);
    assert_int_equal(line_count, 1);
}

#define STRANGERS_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_strangers, tear_down)
static void set_state__every_pair__follows_the_life_of_a_session(void **state)
{
    (void)state;
    for (enum session_state from = SESSION_HELLO; from <= SESSION_CLOSING; from++)
        for (enum session_state to = SESSION_HELLO; to <= SESSION_CLOSING; to++) {
            struct session session = {.state = from};
            bool legal = from != SESSION_CLOSING && (to == from + 1 || to == SESSION_CLOSING);
            if (legal)
                peer_set_state(&session, to);
            else
                assert_aborts(peer_set_state(&session, to));
        }
}

static void read__cancelled_in_any_phase__leaves_nothing(void **state)
{
    (void)state;
    node_put(&node, 1);
    for (int phase = 0; phase < 4; phase++) {
        struct consumer consumer;
        node_evict(&node);
        open_session(&consumer);
        if (phase == 0)
            node_take_memory(&node);
        read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        if (phase == 0)
            node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_SERVE]));
        else if (phase == 1)
            node_run_until(node.leases.open == 1);
        else
            node_run_until(consumer.grants == 1);
        if (phase == 3)
            node_run_until(node.counters.serve.blocks > 0);
        cancel(&consumer, 1);
        cancel(&consumer, 1);
        release(&consumer, 1);
        node_run_until(node.leases.open == 0);
        node_return_memory(&node);
        node_assert_idle(&node);
        hang_up(&consumer);
    }
}

static void release__a_second_time__changes_nothing(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    open_session(&consumer);
    read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    read_blocks(&consumer, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 2);
    for (int i = 0; i < 3; i++)
        release(&consumer, 1);
    raise_read(&consumer, 1); /* what crossed is ignored */
    cancel(&consumer, 1);
    node_run_until(node.leases.open == 1);
    read_blocks(&consumer, 3, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 3); /* the session lives, Read 2 is still pinned */
    assert_int_equal(node.leases.open, 2);
    hang_up(&consumer);
}

static void release__of_somebody_elses_read__ends_the_impostor_alone(void **state)
{
    (void)state;
    struct consumer owner, impostor;
    node_put(&node, 1);
    open_session(&owner);
    for (uint64_t id = 1; id <= 3; id++)
        read_blocks(&owner, id, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(owner.grants == 3);
    void (*const say[])(struct consumer *, uint64_t) = {release, cancel, raise_read};
    for (unsigned i = 0; i < 3; i++) {
        call(&impostor);
        say_hello(&impostor, KVF_PEER_VERSION, "u", "tcp");
        node_run_until(impostor.welcomes == 1);
        say[i](&impostor, 3); /* ids belong to their session: here it is from the future */
        node_run_until(impostor.call == NULL);
        assert_int_equal(impostor.status.code, KVF_PROTOCOL);
        hang_up(&impostor);
        assert_int_equal(node.leases.open, 3);
    }
    assert_non_null(owner.call);
    hang_up(&owner);
}

static void release__lost__session_ends_two_seconds_after_the_deadline(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    node.leases.max_lease_ns = 100 * KVF_NS_PER_MS;
    open_session(&consumer);
    read_blocks(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 1);
    node_run_until(consumer.call == NULL);
    assert_int_equal(consumer.status.code, KVF_DEADLINE);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    node_assert_idle(&node);
    hang_up(&consumer);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(session__call_dropped_before_hello__leaves_nothing),
        TEST(session__bad_hello__is_ended),
        TEST(session__garbage__is_ended),
        TEST(session__half_a_million_empty_blocks__is_ended),
        TEST(session__lane_does_not_come__is_ended),
        TEST(session__the_same_consumer_again__ends_the_older_one),
        TEST(read__what_no_read_may_say__ends_the_session),
        TEST(read__more_than_may_be_open__is_busy_until_one_is_released),
        TEST(read__released_while_its_blocks_load__does_not_count_as_open),
        TEST(read__consumer_vanishes_in_any_phase__leaves_nothing),
        TEST(drain__session_with_a_lease__ends_when_that_is_released),
        TEST(drain__queued_read__is_refused_and_its_session_ends),
        TEST(lookup__keys_of_every_kind__are_answered_in_order),
        TEST(lookup__half_a_million_empty_keys__is_invalid),
        TEST(nonce__of_another_session__opens_no_lane_of_ones_own),
        TEST(nonce__said_again_or_too_late__opens_nothing),
        STRANGERS_TEST(stranger__session_and_lookup__denied_before_anything_is_said),
        TEST(audit__reads_of_every_outcome__one_line_each),
        TEST(audit__read_cut_off_by_the_session__one_line),
        TEST(audit__forced_end__one_line),
        TEST(set_state__every_pair__follows_the_life_of_a_session),
        TEST(read__cancelled_in_any_phase__leaves_nothing),
        TEST(release__a_second_time__changes_nothing),
        TEST(release__of_somebody_elses_read__ends_the_impostor_alone),
        TEST(release__lost__session_ends_two_seconds_after_the_deadline),
    };
    return cmocka_run_group_tests_name("server/peers", tests, NULL, NULL);
}
