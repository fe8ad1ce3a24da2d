#include "base/block.h"

bool kvf_key_set(struct kvf_key *key, const void *bytes, size_t length)
{
    if (length < 1 || length > KVF_KEY_MAX_BYTES)
        return false;
    key->length = (uint8_t)length;
    memcpy(key->bytes, bytes, length);
    return true;
}

static bool is_plain(const struct kvf_key *key)
{
    for (size_t i = 0; i < key->length; i++)
        if (key->bytes[i] <= ' ' || key->bytes[i] > '~')
            return false;
    return key->length < 4 || memcmp(key->bytes, "hex:", 4) != 0;
}

void kvf_key_text(const struct kvf_key *key, char text[KVF_KEY_TEXT_ROOM])
{
    static const char digits[] = "0123456789abcdef";
    if (is_plain(key)) {
        memcpy(text, key->bytes, key->length);
        text[key->length] = '\0';
        return;
    }
    memcpy(text, "hex:", 4);
    text += 4;
    for (size_t i = 0; i < key->length; i++) {
        *text++ = digits[key->bytes[i] >> 4];
        *text++ = digits[key->bytes[i] & 15];
    }
    *text = '\0';
}

static size_t name_length(const char *text)
{
    return strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
}

size_t kvf_namespace_tenant_bytes(const char *text)
{
    return name_length(text);
}

bool kvf_tenant_is_valid(const char *text)
{
    size_t length = name_length(text);
    return length > 0 && text[length] == '\0' && length + 2 <= KVF_NAMESPACE_MAX_BYTES;
}

bool kvf_namespace_is_valid(const char *text)
{
    size_t tenant = name_length(text);
    if (tenant == 0 || text[tenant] != '/')
        return false;
    size_t fingerprint = name_length(text + tenant + 1);
    size_t all = tenant + 1 + fingerprint;
    return fingerprint > 0 && text[all] == '\0' && all <= KVF_NAMESPACE_MAX_BYTES;
}
