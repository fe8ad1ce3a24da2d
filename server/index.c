/* The index, in four parts: names, entries and their pins, the cache, segments. */
#include "server/index.h"

#include <stdlib.h>
#include <sys/random.h>

struct segment {
    struct kvf_list entries; /* entry->segment_node */
    uint64_t reads;          /* that hold it */
    uint64_t reclaimed;      /* the sequence to free when the last read ends; 0: not asked for */
};

struct drive {
    struct segment *segments;
    size_t count;
};

struct kvf_index {
    struct kvf_index_options options;
    struct kvf_table names;  /* kvf_space */
    struct kvf_table blocks; /* kvf_entry, linked ones */
    uint64_t seed;
    uint64_t next_space;
    uint64_t next_generation;
    struct kvf_list cached_pulled; /* coldest first; goes before `cached` */
    struct kvf_list cached;
    struct drive *drives;
    size_t drive_count;
    struct kvf_index_stats stats;
};

/* ---- names ---- */

static bool same_space(const struct kvf_table_node *node, const void *text)
{
    return strcmp(((const struct kvf_space *)(const void *)node)->text, text) == 0;
}

static struct kvf_space *find_space(const struct kvf_index *index, const char *ns)
{
    uint64_t hash = kvf_hash(index->seed, ns, strlen(ns));
    struct kvf_table_node *node = kvf_table_find(&index->names, hash, same_space, ns);
    return node != NULL ? kvf_container(node, struct kvf_space, node) : NULL;
}

static struct kvf_space *get_space(struct kvf_index *index, const char *ns)
{
    struct kvf_space *space = find_space(index, ns);
    if (space != NULL)
        return space;
    kvf_assert(kvf_namespace_is_valid(ns));
    space = calloc(1, sizeof(*space));
    if (space == NULL)
        return NULL;
    space->number = ++index->next_space;
    strcpy(space->text, ns);
    kvf_table_insert(&index->names, &space->node, kvf_hash(index->seed, ns, strlen(ns)));
    return space;
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

static uint64_t block_hash(const struct kvf_index *index, const struct kvf_space *space,
                           const struct kvf_key *key)
{
    return kvf_hash(index->seed + space->number, key->bytes, key->length);
}

struct kvf_entry *kvf_index_find(const struct kvf_index *index, const char *ns,
                                 const struct kvf_key *key)
{
    const struct kvf_space *space = find_space(index, ns);
    if (space == NULL)
        return NULL;
    struct block_name name = {space, key};
    struct kvf_table_node *node =
        kvf_table_find(&index->blocks, block_hash(index, space, key), same_block, &name);
    return node != NULL ? kvf_container(node, struct kvf_entry, node) : NULL;
}

/* ---- entries and pins ---- */

static void uncache(struct kvf_index *index, struct kvf_entry *entry)
{
    if (kvf_list_is_empty(&entry->cache_node))
        return;
    kvf_list_remove(&entry->cache_node);
    index->stats.clean_bytes -= entry->extent.bytes;
}

static void count_pinned(struct kvf_index *index, struct kvf_entry *entry)
{
    uint64_t now = entry->pins > 0 ? entry->extent.bytes : 0;
    index->stats.pinned_bytes += now - entry->pinned_bytes;
    entry->pinned_bytes = now;
}

static void free_extent(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry->extent.bytes == 0)
        return;
    uncache(index, entry);
    kvf_pool_free(index->options.pool, &entry->extent);
    entry->resident = entry->verified = false;
    count_pinned(index, entry);
    index->options.freed(index->options.context);
}

static void leave_ssd(struct kvf_entry *entry)
{
    entry->on_ssd = false;
    kvf_list_remove(&entry->segment_node);
}

static void free_entry(struct kvf_index *index, struct kvf_entry *entry)
{
    kvf_assert(entry->pins == 0 && !entry->linked && entry->load == NULL);
    free_extent(index, entry);
    leave_ssd(entry);
    if (--entry->space->entries == 0) {
        kvf_table_remove(&index->names, &entry->space->node);
        free(entry->space);
    }
    free(entry);
    index->stats.entries--;
}

/* Nobody pins it: is it worth keeping, and where? */
static void settle_unpinned(struct kvf_index *index, struct kvf_entry *entry)
{
    if (!entry->linked || (!entry->resident && !entry->on_ssd)) {
        kvf_index_unlink(index, entry);
        return;
    }
    if (!entry->resident)
        return;
    kvf_list_push_back(entry->pulled ? &index->cached_pulled : &index->cached, &entry->cache_node);
    index->stats.clean_bytes += entry->extent.bytes;
    index->options.freed(index->options.context);
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

struct kvf_entry *kvf_index_add(struct kvf_index *index, const char *ns, const struct kvf_key *key,
                                uint64_t length, enum kvf_entry_state state)
{
    struct kvf_entry *before = kvf_index_find(index, ns, key);
    if (before != NULL)
        kvf_index_unlink(index, before);
    struct kvf_space *space = get_space(index, ns);
    if (space == NULL)
        return NULL;
    struct kvf_entry *entry = calloc(1, sizeof(*entry));
    if (entry == NULL) {
        if (space->entries == 0) {
            kvf_table_remove(&index->names, &space->node);
            free(space);
        }
        return NULL;
    }
    space->entries++;
    *entry = (struct kvf_entry){
        .space = space, .key = *key, .state = state, .linked = true, .pins = 1, .length = length};
    kvf_list_init(&entry->cache_node);
    kvf_list_init(&entry->segment_node);
    kvf_list_init(&entry->watches);
    kvf_table_insert(&index->blocks, &entry->node, block_hash(index, space, key));
    index->stats.entries++;
    return entry;
}

void kvf_index_unlink(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry->linked) {
        entry->linked = false;
        kvf_table_remove(&index->blocks, &entry->node);
        entry->pins++; /* a watcher may look at it */
        tell_watchers(entry);
        entry->pins--;
    }
    if (entry->pins == 0)
        free_entry(index, entry);
}

void kvf_entry_ready(struct kvf_index *index, struct kvf_entry *entry, uint32_t crc32c)
{
    entry->state = KVF_ENTRY_READY;
    entry->crc32c = crc32c;
    entry->resident = entry->verified = true;
    entry->generation = (struct kvf_generation){.epoch = index->options.boot_epoch,
                                                .counter = ++index->next_generation};
    tell_watchers(entry);
}

void kvf_entry_pin(struct kvf_index *index, struct kvf_entry *entry)
{
    uncache(index, entry);
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
    count_pinned(index, entry);
}

void kvf_entry_drop_extent(struct kvf_index *index, struct kvf_entry *entry)
{
    kvf_assert(entry->pins > 0);
    free_extent(index, entry);
}

void kvf_entry_watch(struct kvf_entry *entry, struct kvf_entry_watch *watch)
{
    kvf_list_push_back(&entry->watches, &watch->node);
}

void kvf_entry_unwatch(struct kvf_entry_watch *watch)
{
    kvf_list_remove(&watch->node);
}

/* ---- the cache ---- */

/* Drops the coldest cached block from DRAM; false: nothing is cached. */
static bool evict_one(struct kvf_index *index, uint64_t *bytes)
{
    struct kvf_list *list =
        kvf_list_is_empty(&index->cached_pulled) ? &index->cached : &index->cached_pulled;
    if (kvf_list_is_empty(list))
        return false;
    struct kvf_entry *entry = kvf_container(list->next, struct kvf_entry, cache_node);
    *bytes += entry->extent.bytes;
    free_extent(index, entry);
    if (!entry->on_ssd)
        kvf_index_unlink(index, entry);
    return true;
}

struct kvf_status kvf_index_room(struct kvf_index *index, uint64_t bytes, struct kvf_extent *extent)
{
    uint64_t evicted = 0;
    for (;;) {
        struct kvf_status status = kvf_pool_alloc(index->options.pool, bytes, extent);
        if (kvf_is_ok(status) || !evict_one(index, &evicted))
            return status;
    }
}

void kvf_index_return_room(struct kvf_index *index, struct kvf_extent *extent)
{
    if (extent->bytes == 0)
        return;
    kvf_pool_free(index->options.pool, extent);
    index->options.freed(index->options.context);
}

void kvf_index_evict_all(struct kvf_index *index, uint64_t *blocks, uint64_t *bytes)
{
    while (evict_one(index, bytes))
        (*blocks)++;
}

void kvf_index_each(struct kvf_index *index, void (*each)(void *context, struct kvf_entry *entry),
                    void *context)
{
    struct kvf_table_node *node = NULL;
    while ((node = kvf_table_next(&index->blocks, node)) != NULL)
        each(context, kvf_container(node, struct kvf_entry, node));
}

/* ---- segments ---- */

static struct segment *segment_of(struct kvf_index *index, uint32_t drive, uint32_t segment)
{
    kvf_assert(drive < index->drive_count && segment < index->drives[drive].count);
    return &index->drives[drive].segments[segment];
}

void kvf_index_recovered(struct kvf_index *index, const struct kvf_record *record,
                         struct kvf_location location)
{
    struct kvf_entry *before = kvf_index_find(index, record->namespace, &record->key);
    if (before != NULL && !kvf_generation_is_newer(record->generation, before->generation))
        return;
    struct kvf_entry *entry =
        kvf_index_add(index, record->namespace, &record->key, record->length, KVF_ENTRY_READY);
    if (entry == NULL)
        return; /* a miss is better than no daemon */
    entry->state = KVF_ENTRY_READY;
    entry->generation = record->generation;
    entry->crc32c = record->crc32c;
    kvf_entry_stored(index, entry, location);
    kvf_entry_unpin(index, entry);
}

void kvf_entry_stored(struct kvf_index *index, struct kvf_entry *entry, struct kvf_location where)
{
    struct segment *segment = segment_of(index, where.drive, where.segment);
    kvf_assert(!entry->on_ssd);
    entry->on_ssd = true;
    entry->location = where;
    kvf_list_push_back(&segment->entries, &entry->segment_node);
}

static void free_if_done(struct kvf_index *index, uint32_t drive, uint32_t number)
{
    struct segment *segment = segment_of(index, drive, number);
    if (segment->reclaimed == 0 || segment->reads > 0)
        return;
    uint64_t sequence = segment->reclaimed;
    segment->reclaimed = 0;
    kvf_store_free(index->options.store, drive, number, sequence);
}

void kvf_index_hold_segment(struct kvf_index *index, struct kvf_location where)
{
    segment_of(index, where.drive, where.segment)->reads++;
}

void kvf_index_unhold_segment(struct kvf_index *index, struct kvf_location where)
{
    struct segment *segment = segment_of(index, where.drive, where.segment);
    kvf_assert(segment->reads > 0);
    segment->reads--;
    free_if_done(index, where.drive, where.segment);
}

void kvf_index_reclaim(struct kvf_index *index, uint32_t drive, uint32_t number, uint64_t sequence)
{
    struct segment *segment = segment_of(index, drive, number);
    while (!kvf_list_is_empty(&segment->entries)) {
        struct kvf_entry *entry =
            kvf_container(segment->entries.next, struct kvf_entry, segment_node);
        leave_ssd(entry);
        if (!entry->resident && entry->load == NULL)
            kvf_index_unlink(index, entry);
    }
    segment->reclaimed = sequence;
    free_if_done(index, drive, number);
}

/* ---- life ---- */

void kvf_index_get_stats(const struct kvf_index *index, struct kvf_index_stats *stats)
{
    *stats = index->stats;
}

static struct kvf_status make_drives(struct kvf_index *index)
{
    if (index->options.store == NULL)
        return kvf_ok();
    index->drive_count = kvf_store_drive_count(index->options.store);
    index->drives = calloc(index->drive_count, sizeof(*index->drives));
    if (index->drives == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    for (size_t d = 0; d < index->drive_count; d++) {
        struct drive *drive = &index->drives[d];
        drive->count = kvf_store_segment_count(index->options.store, d);
        drive->segments = calloc(drive->count, sizeof(*drive->segments));
        if (drive->segments == NULL)
            return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
        for (size_t s = 0; s < drive->count; s++)
            kvf_list_init(&drive->segments[s].entries);
    }
    return kvf_ok();
}

struct kvf_status kvf_index_create(const struct kvf_index_options *options, struct kvf_index **give)
{
    struct kvf_index *index = calloc(1, sizeof(*index));
    if (index == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    index->options = *options;
    kvf_list_init(&index->cached);
    kvf_list_init(&index->cached_pulled);
    (void)!getrandom(&index->seed, sizeof(index->seed), 0);
    struct kvf_status status = kvf_table_init(&index->names);
    if (kvf_is_ok(status))
        status = kvf_table_init(&index->blocks);
    if (kvf_is_ok(status))
        status = make_drives(index);
    if (!kvf_is_ok(status))
        kvf_index_destroy(index, false);
    else
        *give = index;
    return status;
}

void kvf_index_destroy(struct kvf_index *index, bool abandon)
{
    if (index == NULL)
        return;
    struct kvf_table_node *node =
        index->blocks.slots != NULL && !abandon ? kvf_table_next(&index->blocks, NULL) : NULL;
    while (node != NULL) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, node);
        node = kvf_table_next(&index->blocks, node);
        kvf_assert(entry->pins == 0);
        kvf_index_unlink(index, entry);
    }
    for (size_t d = 0; index->drives != NULL && d < index->drive_count; d++)
        free(index->drives[d].segments);
    free(index->drives);
    kvf_table_fini(&index->blocks);
    kvf_table_fini(&index->names);
    free(index);
}
