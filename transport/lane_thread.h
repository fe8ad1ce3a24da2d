/* A lane thread: a loop of its own that serves the sockets or queue pairs of some lanes. Sleeps
 * when they are quiet. Signals are blocked in it: they belong to the program's main thread. */
#ifndef KVFERRY_TRANSPORT_LANE_THREAD_H
#define KVFERRY_TRANSPORT_LANE_THREAD_H

#include "base/loop.h"
#include "base/status.h"

#include <pthread.h>

struct lane_thread {
    struct kvf_loop *loop;
    pthread_t id;
    struct kvf_post stop;
};

/* Borrows thread until lane_thread_join. */
KVF_MUST_USE struct kvf_status lane_thread_start(struct lane_thread *thread, unsigned number);
/* The same in two steps, for who has something to watch from the start: make the loop, run it. */
KVF_MUST_USE struct kvf_status lane_thread_init(struct lane_thread *thread);
KVF_MUST_USE struct kvf_status lane_thread_run(struct lane_thread *thread, const char *name);
/* Serves what is posted, then ends. The loop stays: the caller may clean up in the thread's place,
 * and then frees it. */
void lane_thread_join(struct lane_thread *thread);
void lane_thread_free(struct lane_thread *thread);

#endif
