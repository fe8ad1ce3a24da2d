/* Parts: what comes down; the session; Reads; Lookup; the audit log; set-ups. */
#include "server/consumer_fixture.h"

struct node node;
struct consumer_lookup lookup;
static struct kvf_transport *consumer_transport;
static struct kvf_arena consumer_arena;
static const struct kvf_arena *consumer_arenas[1] = {&consumer_arena};

/* ---- what comes down ---- */

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

/* ---- the session ---- */

void consumer_call(struct consumer *consumer)
{
    *consumer = (struct consumer){0};
    assert_true(
        kvf_is_ok(kvf_rpc_channel_open(node_rpc, node.address, NULL, &consumer->channel, NULL)));
    assert_true(kvf_is_ok(kvf_rpc_call_start(consumer->channel, KVF_PEER_SESSION, 0, &events,
                                             consumer, &consumer->call)));
}

void consumer_hang_up(struct consumer *consumer)
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

void consumer_say_hello(struct consumer *consumer, uint32_t version, const char *tenant,
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

void consumer_connect(struct consumer *consumer, const struct consumer *whose)
{
    assert_true(kvf_is_ok(kvf_lane_connect(consumer_transport, whose->data_address, KVF_ANY_DEVICE,
                                           &whose->nonces, kvf_clock_now_ns() + KVF_NS_PER_S,
                                           &lane_events, consumer, &consumer->lane)));
}

void consumer_open(struct consumer *consumer)
{
    consumer_call(consumer);
    consumer_say_hello(consumer, KVF_PEER_VERSION, "t", "tcp");
    node_run_until(consumer->welcomes == 1);
    consumer_connect(consumer, consumer);
    node_run_until(consumer->lane_open);
}

/* ---- Reads ---- */

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

void consumer_read(struct consumer *consumer, uint64_t id, const char *ns, unsigned first,
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

void consumer_release(struct consumer *consumer, uint64_t id)
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

void consumer_cancel(struct consumer *consumer, uint64_t id)
{
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Cancel body = KVFERRY__CANCEL__INIT;
    body.id = id;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_CANCEL;
    message.cancel = &body;
    up(consumer, &message);
}

void consumer_raise(struct consumer *consumer, uint64_t id)
{
    Kvferry__SessionUp message = KVFERRY__SESSION_UP__INIT;
    Kvferry__Raise body = KVFERRY__RAISE__INIT;
    body.id = id;
    message.message_case = KVFERRY__SESSION_UP__MESSAGE_RAISE;
    message.raise = &body;
    up(consumer, &message);
}

size_t consumer_fill_empty(uint8_t bytes[CONSUMER_EMPTY_BYTES], bool is_read)
{
    const uint8_t head[] = {0x1a, 0xf0, 0xff, 0x3f}; /* a Read of 2^20 - 16 bytes */
    size_t at = 0, body = CONSUMER_EMPTY_BYTES - 16;
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

/* ---- Lookup ---- */

static void lookup_message(struct kvf_rpc_call *rpc_call, void *user, struct kvf_bytes bytes)
{
    (void)rpc_call;
    (void)user;
    Kvferry__LookupReply *reply = kvferry__lookup_reply__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(reply);
    lookup.answers++;
    lookup.count = reply->n_blocks;
    for (size_t i = 0; i < 4 && i < reply->n_blocks; i++)
        lookup.codes[i] = reply->blocks[i]->code;
    kvferry__lookup_reply__free_unpacked(reply, NULL);
}

static const struct kvf_rpc_events lookup_events = {.message = lookup_message, .closed = closed};

enum kvf_code consumer_ask(struct kvf_bytes question)
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

enum kvf_code consumer_look_up(const char *ns, ProtobufCBinaryData *keys, size_t count)
{
    static uint8_t bytes[1 << 20];
    Kvferry__LookupRequest request = KVFERRY__LOOKUP_REQUEST__INIT;
    request.namespace_ = (char *)(uintptr_t)ns;
    request.n_keys = count;
    request.keys = keys;
    return consumer_ask((struct kvf_bytes){bytes, kvferry__lookup_request__pack(&request, bytes)});
}

/* ---- the audit log ---- */

static struct kvf_audit *audit;
static char lines[100][400];
unsigned audit_line_count;

static void note(void *context, const char *line)
{
    (void)context;
    assert_true(audit_line_count < 100);
    (void)snprintf(lines[audit_line_count++], sizeof(lines[0]), "%s", line);
}

unsigned audit_lines_with(const char *one, const char *other)
{
    unsigned count = 0;
    for (unsigned i = 0; i < audit_line_count; i++)
        count += strstr(lines[i], one) != NULL && strstr(lines[i], other) != NULL;
    return count;
}

/* ---- set-ups ---- */

static int set_up_with(const struct kvf_acl *acl)
{
    node_set_up();
    audit_line_count = 0;
    assert_true(kvf_is_ok(kvf_audit_create(node_loop, note, NULL, &audit)));
    node_start(&node, &(struct node_options){
                          .ssd = true, .pool_bytes = 64 * KVF_MIB, .acl = acl, .audit = audit});
    assert_true(kvf_is_ok(kvf_arena_create(NODE_BLOCK_BYTES, 0, false, &consumer_arena, NULL)));
    struct kvf_transport_options options = {
        .loop = node_loop, .arenas = consumer_arenas, .arena_count = 1};
    return kvf_is_ok(kvf_transport_open("tcp", &options, &consumer_transport, NULL)) ? 0 : -1;
}

int consumer_set_up(void **state)
{
    (void)state;
    return set_up_with(NULL);
}

static struct kvf_acl *acl;

int consumer_set_up_strangers(void **state)
{
    static const char text[] = "{\"identities\": {\"spiffe://x/b\": {\"t\": [\"read\"]}}}";
    (void)state;
    assert_true(kvf_is_ok(kvf_acl_parse("test", text, strlen(text), &acl, NULL)));
    return set_up_with(acl);
}

int consumer_tear_down(void **state)
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
