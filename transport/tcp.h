/* tcp from the inside: the structs that its parts share. Private to transport/tcp*.c.
 *
 * - tcp.c: the transport, invite and connect (owner's thread); strangers are lane thread 0's
 * - tcp_lane.c: a lane's greeting, its socket's events, its end (the lane's thread)
 * - tcp_send.c: the source's frames
 * - tcp_receive.c: the consumer's frames
 * - tcp_wire.h: the bytes on the wire */
#ifndef KVFERRY_TRANSPORT_TCP_H
#define KVFERRY_TRANSPORT_TCP_H

#include "transport/lane_address.h"
#include "transport/lane_core.h"
#include "transport/lane_listen.h"
#include "transport/lane_socket.h"
#include "transport/lane_turns.h"
#include "transport/tcp_wire.h"

#include <sys/socket.h>
#include <sys/uio.h>

#define TCP_LOW_WATER_BYTES                                                                        \
    (128u << 10)                    /* of a long payload that must be there before we are woken */
#define TCP_STEP_BYTES (256u << 10) /* most that is received before it is checked */
#define TCP_AHEAD_BYTES (64u << 10) /* received ahead, where frames are small */
#define TCP_SMALL_FRAME_BYTES (32u << 10)
#define TCP_BATCH_FRAMES 256

/* A frame on its way. block == NULL: none. */
struct tcp_frame {
    struct kvf_lane_block *block;
    uint64_t offset;
    uint32_t length;
    uint32_t sent; /* header included */
    bool is_last;  /* its block was withdrawn and ends with it */
    uint8_t header[LANE_HEADER_BYTES];
};

/* One lane thread and the memory that its lanes use in turns; nothing stays in it between two
 * events. */
struct tcp_thread {
    struct lane_thread thread;
    uint8_t ahead[TCP_AHEAD_BYTES];
    uint8_t scratch[TCP_STEP_BYTES]; /* where discarded bytes go; never read */
    struct tcp_frame frames[TCP_BATCH_FRAMES + 1];
    struct iovec pieces[2 * (TCP_BATCH_FRAMES + 1)];
};

struct tcp_transport {
    struct kvf_transport base;
    struct tcp_thread *threads;
    unsigned thread_count, next_thread;
    struct lane_listener listener; /* lane thread 0 */
};

enum tcp_lane_state {
    TCP_WAITING,    /* source: nobody has said the nonce yet */
    TCP_CONNECTING, /* consumer: to one address after the other */
    TCP_GREETING,   /* consumer: has said its nonce, waits for the source's */
    TCP_OPEN,
    TCP_OVER,
};

struct tcp_sender {
    struct lane_turns turns;  /* ready: bytes that have landed and are in no frame */
    struct tcp_frame current; /* begun, must be finished */
};

struct tcp_receiver {
    uint8_t header[LANE_HEADER_BYTES];
    uint32_t header_bytes;
    uint32_t left;                /* of the current frame's payload */
    struct kvf_lane_block *block; /* where it goes; NULL: nobody expects it any more */
    bool frames_are_small;
    int low_water_bytes; /* what the socket was told; 0: nothing yet */
};

struct tcp_lane {
    struct kvf_lane lane;
    struct kvf_lane_nonces nonces;
    uint64_t deadline_ns;

    struct lane_invite invite; /* source */

    /* The lane's thread. */
    enum tcp_lane_state state;
    struct kvf_watch watch;
    struct kvf_timer timer;
    struct lane_addresses addresses;
    uint8_t greeting[LANE_GREETING_BYTES];
    size_t greeted;
    struct tcp_sender sender;
    struct tcp_receiver receiver;
};

static inline struct tcp_transport *tcp_transport_of(const struct kvf_transport *transport)
{
    return kvf_container(transport, struct tcp_transport, base);
}

static inline struct tcp_lane *tcp_lane_of(const struct kvf_lane *lane)
{
    return kvf_container(lane, struct tcp_lane, lane);
}

static inline struct tcp_thread *tcp_thread_of(const struct tcp_lane *lane)
{
    return kvf_container(lane->lane.thread, struct tcp_thread, thread);
}

/* tcp_lane.c */
extern const struct lane_side tcp_source_side, tcp_consumer_side;
/* The lane's thread: runs when somebody has said the nonce. */
void tcp_lane_claimed(struct kvf_post *post);
void tcp_lane_want_send(struct tcp_lane *lane, bool want);

/* tcp_send.c */
void tcp_sender_init(struct tcp_sender *sender);
void tcp_sender_adopt(struct tcp_lane *lane, struct kvf_lane_read *read);
void tcp_sender_landed(struct tcp_lane *lane, struct kvf_lane_block *block);
void tcp_sender_withdraw(struct tcp_lane *lane, struct kvf_lane_block *block);
/* One send of about 1 MiB; asks for EPOLLOUT when there is more. True: the kernel took it all, and there is more. */
bool tcp_sender_step(struct tcp_lane *lane);

/* tcp_receive.c */
void tcp_receiver_withdraw(struct tcp_lane *lane, struct kvf_lane_block *block);
/* About 1 MiB at most. True: more is there. */
bool tcp_receiver_step(struct tcp_lane *lane);

#endif
