/* Finding the records of a drive again at start. Runs on the owner thread before anything reads or writes, with plain
 * pread and pwrite. Nothing that the drive says is believed without its checksum and its place. */
#ifndef KVFERRY_STORAGE_RECOVER_H
#define KVFERRY_STORAGE_RECOVER_H

#include "storage/core.h"

typedef void kvf_recover_found(void *context, const struct kvf_record *record,
                               struct kvf_location location);

/* Tell every whole record, set the state of every segment, seal what was open. *error becomes 0, or the errno of
 * a segment that could not be read or sealed, which *why names; the others go on. Errors: NO_MEMORY. */
KVF_MUST_USE struct kvf_status kvf_recover_drive(struct kvf_drive *drive, kvf_recover_found *found,
                                                 void *context, int *error, struct kvf_why *why);

#endif
