/* Items of one size that are named by 32-bit numbers: a link between two of them costs 4 bytes. They lie in slabs; one
 * is added when all are full, so growth copies no item and needs no room for two of anything, and one that is empty is
 * given back, unless it is the only one with room. Items never move. One owner thread. */
#ifndef KVFERRY_BASE_SLAB_H
#define KVFERRY_BASE_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_slab {
    char *memory; /* NULL: given back */
    uint32_t used;
    uint32_t fresh; /* items from here on were never taken */
    uint32_t freed; /* first of those that were given back; each holds the next one's place */
    uint32_t next,
        previous; /* in the list of those with room, or (next only) of those given back */
};

struct kvf_slabs {
    size_t item_bytes;
    unsigned shift; /* a slab has 1 << shift items */
    uint32_t limit;
    struct kvf_slab *slabs;
    uint32_t slab_count; /* given back ones included */
    uint32_t slab_room;
    uint32_t roomy;  /* the first with room */
    uint32_t hollow; /* the first that was given back */
    size_t live;     /* slabs that have memory */
};

/* Allocates nothing. An item has at least 4 bytes; numbers stay below `limit`. */
void kvf_slabs_init(struct kvf_slabs *slabs, size_t item_bytes, unsigned shift, uint32_t limit);
/* Every item goes. */
void kvf_slabs_fini(struct kvf_slabs *slabs);
/* An item of undefined content; false: out of memory or numbers. */
bool kvf_slabs_take(struct kvf_slabs *slabs, uint32_t *number);
void kvf_slabs_give(struct kvf_slabs *slabs, uint32_t number);
/* What was allocated. */
size_t kvf_slabs_bytes(const struct kvf_slabs *slabs);

static inline void *kvf_slabs_at(const struct kvf_slabs *slabs, uint32_t number)
{
    uint32_t place = number & ((UINT32_C(1) << slabs->shift) - 1);
    return slabs->slabs[number >> slabs->shift].memory + place * slabs->item_bytes;
}

#endif
