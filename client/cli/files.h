/* What the command leaves on disk: files that appear whole or not at all, and names made from keys. */
#ifndef KVFERRY_CLIENT_CLI_FILES_H
#define KVFERRY_CLIENT_CLI_FILES_H

#include "base/block.h"
#include "base/status.h"

#include <stddef.h>

/* The longest name of a key: every byte as %XX, and the terminating zero. */
#define FILES_NAME_ROOM (3 * KVF_KEY_MAX_BYTES + 1)

/* The key as a file name: bytes outside [A-Za-z0-9._-] and a leading dot as %XX. Different keys, different names. */
void files_name(const struct kvf_key *key, char name[FILES_NAME_ROOM]);

/* Make path hold exactly these bytes: written beside it under another name, then renamed. On an error path is what it
 * was before. A path that is no regular file (a terminal, a pipe) is written to. IO or NO_SPACE, *why says it. */
KVF_MUST_USE struct kvf_status files_write(const char *path, const void *data, size_t bytes,
                                           struct kvf_why *why);

/* All of it to an open file; `name` is what it is called. */
KVF_MUST_USE struct kvf_status files_write_to(int fd, const char *name, const void *data,
                                              size_t bytes, struct kvf_why *why);

/* Make the directory and those above it; one that is there already is fine. */
KVF_MUST_USE struct kvf_status files_make_directory(const char *path, struct kvf_why *why);

/* Read until `room` bytes or the end. *give_bytes: how many. */
KVF_MUST_USE struct kvf_status files_read(int fd, void *data, size_t room, size_t *give_bytes);

#endif
