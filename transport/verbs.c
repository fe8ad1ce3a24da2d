/* The verbs transport as its owner sees it: opening, listening, inviting, connecting. */
#include "transport/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define DEFAULT_THREADS 2
#define MAX_THREADS 64
#define BACKLOG 256

static bool set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* ---- lane threads and their channels ---- */

static void close_channels(struct verbs_transport *transport, struct verbs_thread *thread)
{
    for (size_t i = 0; i < transport->device_count; i++) {
        struct verbs_channel *channel = &thread->channels[i];
        if (channel->channel == NULL)
            continue;
        kvf_watch_stop(thread->thread.loop, &channel->watch);
        (void)ibv_destroy_comp_channel(channel->channel);
    }
    free(thread->channels);
}

static struct kvf_status open_channels(struct verbs_transport *transport,
                                       struct verbs_thread *thread)
{
    thread->channels = calloc(transport->device_count, sizeof(*thread->channels));
    if (thread->channels == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    for (size_t i = 0; i < transport->device_count; i++) {
        struct verbs_channel *channel = &thread->channels[i];
        channel->channel = ibv_create_comp_channel(transport->devices[i].context);
        if (channel->channel == NULL || !set_nonblocking(channel->channel->fd))
            return lane_fail(KVF_NO_MEMORY, errno);
        channel->watch = (struct kvf_watch){
            .fd = channel->channel->fd, .events = EPOLLIN, .ready = verbs_channel_ready};
        KVF_TRY(kvf_watch_start(thread->thread.loop, &channel->watch));
    }
    return kvf_ok();
}

static struct kvf_status start_thread(struct verbs_transport *transport, unsigned number)
{
    struct verbs_thread *thread = &transport->threads[number];
    char name[16];
    KVF_TRY(lane_thread_init(&thread->thread));
    struct kvf_status status = open_channels(transport, thread);
    (void)snprintf(name, sizeof(name), "kvf-lane-%u", number % 1000);
    if (kvf_is_ok(status))
        status = lane_thread_run(&thread->thread, name);
    if (kvf_is_ok(status))
        return status;
    if (thread->channels != NULL)
        close_channels(transport, thread);
    lane_thread_free(&thread->thread);
    return status;
}

static void stop_threads(struct verbs_transport *transport, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct verbs_thread *thread = &transport->threads[i];
        lane_thread_join(&thread->thread);
        close_channels(transport, thread);
        lane_thread_free(&thread->thread);
    }
    free(transport->threads);
}

static struct kvf_status start_threads(struct verbs_transport *transport)
{
    transport->threads = calloc(transport->thread_count, sizeof(*transport->threads));
    if (transport->threads == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    for (unsigned i = 0; i < transport->thread_count; i++) {
        struct kvf_status status = start_thread(transport, i);
        if (!kvf_is_ok(status)) {
            stop_threads(transport, i);
            return status;
        }
    }
    return kvf_ok();
}

/* ---- the control thread ---- */

static struct kvf_status start_control(struct verbs_transport *transport, struct kvf_why *why)
{
    transport->events = rdma_create_event_channel();
    if (transport->events == NULL)
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, errno),
                           "rdma_cm cannot be used: %s (is rdma_ucm loaded, and may this user open "
                           "/dev/infiniband/rdma_cm?)",
                           strerror(errno));
    struct kvf_status status = set_nonblocking(transport->events->fd)
                                   ? lane_thread_init(&transport->control)
                                   : lane_fail(KVF_NO_MEMORY, errno);
    if (!kvf_is_ok(status))
        goto destroy_channel;
    status = verbs_control_watch(transport);
    if (kvf_is_ok(status))
        status = lane_thread_run(&transport->control, "kvf-verbs");
    if (kvf_is_ok(status))
        return status;
    verbs_control_unwatch(transport);
    lane_thread_free(&transport->control);
destroy_channel:
    rdma_destroy_event_channel(transport->events);
    return status;
}

static void stop_control(struct verbs_transport *transport)
{
    lane_thread_join(&transport->control);
    verbs_control_unwatch(transport);
    if (transport->listener != NULL)
        (void)rdma_destroy_id(transport->listener);
    lane_thread_free(&transport->control);
    rdma_destroy_event_channel(transport->events);
}

/* ---- the transport ---- */

static uint64_t region_bytes(const struct verbs_device *device)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < device->region_count; i++)
        bytes += device->regions[i].arena->bytes;
    return bytes;
}

static void set_traits(struct verbs_transport *transport)
{
    struct kvf_transport_traits *traits = &transport->base.traits;
    traits->needs_tokens = true;
    for (size_t i = 0; i < transport->device_count; i++) {
        const struct verbs_device *device = &transport->devices[i];
        traits->devices[traits->device_count++] = ibv_get_device_name(device->context->device);
        traits->locked_bytes += region_bytes(device);
        if (device->has_windows &&
            (traits->lane_blocks == 0 || device->lane_blocks < traits->lane_blocks))
            traits->lane_blocks = device->lane_blocks;
        if (device->checks_windows || traits->single_tenant)
            continue;
        traits->single_tenant = true;
        (void)snprintf(traits->single_tenant_why, sizeof(traits->single_tenant_why), "%.63s %s",
                       ibv_get_device_name(device->context->device),
                       device->has_windows ? "does not keep a READ within its memory window"
                                           : "has no memory windows of type 2B");
    }
}

static void verbs_close(struct kvf_transport *base)
{
    struct verbs_transport *transport = verbs_transport_of(base);
    stop_control(transport);
    stop_threads(transport, transport->thread_count);
    verbs_devices_close(transport);
    (void)pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static struct kvf_status verbs_open(const struct kvf_transport_options *options,
                                    struct kvf_transport **give, struct kvf_why *why)
{
    unsigned threads = options->lane_threads > 0 ? options->lane_threads : DEFAULT_THREADS;
    struct verbs_transport *transport = calloc(1, sizeof(*transport));
    if (transport == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    transport->base.ops = &kvf_verbs_ops;
    transport->base.owner = options->loop;
    transport->thread_count = threads < MAX_THREADS ? threads : MAX_THREADS;
    transport->port = -1;
    kvf_list_init(&transport->invites);
    (void)pthread_mutex_init(&transport->lock, NULL);

    struct kvf_status status = verbs_devices_open(transport, options, why);
    if (!kvf_is_ok(status))
        goto close_devices;
    set_traits(transport);
    status = start_threads(transport);
    if (!kvf_is_ok(status)) {
        (void)kvf_why_set(why, status,
                          "cannot start %u lane threads (%s): raise the limit of threads", threads,
                          strerror(status.detail));
        goto close_devices;
    }
    status = start_control(transport, why);
    if (!kvf_is_ok(status))
        goto stop_threads;
    *give = &transport->base;
    return kvf_ok();

stop_threads:
    stop_threads(transport, transport->thread_count);
close_devices:
    verbs_devices_close(transport);
    (void)pthread_mutex_destroy(&transport->lock);
    free(transport);
    return status;
}

/* ---- listening ---- */

static int listen_at(struct verbs_transport *transport, struct sockaddr *address)
{
    struct rdma_cm_id *id;
    if (rdma_create_id(transport->events, &id, NULL, RDMA_PS_TCP) != 0)
        return errno;
    if (rdma_bind_addr(id, address) != 0 || rdma_listen(id, BACKLOG) != 0) {
        int error = errno;
        (void)rdma_destroy_id(id);
        return error;
    }
    transport->listener = id;
    transport->port = ntohs(rdma_get_src_port(id));
    return 0;
}

static struct kvf_status verbs_listen(struct kvf_transport *base, const char *address,
                                      struct kvf_why *why)
{
    struct verbs_transport *transport = verbs_transport_of(base);
    struct lane_addresses addresses;
    kvf_assert(transport->listener == NULL);
    struct kvf_status status = lane_address_resolve(address, true, &addresses);
    if (!kvf_is_ok(status))
        return kvf_why_set(why, status,
                           "cannot listen for lanes on %.200s: name an address of this host and a "
                           "free port (--data-listen)",
                           address);
    int error = listen_at(transport, (struct sockaddr *)&addresses.at[0]);
    if (error == ENODEV || error == EADDRNOTAVAIL) {
        char table[200];
        verbs_table_text(table, sizeof(table));
        return kvf_why_set(why, lane_fail(KVF_UNAVAILABLE, error),
                           "no verbs device has the address of %.80s; there are: %s", address,
                           table);
    }
    if (error != 0)
        return kvf_why_set(why, lane_fail(KVF_UNAVAILABLE, error),
                           "cannot listen for verbs lanes on %.200s (%s): name an address of this "
                           "host and a free port (--data-listen)",
                           address, strerror(error));
    return kvf_ok();
}

static int verbs_port(const struct kvf_transport *base)
{
    return kvf_container(base, struct verbs_transport, base)->port;
}

/* ---- lanes ---- */

static struct verbs_lane *make_lane(struct verbs_transport *transport, const struct lane_side *side,
                                    uint64_t deadline_ns, const struct kvf_lane_events *events,
                                    void *user)
{
    struct verbs_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return NULL;
    struct verbs_thread *thread = &transport->threads[transport->next_thread];
    transport->next_thread = (transport->next_thread + 1) % transport->thread_count;
    lane_init(&lane->lane, &transport->base, side, &thread->thread, events, user);
    lane->deadline_ns = deadline_ns;
    verbs_link_init(&lane->link);
    verbs_source_init(&lane->source);
    verbs_consumer_init(&lane->consumer);
    return lane;
}

static struct kvf_status verbs_invite(struct kvf_transport *base, uint64_t deadline_ns,
                                      const struct kvf_lane_events *events, void *user,
                                      struct kvf_lane_nonces *nonces, struct kvf_lane **give)
{
    struct verbs_transport *transport = verbs_transport_of(base);
    if (!lane_nonces_make(nonces))
        return lane_fail(KVF_IO, errno);
    struct verbs_lane *lane = make_lane(transport, &verbs_source_side, deadline_ns, events, user);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->lane.is_source = true;
    lane->nonces = *nonces;
    (void)pthread_mutex_lock(&transport->lock);
    kvf_list_push_back(&transport->invites, &lane->link.invite_node);
    (void)pthread_mutex_unlock(&transport->lock);
    lane_start(&lane->lane);
    *give = &lane->lane;
    return kvf_ok();
}

static struct kvf_status verbs_connect(struct kvf_transport *base, const char *address,
                                       size_t device, const struct kvf_lane_nonces *nonces,
                                       uint64_t deadline_ns, const struct kvf_lane_events *events,
                                       void *user, struct kvf_lane **give)
{
    struct lane_addresses addresses;
    KVF_TRY(lane_address_resolve(address, false, &addresses));
    struct verbs_lane *lane =
        make_lane(verbs_transport_of(base), &verbs_consumer_side, deadline_ns, events, user);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->addresses = addresses;
    lane->device = device;
    lane->nonces = *nonces;
    lane_start(&lane->lane);
    *give = &lane->lane;
    return kvf_ok();
}

const struct transport_ops kvf_verbs_ops = {
    .name = "verbs",
    .open = verbs_open,
    .close = verbs_close,
    .listen = verbs_listen,
    .port = verbs_port,
    .invite = verbs_invite,
    .connect = verbs_connect,
    .nics = verbs_nics,
    .addresses = verbs_addresses,
    .nearness = verbs_nearness,
    .token_is_legal = verbs_token_is_legal,
};
