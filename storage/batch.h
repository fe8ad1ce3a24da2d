/* Batches: what is written between two fdatasyncs. A batch is a group of records, the seal of a segment, or the mark
 * that one is free. It is built here, given out in pieces, and ended by its spool.
 *
 * Writer thread only; nothing here does I/O. */
#ifndef KVFERRY_STORAGE_BATCH_H
#define KVFERRY_STORAGE_BATCH_H

#include "storage/core.h"

#include <sys/uio.h>

#define KVF_BATCH_RUNS_MAX 3 /* at least KVF_GROUPS_UNDER_WAY */

enum kvf_batch_kind {
    KVF_BATCH_RECORDS,
    KVF_BATCH_SEAL,
    KVF_BATCH_FREE,
    KVF_BATCH_RESUME, /* one step of kvf_resume */
    KVF_BATCH_VOID,   /* nobody is to find the groups that failed */
    KVF_BATCH_PROBE,  /* only to see whether the drive takes writes again */
};

enum kvf_batch_state {
    KVF_BATCH_IDLE = 0,
    KVF_BATCH_WRITING, /* pieces are given out and come back */
    KVF_BATCH_WRITTEN, /* all are back; waits for the fdatasync of the group before */
    KVF_BATCH_SYNCING,
};

struct kvf_run {
    uint8_t *memory;
    uint64_t offset;
    uint64_t bytes;
};

struct kvf_batch {
    struct kvf_spool *spool; /* set by it */
    enum kvf_batch_kind kind;
    enum kvf_batch_state state;
    struct kvf_segment *segment;
    struct kvf_run runs[KVF_BATCH_RUNS_MAX]; /* pages that are not payload */
    unsigned run_count;
    unsigned run_next;
    uint64_t run_done;       /* of runs[run_next] */
    struct kvf_list appends; /* of kvf_append.node */
    struct kvf_list *at;     /* the append whose payload is being given out */
    uint64_t at_done;        /* of its bytes */
    unsigned in_flight;
    int error;
    /* A group: what the filling was before it. */
    uint64_t before_position, before_index_bytes;
    uint32_t before_record_count;
    uint8_t *pages;       /* KVF_GROUP_PAGES_MAX_BYTES: group header, or a header or footer page */
    uint8_t *header_page; /* one page, for the header of a segment that is new in this batch */
};

/* What is to be written before a segment that a start has found is filled further, each durable before the next. */
enum kvf_resume {
    KVF_RESUME_DONE = 0,
    KVF_RESUME_MARK,   /* that a start goes on here */
    KVF_RESUME_UNSEAL, /* zeros over the footer: what it says is not all any more */
};

/* The open segment of a drive. */
struct kvf_filling {
    struct kvf_drive *drive;
    struct kvf_segment *segment; /* NULL: none is open */
    bool is_new;                 /* its header is not written yet */
    bool is_full;                /* its seal was begun */
    bool is_sealed;              /* it was found so, and nothing was added */
    enum kvf_resume resume;
    uint64_t position;   /* where the next group goes */
    uint64_t kept_bytes; /* at the segment's end, for records that are carried over */
    uint64_t voids[KVF_GROUPS_UNDER_WAY]; /* where groups that failed began; from position on */
    unsigned void_count;
    uint32_t record_count;
    uint8_t *index; /* packed headers so far */
    uint64_t index_bytes;
};

/* False: no memory; fini is due all the same. */
KVF_MUST_USE bool kvf_filling_init(struct kvf_filling *filling, struct kvf_drive *drive);
void kvf_filling_fini(struct kvf_filling *filling);
/* Nothing of the segment is filled yet. */
void kvf_filling_start(struct kvf_filling *filling, struct kvf_segment *segment);
/* It holds what it held before the start. Takes the rest. */
void kvf_filling_go_on(struct kvf_filling *filling, struct kvf_rest *rest);
/* Is there room for a group that begins with this one? */
bool kvf_filling_takes(const struct kvf_filling *filling, const struct kvf_append *append);

/* False: no memory; fini is due all the same. */
KVF_MUST_USE bool kvf_batch_init(struct kvf_batch *batch);
void kvf_batch_fini(struct kvf_batch *batch);

/* Move what belongs together from carries and queue (of kvf_append.node) to the batch and give every append its place.
 * The filling takes the first one. */
void kvf_batch_start_group(struct kvf_filling *filling, struct kvf_batch *batch,
                           struct kvf_list *carries, struct kvf_list *queue);
void kvf_batch_start_seal(struct kvf_filling *filling, struct kvf_batch *batch);
void kvf_batch_start_free(const struct kvf_drive *drive, struct kvf_segment *segment,
                          struct kvf_batch *batch);

/* The next step of filling->resume. */
void kvf_batch_start_resume(const struct kvf_filling *filling, struct kvf_batch *batch);

/* Zero the first page of every group that failed: what is left of it is none, and other groups may be written over it. */
void kvf_batch_start_void(const struct kvf_filling *filling, struct kvf_batch *batch);

/* A write that keeps nothing: the header of a free segment, or (NULL) no page at all, only the fdatasync. */
void kvf_batch_start_probe(const struct kvf_drive *drive, struct kvf_segment *segment,
                           struct kvf_batch *batch);
/* Everything of it is given out. */
bool kvf_batch_is_out(const struct kvf_batch *batch);
/* The failed group was never there; where it began is noted in the filling's voids. */
void kvf_batch_roll_back(struct kvf_filling *filling, const struct kvf_batch *batch);

#define KVF_PIECE_BYTES KVF_MIB
#define KVF_PIECE_PARTS (KVF_PIECE_BYTES / KVF_PAGE)

/* Neighbours in the file, written by one request. */
struct kvf_piece {
    uint64_t offset;
    uint64_t bytes; /* whole pages, at most KVF_PIECE_BYTES */
    int from_fd;    /* not -1: they are copied from this file */
    uint64_t from_offset;
    unsigned part_count;
    struct iovec parts[KVF_PIECE_PARTS]; /* where in memory */
};

/* What the batch wants written next; false when all is given out. */
bool kvf_batch_next_piece(struct kvf_batch *batch, struct kvf_piece *piece);

/* What this piece is copied from could not be read: its records end with that error. */
void kvf_batch_spoil(struct kvf_batch *batch, const struct kvf_piece *piece, int error);

static inline struct kvf_append *kvf_append_at(struct kvf_list *node)
{
    return kvf_container(node, struct kvf_append, node);
}

#endif
