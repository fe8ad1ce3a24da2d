/* kvferry bench: what its three parts share.
 *
 *   fill    (bench_restore.c)  puts the blocks that the other two restore
 *   engine  (bench_engine.c)   one restore for each line of stdin, told in JSON: for deploy/qualify
 *   pull    (bench_pull.c)     a sweep over values of a setting, and a table
 *
 * A restore is what a decode engine does with a prefix: get the blocks, copy them out of the daemon's arena to where the
 * computation wants them (host memory here), give them back. Contents come from (seed, block number), as replay's do. */
#ifndef KVFERRY_CLIENT_CLI_BENCH_H
#define KVFERRY_CLIENT_CLI_BENCH_H

#include "client/cli/cli.h"

#define BENCH_BLOCK_BYTES UINT64_C(9437184) /* a page of 64 tokens of Qwen3-8B */

struct bench {
    const struct cli_options *options;
    const char *ns;
    char own_ns[KVF_NAMESPACE_MAX_BYTES + 1];
    struct kvf_client *client;
    uint64_t block_bytes;
    size_t blocks_most; /* the destination has room for so many */
    char *destination;
    struct kvf_get_block blocks[CLI_CALL_BLOCKS];
};

/* What came of one restore. */
struct bench_restore {
    uint64_t get_ns;  /* kvf_get */
    uint64_t copy_ns; /* out of the arena */
    uint64_t bytes;   /* that were copied */
    size_t missing;
    size_t mismatches; /* blocks whose copy differs from what was put, anywhere */
    size_t dram, ssd, remote_dram, remote_ssd;
    enum kvf_code reason; /* of the first missing block; else OK */
};

/* NS, or bench/b<block bytes>-s<seed>. Opens nothing yet. `what` is for messages, here and below. */
enum words_exit bench_begin(struct bench *bench, const char *what,
                            const struct cli_options *options, char **arguments, size_t count);
/* Register with the daemon of --run-dir, and make a destination for `blocks` blocks. */
enum words_exit bench_open(struct bench *bench, const char *what, size_t blocks);
/* Unregister, free. An OK status with detail 1: the daemon was gone already. */
struct kvf_status bench_close(struct bench *bench);

/* Put blocks [0, blocks) at the daemon of `run_dir`, and leave them on its SSD only; where it has none, in its DRAM. */
enum words_exit bench_fill(struct bench *bench, const char *what, const char *run_dir,
                           size_t blocks);
/* Forget blocks [0, blocks) at our daemon, so that the next restore asks the source. */
KVF_MUST_USE struct kvf_status bench_forget(struct bench *bench, size_t blocks);
/* Restore blocks [0, blocks) into a destination that is filled with a sentinel before, compare every byte, forget them
 * again. The status is that of the daemon; blocks that are missing are counted. */
KVF_MUST_USE struct kvf_status bench_restore(struct bench *bench, size_t blocks,
                                             struct bench_restore *restore);

#endif
