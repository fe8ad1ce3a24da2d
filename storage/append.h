/* The owner's side of writing: kvf_store_append and kvf_store_free of storage.h, and how an append gets back to it. */
#ifndef KVFERRY_STORAGE_APPEND_H
#define KVFERRY_STORAGE_APPEND_H

#include "storage/core.h"

/* Wake the owner for this append: it has ended (`finished`; its status and location are set, and it may be gone at
 * once), or it only carries the message that segments are asked for. Writer thread, without the lock. */
void kvf_append_post(struct kvf_store *store, struct kvf_append *append, bool finished);

#endif
