#include "server/files_watch.h"

#include "base/clock.h"
#include "base/list.h"

#include <string.h>
#include <sys/stat.h>

#define LOOK_NS KVF_NS_PER_S

static void look(const struct kvf_files_watch *watch, struct kvf_file_look *looks)
{
    memset(looks, 0, KVF_FILES_WATCHED_MAX * sizeof(*looks)); /* they are compared byte by byte */
    for (size_t i = 0; i < KVF_FILES_WATCHED_MAX; i++) {
        struct stat info;
        if (watch->paths[i] == NULL || stat(watch->paths[i], &info) != 0)
            continue;
        looks[i].device = info.st_dev;
        looks[i].inode = info.st_ino;
        looks[i].bytes = info.st_size;
        looks[i].modified = info.st_mtim;
        looks[i].changed = info.st_ctim;
    }
}

static void look_again(struct kvf_timer *timer)
{
    struct kvf_files_watch *watch = kvf_container(timer, struct kvf_files_watch, timer);
    struct kvf_file_look now[KVF_FILES_WATCHED_MAX];
    look(watch, now);
    kvf_timer_start(watch->loop, timer, kvf_clock_now_ns() + LOOK_NS);
    if (memcmp(now, watch->last, sizeof(now)) != 0) {
        memcpy(watch->last, now, sizeof(now));
    } else if (watch->again || memcmp(now, watch->told, sizeof(now)) != 0) {
        watch->again = false;
        memcpy(watch->told, now, sizeof(now));
        watch->changed(watch->context);
    }
}

void kvf_files_watch_start(struct kvf_files_watch *watch)
{
    look(watch, watch->told);
    memcpy(watch->last, watch->told, sizeof(watch->last));
    watch->timer.fire = look_again;
    kvf_timer_start(watch->loop, &watch->timer, kvf_clock_now_ns() + LOOK_NS);
}

void kvf_files_watch_again(struct kvf_files_watch *watch)
{
    watch->again = true;
}

void kvf_files_watch_stop(struct kvf_files_watch *watch)
{
    if (watch->loop != NULL)
        kvf_timer_stop(watch->loop, &watch->timer);
}
