#include "client/pull/address.h"

#include <stdio.h>
#include <string.h>

/* gRPC writes some bytes of an address as %XX. */
static void decode(const char *text, char *out, size_t room)
{
    size_t used = 0;
    while (*text != '\0' && used + 1 < room) {
        unsigned byte;
        if (text[0] == '%' && sscanf(text + 1, "%2x", &byte) == 1 && text[1] != '\0' &&
            text[2] != '\0') {
            out[used++] = (char)byte;
            text += 3;
        } else {
            out[used++] = *text++;
        }
    }
    out[used] = '\0';
}

/* Whom the call has reached; its port is the call's. */
static bool dialled(const char *peer, struct kvf_address *address)
{
    char text[ADDRESS_MAX_BYTES];
    if (strncmp(peer, "unix:", 5) == 0)
        return kvf_address_parse("127.0.0.1:0", address);
    if (strncmp(peer, "ipv4:", 5) != 0 && strncmp(peer, "ipv6:", 5) != 0)
        return false;
    decode(peer + 5, text, sizeof(text));
    return kvf_address_parse(text, address);
}

bool address_of_lane(const char *advertised, const char *peer, char address[ADDRESS_MAX_BYTES])
{
    struct kvf_address lane;
    if (advertised[0] == ':') {
        unsigned port;
        if (!kvf_address_parse_port(advertised + 1, &port) || !dialled(peer, &lane))
            return false;
        lane.port = port;
    } else if (!kvf_address_parse(advertised, &lane)) {
        return false;
    }
    if (lane.port == 0 || !kvf_address_is_numeric(&lane))
        return false;
    kvf_address_format(&lane, address);
    return true;
}
