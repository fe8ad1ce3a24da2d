#include "transport/lane_address.h"

#include "base/address.h"
#include "transport/lane_core.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static void keep(struct lane_addresses *addresses, const struct addrinfo *found)
{
    addresses->count = addresses->next = 0;
    for (; found != NULL && addresses->count < LANE_ADDRESSES; found = found->ai_next) {
        if (found->ai_addrlen > sizeof(addresses->at[0]))
            continue;
        memcpy(&addresses->at[addresses->count], found->ai_addr, found->ai_addrlen);
        addresses->bytes[addresses->count++] = found->ai_addrlen;
    }
}

struct kvf_status lane_address_resolve(const char *text, bool to_listen,
                                       struct lane_addresses *addresses)
{
    struct kvf_address address;
    struct addrinfo *found = NULL;
    if (!kvf_address_parse(text, &address))
        return lane_fail(KVF_INVALID, 0);
    int error = kvf_address_resolve(&address, to_listen, &found);
    if (error != 0)
        return lane_fail(KVF_UNAVAILABLE, error == EAI_SYSTEM ? errno : 0);
    keep(addresses, found);
    freeaddrinfo(found);
    return addresses->count > 0 ? kvf_ok() : lane_fail(KVF_UNAVAILABLE, 0);
}

bool lane_nonces_make(struct kvf_lane_nonces *nonces)
{
    uint8_t *at = (uint8_t *)nonces;
    size_t left = sizeof(*nonces);
    while (left > 0) {
        ssize_t got = getrandom(at, left, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        left -= (size_t)got;
    }
    return true;
}

bool lane_nonce_equal(const uint8_t *bytes, const struct kvf_nonce *nonce)
{
    volatile uint8_t difference = 0;
    for (int i = 0; i < KVF_NONCE_BYTES; i++)
        difference = difference | (uint8_t)(bytes[i] ^ nonce->bytes[i]);
    return difference == 0;
}
