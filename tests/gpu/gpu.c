#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

static void must(const struct gpu *gpu, unsigned result, const char *what)
{
    if (result == CUDA_SUCCESS_)
        return;
    (void)fprintf(stderr, "gpu: %s: %s (%u)\n", what, cuda_error(&gpu->driver, result), result);
    exit(1);
}

struct kvf_status gpu_open(const char *driver_path, struct gpu *gpu, struct kvf_why *why)
{
    struct kvf_device_options options = {.kind = KVF_DEVICE_CUDA, .driver_path = driver_path};
    int device;
    KVF_TRY(kvf_device_open(&options, &gpu->device, why));
    KVF_TRY(cuda_load(driver_path, &gpu->driver, why));
    must(gpu, gpu->driver.device_get(&device, 0), "cuDeviceGet");
    must(gpu, gpu->driver.primary_retain(&gpu->context, device), "cuDevicePrimaryCtxRetain");
    must(gpu, gpu->driver.push(gpu->context), "cuCtxPushCurrent");
    must(gpu, gpu->driver.stream_create(&gpu->stream, CUDA_STREAM_NON_BLOCKING_), "cuStreamCreate");
    return kvf_ok();
}

void gpu_close(struct gpu *gpu)
{
    must(gpu, gpu->driver.stream_destroy(gpu->stream), "cuStreamDestroy");
    must(gpu, gpu->driver.pop(&gpu->context), "cuCtxPopCurrent");
    must(gpu, gpu->driver.primary_release(0), "cuDevicePrimaryCtxRelease");
    cuda_unload(&gpu->driver);
    kvf_device_close(gpu->device);
}

uint64_t gpu_allocate(struct gpu *gpu, uint64_t bytes)
{
    unsigned long long address = 0;
    must(gpu, gpu->driver.mem_alloc(&address, (size_t)bytes), "cuMemAlloc");
    return address;
}

void gpu_free(struct gpu *gpu, uint64_t address)
{
    must(gpu, gpu->driver.mem_free(address), "cuMemFree");
}

void gpu_arena(struct gpu *gpu, uint64_t bytes, struct kvf_arena *arena)
{
    struct kvf_why why = {.text = ""};
    struct kvf_status status = kvf_arena_create(bytes, 0, false, arena, &why);
    struct kvf_range range = {arena->base, bytes};
    if (kvf_is_ok(status))
        status = kvf_device_pin(gpu->device, &range, 1);
    if (kvf_is_ok(status))
        return;
    (void)fprintf(stderr, "gpu: an arena of %llu bytes: %s %s (%d)\n", (unsigned long long)bytes,
                  why.text, kvf_device_error(gpu->device, status), (int)status.detail);
    exit(1);
}

void gpu_arena_free(struct gpu *gpu, struct kvf_arena *arena)
{
    struct kvf_range range = {arena->base, arena->bytes};
    kvf_device_unpin(gpu->device, &range, 1);
    kvf_arena_close(arena);
}

void gpu_plain(struct gpu *gpu, enum kvf_copy_direction direction, uint64_t address, void *here,
               uint64_t bytes)
{
    must(gpu,
         direction == KVF_COPY_TO_CACHE
             ? gpu->driver.to_device(address, here, (size_t)bytes, gpu->stream)
             : gpu->driver.to_host(here, address, (size_t)bytes, gpu->stream),
         "a plain copy");
}

void gpu_wait(struct gpu *gpu)
{
    must(gpu, gpu->driver.stream_synchronize(gpu->stream), "cuStreamSynchronize");
}

struct kvf_geometry gpu_geometry(void)
{
    return (struct kvf_geometry){.model = "qwen3-8b",
                                 .dtype = KVF_DTYPE_BF16,
                                 .layers = 36,
                                 .planes = 2,
                                 .page_tokens = 64,
                                 .token_elements = 8 * 128};
}
