/* Parts: devices, copies, the host's copies. */
#include "client/device/device.h"

#include "base/clock.h"
#include "client/device/cuda_device.h"
#include "client/device/plan.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_AGAIN_FIRST_NS 10000L /* a block of 9 MiB takes some 200 us */
#define LOOK_AGAIN_MOST_NS 500000L
#define WAIT_MAX_MS (24u * 3600u * 1000u)

struct kvf_device {
    enum kvf_device_kind kind;
    struct cuda_device cuda;
};

/* ---- devices ---- */

struct kvf_status kvf_device_open(const struct kvf_device_options *options,
                                  struct kvf_device **give, struct kvf_why *why)
{
    struct kvf_status status = kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    if (options->kind != KVF_DEVICE_HOST && options->kind != KVF_DEVICE_CUDA)
        return kvf_why_set(why, status, "%d is no kind of device", (int)options->kind);
    struct kvf_device *device = calloc(1, sizeof(*device));
    if (device == NULL)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    device->kind = options->kind;
    status =
        device->kind == KVF_DEVICE_CUDA ? cuda_device_open(options, &device->cuda, why) : kvf_ok();
    if (!kvf_is_ok(status)) {
        free(device);
        return status;
    }
    *give = device;
    return status;
}

void kvf_device_close(struct kvf_device *device)
{
    if (device == NULL)
        return;
    if (device->kind == KVF_DEVICE_CUDA) {
        kvf_assert(device->cuda.busy == 0);
        cuda_device_close(&device->cuda);
    }
    free(device);
}

const char *kvf_device_name(const struct kvf_device *device)
{
    return device->kind == KVF_DEVICE_CUDA ? device->cuda.name : "host";
}

const char *kvf_device_error(const struct kvf_device *device, struct kvf_status status)
{
    return device->kind == KVF_DEVICE_CUDA && status.detail > 0
               ? cuda_error(&device->cuda.driver, (unsigned)status.detail)
               : "";
}

struct kvf_status kvf_device_pin(struct kvf_device *device, const struct kvf_range *ranges,
                                 size_t count)
{
    return device->kind == KVF_DEVICE_CUDA ? cuda_device_pin(&device->cuda, ranges, count)
                                           : kvf_ok();
}

void kvf_device_unpin(struct kvf_device *device, const struct kvf_range *ranges, size_t count)
{
    if (device->kind == KVF_DEVICE_CUDA)
        cuda_device_unpin(&device->cuda, ranges, count);
}

/* ---- the host's copies ---- */

static void copy_here(enum kvf_copy_direction direction, uint8_t *block,
                      const struct plan_copy *part)
{
    uint8_t *cache = (uint8_t *)(uintptr_t)part->address;
    for (uint64_t row = 0; row < part->rows; row++) {
        uint8_t *here = block + row * part->block_pitch, *there = cache + row * part->cache_pitch;
        if (direction == KVF_COPY_TO_CACHE)
            memcpy(there, here, (size_t)part->width);
        else
            memcpy(here, there, (size_t)part->width);
    }
}

static void copy_on_host(const struct plan *plan, struct kvf_copy *copy)
{
    for (size_t i = 0; i < copy->count; i++) {
        struct plan_walk walk = plan_begin(plan, copy->pairs[i].page);
        struct plan_copy part;
        while (plan_next(&walk, &part)) {
            copy_here(copy->direction, (uint8_t *)copy->pairs[i].block + part.block_offset, &part);
            copy->calls++;
            copy->bytes += part.width * part.rows;
        }
    }
}

/* ---- copies ---- */

static bool is_valid(const struct kvf_copy *copy)
{
    if (copy->count == 0 || copy->cache.geometry == NULL ||
        (copy->direction != KVF_COPY_TO_CACHE && copy->direction != KVF_COPY_FROM_CACHE))
        return false;
    for (size_t i = 0; i < copy->count; i++)
        if (copy->pairs[i].block == NULL || copy->pairs[i].page >= copy->cache.pages)
            return false;
    return true;
}

struct kvf_status kvf_copy_start(struct kvf_device *device, struct kvf_copy *copy)
{
    struct plan plan;
    if (!is_valid(copy))
        return kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    bool cuda = device->kind == KVF_DEVICE_CUDA;
    KVF_TRY(plan_make(&copy->cache, cuda ? device->cuda.max_pitch : UINT64_MAX, &plan));
    copy->device = device;
    copy->status = kvf_ok();
    copy->calls = copy->bytes = 0;
    copy->running = false;
    if (cuda)
        return cuda_copy_start(&device->cuda, &plan, copy);
    copy_on_host(&plan, copy);
    return kvf_ok();
}

struct kvf_status kvf_copy_poll(struct kvf_copy *copy)
{
    if (copy->running)
        cuda_copy_look(&copy->device->cuda, copy);
    return copy->running ? kvf_fail(KVF_MODULE_CLIENT, KVF_BUSY, 0) : copy->status;
}

struct kvf_status kvf_copy_wait(struct kvf_copy *copy, uint64_t timeout_ms)
{
    uint64_t most = timeout_ms < WAIT_MAX_MS ? timeout_ms : WAIT_MAX_MS;
    uint64_t deadline_ns = kvf_clock_now_ns() + most * KVF_NS_PER_MS;
    struct timespec pause = {.tv_nsec = LOOK_AGAIN_FIRST_NS};
    for (;;) {
        struct kvf_status status = kvf_copy_poll(copy);
        if (!copy->running)
            return status;
        if (kvf_clock_now_ns() >= deadline_ns)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0);
        (void)nanosleep(&pause, NULL);
        if (pause.tv_nsec < LOOK_AGAIN_MOST_NS)
            pause.tv_nsec *= 2;
    }
}

void *kvf_copy_event(const struct kvf_copy *copy)
{
    return copy->running ? copy->device->cuda.events[copy->slot] : NULL;
}
