/* device.h: copies between a block and a paged KV cache, in host memory or on a GPU.
 *
 * A block is [layer][plane][token][element] (client/geometry.h), contiguous, in an arena that libkvferry has mapped. The cache is
 * an engine's: pages of chunks, wherever its layout puts them. A copy moves any number of (block, page) pairs one way; it is cut into
 * as few copies of the driver's as the layout allows (kvf_copy.calls says how many):
 *
 *   page-first [page][layer][plane]             1 a block: the whole of it
 *   layer-first [layer][plane][page]            1 a block: 2-D, a row for each layer and plane
 *   K and V apart, [plane][layer][page]         2 a block: 2-D, a row for each layer
 *   a tensor for each layer, anywhere           1 a layer (K and V as two rows)
 *   chunks anywhere                             1 a chunk
 *
 * Ownership. From kvf_copy_start until kvf_copy_poll or kvf_copy_wait has told the end, both sides of every pair belong to the copy: do
 * not commit, release, free or reuse them. That holds for failed copies too: what was handed to the driver ends first.
 *
 * Threads: copies of one device by one thread at a time; pin and unpin by any thread at any time. No thread of our own, and the
 * caller's current CUDA context is left as it was.
 *
 * Errors: IO has the driver's CUresult in its detail; kvf_device_error names it. */
#ifndef KVFERRY_CLIENT_DEVICE_DEVICE_H
#define KVFERRY_CLIENT_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "client/geometry.h"
#include "client/range.h"

/* ---- the device ---- */

struct kvf_device;

enum kvf_device_kind {
    KVF_DEVICE_HOST = 0, /* the cache is host memory: memcpy, done when kvf_copy_start returns */
    KVF_DEVICE_CUDA = 1, /* through libcuda, which is loaded at run time */
};

struct kvf_device_options {
    enum kvf_device_kind kind;
    int ordinal; /* CUDA: which device, as the driver counts */
    /* CUDA: the CUcontext to work in; NULL: the device's primary one, which PyTorch uses too */
    void *context;
    const char *driver_path; /* CUDA: the driver's file; NULL: libcuda.so.1 */
};

/* Borrows options for the call; gives *device on OK only. UNSUPPORTED: no driver, one that lacks a function, or no such device. IO: the
 * driver refused. NO_MEMORY. *why (may be NULL) says it in a line. */
KVF_MUST_USE struct kvf_status kvf_device_open(const struct kvf_device_options *options,
                                               struct kvf_device **give, struct kvf_why *why);
/* Every copy must have ended and every range be unpinned. NULL is fine. */
void kvf_device_close(struct kvf_device *device);

/* "host", or what the driver calls it. */
const char *kvf_device_name(const struct kvf_device *device);
/* The driver's name of a status' detail; "" without one. */
const char *kvf_device_error(const struct kvf_device *device, struct kvf_status status);

/* Page-lock and register the ranges for every context, so that copies run at full speed and by DMA: all of them or, on an error, none.
 * Ranges that are pinned already are an error of the driver's. MEMLOCK does not bound it; memory does. */
KVF_MUST_USE struct kvf_status kvf_device_pin(struct kvf_device *device,
                                              const struct kvf_range *ranges, size_t count);
/* Before they are unmapped; copies from and to them must have ended. */
void kvf_device_unpin(struct kvf_device *device, const struct kvf_range *ranges, size_t count);

/* ---- the cache ---- */

struct kvf_cache {
    const struct kvf_geometry *geometry; /* checked; borrowed while copies run */
    uint64_t pages;                      /* of the cache */
    uint64_t base; /* address of chunk (page 0, layer 0, plane 0), on the device or here */
    /* Where layers or planes lie unevenly: addresses of page 0's chunks, [layer x planes + plane], borrowed while copies run; NULL: base
     * and the geometry's strides. page_stride counts either way. */
    const uint64_t *chunks;
};

/* ---- copies ---- */

enum kvf_copy_direction {
    KVF_COPY_TO_CACHE = 0,   /* from blocks, H2D */
    KVF_COPY_FROM_CACHE = 1, /* to blocks, D2H */
};

struct kvf_copy_pair {
    void *block;   /* block_bytes of the geometry */
    uint64_t page; /* below cache.pages */
};

/* Embedded by the caller; zero it, fill the upper part. */
struct kvf_copy {
    enum kvf_copy_direction direction;
    struct kvf_cache cache;
    const struct kvf_copy_pair *pairs; /* borrowed for kvf_copy_start only */
    size_t count;
    /* A CUevent that the copy waits for on the device: the producing kernels', before D2H; NULL: none */
    void *after;

    uint64_t calls; /* out: copies that the driver was asked for */
    uint64_t bytes; /* out: of those */

    struct kvf_device *device; /* ours, as what follows */
    struct kvf_status status;
    unsigned slot;
    bool running;
};

/* Hand it over; does not wait for it. An error starts nothing: INVALID (no pairs, a page that is not there, a cache without a way to its
 * chunks), BUSY (64 copies run), IO. When the driver fails half-way this is OK and the end tells. */
KVF_MUST_USE struct kvf_status kvf_copy_start(struct kvf_device *device, struct kvf_copy *copy);
/* BUSY while it runs; then, again and again, how it ended: OK or IO. */
KVF_MUST_USE struct kvf_status kvf_copy_poll(struct kvf_copy *copy);
/* The same after waiting so long at most; DEADLINE: it runs still, and owns what it owned. */
KVF_MUST_USE struct kvf_status kvf_copy_wait(struct kvf_copy *copy, uint64_t timeout_ms);
/* The CUevent that is recorded behind a running copy: have the consuming stream wait for it. NULL when the copy has ended. */
void *kvf_copy_event(const struct kvf_copy *copy);

#ifdef __cplusplus
}
#endif

#endif
