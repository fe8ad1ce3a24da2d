#include "base/slab.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

void kvf_slabs_init(struct kvf_slabs *slabs, size_t item_bytes, unsigned shift, uint32_t limit)
{
    kvf_assert(item_bytes >= sizeof(uint32_t));
    *slabs = (struct kvf_slabs){
        .item_bytes = item_bytes, .shift = shift, .limit = limit, .roomy = NONE, .hollow = NONE};
}

void kvf_slabs_fini(struct kvf_slabs *slabs)
{
    for (uint32_t i = 0; i < slabs->slab_count; i++)
        free(slabs->slabs[i].memory);
    free(slabs->slabs);
    kvf_slabs_init(slabs, slabs->item_bytes, slabs->shift, slabs->limit);
}

static uint32_t items_per_slab(const struct kvf_slabs *slabs)
{
    return UINT32_C(1) << slabs->shift;
}

size_t kvf_slabs_bytes(const struct kvf_slabs *slabs)
{
    return slabs->live * items_per_slab(slabs) * slabs->item_bytes +
           slabs->slab_room * sizeof(*slabs->slabs);
}

/* ---- those with room ---- */

static void add_roomy(struct kvf_slabs *slabs, uint32_t at)
{
    slabs->slabs[at].next = slabs->roomy;
    slabs->slabs[at].previous = NONE;
    if (slabs->roomy != NONE)
        slabs->slabs[slabs->roomy].previous = at;
    slabs->roomy = at;
}

static void remove_roomy(struct kvf_slabs *slabs, uint32_t at)
{
    const struct kvf_slab *slab = &slabs->slabs[at];
    if (slab->next != NONE)
        slabs->slabs[slab->next].previous = slab->previous;
    if (slab->previous != NONE)
        slabs->slabs[slab->previous].next = slab->next;
    else
        slabs->roomy = slab->next;
}

/* ---- growing and shrinking ---- */

/* A place in the array for one more slab, hollow. Only these few bytes per slab are ever copied. */
static bool make_hollow(struct kvf_slabs *slabs)
{
    if (slabs->slab_count >= slabs->limit >> slabs->shift)
        return false;
    if (slabs->slab_count == slabs->slab_room) {
        uint32_t room = slabs->slab_room + slabs->slab_room / 2 + 4;
        struct kvf_slab *more = realloc(slabs->slabs, room * sizeof(*more));
        if (more == NULL)
            return false;
        slabs->slabs = more;
        slabs->slab_room = room;
    }
    slabs->slabs[slabs->slab_count] = (struct kvf_slab){.next = slabs->hollow};
    slabs->hollow = slabs->slab_count++;
    return true;
}

static bool add_slab(struct kvf_slabs *slabs)
{
    if (slabs->hollow == NONE && !make_hollow(slabs))
        return false;
    uint32_t at = slabs->hollow;
    char *memory = malloc(items_per_slab(slabs) * slabs->item_bytes);
    if (memory == NULL)
        return false;
    slabs->hollow = slabs->slabs[at].next;
    slabs->slabs[at] = (struct kvf_slab){.memory = memory, .freed = NONE};
    slabs->live++;
    add_roomy(slabs, at);
    return true;
}

static void give_back(struct kvf_slabs *slabs, uint32_t at)
{
    remove_roomy(slabs, at);
    free(slabs->slabs[at].memory);
    slabs->slabs[at] = (struct kvf_slab){.next = slabs->hollow};
    slabs->hollow = at;
    slabs->live--;
}

/* ---- items ---- */

bool kvf_slabs_take(struct kvf_slabs *slabs, uint32_t *number)
{
    if (slabs->roomy == NONE && !add_slab(slabs))
        return false;
    uint32_t at = slabs->roomy;
    struct kvf_slab *slab = &slabs->slabs[at];
    uint32_t place = slab->freed;
    if (place == NONE)
        place = slab->fresh++;
    else
        memcpy(&slab->freed, slab->memory + place * slabs->item_bytes, sizeof(slab->freed));
    if (++slab->used == items_per_slab(slabs))
        remove_roomy(slabs, at);
    *number = at << slabs->shift | place;
    return true;
}

void kvf_slabs_give(struct kvf_slabs *slabs, uint32_t number)
{
    uint32_t at = number >> slabs->shift;
    kvf_assert(at < slabs->slab_count && slabs->slabs[at].used > 0);
    struct kvf_slab *slab = &slabs->slabs[at];
    memcpy(kvf_slabs_at(slabs, number), &slab->freed, sizeof(slab->freed));
    slab->freed = number & (items_per_slab(slabs) - 1);
    if (slab->used-- == items_per_slab(slabs))
        add_roomy(slabs, at);
    if (slab->used == 0 && (slabs->roomy != at || slab->next != NONE))
        give_back(slabs, at);
}
