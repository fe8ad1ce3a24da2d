#include "client/cli/admin.h"

#include "base/loop.h"
#include "base/test.h"
#include "proto/admin.h"
#include "proto/admin.pb-c.h"
#include "proto/rpc/rpc.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A daemon's admin.sock, served by a thread of its own: each method answers as its name says. */
struct daemon {
    char run_dir[64], path[96];
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_rpc_server *server;
    pthread_t thread;
    struct kvf_post stop;
    bool started;
};

static struct daemon daemon_;

static void reply_packed(struct kvf_rpc_call *call, const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(length + 1);
    protobuf_c_message_pack(message, packed);
    kvf_rpc_call_send(call, (struct kvf_bytes){packed, length});
    free(packed);
    kvf_rpc_call_finish(call, kvf_ok(), "");
}

static void no_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)call;
    (void)user;
    (void)bytes;
}

static void on_stat(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)user;
    Kvferry__StatRequest *request = kvferry__stat_request__unpack(NULL, bytes.length, bytes.data);
    Kvferry__StatReply reply = KVFERRY__STAT_REPLY__INIT;
    char json[] = "{\"state\":\"READY\"}";
    reply.json = request != NULL ? json : json + 15;
    kvferry__stat_request__free_unpacked(request, NULL);
    reply_packed(call, &reply.base);
}

static void on_sync(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)user;
    Kvferry__SyncRequest *request = kvferry__sync_request__unpack(NULL, bytes.length, bytes.data);
    Kvferry__AdminReply reply = KVFERRY__ADMIN_REPLY__INIT;
    reply.blocks = request->durable ? 7 : 1;
    reply.bytes = UINT64_C(1) << 40;
    kvferry__sync_request__free_unpacked(request, NULL);
    reply_packed(call, &reply.base);
}

static void on_set(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)user;
    Kvferry__SetReadBatchRequest *request =
        kvferry__set_read_batch_request__unpack(NULL, bytes.length, bytes.data);
    Kvferry__AdminReply reply = KVFERRY__ADMIN_REPLY__INIT;
    char words[] = "32 MiB is above the limit of 16 MiB: raise it or ask for less";
    reply.code = request->mib == 32 ? KVF_INVALID : KVF_OK;
    reply.message = words;
    kvferry__set_read_batch_request__free_unpacked(request, NULL);
    reply_packed(call, &reply.base);
}

static void on_evict(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)user;
    (void)bytes;
    static const uint8_t garbage[] = {0xff, 0xff, 0xff, 0xff};
    kvf_rpc_call_send(call, (struct kvf_bytes){garbage, sizeof(garbage)});
    kvf_rpc_call_finish(call, kvf_ok(), "");
}

static void on_call(struct kvf_rpc_call *call, void *context)
{
    kvf_rpc_call_accept(call, context, NULL);
}

static const struct kvf_rpc_events stat_events = {.message = on_stat};
static const struct kvf_rpc_events sync_events = {.message = on_sync};
static const struct kvf_rpc_events set_events = {.message = on_set};
static const struct kvf_rpc_events evict_events = {.message = on_evict};
static const struct kvf_rpc_events silent_events = {.message = no_message};

static const struct kvf_rpc_method methods[] = {
    {KVF_ADMIN_STAT, on_call, (void *)(uintptr_t)&stat_events},
    {KVF_ADMIN_SYNC, on_call, (void *)(uintptr_t)&sync_events},
    {KVF_ADMIN_SET_READ_BATCH, on_call, (void *)(uintptr_t)&set_events},
    {KVF_ADMIN_EVICT, on_call, (void *)(uintptr_t)&evict_events},
    {KVF_ADMIN_DRAIN, on_call, (void *)(uintptr_t)&silent_events},
};

static void stopped(void *context)
{
    struct daemon *daemon = context;
    kvf_loop_stop(daemon->loop);
}

static void stop_server(struct kvf_post *post)
{
    (void)post;
    kvf_rpc_server_stop(daemon_.server, 0, stopped, &daemon_);
}

static void *serve(void *context)
{
    struct daemon *daemon = context;
    kvf_loop_run(daemon->loop);
    return NULL;
}

static int make_run_dir(void **state)
{
    (void)state;
    daemon_ = (struct daemon){0};
    (void)snprintf(daemon_.run_dir, sizeof(daemon_.run_dir), "/tmp/kvf-admin-XXXXXX");
    if (mkdtemp(daemon_.run_dir) == NULL)
        return -1;
    (void)snprintf(daemon_.path, sizeof(daemon_.path), "%s/admin.sock", daemon_.run_dir);
    return 0;
}

static int start_daemon(void **state)
{
    if (make_run_dir(state) != 0)
        return -1;
    char address[112];
    struct kvf_why why = {""};
    (void)snprintf(address, sizeof(address), "unix:%s", daemon_.path);
    if (!kvf_is_ok(kvf_loop_create(&daemon_.loop)) ||
        !kvf_is_ok(kvf_rpc_create(daemon_.loop, &daemon_.rpc)) ||
        !kvf_is_ok(kvf_rpc_server_start(daemon_.rpc, address, NULL, methods,
                                        sizeof(methods) / sizeof(methods[0]), &daemon_.server,
                                        &why)))
        return -1;
    daemon_.stop.run = stop_server;
    daemon_.started = pthread_create(&daemon_.thread, NULL, serve, &daemon_) == 0;
    return daemon_.started ? 0 : -1;
}

static void end_daemon(void)
{
    if (!daemon_.started)
        return;
    kvf_loop_post(daemon_.loop, &daemon_.stop);
    (void)pthread_join(daemon_.thread, NULL);
    kvf_rpc_destroy(daemon_.rpc);
    kvf_loop_destroy(daemon_.loop);
    daemon_.started = false;
}

static int clean_up(void **state)
{
    (void)state;
    end_daemon();
    (void)unlink(daemon_.path);
    return rmdir(daemon_.run_dir);
}

static struct admin *open_admin(void)
{
    struct admin *admin = NULL;
    struct kvf_why why;
    assert_true(kvf_is_ok(admin_open(daemon_.run_dir, &admin, &why)));
    return admin;
}

static void stat__daemon_answers__its_json(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct kvf_why why = {""};
    for (int i = 0; i < 3; i++) { /* one after the other on the same connection */
        char *json = NULL;
        assert_true(kvf_is_ok(admin_stat(admin, 10000, &json, &why)));
        assert_string_equal(json, "{\"state\":\"READY\"}");
        free(json);
    }
    admin_close(admin);
}

static void sync__durable__blocks_and_bytes(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct admin_reply reply = {0};
    struct kvf_why why = {""};
    assert_true(kvf_is_ok(admin_sync(admin, true, 10000, &reply, &why)));
    assert_int_equal(reply.blocks, 7);
    assert_true(reply.bytes == UINT64_C(1) << 40);
    assert_true(kvf_is_ok(admin_sync(admin, false, 10000, &reply, &why)));
    assert_int_equal(reply.blocks, 1);
    admin_close(admin);
}

static void set_read_batch__refused__code_and_words_of_the_daemon(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct admin_reply reply = {0};
    struct kvf_why why = {""};
    assert_int_equal(admin_set_read_batch(admin, 32, 10000, &reply, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "above the limit of 16 MiB"));
    assert_true(kvf_is_ok(admin_set_read_batch(admin, 8, 10000, &reply, &why)));
    admin_close(admin);
}

static void evict__answer_is_garbage__protocol(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct admin_reply reply;
    struct kvf_why why = {""};
    assert_int_equal(admin_evict(admin, true, 10000, &reply, &why).code, KVF_PROTOCOL);
    assert_non_null(strstr(why.text, daemon_.path));
    admin_close(admin);
}

static void drain__no_answer__deadline(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct admin_reply reply;
    struct kvf_why why = {""};
    assert_int_equal(admin_drain(admin, 100, &reply, &why).code, KVF_DEADLINE);
    assert_non_null(strstr(why.text, "--timeout-s"));
    admin_close(admin);
}

static void stat__daemon_ends__unavailable_with_a_remedy(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct kvf_why why = {""};
    char *json = NULL;
    assert_true(kvf_is_ok(admin_stat(admin, 10000, &json, &why)));
    free(json);
    assert_int_equal(admin_presence(admin), ADMIN_LISTENS);
    assert_true(admin_socket_exists(admin));
    end_daemon();
    assert_int_equal(admin_stat(admin, 10000, &json, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "start it with --run-dir"));
    assert_int_not_equal(admin_presence(admin), ADMIN_LISTENS);
    admin_close(admin);
}

static void stat__no_socket__unavailable_with_a_remedy(void **state)
{
    (void)state;
    struct admin *admin = open_admin();
    struct kvf_why why = {""};
    char *json = NULL;
    assert_int_equal(admin_presence(admin), ADMIN_ABSENT);
    assert_false(admin_socket_exists(admin));
    assert_int_equal(admin_stat(admin, 10000, &json, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, daemon_.run_dir));
    assert_non_null(strstr(why.text, "start it with --run-dir"));
    admin_close(admin);
}

static void presence__socket_left_behind__deserted(void **state)
{
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", daemon_.path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    (void)close(fd);
    struct admin *admin = open_admin();
    struct kvf_why why = {""};
    char *json = NULL;
    assert_int_equal(admin_presence(admin), ADMIN_DESERTED);
    assert_int_equal(admin_stat(admin, 10000, &json, &why).code, KVF_UNAVAILABLE);
    admin_close(admin);
}

static void open__path_too_long__invalid(void **state)
{
    (void)state;
    char path[200];
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    struct admin *admin = NULL;
    struct kvf_why why = {""};
    assert_int_equal(admin_open(path, &admin, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "--run-dir"));
    assert_null(admin);
    admin_close(NULL);
}

int main(void)
{
    sigset_t block;
    (void)sigemptyset(&block);
    (void)sigaddset(&block, SIGTERM);
    (void)sigaddset(&block, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &block, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stat__daemon_answers__its_json, start_daemon, clean_up),
        cmocka_unit_test_setup_teardown(sync__durable__blocks_and_bytes, start_daemon, clean_up),
        cmocka_unit_test_setup_teardown(set_read_batch__refused__code_and_words_of_the_daemon,
                                        start_daemon, clean_up),
        cmocka_unit_test_setup_teardown(evict__answer_is_garbage__protocol, start_daemon, clean_up),
        cmocka_unit_test_setup_teardown(drain__no_answer__deadline, start_daemon, clean_up),
        cmocka_unit_test_setup_teardown(stat__daemon_ends__unavailable_with_a_remedy, start_daemon,
                                        clean_up),
        cmocka_unit_test_setup_teardown(stat__no_socket__unavailable_with_a_remedy, make_run_dir,
                                        clean_up),
        cmocka_unit_test_setup_teardown(presence__socket_left_behind__deserted, make_run_dir,
                                        clean_up),
        cmocka_unit_test(open__path_too_long__invalid),
    };
    return cmocka_run_group_tests_name("client/cli/admin", tests, NULL, NULL);
}
