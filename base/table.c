#include "base/table.h"

#include <string.h>

struct kvf_status kvf_table_init(struct kvf_table *table)
{
    table->count = 0;
    return kvf_buckets_init(&table->buckets, sizeof(struct kvf_table_node *), 0);
}

void kvf_table_fini(struct kvf_table *table)
{
    kvf_buckets_fini(&table->buckets);
    table->count = 0;
}

size_t kvf_table_bytes(const struct kvf_table *table)
{
    return kvf_buckets_bytes(&table->buckets);
}

static struct kvf_table_node **bucket_of(const struct kvf_table *table, uint64_t hash)
{
    return kvf_buckets_of(&table->buckets, (uint32_t)hash);
}

static void split(struct kvf_table *table)
{
    struct kvf_buckets_split split;
    if (!kvf_buckets_split(&table->buckets, &split))
        return;
    struct kvf_table_node **old = split.old, **added = split.added, *node = *old;
    *old = *added = NULL;
    while (node != NULL) {
        struct kvf_table_node *next = node->next,
                              **into = (node->hash & split.bit) != 0 ? added : old;
        node->next = *into;
        *into = node;
        node = next;
    }
}

void kvf_table_insert(struct kvf_table *table, struct kvf_table_node *node, uint64_t hash)
{
    if (table->count >= table->buckets.count)
        split(table);
    struct kvf_table_node **bucket = bucket_of(table, hash);
    node->hash = hash;
    node->next = *bucket;
    *bucket = node;
    table->count++;
}

void kvf_table_remove(struct kvf_table *table, struct kvf_table_node *node)
{
    struct kvf_table_node **at = bucket_of(table, node->hash);
    while (*at != node) {
        kvf_assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = node->next;
    node->next = NULL;
    table->count--;
}

struct kvf_table_node *kvf_table_find(const struct kvf_table *table, uint64_t hash,
                                      kvf_table_same *same, const void *key)
{
    for (struct kvf_table_node *node = *bucket_of(table, hash); node != NULL; node = node->next)
        if (node->hash == hash && same(node, key))
            return node;
    return NULL;
}

struct kvf_table_node *kvf_table_next(const struct kvf_table *table,
                                      const struct kvf_table_node *node)
{
    uint32_t number = 0;
    if (node != NULL) {
        if (node->next != NULL)
            return node->next;
        number = kvf_buckets_number(&table->buckets, (uint32_t)node->hash) + 1;
    }
    for (; number < table->buckets.count; number++) {
        struct kvf_table_node **bucket = kvf_buckets_at(&table->buckets, number);
        if (*bucket != NULL)
            return *bucket;
    }
    return NULL;
}

/* SipHash-2-4 (Aumasson, Bernstein, 2012) with the seed as both key halves. */
#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = ROTL(v[1], 13) ^ v[0];
    v[0] = ROTL(v[0], 32);
    v[2] += v[3];
    v[3] = ROTL(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = ROTL(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = ROTL(v[1], 17) ^ v[2];
    v[2] = ROTL(v[2], 32);
}

uint64_t kvf_hash(uint64_t seed, const void *data, size_t bytes)
{
    const uint64_t other = ROTL(seed, 32) ^ UINT64_C(0x9e3779b97f4a7c15);
    uint64_t v[4] = {UINT64_C(0x736f6d6570736575) ^ seed, UINT64_C(0x646f72616e646f6d) ^ other,
                     UINT64_C(0x6c7967656e657261) ^ seed, UINT64_C(0x7465646279746573) ^ other};
    const unsigned char *at = data;
    uint64_t last = (uint64_t)bytes << 56;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < bytes; i++)
        last |= (uint64_t)at[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
