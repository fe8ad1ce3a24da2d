/* What the tests of an open store share: a directory, a loop, an arena, and synchronous put and get over them. */
#ifndef KVFERRY_STORAGE_FIXTURE_H
#define KVFERRY_STORAGE_FIXTURE_H

#include "storage/core.h"

#define FIXTURE_NAMESPACE "tenant/model-bf16"
#define FIXTURE_RECLAIMS_MAX 64
#define FIXTURE_FOUND_MAX 4096

struct fixture_found {
    struct kvf_record record; /* namespace is FIXTURE_NAMESPACE, checked */
    struct kvf_location location;
};

struct fixture {
    char path[64];  /* of the directory, empty at first */
    char other[64]; /* of the second drive's, if there is one */
    const char *paths[2];
    struct kvf_loop *loop;
    struct kvf_arena arena;
    const struct kvf_arena *arenas[1];
    struct kvf_store_options options;
    const struct kvf_engine *engine; /* opened with it; NULL: as options.io says */
    struct kvf_store *store;
    struct kvf_why why;
    /* what reclaim asked for */
    struct kvf_location reclaims[FIXTURE_RECLAIMS_MAX];
    unsigned reclaim_count;
    bool frees_at_once; /* reclaim is answered by kvf_store_free */
    struct kvf_recovery recovery;
    struct kvf_recovery_result result; /* once `recovered` */
    bool recovered;
    void (*on_found)(struct fixture *f); /* may be NULL; after each record */
    /* what recovery found */
    struct fixture_found *found;
    unsigned found_count;
};

/* One block: what is written, or where it is read to. */
struct fixture_block {
    uint64_t seed; /* of its content and key */
    struct kvf_append append;
    struct kvf_read read;
    struct kvf_location location;
    struct kvf_status status;
    uint64_t landed;
    unsigned landed_calls;
    unsigned order; /* of its end among all ends in this process */
    bool ended;
};

/* A directory under /tmp; arena_bytes of memory; small segments. Options and engine may be changed before open. */
void fixture_init(struct fixture *f, const struct kvf_engine *engine, uint64_t arena_bytes);
void fixture_fini(struct fixture *f); /* closes, removes the directories */
/* Before open: the store has a second drive, f->other. */
void fixture_add_drive(struct fixture *f);

struct kvf_status fixture_try_open(struct fixture *f);
void fixture_open(struct fixture *f); /* and recovers */
/* Start recovery, which collects in f->found; wait until it has ended. */
struct kvf_status fixture_start_recovery(struct fixture *f);
void fixture_wait_recovery(struct fixture *f);
void fixture_close(struct fixture *f);
void fixture_crash(struct fixture *f); /* closes; on disk the open segments are not sealed */
void fixture_reopen(struct fixture *f);

/* The record that a seed stands for. */
struct kvf_record fixture_record(uint64_t seed, uint64_t length, uint32_t crc32c);
/* Content of `length` bytes and a zero tail at the arena's offset. Returns its checksum. */
uint32_t fixture_fill(struct fixture *f, uint64_t offset, uint64_t seed, uint64_t length);

void fixture_append(struct fixture *f, struct fixture_block *block, uint64_t seed, uint64_t length,
                    uint64_t offset);
/* Prepares block->read for the location that block has, into the arena's offset, which is filled with a sentinel. */
void fixture_aim(struct fixture *f, struct fixture_block *block, uint64_t length, uint64_t offset);
/* Until all have ended; fails the test after 60 s. */
void fixture_wait(struct fixture *f, struct fixture_block *blocks, unsigned count);
/* True when the arena holds the seed's content at the block's extent, with its tail zero. */
bool fixture_is_right(struct fixture *f, const struct fixture_block *block);

/* Append one and wait: its status. */
struct kvf_status fixture_put(struct fixture *f, struct fixture_block *block, uint64_t seed,
                              uint64_t length);
/* Read one and wait: its status, CORRUPT when the bytes are not the seed's. */
struct kvf_status fixture_get(struct fixture *f, struct fixture_block *block, uint64_t length);
/* Take location and seed from what recover found. NULL when it did not find it. */
const struct fixture_found *fixture_find(const struct fixture *f, uint64_t seed);

/* Every record that recovery found reads back as the content of its key. */
void fixture_expect_found(struct fixture *f);

struct kvf_drive_stats fixture_stats(const struct fixture *f); /* of the first drive */
/* Until the first drive takes writes again; fails the test after 30 s. */
void fixture_wait_writable(struct fixture *f);

/* Damage: change one byte of a file in the directory. */
void fixture_flip(const struct fixture *f, const char *file, uint64_t offset);
void fixture_file_path(const struct fixture *f, const char *file, char path[128]);

#endif
