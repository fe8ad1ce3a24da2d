/* What HTTP shows of the Manager: the bridge between the asking thread of http.h and the Manager's
 * loop. Each question is posted to the loop and waited for, one second at most; a Manager that does
 * not answer costs its asker only. */
#ifndef KVFERRY_SERVER_VIEW_H
#define KVFERRY_SERVER_VIEW_H

#include "base/loop.h"
#include "base/status.h"

#include <stddef.h>

struct kvf_view;

struct kvf_view_source {
    struct kvf_loop *loop;
    void *context;
    /* All on the loop's thread. */
    bool (*ready)(void *context, char *body, size_t room);
    char *(*metrics)(void *context);  /* malloc'ed, taken */
    char *(*overview)(void *context); /* likewise */
    const char *page;                 /* that shows the overview */
};

/* Serve on "HOST:PORT". */
KVF_MUST_USE struct kvf_status kvf_view_start(const char *address,
                                              const struct kvf_view_source *source,
                                              struct kvf_view **give, struct kvf_why *why);
int kvf_view_port(const struct kvf_view *view);
/* From the loop's thread. NULL is fine. */
void kvf_view_stop(struct kvf_view *view);

#endif
