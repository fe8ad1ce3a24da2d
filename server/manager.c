/* The Manager from READY to CLOSED, in four parts: statistics, actions for admin and HTTP,
 * trust, draining. manager_start.c has its start and its release. */
#include "server/manager_state.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/overview.h"
#include "server/supervisor.h"

#include <stdio.h>
#include <stdlib.h>

#define DRAIN_LOOK_NS (10 * KVF_NS_PER_MS)  /* how often the drain looks whether it is over */
#define FORCED_DRAIN_NS (10 * KVF_NS_PER_S) /* our own part of a forced end takes no longer */
#define RELEASE_S 10                        /* for the release of memory and drives after that */

void manager_set_state(struct kvf_manager *manager, enum manager_state to)
{
    static const bool allowed[][MANAGER_CLOSED + 1] = {
        [MANAGER_STARTING] = {[MANAGER_READY] = true},
        [MANAGER_READY] = {[MANAGER_DRAINING] = true},
        [MANAGER_DRAINING] = {[MANAGER_CLOSING] = true},
        [MANAGER_CLOSING] = {[MANAGER_CLOSED] = true},
        [MANAGER_CLOSED] = {false},
    };
    kvf_assert(allowed[manager->state][to]);
    manager->state = to;
}

/* ---- statistics ---- */

static const char *state_name(const struct kvf_manager *manager)
{
    switch (manager->state) {
    case MANAGER_STARTING:
        return "STARTING";
    case MANAGER_READY:
        return "READY";
    case MANAGER_DRAINING:
    case MANAGER_CLOSING:
        return "DRAINING";
    case MANAGER_CLOSED:
        break;
    }
    return "CLOSED";
}

static void fill_drives(struct kvf_manager *manager, struct kvf_stats *stats,
                        struct kvf_drive_stats drives[KVF_DRIVES_MAX])
{
    if (manager->store == NULL)
        return;
    stats->drives = drives;
    stats->drive_count = kvf_store_drive_count(manager->store);
    if (kvf_awaited_is_open(&manager->awaited))
        stats->degraded = "recovering";
    for (size_t d = 0; d < stats->drive_count; d++) {
        kvf_store_stats(manager->store, d, &drives[d]);
        stats->drain.ssd_reads += drives[d].reads_in_flight;
        stats->drain.ssd_writes += drives[d].writes_in_flight;
        if (drives[d].read_only)
            stats->degraded = "a drive is read-only";
    }
}

static size_t add_part(char *text, size_t at, size_t room, uint64_t count, const char *one,
                       const char *many)
{
    if (count == 0 || at >= room)
        return at;
    int length = snprintf(text + at, room - at, "%s%llu %s", at > 0 ? ", " : "",
                          (unsigned long long)count, count == 1 ? one : many);
    return at + (length > 0 ? (size_t)length : 0);
}

/* What keeps a drain from its end, in words; the counterpart of is_drained. */
static void fill_waits_for(struct kvf_manager *manager)
{
    char *text = manager->waits_for;
    size_t room = sizeof(manager->waits_for), at = 0;
    uint64_t writes = 0;
    kvf_list_for_each (node, &manager->puts.writing)
        writes++;
    text[0] = '\0';
    at = add_part(text, at, room, kvf_engines_count(manager->engines),
                  "engine that has not unregistered", "engines that have not unregistered");
    at = add_part(text, at, room, kvf_peers_sessions(manager->peers), "session of a peer",
                  "sessions of peers");
    at = add_part(text, at, room, manager->leases.open, "Read", "Reads");
    at = add_part(text, at, room, manager->gets.open, "Get", "Gets");
    at = add_part(text, at, room, kvf_loads_open(manager->loads), "load", "loads");
    at = add_part(text, at, room, writes, "block that is not on SSD", "blocks that are not on SSD");
    if (at == 0)
        (void)snprintf(text, room, "its servers to close");
}

static void fill_lanes(const struct kvf_manager *manager, struct kvf_stats *stats)
{
    const struct kvf_transports *all = &manager->network.transports;
    stats->lane_count = all->count;
    for (size_t i = 0; i < all->count; i++) {
        stats->lanes[i].transport = kvf_transport_name(all->list[i]);
        kvf_transport_stats(all->list[i], &stats->lanes[i].lanes);
    }
}

static void fill_stats(struct kvf_manager *manager, struct kvf_stats *stats,
                       struct kvf_drive_stats drives[KVF_DRIVES_MAX])
{
    const struct kvf_admission *admission = &manager->admission;
    const struct kvf_pull_stats *pull = &manager->pull_stats;
    struct kvf_index_stats index;
    kvf_index_get_stats(manager->index, &index);
    *stats = (struct kvf_stats){
        .node_id = manager->config->node_id,
        .state = state_name(manager),
        .boot_epoch = manager->boot_epoch,
        .transport = kvf_transport_name(manager->network.transports.list[0]),
        .read_batch_mib = manager->gets.read_batch_bytes / KVF_MIB,
        .counters = manager->counters,
        .pull = {pull->reads, pull->blocks, pull->bytes, pull->misses},
        .pool = {.bytes = kvf_pool_bytes(manager->pool),
                 .dirty = admission->classes[KVF_CLASS_DIRTY].used_bytes,
                 .pull = admission->classes[KVF_CLASS_PULL].used_bytes,
                 .serve = admission->classes[KVF_CLASS_SERVE].used_bytes,
                 .clean = index.clean_bytes},
        .index = {.blocks = index.blocks,
                  .bytes = index.bytes,
                  .evicted_blocks = index.evicted_blocks},
        .query = {.bytes = admission->query.used_bytes,
                  .peak_bytes = admission->query.peak_bytes,
                  .peak_instance_bytes = admission->peak_instance_bytes,
                  .peak_identity_bytes = admission->peak_identity_bytes,
                  .waited = admission->waited},
        .drain = {.query_bytes = admission->query.used_bytes,
                  .leases = manager->leases.open,
                  .pinned_bytes = index.pinned_bytes,
                  .dirty_bytes = admission->classes[KVF_CLASS_DIRTY].used_bytes,
                  .quarantine_bytes = pull->quarantine_bytes + manager->puts.quarantine_bytes +
                                      kvf_peers_quarantine_bytes(manager->peers)},
    };
    if (manager->state > MANAGER_READY && manager->state < MANAGER_CLOSED) {
        fill_waits_for(manager);
        stats->waits_for = manager->waits_for;
    }
    fill_lanes(manager, stats);
    fill_drives(manager, stats, drives);
    const struct kvf_tenants *tenants = kvf_index_tenants(manager->index);
    if (tenants->has_shares[KVF_SHARE_DRAM] || tenants->has_shares[KVF_SHARE_SSD])
        stats->tenants = tenants;
}

static char *stat_json(void *context)
{
    struct kvf_drive_stats drives[KVF_DRIVES_MAX];
    struct kvf_stats stats;
    fill_stats(context, &stats, drives);
    return kvf_stats_json(&stats);
}

static char *metrics_text(void *context)
{
    struct kvf_drive_stats drives[KVF_DRIVES_MAX];
    struct kvf_stats stats;
    fill_stats(context, &stats, drives);
    return kvf_stats_metrics(&stats);
}

static void fill_budgets(struct kvf_manager *manager, struct kvf_overview *overview)
{
    const struct kvf_admission *admission = &manager->admission;
    overview->budgets[KVF_OVERVIEW_DIRTY] = admission->classes[KVF_CLASS_DIRTY];
    overview->budgets[KVF_OVERVIEW_PULL] = admission->classes[KVF_CLASS_PULL];
    overview->budgets[KVF_OVERVIEW_SERVE] = admission->classes[KVF_CLASS_SERVE];
    overview->budgets[KVF_OVERVIEW_QUERY] = admission->query;
    overview->budgets[KVF_OVERVIEW_INSTANCE] =
        (struct kvf_budget){.limit_bytes = manager->config->query_limit_per_instance_bytes,
                            .peak_bytes = admission->peak_instance_bytes};
    overview->budgets[KVF_OVERVIEW_IDENTITY] =
        (struct kvf_budget){.limit_bytes = manager->config->query_limit_per_identity_bytes,
                            .peak_bytes = admission->peak_identity_bytes};
}

static char *overview_json(void *context)
{
    struct kvf_manager *manager = context;
    struct kvf_drive_stats drives[KVF_DRIVES_MAX];
    const uint64_t now_ns = kvf_clock_now_ns();
    struct kvf_overview *overview = calloc(1, sizeof(*overview));
    if (overview == NULL)
        return NULL;
    fill_stats(manager, &overview->stats, drives);
    overview->uptime_s = (now_ns - manager->ready_ns) / KVF_NS_PER_S;
    overview->drain_timeout_s = manager->config->drain_timeout_s;
    if (manager->drain_deadline_ns > now_ns)
        overview->drain_left_s = (manager->drain_deadline_ns - now_ns) / KVF_NS_PER_S;
    overview->engines = kvf_engines_count(manager->engines);
    fill_budgets(manager, overview);
    kvf_peers_list(manager->peers, &overview->consumers);
    kvf_sources_list(manager->sources, &overview->sources);
    overview->recent_count = kvf_log_recent(overview->recent);
    char *text = kvf_overview_json(overview);
    free(overview);
    return text;
}

static bool ready_text(void *context, char *body, size_t room)
{
    struct kvf_manager *manager = context;
    struct kvf_drive_stats drives[KVF_DRIVES_MAX];
    struct kvf_stats stats;
    fill_stats(manager, &stats, drives);
    if (manager->state != MANAGER_READY)
        (void)snprintf(body, room, "%s", stats.state);
    else if (stats.degraded != NULL)
        (void)snprintf(body, room, "degraded: %s", stats.degraded);
    else
        (void)snprintf(body, room, "ok");
    return manager->state == MANAGER_READY;
}

static void log_gauges(struct kvf_manager *manager, const char *prefix)
{
    struct kvf_drive_stats drives[KVF_DRIVES_MAX];
    struct kvf_stats stats;
    char text[400];
    fill_stats(manager, &stats, drives);
    kvf_drain_gauges_text(&stats, text, sizeof(text));
    kvf_log_info("manager", "%s%s", prefix, text);
}

/* ---- actions ---- */

static struct kvf_status set_read_batch(void *context, uint64_t mib, struct kvf_why *said)
{
    struct kvf_manager *manager = context;
    uint64_t in_flight = 0;
    if (mib > UINT64_MAX / KVF_MIB)
        return kvf_why_set(said, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0),
                           "read-batch-mib %llu is out of range", (unsigned long long)mib);
    struct kvf_why note = {.text = ""};
    KVF_TRY(kvf_config_batch_rule(manager->config, mib * KVF_MIB, &in_flight, &note, said));
    manager->gets.read_batch_bytes = mib * KVF_MIB;
    manager->gets.read_batches_in_flight = (unsigned)in_flight;
    if (said != NULL)
        *said = note;
    kvf_log_info("manager", "read-batch-mib is %llu now%s%s", (unsigned long long)mib,
                 note.text[0] != '\0' ? "; " : "", note.text);
    return kvf_ok();
}

static void evict_dram(void *context, uint64_t *blocks, uint64_t *bytes)
{
    struct kvf_manager *manager = context;
    kvf_index_evict_all(manager->index, blocks, bytes);
    kvf_log_info("manager", "evicted %llu blocks, %llu bytes, from DRAM",
                 (unsigned long long)*blocks, (unsigned long long)*bytes);
}

static void drain_asked(void *context)
{
    kvf_manager_drain(context, "kvferry drain");
}

static bool is_draining(void *context)
{
    return ((const struct kvf_manager *)context)->state > MANAGER_READY;
}

static bool is_ready(void *context)
{
    return ((const struct kvf_manager *)context)->state == MANAGER_READY;
}

struct kvf_admin_actions manager_admin_actions(struct kvf_manager *manager)
{
    return (struct kvf_admin_actions){
        .context = manager,
        .stat_json = stat_json,
        .set_read_batch = set_read_batch,
        .evict_dram = evict_dram,
        .drain = drain_asked,
        .is_draining = is_draining,
        .is_ready = is_ready,
        .puts = &manager->puts,
    };
}

struct kvf_view_source manager_view_source(struct kvf_manager *manager)
{
    return (struct kvf_view_source){
        .loop = manager->loop,
        .context = manager,
        .ready = ready_text,
        .metrics = metrics_text,
        .overview = overview_json,
        .page = kvf_overview_page,
    };
}

/* ---- trust ---- */

/* Something of it may not be there yet. */
void manager_rights_changed(void *context)
{
    struct kvf_manager *manager = context;
    if (manager->index != NULL)
        kvf_index_reload_shares(manager->index);
    if (manager->peers != NULL)
        kvf_peers_rights_changed(manager->peers);
    if (manager->engines != NULL)
        kvf_engines_rights_changed(manager->engines);
    if (manager->sources != NULL)
        kvf_sources_rights_changed(manager->sources);
}

void kvf_manager_reload(struct kvf_manager *manager, const char *reason)
{
    kvf_trust_reload(&manager->trust, reason);
}

/* ---- draining ---- */

static void look_again(struct kvf_manager *manager)
{
    kvf_timer_start(manager->loop, &manager->drain_timer, kvf_clock_now_ns() + DRAIN_LOOK_NS);
}

static void server_stopped(void *context)
{
    struct kvf_manager *manager = context;
    if (--manager->servers_open > 0)
        return;
    manager_set_state(manager, MANAGER_CLOSED);
    kvf_timer_stop(manager->loop, &manager->drain_timer);
    kvf_loop_stop(manager->loop);
}

static void sources_closed(void *context)
{
    struct kvf_manager *manager = context;
    manager->servers_open = manager->peer_server != NULL ? 2 : 1;
    if (manager->peer_server != NULL)
        kvf_rpc_server_stop(manager->peer_server, 500, server_stopped, manager);
    kvf_rpc_server_stop(manager->admin_server, 500, server_stopped, manager);
}

static bool is_drained(const struct kvf_manager *manager)
{
    return kvf_engines_count(manager->engines) == 0 && kvf_peers_sessions(manager->peers) == 0 &&
           manager->leases.open == 0 && manager->gets.open == 0 &&
           kvf_list_is_empty(&manager->puts.writing) && kvf_loads_open(manager->loads) == 0 &&
           kvf_carries_open(manager->carries) == 0;
}

/* Nobody waits for it any more. */
static bool recovery_is_over(struct kvf_manager *manager)
{
    if (kvf_awaited_is_open(&manager->awaited))
        kvf_store_recover_cancel(manager->store);
    return !kvf_awaited_is_open(&manager->awaited);
}

static void force(struct kvf_manager *manager)
{
    manager->forced_deadline_ns = kvf_clock_now_ns() + FORCED_DRAIN_NS;
    log_gauges(manager, "the drain timeout is over, ending by force: ");
    kvf_engines_force(manager->engines);
    kvf_peers_force(manager->peers);
}

static void look(struct kvf_timer *timer)
{
    struct kvf_manager *manager = kvf_container(timer, struct kvf_manager, drain_timer);
    uint64_t now_ns = kvf_clock_now_ns();
    if (manager->state == MANAGER_DRAINING && is_drained(manager) && recovery_is_over(manager)) {
        manager_set_state(manager, MANAGER_CLOSING);
        kvf_sources_close(manager->sources, sources_closed, manager);
    } else if (manager->forced_deadline_ns == 0 && now_ns >= manager->drain_deadline_ns) {
        force(manager);
    } else if (manager->forced_deadline_ns != 0 && now_ns >= manager->forced_deadline_ns) {
        kvf_log_error("manager", "our own part of the drain does not end, leaving as it is: a "
                                 "drive or NIC hangs, look at the kernel's log");
        kvf_loop_stop(manager->loop);
        return;
    }
    if (manager->state != MANAGER_CLOSED)
        look_again(manager);
}

void kvf_manager_drain(struct kvf_manager *manager, const char *reason)
{
    if (manager->state != MANAGER_READY)
        return;
    manager_set_state(manager, MANAGER_DRAINING);
    kvf_log_info("manager", "draining (%s): %llu engines, %llu sessions, %llu leases", reason,
                 (unsigned long long)kvf_engines_count(manager->engines),
                 (unsigned long long)kvf_peers_sessions(manager->peers),
                 (unsigned long long)manager->leases.open);
    (void)kvf_supervisor_stopping(reason, manager->config->drain_timeout_s +
                                              FORCED_DRAIN_NS / KVF_NS_PER_S + RELEASE_S);
    manager->drain_deadline_ns =
        kvf_clock_now_ns() + manager->config->drain_timeout_s * KVF_NS_PER_S;
    manager->drain_timer.fire = look;
    kvf_engines_drain(manager->engines);
    kvf_peers_drain(manager->peers);
    look_again(manager);
}

int kvf_manager_exit_code(const struct kvf_manager *manager)
{
    return manager->state == MANAGER_CLOSED && manager->forced_deadline_ns == 0 ? 0 : 3;
}

bool kvf_manager_destroy(struct kvf_manager *manager)
{
    bool clean = manager->state == MANAGER_CLOSED;
    kvf_audit_flush(manager->trust.audit); /* the gauges are the last line */
    log_gauges(manager, clean ? "CLOSED: " : "CLOSED by force: ");
    if (clean)
        manager_release(manager);
    return clean;
}
