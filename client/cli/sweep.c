#include "client/cli/sweep.h"

#include "client/cli/names.h"
#include "client/cli/pattern.h"
#include "client/cli/tally.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SETTING "read-batch-mib="
#define DRAWS 1000 /* of the bootstrap */
#define SEED 1

static struct kvf_status refuse(struct kvf_why *why, const char *option, const char *text)
{
    return kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0),
                       "%s '%.60s': give 1 to %d different numbers, with commas between them",
                       option, text, SWEEP_MOST);
}

struct kvf_status sweep_list(const char *option, const char *text, uint64_t least, uint64_t most,
                             struct sweep *sweep, struct kvf_why *why)
{
    sweep->count = 0;
    for (const char *at = text;; at++) {
        char number[24];
        size_t length = strcspn(at, ",");
        uint64_t value;
        if (length >= sizeof(number) || sweep->count == SWEEP_MOST)
            return refuse(why, option, text);
        memcpy(number, at, length);
        number[length] = '\0';
        KVF_TRY(names_number(option, number, least, most, &value, why));
        for (size_t i = 0; i < sweep->count; i++)
            if (sweep->values[i] == value)
                return refuse(why, option, text);
        sweep->values[sweep->count++] = value;
        at += length;
        if (*at == '\0')
            return kvf_ok();
    }
}

struct kvf_status sweep_parse(const char *text, struct sweep *sweep, struct kvf_why *why)
{
    if (strncmp(text, SETTING, strlen(SETTING)) != 0)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0),
                           "--sweep '%.60s': give read-batch-mib=N,N,...; it is the one setting "
                           "that a daemon changes while it runs",
                           text);
    return sweep_list("--sweep read-batch-mib", text + strlen(SETTING), 0, UINT64_MAX >> 20, sweep,
                      why);
}

/* ---- ratios ---- */

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double median(uint64_t *times, size_t count)
{
    qsort(times, count, sizeof(*times), ascending);
    return (double)tally_quantile(times, count, 500);
}

/* The median of one round's times; `chance`: of as many drawn from them. */
static double median_of(const uint64_t *times, size_t count, uint64_t *chance)
{
    uint64_t drawn[SWEEP_ROUND_MOST];
    for (size_t i = 0; i < count; i++)
        drawn[i] = times[chance == NULL ? i : pattern_random(chance) % count];
    return median(drawn, count);
}

static double compare_once(const uint64_t *baseline, const uint64_t *candidate, size_t rounds,
                           size_t per_round, uint64_t *chance)
{
    double sum = 0;
    for (size_t i = 0; i < rounds; i++) {
        size_t at = (chance == NULL ? i : pattern_random(chance) % rounds) * per_round;
        sum += log(median_of(candidate + at, per_round, chance) /
                   median_of(baseline + at, per_round, chance));
    }
    return exp(sum / (double)rounds);
}

static int ascending_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct sweep_ratio sweep_compare(const uint64_t *baseline, const uint64_t *candidate, size_t rounds,
                                 size_t per_round)
{
    double draws[DRAWS];
    uint64_t chance = SEED;
    kvf_assert(rounds >= 1 && rounds <= SWEEP_ROUNDS_MOST);
    kvf_assert(per_round >= 1 && per_round <= SWEEP_ROUND_MOST);
    for (size_t i = 0; i < DRAWS; i++)
        draws[i] = compare_once(baseline, candidate, rounds, per_round, &chance);
    qsort(draws, DRAWS, sizeof(draws[0]), ascending_double);
    return (struct sweep_ratio){compare_once(baseline, candidate, rounds, per_round, NULL),
                                draws[DRAWS / 40], draws[DRAWS - 1 - DRAWS / 40]};
}
