/* Links: connected, heard, turned into a UCX worker with an endpoint, handed to the lane's thread; and taken apart again.
 * All on the control thread.
 *
 * The consumer makes its worker when it has a connection, says nonce and address, and connects its endpoint when it has
 * heard the source's. The source answers when its endpoint is there: whoever is UP can be spoken to. */
#include "transport/ucx.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/epoll.h>

#define DRAIN_NS KVF_NS_PER_S
#define DRAIN_LOOK_NS (2 * KVF_NS_PER_MS)
#define DRAIN_ROUNDS 64u /* calls of progress, then the other links have their turn */

static struct ucx_lane *lane_of(struct ucx_link *link)
{
    return kvf_container(link, struct ucx_lane, link);
}

static struct ucx_transport *transport_of(struct ucx_link *link)
{
    return ucx_transport_of(lane_of(link)->lane.transport);
}

static struct kvf_loop *control_loop(struct ucx_link *link)
{
    return transport_of(link)->control.loop;
}

static struct kvf_loop *lane_loop(struct ucx_link *link)
{
    return lane_of(link)->lane.thread->loop;
}

static bool is_source(struct ucx_link *link)
{
    return lane_of(link)->lane.is_source;
}

static void set_state(struct ucx_link *link, enum ucx_link_state to)
{
    static const bool allowed[][UCX_LINK_PARTING + 1] = {
        [UCX_LINK_IDLE] =
            {[UCX_LINK_CONNECTING] = true, [UCX_LINK_HEARING] = true, [UCX_LINK_PARTING] = true},
        [UCX_LINK_CONNECTING] = {[UCX_LINK_HEARING] = true, [UCX_LINK_PARTING] = true},
        [UCX_LINK_HEARING] = {[UCX_LINK_UP] = true, [UCX_LINK_PARTING] = true},
        [UCX_LINK_UP] = {[UCX_LINK_PARTING] = true},
        [UCX_LINK_PARTING] = {false},
    };
    kvf_assert(allowed[link->state][to]);
    link->state = to;
}

/* The lane's thread ends the lane, and that takes the link apart. Until then nothing is heard. */
static void lose(struct ucx_link *link, struct kvf_status why)
{
    kvf_watch_stop(control_loop(link), &link->watch);
    if (link->is_lost)
        return;
    link->is_lost = true;
    link->why = why;
    kvf_loop_post(lane_loop(link), &link->lost_post);
}

/* ---- UCX's part ---- */

static bool make_worker(struct ucx_link *link)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_PIECE_ID,
        .cb = ucx_consumer_announced,
        .arg = lane_of(link),
    };
    ucs_status_t status =
        ucx.ucp_worker_create(transport_of(link)->context, &params, &link->worker);
    if (status == UCS_OK)
        status = ucx.ucp_worker_set_am_recv_handler(link->worker, &handler);
    else
        link->worker = NULL;
    if (status != UCS_OK)
        lose(link, lane_fail(KVF_UNAVAILABLE, status));
    return status == UCS_OK;
}

static void endpoint_failed(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    ucx_lane_break(argument, lane_fail(KVF_UNAVAILABLE, status));
}

/* The other one's address is bytes that UCX believes: it comes from who knew the nonce. */
static bool make_endpoint(struct ucx_link *link)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(link->heard + UCX_HELLO_HEAD_BYTES),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = endpoint_failed, .arg = lane_of(link)},
    };
    ucs_status_t status = ucx.ucp_ep_create(link->worker, &params, &link->endpoint);
    if (status != UCS_OK) {
        link->endpoint = NULL;
        lose(link, lane_fail(KVF_UNAVAILABLE, status));
    }
    return status == UCS_OK;
}

/* A hello fits into any fresh socket's buffer; one that does not go out whole is an error. */
static bool say_hello(struct ucx_link *link, const struct kvf_nonce *nonce)
{
    uint8_t hello[UCX_HELLO_MAX_BYTES];
    ucp_address_t *address;
    size_t address_bytes, bytes = 0;
    ucs_status_t status = ucx.ucp_worker_get_address(link->worker, &address, &address_bytes);
    if (status != UCS_OK) {
        lose(link, lane_fail(KVF_UNAVAILABLE, status));
        return false;
    }
    if (address_bytes <= UCX_ADDRESS_MAX_BYTES)
        bytes = ucx_hello_write(nonce, address, (uint32_t)address_bytes, hello);
    ucx.ucp_worker_release_address(link->worker, address);
    if (bytes > 0 &&
        send(link->watch.fd, hello, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes)
        return true;
    lose(link, lane_fail(KVF_UNAVAILABLE, bytes > 0 ? errno : 0));
    return false;
}

/* ---- hearing the other one ---- */

static void up(struct ucx_link *link)
{
    kvf_watch_stop(control_loop(link), &link->watch);
    set_state(link, UCX_LINK_UP);
    kvf_loop_post(lane_loop(link), &link->up_post);
}

static void heard_all(struct ucx_link *link)
{
    if (is_source(link)) {
        if (make_worker(link) && make_endpoint(link) &&
            say_hello(link, &lane_of(link)->nonces.accept))
            up(link);
    } else if (!lane_greeting_is(&ucx_greeting, link->heard)) {
        lose(link, lane_fail(KVF_PROTOCOL, 0));
    } else if (!lane_greeting_has_nonce(link->heard, &lane_of(link)->nonces.accept)) {
        lose(link, lane_fail(KVF_DENIED, 0));
    } else if (make_endpoint(link)) {
        up(link);
    }
}

/* How much there is to hear, as far as it is known; 0: what was heard is illegal. Never more than there is: what follows
 * is no part of it. */
static size_t hello_bytes(const struct ucx_link *link)
{
    if (link->heard_bytes < UCX_HELLO_HEAD_BYTES)
        return UCX_HELLO_HEAD_BYTES;
    uint32_t address_bytes = ucx_hello_address_bytes(link->heard);
    return address_bytes > 0 ? UCX_HELLO_HEAD_BYTES + address_bytes : 0;
}

static void hear(struct ucx_link *link)
{
    size_t all;
    while ((all = hello_bytes(link)) > link->heard_bytes) {
        ssize_t got = recv(link->watch.fd, link->heard + link->heard_bytes, all - link->heard_bytes,
                           MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            lose(link, lane_fail(KVF_UNAVAILABLE, got < 0 ? errno : 0));
            return;
        }
        link->heard_bytes += (size_t)got;
    }
    if (all > 0)
        heard_all(link);
    else
        lose(link, lane_fail(KVF_PROTOCOL, 0));
}

/* ---- connecting ---- */

static void part(struct ucx_link *link);

static void run_claimed(struct kvf_post *post)
{
    struct ucx_link *link = kvf_container(post, struct ucx_link, invite.claimed_post);
    link->watch.fd = link->invite.fd;
    if (link->state == UCX_LINK_PARTING) {
        part(link);
        return;
    }
    set_state(link, UCX_LINK_HEARING);
    link->heard_bytes = LANE_GREETING_BYTES; /* the listener has */
    link->watch.events = EPOLLIN;
    struct kvf_status status = kvf_watch_start(control_loop(link), &link->watch);
    if (!kvf_is_ok(status))
        lose(link, status);
}

static void connect_next(struct ucx_link *link, int error)
{
    error = lane_socket_connect(control_loop(link), &link->watch, &link->addresses, error);
    if (error != 0)
        lose(link, lane_fail(KVF_UNAVAILABLE, error));
}

static void run_connect(struct kvf_post *post)
{
    struct ucx_link *link = kvf_container(post, struct ucx_link, connect_post);
    if (link->state == UCX_LINK_PARTING)
        return;
    set_state(link, UCX_LINK_CONNECTING);
    connect_next(link, 0);
}

static void connected(struct ucx_link *link)
{
    int error = lane_socket_answer(&link->watch);
    if (error != 0) {
        connect_next(link, error);
    } else if (make_worker(link) && say_hello(link, &lane_of(link)->nonces.connect)) {
        set_state(link, UCX_LINK_HEARING);
        kvf_watch_change(control_loop(link), &link->watch, EPOLLIN);
    }
}

static void link_ready(struct kvf_watch *watch, uint32_t events)
{
    struct ucx_link *link = kvf_container(watch, struct ucx_link, watch);
    (void)events;
    if (link->state == UCX_LINK_CONNECTING)
        connected(link);
    else
        hear(link);
}

/* ---- taking apart ---- */

/* Nothing of ours is under way any more. The peer is not waited for. */
static bool is_drained(struct ucx_link *link)
{
    return lane_of(link)->under_way == 0 &&
           (!UCS_PTR_IS_PTR(link->closing) ||
            ucx.ucp_request_check_status(link->closing) != UCS_INPROGRESS);
}

/* What did not end by itself ends with the worker: no socket and no queue pair of it is left then. */
static void parted(struct ucx_link *link)
{
    if (UCS_PTR_IS_PTR(link->closing))
        ucx.ucp_request_free(link->closing);
    if (link->worker != NULL)
        ucx.ucp_worker_destroy(link->worker);
    link->endpoint = NULL;
    link->worker = NULL;
    kvf_loop_post(lane_loop(link), &link->parted_post);
}

/* Whatever hangs, the other links have their turn meanwhile. */
static void drain(struct kvf_timer *timer)
{
    struct ucx_link *link = kvf_container(timer, struct ucx_link, drain_timer);
    uint64_t now = kvf_clock_now_ns();
    for (unsigned round = 0; round < DRAIN_ROUNDS && !is_drained(link); round++)
        (void)ucx.ucp_worker_progress(link->worker);
    if (is_drained(link) || now >= link->drain_end_ns)
        parted(link);
    else
        kvf_timer_start(control_loop(link), timer, now + DRAIN_LOOK_NS);
}

static void close_endpoint(struct ucx_link *link)
{
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    link->closing = ucx.ucp_ep_close_nbx(link->endpoint, &force);
    link->drain_end_ns = kvf_clock_now_ns() + DRAIN_NS;
    drain(&link->drain_timer);
}

static void part(struct ucx_link *link)
{
    /* First, so that the other one lets go as well. While the link was up the lane's thread watched it, and has stopped. */
    lane_socket_close(control_loop(link), &link->watch);
    if (link->endpoint != NULL)
        close_endpoint(link);
    else
        parted(link);
}

static void run_part(struct kvf_post *post)
{
    struct ucx_link *link = kvf_container(post, struct ucx_link, part_post);
    bool was_idle = link->state == UCX_LINK_IDLE;
    set_state(link, UCX_LINK_PARTING);
    if (was_idle && is_source(link) &&
        !lane_invite_revoke(&transport_of(link)->listener, &link->invite))
        return; /* run_claimed is on its way */
    part(link);
}

void ucx_link_init(struct ucx_lane *lane)
{
    struct ucx_link *link = &lane->link;
    link->state = UCX_LINK_IDLE;
    link->watch = (struct kvf_watch){.fd = -1, .ready = link_ready};
    link->drain_timer.fire = drain;
    link->connect_post.run = run_connect;
    link->part_post.run = run_part;
    link->up_post.run = ucx_lane_up;
    link->lost_post.run = ucx_lane_lost;
    link->parted_post.run = ucx_lane_parted;
    lane_invite_init(&link->invite, &lane->nonces.connect, control_loop(link), run_claimed);
}
