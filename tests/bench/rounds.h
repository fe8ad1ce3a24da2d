/* rounds: what every bench shares. Pairs of one round of ours and one of the limit, their medians, and the row that
 * `run` collects; the clock, pinning, and the one way to fail.
 *
 * A pair's two rounds follow each other at once and move the same bytes, so that a drifting machine drifts under both.
 * One thread. */
#ifndef KVFERRY_TESTS_BENCH_ROUNDS_H
#define KVFERRY_TESTS_BENCH_ROUNDS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROUNDS_MAX 1000
#define ROUNDS_WARM_UP 3 /* pairs that are run and not counted */

enum rounds_unit {
    ROUNDS_GB_PER_S, /* 1e9 bytes a second; larger is better */
    ROUNDS_MS,       /* smaller is better */
    ROUNDS_PER_S,    /* requests a second; larger is better */
};

struct rounds {
    const char *name;
    const char *device;
    uint64_t block_bytes;
    uint64_t round_bytes;    /* moved by each round of each side */
    uint64_t round_requests; /* ROUNDS_PER_S: of each round of each side */
    enum rounds_unit unit;
    bool has_limit2;
    unsigned n;
    double ours_s[ROUNDS_MAX], limit_s[ROUNDS_MAX], limit2_s[ROUNDS_MAX];
    /* CPU seconds of all counted rounds of a side, which its round adds up; 0: not told. */
    double ours_cpu_s, limit_cpu_s;
    char more[512]; /* further members of the row, see rounds_more */
};

/* One round: seconds. */
typedef double rounds_round(void *context);

/* The warm-up and then `pairs` pairs; every second pair runs in the other order. limit2 may be NULL. */
void rounds_run(struct rounds *rounds, unsigned pairs, rounds_round *ours, rounds_round *limit,
                rounds_round *limit2, void *context);
/* Add a member to the row: "\"sets\": 4". */
KVF_PRINTF(2, 3) void rounds_more(struct rounds *rounds, const char *format, ...);
/* The value with `share` of the others below it. n is 1 to ROUNDS_MAX. */
double rounds_quantile(const double *values, unsigned n, double share);
/* One JSON object on one line of stdout. */
void rounds_print(const struct rounds *rounds);

double bench_now_s(void);
/* CPU seconds that a process has used, all its threads; 0: this one. */
double bench_cpu_s(int pid);
/* This process, and what it starts, on one core from now on; below 0: as it is. */
void bench_pin(int core);
/* Say one line and leave with status 1. */
KVF_PRINTF(1, 2) __attribute__((noreturn)) void bench_die(const char *format, ...);
void bench_check(struct kvf_status status, const char *what);
void *bench_allocate(size_t bytes);
/* Memory that is there, in huge pages where the kernel has them, filled with what does not compress. */
uint8_t *bench_memory(size_t bytes);
void bench_fill(void *at, size_t bytes, uint64_t seed);
uint64_t bench_number(const char *text);

#endif
