#include "client/pull/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST_MAX_BYTES 80

/* Copies the host in front of the last colon, without brackets. */
static bool take_host(const char *text, char host[HOST_MAX_BYTES])
{
    const char *colon = strrchr(text, ':');
    if (colon == NULL)
        return false;
    size_t bytes = (size_t)(colon - text);
    if (bytes >= 2 && text[0] == '[' && colon[-1] == ']') {
        text++;
        bytes -= 2;
    } else if (memchr(text, ':', bytes) != NULL) {
        return false; /* an IPv6 address belongs in brackets */
    }
    if (bytes >= HOST_MAX_BYTES)
        return false;
    memcpy(host, text, bytes);
    host[bytes] = '\0';
    return true;
}

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

static bool host_of_peer(const char *peer, char host[HOST_MAX_BYTES])
{
    char text[ADDRESS_MAX_BYTES];
    if (strncmp(peer, "unix:", 5) == 0) {
        (void)snprintf(host, HOST_MAX_BYTES, "127.0.0.1");
        return true;
    }
    if (strncmp(peer, "ipv4:", 5) != 0 && strncmp(peer, "ipv6:", 5) != 0)
        return false;
    decode(peer + 5, text, sizeof(text));
    return take_host(text, host);
}

static bool is_port(const char *text)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long port = strtoul(text, &end, 10);
    return *end == '\0' && port >= 1 && port <= 65535;
}

/* An IPv6 address may carry a scope: "fe80::1%eth0". */
static bool is_ipv6(const char *host)
{
    char plain[HOST_MAX_BYTES];
    struct in6_addr address;
    (void)snprintf(plain, sizeof(plain), "%s", host);
    plain[strcspn(plain, "%")] = '\0';
    return inet_pton(AF_INET6, plain, &address) == 1;
}

bool address_of_lane(const char *advertised, const char *peer, char address[ADDRESS_MAX_BYTES])
{
    char host[HOST_MAX_BYTES];
    const char *colon = strrchr(advertised, ':');
    struct in_addr ipv4;
    if (colon == NULL || !is_port(colon + 1) || !take_host(advertised, host))
        return false;
    if (host[0] == '\0' && !host_of_peer(peer, host))
        return false;
    bool brackets = is_ipv6(host);
    if (!brackets && inet_pton(AF_INET, host, &ipv4) != 1)
        return false;
    (void)snprintf(address, ADDRESS_MAX_BYTES, "%s%s%s:%s", brackets ? "[" : "", host,
                   brackets ? "]" : "", colon + 1);
    return true;
}
