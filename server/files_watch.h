/* Tells when one of a few files has changed. They are looked at once a second: that sees a write in place, a rename over
 * it and a symbolic link that is turned to another directory, on every file system. A change counts when the next look
 * finds nothing new, so that a file is seldom read half-way through its writing.
 *
 * Embedded by its user, who sets the first part. Owner thread: the loop's. */
#ifndef KVFERRY_SERVER_FILES_WATCH_H
#define KVFERRY_SERVER_FILES_WATCH_H

#include "base/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#define KVF_FILES_WATCHED_MAX 3

/* What tells one content of a file from another one; all zero where there is no file. */
struct kvf_file_look {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec modified, changed;
};

struct kvf_files_watch {
    struct kvf_loop *loop;
    const char *paths[KVF_FILES_WATCHED_MAX]; /* borrowed; NULL: none */
    void (*changed)(void *context);
    void *context;

    /* files_watch's own */
    struct kvf_timer timer;
    struct kvf_file_look told[KVF_FILES_WATCHED_MAX]; /* what `changed` has been called for */
    struct kvf_file_look last[KVF_FILES_WATCHED_MAX]; /* what the last look saw */
    bool again;
};

/* From what the files are now. */
void kvf_files_watch_start(struct kvf_files_watch *watch);
/* Call `changed` once more in a second, whatever the files are then: they could not be read now. */
void kvf_files_watch_again(struct kvf_files_watch *watch);
/* Stopping twice, or what was never started, is fine. */
void kvf_files_watch_stop(struct kvf_files_watch *watch);

#endif
