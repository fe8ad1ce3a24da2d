/* A thread for work that would hold up an event loop: checksums over whole blocks, blocking look-ups. Jobs run in their
 * order; each one's `done` then runs on the loop. */
#ifndef KVFERRY_BASE_WORKER_H
#define KVFERRY_BASE_WORKER_H

#include "base/loop.h"
#include "base/status.h"

struct kvf_worker;

/* Embedded by the caller, borrowed until done. */
struct kvf_job {
    void (*work)(struct kvf_job *job); /* on the worker's thread */
    void (*done)(struct kvf_job *job); /* on the loop's thread */
    struct kvf_post post;
    struct kvf_job *next;
    struct kvf_loop *loop;
};

KVF_MUST_USE struct kvf_status kvf_worker_create(struct kvf_loop *loop, struct kvf_worker **give);
/* Every job must be done. Joins. NULL is fine. */
void kvf_worker_destroy(struct kvf_worker *worker);
void kvf_worker_start(struct kvf_worker *worker, struct kvf_job *job);

#endif
