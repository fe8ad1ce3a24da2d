/* The peer service: this node as a source. Answers Lookup and keeps the sessions of consumers.
 *
 * A session is one call and one lane; when either ends, both end, and with them every lease on it.
 *
 *   HELLO     the call is there; Hello must come
 *   WELCOMED  nonces are out; the lane must open (1 s after the call began, else it ends)
 *   OPEN      Reads are served
 *   CLOSING   nothing new; call and lane are being closed, leases end as their I/O does
 *   (freed)   when call, lane and the last lease are gone
 *
 * With an ACL, an identity that it does not name is told DENIED and gets no session. One that it names gets one for any
 * tenant; without the right to read that tenant, Reads and Lookups are answered as if nothing were there, in the same
 * number of bytes: what an identity may not read it cannot learn of, not even that there is such a tenant.
 *
 * Bytes from a peer, and a peer that does not read, end its session at worst. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_PEERS_H
#define KVFERRY_SERVER_PEERS_H

#include "proto/rpc/rpc.h"
#include "server/acl.h"
#include "server/audit.h"
#include "server/lease.h"
#include "server/overview.h"
#include "transport/transport.h"

struct kvf_peers;

#define KVF_MAX_OPEN_READS 16u
#define KVF_MAX_LEASES 64u /* of a session: open Reads, and released ones whose I/O has not ended */
#define KVF_MAX_SESSIONS_PER_IDENTITY 64u
#define KVF_MAX_BLOCKS_PER_IDENTITY                                                                \
    (256u << 10) /* in open Reads, of all its sessions: memory beside the pool */

struct kvf_peers_options {
    struct kvf_loop *loop;
    /* That lanes can come over; what the consumer prefers counts */
    struct kvf_transports transports;
    struct kvf_index *index;
    struct kvf_leases *leases;
    const char *node_id; /* borrowed for life */
    /* HOST:PORT that consumers dial for lanes; NULL: the host they dialled */
    const char *data_advertise;
    uint64_t boot_epoch;
    uint32_t max_blocks_per_read;
    uint64_t per_identity_limit_bytes;
    const struct kvf_acl *acl; /* NULL: everybody may read everything */
    struct kvf_audit *audit;   /* NULL: nobody keeps it */
};

KVF_MUST_USE struct kvf_status kvf_peers_create(const struct kvf_peers_options *options,
                                                struct kvf_peers **give);
/* No session may be left. NULL is fine. */
void kvf_peers_destroy(struct kvf_peers *peers);

/* The methods to serve on --listen, two of them; context is peers. */
#define KVF_PEERS_METHODS 2
void kvf_peers_methods(struct kvf_peers *peers, struct kvf_rpc_method methods[KVF_PEERS_METHODS]);

/* From now on: DRAINING at Hello, Lookup and Read, a DrainNotice to everybody, queued Reads are
 * refused; a session is closed when its last lease has ended. */
void kvf_peers_drain(struct kvf_peers *peers);
/* The ACL says something else now: sessions that have no right to be end, and where there is more than one tenant now
 * those whose lane cannot keep them apart. */
void kvf_peers_rights_changed(struct kvf_peers *peers);
/* End every session now. */
void kvf_peers_force(struct kvf_peers *peers);
uint64_t kvf_peers_sessions(const struct kvf_peers *peers);
/* Every session, for people to see. */
void kvf_peers_list(const struct kvf_peers *peers, struct kvf_overview_peers *give);
/* Extents that ended sessions still hold. */
uint64_t kvf_peers_quarantine_bytes(const struct kvf_peers *peers);

#endif
