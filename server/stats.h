/* What an operator can see of a daemon: one snapshot, filled by the Manager's thread, rendered as
 * `stat --json` and as /metrics from the same numbers. Without an SSD tier (no drives) what belongs
 * to it is absent. Bytes and counts since start unless said otherwise. */
#ifndef KVFERRY_SERVER_STATS_H
#define KVFERRY_SERVER_STATS_H

#include "base/status.h"
#include "server/tenants.h"
#include "storage/storage.h"
#include "transport/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stages of a block's way, each a histogram of its own; they overlap and are never added up. */
enum kvf_stage {
    KVF_STAGE_ADMISSION = 0, /* a query's wait for its reservation */
    KVF_STAGE_LOAD,          /* an SSD load, start to last byte */
    KVF_STAGE_READ,          /* a pull, start to last verified byte */
    KVF_STAGE_VERIFY,        /* a CRC32C check of a block */
    KVF_STAGE_H2D,           /* a copy to a GPU; engines do these, so 0 unless they tell us */
    KVF_STAGE_COUNT
};

#define KVF_STAGE_BUCKETS 20 /* upper bounds: 16 us doubling, the last is +Inf */

struct kvf_histogram {
    uint64_t counts[KVF_STAGE_BUCKETS]; /* not cumulative */
    uint64_t count;
    uint64_t sum_ns;
};

void kvf_histogram_add(struct kvf_histogram *histogram, uint64_t ns);

/* Where the blocks of Gets were found: label `tier` of blocks_total. */
enum kvf_hit {
    KVF_HIT_DRAM = 0,
    KVF_HIT_SSD,
    KVF_HIT_REMOTE_DRAM,
    KVF_HIT_REMOTE_SSD,
    KVF_HIT_COUNT
};

/* "remote_dram" */
const char *kvf_hit_name(enum kvf_hit hit);

/* Why a block never reached its SSD, or was lost here: label `reason` of dropped_blocks_total. */
enum kvf_drop {
    KVF_DROP_NO_SSD = 0,  /* no SSD tier: clean at once */
    KVF_DROP_SSD_SHARE,   /* likewise, for it is larger than its tenant's share of the SSD */
    KVF_DROP_WRITE_ERROR, /* the drive refused */
    KVF_DROP_READ_ERROR,  /* the drive does not give it back */
    KVF_DROP_CORRUPT,     /* its bytes are not those of its checksum, whoever found out */
    KVF_DROP_COUNT
};

/* The seven numbers that must read 0 after the last request. */
struct kvf_drain_gauges {
    uint64_t query_bytes;
    uint64_t leases;
    uint64_t pinned_bytes;
    uint64_t ssd_reads;  /* in flight; absent without an SSD tier */
    uint64_t ssd_writes; /* likewise */
    uint64_t dirty_bytes;
    uint64_t quarantine_bytes;
};

/* What the parts count into as they go. */
struct kvf_counters {
    struct {
        uint64_t reads, blocks, bytes, busy;
    } serve; /* as the source */
    struct {
        uint64_t blocks, exists, busy;
    } puts;
    uint64_t coalesced_loads;
    uint64_t hits[KVF_HIT_COUNT];
    uint64_t misses[KVF_CODE_COUNT]; /* by reason: a status code, rendered in lower case */
    uint64_t dropped[KVF_DROP_COUNT];
    struct kvf_histogram stages[KVF_STAGE_COUNT];
};

/* What went over the lanes of one transport. */
struct kvf_lane_traffic {
    const char *transport;
    struct kvf_lane_stats lanes;
};

#define KVF_LANE_TRAFFIC_MAX 2

struct kvf_stats {
    const char *node_id;
    const char *state;     /* STARTING, READY, DRAINING, CLOSED */
    const char *degraded;  /* NULL, or why READY is not the whole truth (a drive is read-only) */
    const char *waits_for; /* NULL, or what a drain that is going on waits for */
    uint64_t boot_epoch;
    const char *transport; /* "tcp", "verbs" or "ucx": the preferred one */
    struct kvf_lane_traffic lanes[KVF_LANE_TRAFFIC_MAX]; /* lane_count of them */
    size_t lane_count;
    uint64_t read_batch_mib;
    struct kvf_counters counters;
    struct {
        uint64_t reads, blocks, bytes, misses;
    } pull; /* as the consumer */
    struct {
        uint64_t bytes, dirty, pull, serve, clean;
    } pool; /* bytes: the whole; the classes: charged now; clean: cached and unpinned now */
    struct {
        uint64_t blocks, bytes;  /* blocks known; what the index takes for them, beside the pool */
        uint64_t evicted_blocks; /* from SSD, for their segment was given back */
    } index;
    struct {
        uint64_t bytes, peak_bytes, peak_instance_bytes, peak_identity_bytes;
        uint64_t waited; /* Gets and Reads that were not admitted at once */
    } query;
    struct kvf_drain_gauges drain;
    const struct kvf_drive_stats *drives; /* drive_count of them; none: no SSD tier */
    size_t drive_count;
    const struct kvf_tenants *tenants; /* NULL: none has a share */
};

/* The JSON of `stat --json`, malloc'ed text; NULL when memory is out. */
char *kvf_stats_json(const struct kvf_stats *stats);
/* Prometheus text format 0.0.4, malloc'ed; NULL when memory is out. */
char *kvf_stats_metrics(const struct kvf_stats *stats);
/* `query_bytes=0 leases=0 ...`: the seven gauges for the last log line. Writes at most `room`
 * bytes. */
void kvf_drain_gauges_text(const struct kvf_stats *stats, char *text, size_t room);

#endif
