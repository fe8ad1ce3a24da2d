/* The consumer's frames: payload goes straight to where it is expected; what nobody expects any
 * more goes to the thread's scratch and is counted; what is illegal ends the lane.
 *
 * Between two events a lane keeps at most a part of a header. One readv takes the rest of a payload
 * and what follows it: the next header where frames are large, some more where they are small,
 * which is then copied. */
#include "transport/tcp.h"

#include "base/crc32c.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

static void illegal(struct tcp_lane *lane)
{
    lane_end(&lane->lane, lane_fail(KVF_PROTOCOL, 0));
}

void tcp_receiver_withdraw(struct tcp_lane *lane, struct kvf_lane_block *block)
{
    if (lane->receiver.block == block)
        lane->receiver.block = NULL; /* the rest of its frame is discarded */
    lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
}

/* Decide where a frame's payload goes. False: the frame is illegal. */
static bool open_frame(struct tcp_lane *lane)
{
    struct tcp_receiver *receiver = &lane->receiver;
    struct lane_header header;
    struct kvf_lane_read *read;
    receiver->header_bytes = 0;
    if (!lane_header_read(TCP_MARK, receiver->header, &header) ||
        !lane_find_read(&lane->lane, header.read, &read))
        return false;
    receiver->left = header.length;
    receiver->frames_are_small = header.length <= TCP_SMALL_FRAME_BYTES;
    receiver->block = NULL;
    if (read == NULL)
        return true;
    if (header.block >= read->block_count)
        return false;
    struct kvf_lane_block *block = &read->blocks[header.block];
    if (lane_block_is_over(block))
        return block->length > 0 && block->status.code != KVF_OK;
    if (header.offset != block->done_bytes || header.length > block->length - header.offset)
        return false;
    receiver->block = block;
    return true;
}

static uint8_t *payload_place(struct tcp_lane *lane)
{
    struct kvf_lane_block *block = lane->receiver.block;
    return block != NULL ? kvf_extent_at(block->extent) + block->done_bytes
                         : tcp_thread_of(lane)->scratch;
}

/* `bytes` of the frame's payload lie at payload_place. */
static void payload_arrived(struct tcp_lane *lane, uint32_t bytes)
{
    struct tcp_receiver *receiver = &lane->receiver;
    struct kvf_lane_block *block = receiver->block;
    receiver->left -= bytes;
    if (block == NULL) {
        lane_count(&lane->lane.transport->counters.discarded_bytes, bytes);
        return;
    }
    block->crc32c = kvf_crc32c(block->crc32c, payload_place(lane), bytes);
    block->done_bytes += bytes;
    lane_count(&lane->lane.transport->counters.received_bytes, bytes);
    if (receiver->left == 0)
        receiver->block = NULL;
    if (block->done_bytes == block->length)
        lane_block_arrived(&lane->lane, block);
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* Bytes that were read ahead. False: the lane has ended. */
static bool take_ahead(struct tcp_lane *lane, const uint8_t *at, uint32_t bytes)
{
    struct tcp_receiver *receiver = &lane->receiver;
    while (bytes > 0) {
        uint32_t now;
        if (receiver->left > 0) {
            now = least(receiver->left, bytes);
            if (receiver->block != NULL)
                memcpy(payload_place(lane), at, now);
            payload_arrived(lane, now);
        } else {
            now = least(LANE_HEADER_BYTES - receiver->header_bytes, bytes);
            memcpy(receiver->header + receiver->header_bytes, at, now);
            receiver->header_bytes += now;
            if (receiver->header_bytes == LANE_HEADER_BYTES && !open_frame(lane)) {
                illegal(lane);
                return false;
            }
        }
        at += now;
        bytes -= now;
    }
    return true;
}

/* One readv. Returns the bytes it brought; 0: nothing more for now, or the lane has ended. */
static uint32_t receive_some(struct tcp_lane *lane, bool *drained)
{
    struct tcp_receiver *receiver = &lane->receiver;
    uint8_t *ahead = tcp_thread_of(lane)->ahead;
    uint32_t payload = least(receiver->left, TCP_STEP_BYTES), extra = 0;
    if (payload == receiver->left)
        extra = receiver->frames_are_small ? TCP_AHEAD_BYTES
                                           : LANE_HEADER_BYTES - receiver->header_bytes;
    struct iovec pieces[2] = {{payload > 0 ? payload_place(lane) : ahead, payload}, {ahead, extra}};
    ssize_t got = readv(lane->watch.fd, pieces, 2);
    *drained = got < (ssize_t)payload + (ssize_t)extra;
    if (got <= 0) {
        if (got == 0)
            lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, 0));
        else if (errno != EAGAIN && errno != EINTR)
            lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, errno));
        return 0;
    }
    uint32_t to_payload = least(payload, (uint64_t)got);
    if (to_payload > 0)
        payload_arrived(lane, to_payload);
    if (!take_ahead(lane, ahead, (uint32_t)got - to_payload))
        return 0;
    return (uint32_t)got;
}

/* In the middle of a long payload it does not pay to be woken for every segment: the kernel waits until a good part of it
 * is there. Never more than what this frame still brings, so that the wait surely ends. */
static void set_low_water(struct tcp_lane *lane)
{
    struct tcp_receiver *receiver = &lane->receiver;
    int bytes = receiver->left >= TCP_LOW_WATER_BYTES ? (int)TCP_LOW_WATER_BYTES : 1;
    if (bytes == receiver->low_water_bytes)
        return;
    if (setsockopt(lane->watch.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)) == 0)
        receiver->low_water_bytes = bytes;
}

static bool has_bytes(const struct tcp_lane *lane)
{
    int bytes = 0;
    return lane->watch.active && ioctl(lane->watch.fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

bool tcp_receiver_step(struct tcp_lane *lane)
{
    uint64_t turn = KVF_LANE_PIECE_BYTES;
    bool drained = false;
    while (!drained && turn > 0) {
        uint32_t got = receive_some(lane, &drained);
        if (got == 0)
            break;
        turn -= least(got, turn);
    }
    if (lane->watch.active)
        set_low_water(lane); /* also in the middle: what is there may be all that comes */
    return !drained && has_bytes(lane);
}
