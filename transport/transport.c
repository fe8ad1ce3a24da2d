/* The door: which implementation a name stands for, and what is the same for all of them. */
#include "transport/transport.h"

#include "transport/lane_core.h"

#include <string.h>

const char *kvf_transport_nth(size_t number)
{
    static const char *const names[] = {"tcp", "verbs", "ucx"};
    return number < sizeof(names) / sizeof(names[0]) ? names[number] : NULL;
}

static const struct transport_ops *find(const char *name)
{
    static const struct transport_ops *const all[] = {&kvf_tcp_ops, &kvf_verbs_ops, &kvf_ucx_ops};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(name, all[i]->name) == 0)
            return all[i];
    return NULL;
}

/* What stands in for one that is missing opens nothing, and so it closes nothing. */
bool kvf_transport_is_built_in(const char *name)
{
    const struct transport_ops *ops = find(name);
    return ops != NULL && ops->close != NULL;
}

struct kvf_status kvf_transport_open(const char *name, const struct kvf_transport_options *options,
                                     struct kvf_transport **give, struct kvf_why *why)
{
    const struct transport_ops *ops = find(name);
    if (ops != NULL)
        return ops->open(options, give, why);
    return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, 0),
                       "no transport is called \"%.32s\": use tcp", name);
}

size_t kvf_transport_nics(const char *name, struct kvf_nic *nics, size_t room)
{
    const struct transport_ops *ops = find(name);
    return ops != NULL && ops->nics != NULL ? ops->nics(nics, room) : 0;
}

const char *kvf_transport_name(const struct kvf_transport *transport)
{
    return transport->ops->name;
}

const struct kvf_transport_traits *kvf_transport_traits(const struct kvf_transport *transport)
{
    return &transport->traits;
}

struct kvf_transport *kvf_transports_find(const struct kvf_transports *transports, const char *name)
{
    for (size_t i = 0; i < transports->count; i++)
        if (strcmp(kvf_transport_name(transports->list[i]), name) == 0)
            return transports->list[i];
    return NULL;
}

void kvf_transport_close(struct kvf_transport *transport)
{
    if (transport == NULL)
        return;
    kvf_assert(transport->open_lanes == 0);
    transport->ops->close(transport);
}

struct kvf_status kvf_transport_listen(struct kvf_transport *transport, const char *address,
                                       struct kvf_why *why)
{
    return transport->ops->listen(transport, address, why);
}

int kvf_transport_port(const struct kvf_transport *transport)
{
    return transport->ops->port(transport);
}

size_t kvf_transport_addresses(const struct kvf_transport *transport,
                               char (*addresses)[KVF_TRANSPORT_ADDRESS_BYTES], size_t room)
{
    const struct transport_ops *ops = transport->ops;
    return ops->addresses != NULL && ops->port(transport) > 0
               ? ops->addresses(transport, addresses, room)
               : 0;
}

unsigned kvf_transport_nearness(const struct kvf_transport *transport, size_t device,
                                const char *address)
{
    const struct transport_ops *ops = transport->ops;
    kvf_assert(device < transport->traits.device_count || ops->nearness == NULL);
    return ops->nearness != NULL ? ops->nearness(transport, device, address) : 0;
}

struct kvf_status kvf_lane_invite(struct kvf_transport *transport, uint64_t deadline_ns,
                                  const struct kvf_lane_events *events, void *user,
                                  struct kvf_lane_nonces *nonces, struct kvf_lane **give)
{
    return transport->ops->invite(transport, deadline_ns, events, user, nonces, give);
}

struct kvf_status kvf_lane_connect(struct kvf_transport *transport, const char *address,
                                   size_t device, const struct kvf_lane_nonces *nonces,
                                   uint64_t deadline_ns, const struct kvf_lane_events *events,
                                   void *user, struct kvf_lane **give)
{
    kvf_assert(device == KVF_ANY_DEVICE || device < transport->traits.device_count);
    return transport->ops->connect(transport, address, device, nonces, deadline_ns, events, user,
                                   give);
}

void kvf_transport_stats(const struct kvf_transport *transport, struct kvf_lane_stats *stats)
{
    *stats = (struct kvf_lane_stats){
        .sent_bytes = atomic_load_explicit(&transport->counters.sent_bytes, memory_order_relaxed),
        .received_bytes =
            atomic_load_explicit(&transport->counters.received_bytes, memory_order_relaxed),
        .discarded_bytes =
            atomic_load_explicit(&transport->counters.discarded_bytes, memory_order_relaxed),
        .protocol_errors =
            atomic_load_explicit(&transport->counters.protocol_errors, memory_order_relaxed),
    };
}
