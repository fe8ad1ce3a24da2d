/* Listening, new calls, stopping.
 *
 * gRPC knows no methods: one request for "any call" is always with it, and the path is looked up
 * here, so that a call of an unknown method gets its answer at once instead of waiting for a
 * handler that nobody registered. */
#include "proto/rpc/rpc_internal.h"

#include "base/address.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- new calls ---- */

static void request(struct kvf_rpc_server *server)
{
    server->requesting = true;
    grpc_call_details_init(&server->details);
    grpc_metadata_array_init(&server->metadata);
    rpc_early_begin(server->rpc);
    grpc_call_error error = grpc_server_request_call(
        server->server, &server->incoming, &server->details, &server->metadata, server->rpc->queue,
        server->rpc->queue, rpc_tag_lend(&server->request));
    struct rpc_tag *early = rpc_early_end(server->rpc);
    if (early != NULL)
        kvf_loop_post(server->rpc->loop, &early->post);
    kvf_assert(error == GRPC_CALL_OK);
}

static const struct kvf_rpc_method *find(const struct kvf_rpc_server *server, grpc_slice path)
{
    for (size_t i = 0; i < server->method_count; i++)
        if (grpc_slice_str_cmp(path, server->methods[i].path) == 0)
            return &server->methods[i];
    return NULL;
}

/* gRPC says farewell on a connection, waits for an echo, and closes it. Because that begins only when the calls have
 * ended, the client has read their last words by then: a connection that is closed right behind them may lose them. */
static void close_connections(struct kvf_rpc_server *server)
{
    server->state = RPC_SERVER_CLOSING;
    grpc_server_shutdown_and_notify(server->server, server->rpc->queue,
                                    rpc_tag_lend(&server->shutdown));
}

static void free_server(struct kvf_rpc_server *server)
{
    kvf_timer_stop(server->rpc->loop, &server->grace);
    grpc_server_destroy(server->server);
    server->rpc->users--;
    void (*stopped)(void *) = server->stopped;
    void *context = server->context;
    free(server);
    if (stopped != NULL)
        stopped(context);
}

/* Takes the next step of stopping when it can be taken. The server may be gone afterwards. */
static void go_on_stopping(struct kvf_rpc_server *server)
{
    if (server->calls > 0)
        return;
    if (server->state == RPC_SERVER_STOPPING)
        close_connections(server);
    else if (server->state == RPC_SERVER_SHUT && !server->requesting)
        free_server(server);
}

static void request_done(struct rpc_tag *tag, bool ok)
{
    struct kvf_rpc_server *server = kvf_container(tag, struct kvf_rpc_server, request);
    server->requesting = false;
    if (ok)
        rpc_call_serve(server, server->incoming, find(server, server->details.method));
    grpc_call_details_destroy(&server->details);
    grpc_metadata_array_destroy(&server->metadata);
    if (server->state < RPC_SERVER_CLOSING)
        request(server);
    else
        go_on_stopping(server);
}

void rpc_server_call_gone(struct kvf_rpc_server *server)
{
    server->calls--;
    go_on_stopping(server);
}

/* ---- stopping ---- */

static void shutdown_done(struct rpc_tag *tag, bool ok)
{
    struct kvf_rpc_server *server = kvf_container(tag, struct kvf_rpc_server, shutdown);
    (void)ok;
    server->state = RPC_SERVER_SHUT;
    go_on_stopping(server);
}

/* Also ends connections without calls: a client that does not answer would hold up the farewell otherwise. */
static void cut(struct kvf_rpc_server *server)
{
    if (server->state == RPC_SERVER_STOPPING)
        close_connections(server);
    grpc_server_cancel_all_calls(server->server);
}

static void grace_over(struct kvf_timer *timer)
{
    cut(kvf_container(timer, struct kvf_rpc_server, grace));
}

void kvf_rpc_server_stop(struct kvf_rpc_server *server, uint64_t grace_ms,
                         void (*stopped)(void *context), void *context)
{
    kvf_assert(server->state == RPC_SERVER_SERVING);
    server->state = RPC_SERVER_STOPPING;
    server->stopped = stopped;
    server->context = context;
    if (grace_ms == 0) {
        cut(server);
        return;
    }
    kvf_timer_start(server->rpc->loop, &server->grace,
                    kvf_clock_now_ns() + grace_ms * KVF_NS_PER_MS);
    go_on_stopping(server);
}

/* ---- listening ---- */

/* gRPC removes a unix socket that is in its way, also one that somebody listens on. */
static bool unix_is_taken(const char *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strncpy(name.sun_path, address + strlen("unix:"), sizeof(name.sun_path) - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool taken = connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0 || errno == EAGAIN;
    (void)close(fd);
    return taken;
}

/* What would the kernel say? 0 when it has nothing against it, else an errno. */
static int try_listen(const struct sockaddr *at, socklen_t bytes)
{
    int fd = kvf_address_listen(at, bytes, 1);
    if (fd < 0)
        return errno;
    (void)close(fd);
    return 0;
}

/* gRPC says only that it cannot. NULL when there is nothing against the address. */
static const char *why_not_tcp(const char *text)
{
    struct kvf_address address;
    struct addrinfo *found = NULL;
    kvf_assert(kvf_address_parse(text, &address)); /* rpc_address_check has looked */
    int error = kvf_address_resolve(&address, true, &found);
    if (error != 0)
        return gai_strerror(error);
    for (struct addrinfo *each = found; each != NULL && error == 0; each = each->ai_next)
        error = try_listen(each->ai_addr, each->ai_addrlen);
    freeaddrinfo(found);
    return error != 0 ? strerror(error) : NULL;
}

static const char *why_not_unix(const char *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strncpy(name.sun_path, address + strlen("unix:"), sizeof(name.sun_path) - 1);
    int error = try_listen((struct sockaddr *)&name, sizeof(name));
    return error != 0 ? strerror(error) : NULL;
}

static struct kvf_status cannot_listen(const char *address, struct kvf_why *why)
{
    const char *reason =
        rpc_address_is_unix(address) ? why_not_unix(address) : why_not_tcp(address);
    if (reason != NULL)
        return kvf_why_set(why, rpc_fail(KVF_UNAVAILABLE, 0),
                           "cannot listen on %s (%s): name an address of this host and a free port",
                           address, reason);
    return kvf_why_set(why, rpc_fail(KVF_UNAVAILABLE, 0),
                       "gRPC refuses to listen on %s: name another address of this host", address);
}

static struct kvf_status listen_on(struct kvf_rpc_server *server, const char *address,
                                   struct kvf_rpc_tls *tls, struct kvf_why *why)
{
    bool is_unix = rpc_address_is_unix(address);
    if (is_unix && unix_is_taken(address))
        return kvf_why_set(
            why, rpc_fail(KVF_UNAVAILABLE, EADDRINUSE),
            "cannot listen on %s: somebody does already: stop it or choose another address",
            address);
    grpc_server_credentials *credentials = rpc_credentials_server(tls);
    if (credentials == NULL)
        return rpc_fail(KVF_NO_MEMORY, 0);
    int port = grpc_server_add_http2_port(server->server, address, credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0)
        return cannot_listen(address, why);
    server->port = is_unix ? 0 : port;
    return kvf_ok();
}

static grpc_server *create_server(void)
{
    grpc_arg arguments[] = {
        RPC_INTEGER_ARG(GRPC_ARG_ALLOW_REUSEPORT, 0),
        RPC_INTEGER_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)KVF_RPC_MAX_MESSAGE_BYTES),
        RPC_INTEGER_ARG(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)KVF_RPC_MAX_MESSAGE_BYTES),
        RPC_INTEGER_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, 5000),
        RPC_INTEGER_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000),
        RPC_INTEGER_ARG(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        RPC_INTEGER_ARG(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        /* The default of 300 s would end a connection for the client's keepalive. */
        RPC_INTEGER_ARG(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
        RPC_INTEGER_ARG(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000),
        RPC_INTEGER_ARG(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024),
        RPC_INTEGER_ARG(GRPC_ARG_ENABLE_CHANNELZ, 0),
        /* Identity only: a small compressed message could unpack to any size. */
        RPC_INTEGER_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
    };
    grpc_channel_args all = {.num_args = sizeof(arguments) / sizeof(arguments[0]),
                             .args = arguments};
    return grpc_server_create(&all, NULL);
}

struct kvf_status kvf_rpc_server_start(struct kvf_rpc *rpc, const char *address,
                                       struct kvf_rpc_tls *tls,
                                       const struct kvf_rpc_method *methods, size_t method_count,
                                       struct kvf_rpc_server **give, struct kvf_why *why)
{
    KVF_TRY(rpc_address_check(address, why));
    struct kvf_rpc_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return rpc_fail(KVF_NO_MEMORY, 0);
    *server = (struct kvf_rpc_server){.rpc = rpc,
                                      .methods = methods,
                                      .method_count = method_count,
                                      .tls = tls != NULL,
                                      .grace.fire = grace_over,
                                      .server = create_server()};
    rpc_tag_init(&server->request, request_done);
    rpc_tag_init(&server->shutdown, shutdown_done);
    grpc_server_register_completion_queue(server->server, rpc->queue, NULL);
    struct kvf_status status = listen_on(server, address, tls, why);
    if (!kvf_is_ok(status)) {
        grpc_server_destroy(server->server); /* it never started: nothing to wait for */
        free(server);
        return status;
    }
    grpc_server_start(server->server);
    rpc->users++;
    request(server);
    *give = server;
    return status;
}

int kvf_rpc_server_port(const struct kvf_rpc_server *server)
{
    return server->port;
}
