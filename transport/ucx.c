/* The ucx transport as its owner sees it: threads, arenas, listening, inviting, connecting. */
#include "transport/ucx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_THREADS 2
#define MAX_THREADS 64

/* ---- the transport ---- */

static void stop_threads(struct ucx_transport *transport, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        lane_thread_join(&transport->threads[i]);
    for (unsigned i = 0; i < count; i++)
        lane_thread_free(&transport->threads[i]);
    free(transport->threads);
}

static struct kvf_status start_threads(struct ucx_transport *transport)
{
    transport->threads = calloc(transport->thread_count, sizeof(*transport->threads));
    if (transport->threads == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    for (unsigned i = 0; i < transport->thread_count; i++) {
        struct kvf_status status = lane_thread_start(&transport->threads[i], i);
        if (!kvf_is_ok(status)) {
            stop_threads(transport, i);
            return status;
        }
    }
    return kvf_ok();
}

static struct kvf_status start_control(struct ucx_transport *transport)
{
    KVF_TRY(lane_thread_init(&transport->control));
    struct kvf_status status = lane_thread_run(&transport->control, "kvf-ucx");
    if (!kvf_is_ok(status))
        lane_thread_free(&transport->control);
    return status;
}

static void unregister_arenas(struct ucx_transport *transport)
{
    while (transport->region_count > 0)
        (void)ucx.ucp_mem_unmap(transport->context, transport->regions[--transport->region_count]);
    free(transport->regions);
}

/* Once for all lanes; else each piece would be registered on its own. */
static struct kvf_status register_arenas(struct ucx_transport *transport,
                                         const struct kvf_transport_options *options,
                                         struct kvf_why *why)
{
    transport->regions = calloc(options->arena_count + 1, sizeof(ucp_mem_h));
    if (transport->regions == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    for (size_t i = 0; i < options->arena_count; i++) {
        const struct kvf_arena *arena = options->arenas[i];
        ucp_mem_map_params_t params = {
            .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
            .address = arena->base,
            .length = arena->bytes,
        };
        ucs_status_t status = ucx.ucp_mem_map(transport->context, &params, &transport->regions[i]);
        if (status != UCS_OK) {
            unregister_arenas(transport);
            return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, status),
                               "UCX cannot register an arena of %llu MiB (%s): raise the limit "
                               "of locked memory (ulimit -l), or use tcp",
                               (unsigned long long)(arena->bytes / KVF_MIB),
                               ucx.ucs_status_string(status));
        }
        transport->region_count++;
    }
    return kvf_ok();
}

static void set_traits(struct ucx_transport *transport)
{
    struct kvf_transport_traits *traits = &transport->base.traits;
    traits->single_tenant = true;
    traits->bares_consumers = true;
    (void)snprintf(traits->single_tenant_why, sizeof(traits->single_tenant_why),
                   "UCX lets every peer reach all registered memory");
}

static struct kvf_status ucx_open(const struct kvf_transport_options *options,
                                  struct kvf_transport **give, struct kvf_why *why)
{
    unsigned threads = options->lane_threads > 0 ? options->lane_threads : DEFAULT_THREADS;
    struct ucx_transport *transport = calloc(1, sizeof(*transport));
    if (transport == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    transport->base.ops = &kvf_ucx_ops;
    transport->base.owner = options->loop;
    transport->thread_count = threads < MAX_THREADS ? threads : MAX_THREADS;
    set_traits(transport);

    struct kvf_status status = ucx_context_create(options, &transport->context, why);
    if (!kvf_is_ok(status))
        goto free_transport;
    status = register_arenas(transport, options, why);
    if (!kvf_is_ok(status))
        goto destroy_context;
    status = start_control(transport);
    if (!kvf_is_ok(status))
        goto unregister;
    status = start_threads(transport);
    if (!kvf_is_ok(status))
        goto stop_control;
    lane_listener_init(&transport->listener, transport->control.loop, &ucx_greeting,
                       &transport->base.counters.protocol_errors);
    *give = &transport->base;
    return kvf_ok();

stop_control:
    lane_thread_join(&transport->control);
    lane_thread_free(&transport->control);
unregister:
    kvf_why_set(why, status, "cannot start %u lane threads (%s): raise the limit of threads",
                threads, strerror(status.detail));
    unregister_arenas(transport);
destroy_context:
    ucx.ucp_cleanup(transport->context);
free_transport:
    free(transport);
    return status;
}

static void ucx_close(struct kvf_transport *base)
{
    struct ucx_transport *transport = ucx_transport_of(base);
    stop_threads(transport, transport->thread_count);
    lane_thread_join(&transport->control);
    lane_listener_close(&transport->listener);
    lane_thread_free(&transport->control);
    unregister_arenas(transport);
    ucx.ucp_cleanup(transport->context);
    free(transport);
}

static struct kvf_status ucx_listen(struct kvf_transport *base, const char *address,
                                    struct kvf_why *why)
{
    return lane_listener_open(&ucx_transport_of(base)->listener, address, why);
}

static int ucx_port(const struct kvf_transport *base)
{
    return ucx_transport_of(base)->listener.port;
}

/* ---- lanes ---- */

static struct ucx_lane *make_lane(struct ucx_transport *transport, const struct lane_side *side,
                                  uint64_t deadline_ns, const struct kvf_lane_events *events,
                                  void *user)
{
    struct ucx_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return NULL;
    struct lane_thread *thread = &transport->threads[transport->next_thread];
    transport->next_thread = (transport->next_thread + 1) % transport->thread_count;
    lane_init(&lane->lane, &transport->base, side, thread, events, user);
    lane->deadline_ns = deadline_ns;
    lane_turns_init(&lane->turns);
    ucx_link_init(lane);
    return lane;
}

static struct kvf_status ucx_invite(struct kvf_transport *base, uint64_t deadline_ns,
                                    const struct kvf_lane_events *events, void *user,
                                    struct kvf_lane_nonces *nonces, struct kvf_lane **give)
{
    struct ucx_transport *transport = ucx_transport_of(base);
    if (!lane_nonces_make(nonces))
        return lane_fail(KVF_IO, errno);
    struct ucx_lane *lane = make_lane(transport, &ucx_source_side, deadline_ns, events, user);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->lane.is_source = true;
    lane->nonces = *nonces;
    lane_invite_add(&transport->listener, &lane->link.invite);
    lane_start(&lane->lane); /* may end it at once, and then takes it off the list */
    *give = &lane->lane;
    return kvf_ok();
}

static struct kvf_status ucx_connect(struct kvf_transport *base, const char *address, size_t device,
                                     const struct kvf_lane_nonces *nonces, uint64_t deadline_ns,
                                     const struct kvf_lane_events *events, void *user,
                                     struct kvf_lane **give)
{
    struct lane_addresses there;
    (void)device; /* UCX chooses among those that its context has */
    KVF_TRY(lane_address_resolve(address, false, &there));
    struct ucx_lane *lane =
        make_lane(ucx_transport_of(base), &ucx_consumer_side, deadline_ns, events, user);
    if (lane == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    lane->link.addresses = there;
    lane->nonces = *nonces;
    lane_start(&lane->lane);
    *give = &lane->lane;
    return kvf_ok();
}

const struct transport_ops kvf_ucx_ops = {
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .listen = ucx_listen,
    .port = ucx_port,
    .invite = ucx_invite,
    .connect = ucx_connect,
};
