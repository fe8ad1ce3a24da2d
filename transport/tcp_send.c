/* The source's frames: who is next, and one send.
 *
 * A block is in its Read's `ready` list, in order of index, while it has bytes that have landed and
 * are in no frame; a Read with such blocks is in the lane's `ready_reads`. Frames are made for one
 * send and forgotten after it, but for the one that went out in part: that is `current` and goes
 * first next time, whatever happens but the end of the lane. */
#include "transport/tcp.h"

#include <errno.h>
#include <string.h>

/* A turn with less left ends rather than cut a frame that small. */
#define SHORT_TURN_BYTES (64u << 10)

struct batch {
    struct tcp_thread *room;
    unsigned frames, pieces;
    uint64_t bytes;
};

void tcp_sender_init(struct tcp_sender *sender)
{
    kvf_list_init(&sender->ready_reads);
}

/* ---- who can send ---- */

static uint64_t ready_bytes(const struct kvf_lane_block *block)
{
    return atomic_load_explicit(&block->ready_bytes, memory_order_acquire) - block->framed_bytes;
}

static void make_ready(struct tcp_lane *lane, struct kvf_lane_block *block)
{
    struct kvf_lane_read *read = block->read;
    if (!kvf_list_is_empty(&block->node) || ready_bytes(block) == 0)
        return;
    /* From the back: blocks mostly land in their order. */
    struct kvf_list *after = read->ready.previous;
    while (after != &read->ready && kvf_container(after, struct kvf_lane_block, node) > block)
        after = after->previous;
    kvf_list_push_front(after, &block->node);
    if (kvf_list_is_empty(&read->ready_node))
        kvf_list_push_back(&lane->sender.ready_reads, &read->ready_node);
}

static void make_unready(struct kvf_lane_block *block)
{
    kvf_list_remove(&block->node);
    if (kvf_list_is_empty(&block->read->ready))
        kvf_list_remove(&block->read->ready_node);
}

void tcp_sender_adopt(struct tcp_lane *lane, struct kvf_lane_read *read)
{
    read->turn = read->instance_turn = ++lane->sender.turns; /* at the end of the queue */
    kvf_list_for_each (node, &lane->lane.reads) {
        struct kvf_lane_read *other = kvf_container(node, struct kvf_lane_read, node);
        if (other != read && other->instance == read->instance)
            read->instance_turn = other->instance_turn;
    }
    for (uint32_t i = 0; i < read->block_count; i++)
        if (!lane_block_is_over(&read->blocks[i]))
            make_ready(lane, &read->blocks[i]);
}

void tcp_sender_landed(struct tcp_lane *lane, struct kvf_lane_block *block)
{
    make_ready(lane, block);
}

void tcp_sender_withdraw(struct tcp_lane *lane, struct kvf_lane_block *block)
{
    make_unready(block);
    if (lane->sender.current.block == block)
        lane->sender.current.is_last = true;
    else
        lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
}

/* The Read whose instance, then who itself, was served longest ago. */
static struct kvf_lane_read *next_read(const struct tcp_sender *sender)
{
    struct kvf_lane_read *best = NULL;
    kvf_list_for_each (node, &sender->ready_reads) {
        struct kvf_lane_read *read = kvf_container(node, struct kvf_lane_read, ready_node);
        if (best == NULL || read->instance_turn < best->instance_turn ||
            (read->instance_turn == best->instance_turn && read->turn < best->turn))
            best = read;
    }
    return best;
}

static void note_turn(struct tcp_lane *lane, struct kvf_lane_read *read)
{
    read->turn = ++lane->sender.turns;
    kvf_list_for_each (node, &lane->lane.reads) {
        struct kvf_lane_read *other = kvf_container(node, struct kvf_lane_read, node);
        if (other->instance == read->instance)
            other->instance_turn = read->turn;
    }
}

/* ---- a batch of frames ---- */

static void add_pieces(struct batch *batch, struct tcp_frame *frame)
{
    uint32_t sent = frame->sent;
    if (sent < TCP_HEADER_BYTES) {
        batch->room->pieces[batch->pieces++] =
            (struct iovec){frame->header + sent, TCP_HEADER_BYTES - sent};
        sent = TCP_HEADER_BYTES;
    }
    uint32_t payload_sent = sent - TCP_HEADER_BYTES;
    batch->room->pieces[batch->pieces++] =
        (struct iovec){kvf_extent_at(frame->block->extent) + frame->offset + payload_sent,
                       frame->length - payload_sent};
    batch->bytes += frame->length - payload_sent;
    batch->frames++;
}

static void add_frame(struct batch *batch, struct kvf_lane_block *block, uint64_t bytes)
{
    struct tcp_frame *frame = &batch->room->frames[batch->frames];
    frame->block = block;
    frame->offset = block->framed_bytes;
    frame->length = (uint32_t)bytes;
    frame->sent = 0;
    frame->is_last = false;
    tcp_header_write(&(struct tcp_header){.read = block->read->id,
                                          .block = (uint32_t)(block - block->read->blocks),
                                          .offset = frame->offset,
                                          .length = frame->length},
                     frame->header);
    add_pieces(batch, frame);
    block->framed_bytes += bytes;
}

static bool is_full(const struct batch *batch)
{
    return batch->frames >= TCP_BATCH_FRAMES || batch->bytes >= KVF_LANE_PIECE_BYTES;
}

static void take_turn(struct tcp_lane *lane, struct kvf_lane_read *read, struct batch *batch)
{
    uint64_t turn = KVF_LANE_PIECE_BYTES;
    while (!is_full(batch) && !kvf_list_is_empty(&read->ready)) {
        struct kvf_lane_block *block = kvf_container(read->ready.next, struct kvf_lane_block, node);
        uint64_t bytes = ready_bytes(block);
        if (bytes > turn) {
            if (turn < SHORT_TURN_BYTES)
                break;
            bytes = turn;
        }
        add_frame(batch, block, bytes);
        turn -= bytes;
        if (ready_bytes(block) == 0)
            make_unready(block);
    }
    note_turn(lane, read);
}

static void fill(struct tcp_lane *lane, struct batch *batch)
{
    struct tcp_frame *current = &lane->sender.current;
    if (current->block != NULL) {
        struct tcp_frame *frame = &batch->room->frames[0];
        *frame = *current;
        add_pieces(batch, frame);
    }
    while (!is_full(batch)) {
        struct kvf_lane_read *read = next_read(&lane->sender);
        if (read == NULL)
            break;
        take_turn(lane, read, batch);
    }
}

/* ---- what the kernel took ---- */

static void frame_done(struct tcp_lane *lane, const struct tcp_frame *frame)
{
    struct kvf_lane_block *block = frame->block;
    block->done_bytes += frame->length;
    lane_count(&lane->lane.transport->counters.sent_bytes, frame->length);
    if (block->done_bytes == block->length)
        lane_block_end(&lane->lane, block, kvf_ok());
    else if (frame->is_last)
        lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
}

/* A turn that brought nothing onto the wire was none: its Read, and its instance, are next. */
static void give_turn_back(struct tcp_lane *lane, struct kvf_lane_read *read)
{
    if (read->turn == 0)
        return;
    kvf_list_for_each (node, &lane->lane.reads) {
        struct kvf_lane_read *other = kvf_container(node, struct kvf_lane_read, node);
        if (other->instance == read->instance)
            other->instance_turn = 0;
    }
    read->turn = 0;
}

static void unframe(struct tcp_lane *lane, const struct tcp_frame *frame)
{
    give_turn_back(lane, frame->block->read);
    frame->block->framed_bytes -= frame->length;
    make_ready(lane, frame->block);
}

static void account(struct tcp_lane *lane, struct batch *batch, uint64_t sent)
{
    struct tcp_sender *sender = &lane->sender;
    bool had_current = sender->current.block != NULL;
    sender->current.block = NULL;
    for (unsigned i = 0; i < batch->frames; i++) {
        struct tcp_frame *frame = &batch->room->frames[i];
        uint64_t left = TCP_HEADER_BYTES + frame->length - frame->sent;
        if (sent >= left) {
            sent -= left;
            frame_done(lane, frame);
        } else if (sent > 0 || (i == 0 && had_current)) {
            frame->sent += (uint32_t)sent;
            sent = 0;
            sender->current = *frame;
        } else {
            unframe(lane, frame);
        }
    }
}

static bool is_idle(const struct tcp_lane *lane)
{
    return lane->sender.current.block == NULL && kvf_list_is_empty(&lane->sender.ready_reads);
}

bool tcp_sender_step(struct tcp_lane *lane)
{
    struct batch batch = {.room = tcp_thread_of(lane)};
    fill(lane, &batch);
    if (batch.frames > 0) {
        struct msghdr message = {.msg_iov = batch.room->pieces, .msg_iovlen = batch.pieces};
        ssize_t sent = sendmsg(lane->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        int error = sent < 0 ? errno : 0;
        account(lane, &batch, sent > 0 ? (uint64_t)sent : 0);
        if (error != 0 && error != EAGAIN && error != EINTR) {
            lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, error));
            return false;
        }
    }
    tcp_lane_want_send(lane, !is_idle(lane));
    return lane->sender.current.block == NULL && !is_idle(lane);
}
