/* Keys that recovery may still find. While it runs, a key that the index does not know is not yet a miss: who needs to
 * know waits here until the key is known or recovery is over. The wait holds no memory but its own struct.
 *
 * Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_AWAITED_H
#define KVFERRY_SERVER_AWAITED_H

#include "server/index.h"

struct kvf_awaited {
    struct kvf_table keys; /* of kvf_await.node; several may wait for one key */
    struct kvf_list all;   /* of kvf_await.list */
    const struct kvf_index *index;
    uint64_t seed;
    bool open; /* recovery runs */
};

/* Embedded by who waits; the caller sets the first part. */
struct kvf_await {
    const char *ns; /* borrowed until `settled` or removal, and the key */
    const struct kvf_key *key;
    /* Once: the index knows the key now, or recovery is over. */
    void (*settled)(struct kvf_await *await);

    struct kvf_table_node node;
    struct kvf_list list;
};

/* Recovery is over until kvf_awaited_open. */
KVF_MUST_USE struct kvf_status kvf_awaited_init(struct kvf_awaited *awaited,
                                                const struct kvf_index *index);
/* Nobody may wait. What was never initialised (zero) is fine. */
void kvf_awaited_fini(struct kvf_awaited *awaited);

/* Recovery begins. */
void kvf_awaited_open(struct kvf_awaited *awaited);
/* Recovery is over: all are settled. */
void kvf_awaited_close(struct kvf_awaited *awaited);
/* An unknown key may still be found. NULL: it may not. */
static inline bool kvf_awaited_is_open(const struct kvf_awaited *awaited)
{
    return awaited != NULL && awaited->open;
}

/* Only while it is open. */
void kvf_awaited_add(struct kvf_awaited *awaited, struct kvf_await *await);
/* It waits no longer; it must not have been settled. */
void kvf_awaited_remove(struct kvf_awaited *awaited, struct kvf_await *await);
/* This key was found or is being put. Once the index knows it, who waits for it is settled. NULL: nobody waits. */
void kvf_awaited_look(struct kvf_awaited *awaited, const char *ns, const struct kvf_key *key);

#endif
