#include "server/space.h"

#define SLAB_SHIFT 4 /* there are few: 16 at a time */

struct kvf_status kvf_spaces_init(struct kvf_spaces *spaces, struct kvf_tenants *tenants,
                                  uint64_t seed)
{
    spaces->tenants = tenants;
    spaces->seed = seed;
    kvf_slabs_init(&spaces->memory, sizeof(struct kvf_space), SLAB_SHIFT, UINT32_MAX);
    return kvf_table_init(&spaces->names);
}

void kvf_spaces_fini(struct kvf_spaces *spaces)
{
    kvf_table_fini(&spaces->names);
    kvf_slabs_fini(&spaces->memory);
}

static bool same_text(const struct kvf_table_node *node, const void *text)
{
    return strcmp(((const struct kvf_space *)(const void *)node)->text, text) == 0;
}

static struct kvf_space *find(const struct kvf_spaces *spaces, const char *text, uint64_t hash)
{
    struct kvf_table_node *node = kvf_table_find(&spaces->names, hash, same_text, text);
    return node != NULL ? (struct kvf_space *)(void *)node : NULL;
}

struct kvf_space *kvf_spaces_find(const struct kvf_spaces *spaces, const char *text)
{
    return find(spaces, text, kvf_hash(spaces->seed, text, strlen(text)));
}

struct kvf_space *kvf_spaces_at(const struct kvf_spaces *spaces, uint32_t number)
{
    return kvf_slabs_at(&spaces->memory, number);
}

static struct kvf_space *make(struct kvf_spaces *spaces, const char *text, uint64_t hash)
{
    uint32_t number;
    kvf_assert(kvf_namespace_is_valid(text));
    struct kvf_tenant *tenant = kvf_tenants_enter(spaces->tenants, text);
    if (tenant == NULL)
        return NULL;
    if (!kvf_slabs_take(&spaces->memory, &number)) {
        kvf_tenants_leave(spaces->tenants, tenant);
        return NULL;
    }
    struct kvf_space *space = kvf_spaces_at(spaces, number);
    *space = (struct kvf_space){.tenant = tenant, .number = number};
    strcpy(space->text, text);
    kvf_table_insert(&spaces->names, &space->node, hash);
    return space;
}

struct kvf_space *kvf_spaces_enter(struct kvf_spaces *spaces, const char *text)
{
    uint64_t hash = kvf_hash(spaces->seed, text, strlen(text));
    struct kvf_space *space = find(spaces, text, hash);
    if (space == NULL)
        space = make(spaces, text, hash);
    if (space != NULL)
        space->blocks++;
    return space;
}

void kvf_spaces_leave(struct kvf_spaces *spaces, struct kvf_space *space)
{
    kvf_assert(space->blocks > 0);
    if (--space->blocks > 0)
        return;
    kvf_table_remove(&spaces->names, &space->node);
    kvf_tenants_leave(spaces->tenants, space->tenant);
    kvf_slabs_give(&spaces->memory, space->number);
}

uint64_t kvf_spaces_bytes(const struct kvf_spaces *spaces)
{
    return kvf_slabs_bytes(&spaces->memory) + kvf_table_bytes(&spaces->names);
}
