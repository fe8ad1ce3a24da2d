/* What the parts of an open store share: drives, segments, and the one lock.
 *
 * Threads: the owner (runs the loop), the readers (reader.c), the writer (writer.c). `lock` protects every field that
 * says so; it is held for book-keeping only, never across I/O. */
#ifndef KVFERRY_STORAGE_CORE_H
#define KVFERRY_STORAGE_CORE_H

#include "base/list.h"
#include "storage/engine.h"
#include "storage/format.h"
#include "storage/storage.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

enum kvf_segment_state {
    KVF_SEGMENT_FREE = 0, /* holds nothing; the writer may take it */
    KVF_SEGMENT_OPEN,     /* the writer fills it; at most one per drive */
    KVF_SEGMENT_SEALED,   /* full, index and footer durable; may be reclaimed */
    KVF_SEGMENT_FREEING,  /* the owner gave it back; the writer marks it on disk */
    KVF_SEGMENT_UNREAD,   /* holds records that recovery has not told yet: it is only read */
    KVF_SEGMENT_LOST,     /* could not be read at recovery: left alone until the next start */
};

struct kvf_segment {
    int fd;
    uint32_t number;
    uint32_t drive;
    /* under lock; recovery alone changes them while UNREAD, later the writer (but FREEING, set by the owner) */
    enum kvf_segment_state state;
    bool asked; /* reclaim was told */
    uint64_t sequence;
    uint64_t used_bytes;
    struct kvf_list node; /* in store->asks or drive->frees */
};

/* What a start goes on with: the newest segment, where it is not full. */
struct kvf_rest {
    struct kvf_segment *segment; /* NULL: none */
    uint64_t position;           /* where its next group goes: behind a page for the mark */
    uint32_t record_count;
    uint8_t *index; /* the packed headers of what it holds; whoever takes the rest frees it */
    uint64_t index_bytes;
    bool is_sealed; /* soundly: if nothing more comes it stays as it is */
};

struct kvf_drive {
    /* set at open, then constant */
    char *path;
    int directory_fd; /* carries the lock on the directory */
    uint32_t index;
    struct kvf_uuid uuid;
    struct kvf_segment *segments;
    uint32_t segment_count;
    uint64_t segment_bytes;
    bool direct;            /* O_DIRECT works */
    bool in_memory;         /* a tmpfs */
    bool was_old;           /* an older format was thrown away */
    bool created;           /* undo: the directory was empty */
    uint32_t created_first; /* undo: segment files from here on are new */

    /* reading, under lock */
    struct kvf_list turns[2]; /* of kvf_read.node: the front read of each set, in the order of their
                                 turns; [1] those of speculative sets, behind all of [0] */
    unsigned read_pieces;     /* in flight */
    uint64_t read_bytes;      /* in flight */

    /* writing, under lock */
    struct kvf_list incoming; /* of kvf_append.node, from the owner to the writer */
    struct kvf_list carries;  /* likewise, those carried over */
    struct kvf_list frees;    /* of kvf_segment.node, likewise */
    bool writer_waits;        /* it sleeps, and could begin a group of this drive at once */
    uint64_t queued_bytes;    /* payload of appends that have not ended */
    int error;                /* not 0: read-only, and the errno why */
    uint32_t free_count;      /* segments FREE */
    uint32_t asked_count;     /* segments asked for and not yet FREE */
    uint32_t unread_count;    /* segments UNREAD */
    struct kvf_segment
        *newest; /* UNREAD, and perhaps not full: until recovery knows, nothing else is filled */
    struct kvf_rest rest; /* found so, for the writer to take */
    bool wants_oldest;    /* the writer would ask for the oldest one, but it is UNREAD */

    struct kvf_drive_stats
        stats; /* under lock; capacity, path, read_only are filled in when asked for */
};

struct kvf_readers;
struct kvf_writer;
struct kvf_recovering;

struct kvf_store {
    struct kvf_loop *loop;
    struct kvf_store_options options; /* paths are not kept */
    const struct kvf_engine *engine;
    struct kvf_drive *drives;
    size_t drive_count;
    uint64_t boot_epoch;
    bool recovered;                    /* it may read and append: headers were looked at */
    struct kvf_recovering *recovering; /* owner: NULL before and after */
    char io_text[512];

    pthread_mutex_t lock;
    struct kvf_list asks; /* under lock: of kvf_segment.node, segments to ask back from the owner */

    struct kvf_read **tails; /* owner: scratch of kvf_store_read, one per drive */
    struct kvf_readers *readers;
    struct kvf_writer *writer;
};

/* Open with an engine of the caller's choice: kvf_store_open chooses one and calls this; tests bring a faulty one. */
KVF_MUST_USE struct kvf_status kvf_store_open_engine(const struct kvf_store_options *options,
                                                     const struct kvf_engine *engine,
                                                     struct kvf_store **give, struct kvf_why *why);

static inline struct kvf_place kvf_segment_place(const struct kvf_drive *drive,
                                                 const struct kvf_segment *segment)
{
    return (struct kvf_place){
        .uuid = drive->uuid,
        .segment = segment->number,
        .segment_bytes = drive->segment_bytes,
        .sequence = segment->sequence,
    };
}

/* How much of the last segment what is put leaves to what is carried over; see kvf_store_carry_bytes. */
static inline uint64_t kvf_drive_kept_bytes(const struct kvf_drive *drive)
{
    return drive->segment_bytes / 4 * (drive->segment_count < 4 ? 1 : 3);
}

static inline bool kvf_append_is_carried(const struct kvf_append *append)
{
    return append->extent.arena == NULL;
}

/* The status of an errno: NO_SPACE when the drive is full or over quota, else IO. */
static inline struct kvf_status kvf_io_status(int error)
{
    bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return kvf_fail(KVF_MODULE_STORAGE, full ? KVF_NO_SPACE : KVF_IO, error);
}

/* What ended for want of memory deep inside has said nothing. Returns the status. */
static inline struct kvf_status kvf_say_no_memory(struct kvf_status status, struct kvf_why *why)
{
    if (status.code != KVF_NO_MEMORY || why == NULL || why->text[0] != '\0')
        return status;
    return kvf_why_set(why, status, "the SSD store cannot be opened: %s",
                       strerror(status.detail != 0 ? status.detail : ENOMEM));
}

#endif
