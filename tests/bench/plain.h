/* plain: the limits that are no product, only what one would write for one purpose: a socket that carries bytes from
 * memory, and a pipe that reads a file and sends what has landed while later reads are under way.
 *
 * The source is a process of its own on its own core. The caller is the consumer: it asks, receives into its memory and
 * takes the time. One thread on each side. */
#ifndef KVFERRY_TESTS_BENCH_PLAIN_H
#define KVFERRY_TESTS_BENCH_PLAIN_H

#include <stdint.h>

#define PLAIN_PIECE_BYTES ((uint64_t)1 << 20) /* of a read, and of a send */
#define PLAIN_DEPTH 8u                        /* reads in flight */

struct plain_source {
    int fd; /* a connected TCP socket on loopback */
    int pid;
};

/* Start the source on `core`, with `bytes` of memory and, where path is not NULL, with that file open for O_DIRECT.
 * It ends with this process, or with plain_source_stop. */
void plain_source_start(struct plain_source *source, int core, uint64_t bytes, const char *path);
void plain_source_stop(struct plain_source *source);

/* Each asks for `bytes`, waits until they are here, and returns the seconds that took. */
double plain_from_memory(struct plain_source *source, uint8_t *to, uint64_t bytes);
double plain_from_file(struct plain_source *source, uint8_t *to, uint64_t bytes);
/* The same reads, and only one byte that says they are done. */
double plain_reads_only(struct plain_source *source, uint64_t bytes);

/* A file of `bytes` random bytes, written through to the drive; kept when it is there already. */
void plain_file_make(const char *path, uint64_t bytes);
/* A file of these bytes, written through; what was there is gone. `bytes` is whole pages. */
void plain_file_write(const char *path, const uint8_t *from, uint64_t bytes);

#endif
