/* HOST:PORT, in the one way in which kvferry writes it: "10.0.0.2:9470", "[fd00::1]:9470", "[fe80::1%eth0]:9470",
 * "name:9470". Flags, engines' hints, peers and transports all come through here. Any thread. */
#ifndef KVFERRY_BASE_ADDRESS_H
#define KVFERRY_BASE_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>
#include <sys/socket.h>

struct kvf_address {
    char host[256]; /* without brackets */
    unsigned port;  /* 0 to 65535 */
    bool is_ipv6;   /* was written in brackets */
};

/* The longest text, with brackets, port and NUL. */
#define KVF_ADDRESS_TEXT_BYTES 264

/* False when the text is not HOST:PORT: a missing part, a host that is no name or number, a port
 * that is none. Nothing is resolved. */
bool kvf_address_parse(const char *text, struct kvf_address *address);
/* A port alone: 1 to 5 digits, 0 to 65535. */
bool kvf_address_parse_port(const char *text, unsigned *port);
/* As kvf_address_parse reads it. */
void kvf_address_format(const struct kvf_address *address, char text[KVF_ADDRESS_TEXT_BYTES]);

/* A number, not a name: resolving it asks nobody. */
bool kvf_address_is_numeric(const struct kvf_address *address);
/* "localhost", 127.0.0.0/8 or ::1. A name is not resolved: what is not known to be loopback is not.
 */
bool kvf_address_is_loopback(const struct kvf_address *address);

/* getaddrinfo for a TCP socket, to listen on or to connect to. Blocks while a name is looked up. 0: *give is the
 * caller's, for freeaddrinfo; else an EAI_ code for gai_strerror (EAI_SYSTEM: errno says more). */
int kvf_address_resolve(const struct kvf_address *address, bool to_listen, struct addrinfo **give);

/* A stream socket that listens there, non-blocking and close-on-exec; -1 and errno. */
int kvf_address_listen(const struct sockaddr *at, socklen_t bytes, int backlog);
/* The port that a TCP socket is bound to; -1: none. */
int kvf_address_bound_port(int fd);

#endif
