/* What the index keeps of blocks that lie only on SSD, of which there may be tens of millions: 56 bytes and the key for
 * each, and at most 8 bytes for finding it.
 *
 * Records lie in slabs, one kind for each length of key in steps of 8 bytes, and name one another by 32-bit links:
 *
 *     buckets -> record -> record          those whose hash falls into one bucket, singly linked
 *     list    -> record <-> record         those that the index keeps together, in the order in which they came
 *
 * Slabs and buckets come and go one at a time, so no call does more than its own work, and nothing is ever copied into
 * something twice its size. Whatever finds no memory changes nothing.
 *
 * What a list stands for, and where its records lie, the index knows. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_COLD_H
#define KVFERRY_SERVER_COLD_H

#include "base/block.h"
#include "base/status.h"

#include <stddef.h>

struct kvf_cold;

/* A link names a record until that is removed; this one names none. */
#define KVF_COLD_NONE UINT32_MAX

/* Records that belong together. Embedded by the index. */
struct kvf_cold_list {
    uint32_t number;
    uint32_t first, last; /* links */
};

/* A record, unpacked. */
struct kvf_cold_block {
    struct kvf_key key;
    uint32_t space; /* number of its namespace */
    struct kvf_generation generation;
    uint32_t length;
    uint32_t crc32c;
    struct kvf_cold_list *list;
    uint32_t page; /* of its segment, where its payload begins */
    bool hot;
    bool pulled;
    bool sifted;      /* see kvf_cold_sift */
    uint8_t failures; /* reads of it that failed in a row: 0 to 3 */
};

KVF_MUST_USE struct kvf_status kvf_cold_create(struct kvf_cold **give);
/* With all records; lists are nobody's any more. */
void kvf_cold_destroy(struct kvf_cold *cold);

/* An empty list; it must not move. False: out of memory. */
KVF_MUST_USE bool kvf_cold_list_init(struct kvf_cold *cold, struct kvf_cold_list *list);
/* It must be empty (asserted). */
void kvf_cold_list_fini(struct kvf_cold *cold, struct kvf_cold_list *list);
/* The one after it in its list, or KVF_COLD_NONE. */
uint32_t kvf_cold_next_in_list(const struct kvf_cold *cold, uint32_t link);

/* `hash` is of namespace and key. The block must not be there yet. False: out of memory. */
KVF_MUST_USE bool kvf_cold_add(struct kvf_cold *cold, uint64_t hash,
                               const struct kvf_cold_block *block);
/* KVF_COLD_NONE: not there. */
uint32_t kvf_cold_find(const struct kvf_cold *cold, uint64_t hash, uint32_t space,
                       const struct kvf_key *key);
void kvf_cold_get(const struct kvf_cold *cold, uint32_t link, struct kvf_cold_block *block);
void kvf_cold_remove(struct kvf_cold *cold, uint32_t link);
/* It was looked at and stays: last in its list, marked, and not hot any more. */
void kvf_cold_sift(struct kvf_cold *cold, uint32_t link);
/* It lies elsewhere from now on: last in this list, unmarked. */
void kvf_cold_move(struct kvf_cold *cold, uint32_t link, struct kvf_cold_list *list, uint32_t page);

uint64_t kvf_cold_count(const struct kvf_cold *cold);
/* All that was allocated. */
uint64_t kvf_cold_bytes(const struct kvf_cold *cold);

#endif
