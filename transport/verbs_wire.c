#include "transport/verbs_wire.h"

#include "transport/lane_wire.h"

static const char magic[4] = {'k', 'v', 'f', 'V'};

void verbs_greeting_write(const struct kvf_nonce *nonce, uint8_t bytes[VERBS_GREETING_BYTES])
{
    memcpy(bytes, magic, sizeof(magic));
    lane_put32(bytes + 4, VERBS_VERSION);
    memcpy(bytes + 8, nonce->bytes, KVF_NONCE_BYTES);
}

const uint8_t *verbs_greeting_nonce(const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    if (at == NULL || length < VERBS_GREETING_BYTES || memcmp(at, magic, sizeof(magic)) != 0 ||
        lane_get32(at + 4) != VERBS_VERSION)
        return NULL;
    return at + 8;
}

void verbs_token_write(const struct verbs_token *token, uint8_t bytes[VERBS_TOKEN_BYTES])
{
    lane_put32(bytes, VERBS_VERSION);
    lane_put32(bytes + 4, token->key);
    lane_put64(bytes + 8, token->address);
}

bool verbs_token_is_legal(const uint8_t *bytes, size_t length)
{
    return length == VERBS_TOKEN_BYTES && lane_get32(bytes) == VERBS_VERSION;
}

struct verbs_token verbs_token_read(const uint8_t bytes[VERBS_TOKEN_BYTES])
{
    return (struct verbs_token){.address = lane_get64(bytes + 8), .key = lane_get32(bytes + 4)};
}
