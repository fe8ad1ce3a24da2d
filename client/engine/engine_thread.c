/* kvf_engine's thread. Parts: sessions, registering, what callers left, answers, turns. */
#include "base/clock.h"
#include "client/engine/engine_state.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define REGISTER_TIMEOUT_MS 2000u
#define TELL_TIMEOUT_MS 200u /* a daemon whose socket stays full that long is not there */
#define PAUSE_FIRST_NS (50 * KVF_NS_PER_MS)
#define PAUSE_MOST_NS KVF_NS_PER_S
#define ANSWERS_A_TURN 256u

/* ---- sessions ---- */

struct session *engine_session(struct kvf_engine *engine, uint64_t number)
{
    if (engine->current != NULL && engine->current->number == number)
        return engine->current;
    kvf_list_for_each (node, &engine->retired) {
        struct session *session = kvf_container(node, struct session, node);
        if (session->number == number)
            return session;
    }
    return NULL;
}

void engine_hold(struct kvf_engine *engine, struct session *session, int64_t change)
{
    session->held += (uint64_t)change;
    (void)pthread_mutex_lock(&engine->lock);
    engine->stats.held_blocks += (uint64_t)change;
    (void)pthread_mutex_unlock(&engine->lock);
}

static void set_state(struct kvf_engine *engine, enum kvf_engine_state to)
{
    static const bool allowed[3][3] = {
        [KVF_ENGINE_DOWN] = {[KVF_ENGINE_UP] = true},
        [KVF_ENGINE_UP] = {[KVF_ENGINE_DRAINING] = true, [KVF_ENGINE_DOWN] = true},
        [KVF_ENGINE_DRAINING] = {[KVF_ENGINE_DOWN] = true},
    };
    (void)pthread_mutex_lock(&engine->lock);
    kvf_assert(allowed[engine->state][to]);
    engine->state = to;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
}

/* Unregisters, if anybody is there to hear it. */
static void close_session(struct kvf_engine *engine, struct session *session)
{
    if (session->range_count > 0 && engine->options.unmapping != NULL)
        engine->options.unmapping(engine->options.context, session->ranges, session->range_count);
    (void)kvf_client_close(session->client);
    free(session->ranges);
    free(session);
}

/* No daemon has us: what runs ends, what is held in place keeps its memory. */
static void lose_session(struct kvf_engine *engine, enum kvf_code code)
{
    struct session *session = engine->current;
    kvf_list_for_each_safe (node, &engine->active)
        op_stop(engine, op_of(node), kvf_fail(KVF_MODULE_CLIENT, code, 0));
    engine->current = NULL;
    kvf_list_push_back(&engine->retired, &session->node);
    engine->pause_ns = PAUSE_FIRST_NS;
    engine->retry_ns = kvf_clock_now_ns() + engine->pause_ns;
    set_state(engine, KVF_ENGINE_DOWN);
}

static void close_retired(struct kvf_engine *engine, bool all)
{
    kvf_list_for_each_safe (node, &engine->retired) {
        struct session *session = kvf_container(node, struct session, node);
        if (session->held > 0 && !all)
            continue;
        if (session->held > 0)
            engine_hold(engine, session, -(int64_t)session->held);
        kvf_list_remove(&session->node);
        close_session(engine, session);
    }
}

/* What the last answers said of the connection itself. */
static void look_at_session(struct kvf_engine *engine)
{
    struct session *session = engine->current;
    if (session == NULL)
        return;
    if (session->client->ended) {
        lose_session(engine, KVF_UNAVAILABLE);
        return;
    }
    if (session->client->draining && engine->state == KVF_ENGINE_UP) {
        (void)pthread_mutex_lock(&engine->lock);
        engine->stats.drain_notices++;
        (void)pthread_mutex_unlock(&engine->lock);
        set_state(engine, KVF_ENGINE_DRAINING);
    }
    if (session->client->draining && session->held == 0 && kvf_list_is_empty(&engine->active))
        lose_session(engine, KVF_DRAINING);
}

/* ---- registering ---- */

static struct session *make_session(struct kvf_engine *engine, struct kvf_client *client)
{
    struct session *session = calloc(1, sizeof(*session));
    size_t count = kvf_client_arena_count(client);
    struct kvf_range *ranges = calloc(count, sizeof(*ranges));
    if (session == NULL || ranges == NULL) {
        free(session);
        free(ranges);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        ranges[i].base = kvf_client_arena(client, i, &ranges[i].bytes);
    *session = (struct session){
        .client = client, .number = ++engine->sessions, .ranges = ranges, .range_count = count};
    kvf_list_init(&session->node);
    client->tell_timeout_ms = TELL_TIMEOUT_MS;
    return session;
}

static struct kvf_status tell_mapped(struct kvf_engine *engine, const struct session *session,
                                     struct kvf_why *why)
{
    if (engine->options.mapped == NULL)
        return kvf_ok();
    struct kvf_status status =
        engine->options.mapped(engine->options.context, session->ranges, session->range_count);
    if (!kvf_is_ok(status))
        (void)kvf_why_set(why, status, "the arenas were refused by who registers them: %s (%d)",
                          kvf_code_name(status.code), (int)status.detail);
    return status;
}

static struct kvf_status open_session(struct kvf_engine *engine, struct session **give,
                                      struct kvf_why *why)
{
    struct kvf_client_options options = {.socket_path = engine->path,
                                         .name = engine->name,
                                         .timeout_ms = REGISTER_TIMEOUT_MS,
                                         .geometry = engine->geometry};
    struct kvf_client *client = NULL;
    KVF_TRY(kvf_client_open(&options, &client, why));
    struct session *session = make_session(engine, client);
    struct kvf_status status = session != NULL
                                   ? tell_mapped(engine, session, why)
                                   : kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0),
                                                 "no memory for a registration");
    if (kvf_is_ok(status)) {
        *give = session;
        return status;
    }
    (void)kvf_client_close(client);
    if (session != NULL)
        free(session->ranges);
    free(session);
    return status;
}

static void try_to_register(struct kvf_engine *engine)
{
    struct kvf_why why = {.text = ""};
    struct session *session = NULL;
    struct kvf_status status = open_session(engine, &session, &why);
    (void)pthread_mutex_lock(&engine->lock);
    engine->why = why;
    if (kvf_is_ok(status)) {
        engine->max_get_bytes = session->client->max_get_bytes;
        engine->max_put_bytes = session->client->max_put_bytes;
        engine->boot_epoch = session->client->boot_epoch;
        engine->instance = session->client->instance;
        engine->stats.registrations++;
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (kvf_is_ok(status)) {
        engine->current = session;
        set_state(engine, KVF_ENGINE_UP);
        return;
    }
    engine->pause_ns = engine->pause_ns < PAUSE_MOST_NS / 2 ? 2 * engine->pause_ns : PAUSE_MOST_NS;
    engine->retry_ns = kvf_clock_now_ns() + engine->pause_ns;
}

/* ---- what callers left ---- */

/* Runs of equal kind, session and Get go in one message. */
static void tell_released(struct kvf_engine *engine, const struct release *releases, size_t count)
{
    struct session *session = engine_session(engine, releases[0].session);
    if (session == NULL)
        return; /* given back twice */
    struct kvf_client *client = session->client;
    bool pins = (releases[0].held & ITEM_PIN) != 0;
    for (size_t i = 0; i < count; i++) {
        client->indexes[i] = releases[i].index;
        client->handles[i] = releases[i].handle;
    }
    if (pins)
        dialog_release(client, releases[0].handle, count);
    else
        dialog_abort(client, count);
    session->held -= count; /* stats know already */
}

static bool belong_together(const struct release *a, const struct release *b)
{
    uint32_t kind = ITEM_PIN | ITEM_PLACE;
    return a->session == b->session && (a->held & kind) == (b->held & kind) &&
           ((a->held & ITEM_PLACE) != 0 || a->handle == b->handle);
}

/* True: there may be more. */
static bool take_releases(struct kvf_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    size_t count = engine->release_count < DIALOG_BLOCKS ? engine->release_count : DIALOG_BLOCKS;
    size_t left = engine->release_count - count;
    if (count > 0)
        memcpy(engine->taken, engine->releases + left, count * sizeof(*engine->taken));
    engine->release_count = left;
    engine->reserved -= count;
    (void)pthread_mutex_unlock(&engine->lock);
    for (size_t done = 0, run; done < count; done += run) {
        run = 1;
        while (done + run < count &&
               belong_together(&engine->taken[done], &engine->taken[done + run]))
            run++;
        tell_released(engine, engine->taken + done, run);
    }
    return count > 0;
}

/* False: we are closing. */
static bool take_operations(struct kvf_engine *engine, bool *cancels)
{
    uint64_t raised;
    ssize_t was = read(engine->wake_fd, &raised, sizeof(raised));
    (void)was;
    (void)pthread_mutex_lock(&engine->lock);
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&engine->inbox)) != NULL)
        kvf_list_push_back(&engine->active, node);
    *cancels = engine->cancels;
    engine->cancels = false;
    bool go_on = !engine->closing;
    (void)pthread_mutex_unlock(&engine->lock);
    return go_on;
}

static bool is_cancelled(struct kvf_engine *engine, struct kvf_op *op)
{
    (void)pthread_mutex_lock(&engine->lock);
    bool cancelled = op_own(op)->cancelled;
    (void)pthread_mutex_unlock(&engine->lock);
    return cancelled;
}

/* Those that were cancelled, and those whose time is up and to which the daemon has not said so. */
static void stop_operations(struct kvf_engine *engine, bool cancels)
{
    uint64_t now_ns = kvf_clock_now_ns();
    kvf_list_for_each_safe (node, &engine->active) {
        struct kvf_op *op = op_of(node);
        if (cancels && is_cancelled(engine, op))
            op_stop(engine, op, kvf_fail(KVF_MODULE_CLIENT, KVF_CANCELLED, 0));
        else if (now_ns >= op_own(op)->deadline_ns + ENGINE_GRACE_NS)
            op_stop(engine, op, kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0));
    }
}

/* ---- answers ---- */

static struct kvf_op *find_by_request(struct kvf_engine *engine, uint64_t id)
{
    kvf_list_for_each (node, &engine->active)
        if (op_own(op_of(node))->request == id)
            return op_of(node);
    return NULL;
}

static bool is_awaited(void *context, uint64_t id)
{
    return find_by_request(context, id) != NULL;
}

static void take_answers(struct kvf_engine *engine)
{
    const Kvferry__EngineReply *reply;
    for (unsigned i = 0; i < ANSWERS_A_TURN && engine->current != NULL; i++) {
        if (!kvf_is_ok(dialog_receive(engine->current->client, is_awaited, engine, &reply)))
            break;
        if (reply != NULL)
            op_take(engine, find_by_request(engine, reply->id), reply);
    }
    look_at_session(engine);
}

/* ---- turns ---- */

static bool step_operations(struct kvf_engine *engine)
{
    bool more = false;
    engine->socket_full = false;
    kvf_list_for_each_safe (node, &engine->active)
        more |= op_step(engine, op_of(node));
    look_at_session(engine);
    return more;
}

/* When somebody has to be looked after at the latest. */
static uint64_t next_event_ns(const struct kvf_engine *engine)
{
    uint64_t next = engine->current == NULL ? engine->retry_ns : UINT64_MAX;
    kvf_list_for_each (node, &engine->active) {
        uint64_t end_ns = op_own(op_of(node))->deadline_ns + ENGINE_GRACE_NS;
        next = end_ns < next ? end_ns : next;
    }
    return next;
}

static void sleep_until_something(struct kvf_engine *engine)
{
    uint64_t next_ns = next_event_ns(engine);
    uint64_t left = kvf_clock_left_ns(next_ns, kvf_clock_now_ns());
    struct timespec timeout = {.tv_sec = (time_t)(left / KVF_NS_PER_S),
                               .tv_nsec = (long)(left % KVF_NS_PER_S)};
    struct pollfd fds[2] = {{.fd = engine->wake_fd, .events = POLLIN}, {.fd = -1}};
    if (engine->current != NULL)
        fds[1] = (struct pollfd){.fd = engine->current->client->fd,
                                 .events = (short)(POLLIN | (engine->socket_full ? POLLOUT : 0))};
    (void)ppoll(fds, 2, next_ns == UINT64_MAX ? NULL : &timeout, NULL);
}

static void end_everything(struct kvf_engine *engine)
{
    kvf_list_for_each_safe (node, &engine->active)
        op_stop(engine, op_of(node), kvf_fail(KVF_MODULE_CLIENT, KVF_CANCELLED, 0));
    if (engine->current != NULL)
        kvf_list_push_back(&engine->retired, &engine->current->node);
    engine->current = NULL;
    close_retired(engine, true);
}

void *engine_run(void *context)
{
    struct kvf_engine *engine = context;
    bool cancels;
    engine->pause_ns = PAUSE_FIRST_NS;
    while (take_operations(engine, &cancels)) {
        bool more = take_releases(engine);
        if (engine->current == NULL && kvf_clock_now_ns() >= engine->retry_ns)
            try_to_register(engine);
        take_answers(engine);
        stop_operations(engine, cancels);
        more |= step_operations(engine);
        close_retired(engine, false);
        if (!more)
            sleep_until_something(engine);
    }
    (void)take_releases(engine);
    end_everything(engine);
    return NULL;
}
