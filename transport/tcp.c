/* The tcp transport as its owner sees it: threads, listening, inviting, connecting. */
#include "transport/tcp.h"

#include "base/address.h"
#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
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

static struct kvf_status tcp_listen(struct kvf_transport *base, const char *address,
                                    struct kvf_why *why)
{
    struct tcp_transport *transport = tcp_transport_of(base);
    kvf_assert(transport->port < 0);
    struct lane_addresses here;
    struct kvf_status status = lane_address_resolve(address, true, &here);
    if (!kvf_is_ok(status))
        return kvf_why_set(why, status, "cannot listen for lanes on %.200s: not a HOST:PORT here",
                           address);
    int fd = kvf_address_listen((struct sockaddr *)&here.at[0], here.bytes[0], BACKLOG);
    int error = errno;
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

static struct kvf_status tcp_invite(struct kvf_transport *base, uint64_t deadline_ns,
                                    const struct kvf_lane_events *events, void *user,
                                    struct kvf_lane_nonces *nonces, struct kvf_lane **give)
{
    struct tcp_transport *transport = tcp_transport_of(base);
    if (!lane_nonces_make(nonces))
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

static struct kvf_status tcp_connect(struct kvf_transport *base, const char *address, size_t device,
                                     const struct kvf_lane_nonces *nonces, uint64_t deadline_ns,
                                     const struct kvf_lane_events *events, void *user,
                                     struct kvf_lane **give)
{
    struct lane_addresses there;
    (void)device; /* the kernel routes */
    KVF_TRY(lane_address_resolve(address, false, &there));
    struct tcp_lane *lane =
        make_lane(tcp_transport_of(base), &tcp_consumer_side, deadline_ns, events, user);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->state = TCP_CONNECTING;
    lane->addresses = there;
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
