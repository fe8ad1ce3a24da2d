/* The admin service on admin.sock (who can open it is admin), and the standard health check on
 * every listener. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_ADMIN_H
#define KVFERRY_SERVER_ADMIN_H

#include "proto/rpc/rpc.h"
#include "server/put.h"

struct kvf_admin;

/* What the Manager does for the service. All run on its thread. */
struct kvf_admin_actions {
    void *context;
    char *(*stat_json)(void *context); /* malloc'ed, taken; NULL: out of memory */
    struct kvf_status (*set_read_batch)(void *context, uint64_t mib, struct kvf_why *said);
    void (*evict_dram)(void *context, uint64_t *blocks, uint64_t *bytes);
    void (*drain)(void *context); /* again: nothing */
    bool (*is_draining)(void *context);
    bool (*is_ready)(void *context);
    struct puts *puts; /* for Sync */
};

KVF_MUST_USE struct kvf_status kvf_admin_create(const struct kvf_admin_actions *actions,
                                                struct kvf_admin **give);
/* Its calls must be over. NULL is fine. */
void kvf_admin_destroy(struct kvf_admin *admin);

#define KVF_ADMIN_METHODS 6
/* Admin and health, for admin.sock. */
void kvf_admin_methods(struct kvf_admin *admin, struct kvf_rpc_method methods[KVF_ADMIN_METHODS]);
/* Health alone, for --listen. */
struct kvf_rpc_method kvf_admin_health_method(struct kvf_admin *admin);

#endif
