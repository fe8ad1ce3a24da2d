/* The writer thread: one ring, and per drive up to three groups of records under way, one being written while those
 * before are being synced. A group is what was queued when it began, within bounds; it ends as a whole, after one
 * fdatasync. Between groups it seals full segments, marks given-back ones as free and takes free ones.
 *
 * batch.h builds what is written, spool.h moves a drive on, append.h is the owner's side. */
#ifndef KVFERRY_STORAGE_WRITER_H
#define KVFERRY_STORAGE_WRITER_H

#include "storage/core.h"

KVF_MUST_USE struct kvf_status kvf_writer_start(struct kvf_store *store, struct kvf_why *why);

/* No append may be left; segments that were given back are still marked, and open ones sealed. NULL is fine. */
void kvf_writer_stop(struct kvf_writer *writer);

/* There is something new for a drive that the writer waits for. Under the lock; true: the caller wakes the writer once it
 * has left the lock. */
KVF_MUST_USE bool kvf_writer_has_news(struct kvf_writer *writer);
void kvf_writer_wake(struct kvf_writer *writer);

#endif
