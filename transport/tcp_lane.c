/* A tcp lane on its thread: the greeting, its socket's events, its end. */
#include "transport/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static struct kvf_loop *lane_loop(const struct tcp_lane *lane)
{
    return lane->lane.thread->loop;
}

static void set_state(struct tcp_lane *lane, enum tcp_lane_state to)
{
    static const bool allowed[][TCP_OVER + 1] = {
        [TCP_WAITING] = {[TCP_OPEN] = true, [TCP_OVER] = true},
        [TCP_CONNECTING] = {[TCP_GREETING] = true, [TCP_OVER] = true},
        [TCP_GREETING] = {[TCP_OPEN] = true, [TCP_OVER] = true},
        [TCP_OPEN] = {[TCP_OVER] = true},
        [TCP_OVER] = {false},
    };
    kvf_assert(allowed[lane->state][to]);
    lane->state = to;
}

void tcp_lane_want_send(struct tcp_lane *lane, bool want)
{
    kvf_watch_change(lane_loop(lane), &lane->watch, want ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void opened(struct tcp_lane *lane)
{
    set_state(lane, TCP_OPEN);
    kvf_timer_stop(lane_loop(lane), &lane->timer);
    lane_opened(&lane->lane);
}

static bool stays_on_this_host(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0 ||
        here.ss_family != there.ss_family)
        return false;
    if (here.ss_family == AF_INET)
        return ((struct sockaddr_in *)&here)->sin_addr.s_addr ==
               ((struct sockaddr_in *)&there)->sin_addr.s_addr;
    return memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr,
                  &((struct sockaddr_in6 *)&there)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* The host's congestion control is the operator's choice for his network. Within a host there is no network: there BBR,
 * who keeps as much in flight as a round trip of microseconds carries, would cost a third of the speed. */
static void tune(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (stays_on_this_host(fd))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", strlen("cubic"));
}

/* A greeting fits into any fresh socket's buffer; one that does not go out whole is an error. */
static bool say_greeting(struct tcp_lane *lane, const struct kvf_nonce *nonce)
{
    uint8_t bytes[LANE_GREETING_BYTES];
    tune(lane->watch.fd);
    lane_greeting_write(&tcp_greeting, nonce, bytes);
    return send(lane->watch.fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)sizeof(bytes);
}

/* ---- source ---- */

/* After the greeting a consumer has nothing to say: bytes are illegal, an end is an end. */
static void listen_to_consumer(struct tcp_lane *lane)
{
    uint8_t byte;
    ssize_t got = recv(lane->watch.fd, &byte, sizeof(byte), MSG_DONTWAIT);
    if (got > 0)
        lane_end(&lane->lane, lane_fail(KVF_PROTOCOL, 0));
    else if (got == 0)
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, 0));
    else if (errno != EAGAIN && errno != EINTR)
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, errno));
}

static void source_ready(struct kvf_watch *watch, uint32_t events)
{
    struct tcp_lane *lane = kvf_container(watch, struct tcp_lane, watch);
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0)
        listen_to_consumer(lane);
    bool can_send = !lane->lane.stopping && (events & EPOLLOUT) != 0;
    lane_flush(&lane->lane, can_send && tcp_sender_step(lane));
}

void tcp_lane_claimed(struct kvf_post *post)
{
    struct tcp_lane *lane = kvf_container(post, struct tcp_lane, invite.claimed_post);
    if (lane->lane.stopping) {
        (void)close(lane->invite.fd);
        lane_gone(&lane->lane);
        return;
    }
    lane->watch.fd = lane->invite.fd;
    lane->watch.events = EPOLLIN;
    struct kvf_status status = kvf_watch_start(lane_loop(lane), &lane->watch);
    if (!kvf_is_ok(status)) {
        lane_end(&lane->lane, status);
        return;
    }
    if (!say_greeting(lane, &lane->nonces.accept)) {
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, errno));
        return;
    }
    opened(lane);
    (void)tcp_sender_step(lane);
    lane_flush(&lane->lane, false);
}

/* ---- consumer ---- */

static void hear_greeting(struct tcp_lane *lane)
{
    ssize_t got = recv(lane->watch.fd, lane->greeting + lane->greeted,
                       sizeof(lane->greeting) - lane->greeted, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, got < 0 ? errno : 0));
        return;
    }
    lane->greeted += (size_t)got;
    if (lane->greeted < sizeof(lane->greeting))
        return;
    if (!lane_greeting_is(&tcp_greeting, lane->greeting))
        lane_end(&lane->lane, lane_fail(KVF_PROTOCOL, 0));
    else if (!lane_greeting_has_nonce(lane->greeting, &lane->nonces.accept))
        lane_end(&lane->lane, lane_fail(KVF_DENIED, 0));
    else
        opened(lane);
}

static void connect_next(struct tcp_lane *lane, int error)
{
    error = lane_socket_connect(lane_loop(lane), &lane->watch, &lane->addresses, error);
    if (error != 0)
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, error));
}

static void connected(struct tcp_lane *lane)
{
    int error = lane_socket_answer(&lane->watch);
    if (error != 0) {
        connect_next(lane, error);
        return;
    }
    if (!say_greeting(lane, &lane->nonces.connect)) {
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, errno));
        return;
    }
    set_state(lane, TCP_GREETING);
    tcp_lane_want_send(lane, false);
}

static void consumer_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    struct tcp_lane *lane = kvf_container(watch, struct tcp_lane, watch);
    bool more = false;
    switch (lane->state) {
    case TCP_CONNECTING:
        connected(lane);
        break;
    case TCP_GREETING:
        hear_greeting(lane);
        break;
    case TCP_OPEN:
        more = tcp_receiver_step(lane);
        break;
    case TCP_WAITING:
    case TCP_OVER:
        break;
    }
    lane_flush(&lane->lane, more);
}

/* ---- start and end ---- */

static void deadline_passed(struct kvf_timer *timer)
{
    struct tcp_lane *lane = kvf_container(timer, struct tcp_lane, timer);
    lane_end(&lane->lane, lane_fail(KVF_DEADLINE, 0));
    lane_flush(&lane->lane, false);
}

static void source_start(struct kvf_lane *base)
{
    struct tcp_lane *lane = tcp_lane_of(base);
    lane->watch.ready = source_ready;
    lane->timer.fire = deadline_passed;
    kvf_timer_start(lane_loop(lane), &lane->timer, lane->deadline_ns);
}

static void consumer_start(struct kvf_lane *base)
{
    struct tcp_lane *lane = tcp_lane_of(base);
    lane->watch.ready = consumer_ready;
    lane->timer.fire = deadline_passed;
    kvf_timer_start(lane_loop(lane), &lane->timer, lane->deadline_ns);
    connect_next(lane, 0);
}

/* With bytes under way the connection is reset, so that the kernel does not go on sending for a
 * lane that is gone. */
static void abort_if_busy(const struct tcp_lane *lane)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (lane->watch.fd >= 0 && !kvf_list_is_empty(&lane->lane.reads))
        (void)setsockopt(lane->watch.fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

static void tcp_stop(struct kvf_lane *base)
{
    struct tcp_lane *lane = tcp_lane_of(base);
    bool was_waiting = lane->state == TCP_WAITING;
    kvf_timer_stop(lane_loop(lane), &lane->timer);
    abort_if_busy(lane);
    /* A claimed lane that never got to its connection hears of it later; then it is gone. */
    bool claim_is_coming =
        was_waiting && lane->watch.fd < 0 &&
        !lane_invite_revoke(&tcp_transport_of(base->transport)->listener, &lane->invite);
    lane_socket_close(lane_loop(lane), &lane->watch);
    set_state(lane, TCP_OVER);
    lane->sender.current.block = NULL;
    lane->receiver.block = NULL;
    lane_end_blocks(base);
    if (!claim_is_coming)
        lane_gone(base);
}

static void tcp_destroy(struct kvf_lane *base)
{
    free(tcp_lane_of(base));
}

static void source_adopt(struct kvf_lane *base, struct kvf_lane_read *read)
{
    tcp_sender_adopt(tcp_lane_of(base), read);
}

static void source_landed(struct kvf_lane *base, struct kvf_lane_block *block)
{
    tcp_sender_landed(tcp_lane_of(base), block);
}

static void source_withdraw(struct kvf_lane *base, struct kvf_lane_block *block)
{
    tcp_sender_withdraw(tcp_lane_of(base), block);
}

static void source_settle(struct kvf_lane *base)
{
    struct tcp_lane *lane = tcp_lane_of(base);
    /* While it waits for room in the socket's buffer there is nothing to try. */
    if (lane->state == TCP_OPEN && (lane->watch.events & EPOLLOUT) == 0)
        (void)tcp_sender_step(lane);
}

static void consumer_withdraw(struct kvf_lane *base, struct kvf_lane_block *block)
{
    tcp_receiver_withdraw(tcp_lane_of(base), block);
}

const struct lane_side tcp_source_side = {
    .start = source_start,
    .adopt = source_adopt,
    .landed = source_landed,
    .withdraw = source_withdraw,
    .settle = source_settle,
    .stop = tcp_stop,
    .destroy = tcp_destroy,
};

const struct lane_side tcp_consumer_side = {
    .takes_reads_itself = true,
    .start = consumer_start,
    .withdraw = consumer_withdraw,
    .stop = tcp_stop,
    .destroy = tcp_destroy,
};
