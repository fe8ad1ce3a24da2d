#include "tests/bench/rounds.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* ---- the pairs ---- */

static void run_pair(struct rounds *rounds, bool limit_first, rounds_round *ours,
                     rounds_round *limit, rounds_round *limit2, void *context, unsigned at)
{
    if (limit_first)
        rounds->limit_s[at] = limit(context);
    rounds->ours_s[at] = ours(context);
    if (!limit_first)
        rounds->limit_s[at] = limit(context);
    if (limit2 != NULL)
        rounds->limit2_s[at] = limit2(context);
}

void rounds_run(struct rounds *rounds, unsigned pairs, rounds_round *ours, rounds_round *limit,
                rounds_round *limit2, void *context)
{
    if (pairs < 1 || pairs > ROUNDS_MAX)
        bench_die("--pairs: give 1 to %d", ROUNDS_MAX);
    rounds->has_limit2 = limit2 != NULL;
    for (unsigned i = 0; i < ROUNDS_WARM_UP; i++)
        run_pair(rounds, i % 2 != 0, ours, limit, limit2, context, 0);
    rounds->ours_cpu_s = rounds->limit_cpu_s = 0;
    for (rounds->n = 0; rounds->n < pairs; rounds->n++)
        run_pair(rounds, rounds->n % 2 != 0, ours, limit, limit2, context, rounds->n);
}

/* ---- the row ---- */

static int compare(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

double rounds_quantile(const double *values, unsigned n, double share)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, n * sizeof(*values));
    qsort(sorted, n, sizeof(*sorted), compare);
    double place = share * (n - 1);
    unsigned below = (unsigned)place;
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (sorted[below + 1] - sorted[below]) * (place - below);
}

static double in_unit(const struct rounds *rounds, double seconds)
{
    switch (rounds->unit) {
    case ROUNDS_GB_PER_S:
        return (double)rounds->round_bytes / seconds / 1e9;
    case ROUNDS_MS:
        return seconds * 1e3;
    case ROUNDS_PER_S:
        return (double)rounds->round_requests / seconds;
    }
    return 0;
}

static const char *name_of_unit(enum rounds_unit unit)
{
    switch (unit) {
    case ROUNDS_GB_PER_S:
        return "GB/s";
    case ROUNDS_MS:
        return "ms";
    case ROUNDS_PER_S:
        return "1/s";
    }
    return "";
}

static void print_ratio(const char *key, const struct rounds *rounds, const double *limit_s)
{
    double ratios[ROUNDS_MAX];
    for (unsigned i = 0; i < rounds->n; i++)
        ratios[i] = limit_s[i] / rounds->ours_s[i];
    (void)printf(", \"%s\": %.3f, \"%s_quartiles\": [%.3f, %.3f]", key,
                 rounds_quantile(ratios, rounds->n, 0.5), key,
                 rounds_quantile(ratios, rounds->n, 0.25),
                 rounds_quantile(ratios, rounds->n, 0.75));
}

void rounds_more(struct rounds *rounds, const char *format, ...)
{
    va_list arguments;
    size_t used = strlen(rounds->more);
    used += (size_t)snprintf(rounds->more + used, sizeof(rounds->more) - used, ", ");
    va_start(arguments, format);
    int added = vsnprintf(rounds->more + used, sizeof(rounds->more) - used, format, arguments);
    va_end(arguments);
    if (added < 0 || used + (size_t)added >= sizeof(rounds->more))
        bench_die("a row has too many members");
}

static void print_cpu(const struct rounds *rounds)
{
    double gib = (double)rounds->round_bytes * rounds->n / (double)(1 << 30);
    if (rounds->ours_cpu_s > 0)
        (void)printf(", \"cpu_s_per_gib\": %.3f", rounds->ours_cpu_s / gib);
    if (rounds->limit_cpu_s > 0)
        (void)printf(", \"limit_cpu_s_per_gib\": %.3f", rounds->limit_cpu_s / gib);
}

void rounds_print(const struct rounds *rounds)
{
    (void)printf("{\"name\": \"%s\", \"device\": \"%s\", \"block_bytes\": %llu", rounds->name,
                 rounds->device, (unsigned long long)rounds->block_bytes);
    (void)printf(", \"ours\": %.5g, \"limit\": %.5g",
                 in_unit(rounds, rounds_quantile(rounds->ours_s, rounds->n, 0.5)),
                 in_unit(rounds, rounds_quantile(rounds->limit_s, rounds->n, 0.5)));
    print_ratio("ratio", rounds, rounds->limit_s);
    if (rounds->has_limit2) {
        (void)printf(", \"limit2\": %.4g",
                     in_unit(rounds, rounds_quantile(rounds->limit2_s, rounds->n, 0.5)));
        print_ratio("ratio2", rounds, rounds->limit2_s);
    }
    print_cpu(rounds);
    (void)printf("%s, \"unit\": \"%s\", \"n\": %u}\n", rounds->more, name_of_unit(rounds->unit),
                 rounds->n);
    (void)fflush(stdout);
}

/* ---- the rest ---- */

double bench_now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double bench_cpu_s(int pid)
{
    clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    struct timespec used;
    if ((pid != 0 && clock_getcpuclockid(pid, &clock) != 0) || clock_gettime(clock, &used) != 0)
        bench_die("process %d: no CPU time to be had", pid);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

void bench_pin(int core)
{
    cpu_set_t set;
    if (core < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        bench_die("core %d: %s", core, strerror(errno));
}

void bench_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fputs("bench: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void bench_check(struct kvf_status status, const char *what)
{
    if (!kvf_is_ok(status))
        bench_die("%s: %s (%s, %d)", what, kvf_code_name(status.code),
                  kvf_module_name(status.module), status.detail);
}

void *bench_allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL)
        bench_die("no memory for %zu bytes", bytes);
    return memory;
}

uint8_t *bench_memory(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    uint8_t *memory =
        mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        bench_die("no memory for %zu bytes", bytes);
    memory += -(uintptr_t)memory % huge;
    /* A drive asks for runs of memory: a buffer of single pages would make the limit slower than it can be. */
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    bench_fill(memory, bytes, bytes);
    return memory;
}

void bench_fill(void *at, size_t bytes, uint64_t seed)
{
    uint8_t *to = at;
    uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
    for (size_t done = 0; done < bytes; done += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(to + done, &x, bytes - done < sizeof(x) ? bytes - done : sizeof(x));
    }
}

uint64_t bench_number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text)
        bench_die("%s: give a whole number", text);
    return number;
}
