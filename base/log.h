/* One line per event on stderr: time, level, who, what. Thread-safe; a line is one write.
 *
 * base, storage and transport never log. Never log tokens, nonces, rkeys or payload. */
#ifndef KVFERRY_BASE_LOG_H
#define KVFERRY_BASE_LOG_H

#include "base/status.h"

#include <stddef.h>

enum kvf_log_level {
    KVF_LOG_INFO = 0,
    KVF_LOG_WARNING,
    KVF_LOG_ERROR,
};

/* "2026-11-30T12:00:00.123Z info server: text". Control bytes in the text become '?', so that a foreign string cannot
 * forge a line; lines are cut at 1 KiB. */
KVF_PRINTF(3, 4)
void kvf_log(enum kvf_log_level level, const char *who, const char *format, ...);

#define kvf_log_info(who, ...) kvf_log(KVF_LOG_INFO, who, __VA_ARGS__)
#define kvf_log_warning(who, ...) kvf_log(KVF_LOG_WARNING, who, __VA_ARGS__)
#define kvf_log_error(who, ...) kvf_log(KVF_LOG_ERROR, who, __VA_ARGS__)

/* The last warnings and errors of this process, whole lines without their newline, oldest first; longer ones are cut.
 * Returns how many there are. Thread-safe. */
#define KVF_LOG_RECENT 16
#define KVF_LOG_RECENT_BYTES 400
size_t kvf_log_recent(char lines[KVF_LOG_RECENT][KVF_LOG_RECENT_BYTES]);
/* log's own: remember a line. */
void kvf_log_keep(const char *line, size_t bytes);

/* A bound on lines that strangers can provoke. Zeroed at first; one thread at a time. */
struct kvf_log_limit {
    uint64_t second; /* the one in which `lines` were allowed */
    unsigned lines;
    uint64_t suppressed; /* not allowed since the last one that was */
};

/* True: write the line. *suppressed is how many were kept back since the last one then. */
bool kvf_log_may(struct kvf_log_limit *limit, unsigned per_second, uint64_t now_ns,
                 uint64_t *suppressed);

#endif
