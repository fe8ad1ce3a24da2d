/* HOST:PORT as flags have it: "10.0.0.2:9470", "[fd00::1]:9470", "name:9470". Nothing is resolved
 * here. */
#ifndef KVFERRY_SERVER_ADDRESS_H
#define KVFERRY_SERVER_ADDRESS_H

#include <stdbool.h>

struct kvf_address {
    char host[256]; /* without brackets */
    unsigned port;  /* 0 to 65535 */
    bool is_ipv6;   /* was written in brackets */
};

/* False when the text is not HOST:PORT: a missing part, a host that is no name or number, a port
 * that is none. */
bool kvf_address_parse(const char *text, struct kvf_address *address);

/* "localhost", 127.0.0.0/8 or ::1. A name is not resolved: what is not known to be loopback is not.
 */
bool kvf_address_is_loopback(const struct kvf_address *address);

#endif
