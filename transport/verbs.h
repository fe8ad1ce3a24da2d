/* verbs from the inside: the structs that its parts share. Private to transport/verbs*.c.
 *
 * - verbs.c: the transport, invite and connect (owner's thread)
 * - verbs_gids.c: the devices that there are, and their addresses
 * - verbs_devices.c: which of them are used; their memory regions
 * - verbs_probe.c: what a device keeps of what it promises, tried once at start
 * - verbs_link.c: connections: rdma_cm's events, queue pairs and windows made and destroyed (the
 *   control thread)
 * - verbs_lane.c: a lane's life and its completions (the lane's thread)
 * - verbs_source.c: blocks that may be read: windows bound and invalidated
 * - verbs_consumer.c: READs
 * - verbs_wire.c: the bytes that travel
 *
 * A lane is one queue pair in one direction: the consumer READs, the source binds windows and
 * nothing else. Making and destroying takes milliseconds, so a thread of its own does it, the
 * control thread; a lane's thread only posts and polls. The two meet in the posts of struct
 * verbs_link. */
#ifndef KVFERRY_TRANSPORT_VERBS_H
#define KVFERRY_TRANSPORT_VERBS_H

#include "transport/lane_address.h"
#include "transport/lane_core.h"
#include "transport/lane_turns.h"
#include "transport/verbs_wire.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define VERBS_READS 64u /* READs under way on a lane */
/* A turn is begun while less than this is under way: enough for the network to be busy while a
 * piece is checked, and not more, for what is under way goes before whoever comes next. */
#define VERBS_READ_AHEAD_BYTES (3 * KVF_LANE_PIECE_BYTES)
#define VERBS_LANE_BLOCKS 1024u /* windows of a source lane, unless the owner says otherwise */
#define VERBS_BATCH 64u /* work requests that are posted, completions that are polled together */

/* An arena as one device knows it. */
struct verbs_region {
    const struct kvf_arena *arena;
    struct ibv_mr *mr;
};

/* Immutable once it is open, but for `async`. */
struct verbs_device {
    struct ibv_context *context; /* librdmacm's own */
    struct ibv_pd *pd;
    struct verbs_region *regions; /* by the arena's address */
    size_t region_count;
    bool has_windows;    /* type 2B; else regions can be read whole by who has their key */
    bool checks_windows; /* a window's bounds count, not only its region's */
    unsigned reads_out,
        reads_in;         /* READs that a queue pair has under way, as consumer and as source */
    uint32_t lane_blocks; /* windows that a lane can have here; 0 without windows */
    struct verbs_transport *transport;
    struct kvf_watch async; /* control thread: what befalls its queue pairs */
};

/* A lane thread's ear for one device. */
struct verbs_channel {
    struct ibv_comp_channel *channel;
    struct kvf_watch watch;
};

struct verbs_thread {
    struct lane_thread thread;
    struct verbs_channel *channels; /* by device */
};

struct verbs_transport {
    struct kvf_transport base;
    struct verbs_device *devices;
    size_t device_count;
    struct verbs_thread *threads;
    unsigned thread_count, next_thread;

    struct lane_thread control;
    struct rdma_event_channel *events;
    struct kvf_watch events_watch; /* control thread */
    struct rdma_cm_id *listener;   /* NULL: does not listen */
    int port;

    /* Owner and control thread: protects invites. */
    pthread_mutex_t lock;
    struct kvf_list invites;
};

enum verbs_window_state {
    VERBS_WINDOW_FREE,
    VERBS_WINDOW_BINDING,      /* posted */
    VERBS_WINDOW_BOUND,        /* the consumer may be reading */
    VERBS_WINDOW_INVALIDATING, /* wanted or posted */
};

struct verbs_window {
    struct ibv_mw *mw;
    enum verbs_window_state state;
    struct kvf_lane_block *block; /* not FREE: whose it is */
    struct kvf_list node;         /* in the source's free, posted or doomed windows, or in none */
};

/* A lane's connection. The control thread's, but while the lane is open its thread posts and polls. */
struct verbs_link {
    struct rdma_cm_id *id; /* NULL: none */
    struct verbs_device *device;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct verbs_window *windows; /* source, with windows */
    uint32_t window_count;
    uint8_t reads; /* source: that may be under way */
    bool connected;
    bool lost; /* told, with `why` */
    struct kvf_status why;
    struct kvf_list invite_node;                     /* source, under the transport's lock */
    struct kvf_post connect_post, part_post;         /* to the control thread */
    struct kvf_post up_post, lost_post, parted_post; /* to the lane's thread */
};

enum verbs_lane_state {
    VERBS_LANE_WAITING, /* for its connection */
    VERBS_LANE_OPEN,
    VERBS_LANE_OVER,
};

struct verbs_source {
    struct kvf_list whole;  /* blocks that a window shall be bound to */
    struct kvf_list free;   /* windows */
    struct kvf_list posted; /* windows with a work request under way, in order */
    struct kvf_list doomed; /* windows to invalidate */
};

/* A READ under way. */
struct verbs_piece {
    struct kvf_lane_block *block;
    uint32_t bytes;
};

struct verbs_consumer {
    struct lane_turns turns;
    struct verbs_piece pieces[VERBS_READS]; /* a ring: they complete in their order */
    uint64_t posted, completed;             /* pieces, ever */
    uint64_t bytes;                         /* under way */
};

struct verbs_lane {
    struct kvf_lane lane;
    struct kvf_lane_nonces nonces;
    uint64_t deadline_ns;
    struct lane_addresses addresses; /* consumer */
    size_t device;                   /* consumer: of the transport's, or KVF_ANY_DEVICE */
    struct verbs_link link;

    /* The lane's thread. */
    enum verbs_lane_state state;
    struct kvf_timer timer;
    struct kvf_post more_post; /* completions were left, for the others' sake */
    bool more_is_coming;
    struct verbs_source source;
    struct verbs_consumer consumer;
};

static inline struct verbs_transport *verbs_transport_of(const struct kvf_transport *transport)
{
    return kvf_container(transport, struct verbs_transport, base);
}

static inline struct verbs_lane *verbs_lane_of(const struct kvf_lane *lane)
{
    return kvf_container(lane, struct verbs_lane, lane);
}

static inline struct verbs_thread *verbs_thread_of(const struct verbs_lane *lane)
{
    return kvf_container(lane->lane.thread, struct verbs_thread, thread);
}

/* verbs_gids.c */
size_t verbs_nics(struct kvf_nic *nics, size_t room);
/* "mlx5_0 port 1 gid 3 RoCE v2 10.0.0.2; ...", for an error. */
void verbs_table_text(char *text, size_t room);
/* RoCE: the address of the device that has most of its front in common with `to`. False: it has none of that family; the
 * kernel's route decides then. */
bool verbs_address_towards(const struct verbs_device *device, const struct sockaddr *to,
                           struct sockaddr_storage *from);
unsigned verbs_nearness(const struct kvf_transport *base, size_t device, const char *address);
size_t verbs_addresses(const struct kvf_transport *base,
                       char (*addresses)[KVF_TRANSPORT_ADDRESS_BYTES], size_t room);

/* verbs_devices.c; the owner's thread */
/* Opens what options->nics names, or all that is of use; registers the arenas; probes. */
KVF_MUST_USE struct kvf_status verbs_devices_open(struct verbs_transport *transport,
                                                  const struct kvf_transport_options *options,
                                                  struct kvf_why *why);
void verbs_devices_close(struct verbs_transport *transport);
/* NULL: it is none of ours. */
struct verbs_device *verbs_device_find(struct verbs_transport *transport,
                                       const struct ibv_context *context);
/* Where an extent of a registered arena lies. Any thread. */
struct ibv_mr *verbs_device_region(const struct verbs_device *device,
                                   const struct kvf_arena *arena);

/* verbs_probe.c */
/* READs through a window and past its end, and from every region, between two queue pairs on one
 * port. Sets device->checks_windows. Not OK: *why says what fails here. */
KVF_MUST_USE struct kvf_status verbs_probe(struct verbs_device *device, struct kvf_why *why);

/* verbs_link.c; the control thread unless it says otherwise */
void verbs_link_init(struct verbs_link *link);
/* When the event channel is there, before the control thread runs. */
KVF_MUST_USE struct kvf_status verbs_control_watch(struct verbs_transport *transport);
void verbs_control_unwatch(struct verbs_transport *transport);

/* verbs_lane.c */
extern const struct lane_side verbs_source_side, verbs_consumer_side;
/* The posts to the lane's thread: the connection is up; it is lost, link->why says how; it is gone,
 * and nothing reaches the lane's memory any more. */
void verbs_lane_up(struct kvf_post *post);
void verbs_lane_lost(struct kvf_post *post);
void verbs_lane_parted(struct kvf_post *post);
/* Watch's `ready`. */
void verbs_channel_ready(struct kvf_watch *watch, uint32_t events);

/* verbs_source.c; the lane's thread */
void verbs_source_init(struct verbs_source *source);
void verbs_source_up(struct verbs_lane *lane);
void verbs_source_landed(struct verbs_lane *lane, struct kvf_lane_block *block);
void verbs_source_withdraw(struct verbs_lane *lane, struct kvf_lane_block *block);
void verbs_source_release(struct verbs_lane *lane, struct kvf_lane_block *block);
/* Post what there is to bind and to invalidate. */
void verbs_source_post(struct verbs_lane *lane);
/* The work requests up to this one are done. */
void verbs_source_done(struct verbs_lane *lane, const struct ibv_wc *completions, int count);

/* verbs_consumer.c; the lane's thread */
void verbs_consumer_init(struct verbs_consumer *consumer);
void verbs_consumer_taken(struct verbs_lane *lane, struct kvf_lane_block *block);
void verbs_consumer_withdraw(struct verbs_lane *lane, struct kvf_lane_block *block);
/* Ask for more, as far as there is room. */
void verbs_consumer_post(struct verbs_lane *lane);
void verbs_consumer_done(struct verbs_lane *lane, const struct ibv_wc *completions, int count);

#endif
