/* What lies in which segment: finding it, storing and recovering, giving segments back. */
#include "server/index_state.h"

#include <stdlib.h>

struct segment *index_segment_of(struct kvf_index *index, uint32_t drive, uint32_t segment)
{
    kvf_assert(drive < index->drive_count);
    uint32_t at = index->first_segments[drive] + segment;
    kvf_assert(at < index->first_segments[drive + 1]);
    return &index->segments[at];
}

struct segment *index_segment_of_list(struct kvf_cold_list *records)
{
    return kvf_container(records, struct segment, records);
}

void index_leave_ssd(struct kvf_entry *entry)
{
    entry->on_ssd = false;
    kvf_list_remove(&entry->segment_node);
}

static void leave_segment(struct kvf_index *index, struct kvf_entry *entry)
{
    index_leave_ssd(entry);
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
    uint32_t record = segment->records.first;
    while (record != KVF_COLD_NONE) {
        struct kvf_cold_block block;
        uint32_t next = kvf_cold_next_in_list(index->cold, record);
        kvf_cold_get(index->cold, record, &block);
        if (keep(block.hot, block.length, &keep_bytes))
            kvf_cold_cool(index->cold, record);
        else
            index_remove_record(index, record);
        record = next;
    }
}

static bool is_empty(const struct segment *segment)
{
    return kvf_list_is_empty(&segment->entries) && segment->records.first == KVF_COLD_NONE;
}

/* A record of this filling of the segment is there. False: that filling is not there any more. */
static bool enter_filling(struct kvf_index *index, struct kvf_location where)
{
    struct segment *segment = index_segment_of(index, where.drive, where.segment);
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
    kvf_list_push_back(&index_segment_of(index, to->drive, to->segment)->entries,
                       &entry->segment_node);
}

static void move_record(struct kvf_index *index, uint32_t record, const struct kvf_location *to)
{
    if (to == NULL || !enter_filling(index, *to))
        index_remove_record(index, record);
    else
        kvf_cold_move(index->cold, record,
                      &index_segment_of(index, to->drive, to->segment)->records,
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
    index_tell_record(index, cold, &found);
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
    index_tell_record(index, cold, &before);
    if (!is_newer(record, where, &before))
        return false;
    index_remove_record(index, cold);
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
    uint64_t hash = index_block_hash(index, space, &record->key);
    if (!make_way(index, record, location, hash, space->number) ||
        !enter_filling(index, location) || !index_add_record(index, &block, hash, location))
        kvf_spaces_leave(&index->spaces, space);
}

void kvf_entry_stored(struct kvf_index *index, struct kvf_entry *entry, struct kvf_location where)
{
    kvf_assert(!entry->on_ssd);
    entry->hot = false;
    if (!enter_filling(index, where))
        return;
    index_drop_hidden(index, entry);
    entry->on_ssd = true;
    entry->location = where;
    kvf_list_push_back(&index_segment_of(index, where.drive, where.segment)->entries,
                       &entry->segment_node);
}

static void free_if_done(struct kvf_index *index, uint32_t drive, uint32_t number)
{
    struct segment *segment = index_segment_of(index, drive, number);
    if (segment->reclaimed == 0 || segment->reads > 0 || !is_empty(segment))
        return;
    uint64_t sequence = segment->reclaimed;
    segment->reclaimed = 0;
    segment->sequence = sequence + 1; /* a record of it that is told of later is gone as well */
    kvf_store_free(index->options.store, drive, number, sequence);
}

void kvf_index_hold_segment(struct kvf_index *index, struct kvf_location where)
{
    index_segment_of(index, where.drive, where.segment)->reads++;
}

void kvf_index_unhold_segment(struct kvf_index *index, struct kvf_location where)
{
    struct segment *segment = index_segment_of(index, where.drive, where.segment);
    kvf_assert(segment->reads > 0);
    segment->reads--;
    free_if_done(index, where.drive, where.segment);
}

void kvf_index_reclaim(struct kvf_index *index, uint32_t drive, uint32_t number, uint64_t sequence,
                       uint64_t keep_bytes)
{
    struct segment *segment = index_segment_of(index, drive, number);
    segment->reclaimed = sequence;
    empty_segment(index, segment, keep_bytes);
    free_if_done(index, drive, number);
}

/* What was kept may have gone by itself meanwhile: forgotten, put anew, failed to load. */
static void free_emptied(struct kvf_index *index, uint32_t drive)
{
    uint32_t first = index->first_segments[drive];
    for (uint32_t i = first; i < index->first_segments[drive + 1]; i++)
        free_if_done(index, drive, i - first);
}

static struct segment *first_kept(struct kvf_index *index, uint32_t drive)
{
    struct segment *first = NULL;
    for (uint32_t i = index->first_segments[drive]; i < index->first_segments[drive + 1]; i++) {
        struct segment *segment = &index->segments[i];
        if (segment->reclaimed != 0 && !is_empty(segment) &&
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
        .location = index_location_of(&block),
    };
}

static size_t list_kept(const struct kvf_index *index, const struct segment *segment,
                        struct kvf_kept *kept, size_t max)
{
    size_t count = 0;
    kvf_list_for_each_safe (node, &segment->entries) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, segment_node);
        if (!entry->linked) /* since it was kept; a pin is all that it has */
            index_leave_ssd(entry);
        else if (count < max)
            kept[count++] = kept_entry(entry);
    }
    uint32_t link = segment->records.first;
    for (; link != KVF_COLD_NONE && count < max; link = kvf_cold_next_in_list(index->cold, link))
        kept[count++] = kept_record(index, link);
    return count;
}

size_t kvf_index_kept(struct kvf_index *index, uint32_t drive, struct kvf_kept *kept, size_t max)
{
    struct segment *segment;
    free_emptied(index, drive);
    while ((segment = first_kept(index, drive)) != NULL) {
        size_t count = list_kept(index, segment, kept, max);
        if (count > 0)
            return count;
        free_if_done(index, drive, segment->number);
    }
    return 0;
}

struct kvf_status index_make_segments(struct kvf_index *index)
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
    KVF_TRY(kvf_cold_create(&index->cold));
    for (uint32_t d = 0; d < index->drive_count; d++)
        for (uint32_t s = index->first_segments[d]; s < index->first_segments[d + 1]; s++) {
            kvf_list_init(&index->segments[s].entries);
            index->segments[s].drive = d;
            index->segments[s].number = s - index->first_segments[d];
            if (!kvf_cold_list_init(index->cold, &index->segments[s].records))
                return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
        }
    return kvf_ok();
}
