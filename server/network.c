#include "server/network.h"

#include "base/log.h"

#include <string.h>

static struct kvf_status invalid(void)
{
    return kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
}

/* Open one and listen; add it to the list. */
static struct kvf_status add(struct kvf_network *network, const char *name,
                             const struct kvf_config *config,
                             const struct kvf_transport_options *options, struct kvf_why *why)
{
    struct kvf_transport *transport = NULL;
    struct kvf_status status = kvf_transport_open(name, options, &transport, why);
    if (kvf_is_ok(status) && config->data_listen != NULL)
        status = kvf_transport_listen(transport, config->data_listen, why);
    if (!kvf_is_ok(status)) {
        kvf_transport_close(transport);
        return status;
    }
    network->transports.list[network->transports.count++] = transport;
    return kvf_ok();
}

/* By its own choice verbs is only used with what makes it safe: a window for each block. */
static void add_verbs_if_fit(struct kvf_network *network, const struct kvf_config *config,
                             const struct kvf_transport_options *options)
{
    if (!kvf_is_ok(add(network, "verbs", config, options, &network->without)))
        return;
    const struct kvf_transport_traits *traits = kvf_transport_traits(network->transports.list[0]);
    network->without = (struct kvf_why){0}; /* of a device that is not used beside one that is */
    if (traits->lane_blocks > 0)
        return;
    (void)kvf_why_set(&network->without, invalid(),
                      "%s: --transport verbs would use it all the same", traits->single_tenant_why);
    kvf_network_close(network);
}

/* Is any peer's reach into this node's memory more than its own blocks? Who does not listen serves nobody. */
static bool is_bare(const struct kvf_config *config, const struct kvf_transport_traits *traits)
{
    return traits->single_tenant && (config->data_listen != NULL || traits->bares_consumers);
}

/* Chosen by name, it must do what is asked of it. */
static struct kvf_status check_tenants(const struct kvf_network *network,
                                       const struct kvf_config *config, const struct kvf_acl *acl,
                                       struct kvf_why *why)
{
    const struct kvf_transports *all = &network->transports;
    const struct kvf_transport *chosen = all->list[all->count - 1];
    const struct kvf_transport_traits *traits = kvf_transport_traits(chosen);
    if (!is_bare(config, traits) || !kvf_acl_has_tenants(acl))
        return kvf_ok();
    return kvf_why_set(why, invalid(),
                       "--transport %s: %s, so this node can serve one tenant, and the ACL has "
                       "more: use --transport auto or tcp",
                       kvf_transport_name(chosen), traits->single_tenant_why);
}

static struct kvf_status open_chosen(struct kvf_network *network, const struct kvf_config *config,
                                     const struct kvf_acl *acl,
                                     const struct kvf_transport_options *options,
                                     struct kvf_why *why)
{
    KVF_TRY(add(network, kvf_config_transport_name(config->transport), config, options, why));
    return check_tenants(network, config, acl, why);
}

struct kvf_status kvf_network_open(const struct kvf_config *config, const struct kvf_acl *acl,
                                   const struct kvf_transport_options *transport,
                                   struct kvf_network *network, struct kvf_why *why)
{
    struct kvf_transport_options options = *transport;
    options.nics = config->nics.items;
    options.nic_count = config->nics.count;
    *network = (struct kvf_network){0};
    if (config->transport == KVF_CONFIG_TRANSPORT_AUTO)
        add_verbs_if_fit(network, config, &options); /* beside tcp, which is what auto is called */
    struct kvf_status status = open_chosen(network, config, acl, &options, why);
    if (!kvf_is_ok(status))
        kvf_network_close(network);
    return status;
}

#define MAX_NICS 64

static bool is_wanted(const struct kvf_config *config, const struct kvf_nic *nic)
{
    bool wanted = config->nics.count == 0 && nic->is_active;
    for (size_t i = 0; i < config->nics.count; i++)
        wanted = wanted || strcmp(config->nics.items[i], nic->device) == 0;
    return wanted && nic->numa_node >= 0;
}

size_t kvf_network_numa_nodes(const struct kvf_config *config, int *nodes, size_t room)
{
    struct kvf_nic nics[MAX_NICS];
    size_t found = 0;
    if (config->transport == KVF_CONFIG_TRANSPORT_TCP)
        return 0;
    size_t count = kvf_transport_nics("verbs", nics, MAX_NICS);
    for (size_t i = 0; i < count && i < MAX_NICS; i++) {
        size_t at = 0;
        while (at < found && nodes[at] != nics[i].numa_node)
            at++;
        if (at == found && found < room && is_wanted(config, &nics[i]))
            nodes[found++] = nics[i].numa_node;
    }
    return found;
}

uint64_t kvf_network_locked_bytes(const struct kvf_network *network)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < network->transports.count; i++)
        bytes += kvf_transport_traits(network->transports.list[i])->locked_bytes;
    return bytes;
}

static void log_one(const struct kvf_transport *transport, const struct kvf_config *config,
                    const struct kvf_acl *acl)
{
    const struct kvf_transport_traits *traits = kvf_transport_traits(transport);
    const char *name = kvf_transport_name(transport);
    if (config->data_listen != NULL)
        kvf_log_info("network", "lanes over %s: data port %d", name, kvf_transport_port(transport));
    if (is_bare(config, traits))
        kvf_log_warning("network", "%s: over %s this node serves one tenant%s",
                        traits->single_tenant_why, name,
                        kvf_acl_has_tenants(acl) ? ", and the ACL has more: it serves nobody" : "");
}

void kvf_network_log(const struct kvf_network *network, const struct kvf_config *config,
                     const struct kvf_acl *acl)
{
    bool has_nics = false;
    for (size_t i = 0; i < network->transports.count; i++) {
        const struct kvf_transport *transport = network->transports.list[i];
        log_one(transport, config, acl);
        has_nics = has_nics || strcmp(kvf_transport_name(transport), "tcp") != 0;
    }
    if (network->without.text[0] != '\0')
        kvf_log_info("network", "no lanes over verbs: %s", network->without.text);
    if (config->nics.count > 0 && !has_nics)
        kvf_log_warning("network", "--nics chooses nothing: with tcp the kernel routes");
}

void kvf_network_close(struct kvf_network *network)
{
    while (network->transports.count > 0)
        kvf_transport_close(network->transports.list[--network->transports.count]);
}
