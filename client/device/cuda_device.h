/* One CUDA device: its context, a stream for each direction, and the events that tell the ends of copies. Private to client/device. */
#ifndef KVFERRY_CLIENT_DEVICE_CUDA_DEVICE_H
#define KVFERRY_CLIENT_DEVICE_CUDA_DEVICE_H

#include "client/device/cuda.h"
#include "client/device/device.h"
#include "client/device/plan.h"

#define CUDA_COPIES_MAX 64u /* that run at once: a bit each in `busy` */
#define CUDA_DIRECTIONS 2u

struct cuda_device {
    struct cuda_driver driver;
    int ordinal;
    struct CUctx_st *context;
    bool primary; /* retained by us */
    uint64_t max_pitch;
    char name[128];
    struct CUstream_st *streams[CUDA_DIRECTIONS];
    struct CUevent_st *events[CUDA_COPIES_MAX];
    uint64_t busy; /* events in use */
};

/* On an error nothing is held. */
KVF_MUST_USE struct kvf_status cuda_device_open(const struct kvf_device_options *options,
                                                struct cuda_device *cuda, struct kvf_why *why);
void cuda_device_close(struct cuda_device *cuda);
KVF_MUST_USE struct kvf_status cuda_device_pin(struct cuda_device *cuda,
                                               const struct kvf_range *ranges, size_t count);
void cuda_device_unpin(struct cuda_device *cuda, const struct kvf_range *ranges, size_t count);

/* As in device.h, of a valid copy. */
KVF_MUST_USE struct kvf_status cuda_copy_start(struct cuda_device *cuda, const struct plan *plan,
                                               struct kvf_copy *copy);
/* Ends the copy if the device has ended it: clears `running`. */
void cuda_copy_look(struct cuda_device *cuda, struct kvf_copy *copy);

#endif
