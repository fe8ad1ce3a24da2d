/* libFuzzer over HOST:PORT. What is accepted, written again and read again is the same. */
#include "base/address.h"
#include "base/status.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void resolve(const struct kvf_address *address)
{
    struct addrinfo *found = NULL;
    if (kvf_address_is_numeric(address) && kvf_address_resolve(address, false, &found) == 0)
        freeaddrinfo(found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = strndup((const char *)data, bytes), written[KVF_ADDRESS_TEXT_BYTES];
    struct kvf_address address, again;
    unsigned port;
    kvf_assert(text != NULL);
    if (kvf_address_parse_port(text, &port))
        kvf_assert(port <= 65535);
    if (kvf_address_parse(text, &address)) {
        kvf_address_format(&address, written);
        kvf_assert(kvf_address_parse(written, &again));
        kvf_assert(strcmp(address.host, again.host) == 0 && address.port == again.port &&
                   address.is_ipv6 == again.is_ipv6);
        (void)kvf_address_is_loopback(&address);
        resolve(&address);
    }
    free(text);
    return 0;
}
