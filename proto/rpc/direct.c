/* Parts: calls, the far end, rpc.h. */
#include "proto/rpc/direct.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

struct kvf_rpc_call {
    struct kvf_loop *loop;
    const struct kvf_rpc_events *events;
    void *user;
    struct direct_far *far; /* NULL: not taken yet */
    char *path;
    struct kvf_list node; /* all calls, oldest first */
    struct kvf_rpc_server *server;
    bool ended; /* nothing but `closed` comes any more */
    struct kvf_status status;
    struct kvf_post closing;
};

struct kvf_rpc {
    struct kvf_loop *loop;
};

struct kvf_rpc_channel {
    struct kvf_loop *loop;
};

struct kvf_rpc_server {
    struct kvf_loop *loop;
    const struct kvf_rpc_method *methods;
    size_t method_count;
    struct kvf_list node;
    struct kvf_post stopping;
    void (*stopped)(void *context);
    void *context;
};

static struct kvf_list calls = {&calls, &calls}, servers = {&servers, &servers};

/* ---- calls ---- */

static void *make(size_t bytes)
{
    void *made = calloc(1, bytes);
    kvf_assert(made != NULL);
    return made;
}

static void run_closed(struct kvf_post *post)
{
    struct kvf_rpc_call *call = kvf_container(post, struct kvf_rpc_call, closing);
    kvf_list_remove(&call->node);
    if (call->events != NULL && call->events->closed != NULL)
        call->events->closed(call, call->user, call->status, "");
    if (call->far != NULL)
        call->far->call = NULL;
    free(call->path);
    free(call);
}

static struct kvf_rpc_call *make_call(struct kvf_loop *loop, const char *path)
{
    struct kvf_rpc_call *call = make(sizeof(*call));
    call->loop = loop;
    call->path = strdup(path);
    call->closing.run = run_closed;
    kvf_list_push_back(&calls, &call->node);
    return call;
}

static void end(struct kvf_rpc_call *call, struct kvf_status status)
{
    if (call->ended)
        return;
    call->ended = true;
    call->status = status;
    kvf_loop_post(call->loop, &call->closing);
}

static struct kvf_status ended_by(enum kvf_code code)
{
    return code == KVF_OK ? kvf_ok() : kvf_fail(KVF_MODULE_PROTO, code, 0);
}

/* ---- the far end ---- */

static void serve(struct kvf_rpc_server *server, const struct kvf_rpc_method *method,
                  struct direct_far *far)
{
    struct kvf_rpc_call *call = make_call(server->loop, method->path);
    call->server = server;
    call->far = far;
    far->call = call;
    method->called(call, method->context);
}

void direct_call(struct direct_far *far, const char *path)
{
    kvf_list_for_each (node, &servers) {
        struct kvf_rpc_server *server = kvf_container(node, struct kvf_rpc_server, node);
        for (size_t i = 0; i < server->method_count; i++) {
            if (strcmp(server->methods[i].path, path) == 0) {
                serve(server, &server->methods[i], far);
                return;
            }
        }
    }
}

bool direct_take(struct direct_far *far, const char *path)
{
    kvf_list_for_each (node, &calls) {
        struct kvf_rpc_call *call = kvf_container(node, struct kvf_rpc_call, node);
        if (call->far != NULL || call->ended || strcmp(call->path, path) != 0)
            continue;
        call->far = far;
        far->call = call;
        return true;
    }
    return false;
}

void direct_refuse_all(void)
{
    kvf_list_for_each (node, &calls) {
        struct kvf_rpc_call *call = kvf_container(node, struct kvf_rpc_call, node);
        if (call->far == NULL)
            end(call, ended_by(KVF_UNAVAILABLE));
    }
}

void direct_say(struct direct_far *far, const void *bytes, size_t length)
{
    struct kvf_rpc_call *call = far->call;
    if (call == NULL || call->ended)
        return;
    if (length > KVF_RPC_MAX_MESSAGE_BYTES)
        end(call, ended_by(KVF_TOO_LARGE));
    else if (call->events->message != NULL)
        call->events->message(call, call->user, (struct kvf_bytes){bytes, length});
}

void direct_half_close(struct direct_far *far)
{
    struct kvf_rpc_call *call = far->call;
    if (call != NULL && !call->ended && call->events->half_closed != NULL)
        call->events->half_closed(call, call->user);
}

void direct_hang_up(struct direct_far *far, struct kvf_status status)
{
    if (far->call != NULL)
        end(far->call, status);
}

/* ---- rpc.h ---- */

/* What the process's accept4 needs of gRPC's wrapper. */
bool rpc_may_log(void);
bool rpc_may_log(void)
{
    return false;
}

struct kvf_status kvf_rpc_create(struct kvf_loop *loop, struct kvf_rpc **give)
{
    *give = make(sizeof(**give));
    (*give)->loop = loop;
    return kvf_ok();
}

void kvf_rpc_destroy(struct kvf_rpc *rpc)
{
    kvf_assert(kvf_list_is_empty(&calls) && kvf_list_is_empty(&servers));
    free(rpc);
}

struct kvf_status kvf_rpc_server_start(struct kvf_rpc *rpc, const char *address,
                                       struct kvf_rpc_tls *tls,
                                       const struct kvf_rpc_method *methods, size_t method_count,
                                       struct kvf_rpc_server **give, struct kvf_why *why)
{
    struct kvf_rpc_server *server = make(sizeof(*server));
    (void)address, (void)tls, (void)why;
    server->loop = rpc->loop;
    server->methods = methods;
    server->method_count = method_count;
    kvf_list_push_back(&servers, &server->node);
    *give = server;
    return kvf_ok();
}

int kvf_rpc_server_port(const struct kvf_rpc_server *server)
{
    (void)server;
    return 1;
}

static void run_stopped(struct kvf_post *post)
{
    struct kvf_rpc_server *server = kvf_container(post, struct kvf_rpc_server, stopping);
    void (*stopped)(void *context) = server->stopped;
    void *context = server->context;
    free(server);
    if (stopped != NULL)
        stopped(context);
}

void kvf_rpc_server_stop(struct kvf_rpc_server *server, uint64_t grace_ms,
                         void (*stopped)(void *context), void *context)
{
    (void)grace_ms;
    kvf_list_for_each (node, &calls) {
        struct kvf_rpc_call *call = kvf_container(node, struct kvf_rpc_call, node);
        if (call->server == server)
            end(call, ended_by(KVF_CANCELLED));
    }
    kvf_list_remove(&server->node);
    server->stopped = stopped;
    server->context = context;
    server->stopping.run = run_stopped;
    kvf_loop_post(server->loop, &server->stopping); /* behind the calls' ends */
}

struct kvf_status kvf_rpc_channel_open(struct kvf_rpc *rpc, const char *address,
                                       struct kvf_rpc_tls *tls, struct kvf_rpc_channel **give,
                                       struct kvf_why *why)
{
    (void)address, (void)tls, (void)why;
    *give = make(sizeof(**give));
    (*give)->loop = rpc->loop;
    return kvf_ok();
}

void kvf_rpc_channel_close(struct kvf_rpc_channel *channel)
{
    free(channel);
}

struct kvf_status kvf_rpc_call_start(struct kvf_rpc_channel *channel, const char *path,
                                     uint64_t timeout_ms, const struct kvf_rpc_events *events,
                                     void *user, struct kvf_rpc_call **give)
{
    struct kvf_rpc_call *call = make_call(channel->loop, path);
    (void)timeout_ms;
    call->events = events;
    call->user = user;
    *give = call;
    return kvf_ok();
}

void kvf_rpc_call_accept(struct kvf_rpc_call *call, const struct kvf_rpc_events *events, void *user)
{
    call->events = events;
    call->user = user;
}

void kvf_rpc_call_send(struct kvf_rpc_call *call, struct kvf_bytes bytes)
{
    kvf_assert(bytes.length <= KVF_RPC_MAX_MESSAGE_BYTES);
    if (call->far != NULL)
        call->far->heard++;
}

size_t kvf_rpc_call_queued_bytes(const struct kvf_rpc_call *call)
{
    (void)call;
    return 0;
}

void kvf_rpc_call_half_close(struct kvf_rpc_call *call)
{
    (void)call; /* the far end goes on as it likes */
}

void kvf_rpc_call_finish(struct kvf_rpc_call *call, struct kvf_status status, const char *text)
{
    (void)status, (void)text;
    end(call, kvf_ok());
}

void kvf_rpc_call_cancel(struct kvf_rpc_call *call)
{
    end(call, ended_by(KVF_CANCELLED));
}

const char *kvf_rpc_call_peer(const struct kvf_rpc_call *call)
{
    (void)call;
    return "ipv4:127.0.0.1:1";
}

const char *kvf_rpc_call_identity(const struct kvf_rpc_call *call)
{
    (void)call;
    return "";
}
