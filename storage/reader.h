/* The reader threads and the window.
 *
 * Work is cut into pieces of <= io_bytes. Each drive has a list of turns, one entry per read set, that goes round; a
 * turn is io_bytes worth of pieces, so that a set of small blocks is not held up by one of large blocks. The window of a
 * drive (queue_depth pieces, inflight_bytes) is shared by all readers: whichever has a free slot takes the next piece,
 * and every completion takes another. Reads are never merged and never wait for a group.
 *
 * A reader sleeps in its ring, whether something is in flight there or not. New work wakes one sleeper; one that leaves
 * work behind for which the window has room wakes the next.
 *
 * kvf_store_read of storage.h lives here. */
#ifndef KVFERRY_STORAGE_READER_H
#define KVFERRY_STORAGE_READER_H

#include "storage/core.h"

/* Start the threads, one after the other: each opens its ring and gets the arenas as fixed buffers (pin.h). */
KVF_MUST_USE struct kvf_status kvf_readers_start(struct kvf_store *store, struct kvf_why *why);
/* Which buffers they have, for kvf_store_io_text. */
void kvf_readers_text(const struct kvf_readers *readers, char *text, size_t bytes);

/* No read may be left. NULL is fine. */
void kvf_readers_stop(struct kvf_readers *readers);

#endif
