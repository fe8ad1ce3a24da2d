/* Trust: who we are (TLS), who may what (ACL) and the record of it (audit), and how all of that is read again without a
 * restart: on SIGHUP, and when the files change. What is bad is logged and changes nothing. What only could not be read (no
 * descriptor left, say) is tried again each second: a right that was taken away must not stay for that.
 *
 * Embedded by the Manager. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_TRUST_H
#define KVFERRY_SERVER_TRUST_H

#include "proto/rpc/rpc.h"
#include "server/acl.h"
#include "server/audit.h"
#include "server/files_watch.h"

struct kvf_trust_options {
    struct kvf_loop *loop;
    struct kvf_rpc_tls_files tls; /* all three, or none */
    const char *acl;              /* NULL: none */
    /* The ACL says something else now. */
    void (*rights_changed)(void *context);
    void *context;
};

struct kvf_trust {
    struct kvf_rpc_tls *tls; /* NULL: plaintext */
    struct kvf_acl *acl;     /* NULL: everybody may do everything */
    struct kvf_audit *audit;

    /* trust's own */
    struct kvf_trust_options options;
    struct kvf_files_watch tls_watch, acl_watch;
    struct kvf_status tls_said, acl_said; /* of the last time that it was read */
};

/* Zeroed before. INVALID: *why says which file is bad. On error, too, it is to be closed. */
KVF_MUST_USE struct kvf_status kvf_trust_open(struct kvf_trust *trust,
                                              const struct kvf_trust_options *options,
                                              struct kvf_why *why);
/* For the log of a start: whom we are, and what is not kept from whom. */
void kvf_trust_log(const struct kvf_trust *trust);
/* Read everything again; reason, for the log: "SIGHUP". */
void kvf_trust_reload(struct kvf_trust *trust, const char *reason);
/* After kvf_rpc_destroy, and when nobody holds acl or audit. A zeroed one is fine. */
void kvf_trust_close(struct kvf_trust *trust);

#endif
