/* Tenants in four parts: names, shares, counting, life. */
#include "server/tenants.h"

#include <stdlib.h>
#include <string.h>

static void set_shares(const struct kvf_tenants *tenants, struct kvf_tenant *tenant);

/* ---- names ---- */

struct name {
    const char *text;
    size_t length;
};

static struct kvf_tenant *tenant_of(struct kvf_table_node *node)
{
    return node != NULL ? kvf_container(node, struct kvf_tenant, node) : NULL;
}

static bool same_name(const struct kvf_table_node *node, const void *key)
{
    const struct kvf_tenant *tenant = (const struct kvf_tenant *)(const void *)node;
    const struct name *name = key;
    return strncmp(tenant->name, name->text, name->length) == 0 &&
           tenant->name[name->length] == '\0';
}

static struct kvf_tenant *make(struct kvf_tenants *tenants, const struct name *name, uint64_t hash)
{
    struct kvf_tenant *tenant = calloc(1, sizeof(*tenant) + name->length + 1);
    if (tenant == NULL)
        return NULL;
    memcpy(tenant->name, name->text, name->length);
    kvf_cache_init(&tenant->cache);
    kvf_list_init(&tenant->stakes);
    set_shares(tenants, tenant);
    kvf_table_insert(&tenants->names, &tenant->node, hash);
    return tenant;
}

struct kvf_tenant *kvf_tenants_enter(struct kvf_tenants *tenants, const char *ns)
{
    const struct name name = {ns, strcspn(ns, "/")};
    uint64_t hash = kvf_hash(tenants->seed, name.text, name.length);
    struct kvf_tenant *tenant = tenant_of(kvf_table_find(&tenants->names, hash, same_name, &name));
    if (tenant == NULL)
        tenant = make(tenants, &name, hash);
    if (tenant != NULL)
        tenant->uses++;
    return tenant;
}

void kvf_tenants_leave(struct kvf_tenants *tenants, struct kvf_tenant *tenant)
{
    if (tenant == NULL || --tenant->uses > 0)
        return;
    for (int share = 0; share < KVF_SHARE_COUNT; share++)
        kvf_assert(tenant->used_bytes[share] == 0);
    kvf_table_remove(&tenants->names, &tenant->node);
    free(tenant);
}

struct kvf_tenant *kvf_tenants_next(const struct kvf_tenants *tenants,
                                    const struct kvf_tenant *tenant)
{
    return tenant_of(kvf_table_next(&tenants->names, tenant != NULL ? &tenant->node : NULL));
}

/* ---- shares ---- */

uint64_t kvf_tenants_limit(const struct kvf_tenants *tenants, const char *ns, enum kvf_share share)
{
    double part = kvf_acl_share(tenants->acl, ns, share);
    uint64_t bytes = (uint64_t)(part * (double)tenants->all_bytes[share]);
    return part < 1 ? bytes - bytes % KVF_PAGE : UINT64_MAX;
}

static void set_share(const struct kvf_tenants *tenants, struct kvf_tenant *tenant,
                      enum kvf_share share)
{
    uint64_t limit = kvf_tenants_limit(tenants, tenant->name, share);
    bool limited = limit != UINT64_MAX;
    tenant->limit_bytes[share] = limit;
    tenant->safe_bytes[share] = limited ? (uint64_t)(tenants->safe_part[share] * (double)limit) : 0;
}

static void set_shares(const struct kvf_tenants *tenants, struct kvf_tenant *tenant)
{
    for (int share = 0; share < KVF_SHARE_COUNT; share++)
        set_share(tenants, tenant, (enum kvf_share)share);
}

/* Whoever the ACL gives a share is there, with blocks or without. Who finds no memory now has it from its first block
 * on. */
static void enter_named(struct kvf_tenants *tenants)
{
    const char *name;
    for (size_t n = 0; (name = kvf_acl_tenant(tenants->acl, n)) != NULL; n++) {
        struct kvf_tenant *tenant = kvf_tenants_enter(tenants, name);
        if (tenant == NULL)
            continue;
        if (tenant->named)
            kvf_tenants_leave(tenants, tenant);
        tenant->named = true;
    }
}

static void leave_if_unnamed(struct kvf_tenants *tenants, struct kvf_tenant *tenant)
{
    if (!tenant->named || kvf_tenant_has_share(tenant, KVF_SHARE_DRAM) ||
        kvf_tenant_has_share(tenant, KVF_SHARE_SSD))
        return;
    tenant->named = false;
    kvf_tenants_leave(tenants, tenant);
}

/* What can be promised to whom, from everybody's limits. */
static void divide(struct kvf_tenants *tenants, enum kvf_share share)
{
    uint64_t given = 0, others = 0, safe = tenants->safe_bytes[share];
    bool has_shares = false;
    const struct kvf_tenant *tenant = NULL;
    while ((tenant = kvf_tenants_next(tenants, tenant)) != NULL) {
        bool limited = kvf_tenant_has_share(tenant, share);
        has_shares = has_shares || limited;
        given += limited ? tenant->limit_bytes[share] : 0;
        others += limited ? 0 : tenant->used_bytes[share];
    }
    tenants->has_shares[share] = has_shares;
    tenants->others_bytes[share] = others;
    tenants->safe_part[share] = given > safe ? (double)safe / (double)given : 1;
    tenants->rest_bytes[share] = has_shares && given < safe ? safe - given : 0;
}

void kvf_tenants_reload(struct kvf_tenants *tenants)
{
    struct kvf_tenant *tenant, *next;
    enter_named(tenants);
    for (tenant = kvf_tenants_next(tenants, NULL); tenant != NULL; tenant = next) {
        next = kvf_tenants_next(tenants, tenant);
        set_shares(tenants, tenant);
        leave_if_unnamed(tenants, tenant);
    }
    for (int share = 0; share < KVF_SHARE_COUNT; share++)
        divide(tenants, (enum kvf_share)share);
    for (tenant = NULL; (tenant = kvf_tenants_next(tenants, tenant)) != NULL;)
        set_shares(tenants, tenant); /* what of it is safe is known now */
}

/* ---- counting ---- */

void kvf_tenants_take(struct kvf_tenants *tenants, struct kvf_tenant *tenant, enum kvf_share share,
                      uint64_t bytes)
{
    tenant->used_bytes[share] += bytes;
    if (!kvf_tenant_has_share(tenant, share))
        tenants->others_bytes[share] += bytes;
}

void kvf_tenants_give(struct kvf_tenants *tenants, struct kvf_tenant *tenant, enum kvf_share share,
                      uint64_t bytes)
{
    kvf_assert(bytes <= tenant->used_bytes[share]);
    tenant->used_bytes[share] -= bytes;
    if (!kvf_tenant_has_share(tenant, share))
        tenants->others_bytes[share] -= bytes;
}

uint64_t kvf_tenants_excess(const struct kvf_tenants *tenants, const struct kvf_tenant *tenant,
                            enum kvf_share share)
{
    bool limited = kvf_tenant_has_share(tenant, share);
    uint64_t used = limited ? tenant->used_bytes[share] : tenants->others_bytes[share];
    uint64_t safe = limited ? tenant->safe_bytes[share] : tenants->rest_bytes[share];
    return used > safe ? used - safe : 0;
}

/* ---- life ---- */

struct kvf_status kvf_tenants_init(struct kvf_tenants *tenants, uint64_t seed)
{
    tenants->seed = seed;
    struct kvf_status status = kvf_table_init(&tenants->names);
    if (kvf_is_ok(status))
        kvf_tenants_reload(tenants);
    return status;
}

void kvf_tenants_fini(struct kvf_tenants *tenants)
{
    struct kvf_tenant *tenant;
    while (tenants->names.count > 0 && (tenant = kvf_tenants_next(tenants, NULL)) != NULL) {
        kvf_table_remove(&tenants->names, &tenant->node);
        free(tenant);
    }
    kvf_table_fini(&tenants->names);
}
