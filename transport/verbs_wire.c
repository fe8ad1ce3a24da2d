#include "transport/verbs_wire.h"

#include <endian.h>
#include <string.h>

static const char magic[4] = {'k', 'v', 'f', 'V'};

static void put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

void verbs_greeting_write(const struct kvf_nonce *nonce, uint8_t bytes[VERBS_GREETING_BYTES])
{
    memcpy(bytes, magic, sizeof(magic));
    put32(bytes + 4, VERBS_VERSION);
    memcpy(bytes + 8, nonce->bytes, KVF_NONCE_BYTES);
}

const uint8_t *verbs_greeting_nonce(const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    if (at == NULL || length < VERBS_GREETING_BYTES || memcmp(at, magic, sizeof(magic)) != 0 ||
        get32(at + 4) != VERBS_VERSION)
        return NULL;
    return at + 8;
}

void verbs_token_write(const struct verbs_token *token, uint8_t bytes[VERBS_TOKEN_BYTES])
{
    uint64_t address = htole64(token->address);
    put32(bytes, VERBS_VERSION);
    put32(bytes + 4, token->key);
    memcpy(bytes + 8, &address, sizeof(address));
}

bool verbs_token_is_legal(const uint8_t *bytes, size_t length)
{
    return length == VERBS_TOKEN_BYTES && get32(bytes) == VERBS_VERSION;
}

struct verbs_token verbs_token_read(const uint8_t bytes[VERBS_TOKEN_BYTES])
{
    uint64_t address;
    memcpy(&address, bytes + 8, sizeof(address));
    return (struct verbs_token){.address = le64toh(address), .key = get32(bytes + 4)};
}
