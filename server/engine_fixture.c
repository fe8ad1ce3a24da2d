#include "server/engine_fixture.h"

#include "server/engines.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct node node;
struct kvf_engines *engines;
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

void raw_end_process(void)
{
    if (process == 0)
        return;
    (void)close(control);
    (void)waitpid(process, NULL, 0);
    process = 0;
}

struct kvf_acl *raw_acl; /* NULL: everybody may do everything */
char raw_acl_path[64];

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
                                          .acl = raw_acl,
                                          .left = left};
    struct kvf_why why = {.text = ""};
    if (!kvf_is_ok(kvf_engines_create(&options, &engines, &why)))
        fail_msg("%s", why.text);
}

int raw_set_up(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/raw_engines.%d.sock", (int)getpid());
    start_process(); /* before there are threads */
    node_set_up();
    node_start(&node, &(struct node_options){.ssd = true, .acl = raw_acl});
    open_engines();
    return 0;
}

/* rights: those of this process's user for tenant t; NULL: the ACL names somebody else. */
static void write_acl(const char *rights)
{
    FILE *file = fopen(raw_acl_path, "w");
    assert_non_null(file);
    if (rights != NULL)
        (void)fprintf(file, "{\"identities\": {\"uid:%u\": {\"t\": [%s]}}}", getuid(), rights);
    else
        (void)fprintf(file, "{\"identities\": {\"uid:%u\": {\"t\": []}}}", getuid() + 1);
    assert_int_equal(fclose(file), 0);
}

void raw_change_rights(const char *rights)
{
    write_acl(rights);
    assert_true(kvf_is_ok(kvf_acl_reload(raw_acl, NULL)));
    kvf_engines_rights_changed(engines);
}

int raw_set_up_acl(void **state)
{
    (void)snprintf(raw_acl_path, sizeof(raw_acl_path), "/tmp/raw_engines.%d.json", (int)getpid());
    write_acl("\"read\", \"write\"");
    return kvf_is_ok(kvf_acl_open(raw_acl_path, &raw_acl, NULL)) ? raw_set_up(state) : -1;
}

int raw_tear_down(void **state)
{
    (void)state;
    raw_end_process();
    node_run_until(kvf_engines_count(engines) == 0);
    kvf_engines_destroy(engines);
    node_stop(&node);
    node_tear_down();
    if (raw_acl != NULL)
        (void)unlink(raw_acl_path);
    kvf_acl_close(raw_acl);
    raw_acl = NULL;
    return 0;
}

/* ---- an engine ---- */

void raw_send_as(struct raw_engine *engine, Kvferry__EngineRequest *request, uint64_t id)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    request->id = id;
    assert_true(kvferry__engine_request__get_packed_size(request) <= sizeof(bytes));
    size_t length = kvferry__engine_request__pack(request, bytes);
    assert_true(kvf_is_ok(kvf_wire_send(engine->fd, bytes, length, NULL, 0)));
}

uint64_t raw_send(struct raw_engine *engine, Kvferry__EngineRequest *request)
{
    raw_send_as(engine, request, ++engine->last_id);
    return engine->last_id;
}

Kvferry__EngineReply *raw_next_reply(struct raw_engine *engine)
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

Kvferry__EngineReply *raw_reply_to(struct raw_engine *engine, uint64_t id)
{
    for (;;) {
        Kvferry__EngineReply *reply = raw_next_reply(engine);
        assert_non_null(reply);
        if (reply->id == id)
            return reply;
        kvferry__engine_reply__free_unpacked(reply, NULL);
    }
}

enum kvf_code raw_code_of(struct raw_engine *engine, uint64_t id)
{
    Kvferry__EngineReply *reply = raw_reply_to(engine, id);
    enum kvf_code code = (enum kvf_code)reply->code;
    kvferry__engine_reply__free_unpacked(reply, NULL);
    return code;
}

void raw_join(struct raw_engine *engine)
{
    *engine = (struct raw_engine){0};
    assert_true(kvf_is_ok(kvf_wire_connect(path, &engine->fd)));
}

void raw_join_as_process(struct raw_engine *engine)
{
    uint8_t byte[KVF_WIRE_MAX_BYTES];
    size_t length, count;
    struct kvf_status status;
    *engine = (struct raw_engine){0};
    assert_int_equal(write(control, "g", 1), 1);
    node_run_until(
        (status = kvf_wire_receive(control, byte, &length, &engine->fd, 1, &count)).code !=
        KVF_BUSY);
    assert_true(kvf_is_ok(status));
    assert_int_equal(count, 1);
}

uint64_t raw_max_get_bytes, raw_max_put_bytes;

enum kvf_code raw_register(struct raw_engine *engine)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRegister body = KVFERRY__ENGINE_REGISTER__INIT;
    body.version = KVF_WIRE_VERSION;
    body.name = (char *)(uintptr_t) "test";
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER;
    request.register_ = &body;
    Kvferry__EngineReply *reply = raw_reply_to(engine, raw_send(engine, &request));
    enum kvf_code code = (enum kvf_code)reply->code;
    if (reply->body_case == KVFERRY__ENGINE_REPLY__BODY_REGISTERED) {
        raw_max_get_bytes = reply->registered->max_get_bytes;
        raw_max_put_bytes = reply->registered->max_put_bytes;
    }
    kvferry__engine_reply__free_unpacked(reply, NULL);
    return code;
}

void raw_leave(struct raw_engine *engine)
{
    (void)close(engine->fd);
}

/* Names of blocks for requests. */
struct names {
    Kvferry__EngineName names[600], *pointers[600];
    struct kvf_key keys[600];
};

static struct names wanted;

Kvferry__EngineName **raw_names(unsigned first, size_t count, uint64_t length)
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

uint64_t raw_send_get(struct raw_engine *engine, unsigned first, size_t count, uint64_t length)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineGet body = KVFERRY__ENGINE_GET__INIT;
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.n_blocks = count;
    body.blocks = raw_names(first, count, length);
    body.deadline_us = 10000000;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request.get = &body;
    return raw_send(engine, &request);
}

uint64_t raw_send_put_begin(struct raw_engine *engine, unsigned first, size_t count,
                            uint64_t length)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EnginePutBegin body = KVFERRY__ENGINE_PUT_BEGIN__INIT;
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.n_blocks = count;
    body.blocks = raw_names(first, count, length);
    body.deadline_us = 10000000;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN;
    request.put_begin = &body;
    return raw_send(engine, &request);
}

uint64_t raw_send_commit(struct raw_engine *engine, uint64_t first, size_t count)
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
    return raw_send(engine, &request);
}

uint64_t raw_send_release(struct raw_engine *engine, uint64_t get)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRelease body = KVFERRY__ENGINE_RELEASE__INIT;
    body.get = get;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE;
    request.release = &body;
    return raw_send(engine, &request);
}

uint64_t raw_send_cancel(struct raw_engine *engine, uint64_t id)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineCancel body = KVFERRY__ENGINE_CANCEL__INIT;
    body.id = id;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL;
    request.cancel = &body;
    return raw_send(engine, &request);
}

void raw_settle(struct raw_engine *engine)
{
    assert_int_equal(raw_code_of(engine, raw_send_commit(engine, UINT32_MAX, 1)), KVF_OK);
}

uint64_t raw_send_unregister(struct raw_engine *engine)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineUnregister body = KVFERRY__ENGINE_UNREGISTER__INIT;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_UNREGISTER;
    request.unregister = &body;
    return raw_send(engine, &request);
}

uint64_t raw_dirty_bytes(void)
{
    return node.admission.classes[KVF_CLASS_DIRTY].used_bytes;
}
