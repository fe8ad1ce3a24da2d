/* Calls to a daemon's Admin service over RUN_DIR/admin.sock, one at a time, each blocking until its answer or its
 * timeout. Owner: the thread that opened it. */
#ifndef KVFERRY_CLIENT_CLI_ADMIN_H
#define KVFERRY_CLIENT_CLI_ADMIN_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct admin;

/* What the daemon did. */
struct admin_reply {
    uint64_t blocks;
    uint64_t bytes;
    char message[256];
};

/* Does not connect yet. INVALID: the path is too long for a socket. Signals that are blocked stay so in gRPC's threads:
 * this blocks SIGINT and SIGTERM for them only. */
KVF_MUST_USE struct kvf_status admin_open(const char *run_dir, struct admin **give,
                                          struct kvf_why *why);
/* NULL is fine. */
void admin_close(struct admin *admin);

/* Each: the daemon's own code, or UNAVAILABLE (nobody there), DENIED (the socket is not ours to open), DEADLINE; *why
 * names the socket and the remedy, or holds the daemon's words. */
KVF_MUST_USE struct kvf_status admin_sync(struct admin *admin, bool durable, uint64_t timeout_ms,
                                          struct admin_reply *reply, struct kvf_why *why);
KVF_MUST_USE struct kvf_status admin_evict(struct admin *admin, bool dram, uint64_t timeout_ms,
                                           struct admin_reply *reply, struct kvf_why *why);
KVF_MUST_USE struct kvf_status admin_set_read_batch(struct admin *admin, uint64_t mib,
                                                    uint64_t timeout_ms, struct admin_reply *reply,
                                                    struct kvf_why *why);
KVF_MUST_USE struct kvf_status admin_drain(struct admin *admin, uint64_t timeout_ms,
                                           struct admin_reply *reply, struct kvf_why *why);
/* *give is malloc'ed JSON text. */
KVF_MUST_USE struct kvf_status admin_stat(struct admin *admin, uint64_t timeout_ms, char **give,
                                          struct kvf_why *why);

/* What is at the socket's path now. */
enum admin_presence {
    ADMIN_LISTENS = 0,
    ADMIN_ABSENT,   /* no socket there: the daemon removed it when it ended, or never was */
    ADMIN_DESERTED, /* a socket without a listener: a daemon was killed */
    ADMIN_REFUSED,  /* it is not ours to open */
};
enum admin_presence admin_presence(const struct admin *admin); /* connects, and hangs up */
bool admin_socket_exists(const struct admin *admin);           /* only looks */

#endif
