/* Listening and stopping, strangers on the port, and processes that die. */
#include "proto/rpc/accept.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/testing.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ---- stopping ---- */

static void server_stop__open_calls__cancelled_after_grace(void **state)
{
    (void)state;
    script = (struct script){.echo = true};
    struct record clients[8];
    for (int i = 0; i < 8; i++) {
        start_call(&clients[i], "/kvferry.Test/Call", 0);
        say(&clients[i], "stay");
        run_until(clients[i].messages == 1);
    }
    stopped = false;
    kvf_rpc_server_stop(server, 300, note_stopped, &stopped);
    say(&clients[0], "still there?");
    run_until(clients[0].messages == 2);
    assert_false(stopped);
    run_until(stopped);
    server = NULL;
    assert_int_equal(served_closed, 8); /* all before `stopped` */
    for (int i = 0; i < 8; i++) {
        run_until(clients[i].closes == 1);
        assert_true(clients[i].status.code == KVF_UNAVAILABLE ||
                    clients[i].status.code == KVF_CANCELLED);
    }
}

static void server_stop__calls_end_in_time__does_not_wait_for_grace(void **state)
{
    (void)state;
    script = (struct script){.echo = true, .finish_on_half_close = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "one");
    run_until(client.messages == 1);
    stopped = false;
    kvf_rpc_server_stop(server, 3600 * 1000, note_stopped, &stopped);
    run_for_ms(100);
    assert_false(stopped);
    say(&client, "two");
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1 && stopped);
    server = NULL;
    assert_code(client.status, KVF_OK);
    assert_int_equal(client.messages, 2);
}

/* The answer is the last thing before the connection goes: it must not be lost with it. */
static void stopping_after_answer(struct kvf_rpc_call *call, void *context)
{
    called(call, context);
    stopped = false;
    kvf_rpc_server_stop(server, 10000, note_stopped, &stopped);
}

static void server_stop__together_with_the_last_answer__answer_arrives(void **state)
{
    static const struct kvf_rpc_method stopping = {
        .path = "/kvferry.Test/Call", .called = stopping_after_answer, .context = &script};
    for (int i = 0; i < 50; i++) {
        assert_int_equal(set_up_bare(state), 0);
        assert_true(
            kvf_is_ok(kvf_rpc_server_start(rpc, "127.0.0.1:0", NULL, &stopping, 1, &server, NULL)));
        dial_server("127.0.0.1", NULL);
        script = (struct script){.numbers = true, .count = 20, .finish_on_call = true};
        struct record client;
        start_call(&client, "/kvferry.Test/Call", 0);
        run_until(client.closes == 1 && stopped);
        server = NULL;
        assert_code(client.status, KVF_OK);
        assert_int_equal(client.messages, 20);
        assert_int_equal(tear_down(state), 0);
    }
}

static void server_stop__new_call__unavailable(void **state)
{
    (void)state;
    script = (struct script){.echo = true};
    struct record first, late;
    start_call(&first, "/kvferry.Test/Call", 0);
    say(&first, "one");
    run_until(first.messages == 1);
    stopped = false;
    kvf_rpc_server_stop(server, 500, note_stopped, &stopped);
    run_for_ms(50);
    start_call(&late, "/kvferry.Test/Call", 10000);
    run_until(late.closes == 1 && stopped && first.closes == 1);
    server = NULL;
    assert_code(late.status, KVF_UNAVAILABLE);
    assert_non_null(strstr(late.text, "going away"));
    assert_int_equal(served_count, 1);
}

static void server_start__taken_port__says_so(void **state)
{
    (void)state;
    char address[64];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", kvf_rpc_server_port(server));
    struct kvf_rpc_server *second = NULL;
    struct kvf_why why = {0};
    assert_code(kvf_rpc_server_start(rpc, address, NULL, methods, 2, &second, &why),
                KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, address));
    assert_non_null(strstr(why.text, "in use"));
    assert_null(second);
}

static void address__nonsense__invalid(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",          ":80",         "host",           "host:",    "host:port", "host:65536",
        "host:0x50", "dns:///h:80", "ipv4:1.2.3.4:5", "::1:80",   "unix:",     "h:80,h:81",
        "xds:///x",  "a/b:80",      "host:80 ",       "host:8 0", "host:-1",   "host:000000"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct kvf_why why = {0};
        struct kvf_rpc_server *no_server = NULL;
        struct kvf_rpc_channel *no_channel = NULL;
        assert_code(kvf_rpc_server_start(rpc, wrong[i], NULL, methods, 2, &no_server, &why),
                    KVF_INVALID);
        assert_true(strlen(why.text) > 0);
        assert_code(kvf_rpc_channel_open(rpc, wrong[i], NULL, &no_channel, &why), KVF_INVALID);
    }
    char path[200] = "unix:/";
    memset(path + 6, 'x', sizeof(path) - 7);
    path[sizeof(path) - 1] = '\0';
    struct kvf_rpc_channel *no_channel = NULL;
    assert_code(kvf_rpc_channel_open(rpc, path, NULL, &no_channel, NULL), KVF_INVALID);
}

/* ---- the unfriendly ---- */

static int connect_raw(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)kvf_rpc_server_port(server)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

static void server__garbage_on_the_port__others_unharmed(void **state)
{
    (void)state;
    script = (struct script){.echo = true, .finish_on_half_close = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "one");
    run_until(client.messages == 1);
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    unsigned seed = 7;
    for (int i = 0; i < 60; i++) {
        char noise[4096];
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (char)rand_r(&seed);
        int fd = connect_raw();
        if (i % 2 == 1)
            (void)!send(fd, preface, sizeof(preface) - 1, MSG_NOSIGNAL);
        if (i % 4 == 3) /* an empty SETTINGS frame, so that the noise is taken for frames */
            (void)!send(fd, "\0\0\0\4\0\0\0\0\0", 9, MSG_NOSIGNAL);
        (void)!send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
        run_for_ms(2);
        (void)close(fd);
    }
    say(&client, "two");
    run_until(client.messages == 2);
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
}

static void server_stop__silent_connection__does_not_hang(void **state)
{
    (void)state;
    int fd = connect_raw();
    run_for_ms(20);
    stop_server(200);
    (void)close(fd);
}

static void rpc__idle_stream__uses_no_cpu(void **state)
{
    (void)state;
    script = (struct script){.echo = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "one");
    run_until(client.messages == 1);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    run_for_ms(500);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_ns =
        (after.tv_sec - before.tv_sec) * (int64_t)KVF_NS_PER_S + (after.tv_nsec - before.tv_nsec);
    assert_true(used_ns < 250 * (int64_t)KVF_NS_PER_MS); /* a spinning thread would use all of it */
    kvf_rpc_call_cancel(client.call);
    run_until(client.closes == 1);
}

/* ---- a client of another make: gRPC without our limits ---- */

struct foreign {
    grpc_completion_queue *queue;
    grpc_channel *channel;
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *reply;
    grpc_status_code code;
    grpc_slice details;
};

static void foreign_start(struct foreign *foreign, const grpc_channel_args *arguments,
                          size_t length)
{
    char address[64];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", kvf_rpc_server_port(server));
    *foreign = (struct foreign){.queue = grpc_completion_queue_create_for_next(NULL)};
    grpc_channel_credentials *insecure = grpc_insecure_credentials_create();
    foreign->channel = grpc_channel_create(address, insecure, arguments);
    grpc_channel_credentials_release(insecure);
    foreign->call = grpc_channel_create_call(foreign->channel, NULL, 0, foreign->queue,
                                             grpc_slice_from_static_string("/kvferry.Test/Call"),
                                             NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice slice = grpc_slice_malloc(length);
    memset(GRPC_SLICE_START_PTR(slice), 0, length);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &foreign->initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &foreign->reply},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &foreign->trailing,
                                        .status = &foreign->code,
                                        .status_details = &foreign->details}},
    };
    grpc_call_error error = grpc_call_start_batch(foreign->call, ops, 6, foreign, NULL);
    grpc_byte_buffer_destroy(message);
    assert_int_equal(error, GRPC_CALL_OK);
}

static bool foreign_has_ended(const struct foreign *foreign)
{
    return grpc_completion_queue_next(foreign->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL)
               .type == GRPC_OP_COMPLETE;
}

static void foreign_free(struct foreign *foreign)
{
    grpc_slice_unref(foreign->details);
    grpc_byte_buffer_destroy(foreign->reply);
    grpc_metadata_array_destroy(&foreign->initial);
    grpc_metadata_array_destroy(&foreign->trailing);
    grpc_call_unref(foreign->call);
    grpc_channel_destroy(foreign->channel);
    grpc_completion_queue_shutdown(foreign->queue);
    while (grpc_completion_queue_next(foreign->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
               .type != GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(foreign->queue);
}

static void server__foreign_message_beyond_the_limit__ends_only_that_call(void **state)
{
    (void)state;
    script = (struct script){.echo = true, .finish_on_half_close = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "one");
    run_until(client.messages == 1);
    struct foreign foreign;
    foreign_start(&foreign, NULL, KVF_RPC_MAX_MESSAGE_BYTES + 1);
    run_until(foreign_has_ended(&foreign));
    assert_int_equal(foreign.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    foreign_free(&foreign);
    run_until(served_closed == 1);
    assert_int_equal(served[1].messages, 0);
    assert_code(served[1].status, KVF_CANCELLED);
    say(&client, "two");
    run_until(client.messages == 2);
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
}

static void server__foreign_message_at_the_limit__heard(void **state)
{
    (void)state;
    script = (struct script){.finish_on_half_close = true};
    struct foreign foreign;
    foreign_start(&foreign, NULL, KVF_RPC_MAX_MESSAGE_BYTES);
    run_until(foreign_has_ended(&foreign));
    assert_int_equal(foreign.code, GRPC_STATUS_OK);
    foreign_free(&foreign);
    assert_int_equal(served[0].last_length, KVF_RPC_MAX_MESSAGE_BYTES);
}

/* 64 MiB of zeros are a short message when compressed. */
static void server__foreign_compressed_message__refused_unopened(void **state)
{
    (void)state;
    script = (struct script){.finish_on_half_close = true};
    grpc_arg gzip = {.type = GRPC_ARG_INTEGER,
                     .key = (char *)(uintptr_t)GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM,
                     .value.integer = GRPC_COMPRESS_GZIP};
    grpc_channel_args arguments = {.num_args = 1, .args = &gzip};
    struct foreign foreign;
    foreign_start(&foreign, &arguments, (size_t)64 << 20);
    run_until(foreign_has_ended(&foreign));
    assert_int_equal(foreign.code, GRPC_STATUS_UNIMPLEMENTED);
    foreign_free(&foreign);
    run_until(served_closed == served_count);
    assert_int_equal(served[0].messages, 0);
}

/* ---- a process that dies ---- */

static pid_t spawn_self(const char *role, const char *argument, int *out)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, pipes[0]);
    char *argv[] = {(char *)"server_test", (char *)(uintptr_t)role, (char *)(uintptr_t)argument,
                    NULL};
    pid_t pid = -1;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    (void)close(pipes[1]);
    *out = pipes[0];
    return pid;
}

/* The other process: a server that echoes and prints its port, or a client that holds a call
 * open. */
static int be_server(void)
{
    void *state = NULL;
    if (set_up_bare(&state) != 0)
        return 1;
    listen_at("127.0.0.1:0", NULL);
    script = (struct script){.echo = true};
    (void)printf("%d\n", kvf_rpc_server_port(server));
    (void)fflush(stdout);
    kvf_loop_run(loop);
    return 0;
}

static int be_client(const char *address)
{
    void *state = NULL;
    if (set_up_bare(&state) != 0)
        return 1;
    dial(address, NULL);
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "here");
    kvf_loop_run(loop);
    return 0;
}

static void kill_and_reap(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
}

static void call__server_killed__client_unavailable(void **state)
{
    (void)state;
    int out;
    pid_t pid = spawn_self("--be-server", NULL, &out);
    char address[64] = "127.0.0.1:";
    ssize_t got = read(out, address + 10, sizeof(address) - 11);
    assert_true(got > 1);
    address[10 + got - 1] = '\0';
    dial(address, NULL);
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "hello");
    run_until(client.messages == 1);
    kill_and_reap(pid);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_UNAVAILABLE);
    (void)close(out);
}

static void call__client_killed__server_side_cancelled(void **state)
{
    (void)state;
    char address[64];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", kvf_rpc_server_port(server));
    int out;
    pid_t pid = spawn_self("--be-client", address, &out);
    run_until(served_count == 1 && served[0].messages == 1);
    kill_and_reap(pid);
    run_until(served_closed == 1);
    assert_code(served[0].status, KVF_CANCELLED);
    (void)close(out);
}

/* A stopped process keeps its connection: only the keepalive finds out. */
static void call__server_stopped__keepalive_ends_it(void **state)
{
    (void)state;
    int out;
    pid_t pid = spawn_self("--be-server", NULL, &out);
    char address[64] = "127.0.0.1:";
    ssize_t got = read(out, address + 10, sizeof(address) - 11);
    assert_true(got > 1);
    address[10 + got - 1] = '\0';
    dial(address, NULL);
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "hello");
    run_until(client.messages == 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_UNAVAILABLE);
    kill_and_reap(pid);
    (void)close(out);
}

/* ---- accept4 fails ---- */

static _Atomic int accepts_to_fail, accept_error;

/* In front of libc's, whose word accept.c takes: so many times the kernel says no. It asks for libc's each time: any thread
 * comes by here, and it is seldom. */
long syscall(long number, ...)
{
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long words[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_accept4 && atomic_load(&accepts_to_fail) > 0 &&
        atomic_fetch_sub(&accepts_to_fail, 1) > 0) {
        errno = atomic_load(&accept_error);
        return -1;
    }
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* Any of them ends the listener of gRPC for good, if it hears it. */
static void server__accept_fails_for_a_while__listens_on(void **state)
{
    (void)state;
    static const int errors[] = {ENOMEM, ENOBUFS, ECONNABORTED, EPROTO, EPERM, EHOSTUNREACH};
    script = (struct script){.echo = true};
    for (size_t i = 0; i < 2 * sizeof(errors) / sizeof(errors[0]); i++) {
        struct record client = {0};
        bool long_enough_to_be_given_up = i % 2 == 1;
        atomic_store(&accept_error, errors[i / 2]);
        atomic_store(&accepts_to_fail, long_enough_to_be_given_up ? 1000 : 1);
        kvf_rpc_channel_close(channel);
        dial_server("127.0.0.1", NULL);
        for (int calls = 0; client.messages == 0; calls++) {
            assert_true(calls < 100);
            run_for_ms(calls > 0 ? 100 : 0); /* the channel is in its back-off */
            start_call(&client, "/kvferry.Test/Call", 0);
            say(&client, "hello");
            if (calls == 0)
                run_for_ms(300);
            atomic_store(&accepts_to_fail, 0);
            run_until(client.messages == 1 || client.closes == 1);
        }
        kvf_rpc_call_cancel(client.call);
        run_until(client.closes == 1);
    }
}

/* ---- out of descriptors ---- */

static rlim_t limit_descriptors(rlim_t soft)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = soft;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

/* Another process that only holds connections open, until `until` is closed. */
static pid_t start_crowd(int port, rlim_t size, int ready, int until)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)limit_descriptors(size + 100);
    for (rlim_t i = 0; i < size; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fd, (struct sockaddr *)&to, sizeof(to));
    }
    char byte = 0;
    (void)!write(ready, &byte, 1);
    (void)!read(until, &byte, 1);
    _exit(0);
}

static void server__out_of_descriptors__listens_on(void **state)
{
    (void)state;
    int ready[2], until[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(until), 0);
    uint64_t dropped = rpc_accept_dropped();
    rlim_t before = limit_descriptors((rlim_t)until[1] + 40);
    pid_t crowd = start_crowd(kvf_rpc_server_port(server), 120, ready[1], until[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    run_until(rpc_accept_dropped() > dropped);
    kill_and_reap(crowd);
    (void)limit_descriptors(before);
    kvf_rpc_channel_close(channel);
    dial_server("127.0.0.1", NULL);
    script = (struct script){.echo = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "hello");
    run_until(client.messages == 1);
    kvf_rpc_call_cancel(client.call);
    run_until(client.closes == 1);
    for (int i = 0; i < 2; i++) {
        (void)close(ready[i]);
        (void)close(until[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--be-server") == 0)
        return be_server();
    if (argc > 2 && strcmp(argv[1], "--be-client") == 0)
        return be_client(argv[2]);
    const struct CMUnitTest tests[] = {
        TEST(server_stop__open_calls__cancelled_after_grace),
        TEST(server_stop__calls_end_in_time__does_not_wait_for_grace),
        cmocka_unit_test(server_stop__together_with_the_last_answer__answer_arrives),
        TEST(server_stop__new_call__unavailable),
        TEST(server_start__taken_port__says_so),
        BARE_TEST(address__nonsense__invalid),
        TEST(server__garbage_on_the_port__others_unharmed),
        TEST(server_stop__silent_connection__does_not_hang),
        TEST(rpc__idle_stream__uses_no_cpu),
        TEST(server__foreign_message_beyond_the_limit__ends_only_that_call),
        TEST(server__foreign_message_at_the_limit__heard),
        TEST(server__foreign_compressed_message__refused_unopened),
        TEST(server__out_of_descriptors__listens_on),
        TEST(server__accept_fails_for_a_while__listens_on),
        BARE_TEST(call__server_killed__client_unavailable),
        TEST(call__client_killed__server_side_cancelled),
        BARE_TEST(call__server_stopped__keepalive_ends_it),
    };
    return cmocka_run_group_tests_name("rpc_server", tests, NULL, NULL);
}
