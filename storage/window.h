/* A segment's file, read from front to back: through a window, so that small records cost no read each.
 *
 * Belongs to one thread. Plain pread: a drive that hangs holds nobody else. */
#ifndef KVFERRY_STORAGE_WINDOW_H
#define KVFERRY_STORAGE_WINDOW_H

#include "storage/format.h"

#include <stdatomic.h>

struct kvf_window {
    /* Set by the caller. */
    uint64_t capacity_bytes;
    const atomic_bool *stop; /* NULL, or true: nothing more is read */
    bool cut_is_zeros;       /* what a file does not hold any more reads as zeros, else as EIO */

    int fd;
    uint64_t end; /* of the segment */
    int error;    /* the errno of what could not be read; then nothing more is */
    uint8_t *memory;
    uint64_t offset, bytes; /* what it holds */
};

/* False: no memory; fini is due all the same. */
KVF_MUST_USE bool kvf_window_init(struct kvf_window *window);
void kvf_window_fini(struct kvf_window *window);

/* From here on it reads this file. */
void kvf_window_aim(struct kvf_window *window, int fd, uint64_t segment_bytes);
/* Nothing more can be read: there was an error, or somebody has stopped it. */
bool kvf_window_is_over(const struct kvf_window *window);
/* Past the window, into the caller's memory. False: it is over. */
bool kvf_window_read(struct kvf_window *window, uint8_t *memory, uint64_t bytes, uint64_t offset);
/* The file's bytes at `offset`, in whole pages and at most the capacity, until the next look. NULL: it is over. */
const uint8_t *kvf_window_look(struct kvf_window *window, uint64_t offset, uint64_t bytes);
/* Does the record's payload match its checksum? False also when it is over. */
bool kvf_window_holds(struct kvf_window *window, const struct kvf_record_head *head);

#endif
