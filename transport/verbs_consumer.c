/* A consumer's READs: who is next, in pieces of 1 MiB at most, and what has come.
 *
 * A block is ready from its token on while it has bytes that were not asked for. Its pieces are
 * asked for in order and complete in order, so its checksum grows with them; a block that is
 * withdrawn ends when what was asked for it has come, for until then the NIC writes there. */
#include "transport/verbs.h"

#include "base/block.h"
#include "base/crc32c.h"

#include <string.h>

struct batch {
    struct ibv_send_wr requests[VERBS_READS];
    struct ibv_sge places[VERBS_READS];
    unsigned count;
};

void verbs_consumer_init(struct verbs_consumer *consumer)
{
    lane_turns_init(&consumer->turns);
}

static bool is_under_way(const struct kvf_lane_block *block)
{
    return block->framed_bytes > block->done_bytes;
}

/* ---- what the owner says ---- */

void verbs_consumer_taken(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    lane_turns_ready(&lane->consumer.turns, block);
}

void verbs_consumer_withdraw(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    lane_turns_unready(block);
    if (!is_under_way(block))
        lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
}

/* ---- asking ---- */

static uint64_t pieces_under_way(const struct verbs_consumer *consumer)
{
    return consumer->posted - consumer->completed;
}

static bool has_room(const struct verbs_consumer *consumer)
{
    return pieces_under_way(consumer) < VERBS_READS;
}

static void add_read(struct verbs_lane *lane, struct batch *batch, struct kvf_lane_block *block,
                     uint32_t bytes)
{
    struct verbs_consumer *consumer = &lane->consumer;
    const struct ibv_mr *mr = verbs_device_region(lane->link.device, block->extent.arena);
    struct verbs_token token = verbs_token_read(block->token);
    struct ibv_send_wr *request = &batch->requests[batch->count];
    struct ibv_sge *place = &batch->places[batch->count];
    *place = (struct ibv_sge){.addr = (uintptr_t)kvf_extent_at(block->extent) + block->framed_bytes,
                              .length = bytes,
                              .lkey = mr->lkey};
    memset(request, 0, sizeof(*request));
    request->wr_id = consumer->posted;
    request->opcode = IBV_WR_RDMA_READ;
    request->send_flags = IBV_SEND_SIGNALED;
    request->sg_list = place;
    request->num_sge = 1;
    request->wr.rdma.remote_addr = token.address + block->framed_bytes;
    request->wr.rdma.rkey = token.key;
    if (batch->count++ > 0)
        request[-1].next = request;
    consumer->pieces[consumer->posted++ % VERBS_READS] =
        (struct verbs_piece){.block = block, .bytes = bytes};
    consumer->bytes += bytes;
    block->framed_bytes += bytes;
}

static void take_turn(struct verbs_lane *lane, struct kvf_lane_read *read, struct batch *batch)
{
    uint64_t turn = KVF_LANE_PIECE_BYTES;
    struct kvf_lane_block *block;
    while (turn > 0 && has_room(&lane->consumer) && (block = lane_turns_first(read)) != NULL) {
        uint64_t bytes = block->length - block->framed_bytes;
        if (bytes > turn)
            bytes = turn;
        add_read(lane, batch, block, (uint32_t)bytes);
        turn -= bytes;
        if (block->framed_bytes == block->length)
            lane_turns_unready(block);
    }
    lane_turns_note(&lane->consumer.turns, &lane->lane, read);
}

void verbs_consumer_post(struct verbs_lane *lane)
{
    struct verbs_consumer *consumer = &lane->consumer;
    struct batch batch;
    struct ibv_send_wr *failed;
    struct kvf_lane_read *read;
    batch.count = 0;
    while (consumer->bytes < VERBS_READ_AHEAD_BYTES && has_room(consumer) &&
           (read = lane_turns_next(&consumer->turns)) != NULL)
        take_turn(lane, read, &batch);
    if (batch.count == 0)
        return;
    int error = ibv_post_send(lane->link.qp, batch.requests, &failed);
    if (error != 0)
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, error));
}

/* ---- what has come ---- */

static void block_done(struct verbs_lane *lane, struct kvf_lane_block *block)
{
    uint64_t end = kvf_round_up_page(block->length);
    if (end > block->extent.bytes)
        end = block->extent.bytes;
    memset(kvf_extent_at(block->extent) + block->length, 0, end - block->length);
    lane_block_end(&lane->lane, block, kvf_ok());
}

static void piece_done(struct verbs_lane *lane, const struct verbs_piece *piece)
{
    struct kvf_lane_block *block = piece->block;
    const uint8_t *at = kvf_extent_at(block->extent) + block->done_bytes;
    block->done_bytes += piece->bytes;
    if (atomic_load_explicit(&block->withdrawn, memory_order_relaxed)) {
        lane_turns_unready(block);
        lane_count(&lane->lane.transport->counters.discarded_bytes, piece->bytes);
        if (!is_under_way(block))
            lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
        return;
    }
    block->crc32c = kvf_crc32c(block->crc32c, at, piece->bytes);
    lane_count(&lane->lane.transport->counters.received_bytes, piece->bytes);
    if (block->done_bytes == block->length)
        block_done(lane, block);
}

/* False: the lane has ended. */
static bool complete(struct verbs_lane *lane, const struct ibv_wc *completion,
                     struct verbs_piece *piece)
{
    struct verbs_consumer *consumer = &lane->consumer;
    bool is_next =
        consumer->completed < consumer->posted && completion->wr_id == consumer->completed;
    if (completion->status != IBV_WC_SUCCESS || !is_next) {
        lane_end(&lane->lane, lane_fail(KVF_UNAVAILABLE, (int)completion->status));
        return false;
    }
    *piece = consumer->pieces[consumer->completed++ % VERBS_READS];
    consumer->bytes -= piece->bytes;
    return true;
}

void verbs_consumer_done(struct verbs_lane *lane, const struct ibv_wc *completions, int count)
{
    struct verbs_piece pieces[VERBS_BATCH];
    for (int i = 0; i < count; i++)
        if (!complete(lane, &completions[i], &pieces[i]))
            return;
    verbs_consumer_post(lane); /* first: the network works while we check */
    for (int i = 0; i < count && !lane->lane.stopping; i++)
        piece_done(lane, &pieces[i]);
}
