#include "transport/lane_turns.h"

void lane_turns_init(struct lane_turns *turns)
{
    kvf_list_init(&turns->ready_reads);
    turns->count = 0;
}

void lane_turns_adopt(struct lane_turns *turns, struct kvf_lane *lane, struct kvf_lane_read *read)
{
    read->turn = read->instance_turn = ++turns->count;
    kvf_list_for_each (node, &lane->reads) {
        struct kvf_lane_read *other = kvf_container(node, struct kvf_lane_read, node);
        if (other != read && other->instance == read->instance)
            read->instance_turn = other->instance_turn;
    }
}

void lane_turns_ready(struct lane_turns *turns, struct kvf_lane_block *block)
{
    struct kvf_lane_read *read = block->read;
    if (!kvf_list_is_empty(&block->node))
        return;
    /* From the back: blocks mostly become ready in their order. */
    struct kvf_list *after = read->ready.previous;
    while (after != &read->ready && kvf_container(after, struct kvf_lane_block, node) > block)
        after = after->previous;
    kvf_list_push_front(after, &block->node);
    if (kvf_list_is_empty(&read->ready_node))
        kvf_list_push_back(&turns->ready_reads, &read->ready_node);
}

void lane_turns_unready(struct kvf_lane_block *block)
{
    kvf_list_remove(&block->node);
    if (kvf_list_is_empty(&block->read->ready))
        kvf_list_remove(&block->read->ready_node);
}

struct kvf_lane_read *lane_turns_next(const struct lane_turns *turns)
{
    struct kvf_lane_read *best = NULL;
    kvf_list_for_each (node, &turns->ready_reads) {
        struct kvf_lane_read *read = kvf_container(node, struct kvf_lane_read, ready_node);
        if (best == NULL || read->instance_turn < best->instance_turn ||
            (read->instance_turn == best->instance_turn && read->turn < best->turn))
            best = read;
    }
    return best;
}

static void set_turn(struct kvf_lane *lane, struct kvf_lane_read *read, uint64_t turn)
{
    read->turn = turn;
    kvf_list_for_each (node, &lane->reads) {
        struct kvf_lane_read *other = kvf_container(node, struct kvf_lane_read, node);
        if (other->instance == read->instance)
            other->instance_turn = turn;
    }
}

void lane_turns_note(struct lane_turns *turns, struct kvf_lane *lane, struct kvf_lane_read *read)
{
    set_turn(lane, read, ++turns->count);
}

void lane_turns_give_back(struct kvf_lane *lane, struct kvf_lane_read *read)
{
    if (read->turn != 0)
        set_turn(lane, read, 0);
}
