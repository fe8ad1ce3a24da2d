/* The Manager's state, shared by its two files: manager.c (READY to CLOSED) and manager_start.c
 * (starting, and the release of what was started). */
#ifndef KVFERRY_SERVER_MANAGER_STATE_H
#define KVFERRY_SERVER_MANAGER_STATE_H

#include "proto/rpc/rpc.h"
#include "server/admin.h"
#include "server/admission.h"
#include "server/carry.h"
#include "server/engines.h"
#include "server/get.h"
#include "server/lease.h"
#include "server/manager.h"
#include "server/network.h"
#include "server/peers.h"
#include "server/put.h"
#include "server/sources.h"
#include "server/trust.h"
#include "server/view.h"

#define KVF_DRIVES_MAX 64

enum manager_state {
    MANAGER_STARTING = 0, /* what fails here is released without any other state */
    MANAGER_READY,        /* everything runs */
    MANAGER_DRAINING,     /* engines, peers and writes end */
    MANAGER_CLOSING,      /* sources, then servers are closed */
    MANAGER_CLOSED,       /* nothing runs; the loop has been stopped */
};

struct kvf_manager {
    const struct kvf_config *config;
    struct kvf_loop *loop;
    enum manager_state state;
    uint64_t boot_epoch;
    uint64_t ready_ns; /* when it became READY */

    struct kvf_pool *pool;
    const struct kvf_arena **arenas;
    struct kvf_store *store; /* NULL: no SSD tier */
    struct kvf_worker *worker;
    struct kvf_network network;
    struct kvf_rpc *rpc;
    struct kvf_index *index;
    struct kvf_awaited awaited; /* open while recovery runs */
    struct kvf_recovery recovery;
    struct kvf_loads *loads;
    struct kvf_carries *carries; /* NULL: no SSD tier */
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
    struct kvf_rpc_method peer_methods[KVF_PEERS_METHODS + 1]; /* and health */
    struct kvf_rpc_method admin_methods[KVF_ADMIN_METHODS];
    struct kvf_view *view;
    struct kvf_trust trust;
    char engine_path[256], admin_path[256];
    bool made_run_dir;

    struct kvf_counters counters;
    struct kvf_pull_stats pull_stats;

    struct kvf_timer drain_timer;
    uint64_t drain_deadline_ns;
    uint64_t forced_deadline_ns; /* 0: not forced */
    unsigned servers_open;
    char waits_for[200]; /* scratch of the statistics */
};

void manager_set_state(struct kvf_manager *manager, enum manager_state to);
/* What the Manager does for the admin service, and shows over HTTP. */
struct kvf_admin_actions manager_admin_actions(struct kvf_manager *manager);
struct kvf_view_source manager_view_source(struct kvf_manager *manager);
/* The ACL says something else now; context is the Manager. */
void manager_rights_changed(void *context);
/* Free everything that was started; its servers have stopped. */
void manager_release(struct kvf_manager *manager);

#endif
