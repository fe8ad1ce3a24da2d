/* The kvferry command: what its subcommands share. main.c reads the command line into cli_options and calls one
 * function; each returns the exit code and has said on stderr, in one line, why it is not 0. */
#ifndef KVFERRY_CLIENT_CLI_CLI_H
#define KVFERRY_CLIENT_CLI_CLI_H

#include "client/cli/words.h"
#include "client/kvferry.h"

/* What the command line said; strings are borrowed from it. NULL and 0: not given, or the default. */
struct cli_options {
    const char *run_dir;
    uint64_t timeout_ms;
    bool timeout_given;
    bool json;
    const char *json_path; /* replay: --json FILE */
    const char *output;    /* -o */
    const char *source;
    const char *tls_cert, *tls_key, *tls_ca;
    bool durable, dram, wait;
    const char *trace, *prefill, *decode;
    uint64_t block_bytes, requests, seed;
    bool interleaved;
    const char *sweep, *blocks;        /* bench */
    uint64_t pairs, restores, warmups; /* bench */
    bool warmups_given;
};

/* One call of libkvferry names at most this many blocks, so that it stays one request of its protocol: a second one
 * would wait for the memory that the first one holds. */
#define CLI_CALL_BLOCKS ((size_t)256)

enum words_exit cli_put(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_get(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_pull(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_stat(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_sync(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_evict(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_set(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_drain(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_replay(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_transports(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_trace(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_bench_pull(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_bench_fill(const struct cli_options *options, char **arguments, size_t count);
enum words_exit cli_bench_engine(const struct cli_options *options, char **arguments, size_t count);

/* Register with the daemon of this run directory. On a failure it is said already. */
enum words_exit cli_open(const char *what, const char *run_dir, uint64_t timeout_ms,
                         struct kvf_client **give);

#endif
