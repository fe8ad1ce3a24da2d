#include "server/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>

static bool parse_port(const char *text, unsigned *port)
{
    unsigned value = 0;
    size_t digits = 0;
    for (; text[digits] >= '0' && text[digits] <= '9' && digits < 6; digits++)
        value = value * 10 + (unsigned)(text[digits] - '0');
    if (digits == 0 || text[digits] != '\0' || value > 65535)
        return false;
    *port = value;
    return true;
}

/* Only digits and dots: then it must be a whole IPv4 address, not the "10.1" that resolvers
 * complete in their own way. */
static bool is_numeric(const char *host)
{
    return strspn(host, "0123456789.") == strlen(host);
}

static bool is_name(const char *host)
{
    for (const char *at = host; *at != '\0'; at++)
        if (!isalnum((unsigned char)*at) && strchr("-._", *at) == NULL)
            return false;
    return host[0] != '-' && host[0] != '.';
}

static bool host_is_valid(const struct kvf_address *address)
{
    struct in_addr ipv4;
    struct in6_addr ipv6;
    if (address->is_ipv6) {
        char bare[sizeof(address->host)];
        strcpy(bare, address->host);
        char *zone = strchr(bare, '%'); /* fe80::1%eth0 */
        if (zone != NULL) {
            if (zone[1] == '\0' || !is_name(zone + 1))
                return false;
            *zone = '\0';
        }
        return inet_pton(AF_INET6, bare, &ipv6) == 1;
    }
    if (is_numeric(address->host))
        return inet_pton(AF_INET, address->host, &ipv4) == 1;
    return is_name(address->host);
}

bool kvf_address_parse(const char *text, struct kvf_address *address)
{
    struct kvf_address parsed = {.is_ipv6 = text[0] == '['};
    const char *host = parsed.is_ipv6 ? text + 1 : text;
    const char *end = parsed.is_ipv6 ? strchr(host, ']') : strrchr(host, ':');
    if (end == NULL || end == host || (size_t)(end - host) >= sizeof(parsed.host))
        return false;
    memcpy(parsed.host, host, (size_t)(end - host));
    const char *colon = parsed.is_ipv6 ? end + 1 : end;
    if (*colon != ':' || !parse_port(colon + 1, &parsed.port) || !host_is_valid(&parsed))
        return false;
    *address = parsed;
    return true;
}

bool kvf_address_is_loopback(const struct kvf_address *address)
{
    struct in_addr ipv4;
    struct in6_addr ipv6;
    if (address->is_ipv6)
        return inet_pton(AF_INET6, address->host, &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6);
    if (inet_pton(AF_INET, address->host, &ipv4) == 1)
        return ntohl(ipv4.s_addr) >> 24 == 127;
    return strcasecmp(address->host, "localhost") == 0;
}
