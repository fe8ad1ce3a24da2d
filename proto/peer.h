/* peer: what both ends of the Peer service must agree on and peer.proto cannot say. A change of any of these is a change
 * of the protocol. The longest message is KVF_RPC_MAX_MESSAGE_BYTES, that of every call. */
#ifndef KVFERRY_PROTO_PEER_H
#define KVFERRY_PROTO_PEER_H

#include "base/clock.h"

/* Of Hello and Welcome; who hears another one ends the session. */
#define KVF_PEER_VERSION 1u

#define KVF_PEER_SESSION "/kvferry.Peer/Session"
#define KVF_PEER_LOOKUP "/kvferry.Peer/Lookup"

/* From the call to the open lane; else either end gives the session up. */
#define KVF_PEER_HANDSHAKE_NS KVF_NS_PER_S
/* A Read that is this much over its deadline and not released takes its session down, at either end. */
#define KVF_PEER_RELEASE_GRACE_NS (2 * KVF_NS_PER_S)

/* Most keys of one Lookup. */
#define KVF_PEER_MAX_LOOKUP_KEYS 8192u

#endif
