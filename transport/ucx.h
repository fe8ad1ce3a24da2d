/* ucx from the inside: the structs that its parts share. Private to transport/ucx*.c.
 *
 * - ucx_library.c: UCX itself, opened by name, and our settings
 * - ucx.c: the transport, invite and connect (owner's thread)
 * - ucx_link.c: connections made and taken apart (the control thread)
 * - ucx_lane.c: a lane's life and its worker's progress (the lane's thread)
 * - ucx_source.c: pieces sent
 * - ucx_consumer.c: pieces announced, received, refused
 * - ucx_wire.c: the bytes that travel outside of UCX
 *
 * A lane has a TCP connection, its link, on which the two ends say their nonces and where their UCX workers are, and the
 * consumer that it is connected; from then on the link is quiet, and its end is the lane's. Only who has said the nonce
 * gets to speak to UCX's own code. A lane has a UCX worker of its own with one endpoint: nothing of another lane comes to
 * it, and once the worker is destroyed nothing reaches the lane's memory any more, whatever the peer does. Workers take a
 * millisecond to make and to destroy, so the control thread does it, which also hears strangers; in between a lane's
 * thread has the worker for itself. */
#ifndef KVFERRY_TRANSPORT_UCX_H
#define KVFERRY_TRANSPORT_UCX_H

#include "transport/lane_address.h"
#include "transport/lane_core.h"
#include "transport/lane_listen.h"
#include "transport/lane_socket.h"
#include "transport/lane_turns.h"
#include "transport/ucx_library.h"
#include "transport/ucx_wire.h"

#define UCX_PIECES_SENT 4u /* rendezvous that a source has under way on a lane */
#define UCX_PIECES 8u      /* that a consumer bears: what has ended there may not have here yet */
#define UCX_LOOK_NS (20 * KVF_NS_PER_MS)
#define UCX_OVERDUE_NS                                                                             \
    (2 * KVF_NS_PER_S) /* a piece of a block that was taken back may take so long */

struct ucx_transport {
    struct kvf_transport base;
    ucp_context_h context;
    ucp_mem_h *regions; /* the arenas */
    size_t region_count;
    struct lane_thread *threads;
    unsigned thread_count, next_thread;
    struct lane_thread control;
    struct lane_listener listener; /* control thread */
};

struct ucx_lane;

enum ucx_link_state {
    UCX_LINK_IDLE, /* source: nobody has said the nonce yet; consumer: not asked to connect yet */
    UCX_LINK_CONNECTING, /* consumer: to one address after the other */
    UCX_LINK_HEARING,    /* until the other one has said all */
    UCX_LINK_UP,         /* the lane's thread has it */
    UCX_LINK_PARTING,    /* taken apart, as soon as no claim is on its way any more, and drained */
};

/* A lane's connection. The control thread's, but while the lane is open its thread's. */
struct ucx_link {
    enum ucx_link_state state;
    struct kvf_watch watch;          /* fd: -1 where there is none */
    struct lane_addresses addresses; /* consumer */
    uint8_t heard[UCX_HELLO_MAX_BYTES];
    size_t heard_bytes;
    ucp_worker_h worker;          /* NULL: none */
    ucp_ep_h endpoint;            /* NULL: none */
    ucs_status_ptr_t closing;     /* PARTING: the endpoint */
    struct kvf_timer drain_timer; /* PARTING: to look again */
    uint64_t drain_end_ns;
    bool is_lost; /* told, with `why` */
    struct kvf_status why;
    struct lane_invite invite;                       /* source */
    struct kvf_post connect_post, part_post;         /* to the control thread */
    struct kvf_post up_post, lost_post, parted_post; /* to the lane's thread */
};

enum ucx_lane_state {
    UCX_LANE_WAITING,    /* for its link */
    UCX_LANE_CONNECTING, /* its endpoint; a source until the other one's is connected as well */
    UCX_LANE_OPEN,
    UCX_LANE_OVER,
};

/* A rendezvous under way. UCX's callback only notes how it ended. */
struct ucx_piece {
    struct ucx_lane *lane;
    struct kvf_lane_block *block;
    uint32_t bytes;
    uint64_t withdrawn_ns; /* when its block was taken back; 0: it was not */
    bool is_done;
    ucs_status_t status;
    uint8_t header[LANE_HEADER_BYTES]; /* source */
};

struct ucx_lane {
    struct kvf_lane lane;
    struct kvf_lane_nonces nonces;
    uint64_t deadline_ns;
    struct ucx_link link;

    /* The lane's thread; while it is taken apart the control thread's. */
    enum ucx_lane_state state;
    struct kvf_timer timer; /* to open; then for pieces that are overdue */
    struct kvf_timer look;  /* runs while Reads are open */
    struct kvf_watch worker_watch;
    struct kvf_post more_post; /* more is to do, after the others' turn */
    bool more_is_coming;
    struct kvf_status broken; /* noted where the lane cannot be ended: inside UCX's calls */
    bool is_connected, consumer_is_connected; /* source: the other one has said so */
    struct ucx_piece pieces[UCX_PIECES];      /* a ring */
    uint64_t begun, ended;   /* pieces, ever; `ended` in the order in which they began */
    unsigned under_way;      /* pieces that UCX has, and the flush that connects */
    struct lane_turns turns; /* source: bytes that have landed and are in no piece */
};

static inline struct ucx_transport *ucx_transport_of(const struct kvf_transport *transport)
{
    return kvf_container(transport, struct ucx_transport, base);
}

static inline struct ucx_lane *ucx_lane_of(const struct kvf_lane *lane)
{
    return kvf_container(lane, struct ucx_lane, lane);
}

/* ucx_link.c; the control thread unless it says otherwise */
/* Owner. */
void ucx_link_init(struct ucx_lane *lane);

/* ucx_lane.c */
extern const struct lane_side ucx_source_side, ucx_consumer_side;
/* The posts to the lane's thread: the link is up; it is lost, link.why says how; it is gone, and nothing reaches the lane's
 * memory any more. */
void ucx_lane_up(struct kvf_post *post);
void ucx_lane_lost(struct kvf_post *post);
void ucx_lane_parted(struct kvf_post *post);
/* Inside UCX's calls: end the lane as soon as they have returned. The first reason counts. */
void ucx_lane_break(struct ucx_lane *lane, struct kvf_status reason);
/* Take note of pieces that are done, in the order in which they began, so that a block's checksum goes over its bytes in
 * order. Calls nothing of UCX. Returns how many bytes have moved. */
uint64_t ucx_pieces_settle(struct ucx_lane *lane);
/* Room for one more piece? */
static inline bool ucx_lane_has_room(const struct ucx_lane *lane)
{
    return lane->begun - lane->ended < (lane->lane.is_source ? UCX_PIECES_SENT : UCX_PIECES);
}
/* There must be. */
struct ucx_piece *ucx_piece_begin(struct ucx_lane *lane, struct kvf_lane_block *block,
                                  uint32_t bytes);
/* What the call that started it returned. */
void ucx_piece_started(struct ucx_lane *lane, struct ucx_piece *piece, ucs_status_ptr_t request);
void ucx_piece_done(struct ucx_piece *piece, void *request, ucs_status_t status);
/* The block is taken back: at once, or when its pieces have ended, but not later than UCX_OVERDUE_NS from now. */
void ucx_block_withdraw(struct ucx_lane *lane, struct kvf_lane_block *block);

/* ucx_source.c; the lane's thread */
void ucx_source_landed(struct ucx_lane *lane, struct kvf_lane_block *block);
/* Begin pieces, as far as there is room. */
void ucx_source_post(struct ucx_lane *lane);
void ucx_source_done(struct ucx_lane *lane, const struct ucx_piece *piece);

/* ucx_consumer.c; the lane's thread */
ucs_status_t ucx_consumer_announced(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param);
void ucx_consumer_done(struct ucx_lane *lane, const struct ucx_piece *piece);

#endif
