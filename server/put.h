/* Put: places for an engine to write blocks, their commit, and their way to the SSD.
 *
 * PutBegin asks for all its places at once and waits in admission's queue for dirty bytes; what
 * exists, or is being put by somebody else, needs none. A place is a PENDING entry; `struct put` is
 * the engine's hold on it.
 *
 *   OPEN         the engine writes the extent
 *   QUARANTINED  the engine's connection is gone, but its process may still write
 *   WRITING      committed, visible in DRAM; its record is on the way to the SSD and charged
 *   (freed)      durable, or aborted, or there is no SSD that takes it, or it is larger than all that
 *                its tenant may have there: then the block stays in DRAM
 *
 * Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_PUT_H
#define KVFERRY_SERVER_PUT_H

#include "server/admission.h"
#include "server/awaited.h"
#include "server/index.h"
#include "server/stats.h"
#include "storage/storage.h"

/* What all puts share. */
struct puts {
    struct kvf_loop *loop;
    struct kvf_index *index;
    struct kvf_admission *admission;
    struct kvf_store *store; /* NULL: no SSD tier */
    struct kvf_counters *counters;
    struct kvf_awaited *awaited; /* NULL: no SSD tier */
    /* --ssd-write-policy reuse: not at commit, but at the second put or the first hit. */
    bool write_at_reuse;

    struct kvf_list writing; /* struct put, in order of commit */
    struct kvf_list syncs;
    uint64_t next_sequence;
    bool any_refused;          /* entries that a drive refused, and that no sync has tried again */
    uint64_t read_only_drives; /* bitmap of those that the log knows as such */
    uint64_t quarantine_bytes; /* places whose engine is gone but may still write */
};

void puts_init(struct puts *puts);

enum put_state {
    PUT_OPEN = 0,    /* from its place on; to be finished, aborted or quarantined */
    PUT_QUARANTINED, /* its engine's connection is gone, its process perhaps not; to be aborted */
    PUT_WRITING,     /* committed; it ends with its write */
};

/* One block on its way in. Belongs to the engine's context while OPEN, to put.c while WRITING. */
struct put {
    struct kvf_list node; /* the context's, then puts.writing */
    struct puts *puts;
    enum put_state state;
    uint64_t id;       /* the context's name for it */
    uint64_t begin_id; /* and for the PutBegin that asked for it */
    struct kvf_entry *entry;
    struct kvf_request charge; /* its part of the dirty bytes */
    uint64_t sequence;
    struct kvf_append append;
};

struct put_item {
    struct kvf_key key;
    uint64_t length;
    enum kvf_code code;     /* OK: `put` is a place */
    struct put *put;        /* given to the caller */
    struct kvf_extent room; /* of a place that is being made */
};

/* One PutBegin. The caller sets the first part; the struct is malloc'ed by create and frees itself
 * after `answered`. */
struct put_begin {
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    uint64_t deadline_ns;
    /* Once; may run inside put_begin_start. Not after drop. */
    void (*answered)(struct put_begin *begin);
    void *user;

    struct kvf_status status;   /* of the whole: OK, BUSY, TOO_LARGE */
    struct kvf_refusal refusal; /* of BUSY and TOO_LARGE: what it lacked */
    uint32_t item_count;
    struct put_item *items;

    struct puts *puts;
    struct kvf_request request;
    struct kvf_timer timer;
    struct kvf_list node; /* the caller's */
};

/* NULL: out of memory. */
struct put_begin *put_begin_create(struct puts *puts, uint32_t item_count);
void put_begin_start(struct put_begin *begin);
/* The caller is gone, or does not want it any more: no answer. Only before `answered`. */
void put_begin_drop(struct put_begin *begin);

/* The bytes are written. Takes an OPEN put; it becomes visible and goes its way. */
struct kvf_generation put_finish(struct put *put, uint32_t crc32c);
/* The place goes back unwritten; nobody writes to it any more. Takes an OPEN or QUARANTINED put. */
void put_abort(struct put *put);
/* The engine's connection is gone: the key is free at once, the memory only with put_abort. */
void put_quarantine(struct put *put);

/* Write a READY, resident block to SSD unless it is there or on the way. `now` writes it whatever is
 * dirty; else a full dirty class lets the chance pass. */
void put_keep(struct puts *puts, struct kvf_entry *entry, bool now);
/* Write every block that was put here and is in DRAM only, because of the policy or because a drive refused it. */
void put_keep_all(struct puts *puts);

/* Wait until all that is being written now is durable. `done` runs once, perhaps inside
 * kvf_sync_start. */
struct kvf_sync {
    void (*done)(struct kvf_sync *sync);
    uint64_t blocks, bytes; /* that it waited for */
    uint64_t failed;        /* of these: not written, the drive refused */
    uint64_t last_sequence;
    struct kvf_list node;
};

void kvf_sync_start(struct puts *puts, struct kvf_sync *sync);
/* Forget it; `done` does not run any more. */
void kvf_sync_cancel(struct kvf_sync *sync);

#endif
