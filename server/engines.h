/* Engines: engine.sock, one context per registered engine process.
 *
 *   CONNECTED   Register must come, within 5 s
 *   REGISTERED  puts, Gets, look-ups
 *   LEAVING     the socket has ended: what it held is given back, except for places that its
 *               process may still write to: those wait until the process is gone
 *   (freed)     when nothing of it is left
 *
 * The end of a connection is noticed by its end of file; that of a process by its pidfd, or, where
 * the process lives in another pid namespace that shows none, five seconds after the end of file.
 * An engine's identity is `uid:N`, its user as the kernel says (SO_PEERCRED). With an ACL, one that it does not name
 * cannot register; without the right to read a tenant its blocks look missing, without the right to write puts and Forget
 * are DENIED. All arenas are mapped by every engine that registers: rights keep honest engines apart, not hostile ones.
 *
 * Bytes from an engine end its connection at worst. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_ENGINES_H
#define KVFERRY_SERVER_ENGINES_H

#include "base/pool.h"
#include "server/acl.h"
#include "server/audit.h"
#include "server/get.h"
#include "server/put.h"

struct kvf_engines;

struct kvf_engines_options {
    struct kvf_loop *loop;
    const char *path; /* of engine.sock; borrowed for life */
    struct kvf_pool *pool;
    struct kvf_index *index;
    struct gets *gets;
    struct puts *puts;
    uint64_t boot_epoch;
    uint64_t per_instance_limit_bytes;
    uint64_t query_timeout_ns;   /* caps every deadline */
    const struct kvf_acl *acl;   /* NULL: everybody may do everything */
    struct kvf_audit *audit;     /* NULL: nobody keeps it */
    void (*left)(void *context); /* a context is gone */
    void *context;
};

/* OK: nobody serves this socket, whether it exists or not. UNAVAILABLE: another daemon does. */
KVF_MUST_USE struct kvf_status kvf_engines_look(const char *path, struct kvf_why *why);
/* Listen. Replaces a socket file that nobody serves. UNAVAILABLE: another daemon serves it. */
KVF_MUST_USE struct kvf_status kvf_engines_create(const struct kvf_engines_options *options,
                                                  struct kvf_engines **give, struct kvf_why *why);
/* No context may be left but those that have not registered. Removes the socket file. NULL is fine.
 */
void kvf_engines_destroy(struct kvf_engines *engines);

/* New contexts hear DRAINING, those that are here a DrainNotice. */
void kvf_engines_drain(struct kvf_engines *engines);
/* The ACL says something else now: whoever it does not name any more is ended. */
void kvf_engines_rights_changed(struct kvf_engines *engines);
/* End every connection, at a forced end of the daemon; names in the log who was left, and waits for no process. */
void kvf_engines_force(struct kvf_engines *engines);
/* Contexts that have registered, those that are LEAVING included. */
uint64_t kvf_engines_count(const struct kvf_engines *engines);

#endif
