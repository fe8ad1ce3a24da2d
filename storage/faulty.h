/* A faulty engine in front of a real one, for tests: what is planned (or drawn by a seed) comes back wrong.
 *
 * One store at a time. `faults` is set up by the test before the store is opened; arm() may be called at any time. */
#ifndef KVFERRY_STORAGE_FAULTY_H
#define KVFERRY_STORAGE_FAULTY_H

#include "storage/core.h"

#include <stdatomic.h>

enum fault {
    FAULT_NONE = 0,
    FAULT_ERROR,     /* comes back with -value, not started */
    FAULT_SHORT,     /* moves only `value` bytes */
    FAULT_HOLD,      /* comes back only after release_held() */
    FAULT_MISDIRECT, /* is done at offset `where` */
    FAULT_BREAK,     /* the ring fails: this one is not started */
};

/* Operations of `kind` number first to first + count - 1 (over all rings, from arming on) on `fd` (-1: any). */
struct plan {
    enum kvf_io_kind kind;
    int first, count;
    int fd;
    enum fault fault;
    int value;
    uint64_t where;
};

/* Drawn for each operation of `kind`, reproducibly by the seed: one in so many; 0: never. */
struct rates {
    enum kvf_io_kind kind;
    uint64_t seed;
    unsigned short_in, passing_in, error_in; /* fewer bytes; EAGAIN, EBUSY or EINTR; EIO */
};

struct faults {
    const struct kvf_engine *inner;
    pthread_mutex_t lock; /* of plan and seen */
    struct plan plan;
    struct rates rates;
    uint64_t drawn;
    int seen;                            /* of the plan's kind */
    atomic_int met;                      /* faults done */
    atomic_int shorts, passings, errors; /* of the rates */
    atomic_bool held;                    /* FAULT_HOLD holds */
    int read_fds[4096]; /* the files of the first reads since arming, in the order of their start */
    uint64_t read_offsets[4096];
    unsigned read_count;
    int open_fails_at; /* the nth open from now on; 0: never */
    int opens;
    atomic_int then_error; /* not 0: what comes after a held one fails with it */
    int fix_error;
    bool no_clone;
    atomic_int breaks;
};

extern struct faults faults;

extern const struct kvf_engine faulty_engine;

void faulty_init(const struct kvf_engine *inner);
void faulty_arm(struct plan plan);
void faulty_rate(struct rates rates);
void faulty_disarm(void);

#endif
