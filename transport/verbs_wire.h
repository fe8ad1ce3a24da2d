/* The bytes of verbs that travel. All numbers are little-endian.
 *
 * Greeting, 40 bytes, in rdma_cm's private data: the consumer's with the connection request, the
 * source's with its acceptance. What follows it there is padding.
 * - magic (4 bytes), version u32, nonce (32 bytes)
 *
 * Token, 16 bytes, over the session's call:
 * - version u32, key u32, address u64: where the block begins for who reads with that key */
#ifndef KVFERRY_TRANSPORT_VERBS_WIRE_H
#define KVFERRY_TRANSPORT_VERBS_WIRE_H

#include "transport/transport.h"

#define VERBS_VERSION 1
#define VERBS_GREETING_BYTES 40 /* rdma_cm has room for 56 */
#define VERBS_TOKEN_BYTES 16

struct verbs_token {
    uint64_t address;
    uint32_t key;
};

void verbs_greeting_write(const struct kvf_nonce *nonce, uint8_t bytes[VERBS_GREETING_BYTES]);
/* NULL: no greeting of this version; else where in `bytes` its nonce is. */
const uint8_t *verbs_greeting_nonce(const void *bytes, size_t length);

void verbs_token_write(const struct verbs_token *token, uint8_t bytes[VERBS_TOKEN_BYTES]);
/* Any key and address: whether they open something is for the source's NIC to say. */
bool verbs_token_is_legal(const uint8_t *bytes, size_t length);
struct verbs_token verbs_token_read(const uint8_t bytes[VERBS_TOKEN_BYTES]);

#endif
