/* Connections, on the control thread: rdma_cm's events, queue pairs and windows made and destroyed.
 *
 * Source:    CONNECT_REQUEST -> its nonce is looked up -> queue pair, windows -> accept -> ESTABLISHED
 * Consumer:  resolve address -> resolve route -> queue pair -> connect -> CONNECT_RESPONSE, its nonce
 *            compared -> establish
 *
 * Queue pairs are made by hand and not by librdmacm, so that a source's never has more rights than
 * remote read and a consumer's none, and so that the consumer sees the answer's nonce before its own
 * queue pair can do anything. Whatever goes wrong, the rdma_cm_id is finished; the next attempt gets
 * a new one.
 *
 * The end (part): to the error state, disconnect, the windows, the queue pair. A window that outlives its queue
 * pair hangs the process at exit on soft-RoCE. When the queue pair is gone nothing reads or writes
 * the lane's memory any more, whatever the other side does, and none of this waits for it. */
#include "transport/verbs.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define RESOLVE_MS 2000
/* 4.096 us << 16 = 0.27 s without an answer, 8 times: who is gone is noticed after about 2 s. */
#define ACK_TIMEOUT 16
#define RETRIES 7

static struct verbs_transport *transport_of(const struct verbs_lane *lane)
{
    return verbs_transport_of(lane->lane.transport);
}

static void tell(struct verbs_lane *lane, struct kvf_post *post)
{
    kvf_loop_post(lane->lane.thread->loop, post);
}

static void lose(struct verbs_lane *lane, struct kvf_status why)
{
    if (lane->link.lost)
        return;
    lane->link.lost = true;
    lane->link.why = why;
    tell(lane, &lane->link.lost_post);
}

static struct kvf_status gone(int error)
{
    return lane_fail(KVF_UNAVAILABLE, error < 0 ? -error : error);
}

/* ---- queue pairs ---- */

static void take_apart(struct verbs_link *link)
{
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    if (link->qp != NULL && link->qp->state != IBV_QPS_RESET)
        (void)ibv_modify_qp(link->qp, &error, IBV_QP_STATE);
    if (link->connected)
        (void)rdma_disconnect(link->id);
    for (uint32_t i = 0; i < link->window_count; i++)
        (void)ibv_dealloc_mw(link->windows[i].mw);
    free(link->windows);
    if (link->qp != NULL)
        (void)ibv_destroy_qp(link->qp);
    if (link->cq != NULL)
        (void)ibv_destroy_cq(link->cq);
    if (link->id != NULL)
        (void)rdma_destroy_id(link->id);
    link->windows = NULL;
    link->window_count = 0;
    link->qp = NULL;
    link->cq = NULL;
    link->id = NULL;
    link->connected = false;
}

static uint8_t least(unsigned a, unsigned b)
{
    return (uint8_t)(a < b ? a : b);
}

/* Bring the queue pair one state on. 0 or an errno. What rdma_cm fills in is what both sides have
 * agreed on, how many READs may be under way among it. */
static int advance(struct verbs_lane *lane, enum ibv_qp_state to)
{
    const struct verbs_device *device = lane->link.device;
    bool is_source = lane->lane.is_source;
    struct ibv_qp_attr attributes = {.qp_state = to};
    int mask = 0;
    if (rdma_init_qp_attr(lane->link.id, &attributes, &mask) != 0)
        return errno;
    if (to == IBV_QPS_INIT) {
        attributes.qp_access_flags = is_source ? IBV_ACCESS_REMOTE_READ : 0;
        mask |= IBV_QP_ACCESS_FLAGS;
    } else if (to == IBV_QPS_RTR) {
        lane->link.reads = least(attributes.max_dest_rd_atomic, device->reads_in);
        attributes.max_dest_rd_atomic = is_source ? lane->link.reads : 0;
    } else {
        attributes.max_rd_atomic =
            is_source ? 0 : least(attributes.max_rd_atomic, device->reads_out);
        attributes.timeout = ACK_TIMEOUT;
        attributes.retry_cnt = RETRIES;
    }
    return ibv_modify_qp(lane->link.qp, &attributes, mask);
}

static int make_windows(struct verbs_link *link, uint32_t count)
{
    link->windows = calloc(count, sizeof(*link->windows));
    if (link->windows == NULL)
        return ENOMEM;
    while (link->window_count < count) {
        struct verbs_window *window = &link->windows[link->window_count];
        window->mw = ibv_alloc_mw(link->device->pd, IBV_MW_TYPE_2);
        if (window->mw == NULL)
            return errno;
        link->window_count++;
    }
    return 0;
}

/* 0 or an errno; take_apart also takes what was made of a half. */
static int make_queue_pair(struct verbs_lane *lane)
{
    struct verbs_link *link = &lane->link;
    size_t device = (size_t)(link->device - transport_of(lane)->devices);
    uint32_t windows = lane->lane.is_source && link->device->has_windows
                           ? lane->lane.transport->traits.lane_blocks
                           : 0;
    uint32_t requests = lane->lane.is_source ? windows + 1 : VERBS_READS;
    link->cq = ibv_create_cq(link->device->context, (int)requests + 1, lane,
                             verbs_thread_of(lane)->channels[device].channel, 0);
    if (link->cq == NULL)
        return errno;
    struct ibv_qp_init_attr wanted = {
        .qp_context = lane,
        .send_cq = link->cq,
        .recv_cq = link->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = requests, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    link->qp = ibv_create_qp(link->device->pd, &wanted);
    if (link->qp == NULL)
        return errno;
    int error = advance(lane, IBV_QPS_INIT);
    return error == 0 && windows > 0 ? make_windows(link, windows) : error;
}

static int make_ready(struct verbs_lane *lane)
{
    int error = advance(lane, IBV_QPS_RTR);
    return error != 0 ? error : advance(lane, IBV_QPS_RTS);
}

static struct rdma_conn_param conn_param(const struct verbs_lane *lane, const uint8_t *greeting)
{
    const struct verbs_link *link = &lane->link;
    bool is_source = lane->lane.is_source;
    return (struct rdma_conn_param){
        .private_data = greeting,
        .private_data_len = VERBS_GREETING_BYTES,
        .responder_resources = is_source ? link->reads : 0,
        .initiator_depth = is_source ? 0 : least(link->device->reads_out, UINT8_MAX),
        .flow_control = 1,
        .retry_count = RETRIES,
        .rnr_retry_count = RETRIES,
        .qp_num = link->qp->qp_num,
    };
}

static void is_up(struct verbs_lane *lane)
{
    if (!lane->link.lost)
        tell(lane, &lane->link.up_post);
}

/* ---- source ---- */

/* An event, out of librdmacm's hands. */
struct event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id;
    uint8_t private_data_len;
    uint8_t private_data[256];
};

/* The lane that waits for this nonce, which is used up now; NULL: none does. */
static struct verbs_lane *claim(struct verbs_transport *transport, const uint8_t *nonce)
{
    struct verbs_lane *found = NULL;
    (void)pthread_mutex_lock(&transport->lock);
    kvf_list_for_each (node, &transport->invites) {
        struct verbs_lane *lane = kvf_container(node, struct verbs_lane, link.invite_node);
        if (lane_nonce_equal(nonce, &lane->nonces.connect))
            found = lane;
    }
    if (found != NULL)
        kvf_list_remove(&found->link.invite_node);
    (void)pthread_mutex_unlock(&transport->lock);
    return found;
}

static void refuse(struct rdma_cm_id *id)
{
    (void)rdma_reject(id, NULL, 0);
    (void)rdma_destroy_id(id);
}

static int accept_lane(struct verbs_lane *lane)
{
    uint8_t greeting[VERBS_GREETING_BYTES];
    verbs_greeting_write(&lane->nonces.accept, greeting);
    int error = make_queue_pair(lane);
    if (error == 0)
        error = make_ready(lane);
    if (error != 0)
        return error;
    struct rdma_conn_param param = conn_param(lane, greeting);
    return rdma_accept(lane->link.id, &param) == 0 ? 0 : errno;
}

static void connect_requested(struct verbs_transport *transport, const struct event *event)
{
    const uint8_t *nonce = verbs_greeting_nonce(event->private_data, event->private_data_len);
    struct verbs_device *device = verbs_device_find(transport, event->id->verbs);
    struct verbs_lane *lane = nonce != NULL && device != NULL ? claim(transport, nonce) : NULL;
    if (lane == NULL) {
        lane_count(&transport->base.counters.protocol_errors, 1);
        refuse(event->id);
        return;
    }
    lane->link.device = device;
    lane->link.id = event->id;
    lane->link.id->context = lane;
    int error = accept_lane(lane);
    if (error == 0)
        return;
    (void)rdma_reject(event->id, NULL, 0);
    take_apart(&lane->link);
    lose(lane, gone(error));
}

/* ---- consumer ---- */

/* One address. 0 or an errno. The answer is an event. */
static int connect_one(struct verbs_lane *lane, unsigned index)
{
    struct verbs_transport *transport = transport_of(lane);
    struct sockaddr *address = (struct sockaddr *)&lane->addresses.at[index];
    struct sockaddr_storage from;
    bool leaves_by_device =
        lane->device != KVF_ANY_DEVICE &&
        verbs_address_towards(&transport->devices[lane->device], address, &from);
    if (rdma_create_id(transport->events, &lane->link.id, lane, RDMA_PS_TCP) != 0)
        return errno;
    if (rdma_resolve_addr(lane->link.id, leaves_by_device ? (struct sockaddr *)&from : NULL,
                          address, RESOLVE_MS) != 0)
        return errno;
    return 0;
}

static void connect_next(struct verbs_lane *lane, int error)
{
    take_apart(&lane->link);
    while (lane->addresses.next < lane->addresses.count) {
        error = connect_one(lane, lane->addresses.next++);
        if (error == 0)
            return;
        take_apart(&lane->link);
    }
    lose(lane, gone(error));
}

static void run_connect(struct kvf_post *post)
{
    connect_next(kvf_container(post, struct verbs_lane, link.connect_post), 0);
}

static void address_resolved(struct verbs_lane *lane)
{
    lane->link.device = verbs_device_find(transport_of(lane), lane->link.id->verbs);
    if (lane->link.device == NULL)
        connect_next(lane, ENODEV);
    else if (rdma_resolve_route(lane->link.id, RESOLVE_MS) != 0)
        connect_next(lane, errno);
}

static void route_resolved(struct verbs_lane *lane)
{
    uint8_t greeting[VERBS_GREETING_BYTES];
    int error = make_queue_pair(lane);
    if (error == 0) {
        verbs_greeting_write(&lane->nonces.connect, greeting);
        struct rdma_conn_param param = conn_param(lane, greeting);
        error = rdma_connect(lane->link.id, &param) == 0 ? 0 : errno;
    }
    if (error != 0)
        connect_next(lane, error);
}

static void answered(struct verbs_lane *lane, const struct event *event)
{
    const uint8_t *nonce = verbs_greeting_nonce(event->private_data, event->private_data_len);
    if (nonce == NULL || !lane_nonce_equal(nonce, &lane->nonces.accept)) {
        take_apart(&lane->link);
        lose(lane, lane_fail(nonce == NULL ? KVF_PROTOCOL : KVF_DENIED, 0));
        return;
    }
    int error = make_ready(lane);
    if (error == 0 && rdma_establish(lane->link.id) != 0)
        error = errno;
    if (error != 0) {
        lose(lane, gone(error));
        return;
    }
    lane->link.connected = true;
    is_up(lane);
}

/* ---- events ---- */

static void handle_lane_event(struct verbs_lane *lane, const struct event *event)
{
    switch (event->type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        address_resolved(lane);
        return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        route_resolved(lane);
        return;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        answered(lane, event);
        return;
    case RDMA_CM_EVENT_ESTABLISHED:
        lane->link.connected = true;
        is_up(lane);
        return;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
        if (!lane->lane.is_source && !lane->link.lost)
            connect_next(lane, event->status);
        else
            lose(lane, gone(event->status));
        return;
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        lose(lane, gone(0));
        return;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
    case RDMA_CM_EVENT_ADDR_CHANGE:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return;
    }
}

/* An id is destroyed only when its events are acknowledged: first the copy, then the work. */
static bool next_event(struct rdma_event_channel *channel, struct event *event)
{
    struct rdma_cm_event *got;
    if (rdma_get_cm_event(channel, &got) != 0)
        return false;
    *event = (struct event){.type = got->event, .status = got->status, .id = got->id};
    if (got->param.conn.private_data != NULL) {
        event->private_data_len = got->param.conn.private_data_len;
        memcpy(event->private_data, got->param.conn.private_data, event->private_data_len);
    }
    (void)rdma_ack_cm_event(got);
    return true;
}

static void events_ready(struct kvf_watch *watch, uint32_t what)
{
    struct verbs_transport *transport = kvf_container(watch, struct verbs_transport, events_watch);
    struct event event;
    (void)what;
    while (next_event(transport->events, &event)) {
        if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST)
            connect_requested(transport, &event);
        else if (event.id->context != NULL)
            handle_lane_event(event.id->context, &event);
    }
}

/* What befalls a queue pair without a word from rdma_cm. */
static void async_ready(struct kvf_watch *watch, uint32_t what)
{
    struct verbs_device *device = kvf_container(watch, struct verbs_device, async);
    struct ibv_async_event event;
    (void)what;
    while (ibv_get_async_event(device->context, &event) == 0) {
        struct verbs_lane *lane = NULL;
        if (event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
            event.event_type == IBV_EVENT_QP_ACCESS_ERR)
            lane = event.element.qp->qp_context;
        else if (event.event_type == IBV_EVENT_CQ_ERR)
            lane = event.element.cq->cq_context;
        if (lane != NULL)
            lose(lane, gone(0));
        ibv_ack_async_event(&event);
    }
}

/* ---- start and end ---- */

static void run_part(struct kvf_post *post)
{
    struct verbs_lane *lane = kvf_container(post, struct verbs_lane, link.part_post);
    struct verbs_transport *transport = transport_of(lane);
    (void)pthread_mutex_lock(&transport->lock);
    kvf_list_remove(&lane->link.invite_node);
    (void)pthread_mutex_unlock(&transport->lock);
    take_apart(&lane->link);
    tell(lane, &lane->link.parted_post);
}

void verbs_link_init(struct verbs_link *link)
{
    kvf_list_init(&link->invite_node);
    link->connect_post.run = run_connect;
    link->part_post.run = run_part;
    link->up_post.run = verbs_lane_up;
    link->lost_post.run = verbs_lane_lost;
    link->parted_post.run = verbs_lane_parted;
}

struct kvf_status verbs_control_watch(struct verbs_transport *transport)
{
    transport->events_watch =
        (struct kvf_watch){.fd = transport->events->fd, .events = EPOLLIN, .ready = events_ready};
    KVF_TRY(kvf_watch_start(transport->control.loop, &transport->events_watch));
    for (size_t i = 0; i < transport->device_count; i++) {
        struct verbs_device *device = &transport->devices[i];
        device->async = (struct kvf_watch){
            .fd = device->context->async_fd, .events = EPOLLIN, .ready = async_ready};
        KVF_TRY(kvf_watch_start(transport->control.loop, &device->async));
    }
    return kvf_ok();
}

void verbs_control_unwatch(struct verbs_transport *transport)
{
    kvf_watch_stop(transport->control.loop, &transport->events_watch);
    for (size_t i = 0; i < transport->device_count; i++)
        kvf_watch_stop(transport->control.loop, &transport->devices[i].async);
}
