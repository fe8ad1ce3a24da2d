/* Parts: text, what kind it is, sockets. */
#include "base/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- text ---- */

bool kvf_address_parse_port(const char *text, unsigned *port)
{
    unsigned value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 5 || text[digits] != '\0')
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (unsigned)(text[i] - '0');
    if (value > 65535)
        return false;
    *port = value;
    return true;
}

/* Only digits and dots: then it must be a whole IPv4 address, not the "10.1" that resolvers
 * complete in their own way. */
static bool is_digits_and_dots(const char *host)
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
    if (is_digits_and_dots(address->host))
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
    if (*colon != ':' || !kvf_address_parse_port(colon + 1, &parsed.port) ||
        !host_is_valid(&parsed))
        return false;
    *address = parsed;
    return true;
}

void kvf_address_format(const struct kvf_address *address, char text[KVF_ADDRESS_TEXT_BYTES])
{
    (void)snprintf(text, KVF_ADDRESS_TEXT_BYTES, address->is_ipv6 ? "[%s]:%u" : "%s:%u",
                   address->host, address->port);
}

/* ---- what kind it is ---- */

bool kvf_address_is_numeric(const struct kvf_address *address)
{
    return address->is_ipv6 || is_digits_and_dots(address->host);
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

/* ---- sockets ---- */

int kvf_address_resolve(const struct kvf_address *address, bool to_listen, struct addrinfo **give)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0),
                                   .ai_socktype = SOCK_STREAM};
    char port[16];
    (void)snprintf(port, sizeof(port), "%u", address->port);
    return getaddrinfo(address->host, port, &hints, give);
}

int kvf_address_listen(const struct sockaddr *at, socklen_t bytes, int backlog)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, at, bytes) == 0 && listen(fd, backlog) == 0)
        return fd;
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

int kvf_address_bound_port(int fd)
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof(bound);
    if (getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0)
        return -1;
    if (bound.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port);
    if (bound.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port);
    return -1;
}
