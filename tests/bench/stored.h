/* stored: blocks in an open store of one's own, for the rows that measure storage without a daemon. They are written
 * once and read again and again, each into its own extent.
 *
 * One thread owns a `stored`: it runs the store's loop. */
#ifndef KVFERRY_TESTS_BENCH_STORED_H
#define KVFERRY_TESTS_BENCH_STORED_H

#include "storage/core.h"

/* The daemon's own defaults. */
#define STORED_THREADS 8u
#define STORED_DEPTH 32u
#define STORED_INFLIGHT_BYTES (16 * KVF_MIB)
#define STORED_IO_BYTES KVF_MIB

struct stored_options {
    const char *path; /* of the drive: is made, must not be there */
    uint64_t block_bytes;
    uint32_t count;
    unsigned threads;
    const struct kvf_engine *engine;
};

struct stored {
    struct kvf_loop *loop;
    struct kvf_arena arena;
    struct kvf_store *store;
    uint64_t block_bytes;
    uint32_t count;
    uint32_t ended; /* of what was started since the last wait */
    struct kvf_append *appends;
    struct kvf_read *reads;
    struct kvf_read **list;
};

/* Open a store, append the blocks, read them back and check each byte. Dies when anything fails. */
void stored_open(struct stored *stored, const struct stored_options *options);
/* Start one read set: the blocks first to first + count - 1. */
void stored_start(struct stored *stored, uint32_t first, uint32_t count);
/* Until `count` reads have ended. */
void stored_wait(struct stored *stored, uint32_t count);
/* Seconds that reading every block takes, in so many sets at once. */
double stored_read(struct stored *stored, uint32_t sets);
void stored_close(struct stored *stored);

#endif
