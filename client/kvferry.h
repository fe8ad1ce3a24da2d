/* kvferry.h: libkvferry, an engine's way to its local kvferryd.
 *
 * A block is an immutable byte string (1 B to 128 MiB) with a namespace, TENANT/FINGERPRINT (client/geometry.h makes
 * it), and a key of 1 to 64 bytes, usually the engine's prefix hash. Bytes never pass through the socket: they lie in
 * the daemon's arenas, shared memory that is mapped here.
 *
 * Two ways in, in one process side by side if wanted:
 *
 *   kvf_client   one connection, blocking calls, no thread: tools, and engines with threads of their own
 *   kvf_engine   operations that complete on an eventfd; registers by itself, again and again, whenever a daemon is
 *                READY; copies to and from the caller's memory if wanted: engines and adapters
 *
 *   prefill:  kvf_client_open -> kvf_put_begin -> copy into puts[i].data -> kvf_put_commit
 *   decode:   kvf_client_open -> kvf_get -> copy out of blocks[i].data -> kvf_get_release
 *   both:     kvf_client_close
 *
 * Threads. A kvf_client belongs to one thread at a time; different clients are independent. A kvf_engine may be used from
 * every thread at once; it has one thread of its own, deaf to signals, which sleeps while there is nothing to do. Neither
 * survives a fork: the child may only exec or _exit.
 *
 * Errors. Every function that can fail returns a struct kvf_status by value: a code of enum kvf_code (base/status.h says what
 * each means), the module that raised it, and a detail (an errno, or 0). Nothing here sets errno, prints, or ends the
 * process because of what a daemon says; kvf_assert ends it for a caller's bug (an item released twice is none).
 *
 * Units: bytes, milliseconds, and nothing else. Deadlines are durations from the call on; they are mandatory, and a daemon caps
 * them at its --query-timeout-s. Lists of any length are fine: they are cut into messages and joined here. */
#ifndef KVFERRY_H
#define KVFERRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif

#include "base/block.h"
#include "base/status.h"
#include "client/geometry.h"
#include "client/range.h"

#ifdef __cplusplus
#pragma GCC diagnostic pop
#endif

/* The library that is loaded: "0.1.0". Within one soname fields and functions are only added, at the end. */
const char *kvf_library_version(void);

/* ---- statistics: of one kvf_client, or of one kvf_engine over all its connections; since its start ---- */

struct kvf_stats {
    uint64_t put_blocks; /* committed */
    uint64_t put_bytes;  /* of those */
    uint64_t put_exists; /* somebody's content was there first */
    uint64_t put_failed; /* every other end of a put: PENDING, BUSY, TOO_LARGE, DRAINING, ... */
    uint64_t get_dram;   /* blocks that came, by where they were: here in DRAM, */
    uint64_t get_ssd;    /* here on SSD, */
    uint64_t get_remote_dram; /* at the source in DRAM, */
    uint64_t get_remote_ssd;  /* at the source on SSD */
    uint64_t get_bytes;       /* of all four */
    uint64_t get_misses;      /* NOT_FOUND, and every other end of a get but the four below */
    uint64_t get_corrupt;     /* bytes that were not what their checksum says */
    uint64_t get_busy;        /* no room by the deadline */
    uint64_t get_deadline;    /* no answer by the deadline */
    uint64_t get_unavailable; /* no daemon, or one that drains */
    /* By memcpy in libkvferry, to and from the caller's memory (kvf_engine only) */
    uint64_t copied_bytes;
    uint64_t registrations; /* times that a daemon took us */
    uint64_t drain_notices;
    uint64_t held_blocks; /* a gauge: places and pins that we hold now */
};

/* ---- kvf_client: one connection ---- */

struct kvf_client;

struct kvf_client_options {
    const char *socket_path; /* RUN_DIR/engine.sock, at most 107 bytes */
    /* For the daemon's log, e.g. "vllm rank 0"; at most 100 bytes count; NULL: none */
    const char *name;
    uint64_t timeout_ms; /* for Register; 0: 5000 */
    /* Told to the daemon, for its log; NULL: not told. Borrowed for the call */
    const struct kvf_geometry *geometry;
};

/* Connect, register, map the arenas. Borrows options for the call; gives *client on OK only. UNAVAILABLE: no daemon there.
 * DRAINING: it is going away. DENIED: its ACL does not name this user. DEADLINE: it does not answer. INVALID: path or
 * geometry. NO_MEMORY, PROTOCOL, UNSUPPORTED (another version). *why (may be NULL) says it in a line. */
KVF_MUST_USE struct kvf_status kvf_client_open(const struct kvf_client_options *options,
                                               struct kvf_client **give, struct kvf_why *why);
/* Release everything, unregister, unmap, free: no copy by a device may still be running. Waits at most 2 s for the daemon.
 * Always OK; detail 1 means that the daemon was gone already. NULL is fine. */
struct kvf_status kvf_client_close(struct kvf_client *client);

/* The socket: readable when the daemon has something to say (a DrainNotice, or its end). kvf_client_poll reads it: call it
 * before each sleep on this, for a notice that came amidst an answer has been read already. Do not read or close it. */
int kvf_client_fd(const struct kvf_client *client);
/* Take notices without blocking. OK, DRAINING (finish and close), UNAVAILABLE (the daemon is gone). */
KVF_MUST_USE struct kvf_status kvf_client_poll(struct kvf_client *client);

/* Longest sum of whole pages (4 KiB) that one kvf_get may pin, and one kvf_put_begin may hold, at this daemon. */
uint64_t kvf_client_max_get_bytes(const struct kvf_client *client);
uint64_t kvf_client_max_put_bytes(const struct kvf_client *client);

/* The daemon's start, raised with each; and the number by which its log calls this client. */
uint64_t kvf_client_boot_epoch(const struct kvf_client *client);
uint64_t kvf_client_instance(const struct kvf_client *client);

/* The mapped arenas, for those who register them with a device (client/device): the address, and in *bytes the length, of one
 * (index below the count). At most 1 GiB each. They stay mapped until kvf_client_close. */
size_t kvf_client_arena_count(const struct kvf_client *client);
void *kvf_client_arena(const struct kvf_client *client, size_t index, uint64_t *bytes);

void kvf_client_stats(const struct kvf_client *client, struct kvf_stats *stats);

/* ---- put ---- */

struct kvf_put {
    struct kvf_key key; /* in */
    uint64_t length;    /* in: 1 B to 128 MiB */
    /* out: OK: write `length` bytes at data; EXISTS: the first content won; PENDING: somebody else is putting it; BUSY,
     * TOO_LARGE, DENIED, ... */
    enum kvf_code code;
    /* out: in a mapped arena, 4 KiB-aligned, room for whole pages; NULL once committed or aborted */
    void *data;
    struct kvf_generation generation; /* out of commit */
    uint64_t handle;                  /* libkvferry's own */
    uint32_t crc32c;                  /* out of commit: of `length` bytes */
    uint32_t sealed;                  /* libkvferry's own */
};

/* Ask for places. Borrows ns and the keys for the call; puts[] is the caller's. A failure of the whole call leaves every
 * code set to it and holds nothing: INVALID (namespace, key, length 0, timeout 0), TOO_LARGE (a block, or the sum of whole
 * pages, is above kvf_client_max_put_bytes), DRAINING, UNAVAILABLE, DEADLINE, PROTOCOL. Waits for the drive when too
 * much is dirty; past the deadline such blocks are BUSY. */
KVF_MUST_USE struct kvf_status kvf_put_begin(struct kvf_client *client, const char *ns,
                                             struct kvf_put *puts, size_t count,
                                             uint64_t timeout_ms);
/* The bytes are written, by whatever device, and nobody writes them any more: zero the tails, compute CRC32C, make the blocks
 * visible. Only puts with code OK are sent; afterwards code is OK, or why the block is not visible. */
KVF_MUST_USE struct kvf_status kvf_put_commit(struct kvf_client *client, struct kvf_put *puts,
                                              size_t count);
/* Give the places back: those with code OK that were not committed. Nobody may write there any more. */
void kvf_put_abort(struct kvf_client *client, struct kvf_put *puts, size_t count);

/* ---- get ---- */

/* Check each CRC32C here, too: a mismatch is a miss (CORRUPT), and the daemon hears of it and looks for itself. */
#define KVF_GET_VERIFY 1u
#define KVF_GET_STOP_AT_FIRST_MISS                                                                 \
    2u /* only the contiguous prefix is wanted: what lies behind a gap may be a miss */

struct kvf_get_block {
    struct kvf_key key; /* in */
    uint64_t length;    /* in: 0 = any; out: the block's */
    enum kvf_code code; /* out: OK, or why it is a miss */
    /* out: `length` bytes in a mapped arena, 4 KiB-aligned, valid until released; NULL: not pinned */
    const void *data;
    uint32_t crc32c;
    enum kvf_tier tier;
    enum kvf_origin origin;
    struct kvf_generation generation;
    uint64_t get;   /* libkvferry's own: the request that pins it, */
    uint32_t index; /* and its place there */
};

struct kvf_get_options {
    const char *ns; /* TENANT/FINGERPRINT */
    /* HOST:PORT to ask for what is not here, the router's hint; NULL: the daemon's --peers */
    const char *source;
    uint64_t timeout_ms; /* mandatory; the daemon caps it at --query-timeout-s */
    unsigned flags;
};

/* Get blocks; those with code OK stay pinned until released. *prefix (may be NULL): how many from the first on came without a
 * gap. Returns OK also when blocks are missing. A failure of the whole call leaves every code set to it and pins nothing:
 * TOO_LARGE (the sum of whole pages is above kvf_client_max_get_bytes: ask for fewer at a time), INVALID, DRAINING, UNAVAILABLE,
 * DEADLINE, PROTOCOL. A key that somebody is putting is waited for until the deadline. */
KVF_MUST_USE struct kvf_status kvf_get(struct kvf_client *client,
                                       const struct kvf_get_options *options,
                                       struct kvf_get_block *blocks, size_t count, size_t *prefix);
/* Give back what kvf_get pinned; blocks that are not pinned are passed over. Every copy by a device must have ended. */
void kvf_get_release(struct kvf_client *client, struct kvf_get_block *blocks, size_t count);

/* What is there, pinning nothing: fills code (PENDING: somebody is putting it), length, tier, origin, and *prefix. A hint: by the
 * time of a get it may be gone. Without a source only this node is asked. Errors as kvf_get. */
KVF_MUST_USE struct kvf_status kvf_lookup(struct kvf_client *client,
                                          const struct kvf_get_options *options,
                                          struct kvf_get_block *blocks, size_t count,
                                          size_t *prefix);

/* Drop these keys here, in DRAM and on SSD; *forgotten (may be NULL): how many were there. INVALID, DENIED, DRAINING,
 * UNAVAILABLE, DEADLINE (10 s). */
KVF_MUST_USE struct kvf_status kvf_forget(struct kvf_client *client, const char *ns,
                                          const struct kvf_key *keys, size_t count,
                                          size_t *forgotten);

/* ---- kvf_engine: operations that complete by themselves, over whichever daemon is READY ----
 *
 *   DOWN      no daemon has us; every operation ends at once with UNAVAILABLE (its items are misses). A daemon is looked for
 *             after 50 ms, then less and less often, at least once a second
 *   UP        registered
 *   DRAINING  the daemon goes away: operations end at once with DRAINING, those that run finish, what is held stays valid;
 *             when the last of it is released we unregister, and are DOWN
 *
 * A daemon that is killed or restarted is the same as one that drains, only sooner: what runs ends with UNAVAILABLE, what is held
 * stays mapped until it is released (and is not to be trusted: KVF_OP_VERIFY), and the next READY daemon takes us. */

struct kvf_engine;

enum kvf_engine_state {
    KVF_ENGINE_DOWN = 0,
    KVF_ENGINE_UP = 1,
    KVF_ENGINE_DRAINING = 2,
};

struct kvf_engine_options {
    const char *socket_path; /* RUN_DIR/engine.sock; copied */
    const char *name;        /* as in kvf_client_options; copied */
    /* Checked, told to every daemon; copied, its texts too; NULL: none */
    const struct kvf_geometry *geometry;
    /* For those who register the arenas with a device; NULL otherwise. Both run on libkvferry's thread: `mapped` before any operation sees
     * these arenas (not OK: this daemon is given up and looked for again), `unmapping` after the last of them is released and before they
     * go. */
    struct kvf_status (*mapped)(void *context, const struct kvf_range *arenas, size_t count);
    void (*unmapping)(void *context, const struct kvf_range *arenas, size_t count);
    void *context;
};

enum kvf_op_kind {
    /* Items with memory: copied from there and committed. Without: ends when the places are there, then write and
     * kvf_engine_commit */
    KVF_OP_PUT = 1,
    KVF_OP_COMMIT = 2, /* set by kvf_engine_commit */
    /* Items with memory: copied there. Without: pinned in place until kvf_engine_release */
    KVF_OP_GET = 3,
    KVF_OP_LOOKUP = 4, /* fills code, length, tier, origin */
    KVF_OP_FORGET = 5, /* fills code: OK: it is not here any more, whether it was or not */
};

/* Of a get with memory: each piece is copied, and then the arena that it came from is read once more for the checksum. What was not the
 * block's when it was copied is a miss, also when somebody writes there meanwhile (unless it is undone between the two). The caller's
 * memory is not read. */
#define KVF_OP_VERIFY KVF_GET_VERIFY
#define KVF_OP_STOP_AT_FIRST_MISS KVF_GET_STOP_AT_FIRST_MISS

/* One block of an operation. */
struct kvf_item {
    struct kvf_key key; /* in */
    /* in: put: the block's; get: the block's, or 0 = any (in place only); out of get and lookup: the block's */
    uint64_t length;
    /* in: put: read from, get: written to, `length` bytes of the caller's, any alignment; NULL: in place. All items of an
     * operation alike. After a miss its bytes are undefined */
    void *memory;
    void *data;         /* out, in place: as in kvf_put and kvf_get_block; NULL: nothing is held */
    enum kvf_code code; /* out: OK, or why not (put: EXISTS, PENDING, ...; get: a miss) */
    enum kvf_tier tier;
    enum kvf_origin origin;
    uint32_t crc32c;
    struct kvf_generation generation;
    /* libkvferry's own: which connection holds it, the daemon's number there, and how. */
    uint64_t session, handle;
    uint32_t index, held;
};

/* One operation: zero it, fill the upper part, hand it over. The struct, its items, their memory and both texts are borrowed until
 * kvf_engine_next (or kvf_engine_run) gives it back, or kvf_engine_close returns; then it may be used again (an in-place one after its
 * release). */
struct kvf_op {
    enum kvf_op_kind kind;
    unsigned flags;      /* KVF_OP_VERIFY, KVF_OP_STOP_AT_FIRST_MISS */
    const char *ns;      /* TENANT/FINGERPRINT */
    const char *source;  /* get, lookup: as in kvf_get_options */
    uint64_t timeout_ms; /* 1 or more, of the whole operation */
    struct kvf_item *items;
    size_t count; /* 0 is fine: ends at once */
    void *user;   /* the caller's, untouched */

    /* out: OK also when items are missing; else every item has its code */
    struct kvf_status status;
    size_t prefix; /* out: items with code OK from the first on without a gap (put: OK or EXISTS) */

    void *own[8]; /* libkvferry's own */
};

/* Start the thread and look for a daemon; does not wait for one. Borrows options for the call. INVALID (path, geometry), NO_MEMORY.
 * Gives *engine on OK only. *why may be NULL. */
KVF_MUST_USE struct kvf_status kvf_engine_open(const struct kvf_engine_options *options,
                                               struct kvf_engine **give, struct kvf_why *why);
/* Cancel what runs, wait for its end (bounded by one copy of one block, and 2 s for the daemon), release what is held, unregister,
 * join, free. Operations that have ended and were not taken are the caller's again. No other call may be running or follow. NULL is
 * fine. */
void kvf_engine_close(struct kvf_engine *engine);

enum kvf_engine_state kvf_engine_state(struct kvf_engine *engine);
/* Wait until UP, at most so long: OK or DEADLINE; *why (may be NULL) then says what the last attempt met. */
KVF_MUST_USE struct kvf_status kvf_engine_wait_up(struct kvf_engine *engine, uint64_t timeout_ms,
                                                  struct kvf_why *why);
/* Of the daemon that has us, or had us last; 0 before. The limits are for one in-place operation; those with memory are cut to fit. */
uint64_t kvf_engine_max_get_bytes(struct kvf_engine *engine);
uint64_t kvf_engine_max_put_bytes(struct kvf_engine *engine);
uint64_t kvf_engine_boot_epoch(struct kvf_engine *engine);
uint64_t kvf_engine_instance(struct kvf_engine *engine);
void kvf_engine_stats(struct kvf_engine *engine, struct kvf_stats *stats);

/* Start an operation. OK: it ends exactly once, by its deadline and a moment, and kvf_engine_next gives it back. Never blocks.
 * INVALID starts nothing: kind, namespace, key, length, timeout, memory on some items only. Whatever else goes wrong is told by the
 * end: op->status and the items. */
KVF_MUST_USE struct kvf_status kvf_engine_submit(struct kvf_engine *engine, struct kvf_op *op);
/* The same and wait for the end; kvf_engine_next does not see it. Returns op->status. */
KVF_MUST_USE struct kvf_status kvf_engine_run(struct kvf_engine *engine, struct kvf_op *op);
/* End it soon, with CANCELLED, or as it ended meanwhile; its memory is the caller's again at its end, not before. */
void kvf_engine_cancel(struct kvf_engine *engine, struct kvf_op *op);

/* An eventfd (non-blocking): readable while ended operations wait to be taken. kvf_engine_next clears it with the last one; reading it is
 * allowed and needless. Closed by kvf_engine_close. */
int kvf_engine_event_fd(const struct kvf_engine *engine);
/* The operation that ended first and was not taken yet; NULL: none. Never blocks. */
struct kvf_op *kvf_engine_next(struct kvf_engine *engine);

/* In-place put: the bytes of every item with code OK are written. Starts op anew as KVF_OP_COMMIT; it ends once more, like a submitted
 * one. INVALID: not an in-place put that has ended and that kvf_engine_next (or kvf_engine_run) has given back. */
KVF_MUST_USE struct kvf_status kvf_engine_commit(struct kvf_engine *engine, struct kvf_op *op,
                                                 uint64_t timeout_ms);
/* Give back what `count` items of an ended in-place operation hold (pins, or places that were not committed): nobody reads or writes
 * there any more, no device either. Items that hold nothing are passed over. */
void kvf_engine_release(struct kvf_engine *engine, struct kvf_item *items, size_t count);

#ifdef __cplusplus
}
#endif

#endif
