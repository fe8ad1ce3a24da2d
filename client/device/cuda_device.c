/* Parts: open and close, pin, one copy's calls, start and end. */
#include "client/device/cuda_device.h"

#include <string.h>

/* ---- open and close ---- */

static struct kvf_status leave(struct cuda_device *cuda)
{
    struct CUctx_st *left;
    return cuda_status(cuda->driver.pop(&left));
}

static struct kvf_status enter(struct cuda_device *cuda)
{
    return cuda_status(cuda->driver.push(cuda->context));
}

/* Streams first: what they still do ends before its event goes. */
static void destroy_objects(struct cuda_device *cuda)
{
    for (unsigned i = 0; i < CUDA_DIRECTIONS && cuda->streams[i] != NULL; i++) {
        (void)cuda->driver.stream_synchronize(cuda->streams[i]);
        (void)cuda->driver.stream_destroy(cuda->streams[i]);
    }
    for (unsigned i = 0; i < CUDA_COPIES_MAX && cuda->events[i] != NULL; i++)
        (void)cuda->driver.event_destroy(cuda->events[i]);
}

/* In our context. What was made before an error is undone by destroy_objects. */
static struct kvf_status create_objects(struct cuda_device *cuda)
{
    for (unsigned i = 0; i < CUDA_DIRECTIONS; i++)
        KVF_TRY(
            cuda_status(cuda->driver.stream_create(&cuda->streams[i], CUDA_STREAM_NON_BLOCKING_)));
    for (unsigned i = 0; i < CUDA_COPIES_MAX; i++)
        KVF_TRY(
            cuda_status(cuda->driver.event_create(&cuda->events[i], CUDA_EVENT_DISABLE_TIMING_)));
    return kvf_ok();
}

static struct kvf_status find_device(struct cuda_device *cuda, void *context)
{
    int device, pitch = 0;
    KVF_TRY(cuda_status(cuda->driver.device_get(&device, cuda->ordinal)));
    KVF_TRY(cuda_status(cuda->driver.device_name(cuda->name, (int)sizeof(cuda->name), device)));
    KVF_TRY(cuda_status(cuda->driver.device_attribute(&pitch, CUDA_ATTRIBUTE_MAX_PITCH_, device)));
    cuda->max_pitch = pitch > 0 ? (uint64_t)pitch : 0;
    cuda->context = context;
    if (context != NULL)
        return kvf_ok();
    struct kvf_status status = cuda_status(cuda->driver.primary_retain(&cuda->context, device));
    cuda->primary = kvf_is_ok(status);
    return status;
}

static void close_device(struct cuda_device *cuda)
{
    if (cuda->primary)
        (void)cuda->driver.primary_release(cuda->ordinal);
    cuda_unload(&cuda->driver);
}

static struct kvf_status explain_device(const struct cuda_device *cuda, struct kvf_status status,
                                        struct kvf_why *why)
{
    return kvf_why_set(why, status, "CUDA device %d cannot be used: %s (%d)", cuda->ordinal,
                       cuda_error(&cuda->driver, (unsigned)status.detail), (int)status.detail);
}

struct kvf_status cuda_device_open(const struct kvf_device_options *options,
                                   struct cuda_device *cuda, struct kvf_why *why)
{
    *cuda = (struct cuda_device){.ordinal = options->ordinal};
    KVF_TRY(cuda_load(options->driver_path, &cuda->driver, why));
    struct kvf_status status = find_device(cuda, options->context);
    if (!kvf_is_ok(status)) {
        status.code = KVF_UNSUPPORTED;
        goto fail_device;
    }
    status = enter(cuda);
    if (!kvf_is_ok(status))
        goto fail_device;
    status = create_objects(cuda);
    if (!kvf_is_ok(status))
        destroy_objects(cuda);
    (void)leave(cuda);
    if (kvf_is_ok(status))
        return status;
fail_device:
    (void)explain_device(cuda, status, why);
    close_device(cuda);
    return status;
}

void cuda_device_close(struct cuda_device *cuda)
{
    if (kvf_is_ok(enter(cuda))) {
        destroy_objects(cuda);
        (void)leave(cuda);
    }
    close_device(cuda);
}

/* ---- pin ---- */

static void unregister(struct cuda_device *cuda, const struct kvf_range *ranges, size_t count)
{
    while (count > 0)
        (void)cuda->driver.host_unregister(ranges[--count].base);
}

struct kvf_status cuda_device_pin(struct cuda_device *cuda, const struct kvf_range *ranges,
                                  size_t count)
{
    KVF_TRY(enter(cuda));
    struct kvf_status status = kvf_ok();
    size_t done = 0;
    while (done < count && kvf_is_ok(status)) {
        status = cuda_status(cuda->driver.host_register(
            ranges[done].base, (size_t)ranges[done].bytes, CUDA_HOST_REGISTER_PORTABLE_));
        done += kvf_is_ok(status);
    }
    if (!kvf_is_ok(status))
        unregister(cuda, ranges, done);
    (void)leave(cuda);
    return status;
}

void cuda_device_unpin(struct cuda_device *cuda, const struct kvf_range *ranges, size_t count)
{
    if (!kvf_is_ok(enter(cuda)))
        return; /* a context that is gone has no registrations */
    unregister(cuda, ranges, count);
    (void)leave(cuda);
}

/* ---- one copy's calls ---- */

static struct kvf_status count_call(struct kvf_copy *copy, unsigned result,
                                    const struct plan_copy *part)
{
    if (result == CUDA_SUCCESS_) {
        copy->calls++;
        copy->bytes += part->width * part->rows;
    }
    return cuda_status(result);
}

static struct kvf_status copy_row(struct cuda_device *cuda, struct kvf_copy *copy, uint8_t *block,
                                  const struct plan_copy *part)
{
    struct CUstream_st *stream = cuda->streams[copy->direction];
    size_t width = (size_t)part->width;
    return count_call(copy,
                      copy->direction == KVF_COPY_TO_CACHE
                          ? cuda->driver.to_device(part->address, block, width, stream)
                          : cuda->driver.to_host(block, part->address, width, stream),
                      part);
}

static struct kvf_status copy_rows(struct cuda_device *cuda, struct kvf_copy *copy, uint8_t *block,
                                   const struct plan_copy *part)
{
    struct cuda_memcpy2d call = {.width = (size_t)part->width, .height = (size_t)part->rows};
    if (copy->direction == KVF_COPY_TO_CACHE) {
        call.src_type = CUDA_MEMORY_HOST_;
        call.src_host = block;
        call.src_pitch = (size_t)part->block_pitch;
        call.dst_type = CUDA_MEMORY_DEVICE_;
        call.dst_device = part->address;
        call.dst_pitch = (size_t)part->cache_pitch;
    } else {
        call.src_type = CUDA_MEMORY_DEVICE_;
        call.src_device = part->address;
        call.src_pitch = (size_t)part->cache_pitch;
        call.dst_type = CUDA_MEMORY_HOST_;
        call.dst_host = block;
        call.dst_pitch = (size_t)part->block_pitch;
    }
    return count_call(copy, cuda->driver.copy_2d(&call, cuda->streams[copy->direction]), part);
}

/* Rows one by one: a driver may refuse a 2-D copy that spans several allocations, as layers' tensors are. */
static struct kvf_status copy_each_row(struct cuda_device *cuda, struct kvf_copy *copy,
                                       uint8_t *block, struct plan_copy part)
{
    uint64_t rows = part.rows;
    part.rows = 1;
    for (uint64_t row = 0; row < rows; row++) {
        KVF_TRY(copy_row(cuda, copy, block + row * part.block_pitch, &part));
        part.address += part.cache_pitch;
    }
    return kvf_ok();
}

static struct kvf_status copy_part(struct cuda_device *cuda, struct kvf_copy *copy, uint8_t *block,
                                   const struct plan_copy *part)
{
    if (part->rows == 1)
        return copy_row(cuda, copy, block, part);
    struct kvf_status status = copy_rows(cuda, copy, block, part);
    if (status.detail == (int)CUDA_INVALID_VALUE_)
        status = copy_each_row(cuda, copy, block, *part);
    return status;
}

static struct kvf_status copy_pair(struct cuda_device *cuda, const struct plan *plan,
                                   const struct kvf_copy_pair *pair, struct kvf_copy *copy)
{
    struct plan_walk walk = plan_begin(plan, pair->page);
    struct plan_copy part;
    while (plan_next(&walk, &part))
        KVF_TRY(copy_part(cuda, copy, (uint8_t *)pair->block + part.block_offset, &part));
    return kvf_ok();
}

/* ---- start and end ---- */

static void end(struct cuda_device *cuda, struct kvf_copy *copy, struct kvf_status status)
{
    if (kvf_is_ok(copy->status))
        copy->status = status;
    copy->running = false;
    cuda->busy &= ~(UINT64_C(1) << copy->slot);
}

/* The first failure stays; what was handed over before it still has to end, hence the event behind it. Without one only waiting helps; a
 * stream that cannot even be waited for belongs to a context that is dead and moves nothing. */
static void hand_over(struct cuda_device *cuda, const struct plan *plan, struct kvf_copy *copy)
{
    struct CUstream_st *stream = cuda->streams[copy->direction];
    for (size_t i = 0; i < copy->count && kvf_is_ok(copy->status); i++)
        copy->status = copy_pair(cuda, plan, &copy->pairs[i], copy);
    struct kvf_status recorded =
        cuda_status(cuda->driver.event_record(cuda->events[copy->slot], stream));
    if (kvf_is_ok(recorded))
        return;
    (void)cuda->driver.stream_synchronize(stream);
    end(cuda, copy, recorded);
}

struct kvf_status cuda_copy_start(struct cuda_device *cuda, const struct plan *plan,
                                  struct kvf_copy *copy)
{
    if (~cuda->busy == 0)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_BUSY, 0);
    KVF_TRY(enter(cuda));
    struct kvf_status status = kvf_ok();
    if (copy->after != NULL)
        status =
            cuda_status(cuda->driver.stream_wait(cuda->streams[copy->direction], copy->after, 0));
    if (kvf_is_ok(status)) {
        copy->slot = (unsigned)__builtin_ctzll(~cuda->busy);
        cuda->busy |= UINT64_C(1) << copy->slot;
        copy->running = true;
        hand_over(cuda, plan, copy);
    }
    (void)leave(cuda);
    return status;
}

void cuda_copy_look(struct cuda_device *cuda, struct kvf_copy *copy)
{
    struct kvf_status status = enter(cuda);
    if (kvf_is_ok(status)) {
        unsigned result = cuda->driver.event_query(cuda->events[copy->slot]);
        if (result == CUDA_NOT_READY_) {
            (void)leave(cuda);
            return;
        }
        status = cuda_status(result);
        if (!kvf_is_ok(status))
            (void)cuda->driver.stream_synchronize(cuda->streams[copy->direction]);
        (void)leave(cuda);
    }
    end(cuda, copy, status);
}
