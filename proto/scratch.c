#include "proto/scratch.h"

#include <stdalign.h>

static void *take(void *context, size_t bytes)
{
    struct kvf_scratch *scratch = context;
    const size_t unit = alignof(max_align_t);
    size_t skip = -((uintptr_t)scratch->memory + scratch->used) % unit;
    size_t left = scratch->bytes - scratch->used;
    if (skip > left || bytes > left - skip)
        return NULL;
    void *at = scratch->memory + scratch->used + skip;
    scratch->used += skip + bytes;
    return at;
}

static void give_back_nothing(void *context, void *at)
{
    (void)context;
    (void)at;
}

void kvf_scratch_init(struct kvf_scratch *scratch, void *memory, size_t bytes)
{
    *scratch = (struct kvf_scratch){
        .memory = memory,
        .bytes = bytes,
        .allocator = {.alloc = take, .free = give_back_nothing, .allocator_data = scratch}};
}

ProtobufCAllocator *kvf_scratch_reset(struct kvf_scratch *scratch)
{
    scratch->used = 0;
    return &scratch->allocator;
}
