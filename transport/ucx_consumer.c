/* The consumer's pieces: each is announced, and then received straight to where it is expected, or refused. Refused and
 * counted is what nobody expects any more; what is illegal ends the lane. */
#include "transport/ucx.h"

#include "base/crc32c.h"

/* Where the piece goes, NULL where it is refused. False: it is illegal. */
static bool find_block(struct ucx_lane *lane, const struct lane_header *header,
                       struct kvf_lane_block **found)
{
    struct kvf_lane_read *read;
    *found = NULL;
    if (!lane_find_read(&lane->lane, header->read, &read))
        return false;
    if (read == NULL)
        return true;
    if (header->block >= read->block_count)
        return false;
    struct kvf_lane_block *block = &read->blocks[header->block];
    if (block->length == 0)
        return false;
    if (lane_block_is_over(block) || atomic_load(&block->withdrawn))
        return true;
    *found = block;
    return header->offset == block->framed_bytes &&
           header->length <= block->length - header->offset;
}

static void piece_received(void *request, ucs_status_t status, size_t bytes, void *user)
{
    struct ucx_piece *piece = user;
    if (status == UCS_OK && bytes != piece->bytes)
        status = UCS_ERR_MESSAGE_TRUNCATED;
    ucx_piece_done(piece, request, status);
}

static void receive(struct ucx_lane *lane, struct kvf_lane_block *block, void *data, uint32_t bytes)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .memory_type = UCS_MEMORY_TYPE_HOST,
        .cb.recv_am = piece_received,
    };
    uint8_t *place = kvf_extent_at(block->extent) + block->framed_bytes;
    struct ucx_piece *piece = ucx_piece_begin(lane, block, bytes);
    param.user_data = piece;
    ucx_piece_started(lane, piece,
                      ucx.ucp_am_recv_data_nbx(lane->link.worker, data, place, bytes, &param));
}

/* Is it a piece from the lane's other end, with what a piece has? */
static bool is_piece(const struct ucx_lane *lane, const struct lane_header *header, size_t bytes,
                     const ucp_am_recv_param_t *param)
{
    return !lane->lane.is_source && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 &&
           header->length == bytes;
}

static bool is_ours(const struct ucx_lane *lane, const ucp_am_recv_param_t *param)
{
    return (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0 &&
           param->reply_ep == lane->link.endpoint;
}

/* A piece that is illegal ends the lane, one that nobody expects is counted; both are refused. */
static bool accept_piece(struct ucx_lane *lane, const void *header_bytes, size_t header_count,
                         void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct kvf_lane_block *block = NULL;
    struct lane_header header;
    (void)ucx_pieces_settle(lane); /* many may come in one call of progress */
    if (header_count != LANE_HEADER_BYTES || !lane_header_read(UCX_MARK, header_bytes, &header) ||
        !is_piece(lane, &header, bytes, param) || !find_block(lane, &header, &block) ||
        (block != NULL && !ucx_lane_has_room(lane))) {
        ucx_lane_break(lane, lane_fail(KVF_PROTOCOL, 0));
        return false;
    }
    if (block == NULL)
        lane_count(&lane->lane.transport->counters.discarded_bytes, bytes);
    else
        receive(lane, block, data, header.length);
    return block != NULL;
}

/* UCX's callback. What it returns is the source's answer; for what is no rendezvous UCX knows one answer only. */
ucs_status_t ucx_consumer_announced(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_lane *lane = argument;
    bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    ucs_status_t refused = is_rendezvous ? UCS_ERR_CANCELED : UCS_OK;
    if (lane->lane.stopping || !kvf_is_ok(lane->broken))
        return refused;
    if (!is_ours(lane, param)) { /* it says what it likes: it is none of this lane */
        lane_count(&lane->lane.transport->counters.protocol_errors, 1);
        lane_count(&lane->lane.transport->counters.discarded_bytes, bytes);
        return refused;
    }
    return accept_piece(lane, header, header_bytes, data, bytes, param) ? UCS_INPROGRESS : refused;
}

void ucx_consumer_done(struct ucx_lane *lane, const struct ucx_piece *piece)
{
    struct kvf_lane_block *block = piece->block;
    const uint8_t *at = kvf_extent_at(block->extent) + block->done_bytes;
    if (piece->status != UCS_OK) {
        ucx_lane_break(lane, lane_fail(KVF_UNAVAILABLE, piece->status));
        return;
    }
    block->done_bytes += piece->bytes;
    if (piece->withdrawn_ns != 0) {
        lane_count(&lane->lane.transport->counters.discarded_bytes, piece->bytes);
        if (block->done_bytes == block->framed_bytes)
            lane_block_end(&lane->lane, block, lane_fail(KVF_CANCELLED, 0));
        return;
    }
    block->crc32c = kvf_crc32c(block->crc32c, at, piece->bytes);
    lane_count(&lane->lane.transport->counters.received_bytes, piece->bytes);
    if (block->done_bytes == block->length)
        lane_block_arrived(&lane->lane, block);
}
