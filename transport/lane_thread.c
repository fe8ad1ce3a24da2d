#include "transport/lane_thread.h"

#include "base/list.h"
#include "base/thread.h"

#include <stdio.h>

static void *serve(void *argument)
{
    struct lane_thread *thread = argument;
    kvf_loop_run(thread->loop);
    return NULL;
}

static void run_stop(struct kvf_post *post)
{
    kvf_loop_stop(kvf_container(post, struct lane_thread, stop)->loop);
}

struct kvf_status lane_thread_start(struct lane_thread *thread, unsigned number)
{
    thread->stop.run = run_stop;
    KVF_TRY(kvf_loop_create(&thread->loop));

    char name[16];
    (void)snprintf(name, sizeof(name), "kvf-lane-%u", number % 1000);
    int error = kvf_thread_start(&thread->id, name, serve, thread);
    if (error == 0)
        return kvf_ok();
    lane_thread_free(thread);
    return kvf_fail(KVF_MODULE_TRANSPORT, KVF_NO_MEMORY, error);
}

void lane_thread_join(struct lane_thread *thread)
{
    kvf_loop_post(thread->loop, &thread->stop);
    (void)pthread_join(thread->id, NULL);
}

void lane_thread_free(struct lane_thread *thread)
{
    kvf_loop_destroy(thread->loop);
    thread->loop = NULL;
}
