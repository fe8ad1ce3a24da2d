#include "client/engine/wire.h"
#include "proto/engine.pb-c.h"
#include "server/engine_context.h"
#include "server/engines.h"
#include "server/node_fixture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct node node;
static struct kvf_engines *engines;
static char path[64];

/* Another process, for the daemon looks at who connected: it connects when told, hands over the socket, and ends when
 * its control socket does. */
static pid_t process;
static int control;

static void serve_process(int fd)
{
    char go;
    int connected;
    if (read(fd, &go, 1) == 1 && kvf_is_ok(kvf_wire_connect(path, &connected)) &&
        kvf_is_ok(kvf_wire_send(fd, "x", 1, &connected, 1))) {
        (void)close(connected);
        while (read(fd, &go, 1) < 0)
            ;
    }
    _exit(0);
}

static void start_process(void)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        (void)close(pair[1]);
        serve_process(pair[0]);
    }
    (void)close(pair[0]);
    control = pair[1];
}

static void end_process(void)
{
    if (process == 0)
        return;
    (void)close(control);
    (void)waitpid(process, NULL, 0);
    process = 0;
}

static struct kvf_acl *acl; /* NULL: everybody may do everything */
static char acl_path[64];

static void left(void *context)
{
    (void)context;
}

static void open_engines(void)
{
    struct kvf_engines_options options = {.loop = node_loop,
                                          .path = path,
                                          .pool = node.pool,
                                          .index = node.index,
                                          .gets = &node.gets,
                                          .puts = &node.puts,
                                          .boot_epoch = 7,
                                          .per_instance_limit_bytes = 16 * KVF_MIB,
                                          .query_timeout_ns = 15 * KVF_NS_PER_S,
                                          .acl = acl,
                                          .left = left};
    struct kvf_why why = {.text = ""};
    if (!kvf_is_ok(kvf_engines_create(&options, &engines, &why)))
        fail_msg("%s", why.text);
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/engines_test.%d.sock", (int)getpid());
    start_process(); /* before there are threads */
    node_set_up();
    node_start(&node, &(struct node_options){.ssd = true, .acl = acl});
    open_engines();
    return 0;
}

/* rights: those of this process's user for tenant t; NULL: the ACL names somebody else. */
static void write_acl(const char *rights)
{
    FILE *file = fopen(acl_path, "w");
    assert_non_null(file);
    if (rights != NULL)
        (void)fprintf(file, "{\"identities\": {\"uid:%u\": {\"t\": [%s]}}}", getuid(), rights);
    else
        (void)fprintf(file, "{\"identities\": {\"uid:%u\": {\"t\": []}}}", getuid() + 1);
    assert_int_equal(fclose(file), 0);
}

static void change_rights(const char *rights)
{
    write_acl(rights);
    assert_true(kvf_is_ok(kvf_acl_reload(acl, NULL)));
    kvf_engines_rights_changed(engines);
}

static int set_up_acl(void **state)
{
    (void)snprintf(acl_path, sizeof(acl_path), "/tmp/engines_test.%d.json", (int)getpid());
    write_acl("\"read\", \"write\"");
    return kvf_is_ok(kvf_acl_open(acl_path, &acl, NULL)) ? set_up(state) : -1;
}

static int tear_down(void **state)
{
    (void)state;
    end_process();
    node_run_until(kvf_engines_count(engines) == 0);
    kvf_engines_destroy(engines);
    node_stop(&node);
    node_tear_down();
    if (acl != NULL)
        (void)unlink(acl_path);
    kvf_acl_close(acl);
    acl = NULL;
    return 0;
}

/* ---- an engine ---- */

struct engine {
    int fd;
    uint64_t last_id;
    bool ended; /* by the daemon */
};

static void send_as(struct engine *engine, Kvferry__EngineRequest *request, uint64_t id)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    request->id = id;
    assert_true(kvferry__engine_request__get_packed_size(request) <= sizeof(bytes));
    size_t length = kvferry__engine_request__pack(request, bytes);
    assert_true(kvf_is_ok(kvf_wire_send(engine->fd, bytes, length, NULL, 0)));
}

static uint64_t send_request(struct engine *engine, Kvferry__EngineRequest *request)
{
    send_as(engine, request, ++engine->last_id);
    return engine->last_id;
}

/* The next packet, or NULL: the daemon has ended the connection. */
static Kvferry__EngineReply *next_reply(struct engine *engine)
{
    static uint8_t bytes[KVF_WIRE_MAX_BYTES];
    int fds[KVF_WIRE_MAX_FDS];
    size_t length, count;
    struct kvf_status status;
    node_run_until(
        (status = kvf_wire_receive(engine->fd, bytes, &length, fds, KVF_WIRE_MAX_FDS, &count))
            .code != KVF_BUSY);
    engine->ended = !kvf_is_ok(status);
    if (engine->ended)
        return NULL;
    for (size_t i = 0; i < count; i++)
        (void)close(fds[i]);
    Kvferry__EngineReply *reply = kvferry__engine_reply__unpack(NULL, length, bytes);
    assert_non_null(reply);
    return reply;
}

/* The answer to `id`; what comes before it is passed over. */
static Kvferry__EngineReply *reply_to(struct engine *engine, uint64_t id)
{
    for (;;) {
        Kvferry__EngineReply *reply = next_reply(engine);
        assert_non_null(reply);
        if (reply->id == id)
            return reply;
        kvferry__engine_reply__free_unpacked(reply, NULL);
    }
}

static enum kvf_code code_of(struct engine *engine, uint64_t id)
{
    Kvferry__EngineReply *reply = reply_to(engine, id);
    enum kvf_code code = (enum kvf_code)reply->code;
    kvferry__engine_reply__free_unpacked(reply, NULL);
    return code;
}

static void join(struct engine *engine)
{
    *engine = (struct engine){0};
    assert_true(kvf_is_ok(kvf_wire_connect(path, &engine->fd)));
}

/* The socket of the other process. */
static void join_as_process(struct engine *engine)
{
    uint8_t byte[KVF_WIRE_MAX_BYTES];
    size_t length, count;
    struct kvf_status status;
    *engine = (struct engine){0};
    assert_int_equal(write(control, "g", 1), 1);
    node_run_until(
        (status = kvf_wire_receive(control, byte, &length, &engine->fd, 1, &count)).code !=
        KVF_BUSY);
    assert_true(kvf_is_ok(status));
    assert_int_equal(count, 1);
}

static uint64_t max_get_bytes, max_put_bytes; /* of who registered last */

static enum kvf_code register_engine(struct engine *engine)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRegister body = KVFERRY__ENGINE_REGISTER__INIT;
    body.version = KVF_WIRE_VERSION;
    body.name = (char *)(uintptr_t) "test";
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER;
    request.register_ = &body;
    Kvferry__EngineReply *reply = reply_to(engine, send_request(engine, &request));
    enum kvf_code code = (enum kvf_code)reply->code;
    if (reply->body_case == KVFERRY__ENGINE_REPLY__BODY_REGISTERED) {
        max_get_bytes = reply->registered->max_get_bytes;
        max_put_bytes = reply->registered->max_put_bytes;
    }
    kvferry__engine_reply__free_unpacked(reply, NULL);
    return code;
}

static void leave(struct engine *engine)
{
    (void)close(engine->fd);
}

/* Names of blocks for requests. */
struct names {
    Kvferry__EngineName names[600], *pointers[600];
    struct kvf_key keys[600];
};

static struct names wanted;

static Kvferry__EngineName **name_blocks(unsigned first, size_t count, uint64_t length)
{
    for (size_t i = 0; i < count; i++) {
        kvferry__engine_name__init(&wanted.names[i]);
        wanted.keys[i] = node_key(first + (unsigned)i);
        wanted.keys[i].bytes[1] = (uint8_t)((first + i) >> 8 ? 'l' : 'k');
        wanted.names[i].key =
            (ProtobufCBinaryData){.len = wanted.keys[i].length, .data = wanted.keys[i].bytes};
        wanted.names[i].length = length;
        wanted.pointers[i] = &wanted.names[i];
    }
    return wanted.pointers;
}

static uint64_t send_get(struct engine *engine, unsigned first, size_t count, uint64_t length)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineGet body = KVFERRY__ENGINE_GET__INIT;
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.n_blocks = count;
    body.blocks = name_blocks(first, count, length);
    body.deadline_us = 10000000;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request.get = &body;
    return send_request(engine, &request);
}

static uint64_t send_put_begin(struct engine *engine, unsigned first, size_t count, uint64_t length)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EnginePutBegin body = KVFERRY__ENGINE_PUT_BEGIN__INIT;
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.n_blocks = count;
    body.blocks = name_blocks(first, count, length);
    body.deadline_us = 10000000;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN;
    request.put_begin = &body;
    return send_request(engine, &request);
}

static uint64_t send_commit(struct engine *engine, uint64_t first, size_t count)
{
    static Kvferry__EngineCommit commits[600], *pointers[600];
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EnginePutCommit body = KVFERRY__ENGINE_PUT_COMMIT__INIT;
    for (size_t i = 0; i < count; i++) {
        kvferry__engine_commit__init(&commits[i]);
        commits[i].put = first + i;
        commits[i].crc32c = UINT32_MAX;
        pointers[i] = &commits[i];
    }
    body.n_commits = count;
    body.commits = pointers;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT;
    request.put_commit = &body;
    return send_request(engine, &request);
}

static uint64_t send_release(struct engine *engine, uint64_t get)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRelease body = KVFERRY__ENGINE_RELEASE__INIT;
    body.get = get;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE;
    request.release = &body;
    return send_request(engine, &request);
}

static uint64_t send_cancel(struct engine *engine, uint64_t id)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineCancel body = KVFERRY__ENGINE_CANCEL__INIT;
    body.id = id;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL;
    request.cancel = &body;
    return send_request(engine, &request);
}

/* Packets are taken in their order: when this one is answered, those before it have been taken. */
static void settle(struct engine *engine)
{
    assert_int_equal(code_of(engine, send_commit(engine, UINT32_MAX, 1)), KVF_OK);
}

static uint64_t send_unregister(struct engine *engine)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineUnregister body = KVFERRY__ENGINE_UNREGISTER__INIT;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_UNREGISTER;
    request.unregister = &body;
    return send_request(engine, &request);
}

static uint64_t dirty_bytes(void)
{
    return node.admission.classes[KVF_CLASS_DIRTY].used_bytes;
}

/* ---- the straight path ---- */

static void engine__puts_gets_and_releases__leaves_nothing(void **state)
{
    (void)state;
    struct engine engine;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 1, 2, NODE_BLOCK_BYTES)), KVF_OK);
    assert_int_equal(dirty_bytes(), 2 * NODE_BLOCK_BYTES);
    Kvferry__EngineReply *reply = reply_to(&engine, send_commit(&engine, 1, 3));
    assert_int_equal(reply->put_committed->blocks[0]->code, KVF_OK);
    assert_int_equal(reply->put_committed->blocks[0]->generation_epoch, 7);
    assert_int_equal(reply->put_committed->blocks[2]->code, KVF_NOT_FOUND);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    uint64_t get = send_get(&engine, 1, 3, NODE_BLOCK_BYTES);
    reply = reply_to(&engine, get);
    assert_int_equal(reply->ready->prefix, 2);
    assert_int_equal(reply->ready->blocks[0]->crc32c, UINT32_MAX);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    (void)send_release(&engine, get);
    (void)send_release(&engine, get); /* harmless */
    settle(&engine);
    assert_int_equal(node.admission.query.used_bytes, 0);
    assert_int_equal(code_of(&engine, send_unregister(&engine)), KVF_OK);
    leave(&engine);
}

/* A verifying engine says that two blocks are bad: the one that is goes, the other stays. */
static void engine__reports_bad_blocks__those_that_are_bad_are_dropped(void **state)
{
    (void)state;
    struct engine engine;
    uint32_t both[] = {0, 1, 77};
    join(&engine);
    node_put(&node, 1);
    node_put(&node, 2);
    assert_int_equal(register_engine(&engine), KVF_OK);
    uint64_t get = send_get(&engine, 1, 2, NODE_BLOCK_BYTES);
    Kvferry__EngineReply *reply = reply_to(&engine, get);
    assert_int_equal(reply->ready->prefix, 2);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    kvf_extent_at(node_find(&node, 2)->extent)[NODE_BLOCK_BYTES - 1] ^= 0x80;
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRelease body = KVFERRY__ENGINE_RELEASE__INIT;
    body.get = get;
    body.n_blocks = 3;
    body.blocks = both;
    body.bad = true;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE;
    request.release = &body;
    (void)send_request(&engine, &request);
    settle(&engine);
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_non_null(node_find(&node, 1));
    assert_true(node_find(&node, 1)->verified);
    assert_null(node_find(&node, 2));
    assert_int_equal(node.counters.dropped[KVF_DROP_CORRUPT], 1);
    leave(&engine);
}

static void engine__largest_requests__are_answered_in_one_packet(void **state)
{
    (void)state;
    struct engine engine;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 0, KVF_WIRE_MAX_BLOCKS, 1)), KVF_OK);
    assert_int_equal(code_of(&engine, send_commit(&engine, 1, KVF_WIRE_MAX_BLOCKS)), KVF_OK);
    uint64_t get = send_get(&engine, 0, KVF_WIRE_MAX_BLOCKS, 0);
    Kvferry__EngineReply *reply = reply_to(&engine, get);
    assert_int_equal(reply->ready->prefix, KVF_WIRE_MAX_BLOCKS);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    assert_int_equal(code_of(&engine, send_get(&engine, 0, KVF_WIRE_MAX_BLOCKS + 1, 0)),
                     KVF_INVALID);
    assert_int_equal(code_of(&engine, send_commit(&engine, 1, KVF_WIRE_MAX_BLOCKS + 1)),
                     KVF_INVALID);
    leave(&engine);
}

/* ---- foreign bytes ---- */

static void engine__illegal_bytes__end_its_connection_alone(void **state)
{
    (void)state;
    struct engine other, engine;
    join(&other);
    assert_int_equal(register_engine(&other), KVF_OK);
    join(&engine);
    assert_true(kvf_is_ok(kvf_wire_send(engine.fd, "\xff\xff\xff\xff", 4, NULL, 0)));
    assert_null(next_reply(&engine));
    leave(&engine);
    join(
        &engine); /* a Get of 32 thousand empty names, which would unpack to sixty times its size */
    assert_int_equal(register_engine(&engine), KVF_OK);
    uint8_t names[KVF_WIRE_MAX_BYTES] = {0x08, 0x09, 0x42, 0xf6, 0xff, 0x03};
    for (size_t i = 6; i + 1 < sizeof(names); i += 2)
        names[i] = 0x12;
    assert_true(kvf_is_ok(kvf_wire_send(engine.fd, names, sizeof(names) - 4, NULL, 0)));
    assert_null(next_reply(&engine));
    leave(&engine);
    join(&engine); /* something before Register */
    (void)send_cancel(&engine, 1);
    assert_null(next_reply(&engine));
    leave(&engine);
    join(&engine); /* a request that says nothing */
    assert_int_equal(register_engine(&engine), KVF_OK);
    Kvferry__EngineRequest empty = KVFERRY__ENGINE_REQUEST__INIT;
    send_as(&engine, &empty, 9);
    assert_null(next_reply(&engine));
    leave(&engine);
    (void)send_cancel(&other, 77);
    settle(&other);
    leave(&other);
}

static void engine__request_without_a_number__ends_its_connection(void **state)
{
    (void)state;
    struct engine engine;
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineCancel body = KVFERRY__ENGINE_CANCEL__INIT;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL;
    request.cancel = &body;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    send_as(&engine, &request, 0);
    assert_null(next_reply(&engine));
    leave(&engine);
}

static void engine__names_that_cannot_be__are_invalid(void **state)
{
    (void)state;
    struct engine engine;
    char long_text[400];
    memset(long_text, 'a', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    const char *spaces[] = {"", "t", "t/", "/f", "t/f/g", "t/f\n", long_text};
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineGet body = KVFERRY__ENGINE_GET__INIT;
    uint8_t key[65] = {0};
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request.get = &body;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    body.n_blocks = 1;
    body.blocks = name_blocks(1, 1, NODE_BLOCK_BYTES);
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        body.namespace_ = (char *)(uintptr_t)spaces[i];
        assert_int_equal(code_of(&engine, send_request(&engine, &request)), KVF_INVALID);
    }
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.source = long_text;
    assert_int_equal(code_of(&engine, send_request(&engine, &request)), KVF_INVALID);
    body.source = (char *)(uintptr_t) "";
    for (size_t length = 0; length <= 65; length += 65) {
        wanted.names[0].key = (ProtobufCBinaryData){.len = length, .data = key};
        assert_int_equal(code_of(&engine, send_request(&engine, &request)), KVF_INVALID);
    }
    wanted.names[0].key.len = 64;
    wanted.names[0].length = UINT64_MAX;
    body.deadline_us = UINT64_MAX;
    assert_int_equal(code_of(&engine, send_request(&engine, &request)), KVF_OK); /* a miss */
    leave(&engine);
}

static void engine__asks_and_never_releases__is_busy_in_the_end(void **state)
{
    (void)state;
    struct engine engine;
    struct put *put = node_begin(&node, 0);
    enum kvf_code code = KVF_OK;
    unsigned gets = 0;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    for (; code == KVF_OK && gets < 1000;
         gets++) { /* they wait for the put; the commit is answered */
        uint64_t get = send_get(&engine, 0, KVF_WIRE_MAX_BLOCKS, NODE_BLOCK_BYTES);
        uint64_t id = send_commit(&engine, UINT32_MAX, 1);
        Kvferry__EngineReply *reply = next_reply(&engine);
        assert_non_null(reply);
        assert_true(reply->id == get || reply->id == id);
        code = (enum kvf_code)reply->code;
        kvferry__engine_reply__free_unpacked(reply, NULL);
    }
    assert_int_equal(code, KVF_BUSY);
    assert_int_equal(gets, (256 << 10) / KVF_WIRE_MAX_BLOCKS + 1);
    leave(&engine);
    node_run_until(kvf_engines_count(engines) == 0);
    put_abort(put);
}

/* ---- engines that die ---- */

static void engine__dies_after_release__leaves_nothing(void **state)
{
    (void)state;
    struct engine engine;
    node_put(&node, 1);
    for (int cancel = 0; cancel < 2; cancel++) {
        join(&engine);
        assert_int_equal(register_engine(&engine), KVF_OK);
        uint64_t get = send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
        assert_int_equal(code_of(&engine, get), KVF_OK);
        (void)(cancel ? send_cancel(&engine, get) : send_release(&engine, get));
        leave(&engine);
        node_run_until(kvf_engines_count(engines) == 0);
        node_assert_idle(&node);
    }
}

static void engine__dies_while_two_of_its_gets_share_a_load__leaves_nothing(void **state)
{
    (void)state;
    struct engine engine;
    node_put(&node, 1);
    for (int round = 0; round < 8; round++) {
        node_evict(&node);
        join(&engine);
        assert_int_equal(register_engine(&engine), KVF_OK);
        (void)send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
        (void)send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
        node_run_until(node.gets.open == 2 || node.counters.hits[KVF_HIT_SSD] > 0);
        leave(&engine);
        node_run_until(kvf_engines_count(engines) == 0);
        node_assert_idle(&node);
    }
}

static void engine__dies_after_a_commit_that_its_own_get_waits_for__leaves_nothing(void **state)
{
    (void)state;
    struct engine engine;
    join_as_process(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 1, 3, NODE_BLOCK_BYTES)), KVF_OK);
    (void)send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
    (void)send_commit(&engine, 1, 3);
    leave(&engine);
    node_run_until(node.gets.open == 0 && !node_has(&node, 2));
    assert_true(node_has(&node, 1));
    assert_int_equal(node.puts.quarantine_bytes, 2 * NODE_BLOCK_BYTES);
    end_process();
    node_run_until(kvf_engines_count(engines) == 0);
    node_assert_idle(&node);
}

static void engine__dies_between_begin_and_commit__memory_waits_for_its_process(void **state)
{
    (void)state;
    struct engine engine, other;
    join_as_process(&engine);
    join(&other);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_int_equal(register_engine(&other), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 1, 1, NODE_BLOCK_BYTES)), KVF_OK);
    uint64_t get = send_get(&other, 1, 1, NODE_BLOCK_BYTES); /* waits for the commit */
    leave(&engine);
    assert_int_equal(code_of(&other, get), KVF_OK);
    assert_false(node_has(&node, 1));
    assert_int_equal(node.puts.quarantine_bytes, NODE_BLOCK_BYTES);
    assert_int_equal(kvf_engines_count(engines), 2);
    end_process();
    node_run_until(kvf_engines_count(engines) == 1);
    assert_int_equal(dirty_bytes(), 0);
    leave(&other);
}

static void engine__unregisters_with_open_places__memory_is_free_at_once(void **state)
{
    (void)state;
    struct engine engine;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 1, 2, NODE_BLOCK_BYTES)), KVF_OK);
    (void)send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
    assert_int_equal(code_of(&engine, send_unregister(&engine)), KVF_OK);
    assert_int_equal(dirty_bytes(), 0);
    leave(&engine);
}

static void engine__dies_in_the_queue_for_dirty_bytes__leaves_nothing(void **state)
{
    (void)state;
    struct engine engine;
    struct put *full = node_begin(&node, 200);
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    (void)send_put_begin(&engine, 1, 1, 16 * KVF_MIB);
    node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_DIRTY]));
    leave(&engine);
    node_run_until(kvf_engines_count(engines) == 0);
    assert_true(kvf_list_is_empty(&node.admission.queues[KVF_CLASS_DIRTY]));
    put_abort(full);
}

/* ---- draining ---- */

static void drain__registered_hear_it__others_are_refused_and_do_not_count(void **state)
{
    (void)state;
    struct engine engine, silent, late;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    join(&silent);
    kvf_loop_run_once(node_loop, 20);
    kvf_engines_drain(engines);
    assert_int_equal(code_of(&engine, 0), KVF_OK); /* the DrainNotice */
    assert_null(next_reply(&silent));
    join(&late);
    assert_int_equal(register_engine(&late), KVF_DRAINING);
    assert_int_equal(kvf_engines_count(engines), 1);
    assert_int_equal(code_of(&engine, send_get(&engine, 1, 1, 0)), KVF_DRAINING);
    assert_int_equal(code_of(&engine, send_unregister(&engine)), KVF_OK);
    leave(&engine);
    leave(&silent);
    node_run_until(kvf_engines_count(engines) == 0);
    /* `late` is still connected when the engines are destroyed. */
}

static void drain__the_end_of_one_ends_another__both_are_gone(void **state)
{
    (void)state;
    struct engine first, second;
    join_as_process(&first);
    assert_int_equal(register_engine(&first), KVF_OK);
    join(&second);
    assert_int_equal(register_engine(&second), KVF_OK);
    assert_int_equal(code_of(&first, send_put_begin(&first, 1, 1, NODE_BLOCK_BYTES)), KVF_OK);
    (void)send_get(&second, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(node.gets.open == 1);
    leave(&first);
    leave(&second);
    kvf_engines_drain(engines); /* notices that both are dead */
    end_process();
    node_run_until(kvf_engines_count(engines) == 0);
}

static void force__everybody__is_gone_with_places_of_living_processes(void **state)
{
    (void)state;
    struct engine first, second;
    join_as_process(&first);
    assert_int_equal(register_engine(&first), KVF_OK);
    join(&second);
    assert_int_equal(register_engine(&second), KVF_OK);
    assert_int_equal(code_of(&first, send_put_begin(&first, 1, 1, NODE_BLOCK_BYTES)), KVF_OK);
    (void)send_get(&second, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(node.gets.open == 1);
    leave(&second);
    kvf_engines_force(engines);
    assert_int_equal(kvf_engines_count(engines),
                     0); /* no memory is given out any more: nothing to wait for */
    assert_int_equal(node.puts.quarantine_bytes, 0);
    end_process();
    leave(&first);
}

/* ---- rights ---- */

static void assert_put(struct engine *engine, unsigned block)
{
    assert_int_equal(code_of(engine, send_put_begin(engine, block, 1, NODE_BLOCK_BYTES)), KVF_OK);
    Kvferry__EngineReply *reply = reply_to(engine, send_commit(engine, 1, 1));
    assert_int_equal(reply->put_committed->blocks[0]->code, KVF_OK);
    kvferry__engine_reply__free_unpacked(reply, NULL);
}

/* The packed answer to a Get of one block, its id aside. */
static size_t answer_of_get(struct engine *engine, unsigned block, uint8_t *bytes)
{
    uint64_t get = send_get(engine, block, 1, NODE_BLOCK_BYTES);
    Kvferry__EngineReply *reply = reply_to(engine, get);
    reply->id = 1;
    size_t length = kvferry__engine_reply__pack(reply, bytes);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    (void)send_release(engine, get);
    return length;
}

static void rights__read_taken_away__a_block_looks_like_one_that_is_not_there(void **state)
{
    (void)state;
    struct engine engine;
    static uint8_t missing[KVF_WIRE_MAX_BYTES], denied[KVF_WIRE_MAX_BYTES];
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_put(&engine, 1);
    size_t length = answer_of_get(&engine, 9, missing);
    assert_int_not_equal(answer_of_get(&engine, 1, denied), length);
    change_rights("\"write\"");
    assert_int_equal(answer_of_get(&engine, 1, denied), length);
    assert_memory_equal(denied, missing, length);
    leave(&engine);
}

static void rights__write_taken_away__puts_and_forget_are_denied(void **state)
{
    (void)state;
    struct engine engine;
    static uint8_t bytes[KVF_WIRE_MAX_BYTES];
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_put(&engine, 1);
    change_rights("\"read\"");
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 2, 1, NODE_BLOCK_BYTES)), KVF_DENIED);
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineForget body = KVFERRY__ENGINE_FORGET__INIT;
    struct kvf_key key = node_key(1);
    ProtobufCBinaryData keys[] = {{.len = key.length, .data = key.bytes}};
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.n_keys = 1;
    body.keys = keys;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET;
    request.forget = &body;
    assert_int_equal(code_of(&engine, send_request(&engine, &request)), KVF_DENIED);
    assert_non_null(node_find(&node, 1));
    assert_true(answer_of_get(&engine, 1, bytes) > 0);
    leave(&engine);
}

static void rights__user_not_named_any_more__ended_and_cannot_come_back(void **state)
{
    (void)state;
    struct engine engine, again;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    change_rights(NULL);
    assert_null(next_reply(&engine));
    leave(&engine);
    join(&again);
    assert_int_equal(register_engine(&again), KVF_DENIED);
    leave(&again);
}

/* Of the tenants that it may read, or write, the largest share. */
static void register__tenants_have_shares__is_told_what_they_can_hold(void **state)
{
    (void)state;
    struct engine engine;
    const struct {
        const char *tenants, *rights;
        uint64_t get_mib, put_mib;
    } cases[] = {
        {"", "\"t\": [\"read\", \"write\"]", 16, 16},
        {"\"t\": {\"dram\": 0.25}", "\"t\": [\"read\", \"write\"]", 4, 4},
        {"\"t\": {\"dram\": 0.25}, \"u\": {\"dram\": 0.5}",
         "\"t\": [\"read\", \"write\"], \"u\": [\"read\"]", 8, 4},
        {"\"t\": {\"dram\": 0.25}", "\"t\": [\"read\"], \"u\": [\"read\"]", 16, 0},
    };
    for (size_t i = 0; i < 4; i++) {
        FILE *file = fopen(acl_path, "w");
        assert_non_null(file);
        (void)fprintf(file, "{\"tenants\": {%s}, \"identities\": {\"uid:%u\": {%s}}}",
                      cases[i].tenants, getuid(), cases[i].rights);
        assert_int_equal(fclose(file), 0);
        assert_true(kvf_is_ok(kvf_acl_reload(acl, NULL)));
        join(&engine);
        assert_int_equal(register_engine(&engine), KVF_OK);
        assert_int_equal(max_get_bytes / KVF_MIB, cases[i].get_mib);
        assert_int_equal(max_put_bytes / KVF_MIB, cases[i].put_mib);
        leave(&engine);
        node_run_until(kvf_engines_count(engines) == 0);
    }
    assert_int_equal(max_put_bytes, KVF_PAGE); /* 0 would say that there is no limit */
}

#define ACL_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_acl, tear_down)
static void set_state__every_pair__follows_the_life_of_a_context(void **state)
{
    (void)state;
    for (enum context_state from = CONTEXT_CONNECTED; from <= CONTEXT_LEAVING; from++)
        for (enum context_state to = CONTEXT_CONNECTED; to <= CONTEXT_LEAVING; to++) {
            struct context context = {.state = from};
            if (to > from)
                engine_set_state(&context, to);
            else
                assert_aborts(engine_set_state(&context, to));
        }
}

static void cancel__crossed_with_the_answer__gives_everything_back(void **state)
{
    (void)state;
    struct engine engine;
    node_put(&node, 1);
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    uint64_t get = send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(node.admission.query.used_bytes > 0); /* answered, and nobody reads the answer */
    (void)send_cancel(&engine, get);
    node_run_until(node.admission.query.used_bytes == 0);
    assert_int_equal(code_of(&engine, get), KVF_OK);
    (void)send_release(&engine, get); /* harmless */
    settle(&engine);
    leave(&engine);
}

static void cancel__crossed_with_the_places__gives_those_of_its_put_begin_back(void **state)
{
    (void)state;
    struct engine engine;
    join(&engine);
    assert_int_equal(register_engine(&engine), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 1, 1, NODE_BLOCK_BYTES)), KVF_OK);
    uint64_t begin = send_put_begin(&engine, 2, 3, NODE_BLOCK_BYTES);
    /* Answered, and nobody reads the answer. */
    node_run_until(dirty_bytes() == 4 * NODE_BLOCK_BYTES);
    (void)send_cancel(&engine, begin);
    node_run_until(dirty_bytes() == NODE_BLOCK_BYTES);
    assert_int_equal(code_of(&engine, begin), KVF_OK);
    assert_int_equal(code_of(&engine, send_put_begin(&engine, 3, 1, NODE_BLOCK_BYTES)), KVF_OK);
    (void)send_cancel(&engine, UINT64_MAX); /* of nothing: harmless */
    assert_int_equal(code_of(&engine, send_unregister(&engine)), KVF_OK);
    assert_int_equal(dirty_bytes(), 0);
    leave(&engine);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        TEST(engine__puts_gets_and_releases__leaves_nothing),
        TEST(engine__reports_bad_blocks__those_that_are_bad_are_dropped),
        TEST(engine__largest_requests__are_answered_in_one_packet),
        TEST(engine__illegal_bytes__end_its_connection_alone),
        TEST(engine__request_without_a_number__ends_its_connection),
        TEST(engine__names_that_cannot_be__are_invalid),
        TEST(engine__asks_and_never_releases__is_busy_in_the_end),
        TEST(engine__dies_after_release__leaves_nothing),
        TEST(engine__dies_while_two_of_its_gets_share_a_load__leaves_nothing),
        TEST(engine__dies_after_a_commit_that_its_own_get_waits_for__leaves_nothing),
        TEST(engine__dies_between_begin_and_commit__memory_waits_for_its_process),
        TEST(engine__unregisters_with_open_places__memory_is_free_at_once),
        TEST(engine__dies_in_the_queue_for_dirty_bytes__leaves_nothing),
        TEST(drain__registered_hear_it__others_are_refused_and_do_not_count),
        TEST(drain__the_end_of_one_ends_another__both_are_gone),
        TEST(force__everybody__is_gone_with_places_of_living_processes),
        ACL_TEST(rights__read_taken_away__a_block_looks_like_one_that_is_not_there),
        ACL_TEST(rights__write_taken_away__puts_and_forget_are_denied),
        ACL_TEST(register__tenants_have_shares__is_told_what_they_can_hold),
        ACL_TEST(rights__user_not_named_any_more__ended_and_cannot_come_back),
        TEST(set_state__every_pair__follows_the_life_of_a_context),
        TEST(cancel__crossed_with_the_answer__gives_everything_back),
        TEST(cancel__crossed_with_the_places__gives_those_of_its_put_begin_back),
    };
    return cmocka_run_group_tests_name("server/engines", tests, NULL, NULL);
}
