/* Parts: the histogram, JSON, Prometheus text, the gauges as text. */
#include "server/stats.h"

#include "server/json.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKET_NS UINT64_C(16000)

/* Upper bound of a bucket; the last one has none. */
static uint64_t bucket_ns(unsigned bucket)
{
    return FIRST_BUCKET_NS << bucket;
}

void kvf_histogram_add(struct kvf_histogram *histogram, uint64_t ns)
{
    unsigned bucket = 0;
    while (bucket < KVF_STAGE_BUCKETS - 1 && ns > bucket_ns(bucket))
        bucket++;
    histogram->counts[bucket]++;
    histogram->count++;
    histogram->sum_ns += ns;
}

const char *kvf_hit_name(enum kvf_hit hit)
{
    static const char *const names[KVF_HIT_COUNT] = {
        [KVF_HIT_DRAM] = "dram",
        [KVF_HIT_SSD] = "ssd",
        [KVF_HIT_REMOTE_DRAM] = "remote_dram",
        [KVF_HIT_REMOTE_SSD] = "remote_ssd",
    };
    kvf_assert(hit < KVF_HIT_COUNT);
    return names[hit];
}

/* The gauges in their order. Storage's are absent where there is no SSD tier. */
struct gauge {
    const char *name;
    uint64_t value;
    bool present;
    const char *help;
};

#define GAUGES 7

static void list_gauges(const struct kvf_stats *stats, struct gauge gauges[GAUGES])
{
    const struct kvf_drain_gauges *drain = &stats->drain;
    const bool ssd = stats->drive_count > 0;
    const struct gauge all[GAUGES] = {
        {"query_bytes", drain->query_bytes, true, "Bytes that open Gets and Reads hold"},
        {"leases", drain->leases, true, "Reads of peers that are not released"},
        {"pinned_bytes", drain->pinned_bytes, true, "Bytes that nobody may evict now"},
        {"ssd_reads", drain->ssd_reads, ssd, "Reads of the SSD in flight"},
        {"ssd_writes", drain->ssd_writes, ssd, "Writes to the SSD in flight"},
        {"dirty_bytes", drain->dirty_bytes, true, "Bytes of puts that are not on SSD yet"},
        {"quarantine_bytes", drain->quarantine_bytes, true,
         "Bytes that somebody who is gone could still touch"},
    };
    memcpy(gauges, all, sizeof(all));
}

/* ---- JSON ---- */

static void add_drive(struct json *json, cJSON *array, const struct kvf_drive_stats *drive)
{
    cJSON *object = json_element(json, array);
    json_text(json, object, "path", drive->path);
    json_number(json, object, "capacity_bytes", drive->capacity_bytes);
    json_number(json, object, "used_bytes", drive->used_bytes);
    json_number(json, object, "read_sets", drive->read_sets);
    json_number(json, object, "read_sqes", drive->read_sqes);
    json_number(json, object, "read_payload_bytes", drive->read_payload_bytes);
    json_number(json, object, "read_device_bytes", drive->read_device_bytes);
    json_number(json, object, "read_errors", drive->read_errors);
    json_number(json, object, "write_payload_bytes", drive->write_payload_bytes);
    json_number(json, object, "write_device_bytes", drive->write_device_bytes);
    json_number(json, object, "write_syncs", drive->write_syncs);
    json_number(json, object, "carried_blocks", drive->carried_blocks);
    json_number(json, object, "carried_bytes", drive->carried_bytes);
    json_number(json, object, "carries_failed", drive->carries_failed);
    json_number(json, object, "registrations", drive->registrations);
    json_number(json, object, "dropped", drive->dropped);
    json_flag(json, object, "read_only", drive->read_only);
    json_flag(json, object, "recovering", drive->recovering);
}

static void add_traffic(struct json *json, cJSON *root, const struct kvf_stats *stats)
{
    const struct kvf_counters *counters = &stats->counters;
    cJSON *pull = json_object(json, root, "pull");
    json_number(json, pull, "reads", stats->pull.reads);
    json_number(json, pull, "blocks", stats->pull.blocks);
    json_number(json, pull, "bytes", stats->pull.bytes);
    json_number(json, pull, "misses", stats->pull.misses);
    cJSON *serve = json_object(json, root, "serve");
    json_number(json, serve, "reads", counters->serve.reads);
    json_number(json, serve, "blocks", counters->serve.blocks);
    json_number(json, serve, "bytes", counters->serve.bytes);
    json_number(json, serve, "busy", counters->serve.busy);
    cJSON *puts = json_object(json, root, "puts");
    json_number(json, puts, "blocks", counters->puts.blocks);
    json_number(json, puts, "exists", counters->puts.exists);
    json_number(json, puts, "busy", counters->puts.busy);
}

static void add_lanes(struct json *json, cJSON *root, const struct kvf_stats *stats)
{
    cJSON *lanes = json_array(json, root, "lanes");
    for (size_t at = 0; at < stats->lane_count; at++) {
        cJSON *lane = json_element(json, lanes);
        const struct kvf_lane_traffic *traffic = &stats->lanes[at];
        json_text(json, lane, "transport", traffic->transport);
        json_number(json, lane, "sent_bytes", traffic->lanes.sent_bytes);
        json_number(json, lane, "received_bytes", traffic->lanes.received_bytes);
        json_number(json, lane, "discarded_bytes", traffic->lanes.discarded_bytes);
        json_number(json, lane, "protocol_errors", traffic->lanes.protocol_errors);
    }
}

static void add_memory(struct json *json, cJSON *root, const struct kvf_stats *stats)
{
    cJSON *pool = json_object(json, root, "pool");
    json_number(json, pool, "bytes", stats->pool.bytes);
    json_number(json, pool, "dirty", stats->pool.dirty);
    json_number(json, pool, "pull", stats->pool.pull);
    json_number(json, pool, "serve", stats->pool.serve);
    json_number(json, pool, "clean", stats->pool.clean);
    cJSON *index = json_object(json, root, "index");
    json_number(json, index, "blocks", stats->index.blocks);
    json_number(json, index, "bytes", stats->index.bytes);
    json_number(json, index, "ssd_evicted_blocks", stats->index.evicted_blocks);
    cJSON *query = json_object(json, root, "query");
    json_number(json, query, "bytes", stats->query.bytes);
    json_number(json, query, "peak_bytes", stats->query.peak_bytes);
    json_number(json, query, "peak_instance_bytes", stats->query.peak_instance_bytes);
    json_number(json, query, "peak_identity_bytes", stats->query.peak_identity_bytes);
    json_number(json, query, "waited", stats->query.waited);
    json_number(json, root, "coalesced_loads", stats->counters.coalesced_loads);
}

static void add_tenant(struct json *json, cJSON *tenants, const struct kvf_tenant *tenant, bool ssd)
{
    cJSON *object = json_object(json, tenants, tenant->name);
    json_number(json, object, "dram_bytes", tenant->used_bytes[KVF_SHARE_DRAM]);
    if (kvf_tenant_has_share(tenant, KVF_SHARE_DRAM))
        json_number(json, object, "dram_limit_bytes", tenant->limit_bytes[KVF_SHARE_DRAM]);
    if (!ssd)
        return;
    json_number(json, object, "ssd_bytes", tenant->used_bytes[KVF_SHARE_SSD]);
    if (kvf_tenant_has_share(tenant, KVF_SHARE_SSD))
        json_number(json, object, "ssd_limit_bytes", tenant->limit_bytes[KVF_SHARE_SSD]);
    json_number(json, object, "ssd_shed_blocks", tenant->shed_blocks);
}

static void add_tenants(struct json *json, cJSON *root, const struct kvf_stats *stats)
{
    if (stats->tenants == NULL)
        return;
    cJSON *tenants = json_object(json, root, "tenants");
    const struct kvf_tenant *tenant = NULL;
    while ((tenant = kvf_tenants_next(stats->tenants, tenant)) != NULL)
        add_tenant(json, tenants, tenant, stats->drive_count > 0);
}

static void add_drain(struct json *json, cJSON *root, const struct kvf_stats *stats)
{
    struct gauge gauges[GAUGES];
    cJSON *drain = json_object(json, root, "drain");
    list_gauges(stats, gauges);
    for (size_t at = 0; at < GAUGES; at++)
        if (gauges[at].present)
            json_number(json, drain, gauges[at].name, gauges[at].value);
}

char *kvf_stats_json(const struct kvf_stats *stats)
{
    struct json json = {.ok = true};
    cJSON *root = cJSON_CreateObject();
    if (root == NULL)
        return NULL;
    json_text(&json, root, "node_id", stats->node_id);
    json_text(&json, root, "state", stats->state);
    if (stats->degraded != NULL)
        json_text(&json, root, "degraded", stats->degraded);
    if (stats->waits_for != NULL)
        json_text(&json, root, "waits_for", stats->waits_for);
    json_number(&json, root, "boot_epoch", stats->boot_epoch);
    json_text(&json, root, "transport", stats->transport);
    json_number(&json, root, "read_batch_mib", stats->read_batch_mib);
    add_traffic(&json, root, stats);
    add_lanes(&json, root, stats);
    add_memory(&json, root, stats);
    cJSON *ssd = stats->drive_count > 0 ? json_array(&json, root, "ssd") : NULL;
    for (size_t at = 0; at < stats->drive_count; at++)
        add_drive(&json, ssd, &stats->drives[at]);
    add_tenants(&json, root, stats);
    add_drain(&json, root, stats);
    char *text = json.ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

/* ---- Prometheus ---- */

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    (void)fprintf(out, "# HELP kvferry_%s %s.\n# TYPE kvferry_%s %s\n", name, help, name, type);
}

static void plain(FILE *out, const char *name, const char *type, uint64_t value, const char *help)
{
    head(out, name, type, help);
    (void)fprintf(out, "kvferry_%s %" PRIu64 "\n", name, value);
}

static void counter(FILE *out, const char *name, uint64_t value, const char *help)
{
    plain(out, name, "counter", value, help);
}

static void gauge(FILE *out, const char *name, uint64_t value, const char *help)
{
    plain(out, name, "gauge", value, help);
}

/* One line of a labelled metric; the value is escaped. */
static void labelled(FILE *out, const char *name, const char *label, const char *text,
                     uint64_t value)
{
    (void)fprintf(out, "kvferry_%s{%s=\"", name, label);
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            (void)fputs("\\n", out);
        else
            (void)fprintf(out, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
    (void)fprintf(out, "\"} %" PRIu64 "\n", value);
}

static void print_queries(FILE *out, const struct kvf_stats *stats)
{
    const struct kvf_counters *counters = &stats->counters;
    head(out, "blocks_total", "counter", "Blocks of Gets by where they were found");
    for (size_t at = 0; at < KVF_HIT_COUNT; at++)
        labelled(out, "blocks_total", "tier", kvf_hit_name(at), counters->hits[at]);
    head(out, "misses_total", "counter", "Blocks of Gets that were not found, by reason");
    for (unsigned code = KVF_OK + 1; code < KVF_CODE_COUNT; code++) {
        char reason[32];
        (void)snprintf(reason, sizeof(reason), "%s", kvf_code_name(code));
        for (char *at = reason; *at != '\0'; at++)
            *at = (char)tolower((unsigned char)*at);
        labelled(out, "misses_total", "reason", reason, counters->misses[code]);
    }
    counter(out, "queries_waited_total", stats->query.waited,
            "Gets and Reads that waited for their reservation");
    counter(out, "coalesced_loads_total", counters->coalesced_loads,
            "Blocks that joined a load of somebody else");
    gauge(out, "query_bytes", stats->query.bytes, "Bytes that Gets and Reads hold now");
    gauge(out, "query_peak_bytes", stats->query.peak_bytes, "The most that was held since start");
    gauge(out, "query_peak_instance_bytes", stats->query.peak_instance_bytes,
          "The most that one instance held since start");
    gauge(out, "query_peak_identity_bytes", stats->query.peak_identity_bytes,
          "The most that one identity of peers held since start");
}

static void print_lanes(FILE *out, const struct kvf_stats *stats)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } counts[] = {
        {"lane_sent_bytes_total", "Bytes of blocks that left, by transport",
         offsetof(struct kvf_lane_stats, sent_bytes)},
        {"lane_received_bytes_total", "Bytes of blocks that came, by transport",
         offsetof(struct kvf_lane_stats, received_bytes)},
        {"lane_discarded_bytes_total", "Bytes that came and that nobody expected any more",
         offsetof(struct kvf_lane_stats, discarded_bytes)},
        {"lane_protocol_errors_total", "Connections of lanes ended for what they sent",
         offsetof(struct kvf_lane_stats, protocol_errors)},
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        head(out, counts[i].name, "counter", counts[i].help);
        for (size_t at = 0; at < stats->lane_count; at++) {
            uint64_t value;
            memcpy(&value, (const char *)&stats->lanes[at].lanes + counts[i].at, sizeof(value));
            labelled(out, counts[i].name, "transport", stats->lanes[at].transport, value);
        }
    }
}

static void print_traffic(FILE *out, const struct kvf_stats *stats)
{
    const struct kvf_counters *counters = &stats->counters;
    counter(out, "pull_reads_total", stats->pull.reads, "Reads as the consumer that got grants");
    counter(out, "pull_blocks_total", stats->pull.blocks, "Blocks pulled and verified");
    counter(out, "pull_bytes_total", stats->pull.bytes, "Their bytes");
    counter(out, "pull_misses_total", stats->pull.misses, "Blocks that a source did not give");
    counter(out, "serve_reads_total", counters->serve.reads, "Reads as the source that got grants");
    counter(out, "serve_blocks_total", counters->serve.blocks, "Blocks served");
    counter(out, "serve_bytes_total", counters->serve.bytes, "Their bytes");
    counter(out, "serve_busy_total", counters->serve.busy, "Reads refused for lack of room");
    print_lanes(out, stats);
    head(out, "puts_total", "counter", "Blocks of puts by outcome");
    labelled(out, "puts_total", "outcome", "stored", counters->puts.blocks);
    labelled(out, "puts_total", "outcome", "exists", counters->puts.exists);
    labelled(out, "puts_total", "outcome", "busy", counters->puts.busy);
}

static void print_pool(FILE *out, const struct kvf_stats *stats)
{
    gauge(out, "pool_bytes", stats->pool.bytes, "All DRAM for blocks");
    head(out, "pool_class_bytes", "gauge", "What each class of the pool holds now");
    labelled(out, "pool_class_bytes", "class", "dirty", stats->pool.dirty);
    labelled(out, "pool_class_bytes", "class", "pull", stats->pool.pull);
    labelled(out, "pool_class_bytes", "class", "serve", stats->pool.serve);
    labelled(out, "pool_class_bytes", "class", "clean", stats->pool.clean);
    gauge(out, "index_blocks", stats->index.blocks, "Blocks known, in DRAM or on SSD");
    gauge(out, "index_bytes", stats->index.bytes, "Memory of the index, beside the pool");
}

/* What depends on drives and has their path as a label. False: no memory. */
static bool print_drives(FILE *out, const struct kvf_stats *stats)
{
    static const struct {
        const char *name, *help;
    } metrics[] = {
        {"ssd_capacity_bytes", "Preallocated bytes per drive"},
        {"ssd_used_bytes", "Bytes of whole records per drive"},
        {"ssd_read_only", "1 where a drive refused writes"},
        {"ssd_recovering", "1 while recovery has not found all of a drive's records"},
    };
    for (size_t metric = 0; metric < sizeof(metrics) / sizeof(metrics[0]); metric++) {
        head(out, metrics[metric].name, "gauge", metrics[metric].help);
        for (size_t at = 0; at < stats->drive_count; at++) {
            const struct kvf_drive_stats *drive = &stats->drives[at];
            const uint64_t values[] = {drive->capacity_bytes, drive->used_bytes, drive->read_only,
                                       drive->recovering};
            char *path = kvf_json_utf8(drive->path);
            if (path == NULL)
                return false;
            labelled(out, metrics[metric].name, "path", path, values[metric]);
            free(path);
        }
    }
    return true;
}

static bool print_ssd(FILE *out, const struct kvf_stats *stats)
{
    struct kvf_drive_stats sum = {0};
    for (size_t at = 0; at < stats->drive_count; at++) {
        const struct kvf_drive_stats *drive = &stats->drives[at];
        sum.read_sets += drive->read_sets;
        sum.read_sqes += drive->read_sqes;
        sum.read_payload_bytes += drive->read_payload_bytes;
        sum.read_device_bytes += drive->read_device_bytes;
        sum.read_errors += drive->read_errors;
        sum.write_payload_bytes += drive->write_payload_bytes;
        sum.write_device_bytes += drive->write_device_bytes;
        sum.write_syncs += drive->write_syncs;
        sum.carried_blocks += drive->carried_blocks;
        sum.carried_bytes += drive->carried_bytes;
        sum.carries_failed += drive->carries_failed;
        sum.registrations += drive->registrations;
    }
    counter(out, "ssd_read_sets_total", sum.read_sets, "Sets of blocks read together");
    counter(out, "ssd_read_sqes_total", sum.read_sqes, "Pieces of reads handed to the kernel");
    counter(
        out, "ssd_registrations_total", sum.registrations,
        "Registrations that pinned the pool: one where the kernel can share it, else one per ring");
    head(out, "ssd_payload_bytes_total", "counter", "Bytes of blocks read and written");
    labelled(out, "ssd_payload_bytes_total", "op", "read", sum.read_payload_bytes);
    labelled(out, "ssd_payload_bytes_total", "op", "write", sum.write_payload_bytes);
    head(out, "ssd_device_bytes_total", "counter", "Bytes that the drives moved for them");
    labelled(out, "ssd_device_bytes_total", "op", "read", sum.read_device_bytes);
    labelled(out, "ssd_device_bytes_total", "op", "write", sum.write_device_bytes);
    counter(out, "ssd_read_errors_total", sum.read_errors,
            "Reads of blocks that failed: misses, the third in a row of a block loses it");
    counter(out, "ssd_evicted_blocks_total", stats->index.evicted_blocks,
            "Blocks that left the SSD, for their segment was given back");
    counter(out, "ssd_write_syncs_total", sum.write_syncs, "Times that writes were made durable");
    counter(out, "ssd_carried_blocks_total", sum.carried_blocks,
            "Blocks written again before their segment was reused: asked for, or within a share");
    counter(out, "ssd_carried_bytes_total", sum.carried_bytes, "Their bytes");
    counter(out, "ssd_carries_failed_total", sum.carries_failed,
            "Blocks that were to be, and found no room or could not be read");
    static const char *const reasons[KVF_DROP_COUNT] = {
        [KVF_DROP_NO_SSD] = "no_ssd",           [KVF_DROP_SSD_SHARE] = "ssd_share",
        [KVF_DROP_WRITE_ERROR] = "write_error", [KVF_DROP_READ_ERROR] = "read_error",
        [KVF_DROP_CORRUPT] = "corrupt",
    };
    head(out, "dropped_blocks_total", "counter",
         "Blocks that never reached the SSD, or were lost here, by reason");
    for (size_t at = 0; at < KVF_DROP_COUNT; at++)
        labelled(out, "dropped_blocks_total", "reason", reasons[at], stats->counters.dropped[at]);
    return print_drives(out, stats);
}

static void print_histogram(FILE *out, const char *stage, const struct kvf_histogram *histogram)
{
    uint64_t below = 0;
    for (unsigned bucket = 0; bucket < KVF_STAGE_BUCKETS; bucket++) {
        char bound[32] = "+Inf";
        const uint64_t us = bucket_ns(bucket) / 1000;
        below += histogram->counts[bucket];
        if (bucket < KVF_STAGE_BUCKETS - 1)
            (void)snprintf(bound, sizeof(bound), "%" PRIu64 ".%06" PRIu64, us / 1000000,
                           us % 1000000);
        (void)fprintf(out, "kvferry_stage_seconds_bucket{stage=\"%s\",le=\"%s\"} %" PRIu64 "\n",
                      stage, bound, below);
    }
    (void)fprintf(out, "kvferry_stage_seconds_sum{stage=\"%s\"} %" PRIu64 ".%09" PRIu64 "\n", stage,
                  histogram->sum_ns / 1000000000, histogram->sum_ns % 1000000000);
    (void)fprintf(out, "kvferry_stage_seconds_count{stage=\"%s\"} %" PRIu64 "\n", stage,
                  histogram->count);
}

/* UINT64_MAX: there is none. */
static uint64_t tenant_value(const struct kvf_tenant *tenant, int metric)
{
    const uint64_t values[] = {
        tenant->used_bytes[KVF_SHARE_DRAM], tenant->limit_bytes[KVF_SHARE_DRAM],
        tenant->used_bytes[KVF_SHARE_SSD], tenant->limit_bytes[KVF_SHARE_SSD], tenant->shed_blocks};
    return values[metric];
}

static void print_tenants(FILE *out, const struct kvf_tenants *tenants)
{
    static const struct {
        const char *name, *type, *help;
    } metrics[] = {
        {"tenant_dram_bytes", "gauge", "What a tenant has in DRAM, while any tenant has a share"},
        {"tenant_dram_limit_bytes", "gauge", "Its share of DRAM"},
        {"tenant_ssd_bytes", "gauge", "What it has on SSD"},
        {"tenant_ssd_limit_bytes", "gauge", "Its share of the SSD"},
        {"tenant_ssd_shed_blocks_total", "counter",
         "Its blocks that left the SSD for its newer ones"},
    };
    for (int metric = 0; metric < (int)(sizeof(metrics) / sizeof(metrics[0])); metric++) {
        const struct kvf_tenant *tenant = NULL;
        head(out, metrics[metric].name, metrics[metric].type, metrics[metric].help);
        while (tenants != NULL && (tenant = kvf_tenants_next(tenants, tenant)) != NULL)
            if (tenant_value(tenant, metric) != UINT64_MAX)
                labelled(out, metrics[metric].name, "tenant", tenant->name,
                         tenant_value(tenant, metric));
    }
}

static void print_stages(FILE *out, const struct kvf_counters *counters)
{
    static const char *const stages[KVF_STAGE_COUNT] = {
        [KVF_STAGE_ADMISSION] = "admission", [KVF_STAGE_LOAD] = "load", [KVF_STAGE_READ] = "read",
        [KVF_STAGE_VERIFY] = "verify",       [KVF_STAGE_H2D] = "h2d",
    };
    head(out, "stage_seconds", "histogram",
         "Time of each stage of a block's way; stages overlap and do not add up");
    for (size_t at = 0; at < KVF_STAGE_COUNT; at++)
        print_histogram(out, stages[at], &counters->stages[at]);
}

static void print_drain(FILE *out, const struct kvf_stats *stats)
{
    struct gauge gauges[GAUGES];
    list_gauges(stats, gauges);
    for (size_t at = 0; at < GAUGES; at++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "drain_%s", gauges[at].name);
        head(out, name, "gauge", gauges[at].help);
        if (gauges[at].present)
            (void)fprintf(out, "kvferry_%s %" PRIu64 "\n", name, gauges[at].value);
    }
}

static void print_life(FILE *out, const struct kvf_stats *stats)
{
    static const char *const states[] = {"STARTING", "READY", "DRAINING", "CLOSED"};
    head(out, "state", "gauge", "1 at the state that the daemon is in");
    for (size_t at = 0; at < sizeof(states) / sizeof(states[0]); at++)
        labelled(out, "state", "state", states[at], strcmp(states[at], stats->state) == 0);
    gauge(out, "degraded", stats->degraded != NULL, "1 where a part does not work, see /readyz");
    gauge(out, "boot_epoch", stats->boot_epoch, "The number of this start");
    gauge(out, "read_batch_mib", stats->read_batch_mib, "Most MiB to ask for in one Read, 0: all");
}

char *kvf_stats_metrics(const struct kvf_stats *stats)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (out == NULL)
        return NULL;
    print_queries(out, stats);
    print_traffic(out, stats);
    print_pool(out, stats);
    bool ok = print_ssd(out, stats);
    print_tenants(out, stats->tenants);
    print_stages(out, &stats->counters);
    print_drain(out, stats);
    print_life(out, stats);
    ok = !ferror(out) && ok;
    ok = fclose(out) == 0 && ok;
    if (!ok) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- the last log line ---- */

void kvf_drain_gauges_text(const struct kvf_stats *stats, char *text, size_t room)
{
    struct gauge gauges[GAUGES];
    size_t used = 0;
    if (room > 0)
        text[0] = '\0';
    list_gauges(stats, gauges);
    for (size_t at = 0; at < GAUGES && used < room; at++) {
        if (!gauges[at].present)
            continue;
        int wrote = snprintf(text + used, room - used, "%s%s=%" PRIu64, used > 0 ? " " : "",
                             gauges[at].name, gauges[at].value);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}
