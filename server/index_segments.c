/* What lies in which segment, and whose it is: stakes, storing and recovering, giving segments back. */
#include "server/index_state.h"

#include <stdlib.h>

struct segment *index_segment_of(struct kvf_index *index, uint32_t drive, uint32_t segment)
{
    kvf_assert(drive < index->drive_count);
    uint32_t at = index->first_segments[drive] + segment;
    kvf_assert(at < index->first_segments[drive + 1]);
    return &index->segments[at];
}

/* ---- stakes ---- */

struct stake_name {
    const struct segment *segment;
    const struct kvf_tenant *tenant;
};

static bool same_stake(const struct kvf_table_node *node, const void *name)
{
    const struct kvf_stake *stake = (const struct kvf_stake *)(const void *)node;
    const struct stake_name *wanted = name;
    return stake->segment == wanted->segment && stake->tenant == wanted->tenant;
}

/* Mostly it is the newest; while recovering, the oldest. */
static void put_in_order(struct kvf_stake *stake)
{
    struct kvf_list *all = &stake->tenant->stakes, *next = all;
    const uint64_t sequence = stake->segment->sequence;
    if (!kvf_list_is_empty(all) &&
        kvf_container(all->previous, struct kvf_stake, of_tenant)->segment->sequence > sequence)
        for (next = all->next;
             kvf_container(next, struct kvf_stake, of_tenant)->segment->sequence <= sequence;)
            next = next->next;
    kvf_list_insert_before(&stake->of_tenant, next);
}

struct kvf_stake *index_stake(struct kvf_index *index, struct segment *segment,
                              struct kvf_tenant *tenant)
{
    const struct stake_name name = {segment, tenant};
    uint64_t hash = kvf_hash(index->seed, &name, sizeof(name));
    struct kvf_table_node *node = kvf_table_find(&index->stakes, hash, same_stake, &name);
    if (node != NULL)
        return kvf_container(node, struct kvf_stake, node);
    struct kvf_stake *stake = calloc(1, sizeof(*stake));
    if (stake == NULL || !kvf_cold_list_init(index->cold, &stake->records)) {
        free(stake);
        return NULL;
    }
    stake->segment = segment;
    stake->tenant = tenant;
    kvf_list_init(&stake->entries);
    kvf_table_insert(&index->stakes, &stake->node, hash);
    kvf_list_push_back(&segment->stakes, &stake->in_segment);
    put_in_order(stake);
    return stake;
}

struct kvf_stake *index_stake_of(struct kvf_cold_list *records)
{
    return kvf_container(records, struct kvf_stake, records);
}

static void free_if_empty(struct kvf_index *index, struct kvf_stake *stake)
{
    if (stake->held || !kvf_list_is_empty(&stake->entries) || stake->records.first != KVF_COLD_NONE)
        return;
    kvf_assert(stake->bytes == 0);
    kvf_cold_list_fini(index->cold, &stake->records);
    kvf_table_remove(&index->stakes, &stake->node);
    kvf_list_remove(&stake->in_segment);
    kvf_list_remove(&stake->of_tenant);
    free(stake);
}

void index_stake_took(struct kvf_index *index, struct kvf_stake *stake, uint64_t length)
{
    stake->bytes += kvf_round_up_page(length);
    kvf_tenants_take(&index->tenants, stake->tenant, KVF_SHARE_SSD, kvf_round_up_page(length));
}

void index_stake_lost(struct kvf_index *index, struct kvf_stake *stake, uint64_t length)
{
    stake->bytes -= kvf_round_up_page(length);
    kvf_tenants_give(&index->tenants, stake->tenant, KVF_SHARE_SSD, kvf_round_up_page(length));
    free_if_empty(index, stake);
}

/* Neither it nor its tenant goes while somebody goes through its blocks. */
static void hold(struct kvf_stake *stake)
{
    stake->held = true;
    stake->tenant->uses++;
}

static void unhold(struct kvf_index *index, struct kvf_stake *stake)
{
    struct kvf_tenant *tenant = stake->tenant;
    stake->held = false;
    free_if_empty(index, stake);
    kvf_tenants_leave(&index->tenants, tenant);
}

void index_free_stakes(struct kvf_index *index)
{
    struct kvf_table_node *node;
    while (index->stakes.count > 0 && (node = kvf_table_next(&index->stakes, NULL)) != NULL) {
        kvf_table_remove(&index->stakes, node);
        free(kvf_container(node, struct kvf_stake, node));
    }
    kvf_table_fini(&index->stakes);
}

void index_line_up(struct kvf_entry *entry)
{
    struct kvf_list *entries = &entry->stake->entries;
    bool is_last = kvf_list_is_empty(entries) || entry->sifted ||
                   !kvf_container(entries->previous, struct kvf_entry, segment_node)->sifted;
    if (is_last)
        kvf_list_push_back(entries, &entry->segment_node);
    else
        kvf_list_push_front(entries, &entry->segment_node);
}

static void enter_stake(struct kvf_index *index, struct kvf_stake *stake, struct kvf_entry *entry)
{
    entry->stake = stake;
    entry->sifted = false;
    index_line_up(entry);
    index_stake_took(index, stake, entry->length);
}

static void leave_stake(struct kvf_index *index, struct kvf_entry *entry)
{
    struct kvf_stake *stake = entry->stake;
    entry->stake = NULL;
    kvf_list_remove(&entry->segment_node);
    index_stake_lost(index, stake, entry->length);
}

void index_leave_ssd(struct kvf_index *index, struct kvf_entry *entry)
{
    if (!entry->on_ssd)
        return;
    entry->on_ssd = false;
    leave_stake(index, entry);
}

static void leave_segment(struct kvf_index *index, struct kvf_entry *entry)
{
    index_leave_ssd(index, entry);
    if (!entry->resident && entry->load == NULL)
        kvf_index_unlink(index, entry);
}

/* The tenant's oldest stake first; in it what has left DRAM first. */
void index_shed(struct kvf_index *index, struct kvf_tenant *tenant)
{
    tenant->uses++; /* it may lose its last block */
    while (!kvf_tenant_has_room(tenant, KVF_SHARE_SSD, 0)) {
        const struct kvf_stake *oldest =
            kvf_container(tenant->stakes.next, struct kvf_stake, of_tenant);
        if (oldest->records.first != KVF_COLD_NONE)
            index_remove_record(index, oldest->records.first);
        else
            leave_segment(index,
                          kvf_container(oldest->entries.next, struct kvf_entry, segment_node));
        tenant->shed_blocks++;
    }
    kvf_tenants_leave(&index->tenants, tenant);
}

/* ---- emptying ---- */

static bool keeps(const struct kvf_index *index, const struct kvf_stake *stake, bool hot,
                  uint64_t length, struct index_keep *what)
{
    uint64_t bytes = kvf_round_up_page(length);
    bool safe = kvf_tenants_excess(&index->tenants, stake->tenant, KVF_SHARE_SSD) == 0;
    if (bytes > what->bytes || (!safe && (!hot || bytes > what->hot_bytes)))
        return false;
    what->bytes -= bytes;
    what->hot_bytes -= safe ? 0 : bytes;
    return true;
}

static void evict_entry(struct kvf_index *index, struct kvf_entry *entry)
{
    index->evicted_blocks += entry->linked;
    leave_segment(index, entry);
}

static void evict_record(struct kvf_index *index, uint32_t record)
{
    index->evicted_blocks++;
    index_remove_record(index, record);
}

static void sift_entry(struct kvf_index *index, struct kvf_stake *stake, struct kvf_entry *entry)
{
    if (!entry->linked || !keeps(index, stake, entry->hot, entry->length, &stake->segment->keep)) {
        evict_entry(index, entry);
        return;
    }
    entry->hot = false;
    entry->sifted = true;
    kvf_list_remove(&entry->segment_node);
    index_line_up(entry);
}

static void sift_record(struct kvf_index *index, struct kvf_stake *stake, uint32_t record,
                        const struct kvf_cold_block *block)
{
    if (keeps(index, stake, block->hot, block->length, &stake->segment->keep))
        kvf_cold_sift(index->cold, record);
    else
        evict_record(index, record);
}

/* Look at *left blocks at the most. What stays goes to the back, so that the first one that has been looked at ends it:
 * between two looks blocks may go, and become entries or records, as they like. */
static void sift_stake(struct kvf_index *index, struct kvf_stake *stake, unsigned *left)
{
    for (; !kvf_list_is_empty(&stake->entries) && *left > 0; --*left) {
        struct kvf_entry *first =
            kvf_container(stake->entries.next, struct kvf_entry, segment_node);
        if (first->sifted)
            break;
        sift_entry(index, stake, first);
    }
    for (; stake->records.first != KVF_COLD_NONE && *left > 0; --*left) {
        struct kvf_cold_block block;
        kvf_cold_get(index->cold, stake->records.first, &block);
        if (block.sifted)
            break;
        sift_record(index, stake, stake->records.first, &block);
    }
}

/* About a millisecond: most of it is waiting for memory. */
#define SIFT_BLOCKS 1024u

/* Some of what lies in the segment goes, and some of it stays. */
static void sift_segment(struct kvf_index *index, struct segment *segment)
{
    unsigned left = index->options.sift_blocks != 0 ? index->options.sift_blocks : SIFT_BLOCKS;
    kvf_list_for_each_safe (node, &segment->stakes) {
        struct kvf_stake *stake = kvf_container(node, struct kvf_stake, in_segment);
        hold(stake);
        sift_stake(index, stake, &left);
        unhold(index, stake);
    }
    segment->sifting = left == 0;
}

/* What lies in the segment is there no longer. */
static void empty_segment(struct kvf_index *index, struct segment *segment)
{
    kvf_list_for_each_safe (node, &segment->stakes) {
        struct kvf_stake *stake = kvf_container(node, struct kvf_stake, in_segment);
        hold(stake);
        kvf_list_for_each_safe (entry, &stake->entries)
            leave_segment(index, kvf_container(entry, struct kvf_entry, segment_node));
        while (stake->records.first != KVF_COLD_NONE)
            index_remove_record(index, stake->records.first);
        unhold(index, stake);
    }
}

static bool is_empty(const struct segment *segment)
{
    return kvf_list_is_empty(&segment->stakes);
}

/* ---- storing, moving, recovering ---- */

/* A record of this filling of the segment is there. False: that filling is not there any more. */
static bool enter_filling(struct kvf_index *index, struct kvf_location where)
{
    struct segment *segment = index_segment_of(index, where.drive, where.segment);
    if (where.sequence < segment->sequence || where.sequence <= segment->reclaimed)
        return false;
    if (where.sequence > segment->sequence)
        empty_segment(index, segment);
    segment->sequence = where.sequence;
    return true;
}

static bool same_place(struct kvf_location a, struct kvf_location b)
{
    return a.drive == b.drive && a.segment == b.segment && a.sequence == b.sequence &&
           a.offset == b.offset;
}

/* NULL: `to` is no place, that filling is not there any more, or there is no memory. */
static struct kvf_stake *stake_at(struct kvf_index *index, const struct kvf_location *to,
                                  struct kvf_tenant *tenant)
{
    if (to == NULL || !enter_filling(index, *to))
        return NULL;
    return index_stake(index, index_segment_of(index, to->drive, to->segment), tenant);
}

static void move_entry(struct kvf_index *index, struct kvf_entry *entry,
                       const struct kvf_location *to)
{
    struct kvf_stake *stake = stake_at(index, to, entry->space->tenant);
    if (stake == NULL) {
        evict_entry(index, entry);
        return;
    }
    leave_stake(index, entry);
    entry->location = *to;
    enter_stake(index, stake, entry);
}

static void move_record(struct kvf_index *index, uint32_t record, const struct kvf_location *to)
{
    struct kvf_cold_block block;
    kvf_cold_get(index->cold, record, &block);
    struct kvf_stake *from = index_stake_of(block.list);
    struct kvf_stake *stake = stake_at(index, to, from->tenant);
    if (stake == NULL) {
        evict_record(index, record);
        return;
    }
    kvf_cold_move(index->cold, record, &stake->records, (uint32_t)(to->offset / KVF_PAGE));
    index_stake_took(index, stake, block.length);
    index_stake_lost(index, from, block.length);
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
    if (make_way(index, record, location, hash, space->number) && enter_filling(index, location) &&
        index_add_record(index, &block, hash, location))
        index_shed(index, space->tenant);
    else
        kvf_spaces_leave(&index->spaces, space);
}

void kvf_entry_stored(struct kvf_index *index, struct kvf_entry *entry, struct kvf_location where)
{
    kvf_assert(!entry->on_ssd);
    entry->hot = false;
    struct kvf_stake *stake = stake_at(index, &where, entry->space->tenant);
    if (stake == NULL)
        return;
    entry->on_ssd = true;
    entry->location = where;
    enter_stake(index, stake, entry);
    index_drop_hidden(index, entry);
    index_shed(index, entry->space->tenant);
}

/* ---- giving segments back ---- */

static void free_if_done(struct kvf_index *index, uint32_t drive, uint32_t number)
{
    struct segment *segment = index_segment_of(index, drive, number);
    if (segment->reclaimed == 0 || segment->reads > 0 || !is_empty(segment))
        return;
    uint64_t sequence = segment->reclaimed;
    segment->reclaimed = 0;
    segment->sifting = false;
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

bool kvf_index_sift(struct kvf_index *index, uint32_t drive)
{
    uint32_t first = index->first_segments[drive], sifting = 0;
    for (uint32_t i = first; i < index->first_segments[drive + 1]; i++) {
        struct segment *segment = &index->segments[i];
        if (segment->sifting && sifting == 0) {
            sift_segment(index, segment);
            if (!segment->sifting)
                free_if_done(index, drive, i - first);
        }
        sifting += segment->sifting;
    }
    return sifting > 0;
}

bool kvf_index_reclaim(struct kvf_index *index, uint32_t drive, uint32_t number, uint64_t sequence,
                       uint64_t hot_bytes, uint64_t keep_bytes)
{
    struct segment *segment = index_segment_of(index, drive, number);
    segment->reclaimed = sequence;
    segment->sifting = true;
    segment->keep = (struct index_keep){.hot_bytes = hot_bytes, .bytes = keep_bytes};
    return kvf_index_sift(index, drive);
}

bool kvf_index_shares_ssd(const struct kvf_index *index)
{
    return index->tenants.has_shares[KVF_SHARE_SSD];
}

static uint64_t above(uint64_t bytes, uint64_t excess)
{
    return bytes > excess ? bytes - excess : 0;
}

struct kvf_index_cost kvf_index_cost(struct kvf_index *index, uint32_t drive, uint32_t number)
{
    const struct segment *segment = index_segment_of(index, drive, number);
    struct kvf_index_cost cost = {.sequence = segment->sequence};
    uint64_t others = 0, excess_of_others = 0;
    kvf_list_for_each (node, &segment->stakes) {
        const struct kvf_stake *stake = kvf_container(node, struct kvf_stake, in_segment);
        uint64_t excess = kvf_tenants_excess(&index->tenants, stake->tenant, KVF_SHARE_SSD);
        if (kvf_tenant_has_share(stake->tenant, KVF_SHARE_SSD)) {
            cost.bytes += above(stake->bytes, excess);
        } else {
            others += stake->bytes;
            excess_of_others = excess;
        }
    }
    cost.bytes += above(others, excess_of_others);
    return cost;
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
        if (segment->reclaimed != 0 && !segment->sifting && !is_empty(segment) &&
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

static size_t list_kept_of(struct kvf_index *index, const struct kvf_stake *stake,
                           struct kvf_kept *kept, size_t max)
{
    size_t count = 0;
    kvf_list_for_each_safe (node, &stake->entries) {
        struct kvf_entry *entry = kvf_container(node, struct kvf_entry, segment_node);
        if (!entry->linked) /* since it was kept; a pin is all that it has */
            index_leave_ssd(index, entry);
        else if (count < max)
            kept[count++] = kept_entry(entry);
    }
    uint32_t link = stake->records.first;
    for (; link != KVF_COLD_NONE && count < max; link = kvf_cold_next_in_list(index->cold, link))
        kept[count++] = kept_record(index, link);
    return count;
}

static size_t list_kept(struct kvf_index *index, const struct segment *segment,
                        struct kvf_kept *kept, size_t max)
{
    size_t count = 0;
    kvf_list_for_each_safe (node, &segment->stakes) {
        struct kvf_stake *stake = kvf_container(node, struct kvf_stake, in_segment);
        hold(stake);
        count += list_kept_of(index, stake, kept + count, max - count);
        unhold(index, stake);
    }
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
    for (uint32_t d = 0; d < index->drive_count; d++)
        for (uint32_t s = index->first_segments[d]; s < index->first_segments[d + 1]; s++) {
            kvf_list_init(&index->segments[s].stakes);
            index->segments[s].drive = d;
            index->segments[s].number = s - index->first_segments[d];
        }
    KVF_TRY(kvf_table_init(&index->stakes));
    return kvf_cold_create(&index->cold);
}
