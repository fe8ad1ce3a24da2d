/* A trace of requests: which blocks each prompt needs, in order. Lines are JSON objects as Mooncake published them:
 *
 *   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
 *
 * One id per 512-token block of the prompt; equal id = equal block. Ids are renumbered in order of first appearance, so
 * "the new blocks of a request" are a range of numbers. */
#ifndef KVFERRY_CLIENT_CLI_TRACE_H
#define KVFERRY_CLIENT_CLI_TRACE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct trace {
    size_t request_count;
    size_t reference_count; /* sum of the requests' blocks */
    size_t distinct_count;
    size_t *first;        /* request r has references [first[r], first[r + 1]) */
    uint32_t *references; /* numbers in [0, distinct_count) */
    uint64_t *ids;        /* number -> id as the file has it */
};

/* Read the whole file and keep its first `most` requests (UINT64_MAX: all). INVALID: *why names file:line and what was
 * expected; nothing is kept then. */
KVF_MUST_USE struct kvf_status trace_load(const char *path, uint64_t most, struct trace *trace,
                                          struct kvf_why *why);
void trace_free(struct trace *trace);

/* Make a trace text of the real one's shape: every prompt begins with the same block, about 36.6 % of the references
 * hit an earlier block, about 24 blocks a prompt and at most 247, follow-up prompts extend an earlier one. Equal
 * arguments give equal text. NO_MEMORY. *give is malloc'ed. */
KVF_MUST_USE struct kvf_status trace_make(uint64_t requests, uint64_t seed, char **give,
                                          size_t *give_bytes);

#define TRACE_LONGEST_PROMPT 247
#define TRACE_MOST_REQUESTS UINT64_C(10000000)

#endif
