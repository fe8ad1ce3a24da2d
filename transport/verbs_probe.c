/* What a device keeps of what it promises, tried once at start between two queue pairs on one of its
 * ports:
 *
 * - the first half of a page is read through a window that covers it;
 * - a byte of every region is read in the way in which consumers will, for a region that cannot be
 *   read remotely is better found now than by the first of them;
 * - a READ that goes one byte past the window must fail. Where it does not (soft-RoCE), a window is
 *   as wide as its region: the owner must know.
 *
 * The last one kills the queue pair, so it is the last. */
#include "transport/verbs.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define HALF (PAGE / 2)
#define WAIT_MS 5000
#define REQUESTS 4

struct probe {
    struct verbs_device *device;
    unsigned port;
    int gid_index;
    union ibv_gid gid;
    struct ibv_port_attr port_attributes;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *source, *reader;
    struct ibv_mr *from, *to; /* a page each */
    struct ibv_mw *window;
    uint8_t *memory;
};

/* ---- two queue pairs ---- */

/* Of the newest kind, and IPv4 where there is one: an IPv6 address may not be usable yet. */
static unsigned rank(const struct ibv_gid_entry *entry)
{
    struct in6_addr address;
    memcpy(&address, entry->gid.raw, sizeof(address));
    return 2 * entry->gid_type + (IN6_IS_ADDR_V4MAPPED(&address) ? 1 : 0);
}

/* An active port with the best address. */
static bool choose_port(struct probe *probe)
{
    struct ibv_gid_entry entries[64];
    const struct ibv_gid_entry *best = NULL;
    struct ibv_context *context = probe->device->context;
    ssize_t count = ibv_query_gid_table(context, entries, 64, 0);
    for (ssize_t i = 0; i < count; i++) {
        struct ibv_port_attr attributes;
        if ((best != NULL && rank(&entries[i]) <= rank(best)) ||
            ibv_query_port(context, (uint8_t)entries[i].port_num, &attributes) != 0 ||
            attributes.state != IBV_PORT_ACTIVE)
            continue;
        best = &entries[i];
        probe->port_attributes = attributes;
    }
    if (best == NULL)
        return false;
    probe->port = best->port_num;
    probe->gid_index = (int)best->gid_index;
    probe->gid = best->gid;
    return true;
}

static int to_init(const struct probe *probe, struct ibv_qp *qp)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT,
                                     .port_num = (uint8_t)probe->port,
                                     .qp_access_flags =
                                         qp == probe->source ? IBV_ACCESS_REMOTE_READ : 0};
    return ibv_modify_qp(qp, &attributes,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int to_ready(const struct probe *probe, struct ibv_qp *qp, const struct ibv_qp *other)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = probe->port_attributes.active_mtu,
        .dest_qp_num = other->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = (uint8_t)probe->port,
                    .dlid = probe->port_attributes.lid,
                    .grh = {.dgid = probe->gid,
                            .sgid_index = (uint8_t)probe->gid_index,
                            .hop_limit = 64}},
    };
    int error = ibv_modify_qp(qp, &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error != 0)
        return error;
    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    return ibv_modify_qp(qp, &attributes,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct ibv_qp *make_queue_pair(struct probe *probe)
{
    struct ibv_qp_init_attr wanted = {
        .send_cq = probe->cq,
        .recv_cq = probe->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = REQUESTS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    return ibv_create_qp(probe->device->pd, &wanted);
}

/* 0 or an errno; take_apart also takes what was made of a half. */
static int make(struct probe *probe)
{
    struct ibv_pd *pd = probe->device->pd;
    unsigned rights = probe->device->has_windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_READ;
    probe->memory = aligned_alloc(PAGE, (size_t)2 * PAGE);
    if (probe->memory == NULL)
        return ENOMEM;
    memset(probe->memory, 1, PAGE);
    memset(probe->memory + PAGE, 0, PAGE);
    probe->from = ibv_reg_mr(pd, probe->memory, PAGE, IBV_ACCESS_LOCAL_WRITE | rights);
    probe->to = ibv_reg_mr(pd, probe->memory + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);
    probe->channel = ibv_create_comp_channel(probe->device->context);
    if (probe->from == NULL || probe->to == NULL || probe->channel == NULL)
        return errno;
    probe->cq = ibv_create_cq(probe->device->context, 2 * REQUESTS, NULL, probe->channel, 0);
    if (probe->cq == NULL)
        return errno;
    probe->source = make_queue_pair(probe);
    probe->reader = make_queue_pair(probe);
    if (probe->source == NULL || probe->reader == NULL)
        return errno;
    int error = to_init(probe, probe->source);
    if (error == 0)
        error = to_init(probe, probe->reader);
    if (error == 0)
        error = to_ready(probe, probe->source, probe->reader);
    if (error == 0)
        error = to_ready(probe, probe->reader, probe->source);
    if (error == 0 && probe->device->has_windows) {
        probe->window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
        error = probe->window == NULL ? errno : 0;
    }
    return error;
}

static void take_apart(struct probe *probe)
{
    if (probe->window != NULL)
        (void)ibv_dealloc_mw(probe->window);
    if (probe->source != NULL)
        (void)ibv_destroy_qp(probe->source);
    if (probe->reader != NULL)
        (void)ibv_destroy_qp(probe->reader);
    if (probe->cq != NULL)
        (void)ibv_destroy_cq(probe->cq);
    if (probe->channel != NULL)
        (void)ibv_destroy_comp_channel(probe->channel);
    if (probe->from != NULL)
        (void)ibv_dereg_mr(probe->from);
    if (probe->to != NULL)
        (void)ibv_dereg_mr(probe->to);
    free(probe->memory);
}

/* ---- work requests, one at a time ---- */

/* The request's outcome: an ibv_wc_status, or -1: none within WAIT_MS. */
static int outcome(struct probe *probe)
{
    struct ibv_wc completion;
    struct pollfd waiting = {.fd = probe->channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;
    for (;;) {
        int count = ibv_poll_cq(probe->cq, 1, &completion);
        if (count != 0)
            return count > 0 ? (int)completion.status : -1;
        if (ibv_req_notify_cq(probe->cq, 0) != 0)
            return -1;
        count = ibv_poll_cq(probe->cq, 1, &completion);
        if (count != 0)
            return count > 0 ? (int)completion.status : -1;
        if (poll(&waiting, 1, WAIT_MS) != 1 || ibv_get_cq_event(probe->channel, &cq, &context) != 0)
            return -1;
        ibv_ack_cq_events(cq, 1);
    }
}

static int do_request(struct probe *probe, struct ibv_qp *qp, struct ibv_send_wr *request)
{
    struct ibv_send_wr *failed;
    request->send_flags = IBV_SEND_SIGNALED;
    return ibv_post_send(qp, request, &failed) == 0 ? outcome(probe) : -1;
}

/* Where a consumer would read `bytes` from there. */
struct target {
    uint32_t key;
    uint64_t address;
};

static int open_for_reading(struct probe *probe, struct ibv_mr *mr, uint64_t bytes,
                            struct target *target)
{
    *target = (struct target){.key = mr->rkey, .address = (uintptr_t)mr->addr};
    if (probe->window == NULL)
        return IBV_WC_SUCCESS;
    *target = (struct target){.key = ibv_inc_rkey(probe->window->rkey)};
    struct ibv_send_wr request = {
        .opcode = IBV_WR_BIND_MW,
        .bind_mw = {.mw = probe->window,
                    .rkey = target->key,
                    .bind_info = {.mr = mr,
                                  .addr = (uintptr_t)mr->addr,
                                  .length = bytes,
                                  .mw_access_flags =
                                      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED}},
    };
    int status = do_request(probe, probe->source, &request);
    probe->window->rkey = target->key;
    return status;
}

static int close_for_reading(struct probe *probe)
{
    struct ibv_send_wr request = {.opcode = IBV_WR_LOCAL_INV};
    if (probe->window == NULL)
        return IBV_WC_SUCCESS;
    request.invalidate_rkey = probe->window->rkey;
    return do_request(probe, probe->source, &request);
}

static int read_target(struct probe *probe, const struct target *target, uint64_t offset,
                       uint32_t bytes)
{
    struct ibv_sge place = {
        .addr = (uintptr_t)probe->to->addr, .length = bytes, .lkey = probe->to->lkey};
    struct ibv_send_wr request = {
        .opcode = IBV_WR_RDMA_READ,
        .sg_list = &place,
        .num_sge = 1,
        .wr.rdma = {.remote_addr = target->address + offset, .rkey = target->key},
    };
    return do_request(probe, probe->reader, &request);
}

/* ---- what is tried ---- */

static int try_reads(struct probe *probe)
{
    struct target target;
    int status = open_for_reading(probe, probe->from, HALF, &target);
    if (status == IBV_WC_SUCCESS)
        status = read_target(probe, &target, 0, HALF);
    if (status == IBV_WC_SUCCESS && memcmp(probe->from->addr, probe->to->addr, HALF) != 0)
        status = -1;
    if (status == IBV_WC_SUCCESS)
        status = close_for_reading(probe);
    for (size_t i = 0; i < probe->device->region_count && status == IBV_WC_SUCCESS; i++) {
        status = open_for_reading(probe, probe->device->regions[i].mr, 1, &target);
        if (status == IBV_WC_SUCCESS)
            status = read_target(probe, &target, 0, 1);
        if (status == IBV_WC_SUCCESS)
            status = close_for_reading(probe);
    }
    return status;
}

/* The outcome: SUCCESS where it went as it should, whatever the device says to a READ past the window. */
static int try_bounds(struct probe *probe)
{
    struct target target;
    if (probe->window == NULL)
        return IBV_WC_SUCCESS;
    int status = open_for_reading(probe, probe->from, HALF, &target);
    if (status == IBV_WC_SUCCESS)
        status = read_target(probe, &target, 1, HALF);
    if (status != IBV_WC_REM_ACCESS_ERR && status != IBV_WC_REM_INV_REQ_ERR &&
        status != IBV_WC_REM_OP_ERR)
        return status;
    probe->device->checks_windows = true;
    return IBV_WC_SUCCESS;
}

static const char *status_text(int status)
{
    return status < 0 ? "no answer, or a wrong one" : ibv_wc_status_str((enum ibv_wc_status)status);
}

struct kvf_status verbs_probe(struct verbs_device *device, struct kvf_why *why)
{
    struct probe probe = {.device = device};
    const char *name = ibv_get_device_name(device->context->device);
    if (!choose_port(&probe)) {
        char table[200];
        verbs_table_text(table, sizeof(table));
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, ENETDOWN),
                           "%s has no active port with an address; there are: %s", name, table);
    }
    struct kvf_status status = kvf_ok();
    int error = make(&probe);
    int result = error == 0 ? try_reads(&probe) : -1;
    if (result == IBV_WC_SUCCESS)
        result = try_bounds(&probe);
    if (error != 0)
        status = kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, error),
                             "%s gives no queue pair or window: %s", name, strerror(error));
    else if (result != IBV_WC_SUCCESS)
        status = kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, result),
                             "%s cannot read its own memory through itself: %s", name,
                             status_text(result));
    take_apart(&probe);
    return status;
}
