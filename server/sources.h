/* The sources that this daemon pulls from: one kvf_source per (address, tenant, NIC), made when first
 * asked for, closed when idle ones must make room or the daemon ends. Owner thread: the
 * Manager's. */
#ifndef KVFERRY_SERVER_SOURCES_H
#define KVFERRY_SERVER_SOURCES_H

#include "client/pull/pull.h"
#include "server/acl.h"
#include "server/audit.h"
#include "server/overview.h"

struct kvf_sources;

#define KVF_SOURCES_MAX 256 /* hints come from engines: their number is bounded here */

struct kvf_sources_options {
    struct kvf_source_options source; /* address, tenant and may_serve are set per source */
    const struct kvf_acl *acl;        /* NULL: everybody may serve everything */
    struct kvf_audit *audit;          /* NULL: nobody keeps it */
};

KVF_MUST_USE struct kvf_status kvf_sources_create(const struct kvf_sources_options *options,
                                                  struct kvf_sources **give);
/* UNAVAILABLE: too many are busy, or we are closing. INVALID: no HOST:PORT. DENIED: not on loopback,
 * and no TLS. *source is borrowed until the loop's next turn, or as long as a pull or look-up on it
 * is open. The tenant is that of the namespace ns. Where lanes go by several NICs it is the one with the
 * fewest pulls. */
KVF_MUST_USE struct kvf_status kvf_sources_find(struct kvf_sources *sources, const char *address,
                                                const char *ns, struct kvf_source **source);
/* The ACL says something else now: sessions with sources that may not serve any more are ended. */
void kvf_sources_rights_changed(struct kvf_sources *sources);
/* Every source, for people to see. */
void kvf_sources_list(const struct kvf_sources *sources, struct kvf_overview_peers *give);
/* Close all; `closed` runs once, from the loop, when nothing of theirs is in flight. */
void kvf_sources_close(struct kvf_sources *sources, void (*closed)(void *context), void *context);
/* After `closed`, or before anything was ever found. NULL is fine. */
void kvf_sources_destroy(struct kvf_sources *sources);

#endif
