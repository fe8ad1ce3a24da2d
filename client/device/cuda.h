/* The few entry points of the CUDA driver that we call, declared by ourselves so that nothing of CUDA is needed at build time;
 * cuda_headers_test compares them with the Toolkit's headers where those are found. Handles are the driver's own. */
#ifndef KVFERRY_CLIENT_DEVICE_CUDA_H
#define KVFERRY_CLIENT_DEVICE_CUDA_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUarray_st;

/* CUresult */
#define CUDA_SUCCESS_ 0u
#define CUDA_INVALID_VALUE_ 1u
#define CUDA_NOT_READY_ 600u

#define CUDA_MEMORY_HOST_ 1u /* CUmemorytype */
#define CUDA_MEMORY_DEVICE_ 2u
#define CUDA_HOST_REGISTER_PORTABLE_ 1u /* for every context */
#define CUDA_STREAM_NON_BLOCKING_ 1u    /* does not wait for the default stream */
#define CUDA_EVENT_DISABLE_TIMING_ 2u
#define CUDA_ATTRIBUTE_MAX_PITCH_ 11u /* CUdevice_attribute: the longest pitch of a 2-D copy */

/* CUDA_MEMCPY2D */
struct cuda_memcpy2d {
    size_t src_x, src_y;
    unsigned src_type;
    const void *src_host;
    unsigned long long src_device;
    struct CUarray_st *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    unsigned dst_type;
    void *dst_host;
    unsigned long long dst_device;
    struct CUarray_st *dst_array;
    size_t dst_pitch;
    size_t width, height;
};

/* X(member, symbol, the header's name, parameters): all return a CUresult. */
#define CUDA_FUNCTIONS(X)                                                                          \
    X(init, "cuInit", cuInit, (unsigned))                                                          \
    X(error_name, "cuGetErrorName", cuGetErrorName, (unsigned, const char **))                     \
    X(device_get, "cuDeviceGet", cuDeviceGet, (int *, int))                                        \
    X(device_name, "cuDeviceGetName", cuDeviceGetName, (char *, int, int))                         \
    X(device_attribute, "cuDeviceGetAttribute", cuDeviceGetAttribute, (int *, unsigned, int))      \
    X(primary_retain, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain,                        \
      (struct CUctx_st **, int))                                                                   \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", cuDevicePrimaryCtxRelease, (int))           \
    X(push, "cuCtxPushCurrent_v2", cuCtxPushCurrent, (struct CUctx_st *))                          \
    X(pop, "cuCtxPopCurrent_v2", cuCtxPopCurrent, (struct CUctx_st **))                            \
    X(host_register, "cuMemHostRegister_v2", cuMemHostRegister, (void *, size_t, unsigned))        \
    X(host_unregister, "cuMemHostUnregister", cuMemHostUnregister, (void *))                       \
    X(stream_create, "cuStreamCreate", cuStreamCreate, (struct CUstream_st **, unsigned))          \
    X(stream_destroy, "cuStreamDestroy_v2", cuStreamDestroy, (struct CUstream_st *))               \
    X(stream_wait, "cuStreamWaitEvent", cuStreamWaitEvent,                                         \
      (struct CUstream_st *, struct CUevent_st *, unsigned))                                       \
    X(stream_synchronize, "cuStreamSynchronize", cuStreamSynchronize, (struct CUstream_st *))      \
    X(event_create, "cuEventCreate", cuEventCreate, (struct CUevent_st **, unsigned))              \
    X(event_destroy, "cuEventDestroy_v2", cuEventDestroy, (struct CUevent_st *))                   \
    X(event_record, "cuEventRecord", cuEventRecord, (struct CUevent_st *, struct CUstream_st *))   \
    X(event_query, "cuEventQuery", cuEventQuery, (struct CUevent_st *))                            \
    X(to_device, "cuMemcpyHtoDAsync_v2", cuMemcpyHtoDAsync,                                        \
      (unsigned long long, const void *, size_t, struct CUstream_st *))                            \
    X(to_host, "cuMemcpyDtoHAsync_v2", cuMemcpyDtoHAsync,                                          \
      (void *, unsigned long long, size_t, struct CUstream_st *))                                  \
    X(copy_2d, "cuMemcpy2DAsync_v2", cuMemcpy2DAsync,                                              \
      (const struct cuda_memcpy2d *, struct CUstream_st *))                                        \
    X(mem_alloc, "cuMemAlloc_v2", cuMemAlloc, (unsigned long long *, size_t))                      \
    X(mem_free, "cuMemFree_v2", cuMemFree, (unsigned long long))

struct cuda_driver {
    void *handle; /* dlopen's */
#define CUDA_MEMBER(member, symbol, name, parameters) unsigned(*member) parameters;
    CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Load it and initialise it. UNSUPPORTED: no such library, or it lacks a function. IO: cuInit's word. On an error nothing stays loaded. */
KVF_MUST_USE struct kvf_status cuda_load(const char *driver_path, struct cuda_driver *driver,
                                         struct kvf_why *why);
void cuda_unload(struct cuda_driver *driver);
/* "CUDA_ERROR_..."; "" for a number without a name. */
const char *cuda_error(const struct cuda_driver *driver, unsigned result);
/* OK, or IO with the result as its detail. */
struct kvf_status cuda_status(unsigned result);

#endif
