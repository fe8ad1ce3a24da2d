#include "server/admin.h"

#include "proto/admin.h"
#include "proto/admin.pb-c.h"
#include "proto/health.pb-c.h"
#include "proto/scratch.h"

#include <stdlib.h>
#include <string.h>

/* For the unpacked form of any request: a few numbers, a name, and what a later version may add. */
#define UNPACKED_BYTES 4096u

/* One call of the service; most are over within their message. */
struct admin_call {
    struct kvf_admin *admin;
    struct kvf_rpc_call *call;
    bool finished;
    bool syncing;
    struct kvf_sync sync;
    const ProtobufCMessageDescriptor *descriptor; /* of the request */
    void (*take)(struct admin_call *call, const void *request);
};

struct kvf_admin {
    struct kvf_admin_actions actions;
    struct kvf_scratch scratch; /* over `unpacked`: the one request that is being taken */
    uint8_t unpacked[UNPACKED_BYTES];
};

static void finish(struct admin_call *call, struct kvf_status status, const char *text)
{
    call->finished = true;
    kvf_rpc_call_finish(call->call, status, text);
}

static void finish_bad(struct admin_call *call)
{
    finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0), "the request cannot be read");
}

static void finish_no_memory(struct admin_call *call)
{
    finish(call, kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0), "out of memory");
}

/* Any message, packed and sent as the one answer. */
static void reply(struct admin_call *call, const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(length > 0 ? length : 1);
    if (bytes == NULL) {
        finish_no_memory(call);
        return;
    }
    (void)protobuf_c_message_pack(message, bytes);
    kvf_rpc_call_send(call->call, (struct kvf_bytes){bytes, length});
    free(bytes);
    finish(call, kvf_ok(), "");
}

static void reply_admin(struct admin_call *call, enum kvf_code code, const char *text,
                        uint64_t blocks, uint64_t bytes)
{
    Kvferry__AdminReply message = KVFERRY__ADMIN_REPLY__INIT;
    message.code = (uint32_t)code;
    message.message = (char *)(uintptr_t)text;
    message.blocks = blocks;
    message.bytes = bytes;
    reply(call, &message.base);
}

/* ---- the methods: `request` is one of the call's descriptor, good until they return ---- */

static void take_stat(struct admin_call *call, const void *request)
{
    (void)request;
    Kvferry__StatReply message = KVFERRY__STAT_REPLY__INIT;
    char *json = call->admin->actions.stat_json(call->admin->actions.context);
    if (json == NULL) {
        finish_no_memory(call);
        return;
    }
    message.json = json;
    reply(call, &message.base);
    free(json);
}

static void take_set_read_batch(struct admin_call *call, const void *request)
{
    const struct kvf_admin_actions *actions = &call->admin->actions;
    const Kvferry__SetReadBatchRequest *set = request;
    struct kvf_why said = {.text = ""};
    struct kvf_status status = actions->set_read_batch(actions->context, set->mib, &said);
    reply_admin(call, (enum kvf_code)status.code, said.text, 0, 0);
}

static void take_evict(struct admin_call *call, const void *request)
{
    const struct kvf_admin_actions *actions = &call->admin->actions;
    const Kvferry__EvictRequest *evict = request;
    uint64_t blocks = 0, bytes = 0;
    if (!evict->dram) {
        finish_bad(call);
        return;
    }
    actions->evict_dram(actions->context, &blocks, &bytes);
    reply_admin(call, KVF_OK, "", blocks, bytes);
}

static void sync_done(struct kvf_sync *sync)
{
    struct admin_call *call = kvf_container(sync, struct admin_call, sync);
    call->syncing = false;
    if (sync->failed > 0)
        reply_admin(call, KVF_IO, "a drive refused some of the blocks: see the daemon's log",
                    sync->blocks, sync->bytes);
    else
        reply_admin(call, KVF_OK, sync->blocks == 0 ? "nothing was left to write" : "",
                    sync->blocks, sync->bytes);
}

static void take_sync(struct admin_call *call, const void *request)
{
    const Kvferry__SyncRequest *sync = request;
    if (sync->durable && call->admin->actions.puts->store == NULL) {
        reply_admin(call, KVF_UNSUPPORTED,
                    "this daemon has no --ssd-path: nothing can be durable here", 0, 0);
        return;
    }
    if (sync->durable)
        put_keep_all(call->admin->actions.puts);
    call->syncing = true;
    call->sync.done = sync_done;
    kvf_sync_start(call->admin->actions.puts, &call->sync);
}

static void take_drain(struct admin_call *call, const void *request)
{
    (void)request;
    const struct kvf_admin_actions *actions = &call->admin->actions;
    bool already = actions->is_draining(actions->context);
    reply_admin(call, KVF_OK, already ? "draining already" : "draining", 0, 0);
    actions->drain(actions->context);
}

static void take_health(struct admin_call *call, const void *request)
{
    (void)request;
    Grpc__Health__V1__HealthCheckResponse message = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    message.status = call->admin->actions.is_ready(call->admin->actions.context)
                         ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                         : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    reply(call, &message.base);
}

/* ---- calls ---- */

/* Unpacked also for the methods that need nothing from their request: what is no request moves nothing. */
static void call_message(struct kvf_rpc_call *rpc_call, void *user, struct kvf_bytes bytes)
{
    struct admin_call *call = user;
    (void)rpc_call;
    if (call->finished || call->syncing)
        return;
    const ProtobufCMessage *request = protobuf_c_message_unpack(
        call->descriptor, kvf_scratch_reset(&call->admin->scratch), bytes.length, bytes.data);
    if (request != NULL)
        call->take(call, request);
    else
        finish_bad(call);
}

static void call_half_closed(struct kvf_rpc_call *rpc_call, void *user)
{
    struct admin_call *call = user;
    (void)rpc_call;
    if (!call->finished && !call->syncing)
        finish_bad(call);
}

static void call_closed(struct kvf_rpc_call *rpc_call, void *user, struct kvf_status status,
                        const char *text)
{
    struct admin_call *call = user;
    (void)rpc_call;
    (void)status;
    (void)text;
    if (call->syncing)
        kvf_sync_cancel(&call->sync);
    free(call);
}

static const struct kvf_rpc_events call_events = {
    .message = call_message, .half_closed = call_half_closed, .closed = call_closed};

static void begin(struct kvf_rpc_call *rpc_call, void *context,
                  const ProtobufCMessageDescriptor *descriptor,
                  void (*take)(struct admin_call *call, const void *request))
{
    struct admin_call *call = calloc(1, sizeof(*call));
    if (call == NULL) {
        kvf_rpc_call_finish(rpc_call, kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0), "");
        return;
    }
    call->admin = context;
    call->call = rpc_call;
    call->descriptor = descriptor;
    call->take = take;
    kvf_rpc_call_accept(rpc_call, &call_events, call);
}

static void stat_called(struct kvf_rpc_call *call, void *context)
{
    begin(call, context, &kvferry__stat_request__descriptor, take_stat);
}

static void set_read_batch_called(struct kvf_rpc_call *call, void *context)
{
    begin(call, context, &kvferry__set_read_batch_request__descriptor, take_set_read_batch);
}

static void evict_called(struct kvf_rpc_call *call, void *context)
{
    begin(call, context, &kvferry__evict_request__descriptor, take_evict);
}

static void sync_called(struct kvf_rpc_call *call, void *context)
{
    begin(call, context, &kvferry__sync_request__descriptor, take_sync);
}

static void drain_called(struct kvf_rpc_call *call, void *context)
{
    begin(call, context, &kvferry__drain_request__descriptor, take_drain);
}

static void health_called(struct kvf_rpc_call *call, void *context)
{
    begin(call, context, &grpc__health__v1__health_check_request__descriptor, take_health);
}

void kvf_admin_methods(struct kvf_admin *admin, struct kvf_rpc_method methods[KVF_ADMIN_METHODS])
{
    methods[0] = (struct kvf_rpc_method){KVF_ADMIN_STAT, stat_called, admin};
    methods[1] = (struct kvf_rpc_method){KVF_ADMIN_SET_READ_BATCH, set_read_batch_called, admin};
    methods[2] = (struct kvf_rpc_method){KVF_ADMIN_EVICT, evict_called, admin};
    methods[3] = (struct kvf_rpc_method){KVF_ADMIN_SYNC, sync_called, admin};
    methods[4] = (struct kvf_rpc_method){KVF_ADMIN_DRAIN, drain_called, admin};
    methods[5] = kvf_admin_health_method(admin);
}

struct kvf_rpc_method kvf_admin_health_method(struct kvf_admin *admin)
{
    return (struct kvf_rpc_method){"/grpc.health.v1.Health/Check", health_called, admin};
}

struct kvf_status kvf_admin_create(const struct kvf_admin_actions *actions, struct kvf_admin **give)
{
    struct kvf_admin *admin = calloc(1, sizeof(*admin));
    if (admin == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    admin->actions = *actions;
    kvf_scratch_init(&admin->scratch, admin->unpacked, sizeof(admin->unpacked));
    *give = admin;
    return kvf_ok();
}

void kvf_admin_destroy(struct kvf_admin *admin)
{
    free(admin);
}
