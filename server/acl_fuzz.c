/* libFuzzer over the ACL's parser, and over the questions that an ACL which it took must be able to answer. */
#include "server/acl.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvf_why why = {.text = ""};
    struct kvf_acl *acl = NULL;
    if (!kvf_is_ok(kvf_acl_parse("fuzz", (const char *)data, bytes, &acl, &why))) {
        kvf_assert(why.text[0] != '\0' && acl == NULL);
        return 0;
    }
    for (enum kvf_right right = 0; right < KVF_RIGHT_COUNT; right++)
        kvf_assert(!kvf_acl_may(acl, "spiffe://x/b", "t/f", right) ||
                   kvf_acl_knows(acl, "spiffe://x/b"));
    for (enum kvf_share share = 0; share < KVF_SHARE_COUNT; share++) {
        double part = kvf_acl_share(acl, "t", share);
        kvf_assert(part >= 0 && part <= 1);
    }
    kvf_acl_close(acl);
    return 0;
}
