/* The pool: all DRAM for blocks of one daemon, as arenas, and an allocator of extents over them.
 *
 * An extent is a range of an arena; it exists once. The right to hold bytes is another thing: a
 * charge on a budget (base/budget.h), taken at admission. One extent that two queries use is
 * charged twice.
 *
 * All book-keeping lies outside the arenas, for engines can write to those. Owner: the Manager's
 * thread. */
#ifndef KVFERRY_BASE_POOL_H
#define KVFERRY_BASE_POOL_H

#include "base/arena.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kvf_pool;

/* Arenas of <= 1 GiB until `bytes` (a multiple of 1 MiB) is reached. NO_MEMORY when that much is not there: it is looked
 * up before anything is taken. */
KVF_MUST_USE struct kvf_status kvf_pool_create(uint64_t bytes, bool hugepages,
                                               struct kvf_pool **give, struct kvf_why *why);
/* The same, each arena from one of these NUMA nodes in turn, where it has the memory and the host lets us choose. */
KVF_MUST_USE struct kvf_status kvf_pool_create_near(uint64_t bytes, bool hugepages,
                                                    const int *nodes, size_t node_count,
                                                    struct kvf_pool **give, struct kvf_why *why);
/* The same with arenas of at most arena_bytes (whole MiB, at most KVF_ARENA_MAX_BYTES): many arenas
 * in little memory. */
KVF_MUST_USE struct kvf_status kvf_pool_create_cut(uint64_t bytes, uint64_t arena_bytes,
                                                   bool hugepages, struct kvf_pool **give,
                                                   struct kvf_why *why);
/* All extents must be back (asserted), unless `abandon`: then the memory goes as it is, at a forced
 * exit. */
void kvf_pool_destroy(struct kvf_pool *pool, bool abandon);

size_t kvf_pool_arena_count(const struct kvf_pool *pool);
/* The arena's address stays the same for the pool's life. Its id is its index. */
const struct kvf_arena *kvf_pool_arena(const struct kvf_pool *pool, size_t index);

/* An extent of at least `bytes` (1 byte to the arena's size), whole pages, address aligned to 4
 * KiB. The content is what was there before. BUSY when no free range is long enough. O(1). */
KVF_MUST_USE struct kvf_status kvf_pool_alloc(struct kvf_pool *pool, uint64_t bytes,
                                              struct kvf_extent *extent);
/* Give it back and zero *extent; an empty extent is fine. */
void kvf_pool_free(struct kvf_pool *pool, struct kvf_extent *extent);

uint64_t kvf_pool_bytes(const struct kvf_pool *pool);
uint64_t kvf_pool_free_bytes(const struct kvf_pool *pool);

#endif
