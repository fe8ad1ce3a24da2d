/* An event loop: one thread, epoll, timers, and a mailbox that other threads post to.
 *
 * Everything but kvf_loop_post belongs to the thread that runs the loop (before kvf_loop_run: to its creator). All
 * structs are embedded by the caller, so nothing is allocated while it runs. An idle loop sleeps. */
#ifndef KVFERRY_BASE_LOOP_H
#define KVFERRY_BASE_LOOP_H

#include "base/status.h"

#include <stdint.h>

struct kvf_loop;

/* A message to the loop's thread. Borrowed from kvf_loop_post until `run` is called; `run` may post it again or free
 * what contains it. Posts of one thread run in their order. */
struct kvf_post {
    struct kvf_post *next;
    void (*run)(struct kvf_post *post);
};

/* A descriptor that is watched. `ready` gets EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP as they come (level-triggered). */
struct kvf_watch {
    int fd;
    uint32_t events;
    void (*ready)(struct kvf_watch *watch, uint32_t events);
    bool active;
};

/* A point in time. `fire` runs once, not before it; it may start the timer again. */
struct kvf_timer {
    void (*fire)(struct kvf_timer *timer);
    uint64_t deadline_ns;
    struct kvf_timer *child, *sibling, *parent; /* pairing heap; parent = NULL and !armed outside */
    bool armed;
};

KVF_MUST_USE struct kvf_status kvf_loop_create(struct kvf_loop **give);
/* The loop must not be running; nothing may be watched, armed or posted any more. NULL is fine. */
void kvf_loop_destroy(struct kvf_loop *loop);

/* Serve until kvf_loop_stop. */
void kvf_loop_run(struct kvf_loop *loop);
/* Serve what is ready, waiting at most timeout_ms (-1: for ever) for the first event. For tests and for owners that
 * drive a loop inside a blocking call. */
void kvf_loop_run_once(struct kvf_loop *loop, int timeout_ms);
/* Ask kvf_loop_run to return after the current round. From the loop's thread (from another: by a post). */
void kvf_loop_stop(struct kvf_loop *loop);

/* From any thread, never blocks, never fails. */
void kvf_loop_post(struct kvf_loop *loop, struct kvf_post *post);

/* The caller sets fd, events and ready. */
KVF_MUST_USE struct kvf_status kvf_watch_start(struct kvf_loop *loop, struct kvf_watch *watch);
void kvf_watch_change(struct kvf_loop *loop, struct kvf_watch *watch, uint32_t events);
/* After it returns `ready` is not called any more. The fd stays open. Stopping twice is fine. */
void kvf_watch_stop(struct kvf_loop *loop, struct kvf_watch *watch);

/* The caller has set fire. Starting an armed timer moves it. */
void kvf_timer_start(struct kvf_loop *loop, struct kvf_timer *timer, uint64_t deadline_ns);
void kvf_timer_stop(struct kvf_loop *loop, struct kvf_timer *timer);

#endif
