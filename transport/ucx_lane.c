/* A ucx lane on its thread: from invitation or connect to its end, its worker's progress, its pieces. */
#include "transport/ucx.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define ROUNDS                                                                                     \
    64u /* calls of progress, or 1 MiB that has moved, then the other lanes have their turn */

static struct kvf_loop *lane_loop(const struct ucx_lane *lane)
{
    return lane->lane.thread->loop;
}

static void set_state(struct ucx_lane *lane, enum ucx_lane_state to)
{
    static const bool allowed[][UCX_LANE_OVER + 1] = {
        [UCX_LANE_WAITING] = {[UCX_LANE_CONNECTING] = true, [UCX_LANE_OVER] = true},
        [UCX_LANE_CONNECTING] = {[UCX_LANE_OPEN] = true, [UCX_LANE_OVER] = true},
        [UCX_LANE_OPEN] = {[UCX_LANE_OVER] = true},
        [UCX_LANE_OVER] = {false},
    };
    kvf_assert(allowed[lane->state][to]);
    lane->state = to;
}

/* ---- pieces ---- */

void ucx_lane_break(struct ucx_lane *lane, struct kvf_status reason)
{
    if (kvf_is_ok(lane->broken))
        lane->broken = reason;
}

struct ucx_piece *ucx_piece_begin(struct ucx_lane *lane, struct kvf_lane_block *block,
                                  uint32_t bytes)
{
    kvf_assert(ucx_lane_has_room(lane));
    struct ucx_piece *piece = &lane->pieces[lane->begun++ % UCX_PIECES];
    piece->lane = lane;
    piece->block = block;
    piece->bytes = bytes;
    piece->withdrawn_ns = 0;
    piece->is_done = false;
    block->framed_bytes += bytes;
    lane->under_way++;
    return piece;
}

void ucx_piece_done(struct ucx_piece *piece, void *request, ucs_status_t status)
{
    piece->status = status;
    piece->is_done = true;
    piece->lane->under_way--;
    if (request != NULL)
        ucx.ucp_request_free(request);
}

void ucx_piece_started(struct ucx_lane *lane, struct ucx_piece *piece, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request))
        return;
    if (UCS_PTR_IS_ERR(request))
        ucx_lane_break(lane, lane_fail(KVF_UNAVAILABLE, UCS_PTR_STATUS(request)));
    ucx_piece_done(piece, NULL, UCS_PTR_RAW_STATUS(request));
}

uint64_t ucx_pieces_settle(struct ucx_lane *lane)
{
    uint64_t bytes = 0;
    while (lane->ended < lane->begun && !lane->lane.stopping) {
        const struct ucx_piece *piece = &lane->pieces[lane->ended % UCX_PIECES];
        if (!piece->is_done)
            break;
        lane->ended++;
        bytes += piece->bytes;
        if (lane->lane.is_source)
            ucx_source_done(lane, piece);
        else
            ucx_consumer_done(lane, piece);
    }
    return bytes;
}

/* ---- progress ---- */

static void serve_later(struct ucx_lane *lane)
{
    if (lane->more_is_coming)
        return;
    lane->more_is_coming = true;
    kvf_loop_post(lane_loop(lane), &lane->more_post);
}

/* True: the worker's descriptor will say what comes from now on. */
static bool arm(struct ucx_lane *lane)
{
    ucs_status_t status = ucx.ucp_worker_arm(lane->link.worker);
    if (status != UCS_OK && status != UCS_ERR_BUSY)
        ucx_lane_break(lane, lane_fail(KVF_UNAVAILABLE, status));
    return status == UCS_OK;
}

/* Returns whether there is more to do now. Looks once more when it has armed the worker, for on some devices what came
 * just before raises no event. */
static bool progress(struct ucx_lane *lane)
{
    uint64_t moved = 0;
    bool is_armed = false;
    for (unsigned round = 0; round < ROUNDS && moved < KVF_LANE_PIECE_BYTES; round++) {
        unsigned did = ucx.ucp_worker_progress(lane->link.worker);
        moved += ucx_pieces_settle(lane);
        if (!kvf_is_ok(lane->broken) || lane->lane.stopping)
            return false;
        if (lane->state == UCX_LANE_OPEN && lane->lane.is_source)
            ucx_source_post(lane);
        if (did == 0 && is_armed)
            return false;
        is_armed = did == 0 && arm(lane);
    }
    return true;
}

/* While it connects and while Reads are open the worker is looked at now and then although its descriptor is silent: with
 * soft-RoCE an event gets lost now and then. An idle lane sleeps. */
static void look_again(struct ucx_lane *lane)
{
    bool waits = lane->state == UCX_LANE_CONNECTING || !kvf_list_is_empty(&lane->lane.reads);
    if (waits && !lane->look.armed)
        kvf_timer_start(lane_loop(lane), &lane->look, kvf_clock_now_ns() + UCX_LOOK_NS);
}

/* ---- opening ---- */

static void connected(void *request, ucs_status_t status, void *argument)
{
    struct ucx_lane *lane = argument;
    lane->under_way--;
    lane->is_connected = status == UCS_OK;
    if (status != UCS_OK)
        ucx_lane_break(lane, lane_fail(KVF_UNAVAILABLE, status));
    if (request != NULL)
        ucx.ucp_request_free(request);
}

/* Nothing is sent before both endpoints are connected: UCX 1.13 over TCP ends the process when it has kept a message for
 * a connection that comes about, and the peer has gone by then. A flush waits for the connection and sends nothing. */
static void connect_endpoint(struct ucx_lane *lane)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = connected,
        .user_data = lane,
    };
    lane->under_way++;
    ucs_status_ptr_t request = ucx.ucp_ep_flush_nbx(lane->link.endpoint, &param);
    if (!UCS_PTR_IS_PTR(request))
        connected(NULL, UCS_PTR_RAW_STATUS(request), lane);
}

static bool say_connected(struct ucx_lane *lane)
{
    const uint8_t byte = UCX_CONNECTED;
    if (send(lane->link.watch.fd, &byte, sizeof(byte), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(byte))
        return true;
    ucx_lane_break(lane, lane_fail(KVF_UNAVAILABLE, errno));
    return false;
}

static bool open_if_connected(struct ucx_lane *lane)
{
    if (lane->state != UCX_LANE_CONNECTING || !lane->is_connected || lane->lane.stopping ||
        !kvf_is_ok(lane->broken))
        return false;
    if (lane->lane.is_source ? !lane->consumer_is_connected : !say_connected(lane))
        return false;
    set_state(lane, UCX_LANE_OPEN);
    kvf_timer_stop(lane_loop(lane), &lane->timer);
    lane_opened(&lane->lane);
    return true;
}

/* ---- serving ---- */

static bool is_up(const struct ucx_lane *lane)
{
    return lane->state == UCX_LANE_CONNECTING || lane->state == UCX_LANE_OPEN;
}

static void serve(struct ucx_lane *lane)
{
    if (!is_up(lane))
        return;
    bool has_more = progress(lane);
    if (open_if_connected(lane))
        has_more = true; /* what has landed in the meantime */
    if (!kvf_is_ok(lane->broken))
        lane_end(&lane->lane, lane->broken);
    else if (has_more)
        serve_later(lane);
    else if (!lane->lane.stopping)
        look_again(lane);
    lane_flush(&lane->lane, has_more);
}

static void look(struct kvf_timer *timer)
{
    serve(kvf_container(timer, struct ucx_lane, look));
}

static void serve_more(struct kvf_post *post)
{
    struct ucx_lane *lane = kvf_container(post, struct ucx_lane, more_post);
    lane->more_is_coming = false;
    serve(lane);
}

static void worker_ready(struct kvf_watch *watch, uint32_t events)
{
    (void)events;
    serve(kvf_container(watch, struct ucx_lane, worker_watch));
}

/* All that the link says is UCX_CONNECTED, once, to a source: further bytes are illegal, an end is an end. What has come
 * over UCX by then still counts. */
static void link_ready(struct kvf_watch *watch, uint32_t events)
{
    struct ucx_lane *lane = kvf_container(watch, struct ucx_lane, link.watch);
    uint8_t byte;
    (void)events;
    ssize_t got = recv(watch->fd, &byte, sizeof(byte), MSG_DONTWAIT);
    int error = errno;
    if (got < 0 && (error == EAGAIN || error == EINTR))
        return;
    bool is_news =
        got > 0 && byte == UCX_CONNECTED && lane->lane.is_source && !lane->consumer_is_connected;
    lane->consumer_is_connected |= is_news;
    serve(lane);
    if (is_news)
        return;
    if (got > 0)
        lane_end(&lane->lane, lane_fail(KVF_PROTOCOL, 0));
    else
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, got < 0 ? error : 0));
    lane_flush(&lane->lane, false);
}

/* ---- taking back ---- */

static bool is_under_way(const struct kvf_lane_block *block)
{
    return block->framed_bytes > block->done_bytes;
}

/* When the first of the pieces whose block was taken back is overdue; 0: there is none. */
static uint64_t first_overdue_ns(const struct ucx_lane *lane)
{
    uint64_t first = 0;
    for (uint64_t i = lane->ended; i < lane->begun; i++) {
        uint64_t at = lane->pieces[i % UCX_PIECES].withdrawn_ns;
        if (at != 0 && (first == 0 || at + UCX_OVERDUE_NS < first))
            first = at + UCX_OVERDUE_NS;
    }
    return first;
}

/* A stopped peer raises no error, and a rendezvous cannot be taken back alone: the lane ends, at both ends. */
static void overdue(struct ucx_lane *lane)
{
    uint64_t first = first_overdue_ns(lane);
    if (first == 0)
        return;
    if (kvf_clock_now_ns() < first)
        kvf_timer_start(lane_loop(lane), &lane->timer, first);
    else
        lane_end(&lane->lane, lane_fail(KVF_DEADLINE, 0));
}

void ucx_block_withdraw(struct ucx_lane *lane, struct kvf_lane_block *block)
{
    if (!is_under_way(block)) {
        lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
        return;
    }
    uint64_t now = kvf_clock_now_ns();
    for (uint64_t i = lane->ended; i < lane->begun; i++) {
        struct ucx_piece *piece = &lane->pieces[i % UCX_PIECES];
        if (piece->block == block && piece->withdrawn_ns == 0)
            piece->withdrawn_ns = now;
    }
    if (!lane->timer.armed)
        kvf_timer_start(lane_loop(lane), &lane->timer, now + UCX_OVERDUE_NS);
}

static void timer_fired(struct kvf_timer *timer)
{
    struct ucx_lane *lane = kvf_container(timer, struct ucx_lane, timer);
    if (lane->state != UCX_LANE_OPEN)
        lane_end(&lane->lane, lane_fail(KVF_DEADLINE, 0));
    else
        overdue(lane);
    lane_flush(&lane->lane, false);
}

/* ---- what the control thread says ---- */

static struct kvf_status watch_both(struct ucx_lane *lane)
{
    int fd;
    ucs_status_t status = ucx.ucp_worker_get_efd(lane->link.worker, &fd);
    if (status != UCS_OK)
        return lane_fail(KVF_UNAVAILABLE, status);
    lane->worker_watch = (struct kvf_watch){.fd = fd, .events = EPOLLIN, .ready = worker_ready};
    KVF_TRY(kvf_watch_start(lane_loop(lane), &lane->worker_watch));
    lane->link.watch.events = EPOLLIN;
    lane->link.watch.ready = link_ready;
    return kvf_watch_start(lane_loop(lane), &lane->link.watch);
}

void ucx_lane_up(struct kvf_post *post)
{
    struct ucx_lane *lane = kvf_container(post, struct ucx_lane, link.up_post);
    if (lane->lane.stopping)
        return;
    set_state(lane, UCX_LANE_CONNECTING);
    struct kvf_status status = watch_both(lane);
    if (kvf_is_ok(status)) {
        connect_endpoint(lane);
        serve(lane); /* arms the worker */
    } else {
        lane_end(&lane->lane, status);
        lane_flush(&lane->lane, false);
    }
}

void ucx_lane_lost(struct kvf_post *post)
{
    struct ucx_lane *lane = kvf_container(post, struct ucx_lane, link.lost_post);
    lane_end(&lane->lane, lane->link.why);
    lane_flush(&lane->lane, false);
}

void ucx_lane_parted(struct kvf_post *post)
{
    struct ucx_lane *lane = kvf_container(post, struct ucx_lane, link.parted_post);
    lane_end_blocks(&lane->lane);
    lane_gone(&lane->lane);
}

/* ---- start and end ---- */

static void start_timer(struct ucx_lane *lane)
{
    lane->timer.fire = timer_fired;
    lane->look.fire = look;
    lane->more_post.run = serve_more;
    kvf_timer_start(lane_loop(lane), &lane->timer, lane->deadline_ns);
}

static void source_start(struct kvf_lane *base)
{
    start_timer(ucx_lane_of(base));
}

static void consumer_start(struct kvf_lane *base)
{
    struct ucx_lane *lane = ucx_lane_of(base);
    start_timer(lane);
    kvf_loop_post(ucx_transport_of(base->transport)->control.loop, &lane->link.connect_post);
}

/* Blocks end when the control thread has taken the connection apart, not before. */
static void ucx_stop(struct kvf_lane *base)
{
    struct ucx_lane *lane = ucx_lane_of(base);
    kvf_timer_stop(lane_loop(lane), &lane->timer);
    kvf_timer_stop(lane_loop(lane), &lane->look);
    if (is_up(lane)) {
        kvf_watch_stop(lane_loop(lane), &lane->worker_watch);
        kvf_watch_stop(lane_loop(lane), &lane->link.watch);
    }
    set_state(lane, UCX_LANE_OVER);
    kvf_loop_post(ucx_transport_of(base->transport)->control.loop, &lane->link.part_post);
}

static void ucx_destroy(struct kvf_lane *base)
{
    free(ucx_lane_of(base));
}

static void source_adopt(struct kvf_lane *base, struct kvf_lane_read *read)
{
    struct ucx_lane *lane = ucx_lane_of(base);
    lane_turns_adopt(&lane->turns, base, read);
    for (uint32_t i = 0; i < read->block_count; i++)
        if (!lane_block_is_over(&read->blocks[i]))
            ucx_source_landed(lane, &read->blocks[i]);
}

static void source_landed(struct kvf_lane *base, struct kvf_lane_block *block)
{
    ucx_source_landed(ucx_lane_of(base), block);
}

static void source_withdraw(struct kvf_lane *base, struct kvf_lane_block *block)
{
    lane_turns_unready(block);
    ucx_block_withdraw(ucx_lane_of(base), block);
}

static void source_settle(struct kvf_lane *base)
{
    struct ucx_lane *lane = ucx_lane_of(base);
    if (lane->state != UCX_LANE_OPEN || !ucx_lane_has_room(lane))
        return;
    ucx_source_post(lane);
    serve(lane);
}

static void consumer_withdraw(struct kvf_lane *base, struct kvf_lane_block *block)
{
    ucx_block_withdraw(ucx_lane_of(base), block);
}

static void consumer_settle(struct kvf_lane *base)
{
    struct ucx_lane *lane = ucx_lane_of(base);
    if (lane->state == UCX_LANE_OPEN)
        look_again(lane);
}

const struct lane_side ucx_source_side = {
    .start = source_start,
    .adopt = source_adopt,
    .landed = source_landed,
    .withdraw = source_withdraw,
    .settle = source_settle,
    .stop = ucx_stop,
    .destroy = ucx_destroy,
};

const struct lane_side ucx_consumer_side = {
    .start = consumer_start,
    .withdraw = consumer_withdraw,
    .settle = consumer_settle,
    .stop = ucx_stop,
    .destroy = ucx_destroy,
};
