/* The owner's side of writing: kvf_store_append and kvf_store_free of storage.h, and how an append gets back to it. */
#ifndef KVFERRY_STORAGE_APPEND_H
#define KVFERRY_STORAGE_APPEND_H

#include "storage/core.h"

/* Wake the owner for this append, which has not ended: it carries the message that segments are asked for. Writer thread,
 * without the lock. */
void kvf_append_carry_asks(struct kvf_store *store, struct kvf_append *append);

/* These appends (of node) have ended; status and location are set. The owner is woken once for all of them, and each may
 * be gone at once. Empties the list. Under the lock; gives the one to be posted when it is left, NULL: none. */
KVF_MUST_USE struct kvf_append *kvf_append_end(struct kvf_list *ended);

#endif
