/* The tcp transport as its owner sees it: threads, listening, inviting, connecting. */
#include "transport/tcp.h"

#include "base/address.h"
#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_THREADS 2
#define MAX_THREADS 64
#define BACKLOG 256

/* ---- the transport ---- */

static void join_threads(struct tcp_transport *transport, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        lane_thread_join(&transport->threads[i].thread);
}

static void free_threads(struct tcp_transport *transport, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        lane_thread_free(&transport->threads[i].thread);
    free(transport->threads);
}

static struct kvf_status start_threads(struct tcp_transport *transport)
{
    transport->threads = calloc(transport->thread_count, sizeof(*transport->threads));
    if (transport->threads == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    for (unsigned i = 0; i < transport->thread_count; i++) {
        struct kvf_status status = lane_thread_start(&transport->threads[i].thread, i);
        if (!kvf_is_ok(status)) {
            join_threads(transport, i);
            free_threads(transport, i);
            return status;
        }
    }
    return kvf_ok();
}

static struct kvf_status tcp_open(const struct kvf_transport_options *options,
                                  struct kvf_transport **give, struct kvf_why *why)
{
    unsigned threads = options->lane_threads > 0 ? options->lane_threads : DEFAULT_THREADS;
    struct tcp_transport *transport = calloc(1, sizeof(*transport));
    if (transport == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    transport->base.ops = &kvf_tcp_ops;
    transport->base.owner = options->loop;
    transport->thread_count = threads < MAX_THREADS ? threads : MAX_THREADS;
    transport->port = -1;
    kvf_list_init(&transport->invites);
    tcp_listener_init(transport);
    (void)pthread_mutex_init(&transport->lock, NULL);

    struct kvf_status status = start_threads(transport);
    if (!kvf_is_ok(status)) {
        (void)pthread_mutex_destroy(&transport->lock);
        free(transport);
        return kvf_why_set(why, status, "cannot start %u lane threads: %s", threads,
                           strerror(status.detail));
    }
    *give = &transport->base;
    return kvf_ok();
}

static void tcp_close(struct kvf_transport *base)
{
    struct tcp_transport *transport = tcp_transport_of(base);
    join_threads(transport, transport->thread_count);
    tcp_listener_stop(transport);
    free_threads(transport, transport->thread_count);
    (void)pthread_mutex_destroy(&transport->lock);
    free(transport);
}

/* ---- addresses ---- */

/* On success the caller frees *found. */
static struct kvf_status resolve(const char *text, bool to_listen, struct addrinfo **found)
{
    struct kvf_address address;
    if (!kvf_address_parse(text, &address))
        return lane_fail(KVF_INVALID, 0);
    int error = kvf_address_resolve(&address, to_listen, found);
    if (error == 0)
        return kvf_ok();
    return lane_fail(KVF_UNAVAILABLE, error == EAI_SYSTEM ? errno : 0);
}

static struct kvf_status tcp_listen(struct kvf_transport *base, const char *address,
                                    struct kvf_why *why)
{
    struct tcp_transport *transport = tcp_transport_of(base);
    kvf_assert(transport->port < 0);
    struct addrinfo *found = NULL;
    struct kvf_status status = resolve(address, true, &found);
    if (!kvf_is_ok(status))
        return kvf_why_set(why, status, "cannot listen for lanes on %.200s: not a HOST:PORT here",
                           address);
    int fd = kvf_address_listen(found->ai_addr, found->ai_addrlen, BACKLOG);
    int error = errno;
    freeaddrinfo(found);
    if (fd < 0)
        return kvf_why_set(why, lane_fail(KVF_UNAVAILABLE, error),
                           "cannot listen for lanes on %.200s: %s", address, strerror(error));
    transport->port = kvf_address_bound_port(fd);
    tcp_listener_start(transport, fd);
    return kvf_ok();
}

static int tcp_port(const struct kvf_transport *base)
{
    return tcp_transport_of(base)->port;
}

/* ---- lanes ---- */

static struct tcp_lane *make_lane(struct tcp_transport *transport, const struct lane_side *side,
                                  uint64_t deadline_ns, const struct kvf_lane_events *events,
                                  void *user)
{
    struct tcp_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return NULL;
    struct tcp_thread *thread = &transport->threads[transport->next_thread];
    transport->next_thread = (transport->next_thread + 1) % transport->thread_count;
    lane_init(&lane->lane, &transport->base, side, &thread->thread, events, user);
    lane->deadline_ns = deadline_ns;
    lane->watch.fd = -1;
    lane->claimed_fd = -1;
    lane->claimed_post.run = tcp_lane_claimed;
    kvf_list_init(&lane->invite_node);
    tcp_sender_init(&lane->sender);
    return lane;
}

static bool make_nonces(struct kvf_lane_nonces *nonces)
{
    uint8_t *at = (uint8_t *)nonces;
    size_t left = sizeof(*nonces);
    while (left > 0) {
        ssize_t got = getrandom(at, left, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        left -= (size_t)got;
    }
    return true;
}

static struct kvf_status tcp_invite(struct kvf_transport *base, uint64_t deadline_ns,
                                    const struct kvf_lane_events *events, void *user,
                                    struct kvf_lane_nonces *nonces, struct kvf_lane **give)
{
    struct tcp_transport *transport = tcp_transport_of(base);
    if (!make_nonces(nonces))
        return lane_fail(KVF_IO, errno);
    struct tcp_lane *lane = make_lane(transport, &tcp_source_side, deadline_ns, events, user);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->lane.is_source = true;
    lane->state = TCP_WAITING;
    lane->nonces = *nonces;
    (void)pthread_mutex_lock(&transport->lock);
    kvf_list_push_back(&transport->invites, &lane->invite_node);
    (void)pthread_mutex_unlock(&transport->lock);
    lane_start(&lane->lane); /* may end it at once, and then takes it off the list */
    *give = &lane->lane;
    return kvf_ok();
}

static void keep_addresses(struct tcp_lane *lane, const struct addrinfo *found)
{
    for (; found != NULL && lane->address_count < TCP_ADDRESSES; found = found->ai_next) {
        if (found->ai_addrlen > sizeof(lane->addresses[0]))
            continue;
        memcpy(&lane->addresses[lane->address_count], found->ai_addr, found->ai_addrlen);
        lane->address_bytes[lane->address_count++] = found->ai_addrlen;
    }
}

static struct kvf_status tcp_connect(struct kvf_transport *base, const char *address,
                                     const struct kvf_lane_nonces *nonces, uint64_t deadline_ns,
                                     const struct kvf_lane_events *events, void *user,
                                     struct kvf_lane **give)
{
    struct addrinfo *found = NULL;
    KVF_TRY(resolve(address, false, &found));
    struct tcp_lane *lane =
        make_lane(tcp_transport_of(base), &tcp_consumer_side, deadline_ns, events, user);
    if (lane != NULL)
        keep_addresses(lane, found);
    freeaddrinfo(found);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->state = TCP_CONNECTING;
    lane->nonces = *nonces;
    lane_start(&lane->lane);
    *give = &lane->lane;
    return kvf_ok();
}

const struct transport_ops kvf_tcp_ops = {
    .name = "tcp",
    .open = tcp_open,
    .close = tcp_close,
    .listen = tcp_listen,
    .port = tcp_port,
    .invite = tcp_invite,
    .connect = tcp_connect,
};
