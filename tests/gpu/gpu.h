/* gpu: what the check and the bench share: the device, its driver for what client/device does not do (memory there, plain copies), and pinned
 * arenas. One thread. */
#ifndef KVFERRY_TESTS_GPU_GPU_H
#define KVFERRY_TESTS_GPU_GPU_H

#include "base/arena.h"
#include "client/device/cuda.h"
#include "client/device/device.h"

struct gpu {
    struct kvf_device *device;
    struct cuda_driver driver;
    struct CUctx_st *context;
    struct CUstream_st *stream; /* of plain copies */
};

/* UNSUPPORTED with a line in *why: there is no device, or no driver. driver_path: as in kvf_device_options. The context stays current. */
KVF_MUST_USE struct kvf_status gpu_open(const char *driver_path, struct gpu *gpu,
                                        struct kvf_why *why);
void gpu_close(struct gpu *gpu);

/* These end the program when anything fails. */
uint64_t gpu_allocate(struct gpu *gpu, uint64_t bytes);
void gpu_free(struct gpu *gpu, uint64_t address);
void gpu_arena(struct gpu *gpu, uint64_t bytes, struct kvf_arena *arena); /* pinned */
void gpu_arena_free(struct gpu *gpu, struct kvf_arena *arena);
/* Plain copies on a stream of their own, one call each; gpu_wait waits for all of them. */
void gpu_plain(struct gpu *gpu, enum kvf_copy_direction direction, uint64_t address, void *here,
               uint64_t bytes);
void gpu_wait(struct gpu *gpu);
/* Qwen3-8B: 36 layers, K and V apart, 9 MiB a page of 64 tokens. */
struct kvf_geometry gpu_geometry(void);

#endif
