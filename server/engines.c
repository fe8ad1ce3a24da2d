/* Engines, the sockets: sending, a context's end, receiving, accepting. engine_context.h has the
 * map of the module. */
#include "server/engines.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/engine_context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define GONE_AFTER_NS                                                                              \
    (5 * KVF_NS_PER_S) /* a process that shows no pidfd, after its end of file        \
                                     */
#define REGISTER_WITHIN_NS (5 * KVF_NS_PER_S)
#define MAX_QUEUED_BYTES (8u << 20) /* answers to an engine that does not read */

/* ---- sending ---- */

static void drop_packets(struct context *context)
{
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&context->packets)) != NULL)
        free(kvf_container(node, struct packet, node));
    context->queued_bytes = 0;
}

/* It has closed its end. What it gave back before that may still lie in the socket, in front of the end of file. */
static void go_on_deaf(struct context *context)
{
    context->is_deaf = true;
    drop_packets(context);
}

static void flush(struct context *context)
{
    while (!kvf_list_is_empty(&context->packets)) {
        struct packet *packet = kvf_container(context->packets.next, struct packet, node);
        struct kvf_status status =
            kvf_wire_send(context->watch.fd, packet->bytes, packet->length, NULL, 0);
        if (status.code == KVF_BUSY)
            break;
        kvf_list_remove(&packet->node);
        context->queued_bytes -= packet->length;
        free(packet);
        if (!kvf_is_ok(status))
            go_on_deaf(context);
    }
    kvf_watch_change(context->engines->options.loop, &context->watch,
                     kvf_list_is_empty(&context->packets) ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static void send_packet(struct context *context, const uint8_t *bytes, size_t length)
{
    struct kvf_status status = kvf_fail(KVF_MODULE_SERVER, KVF_BUSY, 0);
    if (context->state == CONTEXT_LEAVING || context->is_deaf)
        return;
    if (kvf_list_is_empty(&context->packets))
        status = kvf_wire_send(context->watch.fd, bytes, length, NULL, 0);
    if (kvf_is_ok(status))
        return;
    if (status.code != KVF_BUSY) {
        go_on_deaf(context);
        return;
    }
    struct packet *packet = NULL;
    if (context->queued_bytes + length <= MAX_QUEUED_BYTES)
        packet = malloc(sizeof(*packet) + length);
    if (packet == NULL) {
        engine_leave(context);
        return;
    }
    packet->length = length;
    memcpy(packet->bytes, bytes, length);
    context->queued_bytes += length;
    kvf_list_push_back(&context->packets, &packet->node);
    flush(context);
}

void engine_send_reply(struct context *context, const Kvferry__EngineReply *reply)
{
    struct kvf_engines *engines = context->engines;
    size_t length = kvferry__engine_reply__get_packed_size(reply);
    kvf_assert(length <= sizeof(engines->buffer));
    (void)kvferry__engine_reply__pack(reply, engines->buffer);
    send_packet(context, engines->buffer, length);
}

void engine_send_code(struct context *context, uint64_t id, enum kvf_code code, const char *message)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    reply.id = id;
    reply.code = (uint32_t)code;
    reply.message = (char *)(uintptr_t)message;
    engine_send_reply(context, &reply);
}

static void send_drain_notice(struct context *context)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineDrainNotice notice = KVFERRY__ENGINE_DRAIN_NOTICE__INIT;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_DRAIN_NOTICE;
    reply.drain_notice = &notice;
    engine_send_reply(context, &reply);
}

void engine_log_refusal(struct context *context, const char *what,
                        const struct kvf_refusal *refusal)
{
    uint64_t now_ns = kvf_clock_now_ns();
    if (refusal->shortage == KVF_SHORT_OF_NOTHING)
        return;
    context->refusals_untold++;
    if (now_ns < context->refusal_quiet_until_ns)
        return;
    kvf_log_info("engines",
                 "a %s of engine %llu \"%s\" was %s after %.1f s: %llu bytes short of %s (%llu "
                 "since the last such line)",
                 what, (unsigned long long)context->instance, context->name,
                 kvf_code_name(refusal->code), (double)refusal->waited_ns / KVF_NS_PER_S,
                 (unsigned long long)refusal->short_bytes, kvf_shortage_text(refusal->shortage),
                 (unsigned long long)context->refusals_untold);
    context->refusals_untold = 0;
    context->refusal_quiet_until_ns = now_ns + KVF_NS_PER_S;
}

/* ---- a context's end ---- */

static void close_watch(struct kvf_engines *engines, struct kvf_watch *watch)
{
    if (watch->fd < 0)
        return;
    kvf_watch_stop(engines->options.loop, watch);
    (void)close(watch->fd);
    watch->fd = -1;
}

void engine_set_state(struct context *context, enum context_state to)
{
    static const bool allowed[][CONTEXT_LEAVING + 1] = {
        [CONTEXT_CONNECTED] = {[CONTEXT_REGISTERED] = true, [CONTEXT_LEAVING] = true},
        [CONTEXT_REGISTERED] = {[CONTEXT_LEAVING] = true},
        [CONTEXT_LEAVING] = {false},
    };
    kvf_assert(allowed[context->state][to]);
    context->state = to;
}

void engine_free_if_over(struct context *context)
{
    struct kvf_engines *engines = context->engines;
    if (context->state != CONTEXT_LEAVING || !kvf_list_is_empty(&context->gets) ||
        !kvf_list_is_empty(&context->puts) || context->working)
        return;
    kvf_timer_stop(engines->options.loop, &context->timer);
    close_watch(engines, &context->process);
    drop_packets(context);
    kvf_list_remove(&context->node);
    engines->count--;
    free(context);
    engines->options.left(engines->options.context);
}

void engine_abort_puts(struct context *context)
{
    kvf_list_for_each_safe (node, &context->puts)
        put_abort(kvf_container(node, struct put, node));
}

static void process_is_gone(struct context *context)
{
    close_watch(context->engines, &context->process); /* it stays readable for ever */
    engine_abort_puts(context);
    engine_free_if_over(context);
}

static void process_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    process_is_gone(kvf_container(watch, struct context, process));
}

static void gone_timeout(struct kvf_timer *timer)
{
    process_is_gone(kvf_container(timer, struct context, timer));
}

/* The engine's GPU may still write to its places: they come back when its process is gone. */
static void wait_for_process(struct context *context)
{
    struct kvf_loop *loop = context->engines->options.loop;
    kvf_list_for_each (node, &context->puts)
        put_quarantine(kvf_container(node, struct put, node));
    context->process.events = EPOLLIN;
    context->process.ready = process_ready;
    if (context->process.fd >= 0 && kvf_is_ok(kvf_watch_start(loop, &context->process)))
        return;
    context->timer.fire = gone_timeout;
    kvf_timer_start(loop, &context->timer, kvf_clock_now_ns() + GONE_AFTER_NS);
}

void engine_drop_all(struct context *context)
{
    kvf_list_for_each_safe (node, &context->gets)
        engine_drop_get(kvf_container(node, struct engine_get, node));
    kvf_list_for_each_safe (node, &context->begins) {
        struct engine_begin *mine = kvf_container(node, struct engine_begin, node);
        kvf_list_remove(&mine->node);
        context->open_blocks -= mine->begin->item_count;
        put_begin_drop(mine->begin);
        free(mine);
    }
}

void engine_leave(struct context *context)
{
    if (context->state == CONTEXT_LEAVING)
        return;
    if (context->state == CONTEXT_REGISTERED && !context->unregistered)
        kvf_log_warning("engines",
                        "engine %llu (\"%s\", pid %d) left without unregistering: reaped",
                        (unsigned long long)context->instance, context->name, (int)context->pid);
    engine_set_state(context, CONTEXT_LEAVING);
    close_watch(context->engines, &context->watch);
    bool working = context->working;
    context->working = true;
    engine_drop_all(context);
    if (!kvf_list_is_empty(&context->puts))
        wait_for_process(context);
    context->working = working;
    engine_free_if_over(context);
}

void engine_protocol_error(struct context *context, const char *text)
{
    kvf_log_warning("engines", "connection of pid %d ended: %s", (int)context->pid, text);
    engine_leave(context);
}

/* ---- receiving ---- */

/* False: nothing more to read now, or the context is leaving. */
static bool receive(struct context *context)
{
    uint8_t *buffer = context->engines->buffer;
    size_t length, fd_count;
    struct kvf_status status =
        kvf_wire_receive(context->watch.fd, buffer, &length, NULL, 0, &fd_count);
    if (status.code == KVF_BUSY)
        return false;
    if (status.detail == ECONNRESET)
        return true; /* said once: it did not read all of ours. Its own packets and its end of file follow */
    if (status.code == KVF_PROTOCOL)
        engine_protocol_error(context, "a packet that is too long or carries descriptors");
    else if (!kvf_is_ok(status))
        engine_leave(context);
    if (!kvf_is_ok(status))
        return false;
    const Kvferry__EngineRequest *request = kvferry__engine_request__unpack(
        kvf_scratch_reset(&context->engines->scratch), length, buffer);
    if (request == NULL) {
        engine_protocol_error(context, "a packet that is no EngineRequest, or names far too much");
        return false;
    }
    engine_take(context, request);
    return context->state != CONTEXT_LEAVING;
}

static void socket_ready(struct kvf_watch *watch, uint32_t events)
{
    struct context *context = kvf_container(watch, struct context, watch);
    context->working = true;
    if (events & EPOLLOUT)
        flush(context);
    /* A bounded number, so that one busy engine does not hold up the others. */
    for (int i = 0; i < 16 && context->state != CONTEXT_LEAVING && receive(context); i++)
        ;
    context->working = false;
    engine_free_if_over(context);
}

/* ---- accepting ---- */

static void note_process(struct context *context, int fd)
{
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    int pidfd = -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) {
        context->pid = credentials.pid;
        (void)snprintf(context->identity, sizeof(context->identity), "uid:%u", credentials.uid);
    }
    length = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0)
        pidfd = context->pid > 0 ? (int)syscall(SYS_pidfd_open, context->pid, 0) : -1;
    context->process.fd = pidfd;
}

/* Anybody on this host may connect: who then says nothing must not keep a descriptor of ours, nor fill the log. */
static void register_timeout(struct kvf_timer *timer)
{
    engine_leave(kvf_container(timer, struct context, timer));
}

static void add_context(struct kvf_engines *engines, int fd)
{
    struct context *context = calloc(1, sizeof(*context));
    if (context == NULL) {
        (void)close(fd);
        return;
    }
    context->engines = engines;
    context->watch = (struct kvf_watch){.fd = fd, .events = EPOLLIN, .ready = socket_ready};
    context->party.budget.limit_bytes = engines->options.per_instance_limit_bytes;
    kvf_list_init(&context->packets);
    kvf_list_init(&context->gets);
    kvf_list_init(&context->begins);
    kvf_list_init(&context->puts);
    note_process(context, fd);
    kvf_list_push_back(&engines->contexts, &context->node);
    engines->count++;
    context->timer.fire = register_timeout;
    kvf_timer_start(engines->options.loop, &context->timer,
                    kvf_clock_now_ns() + REGISTER_WITHIN_NS);
    if (!kvf_is_ok(kvf_watch_start(engines->options.loop, &context->watch)))
        engine_leave(context);
}

static void listen_again(struct kvf_timer *timer)
{
    struct kvf_engines *engines = kvf_container(timer, struct kvf_engines, accept_again);
    kvf_watch_change(engines->options.loop, &engines->listener, EPOLLIN);
}

static void listener_ready(struct kvf_watch *watch, uint32_t events)
{
    struct kvf_engines *engines = kvf_container(watch, struct kvf_engines, listener);
    (void)events;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        add_context(engines, fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        /* Not to spin: those who wait are served when descriptors are free again. */
        kvf_watch_change(engines->options.loop, watch, 0);
        kvf_timer_start(engines->options.loop, &engines->accept_again,
                        kvf_clock_now_ns() + KVF_NS_PER_S);
    }
}

struct kvf_status kvf_engines_look(const char *path, struct kvf_why *why)
{
    int probe;
    if (!kvf_is_ok(kvf_wire_connect(path, &probe)))
        return kvf_ok();
    (void)close(probe);
    return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_UNAVAILABLE, 0),
                       "another kvferryd serves %s: stop it or choose another --run-dir", path);
}

static struct kvf_status listen_at(const char *path, int *give, struct kvf_why *why)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct kvf_status status = kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
    if (strlen(path) >= sizeof(address.sun_path))
        return kvf_why_set(why, status,
                           "%s is longer than a unix socket's path can be (%zu): choose "
                           "a shorter --run-dir",
                           path, sizeof(address.sun_path) - 1);
    KVF_TRY(kvf_engines_look(path, why));
    (void)unlink(path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        chmod(path, 0666) != 0 || listen(fd, 128) != 0) {
        int error = errno;
        if (fd >= 0)
            (void)close(fd);
        return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_IO, error),
                           "cannot listen on %s (%s): name a --run-dir that this user can write",
                           path, strerror(error));
    }
    *give = fd;
    return kvf_ok();
}

/* ---- life ---- */

/* The end of one context can be news for another one, which then ends as well: none goes while all
 * are being told. */
static void tell_all(struct kvf_engines *engines, void (*tell)(struct context *context))
{
    kvf_list_for_each (node, &engines->contexts)
        kvf_container(node, struct context, node)->working = true;
    kvf_list_for_each (node, &engines->contexts)
        tell(kvf_container(node, struct context, node));
    kvf_list_for_each_safe (node, &engines->contexts) {
        struct context *context = kvf_container(node, struct context, node);
        context->working = false;
        engine_free_if_over(context);
    }
}

static void drain_context(struct context *context)
{
    if (context->state == CONTEXT_REGISTERED)
        send_drain_notice(context);
    else if (context->state == CONTEXT_CONNECTED)
        engine_leave(context);
}

struct kvf_status kvf_engines_create(const struct kvf_engines_options *options,
                                     struct kvf_engines **give, struct kvf_why *why)
{
    struct kvf_engines *engines = calloc(1, sizeof(*engines));
    if (engines == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    engines->options = *options;
    kvf_scratch_init(&engines->scratch, engines->unpacked, sizeof(engines->unpacked));
    kvf_list_init(&engines->contexts);
    engines->accept_again.fire = listen_again;
    engines->listener = (struct kvf_watch){.fd = -1, .events = EPOLLIN, .ready = listener_ready};
    struct kvf_status status = listen_at(options->path, &engines->listener.fd, why);
    if (kvf_is_ok(status))
        status = kvf_watch_start(options->loop, &engines->listener);
    if (!kvf_is_ok(status)) {
        close_watch(engines, &engines->listener);
        free(engines);
        return status;
    }
    *give = engines;
    return kvf_ok();
}

void kvf_engines_destroy(struct kvf_engines *engines)
{
    if (engines == NULL)
        return;
    tell_all(engines, drain_context); /* who has connected and said nothing */
    kvf_assert(engines->count == 0);
    kvf_timer_stop(engines->options.loop, &engines->accept_again);
    close_watch(engines, &engines->listener);
    (void)unlink(engines->options.path);
    free(engines);
}

void kvf_engines_drain(struct kvf_engines *engines)
{
    engines->draining = true;
    tell_all(engines, drain_context);
}

static void leave_if_unknown(struct context *context)
{
    const struct kvf_engines_options *options = &context->engines->options;
    if (context->state == CONTEXT_LEAVING || kvf_acl_knows(options->acl, context->identity))
        return;
    kvf_audit_forced(options->audit, context->identity, "", "rights");
    kvf_log_warning(
        "engines", "engine %llu (\"%s\", pid %d) ended: the ACL does not name %s any more",
        (unsigned long long)context->instance, context->name, (int)context->pid, context->identity);
    engine_leave(context);
}

void kvf_engines_rights_changed(struct kvf_engines *engines)
{
    tell_all(engines, leave_if_unknown);
}

static void force_context(struct context *context)
{
    if (context->state == CONTEXT_REGISTERED)
        kvf_log_warning("engines",
                        "engine %llu (\"%s\", pid %d) did not unregister in time: stop engines "
                        "before their daemon",
                        (unsigned long long)context->instance, context->name, (int)context->pid);
    context->unregistered = true;
    engine_leave(context);
    engine_abort_puts(
        context); /* a process that still writes there disturbs nobody: no memory is given out any more */
}

void kvf_engines_force(struct kvf_engines *engines)
{
    tell_all(engines, force_context);
}

uint64_t kvf_engines_count(const struct kvf_engines *engines)
{
    uint64_t count = 0;
    kvf_list_for_each (node, &engines->contexts)
        count += kvf_container(node, struct context, node)->state != CONTEXT_CONNECTED;
    return count;
}
