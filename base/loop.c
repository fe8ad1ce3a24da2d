#include "base/loop.h"

#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_PER_ROUND 64

struct kvf_loop {
    int epoll_fd;
    int wake_fd;
    bool stop;
    struct kvf_timer *timers;          /* root of the heap: the earliest */
    _Atomic(struct kvf_post *) posted; /* newest first; any thread pushes, only the loop takes */
    struct epoll_event *batch;         /* events of this round that were not served yet */
    int batch_count;
};

/* ---- timers: a pairing heap; all links live in the caller's struct ---- */

static struct kvf_timer *meld(struct kvf_timer *a, struct kvf_timer *b)
{
    if (a == NULL)
        return b;
    if (b == NULL)
        return a;
    if (b->deadline_ns < a->deadline_ns) {
        struct kvf_timer *swap = a;
        a = b;
        b = swap;
    }
    b->parent = a;
    b->sibling = a->child;
    a->child = b;
    return a;
}

/* Melds a list of siblings into one heap: in pairs from the left, then the pairs from the right. */
static struct kvf_timer *meld_siblings(struct kvf_timer *first)
{
    struct kvf_timer *pairs = NULL;
    while (first != NULL) {
        struct kvf_timer *a = first, *b = a->sibling;
        first = b != NULL ? b->sibling : NULL;
        a->sibling = a->parent = NULL;
        if (b != NULL)
            b->sibling = b->parent = NULL;
        a = meld(a, b);
        a->sibling = pairs;
        pairs = a;
    }
    struct kvf_timer *root = NULL;
    while (pairs != NULL) {
        struct kvf_timer *next = pairs->sibling;
        pairs->sibling = NULL;
        root = meld(root, pairs);
        pairs = next;
    }
    return root;
}

void kvf_timer_stop(struct kvf_loop *loop, struct kvf_timer *timer)
{
    if (!timer->armed)
        return;
    timer->armed = false;
    struct kvf_timer *orphans = meld_siblings(timer->child);
    timer->child = NULL;
    if (timer->parent == NULL) {
        loop->timers = orphans;
        return;
    }
    struct kvf_timer **link = &timer->parent->child;
    while (*link != timer)
        link = &(*link)->sibling;
    *link = timer->sibling;
    timer->parent = timer->sibling = NULL;
    loop->timers = meld(loop->timers, orphans);
}

void kvf_timer_start(struct kvf_loop *loop, struct kvf_timer *timer, uint64_t deadline_ns)
{
    kvf_timer_stop(loop, timer);
    timer->deadline_ns = deadline_ns;
    timer->armed = true;
    timer->child = timer->sibling = timer->parent = NULL;
    loop->timers = meld(loop->timers, timer);
}

static void fire_due(struct kvf_loop *loop)
{
    if (loop->timers == NULL)
        return;
    uint64_t now = kvf_clock_now_ns();
    while (loop->timers != NULL && loop->timers->deadline_ns <= now) {
        struct kvf_timer *due = loop->timers;
        kvf_timer_stop(loop, due);
        due->fire(due);
    }
}

static int wait_ms(const struct kvf_loop *loop, int timeout_ms)
{
    if (loop->timers == NULL)
        return timeout_ms;
    uint64_t left = kvf_clock_left_ns(loop->timers->deadline_ns, kvf_clock_now_ns());
    uint64_t ms = (left + KVF_NS_PER_MS - 1) / KVF_NS_PER_MS;
    int timer_ms = ms > 60000 ? 60000 : (int)ms;
    return timeout_ms >= 0 && timeout_ms < timer_ms ? timeout_ms : timer_ms;
}

/* ---- the mailbox ---- */

void kvf_loop_post(struct kvf_loop *loop, struct kvf_post *post)
{
    struct kvf_post *head = atomic_load_explicit(&loop->posted, memory_order_relaxed);
    int wake_fd = loop->wake_fd; /* the loop may be gone once the post is visible */
    do {
        post->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&loop->posted, &head, post,
                                                    memory_order_acq_rel, memory_order_relaxed));
    if (head == NULL) {
        uint64_t one = 1;
        (void)!write(wake_fd, &one, sizeof(one));
    }
}

static void run_posts(struct kvf_loop *loop)
{
    struct kvf_post *newest = atomic_exchange_explicit(&loop->posted, NULL, memory_order_acq_rel);
    struct kvf_post *oldest = NULL;
    while (newest != NULL) {
        struct kvf_post *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct kvf_post *next = oldest->next;
        oldest->next = NULL;
        oldest->run(oldest);
        oldest = next;
    }
}

/* ---- descriptors ---- */

struct kvf_status kvf_watch_start(struct kvf_loop *loop, struct kvf_watch *watch)
{
    struct epoll_event event = {.events = watch->events, .data.ptr = watch};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, errno);
    watch->active = true;
    return kvf_ok();
}

void kvf_watch_change(struct kvf_loop *loop, struct kvf_watch *watch, uint32_t events)
{
    if (!watch->active || watch->events == events)
        return;
    struct epoll_event event = {.events = events, .data.ptr = watch};
    kvf_assert(epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event) == 0);
    watch->events = events;
}

void kvf_watch_stop(struct kvf_loop *loop, struct kvf_watch *watch)
{
    if (!watch->active)
        return;
    watch->active = false;
    (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    for (int i = 0; i < loop->batch_count; i++)
        if (loop->batch[i].data.ptr == watch)
            loop->batch[i].data.ptr = NULL;
}

/* ---- the loop itself ---- */

struct kvf_status kvf_loop_create(struct kvf_loop **give)
{
    struct kvf_loop *loop = calloc(1, sizeof(*loop));
    if (loop == NULL)
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, 0);
    int error = 0;
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0) {
        error = errno;
        goto free_loop;
    }
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd < 0) {
        error = errno;
        goto close_epoll;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = loop};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &event) != 0) {
        error = errno;
        goto close_wake;
    }
    *give = loop;
    return kvf_ok();

close_wake:
    (void)close(loop->wake_fd);
close_epoll:
    (void)close(loop->epoll_fd);
free_loop:
    free(loop);
    return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, error);
}

void kvf_loop_destroy(struct kvf_loop *loop)
{
    if (loop == NULL)
        return;
    kvf_assert(loop->timers == NULL && atomic_load(&loop->posted) == NULL);
    (void)close(loop->wake_fd);
    (void)close(loop->epoll_fd);
    free(loop);
}

void kvf_loop_run_once(struct kvf_loop *loop, int timeout_ms)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    int count = epoll_wait(loop->epoll_fd, events, EVENTS_PER_ROUND, wait_ms(loop, timeout_ms));
    loop->batch = events;
    loop->batch_count = count > 0 ? count : 0;
    for (int i = 0; i < loop->batch_count; i++) {
        if (events[i].data.ptr == loop) {
            uint64_t ignored;
            (void)!read(loop->wake_fd, &ignored, sizeof(ignored));
            run_posts(loop);
        } else if (events[i].data.ptr != NULL) {
            struct kvf_watch *watch = events[i].data.ptr;
            watch->ready(watch, events[i].events);
        }
    }
    loop->batch_count = 0;
    fire_due(loop);
}

void kvf_loop_run(struct kvf_loop *loop)
{
    loop->stop = false;
    while (!loop->stop)
        kvf_loop_run_once(loop, -1);
}

void kvf_loop_stop(struct kvf_loop *loop)
{
    loop->stop = true;
}
