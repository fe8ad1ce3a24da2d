/* An intrusive chained hash table. The caller's struct embeds the node; the table never looks at the key, it asks the
 * caller's `same`. Grows bucket by bucket and never shrinks; a failed growth only makes chains longer, so insert cannot
 * fail. One owner thread. */
#ifndef KVFERRY_BASE_TABLE_H
#define KVFERRY_BASE_TABLE_H

#include "base/buckets.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kvf_table_node {
    struct kvf_table_node *next;
    uint64_t hash;
};

struct kvf_table {
    struct kvf_buckets buckets; /* of struct kvf_table_node * */
    size_t count;
};

/* True when `node` is what `key` names. Called only for nodes whose hash is equal. */
typedef bool kvf_table_same(const struct kvf_table_node *node, const void *key);

KVF_MUST_USE struct kvf_status kvf_table_init(struct kvf_table *table);
/* Forgets the nodes; they are the caller's. Fine when all bytes are 0. */
void kvf_table_fini(struct kvf_table *table);
void kvf_table_insert(struct kvf_table *table, struct kvf_table_node *node, uint64_t hash);
/* The node must be in the table. */
void kvf_table_remove(struct kvf_table *table, struct kvf_table_node *node);
struct kvf_table_node *kvf_table_find(const struct kvf_table *table, uint64_t hash,
                                      kvf_table_same *same, const void *key);
/* Walk all nodes in no order: NULL gives the first, NULL comes back after the last. The table must not change
 * meanwhile. */
struct kvf_table_node *kvf_table_next(const struct kvf_table *table,
                                      const struct kvf_table_node *node);

/* What was allocated. */
size_t kvf_table_bytes(const struct kvf_table *table);

/* A keyed 64-bit hash for keys that strangers choose: seeded per process, so that chains cannot be aimed at. */
uint64_t kvf_hash(uint64_t seed, const void *data, size_t bytes);

#endif
