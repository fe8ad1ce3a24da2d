/* Parts: control, contexts and registrations, streams, events, copies. */
#include "client/device/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 101u
#define ALREADY_REGISTERED 712u
#define NOT_REGISTERED 713u
#define PINNED_MAX 64u

/* Each function under the driver's symbol. */
#define FAKE_DECLARE(member, symbol, name, parameters)                                             \
    unsigned fake_##member parameters __asm__(symbol);
CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
const struct fake_cuda *fake_control(void);

struct CUctx_st {
    int number;
};

/* One thing that a stream does. */
struct work {
    struct work *next;
    struct CUevent_st *record, *await;
    uint8_t *to;
    const uint8_t *from;
    size_t to_pitch, from_pitch, width, height;
};

struct CUstream_st {
    pthread_t thread;
    struct work *first, **last;
    bool busy, ending;
};

struct CUevent_st {
    unsigned pending; /* records that have not happened */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* everything below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned calls[FAKE_COUNT], fail_at[FAKE_COUNT], fail_with[FAKE_COUNT];
static bool held;
static int max_pitch = 1 << 30;
static unsigned object_count;
static void *pinned[PINNED_MAX];
static struct CUctx_st primary;
static _Thread_local int depth;

/* ---- control ---- */

/* Counts the call; the result that it must answer, 0: none. With the lock. */
static unsigned call(enum fake_function function)
{
    calls[function]++;
    return fail_at[function] != 0 && --fail_at[function] == 0 ? fail_with[function] : 0;
}

static unsigned count_call(enum fake_function function)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(function);
    pthread_mutex_unlock(&lock);
    return result;
}

static void count_objects(int change)
{
    object_count = (unsigned)((int)object_count + change);
}

static void reset(void)
{
    pthread_mutex_lock(&lock);
    memset(calls, 0, sizeof(calls));
    memset(fail_at, 0, sizeof(fail_at));
    held = false;
    max_pitch = 1 << 30;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void break_call(enum fake_function function, unsigned nth, unsigned result)
{
    pthread_mutex_lock(&lock);
    fail_at[function] = nth;
    fail_with[function] = result;
    pthread_mutex_unlock(&lock);
}

static void hold(bool hold_them)
{
    pthread_mutex_lock(&lock);
    held = hold_them;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static unsigned calls_of(enum fake_function function)
{
    pthread_mutex_lock(&lock);
    unsigned count = calls[function];
    pthread_mutex_unlock(&lock);
    return count;
}

static unsigned pinned_now(void)
{
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PINNED_MAX; i++)
        count += pinned[i] != NULL;
    pthread_mutex_unlock(&lock);
    return count;
}

static unsigned objects_now(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = object_count;
    pthread_mutex_unlock(&lock);
    return count;
}

static int depth_now(void)
{
    return depth;
}

static void set_max_pitch(int bytes)
{
    pthread_mutex_lock(&lock);
    max_pitch = bytes;
    pthread_mutex_unlock(&lock);
}

static struct CUevent_st *make_producer(void)
{
    struct CUevent_st *event = calloc(1, sizeof(*event));
    event->pending = 1;
    return event;
}

static void signal_event(struct CUevent_st *event)
{
    pthread_mutex_lock(&lock);
    event->pending--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void forget(struct CUevent_st *event)
{
    free(event);
}

const struct fake_cuda *fake_control(void)
{
    static const struct fake_cuda control = {
        .reset = reset,
        .break_call = break_call,
        .hold = hold,
        .calls = calls_of,
        .pinned = pinned_now,
        .objects = objects_now,
        .depth = depth_now,
        .max_pitch = set_max_pitch,
        .producer = make_producer,
        .signal = signal_event,
        .forget = forget,
    };
    return &control;
}

/* ---- contexts and registrations ---- */

unsigned fake_init(unsigned flags)
{
    (void)flags;
    return count_call(FAKE_init);
}

unsigned fake_error_name(unsigned result, const char **name)
{
    *name = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS_;
}

unsigned fake_device_get(int *device, int ordinal)
{
    unsigned result = count_call(FAKE_device_get);
    *device = ordinal;
    return result != 0 ? result : ordinal == 0 ? CUDA_SUCCESS_ : NO_DEVICE;
}

unsigned fake_device_name(char *name, int room, int device)
{
    (void)snprintf(name, (size_t)room, "fake device %d", device);
    return count_call(FAKE_device_name);
}

unsigned fake_device_attribute(int *value, unsigned attribute, int device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_device_attribute);
    *value = attribute == CUDA_ATTRIBUTE_MAX_PITCH_ ? max_pitch : 0;
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_primary_retain(struct CUctx_st **context, int device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_primary_retain);
    if (result == 0) {
        *context = &primary;
        count_objects(1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_primary_release(int device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_primary_release);
    count_objects(-1);
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_push(struct CUctx_st *context)
{
    unsigned result = count_call(FAKE_push);
    if (result == 0)
        depth += context != NULL;
    return result;
}

unsigned fake_pop(struct CUctx_st **context)
{
    *context = &primary;
    depth--;
    return count_call(FAKE_pop);
}

unsigned fake_host_register(void *base, size_t bytes, unsigned flags)
{
    unsigned at = 0;
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_host_register);
    for (unsigned i = 0; i < PINNED_MAX; i++)
        if (pinned[i] == base)
            result = ALREADY_REGISTERED;
    while (pinned[at] != NULL)
        at++;
    if (bytes == 0 || flags != CUDA_HOST_REGISTER_PORTABLE_)
        result = CUDA_INVALID_VALUE_;
    if (result == 0)
        pinned[at] = base;
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_host_unregister(void *base)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_host_unregister), at = 0;
    while (at < PINNED_MAX && pinned[at] != base)
        at++;
    if (at == PINNED_MAX)
        result = NOT_REGISTERED;
    else
        pinned[at] = NULL;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- streams ---- */

static void do_copy(const struct work *work)
{
    for (size_t row = 0; row < work->height; row++)
        memcpy(work->to + row * work->to_pitch, work->from + row * work->from_pitch, work->width);
}

static bool may_go_on(const struct work *work)
{
    return !held && (work->await == NULL || work->await->pending == 0);
}

static void *run_stream(void *context)
{
    struct CUstream_st *stream = context;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct work *work = stream->first;
        if (work == NULL && stream->ending)
            break;
        if (work == NULL || !may_go_on(work)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        stream->first = work->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        stream->busy = true;
        pthread_mutex_unlock(&lock);
        do_copy(work);
        pthread_mutex_lock(&lock);
        stream->busy = false;
        if (work->record != NULL)
            work->record->pending--;
        free(work);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* With the lock. */
static void add(struct CUstream_st *stream, const struct work *work)
{
    struct work *copy = malloc(sizeof(*copy));
    *copy = *work;
    copy->next = NULL;
    *stream->last = copy;
    stream->last = &copy->next;
    pthread_cond_broadcast(&changed);
}

unsigned fake_stream_create(struct CUstream_st **give, unsigned flags)
{
    unsigned result = count_call(FAKE_stream_create);
    if (result != 0)
        return result;
    if (depth == 0 || flags != CUDA_STREAM_NON_BLOCKING_)
        return CUDA_INVALID_VALUE_;
    struct CUstream_st *stream = calloc(1, sizeof(*stream));
    stream->last = &stream->first;
    if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0)
        abort();
    pthread_mutex_lock(&lock);
    count_objects(1);
    pthread_mutex_unlock(&lock);
    *give = stream;
    return CUDA_SUCCESS_;
}

unsigned fake_stream_destroy(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_stream_destroy);
    stream->ending = true;
    count_objects(-1);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    (void)pthread_join(stream->thread, NULL);
    free(stream);
    return result;
}

unsigned fake_stream_wait(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_stream_wait);
    if (result == 0)
        add(stream, &(struct work){.await = event});
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_stream_synchronize(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_stream_synchronize);
    while (result == 0 && (stream->first != NULL || stream->busy))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- events ---- */

unsigned fake_event_create(struct CUevent_st **give, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_event_create);
    if (result == 0) {
        *give = calloc(1, sizeof(**give));
        count_objects(1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_event_destroy(struct CUevent_st *event)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_event_destroy);
    count_objects(-1);
    pthread_mutex_unlock(&lock);
    free(event);
    return result;
}

unsigned fake_event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_event_record);
    if (result == 0) {
        event->pending++;
        add(stream, &(struct work){.record = event});
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_event_query(struct CUevent_st *event)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_event_query);
    if (result == 0 && event->pending > 0)
        result = CUDA_NOT_READY_;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- copies ---- */

static unsigned add_copy(enum fake_function function, struct CUstream_st *stream,
                         const struct work *work)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(function);
    if (result == 0 && (depth == 0 || work->width == 0 || work->height == 0 ||
                        (work->height > 1 && (work->to_pitch > (size_t)max_pitch ||
                                              work->from_pitch > (size_t)max_pitch))))
        result = CUDA_INVALID_VALUE_;
    if (result == 0)
        add(stream, work);
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_to_device(unsigned long long to, const void *from, size_t bytes,
                        struct CUstream_st *stream)
{
    return add_copy(
        FAKE_to_device, stream,
        &(struct work){.to = (uint8_t *)(uintptr_t)to, .from = from, .width = bytes, .height = 1});
}

unsigned fake_to_host(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
    return add_copy(
        FAKE_to_host, stream,
        &(struct work){
            .to = to, .from = (const uint8_t *)(uintptr_t)from, .width = bytes, .height = 1});
}

unsigned fake_copy_2d(const struct cuda_memcpy2d *copy, struct CUstream_st *stream)
{
    bool in = copy->src_type == CUDA_MEMORY_HOST_;
    return add_copy(FAKE_copy_2d, stream,
                    &(struct work){
                        .to = in ? (uint8_t *)(uintptr_t)copy->dst_device : copy->dst_host,
                        .from = in ? copy->src_host : (const uint8_t *)(uintptr_t)copy->src_device,
                        .to_pitch = copy->dst_pitch,
                        .from_pitch = copy->src_pitch,
                        .width = copy->width,
                        .height = copy->height,
                    });
}

unsigned fake_mem_alloc(unsigned long long *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_mem_alloc);
    if (result == 0) {
        *address = (unsigned long long)(uintptr_t)calloc(1, bytes);
        count_objects(1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_mem_free(unsigned long long address)
{
    pthread_mutex_lock(&lock);
    unsigned result = call(FAKE_mem_free);
    count_objects(-1);
    pthread_mutex_unlock(&lock);
    free((void *)(uintptr_t)address);
    return result;
}
