/* The nouns that every layer shares: what a block is called and how large it may be. */
#ifndef KVFERRY_BASE_BLOCK_H
#define KVFERRY_BASE_BLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define KVF_MIB (UINT64_C(1) << 20)
#define KVF_PAGE UINT64_C(4096)              /* extents and records round up to this */
#define KVF_BLOCK_MAX_BYTES (128 * KVF_MIB)  /* the longest block; the shortest has 1 byte */
#define KVF_ARENA_MAX_BYTES (1024 * KVF_MIB) /* the kernel takes no larger fixed buffer */
#define KVF_KEY_MAX_BYTES 64
#define KVF_NAMESPACE_MAX_BYTES 200 /* TENANT/FINGERPRINT, without the terminating zero */

/* 1 to 64 opaque bytes, usually an engine's prefix hash. */
struct kvf_key {
    uint8_t length;
    uint8_t bytes[KVF_KEY_MAX_BYTES];
};

/* One content of one key, unique per store for ever. {0, 0} means "none" or "any". */
struct kvf_generation {
    uint64_t epoch;
    uint64_t counter;
};

/* Where a block was found, as the answer to a Get says it. The numbers travel. */
enum kvf_tier {
    KVF_TIER_NONE = 0,
    KVF_TIER_DRAM = 1,
    KVF_TIER_SSD = 2,
};

enum kvf_origin {
    KVF_ORIGIN_LOCAL = 0,
    KVF_ORIGIN_REMOTE = 1,
};

static inline uint64_t kvf_round_up_page(uint64_t bytes)
{
    return (bytes + KVF_PAGE - 1) & ~(KVF_PAGE - 1);
}

static inline bool kvf_generation_is_none(struct kvf_generation g)
{
    return g.epoch == 0 && g.counter == 0;
}

static inline bool kvf_generation_equal(struct kvf_generation a, struct kvf_generation b)
{
    return a.epoch == b.epoch && a.counter == b.counter;
}

static inline bool kvf_generation_is_newer(struct kvf_generation a, struct kvf_generation b)
{
    return a.epoch != b.epoch ? a.epoch > b.epoch : a.counter > b.counter;
}

static inline bool kvf_key_equal(const struct kvf_key *a, const struct kvf_key *b)
{
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

/* False when `length` is not 1 to 64; key is then untouched. */
bool kvf_key_set(struct kvf_key *key, const void *bytes, size_t length);

/* A key as it is typed: its bytes where all are printable ASCII, no space among them, and do not
 * begin with "hex:"; else "hex:" and two lower-case digits for each byte. */
#define KVF_KEY_TEXT_ROOM (4 + 2 * KVF_KEY_MAX_BYTES + 1)
void kvf_key_text(const struct kvf_key *key, char text[KVF_KEY_TEXT_ROOM]);

/* TENANT/FINGERPRINT, each [A-Za-z0-9._-]+, together at most KVF_NAMESPACE_MAX_BYTES. */
bool kvf_namespace_is_valid(const char *text);

/* A TENANT that leaves room for a fingerprint. */
bool kvf_tenant_is_valid(const char *text);

/* The number of bytes of the tenant's name at the front of a valid namespace. */
size_t kvf_namespace_tenant_bytes(const char *text);

#endif
