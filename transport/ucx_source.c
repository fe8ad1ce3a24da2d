/* The source's pieces: who is next, and one rendezvous each, UCX_PIECES_SENT at a time.
 *
 * A block is ready (lane_turns.h) while it has bytes that have landed and are in no piece. A turn is one piece, 1 MiB or
 * what has landed of one block. The consumer may refuse a piece: then it wants no more of that block, and for the source
 * it is as good as sent. */
#include "transport/ucx.h"

static uint64_t ready_bytes(const struct kvf_lane_block *block)
{
    return atomic_load_explicit(&block->ready_bytes, memory_order_acquire) - block->framed_bytes;
}

void ucx_source_landed(struct ucx_lane *lane, struct kvf_lane_block *block)
{
    if (ready_bytes(block) > 0)
        lane_turns_ready(&lane->turns, block);
}

static void piece_sent(void *request, ucs_status_t status, void *piece)
{
    ucx_piece_done(piece, request, status);
}

static void begin_piece(struct ucx_lane *lane, struct kvf_lane_block *block, uint32_t bytes)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY,
        .memory_type = UCS_MEMORY_TYPE_HOST,
        .cb.send = piece_sent,
    };
    struct lane_header header = {.read = block->read->id,
                                 .block = (uint32_t)(block - block->read->blocks),
                                 .offset = block->framed_bytes,
                                 .length = bytes};
    struct ucx_piece *piece = ucx_piece_begin(lane, block, bytes);
    param.user_data = piece;
    lane_header_write(UCX_MARK, &header, piece->header);
    ucx_piece_started(
        lane, piece,
        ucx.ucp_am_send_nbx(lane->link.endpoint, UCX_PIECE_ID, piece->header, sizeof(piece->header),
                            kvf_extent_at(block->extent) + header.offset, bytes, &param));
}

void ucx_source_post(struct ucx_lane *lane)
{
    struct kvf_lane_read *read;
    while (kvf_is_ok(lane->broken) && ucx_lane_has_room(lane) &&
           (read = lane_turns_next(&lane->turns)) != NULL) {
        struct kvf_lane_block *block = kvf_container(read->ready.next, struct kvf_lane_block, node);
        uint64_t bytes = ready_bytes(block);
        if (bytes > KVF_LANE_PIECE_BYTES)
            bytes = KVF_LANE_PIECE_BYTES;
        begin_piece(lane, block, (uint32_t)bytes);
        if (ready_bytes(block) == 0)
            lane_turns_unready(block);
        lane_turns_note(&lane->turns, &lane->lane, read);
    }
}

void ucx_source_done(struct ucx_lane *lane, const struct ucx_piece *piece)
{
    struct kvf_lane_block *block = piece->block;
    if (piece->status != UCS_OK && piece->status != UCS_ERR_CANCELED) {
        ucx_lane_break(lane, lane_fail(KVF_UNAVAILABLE, piece->status));
        return;
    }
    block->done_bytes += piece->bytes;
    if (piece->status == UCS_OK)
        lane_count(&lane->lane.transport->counters.sent_bytes, piece->bytes);
    if (block->done_bytes == block->length)
        lane_block_end(&lane->lane, block, kvf_ok());
    else if (piece->withdrawn_ns != 0 && block->done_bytes == block->framed_bytes)
        lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
}
