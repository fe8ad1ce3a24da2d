/* The buckets of a hash table whose nodes the caller links: an array that grows and shrinks by one bucket at a time
 * (linear hashing), in pages of 4 KiB. So no call does more than its own work, and nothing is ever copied into
 * something twice its size.
 *
 * With n buckets, and w the largest power of two that is not above n, those from n - w up to w - 1 have not been split
 * yet: what one bit more of the hash would name is not there, and lies in them. One owner thread. */
#ifndef KVFERRY_BASE_BUCKETS_H
#define KVFERRY_BASE_BUCKETS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_BUCKETS_PAGE_BYTES 4096u

struct kvf_buckets {
    char **pages;
    uint32_t page_count, page_room;
    uint32_t count;
    unsigned shift; /* a page has 1 << shift buckets */
};

/* A page of them, every byte `empty`. A bucket has 4 or 8 bytes. On error there is nothing to take back. */
KVF_MUST_USE struct kvf_status kvf_buckets_init(struct kvf_buckets *buckets, size_t bucket_bytes,
                                                uint8_t empty);
/* Fine when all bytes are 0. */
void kvf_buckets_fini(struct kvf_buckets *buckets);

/* The largest power of two that is not above the number of buckets. */
static inline uint32_t kvf_buckets_width(const struct kvf_buckets *buckets)
{
    return UINT32_C(1) << (31 - __builtin_clz(buckets->count));
}

static inline void *kvf_buckets_at(const struct kvf_buckets *buckets, uint32_t number)
{
    size_t place = number & ((UINT32_C(1) << buckets->shift) - 1);
    return buckets->pages[number >> buckets->shift] +
           place * (KVF_BUCKETS_PAGE_BYTES >> buckets->shift);
}

/* The number of the bucket of a hash. */
static inline uint32_t kvf_buckets_number(const struct kvf_buckets *buckets, uint32_t hash)
{
    uint32_t width = kvf_buckets_width(buckets), number = hash & (2 * width - 1);
    return number < buckets->count ? number : number - width;
}

static inline void *kvf_buckets_of(const struct kvf_buckets *buckets, uint32_t hash)
{
    return kvf_buckets_at(buckets, kvf_buckets_number(buckets, hash));
}

/* One bucket more. What lies in `old` and has `bit` in its hash belongs into `added`, whose content is undefined; the
 * caller moves it. */
struct kvf_buckets_split {
    void *old, *added;
    uint32_t bit;
};

/* False: out of memory (the chains become longer, nothing else), or there are 2^30. */
bool kvf_buckets_split(struct kvf_buckets *buckets, struct kvf_buckets_split *split);

/* One bucket less, when there is more than a page of them: what lies in the last one belongs into the other. The
 * caller moves it and then drops the last one. */
struct kvf_buckets_merge {
    void *last, *into;
};

bool kvf_buckets_merge(const struct kvf_buckets *buckets, struct kvf_buckets_merge *merge);
void kvf_buckets_drop_last(struct kvf_buckets *buckets);

/* What was allocated. */
size_t kvf_buckets_bytes(const struct kvf_buckets *buckets);

#endif
