/* What every implementation shares: the table of its functions, the life of a lane, and the two
 * mailboxes between the owner's loop and the lane's thread.
 *
 * Owner to lane thread: new Reads (`incoming`), blocks that something has happened to (`dirty`:
 * they landed further, were withdrawn or released, got their token), the wish to close. Each is pushed, then one post (`kick`) is sent unless it is already
 * on its way. Lane thread to owner: tokens; ended blocks, in a batch with one post.
 *
 * A block must not reach its owner while it still lies in `dirty`, for then its memory may go. Two
 * marks, each set and read by one atomic operation, decide it: the owner sets QUEUED before it
 * pushes and does not push what is ENDING; the lane thread sets ENDING and hands the block back at
 * once only if it was not QUEUED, else when it takes it from `dirty`. So a block is in one mailbox
 * at a time and one link is enough. Tokens are in a mailbox with a link of its own: the owner
 * empties it before it hears of ended blocks, and both are filled by one thread, so no block has
 * ended that still lies in it.
 *
 * End of a lane: lane_end (lane thread) lets go of everything and posts `gone`; the owner then
 * sends nothing more but `bye`, which runs after all that it sent before and comes back; then
 * `closed` runs and the lane's memory goes. */
#ifndef KVFERRY_TRANSPORT_LANE_CORE_H
#define KVFERRY_TRANSPORT_LANE_CORE_H

#include "base/block.h"
#include "transport/lane_thread.h"
#include "transport/transport.h"

#define LANE_BATCH_BYTES (4 * KVF_MIB)

struct transport_ops {
    const char *name;
    struct kvf_status (*open)(const struct kvf_transport_options *options,
                              struct kvf_transport **give, struct kvf_why *why);
    void (*close)(struct kvf_transport *transport);
    struct kvf_status (*listen)(struct kvf_transport *transport, const char *address,
                                struct kvf_why *why);
    int (*port)(const struct kvf_transport *transport);
    struct kvf_status (*invite)(struct kvf_transport *transport, uint64_t deadline_ns,
                                const struct kvf_lane_events *events, void *user,
                                struct kvf_lane_nonces *nonces, struct kvf_lane **give);
    struct kvf_status (*connect)(struct kvf_transport *transport, const char *address,
                                 size_t device, const struct kvf_lane_nonces *nonces,
                                 uint64_t deadline_ns, const struct kvf_lane_events *events,
                                 void *user, struct kvf_lane **give);
    /* NULL, these three: it chooses among no devices. */
    size_t (*nics)(struct kvf_nic *nics, size_t room);
    size_t (*addresses)(const struct kvf_transport *transport,
                        char (*addresses)[KVF_TRANSPORT_ADDRESS_BYTES], size_t room);
    unsigned (*nearness)(const struct kvf_transport *transport, size_t device, const char *address);
    /* NULL: it knows no tokens. */
    bool (*token_is_legal)(const uint8_t *token, size_t token_bytes);
};

extern const struct transport_ops kvf_tcp_ops, kvf_verbs_ops, kvf_ucx_ops;

/* The first member of every implementation's transport. */
struct kvf_transport {
    const struct transport_ops *ops;
    struct kvf_loop *owner;
    size_t open_lanes;
    struct kvf_transport_traits traits;
    struct {
        _Atomic uint64_t sent_bytes, received_bytes, discarded_bytes, protocol_errors;
    } counters;
};

/* What an implementation does for a lane, on the lane's thread. */
struct lane_side {
    /* A new Read alone does not wake the lane's thread: it asks for Reads (lane_take_reads) when the
     * other side names one that it does not know. */
    bool takes_reads_itself;
    void (*start)(struct kvf_lane *lane);
    /* Its open blocks are in read->blocks; blocks that were withdrawn meanwhile follow by
     * `withdraw`. NULL: nothing is to do yet. */
    void (*adopt)(struct kvf_lane *lane, struct kvf_lane_read *read);
    /* Source. */
    void (*landed)(struct kvf_lane *lane, struct kvf_lane_block *block);
    /* End the block (lane_block_end), now or as soon as its memory can be let go. May come twice. */
    void (*withdraw)(struct kvf_lane *lane, struct kvf_lane_block *block);
    /* Source: likewise, and the consumer is done with it. NULL: `withdraw` does. */
    void (*release)(struct kvf_lane *lane, struct kvf_lane_block *block);
    /* Consumer, where the transport knows tokens: block->token is there. */
    void (*taken)(struct kvf_lane *lane, struct kvf_lane_block *block);
    /* After a round of the above. NULL: nothing is to do. */
    void (*settle)(struct kvf_lane *lane);
    /* Let go of the network and of all memory, call lane_end_blocks, then lane_gone; now or
     * later. */
    void (*stop)(struct kvf_lane *lane);
    void (*destroy)(struct kvf_lane *lane);
};

enum lane_block_mark {
    LANE_BLOCK_QUEUED = 1, /* owner: on its way to the lane thread */
    LANE_BLOCK_ENDING = 2, /* lane thread: it has let go of the memory */
    LANE_BLOCK_ENDED = 4,  /* owner: `ended` has run, or the block was none of ours */
};

enum lane_state {
    LANE_CONNECTING, /* owner: invited or connecting */
    LANE_OPEN,       /* owner: `opened` has run */
    LANE_CLOSING,    /* owner: kvf_lane_close; the lane thread may not know yet */
    LANE_GONE,       /* owner: the lane thread has let go; nothing is sent to it but `bye` */
    LANE_PARTED,     /* owner: `bye` is back; `closed` runs when the last block has ended */
};

/* The first member of every implementation's lane. */
struct kvf_lane {
    struct kvf_transport *transport;
    const struct lane_side *side;
    struct lane_thread *thread;
    bool is_source;

    /* owner */
    const struct kvf_lane_events *events;
    void *user;
    enum lane_state state;
    bool close_called;
    uint64_t open_blocks;

    /* between the two */
    struct kvf_post kick;
    _Atomic bool kicked;
    _Atomic bool close_asked;
    _Atomic(struct kvf_lane_read *) incoming;
    _Atomic(struct kvf_lane_block *) dirty;
    _Atomic(struct kvf_lane_block *) ended;
    _Atomic(struct kvf_lane_block *) tokens;
    struct kvf_post ended_post, tokens_post;
    _Atomic bool tokens_posted; /* the mailbox is also emptied without its post */
    struct kvf_post opened_post, gone_post, bye_post, parted_post;

    /* lane thread */
    bool started;
    bool stopping;
    struct kvf_status reason;                        /* why it is stopping */
    struct kvf_list reads;                           /* with open blocks */
    uint64_t highest_id;                             /* of all Reads ever */
    struct kvf_lane_block *batch_first, *batch_last; /* ended, not handed back yet */
    uint64_t batch_bytes;
    bool batch_is_due; /* it has the last block of a Read */
};

static inline struct kvf_status lane_fail(enum kvf_code code, int detail)
{
    return kvf_fail(KVF_MODULE_TRANSPORT, code, detail);
}

static inline void lane_count(_Atomic uint64_t *counter, uint64_t add)
{
    atomic_fetch_add_explicit(counter, add, memory_order_relaxed);
}

/* Owner: set up what is shared, count it, wake the lane thread. */
void lane_init(struct kvf_lane *lane, struct kvf_transport *transport, const struct lane_side *side,
               struct lane_thread *thread, const struct kvf_lane_events *events, void *user);
void lane_start(struct kvf_lane *lane);

/* The rest: lane thread only. */

/* Reads that the owner has handed over but that were not adopted yet. */
void lane_take_reads(struct kvf_lane *lane);
/* The Read that the other side names, NULL when it has ended here. False: it was never handed over. */
bool lane_find_read(struct kvf_lane *lane, uint64_t id, struct kvf_lane_read **read);
/* The block's memory is let go: hand it back with the next lane_flush. */
void lane_block_end(struct kvf_lane *lane, struct kvf_lane_block *block, struct kvf_status status);
/* Consumer: likewise OK, for all its bytes are there; zeroes the rest of its last page. */
void lane_block_arrived(struct kvf_lane *lane, struct kvf_lane_block *block);
static inline bool lane_block_is_over(const struct kvf_lane_block *block)
{
    unsigned marks = atomic_load_explicit(&block->marks, memory_order_relaxed);
    return (marks & (LANE_BLOCK_ENDING | LANE_BLOCK_ENDED)) != 0;
}
/* block->token is there: tell the owner, with no need of a flush. */
void lane_block_token(struct kvf_lane *lane, struct kvf_lane_block *block);
/* Blocks that have ended go back to their owner. While more bytes move at once he is not woken for each of them, but when
 * a Read is whole or LANE_BATCH_BYTES have ended. */
void lane_flush(struct kvf_lane *lane, bool more);
void lane_opened(struct kvf_lane *lane);
/* Stop for this reason; the first one counts. lane->stopping is set afterwards. */
void lane_end(struct kvf_lane *lane, struct kvf_status reason);
void lane_end_blocks(struct kvf_lane *lane);
void lane_gone(struct kvf_lane *lane);

#endif
