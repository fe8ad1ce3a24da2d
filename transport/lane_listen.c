#include "transport/lane_listen.h"

#include "base/address.h"
#include "base/clock.h"
#include "transport/lane_address.h"
#include "transport/lane_core.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 256
#define HALF_OPEN_NS KVF_NS_PER_S
#define ACCEPT_RETRY_NS (100 * KVF_NS_PER_MS)
#define ACCEPTS_PER_ROUND 16

/* ---- nonces ---- */

/* The invitation with this nonce, which is used up now; false: there is none. */
static bool claim(struct lane_listener *listener, const uint8_t *greeting, int fd)
{
    struct lane_invite *found = NULL;
    (void)pthread_mutex_lock(&listener->lock);
    kvf_list_for_each (node, &listener->invites) {
        struct lane_invite *invite = kvf_container(node, struct lane_invite, node);
        if (lane_greeting_has_nonce(greeting, invite->nonce))
            found = invite;
    }
    if (found != NULL) {
        kvf_list_remove(&found->node);
        found->is_claimed = true;
        found->fd = fd;
        kvf_loop_post(found->loop, &found->claimed_post);
    }
    (void)pthread_mutex_unlock(&listener->lock);
    return found != NULL;
}

void lane_invite_init(struct lane_invite *invite, const struct kvf_nonce *nonce,
                      struct kvf_loop *loop, void (*claimed)(struct kvf_post *post))
{
    invite->nonce = nonce;
    invite->loop = loop;
    invite->claimed_post.run = claimed;
    invite->fd = -1;
    kvf_list_init(&invite->node);
    invite->is_claimed = false;
}

void lane_invite_add(struct lane_listener *listener, struct lane_invite *invite)
{
    (void)pthread_mutex_lock(&listener->lock);
    kvf_list_push_back(&listener->invites, &invite->node);
    (void)pthread_mutex_unlock(&listener->lock);
}

bool lane_invite_revoke(struct lane_listener *listener, struct lane_invite *invite)
{
    (void)pthread_mutex_lock(&listener->lock);
    kvf_list_remove(&invite->node);
    bool is_claimed = invite->is_claimed;
    (void)pthread_mutex_unlock(&listener->lock);
    return !is_claimed;
}

/* ---- half-open connections ---- */

static void release(struct lane_half_open *half)
{
    struct lane_listener *listener = half->listener;
    struct kvf_loop *loop = listener->loop;
    kvf_timer_stop(loop, &half->timer);
    kvf_watch_stop(loop, &half->watch);
    half->watch.fd = -1;
    kvf_list_remove(&half->node);
    kvf_list_push_back(&listener->idle, &half->node);
}

static void refuse(struct lane_half_open *half)
{
    int fd = half->watch.fd;
    lane_count(half->listener->refused, 1);
    release(half);
    (void)close(fd);
}

static void half_open_expired(struct kvf_timer *timer)
{
    refuse(kvf_container(timer, struct lane_half_open, timer));
}

static void half_open_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    struct lane_half_open *half = kvf_container(watch, struct lane_half_open, watch);
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
    kvf_watch_stop(half->listener->loop, watch);
    if (!lane_greeting_is(half->listener->greeting, half->greeting) ||
        !claim(half->listener, half->greeting, fd)) {
        refuse(half);
        return;
    }
    release(half);
}

static void welcome(struct lane_listener *listener, int fd)
{
    if (kvf_list_is_empty(&listener->idle))
        refuse(kvf_container(listener->waiting.next, struct lane_half_open, node));
    struct lane_half_open *half =
        kvf_container(kvf_list_pop_front(&listener->idle), struct lane_half_open, node);
    kvf_list_push_back(&listener->waiting, &half->node);
    half->got = 0;
    half->watch.fd = fd;
    half->watch.events = EPOLLIN;
    kvf_timer_start(listener->loop, &half->timer, kvf_clock_now_ns() + HALF_OPEN_NS);
    if (!kvf_is_ok(kvf_watch_start(listener->loop, &half->watch)))
        refuse(half);
    else
        half_open_ready(&half->watch, EPOLLIN); /* the greeting is often here already */
}

/* ---- the listener ---- */

static void listen_again(struct lane_listener *listener)
{
    if (!kvf_is_ok(kvf_watch_start(listener->loop, &listener->watch)))
        kvf_timer_start(listener->loop, &listener->retry, kvf_clock_now_ns() + ACCEPT_RETRY_NS);
}

static void run_start(struct kvf_post *post)
{
    listen_again(kvf_container(post, struct lane_listener, start));
}

static void retry_fired(struct kvf_timer *timer)
{
    listen_again(kvf_container(timer, struct lane_listener, retry));
}

static bool is_lack_of_resources(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

static void listener_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    struct lane_listener *listener = kvf_container(watch, struct lane_listener, watch);
    for (int i = 0; i < ACCEPTS_PER_ROUND; i++) {
        int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            welcome(listener, fd);
            continue;
        }
        if (is_lack_of_resources(errno)) {
            /* The connection stays in the backlog and would wake us for ever. */
            kvf_watch_stop(listener->loop, watch);
            kvf_timer_start(listener->loop, &listener->retry, kvf_clock_now_ns() + ACCEPT_RETRY_NS);
        }
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

void lane_listener_init(struct lane_listener *listener, struct kvf_loop *loop,
                        const struct lane_greeting *greeting, _Atomic uint64_t *refused)
{
    listener->loop = loop;
    listener->greeting = greeting;
    listener->refused = refused;
    listener->port = -1;
    listener->watch = (struct kvf_watch){.fd = -1, .events = EPOLLIN, .ready = listener_ready};
    listener->retry.fire = retry_fired;
    listener->start.run = run_start;
    kvf_list_init(&listener->idle);
    kvf_list_init(&listener->waiting);
    kvf_list_init(&listener->invites);
    (void)pthread_mutex_init(&listener->lock, NULL);
    for (unsigned i = 0; i < LANE_HALF_OPEN; i++) {
        struct lane_half_open *half = &listener->slots[i];
        half->listener = listener;
        half->watch = (struct kvf_watch){.fd = -1, .ready = half_open_ready};
        half->timer.fire = half_open_expired;
        kvf_list_push_back(&listener->idle, &half->node);
    }
}

struct kvf_status lane_listener_open(struct lane_listener *listener, const char *address,
                                     struct kvf_why *why)
{
    struct lane_addresses here;
    kvf_assert(listener->port < 0);
    struct kvf_status status = lane_address_resolve(address, true, &here);
    if (!kvf_is_ok(status))
        return kvf_why_set(why, status,
                           "cannot listen for lanes on %.200s: name an address of this host and a "
                           "free port (--data-listen)",
                           address);
    int fd = kvf_address_listen((struct sockaddr *)&here.at[0], here.bytes[0], BACKLOG);
    int error = errno;
    if (fd < 0)
        return kvf_why_set(why, lane_fail(KVF_UNAVAILABLE, error),
                           "cannot listen for lanes on %.200s (%s): name an address of this host "
                           "and a free port (--data-listen)",
                           address, strerror(error));
    listener->port = kvf_address_bound_port(fd);
    listener->watch.fd = fd;
    kvf_loop_post(listener->loop, &listener->start);
    return kvf_ok();
}

void lane_listener_close(struct lane_listener *listener)
{
    while (!kvf_list_is_empty(&listener->waiting)) {
        struct lane_half_open *half =
            kvf_container(listener->waiting.next, struct lane_half_open, node);
        int fd = half->watch.fd;
        release(half);
        (void)close(fd);
    }
    kvf_timer_stop(listener->loop, &listener->retry);
    kvf_watch_stop(listener->loop, &listener->watch);
    if (listener->watch.fd >= 0)
        (void)close(listener->watch.fd);
    (void)pthread_mutex_destroy(&listener->lock);
}
