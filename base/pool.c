/* Best fit in constant time: one list of free ranges per length in pages, and a bitmap of the lists
 * that are not empty.
 *
 * An arena has at most 64^3 pages, so that the bitmap has three levels of 64-bit words and "the
 * shortest range that is long enough" is three look-ups, exactly, whatever the lengths. Free ranges
 * that touch are one range at any time: a tag at the first and at the last page of each range, free
 * or taken, finds the neighbours (boundary tags). Tags and lists lie outside the arenas. Ranges are
 * cut from their low end.
 *
 * Parts:
 *   lengths   the set of lengths that have a list, and its bitmap
 *   ranges    tags, lists, cutting and joining; a range's first page is numbered through all arenas:
 *             arena * arena_pages + page in the arena
 *   pool      the public functions */
#include "base/pool.h"

#include "base/block.h"
#include "base/memory.h"
#include "base/numa.h"

#include <stdlib.h>

#define WORD_BITS 64u
#define MAX_PAGES (WORD_BITS * WORD_BITS * WORD_BITS)
#define FREE_BIT (UINT32_C(1) << 31)
#define NO_PAGE UINT32_MAX

_Static_assert(KVF_ARENA_MAX_BYTES / KVF_PAGE == MAX_PAGES, "three levels cover an arena");

/* `run` is valid at the first and the last page of a range: its length in pages, with FREE_BIT if
 * it is free. Elsewhere it is 0. The links are valid at the first page of a free range. */
struct page_tag {
    uint32_t run;
    uint32_t next;
    uint32_t previous;
};

struct kvf_pool {
    struct kvf_arena *arenas;
    size_t arena_count;
    uint32_t arena_pages; /* of every arena but the last, which may be shorter */
    uint64_t bytes;
    uint64_t free_bytes;
    struct page_tag *tags;
    uint64_t top;                           /* bit i: middle[i] is not 0 */
    uint64_t middle[WORD_BITS];             /* bit j of word i: bottom[64 i + j] is not 0 */
    uint64_t bottom[WORD_BITS * WORD_BITS]; /* bit n: there is a free range of n + 1 pages */
    uint32_t heads[MAX_PAGES]; /* of the list of ranges of n + 1 pages; valid when bit n is set */
};

/* ---- lengths ---- */

static void lengths_add(struct kvf_pool *pool, uint32_t length)
{
    uint32_t bit = length - 1, word = bit / WORD_BITS;
    pool->bottom[word] |= UINT64_C(1) << (bit % WORD_BITS);
    pool->middle[word / WORD_BITS] |= UINT64_C(1) << (word % WORD_BITS);
    pool->top |= UINT64_C(1) << (word / WORD_BITS);
}

static void lengths_remove(struct kvf_pool *pool, uint32_t length)
{
    uint32_t bit = length - 1, word = bit / WORD_BITS;
    pool->bottom[word] &= ~(UINT64_C(1) << (bit % WORD_BITS));
    if (pool->bottom[word] != 0)
        return;
    pool->middle[word / WORD_BITS] &= ~(UINT64_C(1) << (word % WORD_BITS));
    if (pool->middle[word / WORD_BITS] == 0)
        pool->top &= ~(UINT64_C(1) << (word / WORD_BITS));
}

static bool lengths_has(const struct kvf_pool *pool, uint32_t length)
{
    uint32_t bit = length - 1;
    return (pool->bottom[bit / WORD_BITS] >> (bit % WORD_BITS) & 1) != 0;
}

/* The bits of a word from `bit` on; bit may be 64. */
static uint64_t bits_from(uint64_t word, uint32_t bit)
{
    return bit == WORD_BITS ? 0 : word & (~UINT64_C(0) << bit);
}

static uint32_t lowest_bit(uint64_t word)
{
    return (uint32_t)__builtin_ctzll(word);
}

/* The shortest length with a free range that is at least `length`; 0 when there is none. */
static uint32_t lengths_find(const struct kvf_pool *pool, uint32_t length)
{
    uint32_t bit = length - 1, word = bit / WORD_BITS, group = word / WORD_BITS;
    uint64_t found = bits_from(pool->bottom[word], bit % WORD_BITS);
    if (found == 0) {
        uint64_t words = bits_from(pool->middle[group], word % WORD_BITS + 1);
        if (words == 0) {
            uint64_t groups = bits_from(pool->top, group + 1);
            if (groups == 0)
                return 0;
            group = lowest_bit(groups);
            words = pool->middle[group];
        }
        word = group * WORD_BITS + lowest_bit(words);
        found = pool->bottom[word];
    }
    return word * WORD_BITS + lowest_bit(found) + 1;
}

/* ---- ranges ---- */

static void range_tag(struct kvf_pool *pool, uint32_t first, uint32_t pages, uint32_t free_bit)
{
    pool->tags[first].run = pages | free_bit;
    pool->tags[first + pages - 1].run = pages | free_bit;
}

static void range_untag(struct kvf_pool *pool, uint32_t first, uint32_t pages)
{
    pool->tags[first].run = 0;
    pool->tags[first + pages - 1].run = 0;
}

static void range_list(struct kvf_pool *pool, uint32_t first, uint32_t pages)
{
    struct page_tag *tag = &pool->tags[first];
    range_tag(pool, first, pages, FREE_BIT);
    tag->previous = NO_PAGE;
    tag->next = lengths_has(pool, pages) ? pool->heads[pages - 1] : NO_PAGE;
    if (tag->next != NO_PAGE)
        pool->tags[tag->next].previous = first;
    pool->heads[pages - 1] = first;
    lengths_add(pool, pages);
}

static void range_unlist(struct kvf_pool *pool, uint32_t first, uint32_t pages)
{
    const struct page_tag *tag = &pool->tags[first];
    if (tag->next != NO_PAGE)
        pool->tags[tag->next].previous = tag->previous;
    if (tag->previous != NO_PAGE)
        pool->tags[tag->previous].next = tag->next;
    else if (tag->next != NO_PAGE)
        pool->heads[pages - 1] = tag->next;
    else
        lengths_remove(pool, pages);
    range_untag(pool, first, pages);
}

/* Make a range free, joined with what is free on either side. It lies between page `low` and page
 * `high` of its arena. */
static void range_join(struct kvf_pool *pool, uint32_t first, uint32_t pages, uint32_t low,
                       uint32_t high)
{
    uint32_t after = first + pages;
    uint32_t before_run = first > low ? pool->tags[first - 1].run : 0;
    uint32_t after_run = after < high ? pool->tags[after].run : 0;
    if ((before_run & FREE_BIT) != 0) {
        uint32_t length = before_run & ~FREE_BIT;
        first -= length;
        pages += length;
        range_unlist(pool, first, length);
    }
    if ((after_run & FREE_BIT) != 0) {
        uint32_t length = after_run & ~FREE_BIT;
        range_unlist(pool, after, length);
        pages += length;
    }
    range_list(pool, first, pages);
}

/* ---- pool ---- */

static uint64_t arena_length(const struct kvf_pool *pool, size_t index)
{
    uint64_t full = pool->arena_pages * KVF_PAGE;
    uint64_t rest = pool->bytes - index * full;
    return rest < full ? rest : full;
}

/* What a pool is to be like. */
struct wish {
    uint64_t bytes, arena_bytes;
    bool hugepages;
    const int *nodes;
    size_t node_count;
};

static struct kvf_status create_arenas(struct kvf_pool *pool, const struct wish *wish,
                                       struct kvf_why *why)
{
    struct kvf_status status = kvf_ok();
    for (size_t i = 0; i < pool->arena_count && kvf_is_ok(status); i++) {
        uint64_t bytes = arena_length(pool, i);
        if (wish->node_count > 0)
            (void)kvf_numa_prefer(wish->nodes[i % wish->node_count]);
        status = kvf_arena_create(bytes, (uint32_t)i, wish->hugepages, &pool->arenas[i], why);
        if (kvf_is_ok(status))
            range_list(pool, (uint32_t)i * pool->arena_pages, (uint32_t)(bytes / KVF_PAGE));
    }
    if (wish->node_count > 0)
        (void)kvf_numa_prefer(KVF_NUMA_ANY);
    pool->free_bytes = pool->bytes;
    return status;
}

static struct kvf_status create(const struct wish *wish, struct kvf_pool **give,
                                struct kvf_why *why)
{
    uint64_t bytes = wish->bytes, arena_bytes = wish->arena_bytes;
    bool hugepages = wish->hugepages;
    uint64_t unit = hugepages ? 2 * KVF_MIB : KVF_MIB;
    if (bytes == 0 || bytes % unit != 0 || arena_bytes == 0 || arena_bytes % unit != 0 ||
        arena_bytes > KVF_ARENA_MAX_BYTES)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_BASE, KVF_INVALID, 0),
                           "a pool of %llu bytes: it takes at least one and only whole %s",
                           (unsigned long long)bytes, hugepages ? "2 MiB (huge pages)" : "MiB");
    if (bytes / KVF_PAGE >= NO_PAGE - MAX_PAGES)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_BASE, KVF_TOO_LARGE, 0),
                           "a pool of %llu MiB: it can have at most 15 TiB",
                           (unsigned long long)(bytes / KVF_MIB));

    /* Every page is taken at once: asking for more than there is would call the kernel's OOM killer on somebody. */
    uint64_t available_bytes = kvf_memory_available_bytes();
    if (!hugepages && bytes > available_bytes)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, 0),
                           "a pool of %llu MiB: only %llu MiB of memory are available: lower "
                           "--pool-mib or give the process more memory",
                           (unsigned long long)(bytes / KVF_MIB),
                           (unsigned long long)(available_bytes / KVF_MIB));

    struct kvf_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        goto no_memory;
    pool->bytes = bytes;
    pool->arena_pages = (uint32_t)(arena_bytes / KVF_PAGE);
    pool->arena_count = (size_t)((bytes + arena_bytes - 1) / arena_bytes);
    pool->arenas = calloc(pool->arena_count, sizeof(*pool->arenas));
    pool->tags = calloc((size_t)(bytes / KVF_PAGE), sizeof(*pool->tags));
    if (pool->arenas == NULL || pool->tags == NULL)
        goto no_memory;
    struct kvf_status status = create_arenas(pool, wish, why);
    if (!kvf_is_ok(status)) {
        kvf_pool_destroy(pool, true);
        return status;
    }
    *give = pool;
    return kvf_ok();

no_memory:
    kvf_pool_destroy(pool, true);
    return kvf_why_set(why, kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, 0),
                       "no memory for the book-keeping of a pool of %llu MiB",
                       (unsigned long long)(bytes / KVF_MIB));
}

struct kvf_status kvf_pool_create_cut(uint64_t bytes, uint64_t arena_bytes, bool hugepages,
                                      struct kvf_pool **give, struct kvf_why *why)
{
    struct wish wish = {.bytes = bytes, .arena_bytes = arena_bytes, .hugepages = hugepages};
    return create(&wish, give, why);
}

struct kvf_status kvf_pool_create_near(uint64_t bytes, bool hugepages, const int *nodes,
                                       size_t node_count, struct kvf_pool **give,
                                       struct kvf_why *why)
{
    struct wish wish = {.bytes = bytes,
                        .arena_bytes = KVF_ARENA_MAX_BYTES,
                        .hugepages = hugepages,
                        .nodes = nodes,
                        .node_count = node_count};
    return create(&wish, give, why);
}

struct kvf_status kvf_pool_create(uint64_t bytes, bool hugepages, struct kvf_pool **give,
                                  struct kvf_why *why)
{
    return kvf_pool_create_near(bytes, hugepages, NULL, 0, give, why);
}

void kvf_pool_destroy(struct kvf_pool *pool, bool abandon)
{
    if (pool == NULL)
        return;
    kvf_assert(abandon || pool->free_bytes == pool->bytes);
    for (size_t i = 0; pool->arenas != NULL && i < pool->arena_count; i++)
        kvf_arena_close(&pool->arenas[i]);
    free(pool->arenas);
    free(pool->tags);
    free(pool);
}

size_t kvf_pool_arena_count(const struct kvf_pool *pool)
{
    return pool->arena_count;
}

const struct kvf_arena *kvf_pool_arena(const struct kvf_pool *pool, size_t index)
{
    kvf_assert(index < pool->arena_count);
    return &pool->arenas[index];
}

struct kvf_status kvf_pool_alloc(struct kvf_pool *pool, uint64_t bytes, struct kvf_extent *extent)
{
    kvf_assert(bytes > 0);
    if (bytes > KVF_ARENA_MAX_BYTES)
        return kvf_fail(KVF_MODULE_BASE, KVF_BUSY, 0);
    uint32_t pages = (uint32_t)(kvf_round_up_page(bytes) / KVF_PAGE);
    uint32_t length = lengths_find(pool, pages);
    if (length == 0)
        return kvf_fail(KVF_MODULE_BASE, KVF_BUSY, 0);

    uint32_t first = pool->heads[length - 1];
    range_unlist(pool, first, length);
    if (length > pages)
        range_list(pool, first + pages, length - pages);
    range_tag(pool, first, pages, 0);
    pool->free_bytes -= pages * KVF_PAGE;
    *extent = (struct kvf_extent){.arena = &pool->arenas[first / pool->arena_pages],
                                  .offset = first % pool->arena_pages * KVF_PAGE,
                                  .bytes = pages * KVF_PAGE};
    return kvf_ok();
}

void kvf_pool_free(struct kvf_pool *pool, struct kvf_extent *extent)
{
    if (extent->bytes == 0) {
        *extent = (struct kvf_extent){0};
        return;
    }
    size_t index = (size_t)(extent->arena - pool->arenas);
    kvf_assert(index < pool->arena_count && extent->offset < extent->arena->bytes &&
               extent->bytes <= extent->arena->bytes - extent->offset);
    uint32_t low = (uint32_t)index * pool->arena_pages;
    uint32_t high = low + (uint32_t)(extent->arena->bytes / KVF_PAGE);
    uint32_t first = low + (uint32_t)(extent->offset / KVF_PAGE);
    uint32_t pages = (uint32_t)(extent->bytes / KVF_PAGE);
    /* Catches an extent that is freed twice or was never ours. */
    kvf_assert(pool->tags[first].run == pages && pool->tags[first + pages - 1].run == pages);
    range_untag(pool, first, pages);
    range_join(pool, first, pages, low, high);
    pool->free_bytes += extent->bytes;
    *extent = (struct kvf_extent){0};
}

uint64_t kvf_pool_bytes(const struct kvf_pool *pool)
{
    return pool->bytes;
}

uint64_t kvf_pool_free_bytes(const struct kvf_pool *pool)
{
    return pool->free_bytes;
}
