#include "client/cli/names.h"

#include "base/address.h"

#include <errno.h>
#include <stdlib.h>

static struct kvf_status invalid(void)
{
    return kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static struct kvf_status hex_key(const char *text, struct kvf_key *key, struct kvf_why *why)
{
    const char *digits = text + strlen("hex:");
    size_t length = strlen(digits);
    uint8_t bytes[KVF_KEY_MAX_BYTES];
    if (length == 0 || length % 2 != 0 || length > 2 * sizeof(bytes))
        return kvf_why_set(
            why, invalid(),
            "key %.140s: hex: takes 2 to 128 hex digits, two for each byte; it has %zu", text,
            length);
    for (size_t i = 0; i < length; i += 2) {
        int high = hex_digit(digits[i]), low = hex_digit(digits[i + 1]);
        if (high < 0 || low < 0)
            return kvf_why_set(why, invalid(), "key %.140s: '%c' is no hex digit; use 0-9 and a-f",
                               text, high < 0 ? digits[i] : digits[i + 1]);
        bytes[i / 2] = (uint8_t)(high << 4 | low);
    }
    kvf_assert(kvf_key_set(key, bytes, length / 2));
    return kvf_ok();
}

struct kvf_status names_key(const char *text, struct kvf_key *key, struct kvf_why *why)
{
    if (strncmp(text, "hex:", 4) == 0)
        return hex_key(text, key, why);
    size_t length = strlen(text);
    if (length == 0)
        return kvf_why_set(why, invalid(), "the key is empty; a key has 1 to %d bytes",
                           KVF_KEY_MAX_BYTES);
    if (!kvf_key_set(key, text, length))
        return kvf_why_set(why, invalid(), "key %.80s...: has %zu bytes; a key has 1 to %d", text,
                           length, KVF_KEY_MAX_BYTES);
    return kvf_ok();
}

static bool is_repeated(const struct kvf_key *keys, size_t count, const struct kvf_key *key)
{
    for (size_t i = 0; i < count; i++) {
        if (kvf_key_equal(&keys[i], key))
            return true;
    }
    return false;
}

struct kvf_status names_keys(char *const *texts, size_t count, struct kvf_key **give,
                             size_t *give_count, struct kvf_why *why)
{
    struct kvf_key *keys = calloc(count, sizeof(*keys));
    size_t kept = 0;
    if (keys == NULL)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    for (size_t i = 0; i < count; i++) {
        struct kvf_key key;
        struct kvf_status status = names_key(texts[i], &key, why);
        if (!kvf_is_ok(status)) {
            free(keys);
            return status;
        }
        if (!is_repeated(keys, kept, &key))
            keys[kept++] = key;
    }
    *give = keys;
    *give_count = kept;
    return kvf_ok();
}

struct kvf_status names_namespace(const char *text, struct kvf_why *why)
{
    if (kvf_namespace_is_valid(text))
        return kvf_ok();
    return kvf_why_set(why, invalid(),
                       "namespace '%.100s': write TENANT/FINGERPRINT, each of A-Z a-z 0-9 . _ -, "
                       "together at most %d bytes",
                       text, KVF_NAMESPACE_MAX_BYTES);
}

struct kvf_status names_address(const char *option, const char *text, struct kvf_why *why)
{
    struct kvf_address address;
    if (kvf_address_parse(text, &address) && address.port > 0)
        return kvf_ok();
    return kvf_why_set(
        why, invalid(),
        "%s '%.100s': write HOST:PORT (an IPv6 address as [ADDRESS]:PORT), port 1 to 65535", option,
        text);
}

struct kvf_status names_number(const char *option, const char *text, uint64_t least, uint64_t most,
                               uint64_t *number, struct kvf_why *why)
{
    bool digits = text[0] != '\0' && text[strspn(text, "0123456789")] == '\0';
    errno = 0;
    unsigned long long value = digits ? strtoull(text, NULL, 10) : 0;
    if (!digits || errno != 0 || value < least || value > most)
        return kvf_why_set(why, invalid(), "%s '%.60s': give a whole number from %llu to %llu",
                           option, text, (unsigned long long)least, (unsigned long long)most);
    *number = value;
    return kvf_ok();
}
