/* A budget: a limit on bytes (whole pages), what is used of it, and the exact peak since start. One owner thread. */
#ifndef KVFERRY_BASE_BUDGET_H
#define KVFERRY_BASE_BUDGET_H

#include "base/status.h"

#include <stdint.h>

struct kvf_budget {
    uint64_t limit_bytes;
    uint64_t used_bytes;
    uint64_t peak_bytes;
};

static inline bool kvf_budget_fits(const struct kvf_budget *budget, uint64_t bytes)
{
    return bytes <= budget->limit_bytes && budget->used_bytes <= budget->limit_bytes - bytes;
}

/* The caller has asked kvf_budget_fits, or may exceed the limit. */
static inline void kvf_budget_take(struct kvf_budget *budget, uint64_t bytes)
{
    budget->used_bytes += bytes;
    if (budget->used_bytes > budget->peak_bytes)
        budget->peak_bytes = budget->used_bytes;
}

static inline void kvf_budget_return(struct kvf_budget *budget, uint64_t bytes)
{
    kvf_assert(bytes <= budget->used_bytes);
    budget->used_bytes -= bytes;
}

#endif
