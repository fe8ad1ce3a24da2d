#include "proto/rpc/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvf_loop *loop;
struct kvf_rpc *rpc;
struct kvf_rpc_server *server;
struct kvf_rpc_channel *channel;
struct record served[SERVED_MAX];
int served_count, served_closed;
struct script script;
bool stopped;

struct kvf_bytes bytes_of(const void *data, size_t length)
{
    return (struct kvf_bytes){.data = data, .length = length};
}

static void note_message(struct record *record, struct kvf_bytes bytes)
{
    record->messages++;
    record->bytes += bytes.length;
    record->last_length = bytes.length;
    size_t kept = bytes.length < sizeof(record->last) - 1 ? bytes.length : sizeof(record->last) - 1;
    memcpy(record->last, bytes.data, kept);
    record->last[kept] = '\0';
    uint32_t number = 0;
    if (bytes.length >= sizeof(number))
        memcpy(&number, bytes.data, sizeof(number));
    if (number != record->next++)
        record->in_order = false;
}

static void note_closed(struct record *record, struct kvf_status status, const char *text)
{
    assert_non_null(text);
    record->closes++;
    record->status = status;
    (void)snprintf(record->text, sizeof(record->text), "%s", text);
    (void)snprintf(record->peer, sizeof(record->peer), "%s", kvf_rpc_call_peer(record->call));
    (void)snprintf(record->identity, sizeof(record->identity), "%s",
                   kvf_rpc_call_identity(record->call));
    record->call = NULL;
}

void send_numbers(struct kvf_rpc_call *call, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        kvf_rpc_call_send(call, bytes_of(&i, sizeof(i)));
}

/* ---- the server's side ---- */

static void server_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    struct record *record = user;
    note_message(record, bytes);
    if (record->script->echo)
        kvf_rpc_call_send(call, bytes);
    if (record->script->reply_bytes > 0 && record->messages == 1) {
        char *reply = calloc(1, record->script->reply_bytes);
        kvf_rpc_call_send(call, bytes_of(reply, record->script->reply_bytes));
        free(reply);
    }
    if (record->script->cancel_on_message)
        kvf_rpc_call_cancel(call);
}

static void server_half_closed(struct kvf_rpc_call *call, void *user)
{
    struct record *record = user;
    record->half_closes++;
    if (record->script->finish_on_half_close)
        kvf_rpc_call_finish(call, record->script->status, record->script->text);
}

static void server_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                          const char *text)
{
    struct record *record = user;
    assert_ptr_equal(record->call, call);
    note_closed(record, status, text);
    served_closed++;
}

static const struct kvf_rpc_events server_events = {
    .message = server_message, .half_closed = server_half_closed, .closed = server_closed};

void called(struct kvf_rpc_call *call, void *context)
{
    assert_true(served_count < SERVED_MAX);
    struct record *record = &served[served_count++];
    *record = (struct record){.call = call, .in_order = true, .script = context};
    kvf_rpc_call_accept(call, &server_events, record);
    if (record->script->numbers)
        send_numbers(call, record->script->count);
    if (record->script->finish_on_call)
        kvf_rpc_call_finish(call, record->script->status, record->script->text);
}

static void refused(struct kvf_rpc_call *call, void *context)
{
    (void)context;
    kvf_rpc_call_finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_DENIED, 0), "not you");
}

const struct kvf_rpc_method methods[2] = {
    {.path = "/kvferry.Test/Call", .called = called, .context = &script},
    {.path = "/kvferry.Test/Refuse", .called = refused},
};

void note_stopped(void *context)
{
    *(bool *)context = true;
}

/* ---- the client's side ---- */

static void client_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)call;
    note_message(user, bytes);
}

static void client_half_closed(struct kvf_rpc_call *call, void *user)
{
    (void)call;
    ((struct record *)user)->half_closes++;
}

void client_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                   const char *text)
{
    struct record *record = user;
    assert_ptr_equal(record->call, call);
    note_closed(record, status, text);
}

static const struct kvf_rpc_events client_events = {
    .message = client_message, .half_closed = client_half_closed, .closed = client_closed};

void start_call(struct record *record, const char *path, uint64_t timeout_ms)
{
    *record = (struct record){.in_order = true};
    assert_true(kvf_is_ok(
        kvf_rpc_call_start(channel, path, timeout_ms, &client_events, record, &record->call)));
}

void say(struct record *record, const char *text)
{
    kvf_rpc_call_send(record->call, bytes_of(text, strlen(text)));
}

/* ---- waiting ---- */

static void tick(struct kvf_timer *timer)
{
    (void)timer;
}

void run_for_ms(uint64_t ms)
{
    struct kvf_timer timer = {.fire = tick};
    kvf_timer_start(loop, &timer, kvf_clock_now_ns() + ms * KVF_NS_PER_MS);
    while (timer.armed)
        kvf_loop_run_once(loop, -1);
}

/* ---- the world ---- */

void listen_at(const char *address, struct kvf_rpc_tls *tls)
{
    struct kvf_why why = {0};
    struct kvf_status status = kvf_rpc_server_start(rpc, address, tls, methods, 2, &server, &why);
    if (!kvf_is_ok(status))
        fail_msg("%s: %s", kvf_code_name(status.code), why.text);
}

void dial(const char *address, struct kvf_rpc_tls *tls)
{
    struct kvf_why why = {0};
    struct kvf_status status = kvf_rpc_channel_open(rpc, address, tls, &channel, &why);
    if (!kvf_is_ok(status))
        fail_msg("%s: %s", kvf_code_name(status.code), why.text);
}

void dial_server(const char *host, struct kvf_rpc_tls *tls)
{
    char address[64];
    (void)snprintf(address, sizeof(address), "%s:%d", host, kvf_rpc_server_port(server));
    dial(address, tls);
}

int set_up_bare(void **state)
{
    (void)state;
    served_count = served_closed = 0;
    script = (struct script){0};
    server = NULL;
    channel = NULL;
    if (!kvf_is_ok(kvf_loop_create(&loop)))
        return -1;
    return kvf_is_ok(kvf_rpc_create(loop, &rpc)) ? 0 : -1;
}

int set_up(void **state)
{
    if (set_up_bare(state) != 0)
        return -1;
    listen_at("127.0.0.1:0", NULL);
    dial_server("127.0.0.1", NULL);
    return 0;
}

void stop_server(uint64_t grace_ms)
{
    stopped = false;
    kvf_rpc_server_stop(server, grace_ms, note_stopped, &stopped);
    run_until(stopped);
    server = NULL;
}

int tear_down(void **state)
{
    (void)state;
    kvf_rpc_channel_close(channel);
    if (server != NULL)
        stop_server(0);
    kvf_rpc_destroy(rpc);
    kvf_loop_destroy(loop);
    return 0;
}

void assert_code(struct kvf_status status, enum kvf_code code)
{
    assert_string_equal(kvf_code_name(status.code), kvf_code_name(code));
}
