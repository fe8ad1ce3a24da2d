/* The Manager: the one owner of index, pool, budgets, leases, contexts and of the daemon's life.
 *
 *   STARTING   memory, drives, sockets; nothing is served
 *   READY      kvf_manager_create has returned OK
 *   DRAINING   SIGTERM or `kvferry drain`: what is accepted is finished, contexts unregister, dirty
 *              blocks are written, sessions and sources are closed; after --drain-timeout-s by force
 *   CLOSED     the loop has been stopped; kvf_manager_exit_code tells how it went
 *
 * Everything runs on the loop's thread. */
#ifndef KVFERRY_SERVER_MANAGER_H
#define KVFERRY_SERVER_MANAGER_H

#include "base/loop.h"
#include "server/config.h"
#include "server/stats.h"

struct kvf_manager;

/* Everything up to READY. config is borrowed for life. On error *why is one line for the operator,
 * and nothing is left behind that was not there. */
KVF_MUST_USE struct kvf_status kvf_manager_create(const struct kvf_config *config,
                                                  struct kvf_loop *loop, struct kvf_manager **give,
                                                  struct kvf_why *why);
/* Read certificate, key, authorities and ACL again; what is bad stays as it was, and is logged. */
void kvf_manager_reload(struct kvf_manager *manager, const char *reason);
/* Begin to drain; again: nothing. The loop is stopped when it is over. */
void kvf_manager_drain(struct kvf_manager *manager, const char *reason);
/* After the loop has stopped: 0 drained, 3 forced. */
int kvf_manager_exit_code(const struct kvf_manager *manager);
/* After the loop has stopped. False: something of ours does not end; leave the process without
 * touching it. */
bool kvf_manager_destroy(struct kvf_manager *manager);

#endif
