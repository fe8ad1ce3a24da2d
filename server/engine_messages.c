/* Requests of an engine: what every one must satisfy, and who takes it. */
#include "base/clock.h"
#include "base/log.h"
#include "server/engine_context.h"

#include <stdio.h>

uint64_t engine_deadline(const struct context *context, uint64_t deadline_us)
{
    uint64_t most_ns = context->engines->options.query_timeout_ns;
    uint64_t wanted_ns =
        deadline_us < most_ns / KVF_NS_PER_US ? deadline_us * KVF_NS_PER_US : most_ns;
    return kvf_clock_now_ns() + wanted_ns;
}

bool engine_may(const struct context *context, const char *ns, enum kvf_right right,
                const char *what)
{
    const struct kvf_engines_options *options = &context->engines->options;
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1];
    if (kvf_acl_may(options->acl, context->identity, ns, right))
        return true;
    (void)snprintf(tenant, sizeof(tenant), "%.*s", (int)kvf_namespace_tenant_bytes(ns), ns);
    kvf_audit_denied(options->audit, context->identity, tenant, what, "no_right");
    return false;
}

bool engine_names_are_valid(const char *ns, size_t count, Kvferry__EngineName *const *blocks)
{
    if (!kvf_namespace_is_valid(ns) || count < 1 || count > KVF_WIRE_MAX_BLOCKS)
        return false;
    for (size_t i = 0; i < count; i++)
        if (blocks[i]->key.len < 1 || blocks[i]->key.len > KVF_KEY_MAX_BYTES)
            return false;
    return true;
}

bool engine_keys_are_valid(const char *ns, size_t count, const ProtobufCBinaryData *keys)
{
    if (!kvf_namespace_is_valid(ns) || count < 1 || count > KVF_WIRE_MAX_BLOCKS)
        return false;
    for (size_t i = 0; i < count; i++)
        if (keys[i].len < 1 || keys[i].len > KVF_KEY_MAX_BYTES)
            return false;
    return true;
}

bool engine_may_open(struct context *context, uint64_t id, size_t blocks)
{
    if (context->open_blocks + blocks <= ENGINE_MAX_OPEN_BLOCKS)
        return true;
    engine_send_code(context, id, KVF_BUSY, "too many blocks are asked for and not released");
    return false;
}

static void take_forget(struct context *context, uint64_t id, const Kvferry__EngineForget *request)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineForgotten forgotten = KVFERRY__ENGINE_FORGOTTEN__INIT;
    if (!engine_keys_are_valid(request->namespace_, request->n_keys, request->keys)) {
        engine_send_code(context, id, KVF_INVALID, "Forget names 1 to 512 keys of 1 to 64 bytes");
        return;
    }
    if (!engine_may(context, request->namespace_, KVF_RIGHT_WRITE, "forget")) {
        engine_send_code(context, id, KVF_DENIED, "this user may not write this tenant");
        return;
    }
    for (size_t i = 0; i < request->n_keys; i++) {
        struct kvf_key key;
        (void)kvf_key_set(&key, request->keys[i].data, request->keys[i].len);
        struct kvf_index *index = context->engines->options.index;
        struct kvf_found found;
        if (!kvf_index_find(index, request->namespace_, &key, &found) ||
            found.state != KVF_ENTRY_READY)
            continue;
        kvf_index_forget(index, &found);
        forgotten.blocks++;
    }
    reply.id = id;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_FORGOTTEN;
    reply.forgotten = &forgotten;
    engine_send_reply(context, &reply);
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of the tenants with which it may do that, the largest share of DRAM: more it need not ask for. */
static uint64_t largest_share(const struct context *context, enum kvf_right right)
{
    const struct kvf_engines_options *options = &context->engines->options;
    const struct kvf_tenants *tenants = kvf_index_tenants(options->index);
    uint64_t most = options->acl == NULL ? UINT64_MAX : KVF_PAGE;
    const char *name;
    for (size_t n = 0; (name = kvf_acl_tenant_of(options->acl, context->identity, n)) != NULL; n++)
        if (kvf_acl_may(options->acl, context->identity, name, right) &&
            kvf_tenants_limit(tenants, name, KVF_SHARE_DRAM) > most)
            most = kvf_tenants_limit(tenants, name, KVF_SHARE_DRAM);
    return most;
}

static void fill_limits(const struct context *context, Kvferry__EngineRegistered *registered)
{
    const struct kvf_engines_options *options = &context->engines->options;
    const struct kvf_admission *admission = options->gets->admission;
    const struct kvf_budget *classes = admission->classes;
    registered->max_get_bytes = least_of(
        least_of(options->per_instance_limit_bytes, admission->query.limit_bytes),
        least_of(classes[KVF_CLASS_PULL].limit_bytes, largest_share(context, KVF_RIGHT_READ)));
    registered->max_put_bytes =
        least_of(classes[KVF_CLASS_DIRTY].limit_bytes, largest_share(context, KVF_RIGHT_WRITE));
}

/* One packet with as many descriptors as fit; straight to the socket, which is empty before
 * Register. */
static bool send_arenas(struct context *context, uint64_t id, uint32_t first, uint32_t count,
                        bool more)
{
    struct kvf_engines *engines = context->engines;
    const struct kvf_engines_options *options = &engines->options;
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineRegistered registered = KVFERRY__ENGINE_REGISTERED__INIT;
    uint64_t bytes[KVF_WIRE_MAX_FDS];
    int fds[KVF_WIRE_MAX_FDS];
    for (uint32_t i = 0; i < count; i++) {
        const struct kvf_arena *arena = kvf_pool_arena(options->pool, first + i);
        bytes[i] = arena->bytes;
        fds[i] = arena->fd;
    }
    registered.instance = context->instance;
    registered.n_arena_bytes = count;
    registered.arena_bytes = bytes;
    registered.first_arena = first;
    registered.more = more;
    fill_limits(context, &registered);
    registered.boot_epoch = options->boot_epoch;
    reply.id = id;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_REGISTERED;
    reply.registered = &registered;
    size_t length = kvferry__engine_reply__pack(&reply, engines->buffer);
    return kvf_is_ok(kvf_wire_send(context->watch.fd, engines->buffer, length, fds, count));
}

/* What it says of itself, for whoever reads the log; foreign, so that it is believed by nobody. */
static void describe(const Kvferry__EngineGeometry *geometry, char *text, size_t room)
{
    text[0] = '\0';
    if (geometry == NULL)
        return;
    (void)snprintf(
        text, room,
        ": %u layers x %u of dtype %u, %u tokens a page, %llu B a block, TP %u of %u, PP %u of %u",
        geometry->layers, geometry->planes, geometry->dtype, geometry->page_tokens,
        (unsigned long long)geometry->block_bytes, geometry->tp_rank, geometry->tp_size,
        geometry->pp_rank, geometry->pp_size);
}

static void take_register(struct context *context, uint64_t id,
                          const Kvferry__EngineRegister *request)
{
    struct kvf_engines *engines = context->engines;
    if (request->version != KVF_WIRE_VERSION) {
        engine_send_code(context, id, KVF_UNSUPPORTED,
                         "this daemon speaks engine protocol version 1");
        return;
    }
    if (!kvf_acl_knows(engines->options.acl, context->identity)) {
        kvf_audit_denied(engines->options.audit, context->identity, "", "register",
                         "unknown_identity");
        engine_send_code(context, id, KVF_DENIED, "the ACL of this node does not name this user");
        return;
    }
    if (engines->draining) {
        engine_send_code(context, id, KVF_DRAINING, "the daemon is draining");
        return;
    }
    (void)snprintf(context->name, sizeof(context->name), "%s", request->name);
    context->instance = ++engines->next_instance;
    engine_set_state(context, CONTEXT_REGISTERED);
    kvf_timer_stop(engines->options.loop, &context->timer);
    uint32_t arenas = (uint32_t)kvf_pool_arena_count(engines->options.pool);
    for (uint32_t first = 0; first < arenas; first += KVF_WIRE_MAX_FDS) {
        uint32_t count = arenas - first < KVF_WIRE_MAX_FDS ? arenas - first : KVF_WIRE_MAX_FDS;
        if (!send_arenas(context, id, first, count, first + count < arenas)) {
            engine_protocol_error(context, "the arenas could not be sent");
            return;
        }
    }
    char shape[200];
    describe(request->geometry, shape, sizeof(shape));
    kvf_log_info("engines", "engine %llu (\"%s\", pid %d) registered%s",
                 (unsigned long long)context->instance, context->name, (int)context->pid, shape);
}

/* It says that it writes no more: nothing has to wait for its process. */
static void take_unregister(struct context *context, uint64_t id)
{
    engine_drop_all(context);
    engine_abort_puts(context);
    context->unregistered = true;
    kvf_log_info("engines", "engine %llu (\"%s\") unregistered",
                 (unsigned long long)context->instance, context->name);
    engine_send_code(context, id, KVF_OK, "");
}

void engine_take(struct context *context, const Kvferry__EngineRequest *request)
{
    bool is_register = request->message_case == KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER;
    if (request->id == 0) { /* that is a notice's; an OK with it would be an empty packet */
        engine_protocol_error(context, "requests are numbered from 1");
        return;
    }
    if (is_register != (context->state == CONTEXT_CONNECTED) || context->unregistered) {
        engine_protocol_error(context, "Register comes first, and once");
        return;
    }
    switch (request->message_case) {
    case KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER:
        take_register(context, request->id, request->register_);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_UNREGISTER:
        take_unregister(context, request->id);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN:
        engine_take_put_begin(context, request->id, request->put_begin);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT:
        engine_take_put_commit(context, request->id, request->put_commit);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT:
        engine_take_put_abort(context, request->put_abort);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP:
        engine_take_lookup(context, request->id, request->lookup);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_GET:
        engine_take_get(context, request->id, request->get);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE:
        engine_take_release(context, request->release);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL:
        engine_take_cancel(context, request->cancel);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET:
        take_forget(context, request->id, request->forget);
        return;
    case KVFERRY__ENGINE_REQUEST__MESSAGE__NOT_SET:
    case _KVFERRY__ENGINE_REQUEST__MESSAGE__CASE_IS_INT_SIZE:
        break;
    }
    engine_protocol_error(context, "a message of no known kind");
}
