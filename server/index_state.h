/* What the parts of the index share: the index itself, and what each part does for the others. Private to it.
 *
 *   index.c           looking, entries and their pins, folding
 *   index_segments.c  what lies in which segment, and whose it is
 *   index_cache.c     what lies in DRAM, and whose goes to make room */
#ifndef KVFERRY_SERVER_INDEX_STATE_H
#define KVFERRY_SERVER_INDEX_STATE_H

#include "server/cold.h"
#include "server/index.h"

/* What may still stay in a segment that is given back. */
struct index_keep {
    uint64_t hot_bytes; /* of blocks that are not safe */
    uint64_t bytes;     /* of all */
};

struct segment {
    struct kvf_list stakes; /* kvf_stake.in_segment */
    uint32_t drive, number;
    uint64_t sequence;  /* of the filling that they are of; no older one is believed */
    uint64_t reads;     /* that hold it */
    uint64_t reclaimed; /* the sequence to free when the last read ends; 0: not asked for */
    bool sifting;       /* it is asked for, and not every block of it was looked at */
    struct index_keep keep;
};

/* What one tenant has in one segment. It is there as long as it has a block. Those of a tenant are in the order of the
 * segments' age and so name its oldest blocks; those of a segment say what giving it back takes from whom. */
struct kvf_stake {
    struct kvf_table_node node;
    struct segment *segment;
    struct kvf_tenant *tenant;
    struct kvf_list entries;      /* entry->segment_node */
    struct kvf_cold_list records; /* what has no entry; the order is that in which they left DRAM */
    uint64_t bytes;               /* of both, whole pages */
    struct kvf_list in_segment, of_tenant;
    bool held; /* it stays when it is empty: somebody goes through it */
};

struct kvf_index {
    struct kvf_index_options options;
    struct kvf_tenants tenants;
    struct kvf_spaces spaces;
    struct kvf_table entries; /* kvf_entry, linked ones */
    struct kvf_cold *cold;    /* what lies only on SSD */
    uint64_t seed;
    uint64_t next_generation;
    struct kvf_cache cache;   /* of tenants without a share of DRAM */
    struct segment *segments; /* of all drives, one drive after the other */
    uint32_t segment_count;
    uint32_t *first_segments; /* by drive, and the end */
    uint32_t drive_count;
    struct kvf_table stakes; /* by segment and tenant */
    uint64_t entry_count;    /* unlinked ones too */
    uint64_t evicted_blocks; /* from SSD */
    uint64_t pinned_bytes;
    uint64_t clean_bytes;
};

/* ---- index.c ---- */

uint64_t index_block_hash(const struct kvf_index *index, const struct kvf_space *space,
                          const struct kvf_key *key);
struct kvf_location index_location_of(const struct kvf_cold_block *block);
/* What the index knows of a record in `cold`, but for its hash. */
void index_tell_record(const struct kvf_index *index, uint32_t record, struct kvf_found *found);
/* Nothing keeps an entry without pins and bytes: where it lies on SSD it becomes a record (true), else it goes. */
bool index_fold(struct kvf_index *index, struct kvf_entry *entry);
/* It has no memory any more. */
void index_free_extent(struct kvf_index *index, struct kvf_entry *entry);
/* The namespace counts it already. False: no memory. */
bool index_add_record(struct kvf_index *index, struct kvf_cold_block *block, uint64_t hash,
                      struct kvf_location where);
void index_remove_record(struct kvf_index *index, uint32_t record);
/* A linked entry may hide a record of its key, see kvf_index_recovered: that goes. */
void index_drop_hidden(struct kvf_index *index, const struct kvf_entry *entry);

/* ---- index_segments.c ---- */

/* All segments of the store, empty, and `cold`. What was made is kvf_index_destroy's, also on error: NO_MEMORY. */
KVF_MUST_USE struct kvf_status index_make_segments(struct kvf_index *index);
/* Into its stake's list: those that were sifted stand behind all others. */
void index_line_up(struct kvf_entry *entry);
struct segment *index_segment_of(struct kvf_index *index, uint32_t drive, uint32_t segment);
/* What the tenant has in this segment, made when it has nothing there; the filling is entered. Nobody may leave it empty:
 * took or lost comes next. NULL: no memory. */
struct kvf_stake *index_stake(struct kvf_index *index, struct segment *segment,
                              struct kvf_tenant *tenant);
struct kvf_stake *index_stake_of(struct kvf_cold_list *records);
/* A block of this length is in it now (its entry or record is added), or not any more: then it may be gone. */
void index_stake_took(struct kvf_index *index, struct kvf_stake *stake, uint64_t length);
void index_stake_lost(struct kvf_index *index, struct kvf_stake *stake, uint64_t length);
/* The entry lies in its segment no longer. Fine when it lies in none. */
void index_leave_ssd(struct kvf_index *index, struct kvf_entry *entry);
/* The tenant has no more on SSD than its share: its oldest blocks go. */
void index_shed(struct kvf_index *index, struct kvf_tenant *tenant);
/* Stakes go, with whatever they have. */
void index_free_stakes(struct kvf_index *index);

/* ---- index_cache.c ---- */

/* Resident, clean and not pinned: it may be evicted from now on. It may be evicted at once. */
void index_cache(struct kvf_index *index, struct kvf_entry *entry);
/* Fine when it is not cached. */
void index_uncache(struct kvf_index *index, struct kvf_entry *entry);

#endif
