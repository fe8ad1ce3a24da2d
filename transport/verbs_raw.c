#include "transport/verbs_raw.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_MS 4000

static bool await(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    return poll(&waiting, 1, WAIT_MS) == 1;
}

static struct sockaddr_in address_of(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    (void)inet_pton(AF_INET, host, &address.sin_addr);
    return address;
}

/* The next event must be this one. A connection request's id becomes ours. */
static bool await_event(struct verbs_raw *raw, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event;
    if (!await(raw->events->fd) || rdma_get_cm_event(raw->events, &event) != 0)
        return false;
    bool is_it = event->event == wanted;
    if (is_it && wanted == RDMA_CM_EVENT_CONNECT_REQUEST)
        raw->id = event->id;
    (void)rdma_ack_cm_event(event);
    return is_it;
}

static bool make_queue_pair(struct verbs_raw *raw)
{
    struct ibv_context *context = raw->id->verbs;
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_pd *pd = ibv_alloc_pd(context);
    raw->memory = aligned_alloc(4096, VERBS_RAW_BYTES);
    raw->channel = ibv_create_comp_channel(context);
    if (pd == NULL || raw->memory == NULL || raw->channel == NULL)
        return false;
    memset(raw->memory, 0xee, VERBS_RAW_BYTES);
    raw->mr = ibv_reg_mr(pd, raw->memory, VERBS_RAW_BYTES, (unsigned)rights);
    raw->cq = ibv_create_cq(context, 16, NULL, raw->channel, 0);
    if (raw->mr == NULL || raw->cq == NULL)
        return false;
    struct ibv_qp_init_attr wanted = {
        .send_cq = raw->cq,
        .recv_cq = raw->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
    };
    return rdma_create_qp(raw->id, pd, &wanted) == 0;
}

static struct rdma_conn_param conn_param(const void *greeting, uint8_t bytes)
{
    return (struct rdma_conn_param){
        .private_data = greeting,
        .private_data_len = bytes,
        .responder_resources = 8,
        .initiator_depth = 8,
        .retry_count = 7,
        .rnr_retry_count = 1,
    };
}

bool verbs_raw_connect(struct verbs_raw *raw, const char *host, int port, const void *greeting,
                       uint8_t bytes)
{
    struct sockaddr_in address = address_of(host, port);
    struct rdma_conn_param param = conn_param(greeting, bytes);
    *raw = (struct verbs_raw){.events = rdma_create_event_channel()};
    return raw->events != NULL && rdma_create_id(raw->events, &raw->id, NULL, RDMA_PS_TCP) == 0 &&
           rdma_resolve_addr(raw->id, NULL, (struct sockaddr *)&address, WAIT_MS) == 0 &&
           await_event(raw, RDMA_CM_EVENT_ADDR_RESOLVED) &&
           rdma_resolve_route(raw->id, WAIT_MS) == 0 &&
           await_event(raw, RDMA_CM_EVENT_ROUTE_RESOLVED) && make_queue_pair(raw) &&
           rdma_connect(raw->id, &param) == 0 && await_event(raw, RDMA_CM_EVENT_ESTABLISHED);
}

int verbs_raw_listen(struct verbs_raw *raw, const char *host)
{
    struct sockaddr_in address = address_of(host, 0);
    *raw = (struct verbs_raw){.events = rdma_create_event_channel()};
    if (raw->events == NULL ||
        rdma_create_id(raw->events, &raw->listener, NULL, RDMA_PS_TCP) != 0 ||
        rdma_bind_addr(raw->listener, (struct sockaddr *)&address) != 0 ||
        rdma_listen(raw->listener, 4) != 0)
        return -1;
    return ntohs(rdma_get_src_port(raw->listener));
}

bool verbs_raw_accept(struct verbs_raw *raw, const void *greeting, uint8_t bytes)
{
    struct rdma_conn_param param = conn_param(greeting, bytes);
    return await_event(raw, RDMA_CM_EVENT_CONNECT_REQUEST) && make_queue_pair(raw) &&
           rdma_accept(raw->id, &param) == 0;
}

void verbs_raw_close(struct verbs_raw *raw)
{
    struct ibv_pd *pd = raw->mr != NULL ? raw->mr->pd : NULL;
    if (raw->id != NULL && raw->id->qp != NULL) {
        (void)rdma_disconnect(raw->id);
        rdma_destroy_qp(raw->id);
    }
    if (raw->cq != NULL)
        (void)ibv_destroy_cq(raw->cq);
    if (raw->channel != NULL)
        (void)ibv_destroy_comp_channel(raw->channel);
    if (raw->mr != NULL)
        (void)ibv_dereg_mr(raw->mr);
    if (pd != NULL)
        (void)ibv_dealloc_pd(pd);
    if (raw->id != NULL)
        (void)rdma_destroy_id(raw->id);
    if (raw->listener != NULL)
        (void)rdma_destroy_id(raw->listener);
    if (raw->events != NULL)
        rdma_destroy_event_channel(raw->events);
    free(raw->memory);
    *raw = (struct verbs_raw){0};
}

/* ---- work requests ---- */

static int outcome(struct verbs_raw *raw)
{
    struct ibv_wc completion;
    struct ibv_cq *cq;
    void *context;
    for (;;) {
        (void)ibv_req_notify_cq(raw->cq, 0);
        int count = ibv_poll_cq(raw->cq, 1, &completion);
        if (count != 0)
            return count > 0 ? (int)completion.status : -1;
        if (!await(raw->channel->fd) || ibv_get_cq_event(raw->channel, &cq, &context) != 0)
            return -1;
        ibv_ack_cq_events(cq, 1);
    }
}

static int do_request(struct verbs_raw *raw, struct ibv_send_wr *request, uint32_t bytes)
{
    struct ibv_sge place = {.addr = (uintptr_t)raw->memory, .length = bytes, .lkey = raw->mr->lkey};
    struct ibv_send_wr *failed;
    request->sg_list = &place;
    request->num_sge = 1;
    request->send_flags = IBV_SEND_SIGNALED;
    return ibv_post_send(raw->id->qp, request, &failed) == 0 ? outcome(raw) : -1;
}

int verbs_raw_read(struct verbs_raw *raw, uint32_t key, uint64_t address, uint32_t bytes)
{
    struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_READ,
                                  .wr.rdma = {.remote_addr = address, .rkey = key}};
    return do_request(raw, &request, bytes);
}

int verbs_raw_write(struct verbs_raw *raw, uint32_t key, uint64_t address, uint32_t bytes)
{
    struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_WRITE,
                                  .wr.rdma = {.remote_addr = address, .rkey = key}};
    return do_request(raw, &request, bytes);
}

int verbs_raw_add(struct verbs_raw *raw, uint32_t key, uint64_t address)
{
    struct ibv_send_wr request = {
        .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
        .wr.atomic = {.remote_addr = address, .compare_add = 1, .rkey = key}};
    return do_request(raw, &request, sizeof(uint64_t));
}
