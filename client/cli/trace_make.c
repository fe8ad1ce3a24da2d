/* Making a trace of the published one's shape.
 *
 * A prompt either opens a session (the shared first block, then blocks nobody had) or follows one up (a recent prompt
 * without its last, partly filled block, then new blocks). Lengths and growths are drawn from the quantiles of
 * Mooncake's conversation trace; whether a prompt follows up is steered by the share of hits so far, so that a short
 * trace has the same share as a long one. Integers only: equal arguments give equal text on every machine. */
#include "client/cli/trace.h"

#include "client/cli/pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_TOKENS 512
#define HITS_PER_MILLE 366
#define SESSIONS 512 /* a follow-up extends one of this many latest prompts */

struct quantile {
    uint32_t per_mille;
    uint32_t blocks;
};

static const struct quantile opening_blocks[] = {
    {0, 2},    {100, 2},  {250, 3},  {400, 7},   {500, 10},  {600, 13},
    {750, 22}, {900, 43}, {950, 66}, {980, 120}, {990, 165}, {1000, TRACE_LONGEST_PROMPT},
};
static const struct quantile growth_blocks[] = {
    {0, 1},    {100, 1},  {250, 2},  {600, 2},  {750, 7},
    {900, 20}, {950, 29}, {980, 41}, {990, 53}, {1000, 128},
};

struct prompt {
    uint32_t count;
    uint64_t ids[TRACE_LONGEST_PROMPT];
};

struct maker {
    FILE *out;
    uint64_t random;
    uint64_t next_id;
    uint64_t timestamp_ms;
    uint64_t references, hits;
    uint64_t made;
    struct prompt *prompts; /* the latest SESSIONS of them, number n at n % SESSIONS */
};

static uint32_t below(struct maker *maker, uint32_t bound)
{
    return (uint32_t)((pattern_random(&maker->random) >> 32) * bound >> 32);
}

/* Draw from a distribution given by its quantiles, linear between them. */
static uint32_t draw(struct maker *maker, const struct quantile *quantiles)
{
    uint32_t at = below(maker, 1000);
    const struct quantile *q = quantiles;
    while (q[1].per_mille <= at)
        q++;
    uint32_t span = q[1].blocks - q[0].blocks, width = q[1].per_mille - q[0].per_mille;
    return q[0].blocks + ((at - q[0].per_mille) * span + width / 2) / width;
}

/* Copies what is reused, and says how much that is. */
static uint32_t begin_prompt(struct maker *maker, struct prompt *prompt)
{
    bool wants_hits = maker->hits * 1000 < maker->references * HITS_PER_MILLE;
    bool follow = maker->made > 0 && below(maker, 100) < (wants_hits ? 70u : 10u);
    prompt->ids[0] = 0;
    if (!follow)
        return maker->made > 0 ? 1 : 0;
    uint32_t recent = maker->made < SESSIONS ? (uint32_t)maker->made : SESSIONS;
    const struct prompt *earlier =
        &maker->prompts[(maker->made - 1 - below(maker, recent)) % SESSIONS];
    uint32_t reused = earlier->count > 1 ? earlier->count - 1 : 1;
    memcpy(prompt->ids, earlier->ids, reused * sizeof(prompt->ids[0]));
    return reused;
}

static void print_prompt(struct maker *maker, const struct prompt *prompt)
{
    uint32_t last = 1 + below(maker, BLOCK_TOKENS); /* tokens in the last block */
    maker->timestamp_ms += below(maker, 600);
    (void)fprintf(
        maker->out,
        "{\"timestamp\": %llu, \"input_length\": %u, \"output_length\": %u, \"hash_ids\": [",
        (unsigned long long)maker->timestamp_ms, (prompt->count - 1) * BLOCK_TOKENS + last,
        1 + below(maker, 700));
    for (uint32_t i = 0; i < prompt->count; i++)
        (void)fprintf(maker->out, "%s%llu", i == 0 ? "" : ", ", (unsigned long long)prompt->ids[i]);
    (void)fputs("]}\n", maker->out);
}

static void make_prompt(struct maker *maker)
{
    struct prompt prompt;
    uint32_t reused = begin_prompt(maker, &prompt);
    uint32_t count = reused > 1 ? reused + draw(maker, growth_blocks) : draw(maker, opening_blocks);
    prompt.count = count < TRACE_LONGEST_PROMPT ? count : TRACE_LONGEST_PROMPT;
    for (uint32_t i = reused; i < prompt.count; i++)
        prompt.ids[i] = maker->next_id++;
    print_prompt(maker, &prompt);
    maker->references += prompt.count;
    maker->hits += reused;
    maker->prompts[maker->made++ % SESSIONS] = prompt;
}

struct kvf_status trace_make(uint64_t requests, uint64_t seed, char **give, size_t *give_bytes)
{
    struct kvf_status no_memory = kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    char *text = NULL;
    size_t bytes = 0;
    struct maker maker = {.random = pattern_mix(seed ^ UINT64_C(0x7472616365)),
                          .prompts = calloc(SESSIONS, sizeof(struct prompt))};
    if (maker.prompts == NULL)
        return no_memory;
    maker.out = open_memstream(&text, &bytes);
    if (maker.out == NULL) {
        free(maker.prompts);
        return no_memory;
    }
    for (uint64_t i = 0; i < requests; i++)
        make_prompt(&maker);
    bool failed = ferror(maker.out) != 0;
    failed = fclose(maker.out) != 0 || failed;
    free(maker.prompts);
    if (failed) {
        free(text);
        return no_memory;
    }
    *give = text;
    *give_bytes = bytes;
    return kvf_ok();
}
