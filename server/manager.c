/* The Manager, in four parts: statistics, actions for admin, draining, starting and stopping. */
#include "server/manager.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/admin.h"
#include "server/engines.h"
#include "server/peers.h"
#include "server/view.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_LOOK_NS (10 * KVF_NS_PER_MS)  /* how often the drain looks whether it is over */
#define FORCED_DRAIN_NS (10 * KVF_NS_PER_S) /* our own part of a forced end takes no longer */
#define MAX_DRIVES 64

enum manager_state {
    MANAGER_STARTING = 0,
    MANAGER_READY,
    MANAGER_DRAINING, /* engines, peers and writes end */
    MANAGER_CLOSING,  /* sources, then servers are closed */
    MANAGER_CLOSED,
};

struct kvf_manager {
    struct kvf_config *config;
    struct kvf_loop *loop;
    enum manager_state state;
    uint64_t boot_epoch;

    struct kvf_pool *pool;
    const struct kvf_arena **arenas;
    struct kvf_store *store; /* NULL: no SSD tier */
    struct kvf_worker *worker;
    struct kvf_transport *transport;
    struct kvf_rpc *rpc;
    struct kvf_index *index;
    struct kvf_loads *loads;
    struct kvf_sources *sources;
    struct kvf_admission admission;
    struct gets gets;
    struct puts puts;
    struct kvf_leases leases;
    struct kvf_peers *peers;
    struct kvf_engines *engines;
    struct kvf_admin *admin;
    struct kvf_rpc_server *peer_server; /* NULL: no --listen */
    struct kvf_rpc_server *admin_server;
    struct kvf_view *view;
    struct kvf_rpc_tls tls;
    char engine_path[256], admin_path[256];
    bool made_run_dir;

    struct kvf_counters counters;
    struct kvf_pull_stats pull_stats;

    struct kvf_timer drain_timer;
    uint64_t drain_deadline_ns;
    uint64_t forced_deadline_ns; /* 0: not forced */
    unsigned servers_open;
};

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
                        struct kvf_drive_stats drives[MAX_DRIVES])
{
    if (manager->store == NULL)
        return;
    stats->drives = drives;
    stats->drive_count = kvf_store_drive_count(manager->store);
    for (size_t d = 0; d < stats->drive_count; d++) {
        kvf_store_stats(manager->store, d, &drives[d]);
        stats->drain.ssd_reads += drives[d].reads_in_flight;
        stats->drain.ssd_writes += drives[d].writes_in_flight;
        if (drives[d].read_only)
            stats->degraded = "a drive is read-only";
    }
}

static void fill_stats(struct kvf_manager *manager, struct kvf_stats *stats,
                       struct kvf_drive_stats drives[MAX_DRIVES])
{
    const struct kvf_admission *admission = &manager->admission;
    struct kvf_index_stats index;
    kvf_index_get_stats(manager->index, &index);
    manager->counters.pull.reads = manager->pull_stats.reads;
    manager->counters.pull.blocks = manager->pull_stats.blocks;
    manager->counters.pull.bytes = manager->pull_stats.bytes;
    manager->counters.pull.misses = manager->pull_stats.misses;
    manager->counters.queries_waited = admission->waited;
    *stats = (struct kvf_stats){
        .node_id = manager->config->node_id,
        .state = state_name(manager),
        .boot_epoch = manager->boot_epoch,
        .transport = kvf_transport_name(manager->transport),
        .read_batch_mib = manager->gets.read_batch_bytes / KVF_MIB,
        .counters = manager->counters,
        .pool = {.bytes = kvf_pool_bytes(manager->pool),
                 .dirty = admission->classes[KVF_CLASS_DIRTY].used_bytes,
                 .pull = admission->classes[KVF_CLASS_PULL].used_bytes,
                 .serve = admission->classes[KVF_CLASS_SERVE].used_bytes,
                 .clean = index.clean_bytes},
        .query = {.bytes = admission->query.used_bytes,
                  .peak_bytes = admission->query.peak_bytes,
                  .peak_instance_bytes = admission->peak_instance_bytes},
        .drain = {.query_bytes = admission->query.used_bytes,
                  .leases = manager->leases.open,
                  .pinned_bytes = index.pinned_bytes,
                  .dirty_bytes = admission->classes[KVF_CLASS_DIRTY].used_bytes,
                  .quarantine_bytes = manager->pull_stats.quarantine_bytes +
                                      manager->puts.quarantine_bytes +
                                      kvf_peers_quarantine_bytes(manager->peers)},
    };
    fill_drives(manager, stats, drives);
}

static char *stat_json(void *context)
{
    struct kvf_drive_stats drives[MAX_DRIVES];
    struct kvf_stats stats;
    fill_stats(context, &stats, drives);
    return kvf_stats_json(&stats);
}

static char *metrics_text(void *context)
{
    struct kvf_drive_stats drives[MAX_DRIVES];
    struct kvf_stats stats;
    fill_stats(context, &stats, drives);
    return kvf_stats_metrics(&stats);
}

static bool ready_text(void *context, char *body, size_t room)
{
    struct kvf_manager *manager = context;
    struct kvf_drive_stats drives[MAX_DRIVES];
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
    struct kvf_drive_stats drives[MAX_DRIVES];
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

static bool is_ready(void *context)
{
    return ((const struct kvf_manager *)context)->state == MANAGER_READY;
}

static void memory_freed(void *context)
{
    kvf_admission_retry(&((struct kvf_manager *)context)->admission);
}

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    kvf_index_reclaim(((struct kvf_manager *)context)->index, drive, segment, sequence);
}

static void engine_left(void *context)
{
    (void)context; /* the drain looks by itself */
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
    manager->state = MANAGER_CLOSED;
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
           kvf_list_is_empty(&manager->puts.writing) && kvf_loads_open(manager->loads) == 0;
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
    if (manager->state == MANAGER_DRAINING && is_drained(manager)) {
        manager->state = MANAGER_CLOSING;
        kvf_sources_close(manager->sources, sources_closed, manager);
    } else if (manager->forced_deadline_ns == 0 && now_ns >= manager->drain_deadline_ns) {
        force(manager);
    } else if (manager->forced_deadline_ns != 0 && now_ns >= manager->forced_deadline_ns) {
        kvf_log_error("manager", "our own part of the drain does not end: leaving as it is");
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
    manager->state = MANAGER_DRAINING;
    kvf_log_info("manager", "draining (%s): %llu engines, %llu sessions, %llu leases", reason,
                 (unsigned long long)kvf_engines_count(manager->engines),
                 (unsigned long long)kvf_peers_sessions(manager->peers),
                 (unsigned long long)manager->leases.open);
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

/* ---- starting and stopping ---- */

/* A taken port is found before anything is created. */
static struct kvf_status probe_port(const char *flag, const char *address, struct kvf_why *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char host[300], *port;
    if (address == NULL)
        return kvf_ok();
    (void)snprintf(host, sizeof(host), "%s", address);
    port = strrchr(host, ':');
    kvf_assert(port != NULL); /* the configuration has looked */
    *port++ = '\0';
    char *bare = host[0] == '[' ? host + 1 : host;
    bare[strcspn(bare, "]")] = '\0';
    struct kvf_status status = kvf_fail(KVF_MODULE_SERVER, KVF_UNAVAILABLE, 0);
    int failed = getaddrinfo(bare, port, &hints, &found);
    if (failed != 0)
        return kvf_why_set(why, status, "%s %s: %s: name an address of this host", flag, address,
                           gai_strerror(failed));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    int error = fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0
                    ? errno
                    : 0;
    if (fd >= 0)
        (void)close(fd);
    freeaddrinfo(found);
    if (error == 0)
        return kvf_ok();
    return kvf_why_set(why, status, "%s %s: %s: %s", flag, address, strerror(error),
                       error == EADDRINUSE ? "stop what listens there or choose another port"
                                           : "name an address of this host");
}

/* Better no daemon than one that seems to keep rights which it does not look at. */
static struct kvf_status refuse_what_is_not_kept(const struct kvf_config *config,
                                                 struct kvf_why *why)
{
    if (config->acl == NULL)
        return kvf_ok();
    return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0),
                       "--acl %s: this version does not keep rights per identity: leave it out and "
                       "listen on loopback only, or join hosts by a tunnel",
                       config->acl);
}

static struct kvf_status prepare_run_dir(struct kvf_manager *manager, struct kvf_why *why)
{
    const char *dir = manager->config->run_dir;
    struct stat info;
    int engine =
        snprintf(manager->engine_path, sizeof(manager->engine_path), "%s/engine.sock", dir);
    (void)snprintf(manager->admin_path, sizeof(manager->admin_path), "%s/admin.sock", dir);
    if (engine < 0 || (size_t)engine >= sizeof(manager->engine_path))
        return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0),
                           "--run-dir %s is too long for a unix socket: choose a shorter one", dir);
    KVF_TRY(kvf_engines_look(manager->engine_path, why)); /* before anything is created */
    bool made = manager->made_run_dir = mkdir(dir, 0755) == 0;
    if ((!made && errno != EEXIST) || (made && chmod(dir, 0755) != 0) || stat(dir, &info) != 0 ||
        !S_ISDIR(info.st_mode) || access(dir, W_OK) != 0)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_IO, errno),
                           "--run-dir %s: %s: name a directory that this user can write", dir,
                           errno != 0 ? strerror(errno) : "not a directory");
    return kvf_ok();
}

static struct kvf_status start_memory(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    KVF_TRY(kvf_pool_create(config->pool_bytes, config->hugepages, &manager->pool, why));
    size_t count = kvf_pool_arena_count(manager->pool);
    manager->arenas = calloc(count, sizeof(struct kvf_arena *));
    if (manager->arenas == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    for (size_t i = 0; i < count; i++)
        manager->arenas[i] = kvf_pool_arena(manager->pool, i);

    struct kvf_admission *admission = &manager->admission;
    admission->loop = manager->loop;
    admission->classes[KVF_CLASS_DIRTY].limit_bytes = config->dirty_limit_bytes;
    admission->classes[KVF_CLASS_PULL].limit_bytes = config->pull_limit_bytes;
    admission->classes[KVF_CLASS_SERVE].limit_bytes = config->serve_reserve_bytes;
    admission->query.limit_bytes = config->query_limit_bytes;
    kvf_admission_init(admission);
    return kvf_worker_create(manager->loop, &manager->worker);
}

static struct kvf_status start_network(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    const char *name = config->transport == KVF_CONFIG_TRANSPORT_VERBS ? "verbs"
                       : config->transport == KVF_CONFIG_TRANSPORT_UCX ? "ucx"
                                                                       : "tcp";
    struct kvf_transport_options options = {
        .loop = manager->loop,
        .arenas = manager->arenas,
        .arena_count = kvf_pool_arena_count(manager->pool),
    };
    KVF_TRY(kvf_transport_open(name, &options, &manager->transport, why));
    if (config->data_listen != NULL)
        KVF_TRY(kvf_transport_listen(manager->transport, config->data_listen, why));
    return kvf_rpc_create(manager->loop, &manager->rpc);
}

static struct kvf_status start_store(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    if (config->ssd_paths.count == 0) {
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        manager->boot_epoch = (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
        return kvf_ok();
    }
    if (config->ssd_paths.count > MAX_DRIVES)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0),
                           "--ssd-path stands more than %d times: name fewer drives", MAX_DRIVES);
    struct kvf_store_options options = {
        .loop = manager->loop,
        .paths = config->ssd_paths.items,
        .path_count = config->ssd_paths.count,
        .capacity_bytes = config->ssd_capacity_bytes,
        .io = (enum kvf_store_io)config->ssd_io,
        .read_threads = (unsigned)config->ssd_read_threads,
        .queue_depth = (unsigned)config->ssd_queue_depth,
        .inflight_bytes = config->ssd_inflight_bytes,
        .io_bytes = config->ssd_io_bytes,
        .arenas = manager->arenas,
        .arena_count = kvf_pool_arena_count(manager->pool),
        .reclaim = reclaim,
        .context = manager,
    };
    KVF_TRY(kvf_store_open(&options, &manager->store, why));
    manager->boot_epoch = kvf_store_boot_epoch(manager->store);
    kvf_log_info("manager", "SSD: %s", kvf_store_io_text(manager->store));
    return kvf_ok();
}

static void recovered(void *context, const struct kvf_record *record, struct kvf_location location)
{
    kvf_index_recovered(((struct kvf_manager *)context)->index, record, location);
}

static struct kvf_status start_index(struct kvf_manager *manager, struct kvf_why *why)
{
    struct kvf_index_options index = {
        .pool = manager->pool,
        .store = manager->store,
        .boot_epoch = manager->boot_epoch,
        .freed = memory_freed,
        .context = manager,
    };
    KVF_TRY(kvf_index_create(&index, &manager->index));
    if (manager->store != NULL) {
        uint64_t start_ns = kvf_clock_now_ns();
        KVF_TRY(kvf_store_recover(manager->store, recovered, manager, why));
        struct kvf_index_stats stats;
        kvf_index_get_stats(manager->index, &stats);
        kvf_log_info("manager", "recovered %llu blocks in %llu ms",
                     (unsigned long long)stats.entries,
                     (unsigned long long)((kvf_clock_now_ns() - start_ns) / KVF_NS_PER_MS));
    }
    struct kvf_loads_options loads = {
        .index = manager->index,
        .store = manager->store,
        .worker = manager->worker,
        .counters = &manager->counters,
    };
    return kvf_loads_create(&loads, &manager->loads);
}

static struct kvf_status start_sources(struct kvf_manager *manager)
{
    const struct kvf_config *config = manager->config;
    manager->tls = (struct kvf_rpc_tls){config->tls_cert, config->tls_key, config->tls_ca};
    struct kvf_sources_options options = {
        .source = {.loop = manager->loop,
                   .rpc = manager->rpc,
                   .transport = manager->transport,
                   .tls = config->tls_cert != NULL ? &manager->tls : NULL,
                   .node_id = config->node_id,
                   .boot_epoch = manager->boot_epoch,
                   .stats = &manager->pull_stats},
    };
    (void)!getrandom(&options.source.process_instance, sizeof(options.source.process_instance), 0);
    return kvf_sources_create(&options, &manager->sources);
}

/* Consumers pack their Reads up to this: it must be what can be admitted. */
static uint64_t largest_grant(const struct kvf_config *config)
{
    const uint64_t limits[] = {config->query_limit_per_identity_bytes, config->serve_reserve_bytes,
                               config->query_limit_bytes};
    uint64_t most = config->max_grant_bytes;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        most = limits[i] < most ? limits[i] : most;
    return most;
}

static void set_up_queries(struct kvf_manager *manager)
{
    const struct kvf_config *config = manager->config;
    manager->gets = (struct gets){
        .loop = manager->loop,
        .index = manager->index,
        .loads = manager->loads,
        .admission = &manager->admission,
        .sources = manager->sources,
        .counters = &manager->counters,
        .peers = config->peers.items,
        .peer_count = config->peers.count,
        .read_batch_bytes = config->read_batch_bytes,
        .read_batches_in_flight = (unsigned)config->read_batches_in_flight,
        .puts = &manager->puts,
        .keep_hits = config->ssd_write_policy == KVF_CONFIG_WRITE_REUSE,
        .keep_pulled = config->cache_pulled == KVF_CONFIG_CACHE_PULLED_SSD,
    };
    manager->puts = (struct puts){
        .loop = manager->loop,
        .index = manager->index,
        .admission = &manager->admission,
        .store = manager->store,
        .counters = &manager->counters,
        .write_at_reuse = config->ssd_write_policy == KVF_CONFIG_WRITE_REUSE,
    };
    puts_init(&manager->puts);
    manager->leases = (struct kvf_leases){
        .loop = manager->loop,
        .index = manager->index,
        .loads = manager->loads,
        .admission = &manager->admission,
        .counters = &manager->counters,
        .max_grant_bytes = largest_grant(config),
        .max_lease_ns = config->max_lease_s * KVF_NS_PER_S,
    };
}

static struct kvf_status start_services(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    struct kvf_peers_options peers = {
        .loop = manager->loop,
        .transport = manager->transport,
        .index = manager->index,
        .leases = &manager->leases,
        .node_id = config->node_id,
        .data_advertise = config->data_advertise,
        .boot_epoch = manager->boot_epoch,
        .max_blocks_per_read = (uint32_t)config->max_blocks_per_read,
        .per_identity_limit_bytes = config->query_limit_per_identity_bytes,
    };
    struct kvf_engines_options engines = {
        .loop = manager->loop,
        .path = manager->engine_path,
        .pool = manager->pool,
        .index = manager->index,
        .gets = &manager->gets,
        .puts = &manager->puts,
        .boot_epoch = manager->boot_epoch,
        .per_instance_limit_bytes = config->query_limit_per_instance_bytes,
        .query_timeout_ns = config->query_timeout_s * KVF_NS_PER_S,
        .left = engine_left,
        .context = manager,
    };
    struct kvf_admin_actions actions = {
        .context = manager,
        .stat_json = stat_json,
        .set_read_batch = set_read_batch,
        .evict_dram = evict_dram,
        .drain = drain_asked,
        .is_ready = is_ready,
        .puts = &manager->puts,
    };
    KVF_TRY(kvf_peers_create(&peers, &manager->peers));
    KVF_TRY(kvf_engines_create(&engines, &manager->engines, why));
    return kvf_admin_create(&actions, &manager->admin);
}

static struct kvf_status start_servers(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    static struct kvf_rpc_method peer_methods[KVF_PEERS_METHODS + 1];
    static struct kvf_rpc_method admin_methods[KVF_ADMIN_METHODS];
    char address[300];
    kvf_peers_methods(manager->peers, peer_methods);
    peer_methods[KVF_PEERS_METHODS] = kvf_admin_health_method(manager->admin);
    kvf_admin_methods(manager->admin, admin_methods);
    (void)unlink(manager->admin_path); /* engine.sock has shown that nobody serves this directory */
    (void)snprintf(address, sizeof(address), "unix:%s", manager->admin_path);
    KVF_TRY(kvf_rpc_server_start(manager->rpc, address, NULL, admin_methods, KVF_ADMIN_METHODS,
                                 &manager->admin_server, why));
    if (chmod(manager->admin_path, 0600) != 0)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_IO, errno), "cannot protect %s: %s",
                           manager->admin_path, strerror(errno));
    if (config->listen == NULL)
        return kvf_ok();
    return kvf_rpc_server_start(manager->rpc, config->listen,
                                config->tls_cert != NULL ? &manager->tls : NULL, peer_methods,
                                KVF_PEERS_METHODS + 1, &manager->peer_server, why);
}

static struct kvf_status start_view(struct kvf_manager *manager, struct kvf_why *why)
{
    struct kvf_view_source source = {
        .loop = manager->loop,
        .context = manager,
        .ready = ready_text,
        .metrics = metrics_text,
    };
    return kvf_view_start(manager->config->http, &source, &manager->view, why);
}

static void stop_now(void *context)
{
    *(bool *)context = true;
}

/* Servers that were started before something else failed are stopped as they would be at the end.
 */
static void stop_servers(struct kvf_manager *manager)
{
    struct kvf_rpc_server *servers[] = {manager->peer_server, manager->admin_server};
    if (manager->engines != NULL)
        kvf_engines_drain(manager->engines);
    if (manager->peers != NULL)
        kvf_peers_drain(manager->peers);
    for (size_t i = 0; i < 2; i++) {
        bool stopped = servers[i] == NULL;
        if (!stopped)
            kvf_rpc_server_stop(servers[i], 0, stop_now, &stopped);
        while (!stopped)
            kvf_loop_run_once(manager->loop, 100);
    }
    manager->peer_server = manager->admin_server = NULL;
}

static void release_all(struct kvf_manager *manager)
{
    kvf_view_stop(manager->view);
    kvf_admin_destroy(manager->admin);
    kvf_engines_destroy(manager->engines);
    kvf_peers_destroy(manager->peers);
    kvf_sources_destroy(manager->sources);
    kvf_loads_destroy(manager->loads);
    kvf_index_destroy(manager->index, false);
    kvf_store_close(manager->store);
    kvf_rpc_destroy(manager->rpc);
    kvf_transport_close(manager->transport);
    kvf_worker_destroy(manager->worker);
    kvf_pool_destroy(manager->pool, false);
    if (manager->admin_path[0] != '\0' && manager->engines != NULL)
        (void)unlink(manager->admin_path);
    free(manager->arenas);
    free(manager);
}

struct kvf_status kvf_manager_create(struct kvf_config *config, struct kvf_loop *loop,
                                     struct kvf_manager **give, struct kvf_why *why)
{
    struct kvf_manager *manager = calloc(1, sizeof(*manager));
    if (manager == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    manager->config = config;
    manager->loop = loop;
    struct kvf_status status = refuse_what_is_not_kept(config, why);
    if (kvf_is_ok(status))
        status = probe_port("--listen", config->listen, why);
    if (kvf_is_ok(status))
        status = probe_port("--data-listen", config->data_listen, why);
    if (kvf_is_ok(status))
        status = probe_port("--http", config->http, why);
    if (kvf_is_ok(status))
        status = prepare_run_dir(manager, why);
    if (kvf_is_ok(status))
        status = start_memory(manager, why);
    if (kvf_is_ok(status))
        status = start_network(manager, why);
    if (kvf_is_ok(status))
        status = start_store(manager, why);
    if (kvf_is_ok(status))
        status = start_index(manager, why);
    if (kvf_is_ok(status))
        status = start_sources(manager);
    if (kvf_is_ok(status)) {
        set_up_queries(manager);
        status = start_services(manager, why);
    }
    if (kvf_is_ok(status))
        status = start_servers(manager, why);
    if (kvf_is_ok(status))
        status = start_view(manager, why);
    if (!kvf_is_ok(status)) {
        bool made_run_dir = manager->made_run_dir;
        stop_servers(manager);
        release_all(manager);
        if (made_run_dir)
            (void)rmdir(config->run_dir);
        return status;
    }
    manager->state = MANAGER_READY;
    *give = manager;
    kvf_log_info("manager",
                 "READY: node %s, boot epoch %llu, listen %s, data port %d, http port %d",
                 config->node_id, (unsigned long long)manager->boot_epoch,
                 config->listen != NULL ? config->listen : "none",
                 config->data_listen != NULL ? kvf_transport_port(manager->transport) : 0,
                 kvf_view_port(manager->view));
    return kvf_ok();
}

bool kvf_manager_destroy(struct kvf_manager *manager)
{
    bool clean = manager->state == MANAGER_CLOSED;
    log_gauges(manager, clean ? "CLOSED: " : "CLOSED by force: ");
    if (clean)
        release_all(manager);
    return clean;
}
