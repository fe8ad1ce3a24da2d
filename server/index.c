/* The index, in four parts: looking, entries and their pins, folding, all of them. index_state.h has the map. */
#include "server/index_state.h"

#include <stdlib.h>
#include <sys/random.h>

#define FAILURES_MAX 3 /* reads of a record in a row: then it is given up */

/* ---- looking ---- */

uint64_t index_block_hash(const struct kvf_index *index, const struct kvf_space *space,
                          const struct kvf_key *key)
{
    return kvf_hash(index->seed + space->number, key->bytes, key->length);
}

struct block_name {
    const struct kvf_space *space;
    const struct kvf_key *key;
};

static bool same_block(const struct kvf_table_node *node, const void *name)
{
    const struct kvf_entry *entry = (const struct kvf_entry *)(const void *)node;
    const struct block_name *wanted = name;
    return entry->space == wanted->space && kvf_key_equal(&entry->key, wanted->key);
}

struct kvf_location index_location_of(const struct kvf_cold_block *block)
{
    const struct segment *segment = index_stake_of(block->list)->segment;
    return (struct kvf_location){.drive = segment->drive,
                                 .segment = segment->number,
                                 .sequence = segment->sequence,
                                 .offset = block->page * KVF_PAGE};
}

static void tell_entry(struct kvf_entry *entry, struct kvf_found *found)
{
    *found = (struct kvf_found){
        .entry = entry,
        .state = entry->state,
        .generation = entry->generation,
        .length = entry->length,
        .crc32c = entry->crc32c,
        .resident = entry->resident,
        .hot = entry->hot,
        .on_ssd = entry->on_ssd,
        .location = entry->location,
        .record = KVF_COLD_NONE,
    };
}

void index_tell_record(const struct kvf_index *index, uint32_t record, struct kvf_found *found)
{
    struct kvf_cold_block block;
    kvf_cold_get(index->cold, record, &block);
    *found = (struct kvf_found){
        .state = KVF_ENTRY_READY,
        .generation = block.generation,
        .length = block.length,
        .crc32c = block.crc32c,
        .hot = block.hot,
        .on_ssd = true,
        .location = index_location_of(&block),
        .record = record,
    };
}

bool kvf_index_find(const struct kvf_index *index, const char *ns, const struct kvf_key *key,
                    struct kvf_found *found)
{
    const struct kvf_space *space = kvf_spaces_find(&index->spaces, ns);
    if (space == NULL)
        return false;
    struct block_name name = {space, key};
    uint64_t hash = index_block_hash(index, space, key);
    struct kvf_table_node *node = kvf_table_find(&index->entries, hash, same_block, &name);
    uint32_t record = KVF_COLD_NONE;
    if (node == NULL) {
        record = kvf_cold_find(index->cold, hash, space->number, key);
        if (record == KVF_COLD_NONE)
            return false;
        index_tell_record(index, record, found);
    } else {
        tell_entry(kvf_container(node, struct kvf_entry, node), found);
    }
    found->hash = hash;
    return true;
}

/* ---- entries and pins ---- */

static void count_pinned(struct kvf_index *index, struct kvf_entry *entry)
{
    uint64_t now = entry->pins > 0 ? entry->extent.bytes : 0;
    index->pinned_bytes += now - entry->pinned_bytes;
    entry->pinned_bytes = now;
}

void index_free_extent(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry->extent.bytes == 0)
        return;
    index_uncache(index, entry);
    kvf_tenants_give(&index->tenants, entry->space->tenant, KVF_SHARE_DRAM, entry->extent.bytes);
    kvf_pool_free(index->options.pool, &entry->extent);
    entry->resident = entry->verified = false;
    count_pinned(index, entry);
    index->options.freed(index->options.context);
}

static void free_entry(struct kvf_index *index, struct kvf_entry *entry)
{
    kvf_assert(entry->pins == 0 && !entry->linked && entry->load == NULL);
    index_free_extent(index, entry);
    index_leave_ssd(index, entry);
    kvf_spaces_leave(&index->spaces, entry->space);
    free(entry);
    index->entry_count--;
}

/* Nobody pins it: is it worth keeping, and where? */
static void settle_unpinned(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry->resident && entry->linked)
        index_cache(index, entry);
    else
        (void)index_fold(index, entry);
}

static void tell_watchers(struct kvf_entry *entry)
{
    struct kvf_list told;
    kvf_list_init(&told);
    kvf_list_splice_back(&told, &entry->watches);
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&told)) != NULL) {
        struct kvf_entry_watch *watch = kvf_container(node, struct kvf_entry_watch, node);
        watch->settled(watch);
    }
}

/* Linked, without a pin. Its space counts it already. NULL: no memory. */
static struct kvf_entry *make_entry(struct kvf_index *index, struct kvf_space *space, uint64_t hash,
                                    const struct kvf_key *key, uint64_t length)
{
    struct kvf_entry *entry = calloc(1, sizeof(*entry));
    if (entry == NULL)
        return NULL;
    *entry = (struct kvf_entry){.space = space, .key = *key, .linked = true, .length = length};
    kvf_list_init(&entry->cache_node);
    kvf_list_init(&entry->segment_node);
    kvf_list_init(&entry->watches);
    kvf_table_insert(&index->entries, &entry->node, hash);
    index->entry_count++;
    return entry;
}

struct kvf_entry *kvf_index_add(struct kvf_index *index, const char *ns, const struct kvf_key *key,
                                uint64_t length, enum kvf_entry_state state)
{
    struct kvf_found before;
    if (kvf_index_find(index, ns, key, &before)) {
        bool hides = state == KVF_ENTRY_PULLING;
        if (hides && before.entry != NULL && before.entry->on_ssd && !before.entry->resident)
            (void)index_fold(index, before.entry); /* somebody else may be reading it */
        else if (!hides || before.entry != NULL)
            kvf_index_forget(index, &before);
    }
    struct kvf_space *space = kvf_spaces_enter(&index->spaces, ns);
    if (space == NULL)
        return NULL;
    struct kvf_entry *entry =
        make_entry(index, space, index_block_hash(index, space, key), key, length);
    if (entry == NULL) {
        kvf_spaces_leave(&index->spaces, space);
        return NULL;
    }
    entry->state = state;
    entry->pins = 1;
    return entry;
}

void kvf_index_unlink(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry->linked) {
        entry->linked = false;
        kvf_table_remove(&index->entries, &entry->node);
        entry->pins++; /* a watcher may look at it */
        tell_watchers(entry);
        entry->pins--;
    }
    if (entry->pins == 0)
        free_entry(index, entry);
}

static void set_state(struct kvf_entry *entry, enum kvf_entry_state to)
{
    static const bool allowed[][KVF_ENTRY_READY + 1] = {
        [KVF_ENTRY_PENDING] = {[KVF_ENTRY_READY] = true},
        [KVF_ENTRY_PULLING] = {[KVF_ENTRY_READY] = true},
        [KVF_ENTRY_READY] = {false},
    };
    kvf_assert(allowed[entry->state][to]);
    entry->state = to;
}

void kvf_entry_ready(struct kvf_index *index, struct kvf_entry *entry, uint32_t crc32c)
{
    if (entry->state == KVF_ENTRY_PENDING)
        index_drop_hidden(index, entry); /* new content; what was pulled is the old one once more */
    set_state(entry, KVF_ENTRY_READY);
    entry->crc32c = crc32c;
    entry->resident = entry->verified = true;
    entry->generation = (struct kvf_generation){.epoch = index->options.boot_epoch,
                                                .counter = ++index->next_generation};
    tell_watchers(entry);
}

void kvf_entry_pin(struct kvf_index *index, struct kvf_entry *entry)
{
    index_uncache(index, entry);
    entry->pins++;
    count_pinned(index, entry);
}

void kvf_entry_unpin(struct kvf_index *index, struct kvf_entry *entry)
{
    kvf_assert(entry->pins > 0);
    entry->pins--;
    count_pinned(index, entry);
    if (entry->pins == 0)
        settle_unpinned(index, entry);
}

void kvf_entry_give_extent(struct kvf_index *index, struct kvf_entry *entry,
                           struct kvf_extent *extent)
{
    kvf_assert(entry->extent.bytes == 0 && entry->pins > 0);
    entry->extent = *extent;
    *extent = (struct kvf_extent){0};
    kvf_tenants_take(&index->tenants, entry->space->tenant, KVF_SHARE_DRAM, entry->extent.bytes);
    count_pinned(index, entry);
}

void kvf_entry_drop_extent(struct kvf_index *index, struct kvf_entry *entry)
{
    kvf_assert(entry->pins > 0);
    index_free_extent(index, entry);
}

void kvf_entry_watch(struct kvf_entry *entry, struct kvf_entry_watch *watch)
{
    kvf_list_push_back(&entry->watches, &watch->node);
}

void kvf_entry_unwatch(struct kvf_entry_watch *watch)
{
    kvf_list_remove(&watch->node);
}

/* ---- folding ---- */

/* The namespace counts it already. False: no memory. */
bool index_add_record(struct kvf_index *index, struct kvf_cold_block *block, uint64_t hash,
                      struct kvf_location where)
{
    struct kvf_space *space = kvf_spaces_at(&index->spaces, block->space);
    struct kvf_stake *stake =
        index_stake(index, index_segment_of(index, where.drive, where.segment), space->tenant);
    if (stake == NULL)
        return false;
    block->list = &stake->records;
    block->page = (uint32_t)(where.offset / KVF_PAGE);
    bool added = kvf_cold_add(index->cold, hash, block);
    if (added)
        index_stake_took(index, stake, block->length);
    else
        index_stake_lost(index, stake, 0);
    return added;
}

void index_remove_record(struct kvf_index *index, uint32_t record)
{
    struct kvf_cold_block block;
    kvf_cold_get(index->cold, record, &block);
    kvf_cold_remove(index->cold, record);
    index_stake_lost(index, index_stake_of(block.list), block.length);
    kvf_spaces_leave(&index->spaces, kvf_spaces_at(&index->spaces, block.space));
}

/* A linked entry may hide a record of its key, see kvf_index_recovered: that goes. */
void index_drop_hidden(struct kvf_index *index, const struct kvf_entry *entry)
{
    uint32_t record =
        kvf_cold_find(index->cold, entry->node.hash, entry->space->number, &entry->key);
    if (entry->linked && record != KVF_COLD_NONE)
        index_remove_record(index, record);
}

static bool record_entry(struct kvf_index *index, const struct kvf_entry *entry)
{
    struct kvf_cold_block block = {
        .key = entry->key,
        .space = entry->space->number,
        .generation = entry->generation,
        .length = (uint32_t)entry->length,
        .crc32c = entry->crc32c,
        .hot = entry->hot,
        .pulled = entry->pulled,
        .sifted = entry->sifted,
        .failures = entry->failures,
    };
    return index_add_record(index, &block, entry->node.hash, entry->location);
}

/* An entry that nothing needs goes; where it lies on SSD and can be found, a record stays. Without
 * memory for that it is a miss from now on, which is better than no daemon. */
bool index_fold(struct kvf_index *index, struct kvf_entry *entry)
{
    bool stays = entry->linked && entry->on_ssd && record_entry(index, entry);
    if (stays)
        entry->space->blocks++;
    kvf_index_unlink(index, entry);
    return stays;
}

bool kvf_entry_not_read(struct kvf_index *index, struct kvf_entry *entry)
{
    kvf_assert(entry->pins > 0 && !entry->resident);
    if (!entry->linked)
        return true; /* it was gone before, or its record lies in its place already */
    if (entry->on_ssd && ++entry->failures < FAILURES_MAX)
        return index_fold(index, entry);
    kvf_index_unlink(index, entry);
    return false;
}

static struct kvf_entry *unfold(struct kvf_index *index, uint32_t record, uint64_t hash)
{
    struct kvf_cold_block block;
    kvf_cold_get(index->cold, record, &block);
    struct kvf_space *space = kvf_spaces_at(&index->spaces, block.space);
    struct kvf_entry *entry = make_entry(index, space, hash, &block.key, block.length);
    if (entry == NULL)
        return NULL;
    kvf_cold_remove(index->cold, record);
    entry->state = KVF_ENTRY_READY;
    entry->generation = block.generation;
    entry->crc32c = block.crc32c;
    entry->hot = block.hot;
    entry->pulled = block.pulled;
    entry->sifted = block.sifted;
    entry->failures = block.failures;
    entry->on_ssd = true;
    entry->location = index_location_of(&block);
    entry->stake = index_stake_of(block.list);
    index_line_up(entry);
    return entry;
}

struct kvf_entry *kvf_index_pin(struct kvf_index *index, const struct kvf_found *found)
{
    struct kvf_entry *entry = found->entry;
    if (entry == NULL)
        entry = unfold(index, found->record, found->hash);
    if (entry == NULL)
        return NULL;
    kvf_entry_pin(index, entry);
    entry->hot = entry->hot || entry->state == KVF_ENTRY_READY;
    return entry;
}

void kvf_index_forget(struct kvf_index *index, const struct kvf_found *found)
{
    if (found->entry != NULL) {
        index_drop_hidden(index, found->entry);
        kvf_index_unlink(index, found->entry);
    } else {
        index_remove_record(index, found->record);
    }
}

/* ---- all of them ---- */

void kvf_index_each(struct kvf_index *index, void (*each)(void *context, struct kvf_entry *entry),
                    void *context)
{
    struct kvf_table_node *node = NULL;
    while ((node = kvf_table_next(&index->entries, node)) != NULL)
        each(context, kvf_container(node, struct kvf_entry, node));
}

/* ---- life ---- */

void kvf_index_get_stats(const struct kvf_index *index, struct kvf_index_stats *stats)
{
    *stats = (struct kvf_index_stats){
        .blocks = index->entry_count + kvf_cold_count(index->cold),
        .entries = index->entry_count,
        .bytes = sizeof(*index) + kvf_cold_bytes(index->cold) + kvf_spaces_bytes(&index->spaces) +
                 index->entry_count * sizeof(struct kvf_entry) + kvf_table_bytes(&index->entries) +
                 index->segment_count * sizeof(struct segment) +
                 index->stakes.count * sizeof(struct kvf_stake) + kvf_table_bytes(&index->stakes),
        .evicted_blocks = index->evicted_blocks,
        .pinned_bytes = index->pinned_bytes,
        .clean_bytes = index->clean_bytes,
    };
}

/* What may be promised of the SSD: what can be carried over of each segment, but for two that are kept free. However
 * much of that is filled, and wherever it lies, there is a segment then that can be given back without loss. */
static struct kvf_status make_tenants(struct kvf_index *index)
{
    const struct kvf_store *store = index->options.store;
    struct kvf_tenants *tenants = &index->tenants;
    tenants->acl = index->options.acl;
    tenants->all_bytes[KVF_SHARE_DRAM] = tenants->safe_bytes[KVF_SHARE_DRAM] =
        kvf_pool_bytes(index->options.pool);
    for (size_t d = 0; store != NULL && d < kvf_store_drive_count(store); d++) {
        struct kvf_drive_stats drive;
        kvf_store_stats(store, d, &drive);
        tenants->all_bytes[KVF_SHARE_SSD] += drive.capacity_bytes;
        tenants->safe_bytes[KVF_SHARE_SSD] +=
            kvf_store_carry_bytes(store, d) * (kvf_store_segment_count(store, d) - 2);
    }
    return kvf_tenants_init(tenants, index->seed);
}

struct kvf_status kvf_index_create(const struct kvf_index_options *options, struct kvf_index **give)
{
    struct kvf_index *index = calloc(1, sizeof(*index));
    if (index == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    index->options = *options;
    kvf_cache_init(&index->cache);
    (void)!getrandom(&index->seed, sizeof(index->seed), 0);
    struct kvf_status status = kvf_spaces_init(&index->spaces, &index->tenants, index->seed);
    if (kvf_is_ok(status))
        status = make_tenants(index);
    if (kvf_is_ok(status))
        status = kvf_table_init(&index->entries);
    if (kvf_is_ok(status))
        status = index_make_segments(index);
    if (!kvf_is_ok(status))
        kvf_index_destroy(index, true);
    else
        *give = index;
    return status;
}

/* By unlinking, not folding: what only lies on SSD needs no record any more. */
static void unlink_all(struct kvf_index *index)
{
    struct kvf_table_node *node = kvf_table_next(&index->entries, NULL);
    while (node != NULL) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, node);
        node = kvf_table_next(&index->entries, node);
        kvf_assert(entry->pins == 0);
        kvf_index_unlink(index, entry);
    }
}

void kvf_index_destroy(struct kvf_index *index, bool abandon)
{
    if (index == NULL)
        return;
    if (!abandon)
        unlink_all(index);
    index_free_stakes(index);
    kvf_cold_destroy(index->cold);
    free(index->segments);
    free(index->first_segments);
    kvf_table_fini(&index->entries);
    kvf_spaces_fini(&index->spaces);
    kvf_tenants_fini(&index->tenants);
    free(index);
}
