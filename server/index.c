/* The index, in five parts: looking, entries and their pins, folding, the cache, segments. */
#include "server/index.h"

#include "server/cold.h"

#include <stdlib.h>
#include <sys/random.h>

struct segment {
    struct kvf_list entries; /* entry->segment_node; what has no entry is in `cold` */
    uint32_t drive, number;
    uint64_t sequence;  /* of the filling that they are of; no older one is believed */
    uint64_t reads;     /* that hold it */
    uint64_t reclaimed; /* the sequence to free when the last read ends; 0: not asked for */
};

struct kvf_index {
    struct kvf_index_options options;
    struct kvf_spaces spaces;
    struct kvf_table entries; /* kvf_entry, linked ones */
    struct kvf_cold *cold;    /* what lies only on SSD */
    uint64_t seed;
    uint64_t next_generation;
    struct kvf_list cached_pulled; /* coldest first; goes before `cached` */
    struct kvf_list cached;
    struct segment *segments; /* of all drives, one drive after the other */
    uint32_t segment_count;
    uint32_t *first_segments; /* by drive, and the end */
    uint32_t drive_count;
    uint64_t entry_count; /* unlinked ones too */
    uint64_t pinned_bytes;
    uint64_t clean_bytes;
};

/* ---- looking ---- */

static uint64_t block_hash(const struct kvf_index *index, const struct kvf_space *space,
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

static struct kvf_location location_of(const struct kvf_index *index,
                                       const struct kvf_cold_block *block)
{
    const struct segment *segment = &index->segments[block->segment];
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

static void tell_record(const struct kvf_index *index, uint32_t record, struct kvf_found *found)
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
        .location = location_of(index, &block),
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
    uint64_t hash = block_hash(index, space, key);
    struct kvf_table_node *node = kvf_table_find(&index->entries, hash, same_block, &name);
    uint32_t record = KVF_COLD_NONE;
    if (node == NULL) {
        record = kvf_cold_find(index->cold, hash, space->number, key);
        if (record == KVF_COLD_NONE)
            return false;
        tell_record(index, record, found);
    } else {
        tell_entry(kvf_container(node, struct kvf_entry, node), found);
    }
    found->hash = hash;
    return true;
}

/* ---- entries and pins ---- */

static void uncache(struct kvf_index *index, struct kvf_entry *entry)
{
    if (kvf_list_is_empty(&entry->cache_node))
        return;
    kvf_list_remove(&entry->cache_node);
    index->clean_bytes -= entry->extent.bytes;
}

static void count_pinned(struct kvf_index *index, struct kvf_entry *entry)
{
    uint64_t now = entry->pins > 0 ? entry->extent.bytes : 0;
    index->pinned_bytes += now - entry->pinned_bytes;
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
    kvf_spaces_leave(&index->spaces, entry->space);
    free(entry);
    index->entry_count--;
}

static void fold(struct kvf_index *index, struct kvf_entry *entry);
static void drop_hidden(struct kvf_index *index, const struct kvf_entry *entry);

/* Nobody pins it: is it worth keeping, and where? */
static void settle_unpinned(struct kvf_index *index, struct kvf_entry *entry)
{
    if (!entry->resident || !entry->linked) {
        fold(index, entry);
        return;
    }
    kvf_list_push_back(entry->pulled ? &index->cached_pulled : &index->cached, &entry->cache_node);
    index->clean_bytes += entry->extent.bytes;
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
    if (kvf_index_find(index, ns, key, &before))
        kvf_index_forget(index, &before);
    struct kvf_space *space = kvf_spaces_enter(&index->spaces, ns);
    if (space == NULL)
        return NULL;
    struct kvf_entry *entry = make_entry(index, space, block_hash(index, space, key), key, length);
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
        drop_hidden(index, entry); /* new content; what was pulled is the old one once more */
    set_state(entry, KVF_ENTRY_READY);
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

/* ---- folding ---- */

static struct segment *segment_of(struct kvf_index *index, uint32_t drive, uint32_t segment)
{
    kvf_assert(drive < index->drive_count);
    uint32_t at = index->first_segments[drive] + segment;
    kvf_assert(at < index->first_segments[drive + 1]);
    return &index->segments[at];
}

static uint32_t number_of(struct kvf_index *index, struct kvf_location where)
{
    return (uint32_t)(segment_of(index, where.drive, where.segment) - index->segments);
}

/* The namespace counts it already. False: no memory. */
static bool add_record(struct kvf_index *index, struct kvf_cold_block *block, uint64_t hash,
                       struct kvf_location where)
{
    block->segment = number_of(index, where);
    block->page = (uint32_t)(where.offset / KVF_PAGE);
    return kvf_cold_add(index->cold, hash, block);
}

static void remove_record(struct kvf_index *index, uint32_t record)
{
    struct kvf_cold_block block;
    kvf_cold_get(index->cold, record, &block);
    kvf_cold_remove(index->cold, record);
    kvf_spaces_leave(&index->spaces, kvf_spaces_at(&index->spaces, block.space));
}

/* A linked entry may hide a record of its key, see kvf_index_recovered: that goes. */
static void drop_hidden(struct kvf_index *index, const struct kvf_entry *entry)
{
    uint32_t record =
        kvf_cold_find(index->cold, entry->node.hash, entry->space->number, &entry->key);
    if (entry->linked && record != KVF_COLD_NONE)
        remove_record(index, record);
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
    };
    return add_record(index, &block, entry->node.hash, entry->location);
}

/* An entry that nothing needs goes; where it lies on SSD and can be found, a record stays. Without
 * memory for that it is a miss from now on, which is better than no daemon. */
static void fold(struct kvf_index *index, struct kvf_entry *entry)
{
    if (entry->linked && entry->on_ssd && record_entry(index, entry))
        entry->space->blocks++;
    kvf_index_unlink(index, entry);
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
    entry->on_ssd = true;
    entry->location = location_of(index, &block);
    kvf_list_push_back(&index->segments[block.segment].entries, &entry->segment_node);
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
        drop_hidden(index, found->entry);
        kvf_index_unlink(index, found->entry);
    } else {
        remove_record(index, found->record);
    }
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
    kvf_assert(entry->extent.bytes > 0);
    *bytes += entry->extent.bytes;
    free_extent(index, entry);
    settle_unpinned(index, entry);
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
    while ((node = kvf_table_next(&index->entries, node)) != NULL)
        each(context, kvf_container(node, struct kvf_entry, node));
}

/* ---- segments ---- */

static void leave_segment(struct kvf_index *index, struct kvf_entry *entry)
{
    leave_ssd(entry);
    if (!entry->resident && entry->load == NULL)
        kvf_index_unlink(index, entry);
}

/* So many bytes are kept if it is hot; false: it is not to be. */
static bool keep(bool hot, uint64_t length, uint64_t *keep_bytes)
{
    uint64_t bytes = kvf_round_up_page(length);
    if (!hot || bytes > *keep_bytes)
        return false;
    *keep_bytes -= bytes;
    return true;
}

/* What lies in the segment is there no longer, but for hot blocks of up to keep_bytes. */
static void empty_segment(struct kvf_index *index, struct segment *segment, uint64_t keep_bytes)
{
    kvf_list_for_each_safe (node, &segment->entries) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, segment_node);
        if (keep(entry->hot && entry->linked, entry->length, &keep_bytes))
            entry->hot = false;
        else
            leave_segment(index, entry);
    }
    uint32_t record = kvf_cold_in_segment(index->cold, (uint32_t)(segment - index->segments));
    while (record != KVF_COLD_NONE) {
        struct kvf_cold_block block;
        uint32_t next = kvf_cold_next_in_segment(index->cold, record);
        kvf_cold_get(index->cold, record, &block);
        if (keep(block.hot, block.length, &keep_bytes))
            kvf_cold_cool(index->cold, record);
        else
            remove_record(index, record);
        record = next;
    }
}

static bool is_empty(const struct kvf_index *index, const struct segment *segment)
{
    uint32_t number = (uint32_t)(segment - index->segments);
    return kvf_list_is_empty(&segment->entries) &&
           kvf_cold_in_segment(index->cold, number) == KVF_COLD_NONE;
}

/* A record of this filling of the segment is there. False: that filling is not there any more. */
static bool enter_filling(struct kvf_index *index, struct kvf_location where)
{
    struct segment *segment = segment_of(index, where.drive, where.segment);
    if (where.sequence < segment->sequence || where.sequence <= segment->reclaimed)
        return false;
    if (where.sequence > segment->sequence)
        empty_segment(index, segment, 0);
    segment->sequence = where.sequence;
    return true;
}

static bool same_place(struct kvf_location a, struct kvf_location b)
{
    return a.drive == b.drive && a.segment == b.segment && a.sequence == b.sequence &&
           a.offset == b.offset;
}

static void move_entry(struct kvf_index *index, struct kvf_entry *entry,
                       const struct kvf_location *to)
{
    if (to == NULL || !enter_filling(index, *to)) {
        leave_segment(index, entry);
        return;
    }
    entry->location = *to;
    kvf_list_remove(&entry->segment_node);
    kvf_list_push_back(&segment_of(index, to->drive, to->segment)->entries, &entry->segment_node);
}

static void move_record(struct kvf_index *index, uint32_t record, const struct kvf_location *to)
{
    if (to == NULL || !enter_filling(index, *to))
        remove_record(index, record);
    else
        kvf_cold_move(index->cold, record, number_of(index, *to),
                      (uint32_t)(to->offset / KVF_PAGE));
}

/* An entry, or a record that an entry hides. */
void kvf_index_move(struct kvf_index *index, const struct kvf_record *record,
                    struct kvf_location from, const struct kvf_location *to)
{
    struct kvf_found found;
    if (!kvf_index_find(index, record->namespace, &record->key, &found))
        return;
    if (found.entry != NULL && found.on_ssd && same_place(found.location, from)) {
        move_entry(index, found.entry, to);
        return;
    }
    const struct kvf_space *space = kvf_spaces_find(&index->spaces, record->namespace);
    uint32_t cold = kvf_cold_find(index->cold, found.hash, space->number, &record->key);
    if (cold == KVF_COLD_NONE)
        return;
    tell_record(index, cold, &found);
    if (same_place(found.location, from))
        move_record(index, cold, to);
}

/* What a recovered record stands beside: an entry that hides it, for its bytes are being put or come from a source and
 * may go again without a trace. */
static bool hides(const struct kvf_entry *entry)
{
    return entry->state != KVF_ENTRY_READY || (entry->pulled && !entry->on_ssd);
}

/* Of two records of one key the newer generation counts; of one generation, the copy in the newer filling. */
static bool is_newer(const struct kvf_record *record, struct kvf_location where,
                     const struct kvf_found *than)
{
    if (!kvf_generation_equal(record->generation, than->generation))
        return kvf_generation_is_newer(record->generation, than->generation);
    return than->on_ssd && where.sequence > than->location.sequence;
}

/* Make way for the record. False: what is known is newer. */
static bool make_way(struct kvf_index *index, const struct kvf_record *record,
                     struct kvf_location where, uint64_t hash, uint32_t space)
{
    struct kvf_found before;
    if (kvf_index_find(index, record->namespace, &record->key, &before) && before.entry != NULL &&
        !hides(before.entry)) {
        if (!is_newer(record, where, &before))
            return false;
        kvf_index_forget(index, &before);
    }
    uint32_t cold = kvf_cold_find(index->cold, hash, space, &record->key);
    if (cold == KVF_COLD_NONE)
        return true;
    tell_record(index, cold, &before);
    if (!is_newer(record, where, &before))
        return false;
    remove_record(index, cold);
    return true;
}

void kvf_index_recovered(struct kvf_index *index, const struct kvf_record *record,
                         struct kvf_location location)
{
    struct kvf_space *space = kvf_spaces_enter(&index->spaces, record->namespace);
    if (space == NULL)
        return; /* a miss, as when folding */
    struct kvf_cold_block block = {
        .key = record->key,
        .space = space->number,
        .generation = record->generation,
        .length = (uint32_t)record->length,
        .crc32c = record->crc32c,
    };
    uint64_t hash = block_hash(index, space, &record->key);
    if (!make_way(index, record, location, hash, space->number) ||
        !enter_filling(index, location) || !add_record(index, &block, hash, location))
        kvf_spaces_leave(&index->spaces, space);
}

void kvf_entry_stored(struct kvf_index *index, struct kvf_entry *entry, struct kvf_location where)
{
    kvf_assert(!entry->on_ssd);
    entry->hot = false;
    if (!enter_filling(index, where))
        return;
    drop_hidden(index, entry);
    entry->on_ssd = true;
    entry->location = where;
    kvf_list_push_back(&segment_of(index, where.drive, where.segment)->entries,
                       &entry->segment_node);
}

static void free_if_done(struct kvf_index *index, uint32_t drive, uint32_t number)
{
    struct segment *segment = segment_of(index, drive, number);
    if (segment->reclaimed == 0 || segment->reads > 0 || !is_empty(index, segment))
        return;
    uint64_t sequence = segment->reclaimed;
    segment->reclaimed = 0;
    segment->sequence = sequence + 1; /* a record of it that is told of later is gone as well */
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

void kvf_index_reclaim(struct kvf_index *index, uint32_t drive, uint32_t number, uint64_t sequence,
                       uint64_t keep_bytes)
{
    struct segment *segment = segment_of(index, drive, number);
    segment->reclaimed = sequence;
    empty_segment(index, segment, keep_bytes);
    free_if_done(index, drive, number);
}

static struct segment *first_kept(struct kvf_index *index, uint32_t drive)
{
    struct segment *first = NULL;
    for (uint32_t i = index->first_segments[drive]; i < index->first_segments[drive + 1]; i++) {
        struct segment *segment = &index->segments[i];
        if (segment->reclaimed != 0 && !is_empty(index, segment) &&
            (first == NULL || segment->reclaimed < first->reclaimed))
            first = segment;
    }
    return first;
}

static struct kvf_kept kept_entry(const struct kvf_entry *entry)
{
    return (struct kvf_kept){
        .record = {.namespace = entry->space->text,
                   .key = entry->key,
                   .generation = entry->generation,
                   .length = entry->length,
                   .crc32c = entry->crc32c},
        .location = entry->location,
    };
}

static struct kvf_kept kept_record(const struct kvf_index *index, uint32_t link)
{
    struct kvf_cold_block block;
    kvf_cold_get(index->cold, link, &block);
    return (struct kvf_kept){
        .record = {.namespace = kvf_spaces_at(&index->spaces, block.space)->text,
                   .key = block.key,
                   .generation = block.generation,
                   .length = block.length,
                   .crc32c = block.crc32c},
        .location = location_of(index, &block),
    };
}

static size_t list_kept(const struct kvf_index *index, const struct segment *segment,
                        struct kvf_kept *kept, size_t max)
{
    size_t count = 0;
    kvf_list_for_each_safe (node, &segment->entries) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, segment_node);
        if (!entry->linked) /* since it was kept; a pin is all that it has */
            leave_ssd(entry);
        else if (count < max)
            kept[count++] = kept_entry(entry);
    }
    uint32_t link = kvf_cold_in_segment(index->cold, (uint32_t)(segment - index->segments));
    for (; link != KVF_COLD_NONE && count < max; link = kvf_cold_next_in_segment(index->cold, link))
        kept[count++] = kept_record(index, link);
    return count;
}

size_t kvf_index_kept(struct kvf_index *index, uint32_t drive, struct kvf_kept *kept, size_t max)
{
    struct segment *segment;
    while ((segment = first_kept(index, drive)) != NULL) {
        size_t count = list_kept(index, segment, kept, max);
        if (count > 0)
            return count;
        free_if_done(index, drive, segment->number);
    }
    return 0;
}

/* ---- life ---- */

void kvf_index_get_stats(const struct kvf_index *index, struct kvf_index_stats *stats)
{
    *stats = (struct kvf_index_stats){
        .blocks = index->entry_count + kvf_cold_count(index->cold),
        .entries = index->entry_count,
        .bytes = sizeof(*index) + kvf_cold_bytes(index->cold) + kvf_spaces_bytes(&index->spaces) +
                 index->entry_count * sizeof(struct kvf_entry) + kvf_table_bytes(&index->entries) +
                 index->segment_count * sizeof(struct segment),
        .pinned_bytes = index->pinned_bytes,
        .clean_bytes = index->clean_bytes,
    };
}

static struct kvf_status make_segments(struct kvf_index *index)
{
    const struct kvf_store *store = index->options.store;
    index->drive_count = store != NULL ? (uint32_t)kvf_store_drive_count(store) : 0;
    index->first_segments = calloc(index->drive_count + 1, sizeof(*index->first_segments));
    if (index->first_segments == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    for (uint32_t d = 0; d < index->drive_count; d++)
        index->first_segments[d + 1] =
            index->first_segments[d] + (uint32_t)kvf_store_segment_count(store, d);
    index->segment_count = index->first_segments[index->drive_count];
    index->segments = calloc(index->segment_count + 1, sizeof(*index->segments));
    if (index->segments == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    for (uint32_t d = 0; d < index->drive_count; d++)
        for (uint32_t s = index->first_segments[d]; s < index->first_segments[d + 1]; s++) {
            kvf_list_init(&index->segments[s].entries);
            index->segments[s].drive = d;
            index->segments[s].number = s - index->first_segments[d];
        }
    return kvf_cold_create(index->segment_count, &index->cold);
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
    struct kvf_status status = kvf_spaces_init(&index->spaces, index->seed);
    if (kvf_is_ok(status))
        status = kvf_table_init(&index->entries);
    if (kvf_is_ok(status))
        status = make_segments(index);
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
    kvf_cold_destroy(index->cold);
    free(index->segments);
    free(index->first_segments);
    kvf_table_fini(&index->entries);
    kvf_spaces_fini(&index->spaces);
    free(index);
}
