/* storage: records on SSD. Appends them durably, reads them back into DRAM, finds them again after a crash. Knows
 * locations, not keys: names and generations ride along in the records so that recovery can hand them back.
 *
 * Two engines behind one header: io_uring, and a pread twin for hosts that forbid it; both pass one suite.
 *
 * Threads: the owner's loop thread calls everything here and gets every callback. Inside, reader threads (a ring each)
 * and one writer thread do the I/O and post back.
 *
 * Ownership: the caller embeds struct kvf_read_set / kvf_read / kvf_append and leaves them alone from the start to the
 * callback `ended`, which runs exactly once each, also on error and when the store closes. No memory is allocated on
 * the way. Sizes are bytes. */
#ifndef KVFERRY_STORAGE_STORAGE_H
#define KVFERRY_STORAGE_STORAGE_H

#include "base/arena.h"
#include "base/block.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_store;

/* What a record says of its block. */
struct kvf_record {
    const char *namespace; /* a valid namespace; borrowed */
    struct kvf_key key;
    struct kvf_generation generation;
    uint64_t length; /* of the block; its extent is the next whole page */
    uint32_t crc32c; /* of the block's `length` bytes */
};

/* Where a record's payload lies. A segment that is freed and filled again has another sequence. */
struct kvf_location {
    uint32_t drive;
    uint32_t segment;
    uint64_t sequence;
    uint64_t offset; /* of the payload in the segment's file, 4 KiB-aligned */
};

enum kvf_store_io {
    KVF_STORE_IO_AUTO = 0, /* io_uring, or pread where it is forbidden */
    KVF_STORE_IO_URING,
    KVF_STORE_IO_PREAD,
};

struct kvf_store_options {
    struct kvf_loop *loop;
    const char *const *paths; /* one directory a drive; borrowed during open */
    size_t path_count;
    uint64_t
        capacity_bytes; /* per path, preallocated; rounded down to whole segments, at least 2 */
    uint64_t
        segment_bytes; /* 0: what the store has; a new one: 260 MiB, or a third of a small capacity */
    enum kvf_store_io io;
    unsigned read_threads;   /* 8 */
    unsigned queue_depth;    /* pieces in flight per drive, shared by all rings: 32; at most 4096 */
    uint64_t inflight_bytes; /* and their bytes: 16 MiB */
    uint64_t io_bytes;       /* longest piece: 1 MiB; a multiple of 4 KiB */
    unsigned probe_ms;       /* how often a read-only drive tries a write: 5000 */
    const struct kvf_arena *const
        *arenas; /* what extents may lie in; become fixed buffers; borrowed for life */
    size_t arena_count;
    uint64_t
        locked_bytes; /* of memory, by other parts of the process: they count against the same limit */

    /* The drive wants a sealed segment back, its oldest (or another one, see kvf_store_ask_instead). The owner unlinks
     * every record in it, waits for its own reads there to end, then calls kvf_store_free. Asked once per segment; the
     * store goes on with what it has. */
    void (*reclaim)(void *context, uint32_t drive, uint32_t segment, uint64_t sequence);
    void *context;
};

/* Open, lock and, where a directory is empty, create the store; raise and sync the boot epoch (1 or more); start the
 * threads. Nothing is read or written yet: kvf_store_recover comes next. Errors say in *why what is wrong with which path and
 * what to do: INVALID (capacity, geometry), IO (missing, not a directory, no permission), BUSY (locked by another
 * daemon), DENIED (not empty and without our marker), CORRUPT (the marker is damaged), NO_SPACE (cannot preallocate),
 * UNSUPPORTED (io_uring was demanded and is forbidden, a newer kvferry wrote the store, or direct I/O there needs an
 * alignment above 4 KiB). On error nothing is left behind that was not there. A larger capacity adds segments, a smaller
 * one is INVALID. A store of an older format is emptied; kvf_store_io_text says so. */
KVF_MUST_USE struct kvf_status kvf_store_open(const struct kvf_store_options *options,
                                              struct kvf_store **give, struct kvf_why *why);

/* What recovery came to. */
struct kvf_recovery_result {
    uint64_t records;  /* told */
    uint64_t segments; /* that hold, or may hold, some */
    uint64_t scanned;  /* of these: no whole index was there, every payload was looked at */
    uint64_t
        unreadable; /* of these: the drive could not read them to their end; left alone until the next start */
    uint64_t took_ns;
    bool cancelled;
    struct kvf_why
        why; /* the first segment that could not be read, or not be sealed; empty: none */
};

/* One recovery. The caller sets all of it and leaves it alone until `ended`; both run on the owner's loop. */
struct kvf_recovery {
    /* A whole record; borrowed for the call. Newer segments come before older ones, roughly; of several generations of a
     * key the newest counts. In slices: the loop is held for a millisecond or two, then others have their turn. */
    void (*found)(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location);
    /* Once, last. What is wrong with a segment ends neither recovery nor daemon. */
    void (*ended)(struct kvf_recovery *recovery, const struct kvf_recovery_result *result);
    void *context;
};

/* Look which segments are free (blocking; one page of each is read), then find all records while the store serves: reads
 * and appends may start on return. Sealed segments are read by their index; what was open, or lost its index, record by
 * record, payload CRC included, and is sealed. A segment that is not told yet is neither asked back nor filled; appends
 * that need it wait. Call once, before the first read or append. NO_MEMORY: nothing was started, close the store. */
KVF_MUST_USE struct kvf_status
kvf_store_recover(struct kvf_store *store, struct kvf_recovery *recovery, struct kvf_why *why);
/* `ended` comes soon, `found` no more. What was not told stays as it is on the drive, out of use until the next start.
 * Nothing happens where no recovery is. */
void kvf_store_recover_cancel(struct kvf_store *store);

/* The boot epoch that open raised: larger than that of every earlier start on these drives. */
uint64_t kvf_store_boot_epoch(const struct kvf_store *store);
/* "io_uring, fixed buffers (how, how long)", "io_uring, plain buffers: <remedy>" or "pread: <why>": for one log line. */
const char *kvf_store_io_text(const struct kvf_store *store);

/* One block to read. The caller sets the first part. */
struct kvf_read {
    struct kvf_location location;
    struct kvf_extent extent; /* where to; at least `length` rounded up to a page */
    uint64_t length;          /* of the block */
    /* More of the block's front is in memory: `landed_bytes` counts it, without gaps. May be coalesced, is not called
     * for the last byte (ended is). May be NULL. */
    void (*landed)(struct kvf_read *read, uint64_t landed_bytes);
    /* OK: every byte is there, the tail of the last page is zero. Else nothing may be believed. CORRUPT is not judged
     * here: whoever believes bytes checks their CRC. IO carries the errno. */
    void (*ended)(struct kvf_read *read, struct kvf_status status);

    /* storage's own */
    struct kvf_store *store;
    struct kvf_post post;
    struct kvf_list node; /* in the drive's turns, while this is its set's front read there */
    bool speculative;     /* of the set */
    struct kvf_read *next_in_set; /* on the same drive */
    struct kvf_status status;
    uint64_t next_offset;      /* of the next piece to submit */
    uint64_t turn_left;        /* bytes until another set has its turn */
    uint64_t front_bytes;      /* landed without a gap */
    uint64_t told_bytes;       /* what the owner was told of them */
    uint64_t landed_pieces[4]; /* bitmap of the pieces from front_bytes on that landed */
    unsigned pieces_in_flight;
    bool posted;   /* the post is on its way */
    bool finished; /* nothing more happens but `ended` */
};

/* Reads handled together: submitted in order, across segments and drives, sharing the window fairly with other sets. */
struct kvf_read_set {
    struct kvf_read **reads; /* borrowed until the last one has ended */
    size_t count;            /* >= 1 */
    /* Nobody waits for it yet: a piece of it goes out only when the drive has none of a demanded set to send. What is
     * out already is not called back. */
    bool speculative;
};

/* Start all of them. Cannot fail: errors come by `ended`. */
void kvf_store_read(struct kvf_store *store, struct kvf_read_set *set);
/* Somebody waits for this speculative set now: what it has not sent goes out like a demanded one's. Legal until the last
 * of its reads has ended; reads that have are still the caller's to keep. */
void kvf_store_raise(struct kvf_store *store, struct kvf_read_set *set);

/* One block to write. */
struct kvf_append {
    struct kvf_record record;
    struct kvf_extent
        extent; /* holds the payload and does not change until ended; its tail is zero */
    /* Or, without an arena in `extent`: the block is carried over from here, a record of a sealed segment that is not
     * given back before `ended`. Its bytes are copied as they are, whether they match the record's checksum or not. It
     * takes no memory of the owner's, goes before what is put, and never waits for a segment: NO_SPACE where none has
     * room. STALE: the segment was filled again. */
    struct kvf_location from;
    /* OK: durable, at *location. NO_SPACE, IO: not written; the drive may be read-only now. */
    void (*ended)(struct kvf_append *append, struct kvf_status status,
                  struct kvf_location location);

    /* storage's own */
    struct kvf_store *store;
    struct kvf_post post;
    struct kvf_list node;
    struct kvf_list others; /* of node: that ended with it and share its post */
    struct kvf_status status;
    struct kvf_location location;
    bool posted;
    bool finished;
};

/* Queue it; records are written in order, in groups that share their fdatasync. While no segment is free it waits (see
 * reclaim). */
void kvf_store_append(struct kvf_store *store, struct kvf_append *append);

/* Within reclaim: the owner would rather give back this other segment of the drive. True: it is the one that is asked for
 * now, and *sequence tells its filling. False: it is not sealed, or asked for already. */
bool kvf_store_ask_instead(struct kvf_store *store, uint32_t drive, uint32_t asked,
                           uint32_t instead, uint64_t *sequence);
/* The segment that reclaim named (or any other sealed one, whole): its records are unlinked, nothing reads it. */
void kvf_store_free(struct kvf_store *store, uint32_t drive, uint32_t segment, uint64_t sequence);

/* Counted since open; per drive. Exact when nothing is in flight, else a moment's view. */
struct kvf_drive_stats {
    const char *path; /* borrowed */
    uint64_t capacity_bytes;
    uint64_t used_bytes; /* whole records in segments that are not free */
    uint64_t read_sets;
    uint64_t read_sqes; /* pieces handed to the kernel, resubmissions included */
    uint64_t read_payload_bytes;
    uint64_t read_device_bytes;
    uint64_t read_errors; /* reads that ended with IO */
    uint64_t write_payload_bytes;
    uint64_t write_device_bytes;
    uint64_t write_syncs;      /* fdatasyncs that succeeded */
    uint64_t registrations;    /* of the arenas as fixed buffers: 1 where rings can share it */
    uint64_t dropped;          /* appends that ended without being written */
    uint64_t carried_blocks;   /* carried over to another segment: in write_device_bytes only */
    uint64_t carried_bytes;    /* their payload */
    uint64_t carries_failed;   /* that ended without being written, or without their bytes */
    uint64_t reads_in_flight;  /* reads that have not ended */
    uint64_t writes_in_flight; /* appends that have not ended */
    bool read_only;
    bool recovering; /* it holds segments that recovery has not told: used_bytes lacks them */
};

size_t kvf_store_drive_count(const struct kvf_store *store);
void kvf_store_stats(const struct kvf_store *store, size_t drive, struct kvf_drive_stats *stats);
/* The segments of a drive: what an owner needs to keep its lists per segment. */
size_t kvf_store_segment_count(const struct kvf_store *store, size_t drive);
/* What is carried over when one segment is given back finds room, up to so many bytes of payload: what is put leaves it
 * that and what its headers take. Five eighths of a segment; one in a store of less than four. */
uint64_t kvf_store_carry_bytes(const struct kvf_store *store, size_t drive);
/* Bytes of whole records in it, as used_bytes counts them. */
uint64_t kvf_store_segment_used_bytes(const struct kvf_store *store, size_t drive,
                                      uint32_t segment);

/* Every read and append, and recovery, must have ended. Seals the open segments, joins the threads, unlocks. NULL is fine. */
void kvf_store_close(struct kvf_store *store);

/* ---- checking a store that no daemon has open ---- */

struct kvf_verify_result {
    uint64_t segments;   /* that hold records */
    uint64_t records;    /* looked at */
    uint64_t bytes;      /* their payload */
    uint64_t damaged;    /* records, or structures that records are found by */
    uint64_t unfinished; /* writes that a crash cut off: nobody was told they are durable */
    uint64_t unreadable; /* segments that the drive could not read to their end */
    uint64_t done_bytes; /* of the files */
    uint64_t total_bytes;
};

struct kvf_verify_damage {
    const char *path;                /* of the drive */
    const char *file;                /* in it */
    uint64_t offset;                 /* in the file */
    const char *what;                /* "payload does not match its checksum" */
    const struct kvf_record *record; /* NULL: it is not about one record */
};

struct kvf_verify_options {
    const char *const *paths; /* one directory a drive; borrowed */
    size_t path_count;
    /* Called about once a second, and for each damage. May be NULL; what they are given is borrowed for the call. */
    void (*progress)(void *context, const struct kvf_verify_result *so_far);
    void (*damaged)(void *context, const struct kvf_verify_damage *damage);
    void *context;
};

/* Check every record of every segment against its checksum, and what records are found by. Changes nothing on the
 * drives; holds their locks meanwhile. Blocking; needs no loop. OK with result->damaged > 0 is a finding, not an error.
 * Errors: BUSY (a daemon has it), IO (missing, no permission, or unreadable segments: *result holds the rest), INVALID
 * (no store there), CORRUPT (the marker is damaged), UNSUPPORTED (another format), NO_MEMORY. *why says which and what
 * to do. */
KVF_MUST_USE struct kvf_status kvf_store_verify(const struct kvf_verify_options *options,
                                                struct kvf_verify_result *result,
                                                struct kvf_why *why);

#endif
