/* Recovery: what is on the drives at start, while the store already serves.
 *
 *   look      the header pages of all segments, on a few threads, the owner waits: FREE ones may be filled from then on,
 *             the others are UNREAD: nobody asks for them, fills or frees them
 *   read      per drive a few threads scan its UNREAD segments, the newest first. Records go to the owner in slices; a
 *             segment is SEALED (FREE, LOST) only when the owner was told all of it
 *   end       the last thread posts; the owner joins all and hears `ended`
 *
 * The threads are there only while a recovery is. Each fills one slice and waits until the owner has taken it, so that
 * memory is bounded whatever the drives hold. */
#ifndef KVFERRY_STORAGE_RECOVER_H
#define KVFERRY_STORAGE_RECOVER_H

#include "storage/core.h"

/* Owner thread. NO_MEMORY: nothing was started. */
KVF_MUST_USE struct kvf_status
kvf_recover_start(struct kvf_store *store, struct kvf_recovery *recovery, struct kvf_why *why);

#endif
