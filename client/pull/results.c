#include "client/pull/results.h"

#include "client/pull/source.h"

static void set_state(struct kvf_pull_block *block, enum kvf_pull_block_state to)
{
    static const bool allowed[][KVF_PULL_QUARANTINED + 1] = {
        [KVF_PULL_WAITING] = {[KVF_PULL_ASKED] = true, [KVF_PULL_ENDED] = true},
        [KVF_PULL_ASKED] =
            {[KVF_PULL_WAITING] = true, [KVF_PULL_ENDED] = true, [KVF_PULL_QUARANTINED] = true},
        [KVF_PULL_ENDED] = {false},
        [KVF_PULL_QUARANTINED] = {[KVF_PULL_ENDED] = true},
    };
    kvf_assert(allowed[block->state][to]);
    block->state = to;
}

void results_init(struct kvf_pull *pull, struct kvf_source *source)
{
    pull->source = source;
    kvf_list_init(&pull->node);
    kvf_list_init(&pull->deliver_node);
    kvf_list_init(&pull->done);
    pull->timer = (struct kvf_timer){0};
    pull->open_blocks = pull->block_count;
    pull->askable_blocks = pull->block_count;
    pull->next_block = 0;
    pull->reads_open = 0;
    pull->quarantined_blocks = 0;
    pull->first_miss = pull->block_count;
    pull->broken_session = 0;
    pull->reask_ns = UINT64_MAX;
    pull->reask_pause_ns = 0;
    pull->breaks = 0;
    pull->cancelled = pull->raised = pull->told = false;
    for (uint32_t i = 0; i < pull->block_count; i++) {
        struct kvf_pull_block *block = &pull->blocks[i];
        kvf_assert(block->length > 0 && block->length <= block->extent.bytes);
        block->state = KVF_PULL_WAITING; /* its life begins */
        kvf_list_init(&block->node);
        block->commits = 0;
        block->postponed = block->told = false;
    }
}

static void queue_pull(struct kvf_pull *pull)
{
    if (kvf_list_is_empty(&pull->deliver_node))
        kvf_list_push_back(&pull->source->delivering, &pull->deliver_node);
}

static void queue_block(struct kvf_pull *pull, struct kvf_pull_block *block)
{
    kvf_list_remove(&block->node);
    kvf_list_push_back(&pull->done, &block->node);
    queue_pull(pull);
}

void results_asked(struct kvf_pull *pull, uint32_t i)
{
    struct kvf_pull_block *block = &pull->blocks[i];
    kvf_assert(!block->postponed);
    set_state(block, KVF_PULL_ASKED);
    pull->askable_blocks--;
}

bool results_is_behind_miss(const struct kvf_pull *pull, uint32_t i)
{
    return pull->stop_at_first_miss && i > pull->first_miss;
}

void results_wait(struct kvf_pull *pull, uint32_t i)
{
    struct kvf_pull_block *block = &pull->blocks[i];
    kvf_assert(block->state == KVF_PULL_ASKED);
    if (results_is_behind_miss(pull, i)) {
        results_end(pull, i, pull_fail(KVF_NOT_FOUND));
        return;
    }
    set_state(block, KVF_PULL_WAITING);
    pull->askable_blocks++;
    if (i < pull->next_block)
        pull->next_block = i;
}

void results_postpone(struct kvf_pull *pull, uint32_t i)
{
    results_wait(pull, i);
    if (pull->blocks[i].state != KVF_PULL_WAITING)
        return;
    pull->blocks[i].postponed = true;
    pull->askable_blocks--;
}

void results_resume(struct kvf_pull *pull)
{
    for (uint32_t i = 0; i < pull->block_count; i++) {
        struct kvf_pull_block *block = &pull->blocks[i];
        if (!block->postponed)
            continue;
        block->postponed = false;
        pull->askable_blocks++;
        if (i < pull->next_block)
            pull->next_block = i;
    }
}

static void set_result(struct kvf_pull *pull, struct kvf_pull_block *block,
                       struct kvf_status status)
{
    struct kvf_pull_stats *stats = pull->source->options.stats;
    if (block->state == KVF_PULL_WAITING && !block->postponed)
        pull->askable_blocks--;
    block->postponed = false;
    block->status = status;
    if (kvf_is_ok(status)) {
        stats->blocks++;
        stats->bytes += block->length;
    } else {
        stats->misses++;
        block->generation = (struct kvf_generation){0};
        block->crc32c = 0;
        block->tier = KVF_TIER_NONE;
    }
}

void results_end(struct kvf_pull *pull, uint32_t i, struct kvf_status status)
{
    struct kvf_pull_block *block = &pull->blocks[i];
    kvf_assert(block->state != KVF_PULL_QUARANTINED); /* that is results_free's */
    set_result(pull, block, status);
    set_state(block, KVF_PULL_ENDED);
    queue_block(pull, block);
}

void results_quarantine(struct kvf_pull *pull, uint32_t i, struct kvf_status status)
{
    struct kvf_pull_block *block = &pull->blocks[i];
    kvf_assert(!kvf_is_ok(status));
    set_result(pull, block, status);
    set_state(block, KVF_PULL_QUARANTINED);
    pull->quarantined_blocks++;
    pull->source->options.stats->quarantine_bytes += block->extent.bytes;
    queue_block(pull, block);
}

void results_free(struct kvf_pull *pull, uint32_t i)
{
    struct kvf_pull_block *block = &pull->blocks[i];
    kvf_assert(block->state == KVF_PULL_QUARANTINED);
    set_state(block, KVF_PULL_ENDED);
    pull->source->options.stats->quarantine_bytes -= block->extent.bytes;
    /* Between the result and its telling nothing else runs: the caller knows it as quarantined. */
    kvf_assert(block->told);
    queue_block(pull, block);
}

void results_miss(struct kvf_pull *pull, uint32_t i)
{
    if (i >= pull->first_miss)
        return;
    uint32_t before = pull->first_miss;
    pull->first_miss = i;
    if (!pull->stop_at_first_miss)
        return;
    for (uint32_t later = i + 1; later < before; later++)
        if (pull->blocks[later].state == KVF_PULL_WAITING)
            results_end(pull, later, pull_fail(KVF_NOT_FOUND));
}

void results_end_waiting(struct kvf_pull *pull, struct kvf_status status)
{
    for (uint32_t i = 0; i < pull->block_count; i++)
        if (pull->blocks[i].state == KVF_PULL_WAITING)
            results_end(pull, i, status);
    if (pull->block_count == 0)
        queue_pull(pull);
}

/* True when the struct is the caller's again: do not touch it. */
static bool tell_end(struct kvf_pull *pull)
{
    if (pull->open_blocks > 0)
        return false;
    bool over = pull->quarantined_blocks == 0;
    if (over)
        source_forget_pull(pull);
    if (!pull->told) {
        pull->told = true;
        kvf_timer_stop(pull->source->options.loop, &pull->timer);
        pull->ended(pull);
    }
    return over;
}

/* True when the struct is the caller's again. */
static bool tell_block(struct kvf_pull *pull, struct kvf_pull_block *block)
{
    uint32_t i = (uint32_t)(block - pull->blocks);
    if (!block->told) {
        block->told = true;
        pull->block_ended(pull, i);
        pull->open_blocks--;
        return tell_end(pull);
    }
    bool last = --pull->quarantined_blocks == 0 && pull->told;
    if (last)
        source_forget_pull(pull);
    pull->freed(pull, i);
    return last;
}

static void deliver_pull(struct kvf_pull *pull)
{
    if (pull->block_count == 0) {
        (void)tell_end(pull);
        return;
    }
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&pull->done)) != NULL)
        if (tell_block(pull, kvf_container(node, struct kvf_pull_block, node)))
            return;
}

void results_deliver(struct kvf_source *source)
{
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&source->delivering)) != NULL)
        deliver_pull(kvf_container(node, struct kvf_pull, deliver_node));
}
