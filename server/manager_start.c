/* The Manager's start, in the order in which things come to be; what fails half-way is undone; and
 * the release of everything at the end. */
#include "server/manager_state.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/numa.h"
#include "server/supervisor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A taken port is found before anything is created. */
static struct kvf_status probe_port(const char *flag, const char *text, struct kvf_why *why)
{
    struct kvf_status status = kvf_fail(KVF_MODULE_SERVER, KVF_UNAVAILABLE, 0);
    struct kvf_address address;
    struct addrinfo *found = NULL;
    if (text == NULL)
        return kvf_ok();
    kvf_assert(kvf_address_parse(text, &address)); /* the configuration has looked */
    int failed = kvf_address_resolve(&address, true, &found);
    if (failed != 0)
        return kvf_why_set(why, status, "%s %s: %s: name an address of this host", flag, text,
                           gai_strerror(failed));
    int fd = kvf_address_listen(found->ai_addr, found->ai_addrlen, 1);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0)
        (void)close(fd);
    freeaddrinfo(found);
    if (error == 0)
        return kvf_ok();
    return kvf_why_set(why, status, "%s %s: %s: %s", flag, text, strerror(error),
                       error == EADDRINUSE ? "stop what listens there or choose another port"
                                           : "name an address of this host");
}

static struct kvf_status start_trust(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    struct kvf_trust_options options = {
        .loop = manager->loop,
        .tls = {config->tls_cert, config->tls_key, config->tls_ca},
        .acl = config->acl,
        .rights_changed = manager_rights_changed,
        .context = manager,
    };
    return kvf_trust_open(&manager->trust, &options, why);
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
    int nodes[KVF_NUMA_NODES_MAX];
    size_t node_count = kvf_network_numa_nodes(config, nodes, KVF_NUMA_NODES_MAX);
    KVF_TRY(kvf_pool_create_near(config->pool_bytes, config->hugepages, nodes, node_count,
                                 &manager->pool, why));
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
    admission->classes[KVF_CLASS_SERVE].limit_bytes = config->serve_limit_bytes;
    admission->query.limit_bytes = config->query_limit_bytes;
    kvf_admission_init(admission);
    return kvf_worker_create(manager->loop, &manager->worker);
}

static struct kvf_status start_network(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    struct kvf_transport_options options = {
        .loop = manager->loop,
        .arenas = manager->arenas,
        .arena_count = kvf_pool_arena_count(manager->pool),
    };
    KVF_TRY(kvf_network_open(config, manager->trust.acl, &options, &manager->network, why));
    return kvf_rpc_create(manager->loop, &manager->rpc);
}

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    kvf_carries_reclaim(((struct kvf_manager *)context)->carries, drive, segment, sequence);
}

static struct kvf_status start_store(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    if (config->ssd_paths.count == 0) {
        struct timespec now;
        /* In microseconds: rises from start to start, and JSON's doubles still hold it exactly. */
        (void)clock_gettime(CLOCK_REALTIME, &now);
        manager->boot_epoch =
            (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / KVF_NS_PER_US;
        return kvf_ok();
    }
    if (config->ssd_paths.count > KVF_DRIVES_MAX)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0),
                           "--ssd-path stands more than %d times: name fewer drives",
                           KVF_DRIVES_MAX);
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
        .locked_bytes = kvf_network_locked_bytes(&manager->network),
        .reclaim = reclaim,
        .context = manager,
    };
    KVF_TRY(kvf_store_open(&options, &manager->store, why));
    manager->boot_epoch = kvf_store_boot_epoch(manager->store);
    return kvf_ok();
}

static void memory_freed(void *context)
{
    kvf_admission_retry(&((struct kvf_manager *)context)->admission);
}

static struct kvf_status start_index(struct kvf_manager *manager)
{
    struct kvf_index_options index = {
        .pool = manager->pool,
        .store = manager->store,
        .boot_epoch = manager->boot_epoch,
        .acl = manager->trust.acl,
        .freed = memory_freed,
        .context = manager,
    };
    KVF_TRY(kvf_index_create(&index, &manager->index));
    if (manager->store != NULL)
        KVF_TRY(
            kvf_carries_create(manager->loop, manager->index, manager->store, &manager->carries));
    KVF_TRY(kvf_awaited_init(&manager->awaited, manager->index));
    struct kvf_loads_options loads = {
        .index = manager->index,
        .store = manager->store,
        .worker = manager->worker,
        .counters = &manager->counters,
        .awaited = &manager->awaited,
    };
    return kvf_loads_create(&loads, &manager->loads);
}

static struct kvf_status start_sources(struct kvf_manager *manager)
{
    const struct kvf_config *config = manager->config;
    struct kvf_sources_options options = {
        .source = {.loop = manager->loop,
                   .rpc = manager->rpc,
                   .transports = manager->network.transports,
                   .tls = manager->trust.tls,
                   .node_id = config->node_id,
                   .boot_epoch = manager->boot_epoch,
                   .stats = &manager->pull_stats},
        .acl = manager->trust.acl,
        .audit = manager->trust.audit,
    };
    (void)!getrandom(&options.source.process_instance, sizeof(options.source.process_instance), 0);
    return kvf_sources_create(&options, &manager->sources);
}

/* Consumers pack their Reads up to this: it must be what can be admitted. */
static uint64_t largest_grant(const struct kvf_config *config)
{
    const uint64_t limits[] = {config->query_limit_per_identity_bytes, config->serve_limit_bytes,
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
        .awaited = &manager->awaited,
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
        .awaited = &manager->awaited,
        .write_at_reuse = config->ssd_write_policy == KVF_CONFIG_WRITE_REUSE,
    };
    puts_init(&manager->puts);
    manager->leases = (struct kvf_leases){
        .loop = manager->loop,
        .index = manager->index,
        .loads = manager->loads,
        .admission = &manager->admission,
        .counters = &manager->counters,
        .awaited = &manager->awaited,
        .max_grant_bytes = largest_grant(config),
        .max_lease_ns = config->max_lease_s * KVF_NS_PER_S,
    };
}

static void engine_left(void *context)
{
    (void)context; /* the drain looks by itself */
}

static struct kvf_status start_services(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    struct kvf_peers_options peers = {
        .loop = manager->loop,
        .transports = manager->network.transports,
        .index = manager->index,
        .leases = &manager->leases,
        .node_id = config->node_id,
        .data_advertise = config->data_advertise,
        .boot_epoch = manager->boot_epoch,
        .max_blocks_per_read = (uint32_t)config->max_blocks_per_read,
        .per_identity_limit_bytes = config->query_limit_per_identity_bytes,
        .acl = manager->trust.acl,
        .audit = manager->trust.audit,
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
        .acl = manager->trust.acl,
        .audit = manager->trust.audit,
        .left = engine_left,
        .context = manager,
    };
    struct kvf_admin_actions actions = manager_admin_actions(manager);
    KVF_TRY(kvf_peers_create(&peers, &manager->peers));
    KVF_TRY(kvf_engines_create(&engines, &manager->engines, why));
    return kvf_admin_create(&actions, &manager->admin);
}

static struct kvf_status start_servers(struct kvf_manager *manager, struct kvf_why *why)
{
    const struct kvf_config *config = manager->config;
    char address[300];
    kvf_peers_methods(manager->peers, manager->peer_methods);
    manager->peer_methods[KVF_PEERS_METHODS] = kvf_admin_health_method(manager->admin);
    kvf_admin_methods(manager->admin, manager->admin_methods);
    (void)unlink(manager->admin_path); /* engine.sock has shown that nobody serves this directory */
    (void)snprintf(address, sizeof(address), "unix:%s", manager->admin_path);
    KVF_TRY(kvf_rpc_server_start(manager->rpc, address, NULL, manager->admin_methods,
                                 KVF_ADMIN_METHODS, &manager->admin_server, why));
    if (chmod(manager->admin_path, 0600) != 0)
        return kvf_why_set(
            why, kvf_fail(KVF_MODULE_SERVER, KVF_IO, errno),
            "cannot protect %s (%s): put --run-dir on a filesystem that knows permissions",
            manager->admin_path, strerror(errno));
    if (config->listen == NULL)
        return kvf_ok();
    return kvf_rpc_server_start(manager->rpc, config->listen, manager->trust.tls,
                                manager->peer_methods, KVF_PEERS_METHODS + 1, &manager->peer_server,
                                why);
}

static struct kvf_status start_view(struct kvf_manager *manager, struct kvf_why *why)
{
    struct kvf_view_source source = manager_view_source(manager);
    return kvf_view_start(manager->config->http, &source, &manager->view, why);
}

/* ---- recovery ---- */

static void found(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location)
{
    struct kvf_manager *manager = recovery->context;
    kvf_index_recovered(manager->index, record, location);
    kvf_awaited_look(&manager->awaited, record->namespace, &record->key);
}

static void recovery_ended(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    struct kvf_manager *manager = recovery->context;
    kvf_log_info("manager",
                 "%s %llu records of %llu segments in %llu ms (%llu scanned, %llu unreadable)",
                 result->cancelled ? "the drain ended recovery:" : "recovered",
                 (unsigned long long)result->records, (unsigned long long)result->segments,
                 (unsigned long long)(result->took_ns / KVF_NS_PER_MS),
                 (unsigned long long)result->scanned, (unsigned long long)result->unreadable);
    if (result->why.text[0] != '\0')
        kvf_log_warning("manager", "%s", result->why.text);
    kvf_awaited_close(&manager->awaited);
}

/* The last step: once it is under way the loop must run. */
static struct kvf_status start_recovery(struct kvf_manager *manager, struct kvf_why *why)
{
    if (manager->store == NULL)
        return kvf_ok();
    manager->recovery =
        (struct kvf_recovery){.found = found, .ended = recovery_ended, .context = manager};
    KVF_TRY(kvf_store_recover(manager->store, &manager->recovery, why));
    kvf_awaited_open(&manager->awaited);
    return kvf_ok();
}

static void stop_now(void *context)
{
    *(bool *)context = true;
}

/* Servers that were started before something else failed are stopped as they would be at the
 * end. */
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

void manager_release(struct kvf_manager *manager)
{
    bool is_our_socket = manager->engines != NULL; /* then nobody else's admin.sock is there */
    kvf_view_stop(manager->view);
    kvf_admin_destroy(manager->admin);
    kvf_engines_destroy(manager->engines);
    kvf_peers_destroy(manager->peers);
    kvf_sources_destroy(manager->sources);
    kvf_loads_destroy(manager->loads);
    kvf_carries_destroy(manager->carries);
    kvf_awaited_fini(&manager->awaited);
    kvf_index_destroy(manager->index, false);
    kvf_store_close(manager->store);
    kvf_rpc_destroy(manager->rpc);
    kvf_trust_close(&manager->trust);
    kvf_network_close(&manager->network);
    kvf_worker_destroy(manager->worker);
    kvf_pool_destroy(manager->pool, false);
    if (is_our_socket)
        (void)unlink(manager->admin_path);
    free(manager->arenas);
    free(manager);
}

/* Worth a line where memory was to lie near the NICs. */
static void log_nodes(const struct kvf_manager *manager)
{
    int nodes[KVF_NUMA_NODES_MAX];
    size_t count = kvf_network_numa_nodes(manager->config, nodes, KVF_NUMA_NODES_MAX);
    size_t arenas = kvf_pool_arena_count(manager->pool), near = 0;
    for (size_t i = 0; i < arenas && count > 0; i++)
        near += kvf_numa_node_of(manager->arenas[i]->base) == nodes[i % count];
    if (count > 0)
        kvf_log(near == arenas ? KVF_LOG_INFO : KVF_LOG_WARNING, "manager",
                "NUMA: %zu of %zu arenas lie near the NICs (the first on node %d)", near, arenas,
                kvf_numa_node_of(manager->arenas[0]->base));
}

/* Of the last one, tcp where there is a choice; kvf_network_log says the others. */
static int data_port(const struct kvf_manager *manager)
{
    const struct kvf_transports *all = &manager->network.transports;
    return manager->config->data_listen != NULL ? kvf_transport_port(all->list[all->count - 1]) : 0;
}

/* All that a start has to say. One that fails says only why, in main.c: nobody is to search for that line. */
static void log_ready(const struct kvf_manager *manager)
{
    const struct kvf_config *config = manager->config;
    kvf_config_log(config);
    kvf_trust_log(&manager->trust);
    kvf_network_log(&manager->network, config, manager->trust.acl);
    log_nodes(manager);
    if (manager->store != NULL)
        kvf_log_info("manager", "SSD: %s", kvf_store_io_text(manager->store));
    char listen[KVF_ADDRESS_TEXT_BYTES] = "none";
    struct kvf_address address;
    if (config->listen != NULL && kvf_address_parse(config->listen, &address)) {
        address.port = (unsigned)kvf_rpc_server_port(manager->peer_server); /* 0 meant any */
        kvf_address_format(&address, listen);
    }
    kvf_log_info("manager",
                 "READY: node %s, boot epoch %llu, listen %s, data port %d, http port %d",
                 config->node_id, (unsigned long long)manager->boot_epoch, listen,
                 data_port(manager), kvf_view_port(manager->view));
}

struct kvf_status kvf_manager_create(const struct kvf_config *config, struct kvf_loop *loop,
                                     struct kvf_manager **give, struct kvf_why *why)
{
    struct kvf_manager *manager = calloc(1, sizeof(*manager));
    if (manager == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    manager->config = config;
    manager->loop = loop;
    struct kvf_status status = start_trust(manager, why);
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
        status = start_index(manager);
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
    if (kvf_is_ok(status))
        status = start_recovery(manager, why);
    if (!kvf_is_ok(status)) {
        bool made_run_dir = manager->made_run_dir;
        stop_servers(manager);
        manager_release(manager);
        if (made_run_dir)
            (void)rmdir(config->run_dir);
        return status;
    }
    manager_set_state(manager, MANAGER_READY);
    manager->ready_ns = kvf_clock_now_ns();
    *give = manager;
    log_ready(manager);
    char serving[300];
    (void)snprintf(serving, sizeof(serving), "serving as node %s", config->node_id);
    (void)kvf_supervisor_ready(serving);
    return kvf_ok();
}
