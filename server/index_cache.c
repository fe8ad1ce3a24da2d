/* What lies in DRAM and may go, and whose it is: the cache, making room, shares. */
#include "server/index_state.h"

/* For one block of room, so many times its bytes are evicted at most: where pinned extents leave no place long enough,
 * one that waits must not empty the cache. */
#define EVICTED_FOR_ONE 4

/* ---- the cache ---- */

/* The cache in which the tenant's blocks are; NULL is nobody. */
static struct kvf_cache *cache_of(struct kvf_index *index, struct kvf_tenant *tenant)
{
    bool own = tenant != NULL && kvf_tenant_has_share(tenant, KVF_SHARE_DRAM);
    return own ? &tenant->cache : &index->cache;
}

static void list_cached(struct kvf_cache *cache, struct kvf_entry *entry)
{
    kvf_list_push_back(entry->pulled ? &cache->pulled : &cache->put, &entry->cache_node);
}

/* NULL: it is empty. */
static struct kvf_entry *coldest(struct kvf_cache *cache)
{
    struct kvf_list *list = kvf_list_is_empty(&cache->pulled) ? &cache->put : &cache->pulled;
    return kvf_list_is_empty(list) ? NULL : kvf_container(list->next, struct kvf_entry, cache_node);
}

/* It leaves DRAM; returns its bytes there. NULL: 0. */
static uint64_t evict(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry == NULL)
        return 0;
    uint64_t bytes = entry->extent.bytes;
    kvf_assert(bytes > 0);
    index_free_extent(index, entry);
    (void)index_fold(index, entry);
    return bytes;
}

/* The tenant evicts its own until so many bytes more are within its share. False: the rest of it is pinned. */
static bool keep_share(struct kvf_index *index, struct kvf_tenant *tenant, uint64_t bytes)
{
    while (!kvf_tenant_has_room(tenant, KVF_SHARE_DRAM, bytes))
        if (evict(index, coldest(&tenant->cache)) == 0)
            return false;
    return true;
}

void index_cache(struct kvf_index *index, struct kvf_entry *entry)
{
    struct kvf_tenant *tenant = entry->space->tenant;
    list_cached(cache_of(index, tenant), entry);
    index->clean_bytes += entry->extent.bytes;
    tenant->cached_bytes += entry->extent.bytes;
    tenant->uses++;
    (void)keep_share(index, tenant, 0); /* it was lowered while this was pinned */
    kvf_tenants_leave(&index->tenants, tenant);
    index->options.freed(index->options.context);
}

void index_uncache(struct kvf_index *index, struct kvf_entry *entry)
{
    if (kvf_list_is_empty(&entry->cache_node))
        return;
    kvf_list_remove(&entry->cache_node);
    index->clean_bytes -= entry->extent.bytes;
    entry->space->tenant->cached_bytes -= entry->extent.bytes;
}

/* ---- making room ---- */

/* Where all that is free and all that is cached together are too little, evicting helps nobody. */
static bool may_become_room(const struct kvf_index *index, uint64_t bytes)
{
    return kvf_pool_free_bytes(index->options.pool) + index->clean_bytes >= bytes;
}

/* Of somebody with a share: who has more than is safe, or (else) anybody. NULL: nobody has anything that may go. */
static struct kvf_entry *coldest_with_share(struct kvf_index *index, bool above_safe)
{
    struct kvf_entry *entry = NULL;
    struct kvf_tenant *tenant = NULL;
    while (entry == NULL && (tenant = kvf_tenants_next(&index->tenants, tenant)) != NULL)
        if (!above_safe || kvf_tenants_excess(&index->tenants, tenant, KVF_SHARE_DRAM) > 0)
            entry = coldest(&tenant->cache);
    return entry;
}

/* What is to go for a block of this tenant. While all are within what is safe for them the place is there, only in pieces
 * perhaps: then it is at the tenant's own expense. */
static struct kvf_entry *coldest_for(struct kvf_index *index, struct kvf_tenant *tenant)
{
    const struct kvf_tenants *tenants = &index->tenants;
    struct kvf_entry *entry = NULL;
    if (!tenants->has_shares[KVF_SHARE_DRAM])
        return coldest(&index->cache);
    if (tenants->others_bytes[KVF_SHARE_DRAM] > tenants->rest_bytes[KVF_SHARE_DRAM])
        entry = coldest(&index->cache);
    if (entry == NULL && tenants->safe_part[KVF_SHARE_DRAM] < 1)
        entry = coldest_with_share(index, true);
    if (entry == NULL)
        entry = coldest(cache_of(index, tenant));
    if (entry == NULL)
        entry = coldest(&index->cache);
    return entry != NULL ? entry : coldest_with_share(index, false);
}

bool kvf_index_within_share(struct kvf_index *index, struct kvf_tenant *tenant, uint64_t bytes)
{
    return kvf_tenant_may_hold(tenant, bytes) && keep_share(index, tenant, bytes);
}

struct kvf_status kvf_index_room(struct kvf_index *index, struct kvf_tenant *tenant, uint64_t bytes,
                                 struct kvf_extent *extent)
{
    uint64_t evicted = 0, most = EVICTED_FOR_ONE * kvf_round_up_page(bytes);
    if (!kvf_index_within_share(index, tenant, kvf_round_up_page(bytes)))
        return kvf_fail(KVF_MODULE_SERVER, KVF_BUSY, 0);
    for (;;) {
        struct kvf_status status = kvf_pool_alloc(index->options.pool, bytes, extent);
        if (kvf_is_ok(status) || evicted >= most || !may_become_room(index, bytes))
            return status;
        uint64_t gone = evict(index, coldest_for(index, tenant));
        if (gone == 0)
            return status;
        evicted += gone;
    }
}

void kvf_index_return_room(struct kvf_index *index, struct kvf_extent *extent)
{
    if (extent->bytes == 0)
        return;
    kvf_pool_free(index->options.pool, extent);
    index->options.freed(index->options.context);
}

static void evict_cache(struct kvf_index *index, struct kvf_cache *cache, uint64_t *blocks,
                        uint64_t *bytes)
{
    for (uint64_t gone; (gone = evict(index, coldest(cache))) > 0; (*blocks)++)
        *bytes += gone;
}

void kvf_index_evict_all(struct kvf_index *index, uint64_t *blocks, uint64_t *bytes)
{
    struct kvf_tenant *tenant, *next;
    evict_cache(index, &index->cache, blocks, bytes);
    for (tenant = kvf_tenants_next(&index->tenants, NULL); tenant != NULL; tenant = next) {
        tenant->uses++; /* it may lose its last block */
        evict_cache(index, &tenant->cache, blocks, bytes);
        next = kvf_tenants_next(&index->tenants, tenant);
        kvf_tenants_leave(&index->tenants, tenant);
    }
}

/* ---- shares ---- */

struct kvf_tenants *kvf_index_tenants(struct kvf_index *index)
{
    return &index->tenants;
}

static void move_cache(struct kvf_cache *to, struct kvf_cache *from)
{
    kvf_list_splice_back(&to->pulled, &from->pulled);
    kvf_list_splice_back(&to->put, &from->put);
}

/* Each to the cache of his tenant, in the order that they have. */
static void sort_cached(struct kvf_index *index, struct kvf_list *list)
{
    kvf_list_for_each_safe (node, list) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, cache_node);
        struct kvf_cache *cache = cache_of(index, entry->space->tenant);
        if (cache == &index->cache)
            continue;
        kvf_list_remove(&entry->cache_node);
        list_cached(cache, entry);
    }
}

void kvf_index_reload_shares(struct kvf_index *index)
{
    struct kvf_tenants *tenants = &index->tenants;
    struct kvf_tenant *tenant, *next;
    for (tenant = NULL; (tenant = kvf_tenants_next(tenants, tenant)) != NULL;)
        move_cache(&index->cache, &tenant->cache);
    kvf_tenants_reload(tenants);
    sort_cached(index, &index->cache.pulled);
    sort_cached(index, &index->cache.put);
    for (tenant = kvf_tenants_next(tenants, NULL); tenant != NULL; tenant = next) {
        tenant->uses++; /* it may lose its last block */
        (void)keep_share(index, tenant, 0);
        index_shed(index, tenant);
        next = kvf_tenants_next(tenants, tenant);
        kvf_tenants_leave(tenants, tenant);
    }
    index->options.freed(index->options.context);
}
