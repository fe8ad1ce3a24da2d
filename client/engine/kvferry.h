/* kvferry.h: libkvferry, an engine's way to its local kvferryd.
 *
 * An engine registers once, maps the daemon's arenas, and then puts blocks (it writes them where
 * the daemon says) and gets blocks (it reads them where the daemon says). Bytes never pass through
 * the socket.
 *
 *   prefill:  kvf_client_open -> kvf_put_begin -> copy into puts[i].data -> kvf_put_commit
 *   decode:   kvf_client_open -> kvf_get -> copy out of blocks[i].data -> kvf_get_release
 *   both:     kvf_client_close
 *
 * Threads: one thread at a time per client; different clients are independent. Calls block until
 * the answer or the deadline. Lists of any length are fine: they are cut into messages and joined
 * here.
 *
 * Life: REGISTERED -> (the daemon drains: every call answers KVF_DRAINING, what is held stays
 * valid) -> CLOSED. When the daemon is gone calls answer KVF_UNAVAILABLE; held memory stays mapped
 * until kvf_client_close. */
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

#ifdef __cplusplus
#pragma GCC diagnostic pop
#endif

struct kvf_client;

struct kvf_client_options {
    const char *socket_path; /* RUN_DIR/engine.sock */
    const char *name;        /* for the daemon's log, e.g. "vllm rank 0" */
    uint64_t timeout_ms;     /* for Register; 0: 5000 */
};

/* Connect, register, map the arenas. UNAVAILABLE: no daemon there. DRAINING: it is going away. *why
 * may be NULL. */
KVF_MUST_USE struct kvf_status kvf_client_open(const struct kvf_client_options *options,
                                               struct kvf_client **give, struct kvf_why *why);
/* Release everything, unregister, unmap, free. An OK status with detail 1 means: the daemon was
 * gone already. NULL is fine. */
struct kvf_status kvf_client_close(struct kvf_client *client);

/* The socket: readable when the daemon has something to say (a DrainNotice, or its end).
 * kvf_client_poll reads it. */
int kvf_client_fd(const struct kvf_client *client);
/* Take notices without blocking. OK, DRAINING (finish and unregister), UNAVAILABLE (the daemon is
 * gone). */
KVF_MUST_USE struct kvf_status kvf_client_poll(struct kvf_client *client);

/* Longest sum of whole pages that one Get may pin, and one PutBegin may hold, at this daemon. */
uint64_t kvf_client_max_get_bytes(const struct kvf_client *client);
uint64_t kvf_client_max_put_bytes(const struct kvf_client *client);

/* The mapped arenas, for those who register them with a device: the address and the length of one.
 * They stay mapped until kvf_client_close. */
size_t kvf_client_arena_count(const struct kvf_client *client);
void *kvf_client_arena(const struct kvf_client *client, size_t index, uint64_t *bytes);

/* ---- put ---- */

struct kvf_put {
    struct kvf_key key; /* in */
    uint64_t length;    /* in: 1 B to 128 MiB */
    enum kvf_code code; /* out: OK: write `length` bytes at data; EXISTS: the first content won;
                           PENDING, BUSY, ... */
    void *data;         /* out: in a mapped arena, 4 KiB-aligned, room for whole pages */
    struct kvf_generation generation; /* out of commit */
    uint64_t handle;                  /* libkvferry's own */
};

/* Ask for places. The sum of whole pages must not exceed kvf_client_max_put_bytes (TOO_LARGE). A
 * failure of the whole call leaves every code set to it. Waits for the drive when too much is
 * dirty; past the deadline: BUSY. */
KVF_MUST_USE struct kvf_status kvf_put_begin(struct kvf_client *client, const char *ns,
                                             struct kvf_put *puts, size_t count,
                                             uint64_t timeout_ms);
/* The bytes are written: zero the tails, compute CRC32C, make the blocks visible. Only puts with
 * code OK are sent; afterwards code is OK or why the block is not visible. */
KVF_MUST_USE struct kvf_status kvf_put_commit(struct kvf_client *client, struct kvf_put *puts,
                                              size_t count);
/* Give the places back unwritten: those with code OK that were not committed. */
void kvf_put_abort(struct kvf_client *client, struct kvf_put *puts, size_t count);

/* ---- get ---- */

/* Check each CRC32C here, too: a mismatch is a miss (CORRUPT), and the daemon hears of it and looks for itself. */
#define KVF_GET_VERIFY 1u
#define KVF_GET_STOP_AT_FIRST_MISS 2u /* only the contiguous prefix is wanted */

struct kvf_get_block {
    struct kvf_key key; /* in */
    uint64_t length;    /* in: 0 = any; out: the block's */
    enum kvf_code code; /* out: OK, or why it is a miss */
    const void *data;   /* out: `length` bytes in a mapped arena, valid until released */
    uint32_t crc32c;
    enum kvf_tier tier;
    enum kvf_origin origin;
    struct kvf_generation generation;
    uint64_t get;   /* libkvferry's own: the request that pins it, */
    uint32_t index; /* and its place there */
};

struct kvf_get_options {
    const char *ns;      /* TENANT/FINGERPRINT */
    const char *source;  /* HOST:PORT to ask for what is not here; NULL: the daemon's --peers */
    uint64_t timeout_ms; /* mandatory; the daemon caps it at --query-timeout-s */
    unsigned flags;
};

/* Get blocks; those with code OK stay pinned until released. *prefix (may be NULL): how many from
 * the first on came without a gap. Returns OK also when blocks are missing. TOO_LARGE: the sum
 * exceeds kvf_client_max_get_bytes: ask for fewer at a time. */
KVF_MUST_USE struct kvf_status kvf_get(struct kvf_client *client,
                                       const struct kvf_get_options *options,
                                       struct kvf_get_block *blocks, size_t count, size_t *prefix);
/* Give back what kvf_get pinned. */
void kvf_get_release(struct kvf_client *client, struct kvf_get_block *blocks, size_t count);

/* What is there, pinning nothing: fills code, length, tier, origin. */
KVF_MUST_USE struct kvf_status kvf_lookup(struct kvf_client *client,
                                          const struct kvf_get_options *options,
                                          struct kvf_get_block *blocks, size_t count,
                                          size_t *prefix);

/* Drop these keys here, in DRAM and on SSD; *forgotten (may be NULL): how many were there. */
KVF_MUST_USE struct kvf_status kvf_forget(struct kvf_client *client, const char *ns,
                                          const struct kvf_key *keys, size_t count,
                                          size_t *forgotten);

#ifdef __cplusplus
}
#endif

#endif
