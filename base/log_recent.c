/* The last warnings and errors. Apart from log.c: fuzz targets have a log of their own. */
#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* both */
static char kept[KVF_LOG_RECENT][KVF_LOG_RECENT_BYTES];
static unsigned long long count; /* ever kept; the oldest is overwritten */

void kvf_log_keep(const char *line, size_t bytes)
{
    pthread_mutex_lock(&mutex);
    (void)snprintf(kept[count++ % KVF_LOG_RECENT], KVF_LOG_RECENT_BYTES, "%.*s", (int)bytes, line);
    pthread_mutex_unlock(&mutex);
}

size_t kvf_log_recent(char lines[KVF_LOG_RECENT][KVF_LOG_RECENT_BYTES])
{
    pthread_mutex_lock(&mutex);
    const size_t present = count < KVF_LOG_RECENT ? (size_t)count : KVF_LOG_RECENT;
    for (size_t at = 0; at < present; at++)
        memcpy(lines[at], kept[(count - present + at) % KVF_LOG_RECENT], KVF_LOG_RECENT_BYTES);
    pthread_mutex_unlock(&mutex);
    return present;
}
