/* What the operator said: flags, environment and file, resolved into one plain struct.
 *
 * Precedence: command line, then KVFERRY_<FLAG> (KVFERRY_POOL_MIB for --pool-mib), then --config
 * FILE (`flag = value` lines, # starts a comment), then the default. A list that a higher place
 * names replaces the whole list of a lower one. One table (config_table.c) drives parsing, --help
 * and docs/flags.md.
 *
 * Sizes are bytes here whatever unit the flag has, unless the name says otherwise. Immutable once
 * loaded, hence free to read from every thread; all strings belong to the struct. */
#ifndef KVFERRY_SERVER_CONFIG_H
#define KVFERRY_SERVER_CONFIG_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KVF_CONFIG_DEFAULT_HTTP "127.0.0.1:9471"

struct kvf_config_list {
    const char **items; /* NULL when count is 0 */
    size_t count;
};

/* What this start is for. */
enum kvf_config_action {
    KVF_CONFIG_RUN = 0,
    KVF_CONFIG_CHECK,         /* --check-config: check and exit */
    KVF_CONFIG_VERIFY,        /* --verify: check every record of the SSD paths offline and exit */
    KVF_CONFIG_HELP,          /* the rest of the struct is not filled for this and what follows */
    KVF_CONFIG_HELP_MARKDOWN, /* --help-markdown: docs/flags.md */
    KVF_CONFIG_VERSION,
};

enum kvf_config_transport {
    KVF_CONFIG_TRANSPORT_AUTO = 0,
    KVF_CONFIG_TRANSPORT_TCP,
    KVF_CONFIG_TRANSPORT_VERBS,
    KVF_CONFIG_TRANSPORT_UCX,
};

/* The numbers are those of enum kvf_store_io. */
enum kvf_config_ssd_io {
    KVF_CONFIG_SSD_IO_AUTO = 0,
    KVF_CONFIG_SSD_IO_URING,
    KVF_CONFIG_SSD_IO_PREAD,
};

enum kvf_config_write_policy {
    KVF_CONFIG_WRITE_ALL = 0,
    KVF_CONFIG_WRITE_REUSE,
};

enum kvf_config_cache_pulled {
    KVF_CONFIG_CACHE_PULLED_NONE = 0,
    KVF_CONFIG_CACHE_PULLED_SSD,
};

#define KVF_CONFIG_NOTES 8

struct kvf_config {
    enum kvf_config_action action;

    /* Node */
    const char *node_id; /* never NULL after a load that is to run */
    const char *run_dir; /* NULL only for actions that need none */
    const char *config_file;

    /* Network: HOST:PORT, NULL when not given */
    const char *listen;
    const char *data_listen; /* derived from listen (its host, port 0) when not given; NULL without
                                listen */
    const char *data_advertise;
    const char *http;
    struct kvf_config_list peers;
    enum kvf_config_transport transport;
    struct kvf_config_list nics; /* none: all of them */
    bool ucx_trust_peers;

    /* Security. Certificate, key and CA come together or not at all. */
    const char *tls_cert;
    const char *tls_key;
    const char *tls_ca;
    const char *acl;
    bool insecure_loopback;

    /* Memory */
    uint64_t pool_bytes;
    bool hugepages;
    uint64_t dirty_limit_bytes;
    uint64_t pull_limit_bytes;
    uint64_t serve_reserve_bytes;
    uint64_t serve_limit_bytes; /* no flag: what Reads may hold, at least the reserve */
    uint64_t query_limit_bytes;
    uint64_t query_limit_per_instance_bytes;
    uint64_t query_limit_per_identity_bytes;
    uint64_t max_grant_bytes;
    uint64_t max_blocks_per_read;

    /* SSD: no paths, no SSD tier */
    struct kvf_config_list ssd_paths;
    uint64_t ssd_capacity_bytes; /* per path */
    enum kvf_config_ssd_io ssd_io;
    uint64_t ssd_read_threads;
    uint64_t ssd_queue_depth;    /* per drive */
    uint64_t ssd_inflight_bytes; /* per drive */
    uint64_t ssd_io_bytes;
    enum kvf_config_write_policy ssd_write_policy;
    enum kvf_config_cache_pulled cache_pulled;

    /* Reads */
    uint64_t read_batch_bytes;       /* 0: demand baseline */
    uint64_t read_batches_in_flight; /* as it holds, after the rule of kvf_config_batch_rule */
    uint64_t read_batches_in_flight_asked;
    uint64_t query_timeout_s;
    uint64_t max_lease_s;
    uint64_t drain_timeout_s;

    /* What the operator should know although it is no error; one line each, logged by
     * kvf_config_log. */
    char notes[KVF_CONFIG_NOTES][240];
    size_t note_count;
};

/* Fill *config. argv[0] is skipped; environment ends with NULL and may be NULL. Nothing but the
 * --config file is opened: paths need not exist. On error (INVALID; NO_MEMORY) *why is one line
 * that names flag, value and remedy, and *config needs no release. --help and --version win over
 * what stands behind them. */
KVF_MUST_USE struct kvf_status kvf_config_load(int argc, char *const *argv,
                                               char *const *environment, struct kvf_config *config,
                                               struct kvf_why *why);
/* Free the strings and zero it; a zeroed struct is fine. */
void kvf_config_release(struct kvf_config *config);

/* What transport.h calls it; "tcp" for auto. */
const char *kvf_config_transport_name(enum kvf_config_transport transport);

/* The rule that start and `set read-batch-mib` share. A batch (bytes; 0 is always fine) that no
 * instance could ever reserve is INVALID with *why. Else *in_flight is how many Reads of it may
 * overlap: what was asked for, or floor(limit per instance / batch) where less; note (may be NULL)
 * says so then, and is empty otherwise. */
KVF_MUST_USE struct kvf_status kvf_config_batch_rule(const struct kvf_config *config,
                                                     uint64_t batch_bytes, uint64_t *in_flight,
                                                     struct kvf_why *note, struct kvf_why *why);

/* The effective configuration and the notes, in a few log lines. Call once. */
void kvf_config_log(const struct kvf_config *config);

/* --help: every flag, grouped, with default and range. */
void kvf_config_print_help(FILE *out);
/* The same as the page docs/flags.md. */
void kvf_config_print_markdown(FILE *out);

#endif
