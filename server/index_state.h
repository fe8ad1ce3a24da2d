/* What the parts of the index share: the index itself, and what each part does for the other. Private to it.
 *
 *   index.c           looking, entries and their pins, folding, the cache
 *   index_segments.c  what lies in which segment */
#ifndef KVFERRY_SERVER_INDEX_STATE_H
#define KVFERRY_SERVER_INDEX_STATE_H

#include "server/cold.h"
#include "server/index.h"

struct segment {
    struct kvf_list entries;      /* entry->segment_node */
    struct kvf_cold_list records; /* what has no entry */
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

/* ---- index.c ---- */

uint64_t index_block_hash(const struct kvf_index *index, const struct kvf_space *space,
                          const struct kvf_key *key);
struct kvf_location index_location_of(const struct kvf_cold_block *block);
/* What the index knows of a record in `cold`, but for its hash. */
void index_tell_record(const struct kvf_index *index, uint32_t record, struct kvf_found *found);
/* The namespace counts it already. False: no memory. */
bool index_add_record(struct kvf_index *index, struct kvf_cold_block *block, uint64_t hash,
                      struct kvf_location where);
void index_remove_record(struct kvf_index *index, uint32_t record);
/* A linked entry may hide a record of its key, see kvf_index_recovered: that goes. */
void index_drop_hidden(struct kvf_index *index, const struct kvf_entry *entry);

/* ---- index_segments.c ---- */

/* All segments of the store, empty, and `cold`. What was made is kvf_index_destroy's, also on error: NO_MEMORY. */
KVF_MUST_USE struct kvf_status index_make_segments(struct kvf_index *index);
struct segment *index_segment_of(struct kvf_index *index, uint32_t drive, uint32_t segment);
struct segment *index_segment_of_list(struct kvf_cold_list *records);
/* The entry lies in its segment no longer. */
void index_leave_ssd(struct kvf_entry *entry);

#endif
