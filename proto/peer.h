/* peer: what both ends of the Peer service must agree on and peer.proto cannot say. A change of any of these is a change
 * of the protocol. The longest message is KVF_RPC_MAX_MESSAGE_BYTES, that of every call. */
#ifndef KVFERRY_PROTO_PEER_H
#define KVFERRY_PROTO_PEER_H

#include "base/clock.h"

#include <stdint.h>

/* Of Hello and Welcome; who hears another one ends the session and says so: printf's words for it, ours first. It changes
 * only when what is said today would be understood otherwise; a new field, which an older node skips, is no new version. */
#define KVF_PEER_VERSION 1u
#define KVF_PEER_VERSIONS_DIFFER                                                                   \
    "this node speaks version %u of the peer protocol, the other one %u: upgrade the older one"

#define KVF_PEER_SESSION "/kvferry.Peer/Session"
#define KVF_PEER_LOOKUP "/kvferry.Peer/Lookup"

/* From the call to the open lane; else either end gives the session up. */
#define KVF_PEER_HANDSHAKE_NS KVF_NS_PER_S
/* A Read that is this much over its deadline and not released takes its session down, at either end. */
#define KVF_PEER_RELEASE_GRACE_NS (2 * KVF_NS_PER_S)

/* What a Read that was refused for lack of room lacked: Refused.short_of. Append only. */
enum kvf_shortage {
    KVF_SHORT_OF_NOTHING = 0, /* it was not for lack of room, or the source does not say */
    KVF_SHORT_OF_INSTANCE,    /* what one engine instance may hold at the source */
    KVF_SHORT_OF_IDENTITY,    /* what one identity may hold */
    KVF_SHORT_OF_SPECULATIVE, /* what nobody waits for may hold */
    KVF_SHORT_OF_QUERY,       /* what all Gets and Reads together may hold */
    KVF_SHORT_OF_CLASS,       /* what all Reads together may hold */
    KVF_SHORT_OF_MEMORY,      /* one long piece of memory */
    KVF_SHORT_OF_TURN,        /* nothing; others were before it */
    KVF_SHORT_OF_READS,       /* open Reads, or blocks in them */
    KVF_SHORT_OF_GRANT,       /* the most that one Read may ask for */
    KVF_SHORT_OF_TENANT,      /* what its tenant may have in memory */
    KVF_SHORTAGE_COUNT
};

/* "its instance's share"; for what the other side said as well. */
static inline const char *kvf_shortage_text(uint32_t shortage)
{
    static const char *const texts[KVF_SHORTAGE_COUNT] = {
        [KVF_SHORT_OF_NOTHING] = "no reason given",
        [KVF_SHORT_OF_INSTANCE] = "the instance's own share",
        [KVF_SHORT_OF_IDENTITY] = "the identity's own share (--query-limit-per-identity-mib)",
        [KVF_SHORT_OF_SPECULATIVE] = "the share of what nobody waits for",
        [KVF_SHORT_OF_QUERY] = "what all queries may hold (--query-limit-mib)",
        [KVF_SHORT_OF_CLASS] = "what all of its kind may hold",
        [KVF_SHORT_OF_MEMORY] = "memory in one piece",
        [KVF_SHORT_OF_TURN] = "its turn",
        [KVF_SHORT_OF_READS] = "the number of open Reads or of their blocks",
        [KVF_SHORT_OF_GRANT] = "the size of one Read (--max-grant-mib)",
        [KVF_SHORT_OF_TENANT] = "the tenant's share of memory",
    };
    return texts[shortage < KVF_SHORTAGE_COUNT ? shortage : KVF_SHORT_OF_NOTHING];
}

/* Most keys of one Lookup. */
#define KVF_PEER_MAX_LOOKUP_KEYS 8192u

#endif
