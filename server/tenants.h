/* Tenants: what each has of this node's DRAM and SSD, and what the ACL gives it. A tenant is what stands before the slash
 * of a namespace; it is there while somebody has entered it or the ACL gives it a share.
 *
 * A share is a limit: above it a tenant loses its own blocks, the coldest in DRAM, the oldest on SSD. It is also what
 * nobody else can take from it, as far as all shares together leave room: so many bytes are `safe`. Those without a
 * share are limited by the node alone; what the shares leave is safe for all of them together. Where nobody has a share
 * nothing is safe, and the coldest and oldest go, whosever they are.
 *
 * This module only counts; the index keeps to it. Bytes are whole pages of payload. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_TENANTS_H
#define KVFERRY_SERVER_TENANTS_H

#include "base/block.h"
#include "base/list.h"
#include "base/status.h"
#include "base/table.h"
#include "server/acl.h"

/* Blocks in DRAM that may be evicted, the coldest first; pulled ones go before those that were put here. */
struct kvf_cache {
    struct kvf_list pulled, put;
};

struct kvf_tenant {
    struct kvf_table_node node;
    uint64_t uses;
    bool named;                            /* by the ACL, which counts as a use */
    uint64_t limit_bytes[KVF_SHARE_COUNT]; /* UINT64_MAX: it has no share */
    uint64_t safe_bytes[KVF_SHARE_COUNT];  /* 0 without a share */
    uint64_t used_bytes[KVF_SHARE_COUNT];  /* extents; records on SSD that can be found */
    uint64_t cached_bytes;                 /* of those in DRAM: may be evicted */
    uint64_t shed_blocks;                  /* that left the SSD for newer ones of its own */
    /* the index's own */
    struct kvf_cache cache; /* while it has a share of DRAM */
    struct kvf_list stakes; /* what it has in each segment, the oldest first */
    /* admission's own */
    uint64_t passed_in; /* the round in which it is passed over */
    char name[];
};

struct kvf_tenants {
    struct kvf_table names;
    uint64_t seed;
    /* Set by the owner before init. */
    const struct kvf_acl *acl;           /* NULL: no shares */
    uint64_t all_bytes[KVF_SHARE_COUNT]; /* of the node: what a share is a part of */
    uint64_t safe_bytes
        [KVF_SHARE_COUNT]; /* of these: so much can be kept for those that it is safe for */

    bool has_shares[KVF_SHARE_COUNT];
    double
        safe_part[KVF_SHARE_COUNT]; /* of a share is safe: less than 1 where there are too many */
    uint64_t rest_bytes[KVF_SHARE_COUNT];   /* safe for those without a share, together */
    uint64_t others_bytes[KVF_SHARE_COUNT]; /* used by those without a share, together */
};

KVF_MUST_USE struct kvf_status kvf_tenants_init(struct kvf_tenants *tenants, uint64_t seed);
/* Whoever is still there goes. Fine when init failed, or all bytes are 0. */
void kvf_tenants_fini(struct kvf_tenants *tenants);
/* The ACL was read again: shares are what it says now. What is used stays as it is. */
void kvf_tenants_reload(struct kvf_tenants *tenants);

/* What the ACL lets the tenant of this namespace have; UINT64_MAX: it has no share. */
uint64_t kvf_tenants_limit(const struct kvf_tenants *tenants, const char *ns, enum kvf_share share);
/* The tenant of this namespace, made when it is not there. NULL: out of memory. */
struct kvf_tenant *kvf_tenants_enter(struct kvf_tenants *tenants, const char *ns);
/* Once for each that came of enter; NULL is fine. */
void kvf_tenants_leave(struct kvf_tenants *tenants, struct kvf_tenant *tenant);
/* In no order: NULL gives the first, NULL comes back after the last. The one that was given may go meanwhile only after
 * the next one was asked for. */
struct kvf_tenant *kvf_tenants_next(const struct kvf_tenants *tenants,
                                    const struct kvf_tenant *tenant);

/* It uses so much more, or less. */
void kvf_tenants_take(struct kvf_tenants *tenants, struct kvf_tenant *tenant, enum kvf_share share,
                      uint64_t bytes);
void kvf_tenants_give(struct kvf_tenants *tenants, struct kvf_tenant *tenant, enum kvf_share share,
                      uint64_t bytes);
/* What it (or, where it has no share, all those without one) uses beyond what is safe. Without any shares: all. */
uint64_t kvf_tenants_excess(const struct kvf_tenants *tenants, const struct kvf_tenant *tenant,
                            enum kvf_share share);

static inline bool kvf_tenant_has_share(const struct kvf_tenant *tenant, enum kvf_share share)
{
    return tenant->limit_bytes[share] != UINT64_MAX;
}

/* Would so many bytes more be within its share? NULL: yes. */
static inline bool kvf_tenant_has_room(const struct kvf_tenant *tenant, enum kvf_share share,
                                       uint64_t bytes)
{
    return tenant == NULL || (bytes <= tenant->limit_bytes[share] &&
                              tenant->used_bytes[share] <= tenant->limit_bytes[share] - bytes);
}

/* In DRAM, and not to be evicted now: written, pinned, on its way. */
static inline uint64_t kvf_tenant_held_bytes(const struct kvf_tenant *tenant)
{
    return tenant->used_bytes[KVF_SHARE_DRAM] - tenant->cached_bytes;
}

/* Would so many bytes more be within its share of DRAM, once all that it has cached is evicted? NULL: yes. */
static inline bool kvf_tenant_may_hold(const struct kvf_tenant *tenant, uint64_t bytes)
{
    return tenant == NULL ||
           (bytes <= tenant->limit_bytes[KVF_SHARE_DRAM] &&
            kvf_tenant_held_bytes(tenant) <= tenant->limit_bytes[KVF_SHARE_DRAM] - bytes);
}

static inline void kvf_cache_init(struct kvf_cache *cache)
{
    kvf_list_init(&cache->pulled);
    kvf_list_init(&cache->put);
}

#endif
