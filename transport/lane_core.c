/* Parts: the owner's side, the mailbox to the lane thread, the lane thread's side, the end. */
#include "transport/lane_core.h"

#include <string.h>

#define TOKENS_AT_ONCE 64

/* ---- owner: life ---- */

static void run_kick(struct kvf_post *post);
static void run_ended(struct kvf_post *post);
static void run_tokens(struct kvf_post *post);
static void run_opened(struct kvf_post *post);
static void run_gone(struct kvf_post *post);
static void run_bye(struct kvf_post *post);
static void run_parted(struct kvf_post *post);

void lane_init(struct kvf_lane *lane, struct kvf_transport *transport, const struct lane_side *side,
               struct lane_thread *thread, const struct kvf_lane_events *events, void *user)
{
    lane->transport = transport;
    lane->side = side;
    lane->thread = thread;
    lane->events = events;
    lane->user = user;
    lane->state = LANE_CONNECTING;
    lane->kick.run = run_kick;
    lane->ended_post.run = run_ended;
    lane->tokens_post.run = run_tokens;
    lane->opened_post.run = run_opened;
    lane->gone_post.run = run_gone;
    lane->bye_post.run = run_bye;
    lane->parted_post.run = run_parted;
    kvf_list_init(&lane->reads);
    transport->open_lanes++;
}

static void kick(struct kvf_lane *lane)
{
    if (!atomic_exchange(&lane->kicked, true))
        kvf_loop_post(lane->thread->loop, &lane->kick);
}

void lane_start(struct kvf_lane *lane)
{
    kick(lane);
}

static void set_state(struct kvf_lane *lane, enum lane_state to)
{
    static const bool allowed[][LANE_PARTED + 1] = {
        [LANE_CONNECTING] = {[LANE_OPEN] = true, [LANE_CLOSING] = true, [LANE_GONE] = true},
        [LANE_OPEN] = {[LANE_CLOSING] = true, [LANE_GONE] = true},
        [LANE_CLOSING] = {[LANE_GONE] = true},
        [LANE_GONE] = {[LANE_PARTED] = true},
        [LANE_PARTED] = {false},
    };
    kvf_assert(allowed[lane->state][to]);
    lane->state = to;
}

static void run_opened(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, opened_post);
    if (lane->state != LANE_CONNECTING)
        return; /* closed meanwhile */
    set_state(lane, LANE_OPEN);
    lane->events->opened(lane, lane->user);
}

void kvf_lane_close(struct kvf_lane *lane)
{
    lane->close_called = true;
    if (lane->state >= LANE_CLOSING)
        return;
    set_state(lane, LANE_CLOSING);
    atomic_store(&lane->close_asked, true);
    kick(lane);
}

static void run_gone(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, gone_post);
    set_state(lane, LANE_GONE);
    kvf_loop_post(lane->thread->loop, &lane->bye_post);
}

static void close_if_over(struct kvf_lane *lane)
{
    if (lane->state != LANE_PARTED || lane->open_blocks > 0)
        return;
    lane->transport->open_lanes--;
    lane->events->closed(lane, lane->user, lane->close_called ? kvf_ok() : lane->reason);
    lane->side->destroy(lane);
}

static void run_parted(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, parted_post);
    set_state(lane, LANE_PARTED);
    close_if_over(lane);
}

/* ---- owner: Reads and their blocks ---- */

/* Any thread. Posts when the mailbox was empty, else a post is on its way already. */
static void give_back(struct kvf_lane *lane, struct kvf_lane_block *first,
                      struct kvf_lane_block *last)
{
    struct kvf_lane_block *head = atomic_load(&lane->ended);
    do {
        last->link = head;
    } while (!atomic_compare_exchange_weak(&lane->ended, &head, first));
    if (head == NULL)
        kvf_loop_post(lane->transport->owner, &lane->ended_post);
}

static struct kvf_lane_block *reverse_blocks(struct kvf_lane_block *newest)
{
    struct kvf_lane_block *oldest = NULL;
    while (newest != NULL) {
        struct kvf_lane_block *next = newest->link;
        newest->link = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static struct kvf_lane_block *reverse_tokens(struct kvf_lane_block *newest)
{
    struct kvf_lane_block *oldest = NULL;
    while (newest != NULL) {
        struct kvf_lane_block *next = newest->token_link;
        newest->token_link = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static void add_token(struct kvf_lane_token *token, const struct kvf_lane_block *block)
{
    token->block = (uint32_t)(block - block->read->blocks);
    token->length = block->token_bytes;
    memcpy(token->bytes, block->token, block->token_bytes);
}

/* Tokens of one Read leave together, as far as they lie together. */
static void tell_tokens(struct kvf_lane *lane)
{
    struct kvf_lane_token tokens[TOKENS_AT_ONCE];
    struct kvf_lane_block *block = reverse_tokens(atomic_exchange(&lane->tokens, NULL));
    while (block != NULL) {
        struct kvf_lane_read *read = block->read;
        size_t count = 0;
        for (; block != NULL && block->read == read && count < TOKENS_AT_ONCE;
             block = block->token_link)
            if (!lane_block_is_over(block))
                add_token(&tokens[count++], block);
        if (count > 0 && lane->state < LANE_CLOSING)
            lane->events->tokens(lane, lane->user, read, tokens, count);
    }
}

static void run_tokens(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, tokens_post);
    atomic_store(&lane->tokens_posted, false); /* before looking: what comes later posts again */
    tell_tokens(lane);
}

static void run_ended(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, ended_post);
    struct kvf_lane_block *block = reverse_blocks(atomic_exchange(&lane->ended, NULL));
    tell_tokens(lane);
    while (block != NULL) {
        struct kvf_lane_block *next = block->link; /* ended may free the block */
        struct kvf_lane_read *read = block->read;
        atomic_fetch_or(&block->marks, LANE_BLOCK_ENDED);
        lane->open_blocks--;
        read->ended(read, (uint32_t)(block - read->blocks));
        block = next;
    }
    close_if_over(lane);
}

static uint32_t prepare_blocks(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    uint32_t open = 0;
    for (uint32_t i = 0; i < read->block_count; i++) {
        struct kvf_lane_block *block = &read->blocks[i];
        kvf_assert(block->length <= block->extent.bytes || block->length == 0);
        kvf_assert(!lane->is_source || block->landed_bytes <= block->length);
        block->status = kvf_ok();
        block->crc32c = 0;
        block->read = read;
        block->link = NULL;
        kvf_list_init(&block->node);
        block->done_bytes = 0;
        block->framed_bytes = 0;
        atomic_store_explicit(&block->ready_bytes, block->landed_bytes, memory_order_relaxed);
        atomic_store_explicit(&block->withdrawn, false, memory_order_relaxed);
        atomic_store_explicit(&block->released, false, memory_order_relaxed);
        block->token_link = NULL;
        block->window = NULL;
        block->token_bytes = 0;
        atomic_store_explicit(&block->marks, block->length > 0 ? 0 : LANE_BLOCK_ENDED,
                              memory_order_relaxed);
        open += block->length > 0;
    }
    return open;
}

/* The lane thread takes nothing any more: end them from here. */
static void end_stillborn(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    for (uint32_t i = 0; i < read->block_count; i++) {
        struct kvf_lane_block *block = &read->blocks[i];
        if (block->length == 0)
            continue;
        block->status = lane->reason;
        atomic_fetch_or(&block->marks, LANE_BLOCK_ENDING);
        give_back(lane, block, block);
    }
}

static void hand_over(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    kvf_assert(read->id >= 1);
    read->lane = lane;
    read->open_blocks = prepare_blocks(lane, read);
    if (read->open_blocks == 0)
        return;
    lane->open_blocks += read->open_blocks;
    if (lane->state >= LANE_GONE) {
        end_stillborn(lane, read);
        return;
    }
    struct kvf_lane_read *head = atomic_load(&lane->incoming);
    do {
        read->link = head;
    } while (!atomic_compare_exchange_weak(&lane->incoming, &head, read));
    if (!lane->side->takes_reads_itself)
        kick(lane);
}

void kvf_lane_expect(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    kvf_assert(!lane->is_source);
    hand_over(lane, read);
}

void kvf_lane_offer(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    kvf_assert(lane->is_source);
    hand_over(lane, read);
    kvf_assert(lane->transport->traits.lane_blocks == 0 ||
               lane->open_blocks <= lane->transport->traits.lane_blocks);
}

uint64_t kvf_lane_room(const struct kvf_lane *lane)
{
    uint32_t most = lane->transport->traits.lane_blocks;
    return most == 0 ? UINT64_MAX : most - lane->open_blocks;
}

static bool is_ended(const struct kvf_lane_block *block)
{
    return (atomic_load_explicit(&block->marks, memory_order_relaxed) & LANE_BLOCK_ENDED) != 0;
}

/* The lane thread shall look at this block again. */
static void mark_dirty(struct kvf_lane *lane, struct kvf_lane_block *block)
{
    unsigned before = atomic_fetch_or(&block->marks, LANE_BLOCK_QUEUED);
    if ((before & (LANE_BLOCK_QUEUED | LANE_BLOCK_ENDING)) != 0)
        return;
    struct kvf_lane_block *head = atomic_load(&lane->dirty);
    do {
        block->link = head;
    } while (!atomic_compare_exchange_weak(&lane->dirty, &head, block));
    kick(lane);
}

void kvf_lane_landed(struct kvf_lane_read *read, uint32_t index, uint64_t landed_bytes)
{
    kvf_assert(index < read->block_count);
    struct kvf_lane_block *block = &read->blocks[index];
    if (is_ended(block))
        return;
    kvf_assert(read->lane->is_source && landed_bytes <= block->length);
    if (landed_bytes <= atomic_load_explicit(&block->ready_bytes, memory_order_relaxed))
        return;
    block->landed_bytes = landed_bytes;
    atomic_store_explicit(&block->ready_bytes, landed_bytes, memory_order_release);
    if (read->lane->state < LANE_GONE)
        mark_dirty(read->lane, block);
}

struct kvf_status kvf_lane_take(struct kvf_lane_read *read, uint32_t index, const uint8_t *token,
                                size_t token_bytes)
{
    const struct transport_ops *ops = read->lane->transport->ops;
    kvf_assert(!read->lane->is_source && index < read->block_count);
    struct kvf_lane_block *block = &read->blocks[index];
    if (ops->token_is_legal == NULL || !ops->token_is_legal(token, token_bytes))
        return lane_fail(KVF_PROTOCOL, 0);
    if (is_ended(block))
        return kvf_ok();
    if (block->token_bytes > 0)
        return lane_fail(KVF_PROTOCOL, 0);
    kvf_assert(token_bytes <= sizeof(block->token));
    memcpy(block->token, token, token_bytes);
    block->token_bytes = (uint8_t)token_bytes;
    if (read->lane->state < LANE_GONE)
        mark_dirty(read->lane, block);
    return kvf_ok();
}

static void withdraw_one(struct kvf_lane_read *read, struct kvf_lane_block *block)
{
    if (is_ended(block) || atomic_exchange(&block->withdrawn, true))
        return;
    if (read->lane->state < LANE_GONE)
        mark_dirty(read->lane, block);
}

void kvf_lane_withdraw(struct kvf_lane_read *read, uint32_t index)
{
    if (index != KVF_LANE_ALL_BLOCKS) {
        kvf_assert(index < read->block_count);
        withdraw_one(read, &read->blocks[index]);
        return;
    }
    for (uint32_t i = 0; i < read->block_count; i++)
        withdraw_one(read, &read->blocks[i]);
}

void kvf_lane_release(struct kvf_lane_read *read)
{
    kvf_assert(read->lane->is_source);
    for (uint32_t i = 0; i < read->block_count; i++) {
        struct kvf_lane_block *block = &read->blocks[i];
        if (is_ended(block) || atomic_exchange(&block->released, true))
            continue;
        if (read->lane->state < LANE_GONE)
            mark_dirty(read->lane, block);
    }
}

/* ---- lane thread: what the owner has sent ---- */

static void end_read(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    for (uint32_t i = 0; i < read->block_count; i++)
        if (!lane_block_is_over(&read->blocks[i]))
            lane_block_end(lane, &read->blocks[i], lane->reason);
}

static void adopt(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    kvf_list_push_back(&lane->reads, &read->node);
    kvf_list_init(&read->ready_node);
    kvf_list_init(&read->ready);
    if (read->id > lane->highest_id)
        lane->highest_id = read->id;
    if (lane->stopping)
        end_read(lane, read);
    else if (lane->side->adopt != NULL)
        lane->side->adopt(lane, read);
}

static void adopt_all(struct kvf_lane *lane, struct kvf_lane_read *newest)
{
    struct kvf_lane_read *oldest = NULL;
    while (newest != NULL) {
        struct kvf_lane_read *next = newest->link;
        newest->link = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct kvf_lane_read *next = oldest->link;
        adopt(lane, oldest);
        oldest = next;
    }
}

void lane_take_reads(struct kvf_lane *lane)
{
    adopt_all(lane, atomic_exchange(&lane->incoming, NULL));
}

static struct kvf_lane_read *open_read(const struct kvf_lane *lane, uint64_t id)
{
    kvf_list_for_each (node, &lane->reads) {
        struct kvf_lane_read *read = kvf_container(node, struct kvf_lane_read, node);
        if (read->id == id)
            return read;
    }
    return NULL;
}

bool lane_find_read(struct kvf_lane *lane, uint64_t id, struct kvf_lane_read **read)
{
    *read = open_read(lane, id);
    if (*read == NULL) {
        lane_take_reads(lane); /* nobody may have woken this thread for it yet */
        *read = open_read(lane, id);
    }
    return *read != NULL || (id >= 1 && id <= lane->highest_id);
}

static void append_to_batch(struct kvf_lane *lane, struct kvf_lane_block *block)
{
    block->link = lane->batch_first; /* newest first, as the mailbox is */
    lane->batch_first = block;
    lane->batch_bytes += block->length;
    if (lane->batch_last == NULL)
        lane->batch_last = block;
}

static void let_go(struct kvf_lane *lane, struct kvf_lane_block *block)
{
    if (lane->side->release != NULL)
        lane->side->release(lane, block);
    else
        lane->side->withdraw(lane, block);
}

static void take_dirty(struct kvf_lane *lane, struct kvf_lane_block *block)
{
    unsigned before = atomic_fetch_and(&block->marks, ~(unsigned)LANE_BLOCK_QUEUED);
    if ((before & LANE_BLOCK_ENDING) != 0)
        append_to_batch(lane, block);
    else if (lane->stopping || atomic_load(&lane->close_asked))
        return; /* it ends with the lane, which has let go of all memory then */
    else if (atomic_load(&block->released))
        let_go(lane, block);
    else if (atomic_load(&block->withdrawn))
        lane->side->withdraw(lane, block);
    else if (lane->is_source)
        lane->side->landed(lane, block);
    else
        lane->side->taken(lane, block);
}

static void take_inbox(struct kvf_lane *lane)
{
    /* Dirty blocks first out of their box: the Reads that they belong to are then in the other. */
    struct kvf_lane_block *block = reverse_blocks(atomic_exchange(&lane->dirty, NULL));
    lane_take_reads(lane);
    while (block != NULL) {
        struct kvf_lane_block *next = block->link;
        take_dirty(lane, block);
        block = next;
    }
}

static void run_kick(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, kick);
    atomic_store(&lane->kicked, false); /* before looking: what comes later kicks again */
    if (!lane->started) {
        lane->started = true;
        lane->side->start(lane);
    }
    if (atomic_load(&lane->close_asked))
        lane_end(lane, lane_fail(KVF_CANCELLED, 0));
    take_inbox(lane);
    if (!lane->stopping && lane->side->settle != NULL)
        lane->side->settle(lane);
    lane_flush(lane, false);
}

/* ---- lane thread: what it tells ---- */

void lane_block_end(struct kvf_lane *lane, struct kvf_lane_block *block, struct kvf_status status)
{
    struct kvf_lane_read *read = block->read;
    block->status = status;
    kvf_list_remove(&block->node);
    if (--read->open_blocks == 0) {
        kvf_list_remove(&read->node);
        kvf_list_remove(&read->ready_node);
        lane->batch_is_due = true;
    }
    unsigned before = atomic_fetch_or(&block->marks, LANE_BLOCK_ENDING);
    kvf_assert((before & LANE_BLOCK_ENDING) == 0);
    if ((before & LANE_BLOCK_QUEUED) == 0)
        append_to_batch(lane, block);
}

void lane_block_arrived(struct kvf_lane *lane, struct kvf_lane_block *block)
{
    uint64_t end = kvf_round_up_page(block->length);
    if (end > block->extent.bytes)
        end = block->extent.bytes;
    memset(kvf_extent_at(block->extent) + block->length, 0, end - block->length);
    lane_block_end(lane, block, kvf_ok());
}

void lane_block_token(struct kvf_lane *lane, struct kvf_lane_block *block)
{
    struct kvf_lane_block *head = atomic_load(&lane->tokens);
    do {
        block->token_link = head;
    } while (!atomic_compare_exchange_weak(&lane->tokens, &head, block));
    if (!atomic_exchange(&lane->tokens_posted, true))
        kvf_loop_post(lane->transport->owner, &lane->tokens_post);
}

void lane_flush(struct kvf_lane *lane, bool more)
{
    bool is_due = lane->batch_is_due || lane->batch_bytes >= LANE_BATCH_BYTES;
    if (lane->batch_first == NULL || (more && !is_due))
        return;
    struct kvf_lane_block *first = lane->batch_first, *last = lane->batch_last;
    lane->batch_first = lane->batch_last = NULL;
    lane->batch_bytes = 0;
    lane->batch_is_due = false;
    give_back(lane, first, last);
}

void lane_opened(struct kvf_lane *lane)
{
    kvf_loop_post(lane->transport->owner, &lane->opened_post);
}

/* ---- the end ---- */

void lane_end(struct kvf_lane *lane, struct kvf_status reason)
{
    if (lane->stopping)
        return;
    lane->stopping = true;
    lane->reason = reason;
    if (reason.code == KVF_PROTOCOL || reason.code == KVF_DENIED)
        lane_count(&lane->transport->counters.protocol_errors, 1);
    lane->side->stop(lane);
}

void lane_end_blocks(struct kvf_lane *lane)
{
    kvf_list_for_each_safe (node, &lane->reads)
        end_read(lane, kvf_container(node, struct kvf_lane_read, node));
}

void lane_gone(struct kvf_lane *lane)
{
    lane_flush(lane, false);
    kvf_loop_post(lane->transport->owner, &lane->gone_post);
}

static void run_bye(struct kvf_post *post)
{
    struct kvf_lane *lane = kvf_container(post, struct kvf_lane, bye_post);
    take_inbox(lane);
    lane_flush(lane, false);
    kvf_loop_post(lane->transport->owner, &lane->parted_post);
}
