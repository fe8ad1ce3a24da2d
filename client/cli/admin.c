#include "client/cli/admin.h"

#include "base/loop.h"
#include "proto/admin.h"
#include "proto/admin.pb-c.h"
#include "proto/rpc/rpc.h"
#include "proto/scratch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The longest answer is one text, a little shorter than a message may be; touched only where used. */
#define UNPACKED_BYTES (2u << 20)

struct admin {
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    struct kvf_rpc_channel *channel;
    char run_dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct kvf_scratch scratch; /* over `unpacked`: the last answer */
    uint8_t unpacked[UNPACKED_BYTES];
};

/* One call, on the caller's stack until `closed`. */
struct exchange {
    uint8_t *answer; /* the first message, malloc'ed */
    size_t answer_bytes;
    bool has_answer, no_memory, closed;
    struct kvf_status status;
    char text[200];
};

static struct kvf_status fail(enum kvf_code code)
{
    return kvf_fail(KVF_MODULE_CLIENT, code, 0);
}

/* ---- life ---- */

static struct kvf_status open_parts(struct admin *admin, struct kvf_why *why)
{
    char address[sizeof(admin->path) + 8];
    (void)snprintf(address, sizeof(address), "unix:%s", admin->path);
    KVF_TRY(kvf_loop_create(&admin->loop));
    KVF_TRY(kvf_rpc_create(admin->loop, &admin->rpc));
    return kvf_rpc_channel_open(admin->rpc, address, NULL, &admin->channel, why);
}

struct kvf_status admin_open(const char *run_dir, struct admin **give, struct kvf_why *why)
{
    struct admin *admin = calloc(1, sizeof(*admin));
    if (admin == NULL)
        return fail(KVF_NO_MEMORY);
    int bytes = snprintf(admin->path, sizeof(admin->path), "%s/admin.sock", run_dir);
    if (bytes < 0 || (size_t)bytes >= sizeof(admin->path)) {
        free(admin);
        return kvf_why_set(
            why, fail(KVF_INVALID),
            "--run-dir %.120s...: too long for a unix socket; use a path of at most %zu bytes",
            run_dir, sizeof(admin->path) - sizeof("/engine.sock"));
    }
    (void)snprintf(admin->run_dir, sizeof(admin->run_dir), "%s", run_dir);
    kvf_scratch_init(&admin->scratch, admin->unpacked, sizeof(admin->unpacked));
    struct kvf_status status = open_parts(admin, why);
    if (!kvf_is_ok(status)) {
        admin_close(admin);
        return status;
    }
    *give = admin;
    return kvf_ok();
}

void admin_close(struct admin *admin)
{
    if (admin == NULL)
        return;
    kvf_rpc_channel_close(admin->channel);
    kvf_rpc_destroy(admin->rpc);
    kvf_loop_destroy(admin->loop);
    free(admin);
}

bool admin_socket_exists(const struct admin *admin)
{
    return access(admin->path, F_OK) == 0;
}

enum admin_presence admin_presence(const struct admin *admin)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, admin->path, sizeof(address.sun_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return ADMIN_LISTENS; /* we know nothing better */
    int error = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
    (void)close(fd);
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return ADMIN_ABSENT;
    case ECONNREFUSED:
        return ADMIN_DESERTED;
    case EACCES:
    case EPERM:
        return ADMIN_REFUSED;
    default:
        return ADMIN_LISTENS;
    }
}

/* ---- a call ---- */

static void take_message(struct kvf_rpc_call *call, void *user, struct kvf_bytes bytes)
{
    (void)call;
    struct exchange *exchange = user;
    if (exchange->has_answer)
        return; /* an Admin method answers once */
    exchange->answer = malloc(bytes.length + 1);
    exchange->no_memory = exchange->answer == NULL;
    if (exchange->no_memory)
        return;
    memcpy(exchange->answer, bytes.data, bytes.length);
    exchange->answer_bytes = bytes.length;
    exchange->has_answer = true;
}

static void take_end(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                     const char *text)
{
    (void)call;
    struct exchange *exchange = user;
    exchange->status = status;
    exchange->closed = true;
    (void)snprintf(exchange->text, sizeof(exchange->text), "%s", text);
}

static const struct kvf_rpc_events events = {.message = take_message, .closed = take_end};

static struct kvf_status explain(const struct admin *admin, struct kvf_status status,
                                 const char *text, struct kvf_why *why)
{
    if (status.code == KVF_DEADLINE)
        return kvf_why_set(
            why, status,
            "kvferryd at %s did not answer in time: give a longer --timeout-s, or look whether "
            "it is stopped",
            admin->path);
    if (status.code != KVF_UNAVAILABLE)
        return kvf_why_set(why, status, "kvferryd at %s: %.180s", admin->path,
                           text[0] != '\0' ? text : "no words");
    switch (admin_presence(admin)) {
    case ADMIN_REFUSED:
        return kvf_why_set(why, fail(KVF_DENIED),
                           "%s may be opened by its daemon's user only: run this as that user",
                           admin->path);
    case ADMIN_LISTENS:
        return kvf_why_set(why, status,
                           "kvferryd at %s does not answer, or broke off: see its log, and whether "
                           "it is stopped",
                           admin->path);
    case ADMIN_ABSENT:
    case ADMIN_DESERTED:
        break;
    }
    return kvf_why_set(why, status,
                       "no kvferryd answers at %s: start it with --run-dir %s, or name another",
                       admin->path, admin->run_dir);
}

/* Send one request and wait: the call's timeout ends the loop for sure. */
static struct kvf_status exchange_messages(struct admin *admin, const char *path,
                                           const ProtobufCMessage *request, uint64_t timeout_ms,
                                           struct exchange *exchange, struct kvf_why *why)
{
    uint8_t packed[64]; /* the longest request is one number */
    kvf_assert(protobuf_c_message_get_packed_size(request) <= sizeof(packed));
    struct kvf_bytes bytes = {packed, protobuf_c_message_pack(request, packed)};
    struct kvf_rpc_call *call;
    struct kvf_status status =
        kvf_rpc_call_start(admin->channel, path, timeout_ms, &events, exchange, &call);
    if (!kvf_is_ok(status))
        return explain(admin, status, "the call cannot start", why);
    kvf_rpc_call_send(call, bytes);
    kvf_rpc_call_half_close(call);
    while (!exchange->closed)
        kvf_loop_run_once(admin->loop, -1);
    if (exchange->no_memory)
        return fail(KVF_NO_MEMORY);
    if (!kvf_is_ok(exchange->status))
        return explain(admin, exchange->status, exchange->text, why);
    if (!exchange->has_answer)
        return explain(admin, fail(KVF_PROTOCOL), "an answer without a message", why);
    return kvf_ok();
}

static struct kvf_status take_reply(struct admin *admin, const struct exchange *exchange,
                                    struct admin_reply *reply, struct kvf_why *why)
{
    const Kvferry__AdminReply *message = kvferry__admin_reply__unpack(
        kvf_scratch_reset(&admin->scratch), exchange->answer_bytes, exchange->answer);
    if (message == NULL)
        return explain(admin, fail(KVF_PROTOCOL), "an answer that cannot be unpacked", why);
    *reply = (struct admin_reply){.blocks = message->blocks, .bytes = message->bytes};
    (void)snprintf(reply->message, sizeof(reply->message), "%s", message->message);
    struct kvf_status status = kvf_ok();
    if (message->code != KVF_OK) {
        status = kvf_fail(KVF_MODULE_SERVER, (enum kvf_code)(message->code & 0xffff), 0);
        if (reply->message[0] != '\0')
            (void)kvf_why_set(why, status, "%s", reply->message);
    }
    return status;
}

static struct kvf_status ask(struct admin *admin, const char *path, const ProtobufCMessage *request,
                             uint64_t timeout_ms, struct admin_reply *reply, struct kvf_why *why)
{
    struct exchange exchange = {0};
    struct kvf_status status = exchange_messages(admin, path, request, timeout_ms, &exchange, why);
    if (kvf_is_ok(status))
        status = take_reply(admin, &exchange, reply, why);
    free(exchange.answer);
    return status;
}

/* ---- the methods ---- */

struct kvf_status admin_sync(struct admin *admin, bool durable, uint64_t timeout_ms,
                             struct admin_reply *reply, struct kvf_why *why)
{
    Kvferry__SyncRequest request = KVFERRY__SYNC_REQUEST__INIT;
    request.durable = durable;
    return ask(admin, KVF_ADMIN_SYNC, &request.base, timeout_ms, reply, why);
}

struct kvf_status admin_evict(struct admin *admin, bool dram, uint64_t timeout_ms,
                              struct admin_reply *reply, struct kvf_why *why)
{
    Kvferry__EvictRequest request = KVFERRY__EVICT_REQUEST__INIT;
    request.dram = dram;
    return ask(admin, KVF_ADMIN_EVICT, &request.base, timeout_ms, reply, why);
}

struct kvf_status admin_set_read_batch(struct admin *admin, uint64_t mib, uint64_t timeout_ms,
                                       struct admin_reply *reply, struct kvf_why *why)
{
    Kvferry__SetReadBatchRequest request = KVFERRY__SET_READ_BATCH_REQUEST__INIT;
    request.mib = mib;
    return ask(admin, KVF_ADMIN_SET_READ_BATCH, &request.base, timeout_ms, reply, why);
}

struct kvf_status admin_drain(struct admin *admin, uint64_t timeout_ms, struct admin_reply *reply,
                              struct kvf_why *why)
{
    Kvferry__DrainRequest request = KVFERRY__DRAIN_REQUEST__INIT;
    return ask(admin, KVF_ADMIN_DRAIN, &request.base, timeout_ms, reply, why);
}

struct kvf_status admin_stat(struct admin *admin, uint64_t timeout_ms, char **give,
                             struct kvf_why *why)
{
    Kvferry__StatRequest request = KVFERRY__STAT_REQUEST__INIT;
    struct exchange exchange = {0};
    struct kvf_status status =
        exchange_messages(admin, KVF_ADMIN_STAT, &request.base, timeout_ms, &exchange, why);
    const Kvferry__StatReply *message = NULL;
    if (kvf_is_ok(status)) {
        message = kvferry__stat_reply__unpack(kvf_scratch_reset(&admin->scratch),
                                              exchange.answer_bytes, exchange.answer);
        if (message == NULL)
            status = explain(admin, fail(KVF_PROTOCOL), "an answer that cannot be unpacked", why);
    }
    if (kvf_is_ok(status)) {
        *give = strdup(message->json);
        status = *give == NULL ? fail(KVF_NO_MEMORY) : kvf_ok();
    }
    free(exchange.answer);
    return status;
}
