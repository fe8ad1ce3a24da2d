/* Connections that have not said a valid nonce yet. They are strangers: at most TCP_HALF_OPEN of
 * them, one second each, no memory of their own; when one more comes the oldest goes. All on lane
 * thread 0. */
#include "transport/tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#define HALF_OPEN_NS KVF_NS_PER_S
#define ACCEPT_RETRY_NS (100 * KVF_NS_PER_MS)
#define ACCEPTS_PER_ROUND 16

static struct kvf_loop *listener_loop(struct tcp_transport *transport)
{
    return transport->threads[0].thread.loop;
}

/* ---- nonces ---- */

/* The lane that waits for this nonce, which is used up now; NULL: none does. */
static struct tcp_lane *claim(struct tcp_transport *transport, const uint8_t *greeting, int fd)
{
    struct tcp_lane *found = NULL;
    (void)pthread_mutex_lock(&transport->lock);
    kvf_list_for_each (node, &transport->invites) {
        struct tcp_lane *lane = kvf_container(node, struct tcp_lane, invite_node);
        if (tcp_greeting_has_nonce(greeting, &lane->nonces.connect))
            found = lane;
    }
    if (found != NULL) {
        kvf_list_remove(&found->invite_node);
        found->claimed = true;
        found->claimed_fd = fd;
        kvf_loop_post(found->lane.thread->loop, &found->claimed_post);
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return found;
}

bool tcp_invite_revoke(struct tcp_lane *lane)
{
    struct tcp_transport *transport = tcp_transport_of(lane->lane.transport);
    (void)pthread_mutex_lock(&transport->lock);
    kvf_list_remove(&lane->invite_node);
    bool claimed = lane->claimed;
    (void)pthread_mutex_unlock(&transport->lock);
    return !claimed;
}

/* ---- half-open connections ---- */

static void release(struct tcp_half_open *half)
{
    struct tcp_listener *listener = &half->transport->listener;
    struct kvf_loop *loop = listener_loop(half->transport);
    kvf_timer_stop(loop, &half->timer);
    kvf_watch_stop(loop, &half->watch);
    half->watch.fd = -1;
    kvf_list_remove(&half->node);
    kvf_list_push_back(&listener->idle, &half->node);
}

static void refuse(struct tcp_half_open *half)
{
    int fd = half->watch.fd;
    lane_count(&half->transport->base.counters.protocol_errors, 1);
    release(half);
    (void)close(fd);
}

static void half_open_expired(struct kvf_timer *timer)
{
    refuse(kvf_container(timer, struct tcp_half_open, timer));
}

static void half_open_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    struct tcp_half_open *half = kvf_container(watch, struct tcp_half_open, watch);
    ssize_t got = recv(watch->fd, half->greeting + half->got, sizeof(half->greeting) - half->got,
                       MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        refuse(half);
        return;
    }
    half->got += (size_t)got;
    if (half->got < sizeof(half->greeting))
        return;
    int fd = watch->fd;
    /* Out of our loop first: the lane's own thread watches it from the claim on. */
    kvf_watch_stop(listener_loop(half->transport), watch);
    if (!tcp_greeting_is_ours(half->greeting) ||
        claim(half->transport, half->greeting, fd) == NULL) {
        refuse(half);
        return;
    }
    release(half);
}

static void welcome(struct tcp_transport *transport, int fd)
{
    struct tcp_listener *listener = &transport->listener;
    if (kvf_list_is_empty(&listener->idle))
        refuse(kvf_container(listener->waiting.next, struct tcp_half_open, node));
    struct tcp_half_open *half =
        kvf_container(kvf_list_pop_front(&listener->idle), struct tcp_half_open, node);
    kvf_list_push_back(&listener->waiting, &half->node);
    half->got = 0;
    half->watch.fd = fd;
    half->watch.events = EPOLLIN;
    kvf_timer_start(listener_loop(transport), &half->timer, kvf_clock_now_ns() + HALF_OPEN_NS);
    if (!kvf_is_ok(kvf_watch_start(listener_loop(transport), &half->watch)))
        refuse(half);
    else
        half_open_ready(&half->watch, EPOLLIN); /* the greeting is often here already */
}

/* ---- the listener ---- */

static void listen_again(struct tcp_transport *transport)
{
    struct tcp_listener *listener = &transport->listener;
    struct kvf_loop *loop = listener_loop(transport);
    if (!kvf_is_ok(kvf_watch_start(loop, &listener->watch)))
        kvf_timer_start(loop, &listener->retry, kvf_clock_now_ns() + ACCEPT_RETRY_NS);
}

static void run_start(struct kvf_post *post)
{
    listen_again(kvf_container(post, struct tcp_transport, listener.start));
}

static void retry_fired(struct kvf_timer *timer)
{
    listen_again(kvf_container(timer, struct tcp_transport, listener.retry));
}

static bool is_lack_of_resources(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

static void listener_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    struct tcp_transport *transport = kvf_container(watch, struct tcp_transport, listener.watch);
    struct kvf_loop *loop = listener_loop(transport);
    for (int i = 0; i < ACCEPTS_PER_ROUND; i++) {
        int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            welcome(transport, fd);
            continue;
        }
        if (is_lack_of_resources(errno)) {
            /* The connection stays in the backlog and would wake us for ever. */
            kvf_watch_stop(loop, watch);
            kvf_timer_start(loop, &transport->listener.retry, kvf_clock_now_ns() + ACCEPT_RETRY_NS);
        }
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

void tcp_listener_init(struct tcp_transport *transport)
{
    struct tcp_listener *listener = &transport->listener;
    listener->watch = (struct kvf_watch){.fd = -1, .events = EPOLLIN, .ready = listener_ready};
    listener->retry.fire = retry_fired;
    listener->start.run = run_start;
    kvf_list_init(&listener->idle);
    kvf_list_init(&listener->waiting);
    for (unsigned i = 0; i < TCP_HALF_OPEN; i++) {
        struct tcp_half_open *half = &listener->slots[i];
        half->transport = transport;
        half->watch = (struct kvf_watch){.fd = -1, .ready = half_open_ready};
        half->timer.fire = half_open_expired;
        kvf_list_push_back(&listener->idle, &half->node);
    }
}

void tcp_listener_start(struct tcp_transport *transport, int fd)
{
    transport->listener.watch.fd = fd;
    kvf_loop_post(listener_loop(transport), &transport->listener.start);
}

void tcp_listener_stop(struct tcp_transport *transport)
{
    struct tcp_listener *listener = &transport->listener;
    struct kvf_loop *loop = listener_loop(transport);
    while (!kvf_list_is_empty(&listener->waiting)) {
        struct tcp_half_open *half =
            kvf_container(listener->waiting.next, struct tcp_half_open, node);
        int fd = half->watch.fd;
        release(half);
        (void)close(fd);
    }
    kvf_timer_stop(loop, &listener->retry);
    kvf_watch_stop(loop, &listener->watch);
    if (listener->watch.fd >= 0)
        (void)close(listener->watch.fd);
}
