/* A source's blocks: a block that is whole gets a window, its token goes to the owner when the
 * window is bound, and the window is invalidated when the consumer has released.
 *
 *   no window    it is not whole, or not posted yet; can end at once
 *   BINDING      posted; what is asked meanwhile is done when it has completed
 *   BOUND        the token is out: only a release, or the end of the lane, ends the block
 *   INVALIDATING the block ends when that has completed
 *
 * A window has one work request under way at most, so a send queue as long as there are windows
 * never overflows; they complete in their order, and only the last of a post says so.
 *
 * On a device without windows a block that is whole has its token at once, and ends with its
 * release: whoever had the token can still read there, which is why there is one tenant then. */
#include "transport/verbs.h"

#include <string.h>

struct batch {
    struct ibv_send_wr requests[VERBS_BATCH];
    unsigned count;
};

void verbs_source_init(struct verbs_source *source)
{
    kvf_list_init(&source->whole);
    kvf_list_init(&source->free);
    kvf_list_init(&source->posted);
    kvf_list_init(&source->doomed);
}

static struct verbs_window *window_of(const struct kvf_lane_block *block)
{
    return block->window;
}

static bool token_is_out(const struct kvf_lane_block *block)
{
    return block->token_bytes > 0;
}

static bool is_unwanted(const struct kvf_lane_block *block)
{
    return atomic_load(&block->withdrawn) || atomic_load(&block->released);
}

static void give_token(struct verbs_lane *lane, struct kvf_lane_block *block, uint32_t key,
                       uint64_t address)
{
    struct verbs_token token = {.address = address, .key = key};
    verbs_token_write(&token, block->token);
    block->token_bytes = VERBS_TOKEN_BYTES;
    lane_block_token(&lane->lane, block);
}

static void end(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    bool could_be_read = token_is_out(block) && !atomic_load(&block->withdrawn);
    if (could_be_read)
        lane_count(&lane->lane.transport->counters.sent_bytes, block->length);
    lane_block_end(&lane->lane, block, could_be_read ? kvf_ok() : lane_fail(KVF_CANCELLED, 0));
}

/* ---- what the owner says ---- */

void verbs_source_landed(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    bool is_whole =
        atomic_load_explicit(&block->ready_bytes, memory_order_acquire) == block->length;
    if (is_whole && block->window == NULL && !token_is_out(block) &&
        kvf_list_is_empty(&block->node))
        kvf_list_push_back(&lane->source.whole, &block->node);
}

void verbs_source_withdraw(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    if (block->window == NULL && !token_is_out(block))
        end(lane, block);
}

static void doom(struct verbs_lane *lane, struct verbs_window *window)
{
    window->state = VERBS_WINDOW_INVALIDATING;
    kvf_list_push_back(&lane->source.doomed, &window->node);
}

void verbs_source_release(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    struct verbs_window *window = window_of(block);
    if (window == NULL)
        end(lane, block);
    else if (window->state == VERBS_WINDOW_BOUND)
        doom(lane, window);
}

void verbs_source_up(struct verbs_lane *lane)
{
    struct verbs_link *link = &lane->link;
    for (uint32_t i = 0; i < link->window_count; i++)
        kvf_list_push_back(&lane->source.free, &link->windows[i].node);
}

/* ---- posting ---- */

static bool flush(struct verbs_lane *lane, struct batch *batch, bool is_last)
{
    struct ibv_send_wr *failed;
    if (batch->count == 0)
        return true;
    for (unsigned i = 0; i + 1 < batch->count; i++)
        batch->requests[i].next = &batch->requests[i + 1];
    if (is_last)
        batch->requests[batch->count - 1].send_flags = IBV_SEND_SIGNALED;
    int error = ibv_post_send(lane->link.qp, batch->requests, &failed);
    batch->count = 0;
    if (error != 0)
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, error));
    return error == 0;
}

/* A fresh work request in the batch. NULL: the lane has ended. */
static struct ibv_send_wr *next_request(struct verbs_lane *lane, struct batch *batch,
                                        struct verbs_window *window)
{
    if (batch->count == VERBS_BATCH && !flush(lane, batch, false))
        return NULL;
    struct ibv_send_wr *request = &batch->requests[batch->count++];
    memset(request, 0, sizeof(*request));
    request->wr_id = (uintptr_t)window;
    kvf_list_push_back(&lane->source.posted, &window->node);
    return request;
}

/* The consumer sees the block from address 0 on. */
static bool bind_window(struct verbs_lane *lane, struct batch *batch, struct kvf_lane_block *block)
{
    struct verbs_window *window =
        kvf_container(kvf_list_pop_front(&lane->source.free), struct verbs_window, node);
    struct ibv_send_wr *request = next_request(lane, batch, window);
    if (request == NULL)
        return false;
    window->state = VERBS_WINDOW_BINDING;
    window->block = block;
    block->window = window;
    request->opcode = IBV_WR_BIND_MW;
    request->bind_mw.mw = window->mw;
    request->bind_mw.rkey = ibv_inc_rkey(window->mw->rkey);
    request->bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = verbs_device_region(lane->link.device, block->extent.arena),
        .addr = (uintptr_t)kvf_extent_at(block->extent),
        .length = block->length,
        .mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED,
    };
    return true;
}

static bool invalidate(struct verbs_lane *lane, struct batch *batch, struct verbs_window *window)
{
    struct ibv_send_wr *request = next_request(lane, batch, window);
    if (request == NULL)
        return false;
    request->opcode = IBV_WR_LOCAL_INV;
    request->invalidate_rkey = window->mw->rkey;
    return true;
}

static void offer_without_window(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    const struct ibv_mr *mr = verbs_device_region(lane->link.device, block->extent.arena);
    give_token(lane, block, mr->rkey, (uintptr_t)kvf_extent_at(block->extent));
}

void verbs_source_post(struct verbs_lane *lane)
{
    struct verbs_source *source = &lane->source;
    struct batch batch;
    struct kvf_list *node;
    batch.count = 0;
    while ((node = kvf_list_pop_front(&source->doomed)) != NULL)
        if (!invalidate(lane, &batch, kvf_container(node, struct verbs_window, node)))
            return;
    while ((node = kvf_list_pop_front(&source->whole)) != NULL) {
        struct kvf_lane_block *block = kvf_container(node, struct kvf_lane_block, node);
        if (!lane->link.device->has_windows)
            offer_without_window(lane, block);
        else if (!bind_window(lane, &batch, block))
            return;
    }
    (void)flush(lane, &batch, true);
}

/* ---- completions ---- */

static void window_done(struct verbs_lane *lane, struct verbs_window *window)
{
    struct kvf_lane_block *block = window->block;
    if (window->state == VERBS_WINDOW_BINDING)
        window->mw->rkey =
            ibv_inc_rkey(window->mw->rkey); /* verbs leaves it to us, and not sooner */
    if (window->state == VERBS_WINDOW_INVALIDATING) {
        window->state = VERBS_WINDOW_FREE;
        window->block = NULL;
        block->window = NULL;
        kvf_list_push_back(&lane->source.free, &window->node);
        end(lane, block);
    } else if (is_unwanted(block)) {
        doom(lane, window); /* its token was never told */
    } else {
        window->state = VERBS_WINDOW_BOUND;
        give_token(lane, block, window->mw->rkey, 0);
    }
}

/* False: the lane has ended. */
static bool done_up_to(struct verbs_lane *lane, const struct verbs_window *last)
{
    struct verbs_window *window;
    do {
        struct kvf_list *node = kvf_list_pop_front(&lane->source.posted);
        if (node == NULL) {
            lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, 0)); /* a completion of nothing */
            return false;
        }
        window = kvf_container(node, struct verbs_window, node);
        window_done(lane, window);
    } while (window != last);
    return true;
}

void verbs_source_done(struct verbs_lane *lane, const struct ibv_wc *completions, int count)
{
    for (int i = 0; i < count; i++) {
        if (completions[i].status != IBV_WC_SUCCESS) {
            lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, (int)completions[i].status));
            return;
        }
        if (!done_up_to(lane, (const struct verbs_window *)(uintptr_t)completions[i].wr_id))
            return;
    }
    verbs_source_post(lane);
}
