/* The source's frames: who is next, and one send.
 *
 * A block is ready (lane_turns.h) while it has bytes that have landed and are in no frame. Frames are made for one send
 * and forgotten after it, but for the one that went out in part: that is `current` and goes first next time, whatever
 * happens but the end of the lane. */
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
    lane_turns_init(&sender->turns);
}

/* ---- who can send ---- */

static uint64_t ready_bytes(const struct kvf_lane_block *block)
{
    return atomic_load_explicit(&block->ready_bytes, memory_order_acquire) - block->framed_bytes;
}

static void make_ready(struct tcp_lane *lane, struct kvf_lane_block *block)
{
    if (ready_bytes(block) > 0)
        lane_turns_ready(&lane->sender.turns, block);
}

void tcp_sender_adopt(struct tcp_lane *lane, struct kvf_lane_read *read)
{
    lane_turns_adopt(&lane->sender.turns, &lane->lane, read);
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
    lane_turns_unready(block);
    if (lane->sender.current.block == block)
        lane->sender.current.is_last = true;
    else
        lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
}

/* ---- a batch of frames ---- */

static void add_pieces(struct batch *batch, struct tcp_frame *frame)
{
    uint32_t sent = frame->sent;
    if (sent < LANE_HEADER_BYTES) {
        batch->room->pieces[batch->pieces++] =
            (struct iovec){frame->header + sent, LANE_HEADER_BYTES - sent};
        sent = LANE_HEADER_BYTES;
    }
    uint32_t payload_sent = sent - LANE_HEADER_BYTES;
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
    lane_header_write(TCP_MARK,
                      &(struct lane_header){.read = block->read->id,
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
            lane_turns_unready(block);
    }
    lane_turns_note(&lane->sender.turns, &lane->lane, read);
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
        struct kvf_lane_read *read = lane_turns_next(&lane->sender.turns);
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

static void unframe(struct tcp_lane *lane, const struct tcp_frame *frame)
{
    lane_turns_give_back(&lane->lane, frame->block->read);
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
        uint64_t left = LANE_HEADER_BYTES + frame->length - frame->sent;
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
    return lane->sender.current.block == NULL && lane_turns_next(&lane->sender.turns) == NULL;
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
