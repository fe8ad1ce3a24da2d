/* One drive: its directory, the lock on it, the marker and the segment files.
 *
 * Opened in steps, so that a store of several drives changes nothing on any of them before all could be looked at:
 * lock (look), check (compare with what is asked), prepare (create, grow, raise the boot epoch). Owner thread only. */
#ifndef KVFERRY_STORAGE_DRIVE_H
#define KVFERRY_STORAGE_DRIVE_H

#include "storage/core.h"

/* Open and lock the directory and read the marker. Errors: IO, BUSY, DENIED (foreign content), CORRUPT (damaged
 * marker), UNSUPPORTED (newer format). Gives *marker, zero where there is none. */
KVF_MUST_USE struct kvf_status kvf_drive_lock(struct kvf_drive *drive, const char *path,
                                              struct kvf_marker *marker, struct kvf_why *why);

/* The same for somebody who changes nothing: it need not be writable. An empty directory is INVALID. */
KVF_MUST_USE struct kvf_status kvf_drive_lock_to_read(struct kvf_drive *drive, const char *path,
                                                      struct kvf_marker *marker,
                                                      struct kvf_why *why);
/* A descriptor for a segment's file, or -errno. */
int kvf_drive_open_to_read(const struct kvf_drive *drive, uint32_t number);

#define KVF_SEGMENT_NAME_BYTES 32
void kvf_segment_name(uint32_t number, char name[KVF_SEGMENT_NAME_BYTES]);

/* INVALID when the store there has other segments, or more of them, than is asked for. */
KVF_MUST_USE struct kvf_status kvf_drive_check(const struct kvf_drive *drive,
                                               const struct kvf_marker *marker,
                                               struct kvf_why *why);

/* Make what is missing, write the marker with the new epoch and sync it, open all segments. After an error
 * kvf_drive_close with `undo` removes what was made. */
KVF_MUST_USE struct kvf_status kvf_drive_prepare(struct kvf_drive *drive, struct kvf_marker *marker,
                                                 uint64_t boot_epoch, struct kvf_why *why);

/* A drive that was zeroed and never locked is fine. */
void kvf_drive_close(struct kvf_drive *drive, bool undo);

#endif
