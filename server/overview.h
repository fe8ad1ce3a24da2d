/* What the status page shows beside `stat --json`: /status.json, for people who look at one daemon now. The page that
 * draws it is overview.html, which is built into the daemon. Programs take `stat --json` or /metrics: those names stay. */
#ifndef KVFERRY_SERVER_OVERVIEW_H
#define KVFERRY_SERVER_OVERVIEW_H

#include "base/budget.h"
#include "base/log.h"
#include "server/stats.h"

#define KVF_OVERVIEW_PEERS 64 /* rows of each list of peers; what is more is only counted */

enum kvf_overview_budget {
    KVF_OVERVIEW_DIRTY = 0,
    KVF_OVERVIEW_PULL,
    KVF_OVERVIEW_SERVE,
    KVF_OVERVIEW_QUERY,
    KVF_OVERVIEW_INSTANCE, /* only limit and peak: of the one that held most */
    KVF_OVERVIEW_IDENTITY, /* likewise */
    KVF_OVERVIEW_BUDGETS
};

/* One session of a consumer with us, or one source that we pull from. Texts are borrowed. */
struct kvf_overview_peer {
    const char *who; /* identity of a consumer, address of a source */
    const char *tenant;
    const char *state; /* one word */
    uint64_t leases;   /* of a consumer */
};

struct kvf_overview_peers {
    struct kvf_overview_peer rows[KVF_OVERVIEW_PEERS];
    size_t count; /* all, also those that have no row */
};

struct kvf_overview {
    struct kvf_stats stats;
    uint64_t uptime_s;
    uint64_t drain_timeout_s;
    uint64_t drain_left_s; /* while draining: until the rest is forced */
    uint64_t engines;
    struct kvf_budget budgets[KVF_OVERVIEW_BUDGETS];
    struct kvf_overview_peers consumers, sources;
    char recent[KVF_LOG_RECENT][KVF_LOG_RECENT_BYTES]; /* the last warnings and errors */
    size_t recent_count;
};

/* A row, while there is room for it. */
void kvf_overview_add_peer(struct kvf_overview_peers *peers, struct kvf_overview_peer peer);
/* malloc'ed text; NULL when memory is out. */
char *kvf_overview_json(const struct kvf_overview *overview);

/* The page: HTML with its style and script, nothing else is fetched but /status.json. */
extern const char kvf_overview_page[];

#endif
