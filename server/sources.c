#include "server/sources.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define ADDRESS_MAX_BYTES 280

enum slot_state {
    SLOT_OPEN = 0, /* in the table, usable */
    SLOT_CLOSING,  /* kvf_source_close was called; `closed` comes */
};

struct slot {
    struct kvf_list node;
    struct kvf_sources *sources;
    enum slot_state state;
    struct kvf_source *source;
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1];
    char address[ADDRESS_MAX_BYTES];
    size_t nic;
    uint64_t quiet_until_ns; /* no line about refusals before that */
    uint64_t untold;         /* refusals since the last line */
};

struct kvf_sources {
    struct kvf_sources_options options;
    size_t nic_count;      /* that lanes can leave by; at least 1 */
    struct kvf_list slots; /* the one used last is last */
    size_t count;
    bool closing;
    void (*closed)(void *context);
    void *context;
    struct kvf_post closed_post;
};

static struct slot *find(struct kvf_sources *sources, const char *address, const char *tenant,
                         size_t nic)
{
    kvf_list_for_each (node, &sources->slots) {
        struct slot *slot = kvf_container(node, struct slot, node);
        if (slot->state == SLOT_OPEN && strcmp(slot->address, address) == 0 &&
            strcmp(slot->tenant, tenant) == 0 && slot->nic == nic)
            return slot;
    }
    return NULL;
}

static void tell_closed(struct kvf_post *post)
{
    struct kvf_sources *sources = kvf_container(post, struct kvf_sources, closed_post);
    sources->closed(sources->context);
}

static void source_closed(void *context)
{
    struct slot *slot = context;
    struct kvf_sources *sources = slot->sources;
    kvf_list_remove(&slot->node);
    free(slot);
    if (--sources->count == 0 && sources->closing)
        kvf_loop_post(sources->options.source.loop, &sources->closed_post);
}

static void close_slot(struct slot *slot)
{
    if (slot->state == SLOT_CLOSING)
        return;
    slot->state = SLOT_CLOSING;
    kvf_source_close(slot->source, source_closed, slot);
}

/* The one that was used least recently. */
static void close_an_idle_one(struct kvf_sources *sources)
{
    kvf_list_for_each (node, &sources->slots) {
        struct slot *slot = kvf_container(node, struct slot, node);
        if (slot->state == SLOT_OPEN && kvf_source_is_idle(slot->source)) {
            close_slot(slot);
            return;
        }
    }
}

/* Hints come from engines. Without TLS blocks are believed from this host only. */
static struct kvf_status judge_address(const struct kvf_sources *sources, const char *address)
{
    struct kvf_address parsed;
    if (strlen(address) >= ADDRESS_MAX_BYTES || !kvf_address_parse(address, &parsed))
        return kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
    if (sources->options.source.tls == NULL && !kvf_address_is_loopback(&parsed))
        return kvf_fail(KVF_MODULE_SERVER, KVF_DENIED, 0);
    return kvf_ok();
}

/* Over a transport that bares our memory to sources, none is asked on behalf of one tenant beside others. */
static bool tenants_are_bare(const struct kvf_sources *sources)
{
    const struct kvf_transports *transports = &sources->options.source.transports;
    for (size_t i = 0; i < transports->count; i++)
        if (kvf_transport_traits(transports->list[i])->bares_consumers)
            return kvf_acl_has_tenants(sources->options.acl);
    return false;
}

/* Whose bytes are believed. */
static bool may_serve(void *context, const char *tenant, const char *identity)
{
    const struct kvf_sources *sources = ((const struct slot *)context)->sources;
    if (tenants_are_bare(sources)) {
        kvf_audit_denied(sources->options.audit, identity, tenant, "serve", "tenants");
        return false;
    }
    if (kvf_acl_may(sources->options.acl, identity, tenant, KVF_RIGHT_SERVE))
        return true;
    kvf_audit_denied(sources->options.audit, identity, tenant, "serve", "no_right");
    return false;
}

/* The first of a second is worth a line; each block says its code anyhow. */
static void refused(void *context, struct kvf_source *source,
                    const struct kvf_pull_refusal *refusal)
{
    struct slot *slot = context;
    uint64_t now_ns = kvf_clock_now_ns();
    char text[160];
    (void)source;
    slot->untold++;
    if (now_ns < slot->quiet_until_ns)
        return;
    kvf_pull_refusal_text(refusal, text, sizeof(text));
    kvf_log_info("sources", "%s refused a Read of tenant %s: %s (%llu since the last such line)",
                 slot->address, slot->tenant, text, (unsigned long long)slot->untold);
    slot->untold = 0;
    slot->quiet_until_ns = now_ns + KVF_NS_PER_S;
}

static struct kvf_status add(struct kvf_sources *sources, const char *address, const char *tenant,
                             size_t nic, struct slot **give)
{
    KVF_TRY(judge_address(sources, address));
    if (sources->count >= KVF_SOURCES_MAX)
        close_an_idle_one(sources);
    /* One may be over while another is closing. */
    if (sources->closing || sources->count > KVF_SOURCES_MAX)
        return kvf_fail(KVF_MODULE_SERVER, KVF_UNAVAILABLE, 0);
    struct slot *slot = calloc(1, sizeof(*slot));
    if (slot == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    slot->sources = sources;
    strcpy(slot->address, address);
    strcpy(slot->tenant, tenant);
    slot->nic = nic;
    struct kvf_source_options options = sources->options.source;
    options.address = slot->address;
    options.tenant = slot->tenant;
    options.device = nic;
    options.may_serve = may_serve;
    options.refused = refused;
    options.context = slot;
    struct kvf_status status = kvf_source_create(&options, &slot->source);
    if (!kvf_is_ok(status)) {
        free(slot);
        return status;
    }
    sources->count++;
    kvf_list_push_back(&sources->slots, &slot->node);
    *give = slot;
    return kvf_ok();
}

static struct kvf_status find_or_add(struct kvf_sources *sources, const char *address,
                                     const char *tenant, size_t nic, struct slot **give)
{
    struct slot *slot = find(sources, address, tenant, nic);
    if (slot == NULL)
        KVF_TRY(add(sources, address, tenant, nic, &slot));
    kvf_list_remove(&slot->node);
    kvf_list_push_back(&sources->slots, &slot->node);
    *give = slot;
    return kvf_ok();
}

/* Several NICs are several sessions, and so several sources: the one of the NIC with the fewest pulls. The others than
 * the first are made when it is busy, and only where lanes go by NIC. */
static struct slot *least_busy(struct kvf_sources *sources, struct slot *first)
{
    struct slot *best = first, *slot;
    for (size_t nic = 1; nic < sources->nic_count && kvf_source_uses_device(first->source) &&
                         kvf_source_pulls(best->source) > 0;
         nic++) {
        if (!kvf_is_ok(find_or_add(sources, first->address, first->tenant, nic, &slot)))
            break;
        if (kvf_source_pulls(slot->source) < kvf_source_pulls(best->source))
            best = slot;
    }
    return best;
}

struct kvf_status kvf_sources_find(struct kvf_sources *sources, const char *address, const char *ns,
                                   struct kvf_source **source)
{
    char tenant[KVF_NAMESPACE_MAX_BYTES + 1];
    size_t tenant_bytes = kvf_namespace_tenant_bytes(ns);
    kvf_assert(tenant_bytes < sizeof(tenant));
    memcpy(tenant, ns, tenant_bytes);
    tenant[tenant_bytes] = '\0';

    struct slot *slot;
    KVF_TRY(find_or_add(sources, address, tenant, 0, &slot));
    *source = least_busy(sources, slot)->source;
    return kvf_ok();
}

void kvf_sources_rights_changed(struct kvf_sources *sources)
{
    kvf_list_for_each (node, &sources->slots) {
        struct slot *slot = kvf_container(node, struct slot, node);
        if (slot->state == SLOT_OPEN)
            kvf_source_rights_changed(slot->source);
    }
}

void kvf_sources_list(const struct kvf_sources *sources, struct kvf_overview_peers *give)
{
    kvf_list_for_each (node, &sources->slots) {
        const struct slot *slot = kvf_container(node, struct slot, node);
        const char *state = "closing";
        if (slot->state == SLOT_OPEN && kvf_source_is_draining(slot->source))
            state = "draining";
        else if (slot->state == SLOT_OPEN)
            state = kvf_source_is_idle(slot->source) ? "idle" : "busy";
        kvf_overview_add_peer(give, (struct kvf_overview_peer){.who = slot->address,
                                                               .tenant = slot->tenant,
                                                               .state = state});
    }
}

void kvf_sources_close(struct kvf_sources *sources, void (*closed)(void *context), void *context)
{
    sources->closing = true;
    sources->closed = closed;
    sources->context = context;
    if (sources->count == 0)
        kvf_loop_post(sources->options.source.loop, &sources->closed_post);
    kvf_list_for_each_safe (node, &sources->slots)
        close_slot(kvf_container(node, struct slot, node));
}

static size_t count_nics(const struct kvf_transports *transports)
{
    size_t most = 1;
    for (size_t i = 0; i < transports->count; i++) {
        size_t count = kvf_transport_traits(transports->list[i])->device_count;
        most = count > most ? count : most;
    }
    return most;
}

struct kvf_status kvf_sources_create(const struct kvf_sources_options *options,
                                     struct kvf_sources **give)
{
    struct kvf_sources *sources = calloc(1, sizeof(*sources));
    if (sources == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    sources->options = *options;
    sources->nic_count = count_nics(&options->source.transports);
    sources->closed_post.run = tell_closed;
    kvf_list_init(&sources->slots);
    *give = sources;
    return kvf_ok();
}

void kvf_sources_destroy(struct kvf_sources *sources)
{
    kvf_assert(sources == NULL || sources->count == 0);
    free(sources);
}
