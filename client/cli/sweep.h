/* What `kvferry bench` compares: the values of a setting, and how the times with one value relate to those with another. */
#ifndef KVFERRY_CLIENT_CLI_SWEEP_H
#define KVFERRY_CLIENT_CLI_SWEEP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define SWEEP_MOST 16

/* A list of numbers, in the order in which they were given; none twice. */
struct sweep {
    uint64_t values[SWEEP_MOST];
    size_t count;
};

/* "8,16": each in [least, most]. INVALID: *why names `option` and the remedy. */
KVF_MUST_USE struct kvf_status sweep_list(const char *option, const char *text, uint64_t least,
                                          uint64_t most, struct sweep *sweep, struct kvf_why *why);
/* "read-batch-mib=0,8,32": the setting that a daemon changes while it runs, and at least one value. */
KVF_MUST_USE struct kvf_status sweep_parse(const char *text, struct sweep *sweep,
                                           struct kvf_why *why);

/* Times with one value against those with the baseline, taken side by side in `rounds` rounds of `per_round` each: the
 * geometric mean over the rounds of median / median, and the 95 % interval of a bootstrap that draws rounds, and times
 * within each, anew. The same numbers always give the same interval. */
struct sweep_ratio {
    double ratio, low, high;
};
#define SWEEP_ROUND_MOST 1000 /* times of one round */
#define SWEEP_ROUNDS_MOST 100

/* The times lie round by round. rounds and per_round are 1 to the most above, and no time is 0. */
struct sweep_ratio sweep_compare(const uint64_t *baseline, const uint64_t *candidate, size_t rounds,
                                 size_t per_round);

#endif
