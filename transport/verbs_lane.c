/* A verbs lane on its thread: from invitation or connect to its end, and its completions. */
#include "transport/verbs.h"

#include <stdlib.h>
#include <sys/epoll.h>

#define ROUNDS 4 /* batches of completions, then the other lanes have their turn */

static struct kvf_loop *lane_loop(const struct verbs_lane *lane)
{
    return lane->lane.thread->loop;
}

static void set_state(struct verbs_lane *lane, enum verbs_lane_state to)
{
    static const bool allowed[][VERBS_LANE_OVER + 1] = {
        [VERBS_LANE_WAITING] = {[VERBS_LANE_OPEN] = true, [VERBS_LANE_OVER] = true},
        [VERBS_LANE_OPEN] = {[VERBS_LANE_OVER] = true},
        [VERBS_LANE_OVER] = {false},
    };
    kvf_assert(allowed[lane->state][to]);
    lane->state = to;
}

/* ---- completions ---- */

static void handle(struct verbs_lane *lane, const struct ibv_wc *completions, int count)
{
    if (lane->lane.is_source)
        verbs_source_done(lane, completions, count);
    else
        verbs_consumer_done(lane, completions, count);
}

static void serve_later(struct verbs_lane *lane)
{
    if (lane->more_is_coming)
        return;
    lane->more_is_coming = true;
    kvf_loop_post(lane_loop(lane), &lane->more_post);
}

/* Asks for an event when there is nothing left, and looks once more, for what came in between
 * raises none. */
static void serve(struct verbs_lane *lane)
{
    struct ibv_wc completions[VERBS_BATCH];
    bool is_armed = false;
    for (unsigned round = 0; round < ROUNDS && !lane->lane.stopping;) {
        int count = ibv_poll_cq(lane->link.cq, (int)VERBS_BATCH, completions);
        if (count > 0) {
            handle(lane, completions, count);
            round++;
        } else if (count < 0) {
            lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, -count));
        } else if (is_armed) {
            break;
        } else {
            (void)ibv_req_notify_cq(lane->link.cq, 0);
            is_armed = true;
        }
    }
    if (!is_armed && !lane->lane.stopping)
        serve_later(lane);
    lane_flush(&lane->lane, lane->more_is_coming);
}

static void serve_more(struct kvf_post *post)
{
    struct verbs_lane *lane = kvf_container(post, struct verbs_lane, more_post);
    lane->more_is_coming = false;
    if (!lane->lane.stopping)
        serve(lane);
}

/* While an event is not acknowledged its queue is not destroyed. A lane that is stopping leaves its
 * completions lie: they go with the queue. */
void verbs_channel_ready(struct kvf_watch *watch, uint32_t events)
{
    struct verbs_channel *channel = kvf_container(watch, struct verbs_channel, watch);
    struct ibv_cq *cq;
    void *context;
    (void)events;
    while (ibv_get_cq_event(channel->channel, &cq, &context) == 0) {
        struct verbs_lane *lane = context;
        if (lane->state == VERBS_LANE_OPEN)
            serve(lane);
        ibv_ack_cq_events(cq, 1);
    }
}

/* ---- what the control thread says ---- */

void verbs_lane_up(struct kvf_post *post)
{
    struct verbs_lane *lane = kvf_container(post, struct verbs_lane, link.up_post);
    if (lane->lane.stopping)
        return;
    set_state(lane, VERBS_LANE_OPEN);
    kvf_timer_stop(lane_loop(lane), &lane->timer);
    lane_opened(&lane->lane);
    if (lane->lane.is_source) {
        verbs_source_up(lane);
        verbs_source_post(lane);
    } else {
        verbs_consumer_post(lane);
    }
    serve(lane); /* arms the queue */
}

void verbs_lane_lost(struct kvf_post *post)
{
    struct verbs_lane *lane = kvf_container(post, struct verbs_lane, link.lost_post);
    lane_end(&lane->lane, lane->link.why);
    lane_flush(&lane->lane, false);
}

void verbs_lane_parted(struct kvf_post *post)
{
    struct verbs_lane *lane = kvf_container(post, struct verbs_lane, link.parted_post);
    lane_end_blocks(&lane->lane);
    lane_gone(&lane->lane);
}

/* ---- start and end ---- */

static void deadline_passed(struct kvf_timer *timer)
{
    struct verbs_lane *lane = kvf_container(timer, struct verbs_lane, timer);
    lane_end(&lane->lane, lane_fail(KVF_DEADLINE, 0));
    lane_flush(&lane->lane, false);
}

static void start_timer(struct verbs_lane *lane)
{
    lane->timer.fire = deadline_passed;
    lane->more_post.run = serve_more;
    kvf_timer_start(lane_loop(lane), &lane->timer, lane->deadline_ns);
}

static void source_start(struct kvf_lane *base)
{
    start_timer(verbs_lane_of(base));
}

static void consumer_start(struct kvf_lane *base)
{
    struct verbs_lane *lane = verbs_lane_of(base);
    start_timer(lane);
    kvf_loop_post(verbs_transport_of(base->transport)->control.loop, &lane->link.connect_post);
}

/* Blocks end when the control thread has taken the connection apart, not before. */
static void verbs_stop(struct kvf_lane *base)
{
    struct verbs_lane *lane = verbs_lane_of(base);
    kvf_timer_stop(lane_loop(lane), &lane->timer);
    set_state(lane, VERBS_LANE_OVER);
    kvf_loop_post(verbs_transport_of(base->transport)->control.loop, &lane->link.part_post);
}

static void verbs_destroy(struct kvf_lane *base)
{
    free(verbs_lane_of(base));
}

static void source_adopt(struct kvf_lane *base, struct kvf_lane_read *read)
{
    for (uint32_t i = 0; i < read->block_count; i++)
        if (!lane_block_is_over(&read->blocks[i]))
            verbs_source_landed(verbs_lane_of(base), &read->blocks[i]);
}

static void source_landed(struct kvf_lane *base, struct kvf_lane_block *block)
{
    verbs_source_landed(verbs_lane_of(base), block);
}

static void source_withdraw(struct kvf_lane *base, struct kvf_lane_block *block)
{
    verbs_source_withdraw(verbs_lane_of(base), block);
}

static void source_release(struct kvf_lane *base, struct kvf_lane_block *block)
{
    verbs_source_release(verbs_lane_of(base), block);
}

static void source_settle(struct kvf_lane *base)
{
    struct verbs_lane *lane = verbs_lane_of(base);
    if (lane->state == VERBS_LANE_OPEN)
        verbs_source_post(lane);
}

static void consumer_adopt(struct kvf_lane *base, struct kvf_lane_read *read)
{
    lane_turns_adopt(&verbs_lane_of(base)->consumer.turns, base, read);
}

static void consumer_taken(struct kvf_lane *base, struct kvf_lane_block *block)
{
    verbs_consumer_taken(verbs_lane_of(base), block);
}

static void consumer_withdraw(struct kvf_lane *base, struct kvf_lane_block *block)
{
    verbs_consumer_withdraw(verbs_lane_of(base), block);
}

static void consumer_settle(struct kvf_lane *base)
{
    struct verbs_lane *lane = verbs_lane_of(base);
    if (lane->state == VERBS_LANE_OPEN)
        verbs_consumer_post(lane);
}

const struct lane_side verbs_source_side = {
    .start = source_start,
    .adopt = source_adopt,
    .landed = source_landed,
    .withdraw = source_withdraw,
    .release = source_release,
    .settle = source_settle,
    .stop = verbs_stop,
    .destroy = verbs_destroy,
};

const struct lane_side verbs_consumer_side = {
    .start = consumer_start,
    .adopt = consumer_adopt,
    .withdraw = consumer_withdraw,
    .taken = consumer_taken,
    .settle = consumer_settle,
    .stop = verbs_stop,
    .destroy = verbs_destroy,
};
