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

struct kvf_status lane_thread_init(struct lane_thread *thread)
{
    thread->stop.run = run_stop;
    return kvf_loop_create(&thread->loop);
}

struct kvf_status lane_thread_run(struct lane_thread *thread, const char *name)
{
    int error = kvf_thread_start(&thread->id, name, serve, thread);
    return error == 0 ? kvf_ok() : kvf_fail(KVF_MODULE_TRANSPORT, KVF_NO_MEMORY, error);
}

struct kvf_status lane_thread_start(struct lane_thread *thread, unsigned number)
{
    char name[16];
    KVF_TRY(lane_thread_init(thread));
    (void)snprintf(name, sizeof(name), "kvf-lane-%u", number % 1000);
    struct kvf_status status = lane_thread_run(thread, name);
    if (!kvf_is_ok(status))
        lane_thread_free(thread);
    return status;
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
