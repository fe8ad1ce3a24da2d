/* The content of replay's blocks: any byte of any block can be made again from (seed, id, position), so that what comes
 * back is compared byte for byte without keeping what went out.
 *
 * Word i (8 bytes, little-endian) of a block is mix(base + i * G), mix one-to-one: the words of a block all differ, and
 * so do the first words of different blocks. Bytes of another block, another seed or another place in the same block
 * do not pass. Only additions, shifts and exclusive ors, so the compiler's vectors make it at memory speed. */
#ifndef KVFERRY_CLIENT_CLI_PATTERN_H
#define KVFERRY_CLIENT_CLI_PATTERN_H

#include "base/block.h"

#include <stddef.h>
#include <stdint.h>

/* One block's pattern; a value. */
struct pattern {
    uint64_t base;
};

/* A 64-bit one-to-one mix (splitmix64's), and its generator: *state is any number. */
uint64_t pattern_mix(uint64_t x);
uint64_t pattern_random(uint64_t *state);

struct pattern pattern_of(uint64_t seed, uint64_t id);
/* 32 bytes; different ids of one seed have different keys. */
struct kvf_key pattern_key(uint64_t seed, uint64_t id);

/* Write the first `bytes` bytes of the block; data is 8-byte aligned. */
void pattern_fill(struct pattern pattern, void *data, size_t bytes);
/* Where data first differs from the block's first `bytes` bytes; `bytes` when nowhere. 8-byte aligned. */
size_t pattern_compare(struct pattern pattern, const void *data, size_t bytes);

#endif
