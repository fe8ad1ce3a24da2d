/* Who is next among the Reads of a lane: instances take turns, then their Reads, each turn about
 * KVF_LANE_PIECE_BYTES. Lane thread only.
 *
 * A block that has bytes to move is in its Read's `ready` list, in order of index; a Read with such
 * blocks is in `ready_reads`. The Read whose instance was served longest ago is next; of an
 * instance, the Read that was. */
#ifndef KVFERRY_TRANSPORT_LANE_TURNS_H
#define KVFERRY_TRANSPORT_LANE_TURNS_H

#include "transport/lane_core.h"

struct lane_turns {
    struct kvf_list ready_reads;
    uint64_t count;
};

void lane_turns_init(struct lane_turns *turns);
/* A Read that is new on the lane: at the end of the queue, but for what its instance has waited. */
void lane_turns_adopt(struct lane_turns *turns, struct kvf_lane *lane, struct kvf_lane_read *read);
/* The block has something to move, or no more. Twice is fine. */
void lane_turns_ready(struct lane_turns *turns, struct kvf_lane_block *block);
void lane_turns_unready(struct kvf_lane_block *block);
/* NULL: none is ready. */
struct kvf_lane_read *lane_turns_next(const struct lane_turns *turns);
/* This Read has had its turn. */
void lane_turns_note(struct lane_turns *turns, struct kvf_lane *lane, struct kvf_lane_read *read);
/* The turn moved nothing and was none: the Read, and its instance, are next. */
void lane_turns_give_back(struct kvf_lane *lane, struct kvf_lane_read *read);

static inline struct kvf_lane_block *lane_turns_first(const struct kvf_lane_read *read)
{
    return kvf_list_is_empty(&read->ready)
               ? NULL
               : kvf_container(read->ready.next, struct kvf_lane_block, node);
}

#endif
