/* Which devices are used, and the arenas as they know them. Parts: opening one, choosing. */
#include "transport/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- one device ---- */

static int compare_regions(const void *a, const void *b)
{
    const struct kvf_arena *first = ((const struct verbs_region *)a)->arena;
    const struct kvf_arena *second = ((const struct verbs_region *)b)->arena;
    return (first > second) - (first < second);
}

struct ibv_mr *verbs_device_region(const struct verbs_device *device, const struct kvf_arena *arena)
{
    struct verbs_region key = {.arena = arena};
    const struct verbs_region *found =
        bsearch(&key, device->regions, device->region_count, sizeof(key), compare_regions);
    kvf_assert(found != NULL); /* not among options->arenas */
    return found->mr;
}

static void close_device(struct verbs_device *device)
{
    for (size_t i = 0; i < device->region_count; i++)
        (void)ibv_dereg_mr(device->regions[i].mr);
    free(device->regions);
    if (device->pd != NULL)
        (void)ibv_dealloc_pd(device->pd);
    *device = (struct verbs_device){0};
}

static struct kvf_status say_registration_failed(const struct verbs_device *device,
                                                 const struct kvf_arena *arena, int error,
                                                 struct kvf_why *why)
{
    struct rlimit limit = {0};
    const char *name = ibv_get_device_name(device->context->device);
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (error == ENOMEM && limit.rlim_cur != RLIM_INFINITY)
        return kvf_why_set(
            why, lane_fail(KVF_UNSUPPORTED, error),
            "%s cannot lock the pool in memory (%llu MiB did not fit): the limit is %llu "
            "KiB; raise it above the pool's size (ulimit -l, LimitMEMLOCK=)",
            name, (unsigned long long)arena->bytes >> 20, (unsigned long long)limit.rlim_cur >> 10);
    return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, error), "%s cannot register %llu MiB: %s",
                       name, (unsigned long long)arena->bytes >> 20, strerror(error));
}

/* No region has a remote right of its own where there are windows, and none ever lets itself be
 * written from outside. */
static struct kvf_status register_arenas(struct verbs_device *device,
                                         const struct kvf_transport_options *options,
                                         struct kvf_why *why)
{
    unsigned rights = IBV_ACCESS_LOCAL_WRITE |
                      (device->has_windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_READ);
    device->regions = calloc(options->arena_count + 1, sizeof(*device->regions));
    if (device->regions == NULL)
        return lane_fail(KVF_NO_MEMORY, 0);
    for (size_t i = 0; i < options->arena_count; i++) {
        const struct kvf_arena *arena = options->arenas[i];
        struct ibv_mr *mr = ibv_reg_mr(device->pd, arena->base, arena->bytes, rights);
        if (mr == NULL)
            return say_registration_failed(device, arena, errno, why);
        device->regions[device->region_count++] = (struct verbs_region){.arena = arena, .mr = mr};
    }
    qsort(device->regions, device->region_count, sizeof(*device->regions), compare_regions);
    return kvf_ok();
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static unsigned reads_of(int most)
{
    return most < 1 ? 1 : most > 16 ? 16 : (unsigned)most;
}

static struct kvf_status measure(struct verbs_device *device, uint32_t lane_blocks,
                                 struct kvf_why *why)
{
    struct ibv_device_attr attributes;
    const char *name = ibv_get_device_name(device->context->device);
    if (device->context->device->transport_type != IBV_TRANSPORT_IB)
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, 0), "%s is neither RoCE nor InfiniBand",
                           name);
    int error = ibv_query_device(device->context, &attributes);
    if (error != 0)
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, error), "%s does not answer: %s", name,
                           strerror(error));
    device->has_windows = (attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
    device->reads_out = reads_of(attributes.max_qp_init_rd_atom);
    device->reads_in = reads_of(attributes.max_qp_rd_atom);
    uint32_t most = least((uint32_t)attributes.max_qp_wr, (uint32_t)attributes.max_cqe) - 2;
    device->lane_blocks = device->has_windows ? least(lane_blocks, most) : 0;
    return kvf_ok();
}

static struct kvf_status open_device(struct verbs_device *device, struct ibv_context *context,
                                     const struct kvf_transport_options *options,
                                     struct kvf_why *why)
{
    uint32_t lane_blocks = options->lane_blocks > 0 ? options->lane_blocks : VERBS_LANE_BLOCKS;
    device->context = context;
    KVF_TRY(measure(device, lane_blocks, why));
    device->pd = ibv_alloc_pd(context);
    if (device->pd == NULL)
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, errno),
                           "%s gives no protection domain: %s",
                           ibv_get_device_name(context->device), strerror(errno));
    KVF_TRY(register_arenas(device, options, why));
    KVF_TRY(verbs_probe(device, why));
    int flags = fcntl(context->async_fd, F_GETFL);
    if (flags < 0 || fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return lane_fail(KVF_UNSUPPORTED, errno);
    return kvf_ok();
}

/* ---- choosing ---- */

struct verbs_device *verbs_device_find(struct verbs_transport *transport,
                                       const struct ibv_context *context)
{
    for (size_t i = 0; i < transport->device_count; i++)
        if (transport->devices[i].context == context)
            return &transport->devices[i];
    return NULL;
}

/* Memory of ours that a device writes must not go to a child by fork. Since 5.12 the kernel sees to
 * that; before, the library must, and before it does anything else. */
static struct kvf_status make_fork_safe(struct kvf_why *why)
{
    if (ibv_is_fork_initialized() == IBV_FORK_UNNEEDED)
        return kvf_ok();
    int error = ibv_fork_init();
    if (error != 0)
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, error),
                           "libibverbs cannot be made safe for fork: %s", strerror(error));
    return kvf_ok();
}

static const char *name_of(const struct ibv_context *context)
{
    return ibv_get_device_name(context->device);
}

static struct kvf_status add_device(struct verbs_transport *transport, struct ibv_context *context,
                                    const struct kvf_transport_options *options,
                                    struct kvf_why *why)
{
    struct verbs_device *device = &transport->devices[transport->device_count];
    struct kvf_status status = open_device(device, context, options, why);
    if (kvf_is_ok(status))
        transport->device_count++;
    else
        close_device(device);
    return status;
}

static struct kvf_status say_not_there(const char *name, struct kvf_why *why)
{
    char table[200];
    verbs_table_text(table, sizeof(table));
    return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, ENODEV),
                       "there is no verbs device %.63s here, or no right to open it; there are: %s",
                       name, table);
}

static struct kvf_status open_named(struct verbs_transport *transport,
                                    struct ibv_context **contexts,
                                    const struct kvf_transport_options *options,
                                    struct kvf_why *why)
{
    for (size_t i = 0; i < options->nic_count; i++) {
        struct ibv_context *found = NULL;
        for (struct ibv_context **at = contexts; *at != NULL; at++)
            if (strcmp(name_of(*at), options->nics[i]) == 0)
                found = *at;
        if (found == NULL)
            return say_not_there(options->nics[i], why);
        if (verbs_device_find(transport, found) == NULL)
            KVF_TRY(add_device(transport, found, options, why));
    }
    return kvf_ok();
}

/* One that is of no use is left out, unless it was all there is: then *why is about the last. */
static struct kvf_status open_all(struct verbs_transport *transport, struct ibv_context **contexts,
                                  const struct kvf_transport_options *options, struct kvf_why *why)
{
    struct kvf_status status = lane_fail(KVF_UNSUPPORTED, ENODEV);
    if (*contexts == NULL)
        (void)kvf_why_set(
            why, status,
            "this host has no verbs device that this user may open (/dev/infiniband): use "
            "tcp, or load the NIC's driver and ib_uverbs");
    for (struct ibv_context **at = contexts;
         *at != NULL && transport->device_count < KVF_TRANSPORT_DEVICES_MAX; at++)
        status = add_device(transport, *at, options, why);
    return transport->device_count > 0 ? kvf_ok() : status;
}

struct kvf_status verbs_devices_open(struct verbs_transport *transport,
                                     const struct kvf_transport_options *options,
                                     struct kvf_why *why)
{
    KVF_TRY(make_fork_safe(why));
    static struct ibv_context *none[] = {NULL};
    int count = 0;
    struct ibv_context **contexts = rdma_get_devices(&count);
    transport->devices = calloc((size_t)count + 1, sizeof(*transport->devices));
    struct kvf_status status = lane_fail(KVF_NO_MEMORY, 0);
    if (transport->devices != NULL && options->nic_count > 0)
        status = open_named(transport, contexts != NULL ? contexts : none, options, why);
    else if (transport->devices != NULL)
        status = open_all(transport, contexts != NULL ? contexts : none, options, why);
    if (contexts != NULL)
        rdma_free_devices(contexts);
    return status;
}

void verbs_devices_close(struct verbs_transport *transport)
{
    for (size_t i = 0; i < transport->device_count; i++)
        close_device(&transport->devices[i]);
    free(transport->devices);
}
