/* The writer thread: one ring, and per drive up to two groups of records under way, one being written while the one
 * before is being synced. A group is what was queued when it began, within bounds; it ends as a whole, after one
 * fdatasync. Between groups it seals full segments, marks given-back ones as free and takes free ones.
 *
 * kvf_store_append and kvf_store_free of storage.h live here. */
#ifndef KVFERRY_STORAGE_WRITER_H
#define KVFERRY_STORAGE_WRITER_H

#include "storage/core.h"

KVF_MUST_USE struct kvf_status kvf_writer_start(struct kvf_store *store, struct kvf_why *why);

/* No append may be left; segments that were given back are still marked. NULL is fine. */
void kvf_writer_stop(struct kvf_writer *writer);

#endif
