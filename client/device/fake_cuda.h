/* A CUDA driver that runs nowhere but in host memory, as a library of its own that the loader is pointed at. "Device" memory is
 * malloc's; each stream has a thread that does what it was told, in order, when it may.
 *
 * What a test says to it travels through fake_control(), found by dlsym as the driver's functions are. */
#ifndef KVFERRY_CLIENT_DEVICE_FAKE_CUDA_H
#define KVFERRY_CLIENT_DEVICE_FAKE_CUDA_H

#include "client/device/cuda.h"

enum fake_function {
#define FAKE_NUMBER(member, symbol, name, parameters) FAKE_##member,
    CUDA_FUNCTIONS(FAKE_NUMBER)
#undef FAKE_NUMBER
        FAKE_COUNT
};

struct fake_cuda {
    /* Forget every count and every wish; the driver's objects stay. */
    void (*reset)(void);
    /* The `nth` call from now on of this function answers `result` and does nothing; 0: none. */
    void (*break_call)(enum fake_function function, unsigned nth, unsigned result);
    /* Copies and events wait until they are let go on. */
    void (*hold)(bool held);
    unsigned (*calls)(enum fake_function function);
    /* What there is now. */
    unsigned (*pinned)(void);
    unsigned (*objects)(void); /* streams, events, retained contexts, allocations */
    int (*depth)(void);        /* contexts pushed by this thread and not popped */
    void (*max_pitch)(int bytes);
    /* An event of the caller's, as a producing stream records it; signal lets those who wait for it go on. */
    struct CUevent_st *(*producer)(void);
    void (*signal)(struct CUevent_st *event);
    void (*forget)(struct CUevent_st *event);
};

#define FAKE_CONTROL "fake_control" /* const struct fake_cuda *(void) */

#endif
