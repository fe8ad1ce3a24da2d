/* The transports of this node: which of them --transport stands for on this host, why not another one, and what follows for
 * tenants. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_NETWORK_H
#define KVFERRY_SERVER_NETWORK_H

#include "server/acl.h"
#include "server/config.h"
#include "transport/transport.h"

struct kvf_network {
    struct kvf_transports transports; /* the preferred one first */
    struct kvf_why without; /* empty, or why verbs is not among them though it could be chosen */
};

/* Open what the configuration says, and listen where it says so. transport: what lies where it may, and the loop. Not OK:
 * *why says what to change, and nothing is open. */
KVF_MUST_USE struct kvf_status kvf_network_open(const struct kvf_config *config,
                                                const struct kvf_acl *acl,
                                                const struct kvf_transport_options *transport,
                                                struct kvf_network *network, struct kvf_why *why);
/* The NUMA nodes of the NICs that the configuration means, each once, before anything is open: where memory should lie. At
 * most `room` are written; returns how many. */
size_t kvf_network_numa_nodes(const struct kvf_config *config, int *nodes, size_t room);
/* What its transports have locked of memory. */
uint64_t kvf_network_locked_bytes(const struct kvf_network *network);
/* For the log of a start. */
void kvf_network_log(const struct kvf_network *network, const struct kvf_config *config,
                     const struct kvf_acl *acl);
/* Every lane must be closed. A zeroed one is fine. */
void kvf_network_close(struct kvf_network *network);

#endif
