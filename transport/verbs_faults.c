/* By the linker's --wrap, and what is inline in verbs.h by the device's own table of functions. */
#include "transport/verbs_faults.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_uint left; /* until one fails, itself included; 0: none will */
static atomic_bool failed, no_windows;

void verbs_faults_fail_at(unsigned nth)
{
    failed = false;
    left = nth;
}

bool verbs_faults_failed(void)
{
    return failed;
}

void verbs_faults_no_windows(bool none)
{
    no_windows = none;
}

static bool fails(void)
{
    unsigned now = left;
    while (now > 0 && !atomic_compare_exchange_weak(&left, &now, now - 1))
        ;
    if (now != 1)
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

/* A call that gives a pointer, NULL and errno on failure; one that returns -1 and errno; one that returns an errno. */
#define WRAP(result, failure, name, parameters, arguments)                                         \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters                                                                \
    {                                                                                              \
        return fails() ? (failure) : __real_##name arguments;                                      \
    }

WRAP(struct ibv_pd *, NULL, ibv_alloc_pd, (struct ibv_context * context), (context))
WRAP(struct ibv_mr *, NULL, ibv_reg_mr_iova2,
     (struct ibv_pd * pd, void *at, size_t bytes, uint64_t iova, unsigned access),
     (pd, at, bytes, iova, access))
WRAP(struct ibv_comp_channel *, NULL, ibv_create_comp_channel, (struct ibv_context * context),
     (context))
WRAP(struct ibv_cq *, NULL, ibv_create_cq,
     (struct ibv_context * context, int entries, void *user, struct ibv_comp_channel *channel,
      int vector),
     (context, entries, user, channel, vector))
WRAP(struct ibv_qp *, NULL, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr *wanted),
     (pd, wanted))
WRAP(int, ENOMEM, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr *attributes, int mask),
     (qp, attributes, mask))
WRAP(struct rdma_event_channel *, NULL, rdma_create_event_channel, (void), ())
WRAP(int, -1, rdma_create_id,
     (struct rdma_event_channel * channel, struct rdma_cm_id **id, void *context,
      enum rdma_port_space space),
     (channel, id, context, space))
WRAP(int, -1, rdma_resolve_addr,
     (struct rdma_cm_id * id, struct sockaddr *from, struct sockaddr *to, int timeout_ms),
     (id, from, to, timeout_ms))
WRAP(int, -1, rdma_resolve_route, (struct rdma_cm_id * id, int timeout_ms), (id, timeout_ms))
WRAP(int, -1, rdma_init_qp_attr,
     (struct rdma_cm_id * id, struct ibv_qp_attr *attributes, int *mask), (id, attributes, mask))
WRAP(int, -1, rdma_connect, (struct rdma_cm_id * id, struct rdma_conn_param *param), (id, param))
WRAP(int, -1, rdma_accept, (struct rdma_cm_id * id, struct rdma_conn_param *param), (id, param))
WRAP(int, -1, rdma_establish, (struct rdma_cm_id * id), (id))

int __real_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes);
int __wrap_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes);
int __wrap_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    if (fails())
        return ENOMEM;
    int error = __real_ibv_query_device(context, attributes);
    if (error == 0 && no_windows)
        attributes->device_cap_flags &= ~(unsigned)IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    return error;
}

static struct ibv_mw *(*real_alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
static int (*real_post_send)(struct ibv_qp *qp, struct ibv_send_wr *requests,
                             struct ibv_send_wr **bad);

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    return fails() ? NULL : real_alloc_mw(pd, type);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *requests, struct ibv_send_wr **bad)
{
    return fails() ? ENOMEM : real_post_send(qp, requests, bad);
}

/* One driver for all devices, as here, or this would need a table. */
struct ibv_context **__real_rdma_get_devices(int *count);
struct ibv_context **__wrap_rdma_get_devices(int *count);
struct ibv_context **__wrap_rdma_get_devices(int *count)
{
    struct ibv_context **contexts = __real_rdma_get_devices(count);
    for (int i = 0; contexts != NULL && contexts[i] != NULL; i++) {
        if (contexts[i]->ops.alloc_mw == alloc_mw)
            continue;
        real_alloc_mw = contexts[i]->ops.alloc_mw;
        real_post_send = contexts[i]->ops.post_send;
        contexts[i]->ops.alloc_mw = alloc_mw;
        contexts[i]->ops.post_send = post_send;
    }
    return contexts;
}
