/* Finding the records of one segment again, with plain pread and pwrite. Nothing that the drive says is believed without
 * its checksum and its place.
 *
 * A scan belongs to one thread of recover.c. Its buffers are taken as they are needed: an index costs its size. */
#ifndef KVFERRY_STORAGE_SCAN_H
#define KVFERRY_STORAGE_SCAN_H

#include "storage/core.h"
#include "storage/window.h"

#include <stdatomic.h>

struct kvf_scan {
    /* Set by the caller. */
    struct kvf_drive *drive;
    /* A whole record; `head` is borrowed. */
    void (*found)(struct kvf_scan *scan, const struct kvf_record_head *head);
    bool is_newest; /* the writer goes on with it where it is not full: then it is not sealed */
    const atomic_bool
        *stop; /* somebody wants it to end: what is found from then on does not count */

    /* What kvf_scan_segment came to. */
    uint64_t used_bytes;
    uint32_t record_count;
    bool by_groups;       /* there was no whole index */
    int read_error;       /* the errno that ended it early */
    int write_error;      /* the errno of sealing it */
    struct kvf_rest rest; /* where there is one; the caller takes it or frees its index */

    /* scan's own */
    struct kvf_segment *segment;
    struct kvf_place place;
    struct kvf_window window;
    uint8_t *group; /* KVF_GROUP_PAGES_MAX_BYTES */
    uint8_t *index; /* mapped, kvf_index_max_bytes */
    uint64_t index_bytes;
    uint64_t end; /* behind the last group, or the index */
};

/* False: no memory; fini is due all the same. The caller has set its part. */
KVF_MUST_USE bool kvf_scan_init(struct kvf_scan *scan);
void kvf_scan_fini(struct kvf_scan *scan);

/* The state that the segment's header page says: FREE, UNREAD (then ->sequence is set), or LOST and the errno in
 * *error. `page` is one aligned page to read into. */
enum kvf_segment_state kvf_scan_header(const struct kvf_drive *drive, struct kvf_segment *segment,
                                       uint8_t *page, int *error);

/* Tell every whole record of an UNREAD segment; seal it where no whole index is and no rest. Returns what the segment is now: SEALED;
 * FREE, for it holds nothing; LOST, for it could not be read to its end (what was told is good); or UNREAD, for it was
 * stopped. */
enum kvf_segment_state kvf_scan_segment(struct kvf_scan *scan, struct kvf_segment *segment);

#endif
