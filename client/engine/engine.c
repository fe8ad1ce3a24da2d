/* kvf_engine, as its callers see it. Parts: open and close, what is told, operations in, operations out. */
#include "base/clock.h"
#include "base/thread.h"
#include "client/engine/engine_state.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PATH_MAX_BYTES 107u

static struct kvf_status failure(enum kvf_code code)
{
    return kvf_fail(KVF_MODULE_CLIENT, code, 0);
}

static void raise_fd(int fd)
{
    const uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one)); /* full is raised as well */
    (void)written;
}

/* ---- open and close ---- */

static char *copy_text(const char *text)
{
    return strdup(text != NULL ? text : "");
}

static void free_geometry(struct kvf_geometry *geometry)
{
    if (geometry == NULL)
        return;
    free((char *)(uintptr_t)geometry->model);
    free((char *)(uintptr_t)geometry->layout);
    free((char *)(uintptr_t)geometry->salt);
    free(geometry);
}

static struct kvf_geometry *copy_geometry(const struct kvf_geometry *geometry)
{
    struct kvf_geometry *copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return NULL;
    *copy = *geometry;
    copy->model = copy_text(geometry->model);
    copy->layout = copy_text(geometry->layout);
    copy->salt = copy_text(geometry->salt);
    if (copy->model != NULL && copy->layout != NULL && copy->salt != NULL)
        return copy;
    free_geometry(copy);
    return NULL;
}

static void free_engine(struct kvf_engine *engine)
{
    if (engine->wake_fd >= 0)
        (void)close(engine->wake_fd);
    if (engine->event_fd >= 0)
        (void)close(engine->event_fd);
    (void)pthread_cond_destroy(&engine->changed);
    (void)pthread_mutex_destroy(&engine->lock);
    free_geometry(engine->geometry);
    free(engine->path);
    free(engine->name);
    free(engine->releases);
    free(engine);
}

/* Deadlines are on the monotonic clock. */
static bool init_locks(struct kvf_engine *engine)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    bool made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&engine->changed, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes);
    if (made && pthread_mutex_init(&engine->lock, NULL) != 0) {
        (void)pthread_cond_destroy(&engine->changed);
        made = false;
    }
    return made;
}

static struct kvf_engine *make_engine(const struct kvf_engine_options *options)
{
    struct kvf_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL || !init_locks(engine)) {
        free(engine);
        return NULL;
    }
    kvf_list_init(&engine->inbox);
    kvf_list_init(&engine->ended);
    kvf_list_init(&engine->active);
    kvf_list_init(&engine->retired);
    engine->options = *options;
    engine->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    engine->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    engine->path = copy_text(options->socket_path);
    engine->name = copy_text(options->name);
    if (options->geometry != NULL)
        engine->geometry = copy_geometry(options->geometry);
    if (engine->wake_fd >= 0 && engine->event_fd >= 0 && engine->path != NULL &&
        engine->name != NULL && (options->geometry == NULL) == (engine->geometry == NULL))
        return engine;
    free_engine(engine);
    return NULL;
}

struct kvf_status kvf_engine_open(const struct kvf_engine_options *options,
                                  struct kvf_engine **give, struct kvf_why *why)
{
    const char *path = options->socket_path != NULL ? options->socket_path : "";
    if (path[0] == '\0' || strlen(path) > PATH_MAX_BYTES)
        return kvf_why_set(
            why, failure(KVF_INVALID),
            "%.100s is no path for a unix socket (1 to 107 bytes): use a shorter run "
            "directory",
            path);
    if (options->geometry != NULL)
        KVF_TRY(kvf_geometry_check(options->geometry, why));
    struct kvf_engine *engine = make_engine(options);
    if (engine == NULL)
        return kvf_why_set(why, failure(KVF_NO_MEMORY), "no memory or descriptors for an engine");
    (void)kvf_why_set(&engine->why, kvf_ok(), "no attempt to register has ended yet");
    int error = kvf_thread_start(&engine->thread, "kvferry", engine_run, engine);
    if (error != 0) {
        free_engine(engine);
        return kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, error),
                           "no thread can be started: errno %d", error);
    }
    *give = engine;
    return kvf_ok();
}

void kvf_engine_close(struct kvf_engine *engine)
{
    if (engine == NULL)
        return;
    (void)pthread_mutex_lock(&engine->lock);
    engine->closing = true;
    (void)pthread_mutex_unlock(&engine->lock);
    raise_fd(engine->wake_fd);
    (void)pthread_join(engine->thread, NULL);
    free_engine(engine);
}

/* ---- what is told ---- */

enum kvf_engine_state kvf_engine_state(struct kvf_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    enum kvf_engine_state state = engine->state;
    (void)pthread_mutex_unlock(&engine->lock);
    return state;
}

struct kvf_status kvf_engine_wait_up(struct kvf_engine *engine, uint64_t timeout_ms,
                                     struct kvf_why *why)
{
    uint64_t deadline_ns = dialog_deadline(timeout_ms);
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / KVF_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % KVF_NS_PER_S)};
    int error = 0;
    (void)pthread_mutex_lock(&engine->lock);
    while (engine->state != KVF_ENGINE_UP && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    bool up = engine->state == KVF_ENGINE_UP;
    if (!up && why != NULL)
        *why = engine->why;
    (void)pthread_mutex_unlock(&engine->lock);
    return up ? kvf_ok() : failure(KVF_DEADLINE);
}

static uint64_t read_locked(struct kvf_engine *engine, const uint64_t *value)
{
    (void)pthread_mutex_lock(&engine->lock);
    uint64_t read = *value;
    (void)pthread_mutex_unlock(&engine->lock);
    return read;
}

uint64_t kvf_engine_max_get_bytes(struct kvf_engine *engine)
{
    return read_locked(engine, &engine->max_get_bytes);
}

uint64_t kvf_engine_max_put_bytes(struct kvf_engine *engine)
{
    return read_locked(engine, &engine->max_put_bytes);
}

uint64_t kvf_engine_boot_epoch(struct kvf_engine *engine)
{
    return read_locked(engine, &engine->boot_epoch);
}

uint64_t kvf_engine_instance(struct kvf_engine *engine)
{
    return read_locked(engine, &engine->instance);
}

void kvf_engine_stats(struct kvf_engine *engine, struct kvf_stats *stats)
{
    (void)pthread_mutex_lock(&engine->lock);
    *stats = engine->stats;
    (void)pthread_mutex_unlock(&engine->lock);
}

/* ---- operations in ---- */

static bool length_is_valid(const struct kvf_op *op, const struct kvf_item *item)
{
    if (op->kind == KVF_OP_PUT || (op->kind == KVF_OP_GET && item->memory != NULL))
        return item->length >= 1 && item->length <= KVF_BLOCK_MAX_BYTES;
    return op->kind != KVF_OP_GET || item->length <= KVF_BLOCK_MAX_BYTES;
}

static bool op_is_valid(const struct kvf_op *op)
{
    if (op->kind != KVF_OP_PUT && op->kind != KVF_OP_GET && op->kind != KVF_OP_LOOKUP &&
        op->kind != KVF_OP_FORGET)
        return false;
    if (op->ns == NULL || !kvf_namespace_is_valid(op->ns) || op->timeout_ms == 0 ||
        !get_source_is_valid(op->source) || op->count > UINT32_MAX)
        return false;
    for (size_t i = 0; i < op->count; i++) {
        const struct kvf_item *item = &op->items[i];
        if (!dialog_key_is_valid(&item->key) || !length_is_valid(op, item) ||
            (item->memory != NULL) != (op->items[0].memory != NULL))
            return false;
    }
    return true;
}

static void prepare(struct kvf_op *op, bool quiet)
{
    struct op_own *own = op_own(op);
    *own = (struct op_own){.deadline_ns = dialog_deadline(op->timeout_ms), .quiet = quiet};
    kvf_list_init(&own->node);
    op->status = kvf_ok();
    op->prefix = 0;
}

static void prepare_items(struct kvf_op *op)
{
    for (size_t i = 0; i < op->count; i++) {
        struct kvf_item *item = &op->items[i];
        *item = (struct kvf_item){.key = item->key,
                                  .length = item->length,
                                  .memory = item->memory,
                                  .code = KVF_NOT_FOUND};
    }
}

/* Room for giving back whatever the operation may come to hold. */
static bool reserve(struct kvf_engine *engine, size_t count)
{
    size_t wanted = engine->reserved + count;
    if (wanted > engine->release_room) {
        size_t room = 2 * wanted;
        struct release *grown = realloc(engine->releases, room * sizeof(*grown));
        if (grown == NULL)
            return false;
        engine->releases = grown;
        engine->release_room = room;
    }
    engine->reserved = wanted;
    return true;
}

/* A commit is for the daemon that gave the places, also while it drains. */
static void start_locked(struct kvf_engine *engine, struct kvf_op *op)
{
    if (op->kind != KVF_OP_COMMIT && op_is_in_place(op) && !reserve(engine, op->count)) {
        engine->reserved += op->count; /* its end takes them back */
        engine_end_locked(engine, op, failure(KVF_NO_MEMORY));
    } else if (op->count == 0) {
        engine_end_locked(engine, op, kvf_ok());
    } else if (engine->state == KVF_ENGINE_DOWN ||
               (engine->state == KVF_ENGINE_DRAINING && op->kind != KVF_OP_COMMIT)) {
        engine_end_locked(
            engine, op, failure(engine->state == KVF_ENGINE_DOWN ? KVF_UNAVAILABLE : KVF_DRAINING));
    } else {
        kvf_list_push_back(&engine->inbox, &op_own(op)->node);
        raise_fd(engine->wake_fd);
    }
}

struct kvf_status kvf_engine_submit(struct kvf_engine *engine, struct kvf_op *op)
{
    if (!op_is_valid(op))
        return failure(KVF_INVALID);
    prepare(op, false);
    prepare_items(op);
    (void)pthread_mutex_lock(&engine->lock);
    start_locked(engine, op);
    (void)pthread_mutex_unlock(&engine->lock);
    return kvf_ok();
}

struct kvf_status kvf_engine_run(struct kvf_engine *engine, struct kvf_op *op)
{
    if (!op_is_valid(op))
        return failure(KVF_INVALID);
    prepare(op, true);
    prepare_items(op);
    (void)pthread_mutex_lock(&engine->lock);
    start_locked(engine, op);
    while (!op_own(op)->ended) /* our thread ends it by its deadline */
        (void)pthread_cond_wait(&engine->changed, &engine->lock);
    (void)pthread_mutex_unlock(&engine->lock);
    return op->status;
}

struct kvf_status kvf_engine_commit(struct kvf_engine *engine, struct kvf_op *op,
                                    uint64_t timeout_ms)
{
    struct kvf_status status = failure(KVF_INVALID);
    (void)pthread_mutex_lock(&engine->lock);
    const struct op_own *own = op_own(op);
    bool is_taken = own->ended && (own->quiet || kvf_list_is_empty(&own->node));
    if (timeout_ms > 0 && op->kind == KVF_OP_PUT && is_taken && op_is_in_place(op)) {
        op->kind = KVF_OP_COMMIT;
        op->timeout_ms = timeout_ms;
        prepare(op, false);
        for (size_t i = 0; i < op->count; i++)
            if ((op->items[i].held & ITEM_PLACE) != 0)
                op->items[i].held = ITEM_PLACE; /* not settled any more */
        start_locked(engine, op);
        status = kvf_ok();
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return status;
}

void kvf_engine_cancel(struct kvf_engine *engine, struct kvf_op *op)
{
    (void)pthread_mutex_lock(&engine->lock);
    if (!op_own(op)->ended) {
        op_own(op)->cancelled = true;
        engine->cancels = true;
        raise_fd(engine->wake_fd);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

void kvf_engine_release(struct kvf_engine *engine, struct kvf_item *items, size_t count)
{
    size_t given = 0;
    (void)pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < count; i++) {
        struct kvf_item *item = &items[i];
        if ((item->held & (ITEM_PIN | ITEM_PLACE)) == 0)
            continue;
        kvf_assert(engine->release_count < engine->release_room);
        engine->releases[engine->release_count++] =
            (struct release){item->session, item->handle, item->index, item->held};
        item->held = 0;
        item->data = NULL;
        given++;
    }
    engine->stats.held_blocks -= given;
    (void)pthread_mutex_unlock(&engine->lock);
    if (given > 0)
        raise_fd(engine->wake_fd);
}

/* ---- operations out ---- */

static bool counts_for_prefix(const struct kvf_op *op, enum kvf_code code)
{
    return code == KVF_OK ||
           (code == KVF_EXISTS && (op->kind == KVF_OP_PUT || op->kind == KVF_OP_COMMIT));
}

/* What is not held needs no room for being given back. */
static size_t count_free(const struct kvf_op *op)
{
    size_t held = 0;
    for (size_t i = 0; i < op->count; i++)
        held += (op->items[i].held & (ITEM_PIN | ITEM_PLACE)) != 0;
    return op->count - held;
}

void engine_end_locked(struct kvf_engine *engine, struct kvf_op *op, struct kvf_status status)
{
    struct op_own *own = op_own(op);
    for (size_t i = 0; i < op->count; i++)
        if ((op->items[i].held & ITEM_SETTLED) == 0)
            op_settle(&engine->stats, op, &op->items[i],
                      kvf_is_ok(status) ? KVF_NOT_FOUND : (enum kvf_code)status.code);
    while (op->prefix < op->count && counts_for_prefix(op, op->items[op->prefix].code))
        op->prefix++;
    if (op->kind != KVF_OP_COMMIT && op_is_in_place(op))
        engine->reserved -= count_free(op);
    op->status = status;
    own->ended = true;
    if (own->quiet) {
        (void)pthread_cond_broadcast(&engine->changed);
    } else {
        kvf_list_push_back(&engine->ended, &own->node);
        raise_fd(engine->event_fd);
    }
}

int kvf_engine_event_fd(const struct kvf_engine *engine)
{
    return engine->event_fd;
}

struct kvf_op *kvf_engine_next(struct kvf_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    struct kvf_list *node = kvf_list_pop_front(&engine->ended);
    if (kvf_list_is_empty(&engine->ended)) {
        uint64_t raised;
        ssize_t was = read(engine->event_fd, &raised, sizeof(raised)); /* not raised is fine */
        (void)was;
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return node != NULL ? op_of(node) : NULL;
}
