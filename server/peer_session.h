/* What the parts of the peers module share: sessions, and what each part does for the others.
 * Private to it.
 *
 *   peers.c        sessions: their beginning, Hello, messages, their end
 *   peer_reads.c   Read, Release, Cancel, and what goes down about them
 *   peer_lookup.c  Lookup */
#ifndef KVFERRY_SERVER_PEER_SESSION_H
#define KVFERRY_SERVER_PEER_SESSION_H

#include "proto/peer.pb-c.h"
#include "proto/scratch.h"
#include "server/parties.h"
#include "server/peers.h"

/* For the unpacked form of any message that is served: a Read of 8192 blocks, the most that can be configured, takes
 * 2 MB. Touched only where used. */
#define UNPACKED_BYTES (4u << 20)

enum session_state {
    SESSION_HELLO = 0, /* the call is there; Hello is legal, and nothing else */
    SESSION_WELCOMED,  /* by Hello: nonces are out, the lane must come; Reads may come already */
    SESSION_OPEN,      /* by the lane: Reads are served */
    SESSION_CLOSING,   /* by peer_end, from anywhere: only ends of what is open are taken */
};

/* Who calls, over all its sessions. */
struct identity {
    struct kvf_list node;
    uint32_t sessions;
    uint64_t open_blocks; /* of leases that exist */
    char name[];
};

struct session {
    struct kvf_list node;
    struct kvf_peers *peers;
    enum session_state state;
    struct identity *identity;
    struct kvf_party *party;         /* for admission; NULL before Hello */
    struct kvf_rpc_call *call;       /* NULL once closed */
    struct kvf_lane *lane;           /* NULL before Hello and once closed */
    struct kvf_transport *transport; /* of the lane; NULL before Hello */
    struct kvf_lease_lane shared;    /* the lane as its leases see it */
    struct kvf_timer timer;
    struct kvf_list leases;
    uint32_t lease_count;
    uint64_t last_id;
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1];
    uint64_t max_grant_bytes; /* as Welcome told it */
    uint64_t instance;
    bool speculative; /* its purpose: nobody waits for its Reads until they are raised */
    char nic[64];
    bool working;
};

struct kvf_peers {
    struct kvf_peers_options options;
    struct kvf_list sessions;
    struct kvf_list identities;
    struct kvf_parties parties;
    uint64_t session_count;
    bool draining;
    uint8_t *buffer;            /* for packing: KVF_RPC_MAX_MESSAGE_BYTES */
    struct kvf_scratch scratch; /* over `unpacked`: the one message that is being taken */
    uint8_t unpacked[UNPACKED_BYTES];
};

/* ---- peers.c ---- */

void peer_set_state(struct session *session, enum session_state to);
void peer_send(struct session *session, const Kvferry__SessionDown *down);
/* End call and lane together, and every lease. The session may be gone on return, unless `working`. */
void peer_end(struct session *session, enum kvf_code code, const char *text);
void peer_protocol_error(struct session *session, const char *text);
/* The same, because it would not have ended by itself; reason: one word for the audit log. */
void peer_end_by_force(struct session *session, enum kvf_code code, const char *reason,
                       const char *text);
/* False: the ACL does not name who calls; the call is over. */
bool peer_admit_caller(struct kvf_peers *peers, struct kvf_rpc_call *call, const char *what);
/* After something of it has ended. It may be gone on return, unless `working`. */
void peer_settle(struct session *session);

/* ---- peer_reads.c ---- */

/* Events of the lane: blocks that can be read now. */
void peer_tokens(struct kvf_lane *lane, void *user, struct kvf_lane_read *read,
                 const struct kvf_lane_token *tokens, size_t count);
/* The most blocks that one Read of this session may name. */
uint32_t peer_max_blocks(const struct session *session);
void peer_send_refused(struct session *session, uint64_t id, const struct kvf_refusal *refusal);
void peer_take_read(struct session *session, const Kvferry__Read *read);
void peer_take_release(struct session *session, const Kvferry__Release *release);
void peer_take_cancel(struct session *session, uint64_t id);
void peer_take_raise(struct session *session, uint64_t id);

/* ---- peer_lookup.c ---- */

/* Serves one call; context is the struct kvf_peers. */
void peer_lookup_called(struct kvf_rpc_call *call, void *context);

#endif
