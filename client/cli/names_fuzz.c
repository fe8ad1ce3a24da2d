/* libFuzzer over what the command line may call a key, a namespace, an address, a number. A key that is accepted comes
 * back as the same key from the text that we print for it, and its file name is one. */
#include "client/cli/files.h"
#include "client/cli/names.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_key(const struct kvf_key *key)
{
    char text[KVF_KEY_TEXT_ROOM], name[FILES_NAME_ROOM];
    struct kvf_key again;
    struct kvf_why why;
    kvf_key_text(key, text);
    kvf_assert(kvf_is_ok(names_key(text, &again, &why)) && kvf_key_equal(key, &again));
    files_name(key, name);
    kvf_assert(name[0] != '.' && name[0] != '\0' && strchr(name, '/') == NULL);
}

static void check_keys(char *text)
{
    char *texts[] = {text, text};
    struct kvf_why why;
    struct kvf_key *keys;
    size_t count;
    if (!kvf_is_ok(names_keys(texts, 2, &keys, &count, &why)))
        return;
    kvf_assert(count == 1);
    free(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = strndup((const char *)data, bytes);
    struct kvf_why why;
    struct kvf_key key;
    uint64_t number;
    kvf_assert(text != NULL);
    if (kvf_is_ok(names_key(text, &key, &why)))
        check_key(&key);
    check_keys(text);
    (void)kvf_is_ok(names_namespace(text, &why));
    (void)kvf_is_ok(names_address("--source", text, &why));
    if (kvf_is_ok(names_number("--n", text, 3, 70000, &number, &why)))
        kvf_assert(number >= 3 && number <= 70000);
    free(text);
    return 0;
}
