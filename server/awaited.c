#include "server/awaited.h"

#include <sys/random.h>

static uint64_t hash_of(const struct kvf_awaited *awaited, const char *ns,
                        const struct kvf_key *key)
{
    return kvf_hash(kvf_hash(awaited->seed, ns, strlen(ns)), key->bytes, key->length);
}

struct name {
    const char *ns;
    const struct kvf_key *key;
};

static bool same(const struct kvf_table_node *node, const void *name)
{
    const struct kvf_await *await =
        kvf_container((struct kvf_table_node *)(uintptr_t)node, struct kvf_await, node);
    const struct name *wanted = name;
    return strcmp(await->ns, wanted->ns) == 0 && kvf_key_equal(await->key, wanted->key);
}

struct kvf_status kvf_awaited_init(struct kvf_awaited *awaited, const struct kvf_index *index)
{
    *awaited = (struct kvf_awaited){.index = index};
    kvf_list_init(&awaited->all);
    (void)!getrandom(&awaited->seed, sizeof(awaited->seed), 0);
    return kvf_table_init(&awaited->keys);
}

void kvf_awaited_fini(struct kvf_awaited *awaited)
{
    kvf_assert(awaited->keys.count == 0);
    kvf_table_fini(&awaited->keys);
}

void kvf_awaited_open(struct kvf_awaited *awaited)
{
    awaited->open = true;
}

/* Who is settled may end others that wait, and they leave: each look begins anew. */
static void settle(struct kvf_awaited *awaited, struct kvf_await *await)
{
    kvf_awaited_remove(awaited, await);
    await->settled(await);
}

void kvf_awaited_close(struct kvf_awaited *awaited)
{
    awaited->open = false;
    while (!kvf_list_is_empty(&awaited->all))
        settle(awaited, kvf_container(awaited->all.next, struct kvf_await, list));
}

void kvf_awaited_add(struct kvf_awaited *awaited, struct kvf_await *await)
{
    kvf_assert(awaited->open);
    kvf_list_push_back(&awaited->all, &await->list);
    kvf_table_insert(&awaited->keys, &await->node, hash_of(awaited, await->ns, await->key));
}

void kvf_awaited_remove(struct kvf_awaited *awaited, struct kvf_await *await)
{
    kvf_list_remove(&await->list);
    kvf_table_remove(&awaited->keys, &await->node);
}

/* What is being pulled may never be here. */
static bool is_known(const struct kvf_awaited *awaited, const char *ns, const struct kvf_key *key)
{
    struct kvf_found found;
    return kvf_index_find(awaited->index, ns, key, &found) && found.state != KVF_ENTRY_PULLING;
}

void kvf_awaited_look(struct kvf_awaited *awaited, const char *ns, const struct kvf_key *key)
{
    if (awaited == NULL || awaited->keys.count == 0)
        return;
    struct name name = {ns, key};
    uint64_t hash = hash_of(awaited, ns, key);
    struct kvf_table_node *node;
    while (is_known(awaited, ns, key) &&
           (node = kvf_table_find(&awaited->keys, hash, same, &name)) != NULL)
        settle(awaited, kvf_container(node, struct kvf_await, node));
}
