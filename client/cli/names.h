/* What the command line calls things: namespaces, keys, addresses, numbers. The one validator of each. */
#ifndef KVFERRY_CLIENT_CLI_NAMES_H
#define KVFERRY_CLIENT_CLI_NAMES_H

#include "base/block.h"
#include "base/status.h"

#include <stddef.h>

/* Literal bytes, or "hex:" and an even number of hex digits; 1 to 64 bytes; what kvf_key_text says
 * comes back as the same key. INVALID: *why names it and the remedy. */
KVF_MUST_USE struct kvf_status names_key(const char *text, struct kvf_key *key,
                                         struct kvf_why *why);
/* All of them, each once, in their order. *give is the caller's, to be freed. */
KVF_MUST_USE struct kvf_status names_keys(char *const *texts, size_t count, struct kvf_key **give,
                                          size_t *give_count, struct kvf_why *why);
KVF_MUST_USE struct kvf_status names_namespace(const char *text, struct kvf_why *why);
/* HOST:PORT or [IPV6]:PORT, port 1 to 65535. */
KVF_MUST_USE struct kvf_status names_address(const char *option, const char *text,
                                             struct kvf_why *why);
/* A decimal number, nothing else around it. `option` is for *why. */
KVF_MUST_USE struct kvf_status names_number(const char *option, const char *text, uint64_t least,
                                            uint64_t most, uint64_t *number, struct kvf_why *why);

#endif
