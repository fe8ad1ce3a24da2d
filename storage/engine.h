/* The line to the operating system: a ring takes I/O operations and hands each one back exactly once. Two engines
 * implement it, io_uring (ring.c) and plain pread/pwrite/fdatasync (twin.c); tests put a faulty one in front of either.
 *
 * A ring belongs to the thread that opened it. Another thread may end its sleep by writing to the eventfd that was
 * given at open. Memory of an operation is borrowed until it comes back. */
#ifndef KVFERRY_STORAGE_ENGINE_H
#define KVFERRY_STORAGE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

enum kvf_io_kind {
    KVF_IO_READ = 0,
    KVF_IO_WRITE,
    KVF_IO_SYNC, /* fdatasync */
};

/* One operation. Memory, bytes and offset are whole pages (checked by whoever builds it). */
struct kvf_io {
    enum kvf_io_kind kind;
    int fd;
    int buffer; /* the fixed buffer that memory lies in, -1: none */
    uint8_t *memory;
    uint64_t bytes;
    uint64_t offset;
    /* A write may come from several places: `bytes` is their sum, and memory is not looked at. NULL: it does not. */
    struct iovec *parts;
    unsigned part_count;
    int result; /* when it is back: bytes moved, or -errno */
};

enum {
    KVF_WAIT_NOT = 0,
    KVF_WAIT_EVER = -1,
};

enum {
    KVF_FIX_REGISTERED = 0,
    KVF_FIX_CLONED = 1,
};

struct kvf_ring {
    const struct kvf_engine *engine;
};

struct kvf_engine {
    const char *name;
    /* At most `entries` operations at a time (the engine may allow fewer: room). Borrows wake_fd until close. 0 or
     * -errno. */
    int (*open)(unsigned entries, int wake_fd, struct kvf_ring **give);
    /* Can rings share one registration of fixed buffers (hold, then fix with it)? Else each pins the memory anew. */
    bool (*can_clone)(void);
    /* Register fixed buffers of <= 1 GiB in a ring that does nothing but hold them. 0 or -errno. */
    int (*hold)(const struct iovec *buffers, unsigned count, struct kvf_ring **give);
    /* Give the ring these fixed buffers: cloned from `holder` (may be NULL; any thread's) where that works, else by a
     * registration of its own. KVF_FIX_CLONED, KVF_FIX_REGISTERED or -errno; then operations must say buffer -1. */
    int (*fix)(struct kvf_ring *ring, const struct iovec *buffers, unsigned count,
               struct kvf_ring *holder);
    /* How many more operations `add` takes. */
    unsigned (*room)(const struct kvf_ring *ring);
    void (*add)(struct kvf_ring *ring, struct kvf_io *io);
    /* Start what was added, collect at most `max` that are finished. With wait_ms not 0: sleep until one is finished or
     * the eventfd was written (a signal also ends it), at most that long; KVF_WAIT_EVER: without limit. */
    unsigned (*turn)(struct kvf_ring *ring, struct kvf_io **done, unsigned max, int wait_ms);
    /* The ring itself has failed and nothing is in it any more: close it and open another. Until then it drains: room is
     * 0, what was started comes back as usual, what was not comes back as -EAGAIN. */
    bool (*is_broken)(const struct kvf_ring *ring);
    /* Every operation must be back. NULL is fine. */
    void (*close)(struct kvf_ring *ring);
};

extern const struct kvf_engine kvf_engine_uring;
extern const struct kvf_engine
    kvf_engine_pread; /* its rings belong to no thread, and never break */

/* Close a broken ring and open another of its engine. Where that fails, `spare` (of kvf_engine_pread) is taken, and NULL
 * from then on: whoever opened it beforehand needs no memory now. */
struct kvf_ring *kvf_ring_replace(struct kvf_ring *broken, unsigned entries, int wake_fd,
                                  struct kvf_ring **spare);

#endif
