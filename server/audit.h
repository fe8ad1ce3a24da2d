/* The audit log: who did what with whose blocks, and who was kept from it. One line per event on the log, as the
 * component `audit`: the kind, then key=value. Each event is told exactly once; only denials, which strangers can
 * provoke without end, are bounded per second, and what was kept back is counted. Foreign text is escaped (%XX), keys
 * show four bytes at most, nonces and tokens never.
 *
 *     read identity=spiffe://x/b tenant=t id=7 blocks=12 hits=12 sent=12 bytes=113246208 outcome=OK waited_us=3 took_us=9021 key=6b31
 *     denied identity=spiffe://x/c tenant=t what=lookup reason=no_right
 *     denied suppressed=412
 *     forced identity=spiffe://x/b tenant=t reason=overdue
 *     reload what=acl outcome=OK
 *
 * Every function takes NULL for an audit log that nobody keeps. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_AUDIT_H
#define KVFERRY_SERVER_AUDIT_H

#include "base/block.h"
#include "base/loop.h"
#include "base/status.h"

#include <stdint.h>

#define KVF_AUDIT_DENIALS_PER_SECOND 10u

struct kvf_audit;

/* write (NULL: the log) gets each line. */
KVF_MUST_USE struct kvf_status kvf_audit_create(struct kvf_loop *loop,
                                                void (*write)(void *context, const char *line),
                                                void *context, struct kvf_audit **give);
/* Tell now what is still kept back. */
void kvf_audit_flush(struct kvf_audit *audit);
/* Flushed first. NULL is fine. */
void kvf_audit_destroy(struct kvf_audit *audit);

/* A Read that is over. */
struct kvf_audit_read {
    const char *identity;
    const char *tenant;
    uint64_t id;
    uint32_t blocks; /* asked for */
    uint32_t hits;   /* granted */
    uint32_t sent;   /* whole */
    uint64_t bytes;  /* of those that were sent */
    const char *outcome;
    uint64_t waited_ns;        /* for admission */
    uint64_t took_ns;          /* from its coming until nothing of it was left */
    const struct kvf_key *key; /* its first */
};

void kvf_audit_read(struct kvf_audit *audit, const struct kvf_audit_read *read);
/* what: "session", "lookup", "read", "serve", "put", "get", ...; reason: one word. */
void kvf_audit_denied(struct kvf_audit *audit, const char *identity, const char *tenant,
                      const char *what, const char *reason);
/* We ended a session that would not have ended by itself. */
void kvf_audit_forced(struct kvf_audit *audit, const char *identity, const char *tenant,
                      const char *reason);
/* what: "acl", "tls". */
void kvf_audit_reload(struct kvf_audit *audit, const char *what, struct kvf_status status);

#endif
