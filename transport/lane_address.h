/* Where a lane goes: what a HOST:PORT stands for, and the nonces of an invitation. */
#ifndef KVFERRY_TRANSPORT_LANE_ADDRESS_H
#define KVFERRY_TRANSPORT_LANE_ADDRESS_H

#include "transport/transport.h"

#include <sys/socket.h>

#define LANE_ADDRESSES 4

struct lane_addresses {
    struct sockaddr_storage at[LANE_ADDRESSES];
    socklen_t bytes[LANE_ADDRESSES];
    unsigned count;
    unsigned next; /* to connect to */
};

/* At least one on success. INVALID: no HOST:PORT; UNAVAILABLE: nobody knows the host. Blocks while a
 * name is looked up. */
KVF_MUST_USE struct kvf_status lane_address_resolve(const char *text, bool to_listen,
                                                    struct lane_addresses *addresses);

/* Fresh random ones; false and errno: the kernel has none. */
KVF_MUST_USE bool lane_nonces_make(struct kvf_lane_nonces *nonces);

/* Takes the same time whatever differs. */
bool lane_nonce_equal(const uint8_t *bytes, const struct kvf_nonce *nonce);

#endif
