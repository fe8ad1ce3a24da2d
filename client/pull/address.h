/* address: where a source's lanes are. Numbers only: looking a name up would hold up the loop, and
 * with it everybody, for as long as a name server likes. */
#ifndef KVFERRY_CLIENT_PULL_ADDRESS_H
#define KVFERRY_CLIENT_PULL_ADDRESS_H

#include "base/address.h"

#define ADDRESS_MAX_BYTES KVF_ADDRESS_TEXT_BYTES

/* Where to connect a lane: `advertised` is the data address of a Welcome ("HOST:PORT"; an empty
 * host means the one that was dialled), `peer` is whom the call has reached, as gRPC says it
 * ("ipv4:10.0.0.2:9470"). False: no numeric address with a port. */
bool address_of_lane(const char *advertised, const char *peer, char address[ADDRESS_MAX_BYTES]);

#endif
