/* The tcp transport as its owner sees it: threads, listening, inviting, connecting. */
#include "transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_THREADS 2
#define MAX_THREADS 64

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

    struct kvf_status status = start_threads(transport);
    if (!kvf_is_ok(status)) {
        free(transport);
        return kvf_why_set(why, status,
                           "cannot start %u lane threads (%s): raise the limit of threads", threads,
                           strerror(status.detail));
    }
    lane_listener_init(&transport->listener, transport->threads[0].thread.loop, &tcp_greeting,
                       &transport->base.counters.protocol_errors);
    *give = &transport->base;
    return kvf_ok();
}

static void tcp_close(struct kvf_transport *base)
{
    struct tcp_transport *transport = tcp_transport_of(base);
    join_threads(transport, transport->thread_count);
    lane_listener_close(&transport->listener);
    free_threads(transport, transport->thread_count);
    free(transport);
}

static struct kvf_status tcp_listen(struct kvf_transport *base, const char *address,
                                    struct kvf_why *why)
{
    return lane_listener_open(&tcp_transport_of(base)->listener, address, why);
}

static int tcp_port(const struct kvf_transport *base)
{
    return tcp_transport_of(base)->listener.port;
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
    lane_invite_init(&lane->invite, &lane->nonces.connect, thread->thread.loop, tcp_lane_claimed);
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
    lane_invite_add(&transport->listener, &lane->invite);
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
