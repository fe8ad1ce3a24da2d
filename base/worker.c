#include "base/worker.h"

#include "base/list.h"
#include "base/thread.h"

#include <stdlib.h>

struct kvf_worker {
    struct kvf_loop *loop;
    pthread_t thread;
    pthread_mutex_t mutex; /* first, last, stop */
    pthread_cond_t wake;
    struct kvf_job *first, *last;
    bool stop;
};

/* The oldest job; NULL when the worker is to end. */
static struct kvf_job *take(struct kvf_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    while (worker->first == NULL && !worker->stop)
        pthread_cond_wait(&worker->wake, &worker->mutex);
    struct kvf_job *job = worker->first;
    if (job != NULL)
        worker->first = job->next;
    pthread_mutex_unlock(&worker->mutex);
    return job;
}

static void *serve(void *argument)
{
    struct kvf_worker *worker = argument;
    struct kvf_job *job;
    while ((job = take(worker)) != NULL) {
        job->work(job);
        kvf_loop_post(job->loop, &job->post); /* from here on it belongs to the loop */
    }
    return NULL;
}

static void finish(struct kvf_post *post)
{
    struct kvf_job *job = kvf_container(post, struct kvf_job, post);
    job->done(job);
}

struct kvf_status kvf_worker_create(struct kvf_loop *loop, struct kvf_worker **give)
{
    struct kvf_worker *worker = calloc(1, sizeof(*worker));
    if (worker == NULL)
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, 0);
    worker->loop = loop;
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->wake, NULL);
    int error = kvf_thread_start(&worker->thread, "kvf-worker", serve, worker);
    if (error != 0) {
        pthread_cond_destroy(&worker->wake);
        pthread_mutex_destroy(&worker->mutex);
        free(worker);
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, error);
    }
    *give = worker;
    return kvf_ok();
}

void kvf_worker_destroy(struct kvf_worker *worker)
{
    if (worker == NULL)
        return;
    pthread_mutex_lock(&worker->mutex);
    kvf_assert(worker->first == NULL);
    worker->stop = true;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->mutex);
    free(worker);
}

void kvf_worker_start(struct kvf_worker *worker, struct kvf_job *job)
{
    job->next = NULL;
    job->loop = worker->loop;
    job->post.run = finish;
    pthread_mutex_lock(&worker->mutex);
    if (worker->first == NULL)
        worker->first = job;
    else
        worker->last->next = job;
    worker->last = job;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->mutex);
}
