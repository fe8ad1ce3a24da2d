/* The ACL: what each identity may do with each tenant's blocks, and what share of the node each tenant has. From a JSON
 * file that is believed whole or not at all:
 *
 *     {"tenants": {"t": {"dram": 0.5, "ssd": 0.5}},
 *      "identities": {"spiffe://x/b": {"t": ["read", "serve"]},
 *                     "uid:1000": {"t": ["read", "write"]},
 *                     "spiffe://x/ops": {"*": ["admin"]}}}
 *
 * An identity is the URI SAN of a certificate, or `uid:N`, a user of this host on engine.sock. What is not given is
 * denied. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_ACL_H
#define KVFERRY_SERVER_ACL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define KVF_ACL_MAX_BYTES ((size_t)256 << 10)
#define KVF_ACL_MAX_NAMES 4096 /* identities; tenants; tenants of one identity */

enum kvf_right {
    KVF_RIGHT_READ = 0, /* Reads and Lookups of peers, Gets of engines */
    KVF_RIGHT_WRITE,    /* puts of engines, and what undoes them */
    KVF_RIGHT_SERVE,    /* we may believe bytes that come from this identity */
    KVF_RIGHT_ADMIN,    /* of no tenant but of the node: stands under "*" alone */
    KVF_RIGHT_COUNT
};

enum kvf_share { KVF_SHARE_DRAM = 0, KVF_SHARE_SSD, KVF_SHARE_COUNT };

struct kvf_acl;

/* Reads the file; the path is copied. INVALID: *why is one line with the file, the place in it and what to change. */
KVF_MUST_USE struct kvf_status kvf_acl_open(const char *path, struct kvf_acl **give,
                                            struct kvf_why *why);
/* The same from memory; `name` stands for the path in *why. */
KVF_MUST_USE struct kvf_status kvf_acl_parse(const char *name, const char *text, size_t length,
                                             struct kvf_acl **give, struct kvf_why *why);
/* Read the file again. On error the rights stay as they were. */
KVF_MUST_USE struct kvf_status kvf_acl_reload(struct kvf_acl *acl, struct kvf_why *why);
void kvf_acl_close(struct kvf_acl *acl);

/* Has the identity this right? Of `tenant` only what stands before a slash counts, so that a namespace will do; admin
 * looks at no tenant. Without an ACL (NULL) everybody has every right. */
bool kvf_acl_may(const struct kvf_acl *acl, const char *identity, const char *tenant,
                 enum kvf_right right);
/* Is it in the ACL at all? NULL: everybody is. */
bool kvf_acl_knows(const struct kvf_acl *acl, const char *identity);
/* What part of the node the tenant may fill, 0 to 1; 1 where nothing is said. */
double kvf_acl_share(const struct kvf_acl *acl, const char *tenant, enum kvf_share share);
/* Has anybody a right of a second tenant? Without an ACL (NULL) nobody tells tenants apart. */
bool kvf_acl_has_tenants(const struct kvf_acl *acl);
/* The nth of the tenants that it names for this identity; NULL: there are no more. */
const char *kvf_acl_tenant_of(const struct kvf_acl *acl, const char *identity, size_t n);
/* The nth of the tenants that it names for their shares; NULL: there are no more. */
const char *kvf_acl_tenant(const struct kvf_acl *acl, size_t n);

#endif
