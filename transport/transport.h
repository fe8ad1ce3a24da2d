/* transport: lanes that carry the bytes of blocks from a source's DRAM to a consumer's. `tcp` is the twin that always
 * works; verbs and ucx stand beside it behind this header and pass the same conformance suite.
 *
 * Who does what: the consumer says where the blocks of a Read may land (`expect`), the source says where they lie
 * (`offer`) and, while they still come from the drive, how far they have (`landed`).
 *   tcp, ucx  the source sends each piece as it lands. Nobody names an address: blocks are named by {read id, index}
 *   verbs     the source's NIC is told to let the consumer read a block when it is whole; the owner gets a token for it
 *             (`tokens`) and brings it to the consumer, who `take`s it and reads. So the source does not know when the
 *             consumer is done: its owner says so (`release`), and only then can the block end
 *
 * Threads: the owner's loop thread calls everything and gets every callback. A few lane threads inside serve all lanes:
 * they send, receive and check, and post back.
 *
 * Ownership: the caller embeds struct kvf_lane_read with its array of blocks and leaves both alone until every block
 * has ended. Every expected and every offered block ends exactly once, by `ended`, never inside a call; after it the
 * block's memory is the caller's again, whatever the network still does.
 *
 * Life of a lane:
 *   CONNECTING  invited (source) or connecting (consumer); expect and offer are legal already
 *   OPEN        `opened` has run
 *   CLOSING     kvf_lane_close, or the other side or the network ended it; blocks end with the reason
 *   CLOSED      `closed` runs once, after the last block's `ended`; the lane's memory is gone when it returns */
#ifndef KVFERRY_TRANSPORT_TRANSPORT_H
#define KVFERRY_TRANSPORT_TRANSPORT_H

#include "base/arena.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_transport;
struct kvf_lane;
struct kvf_lane_read;

#define KVF_NONCE_BYTES 32
#define KVF_TOKEN_MAX_BYTES 64                   /* what may travel */
#define KVF_LANE_TOKEN_ROOM 16                   /* what any transport here needs */
#define KVF_LANE_PIECE_BYTES ((uint64_t)1 << 20) /* turns between Reads; also the longest frame */

struct kvf_nonce {
    uint8_t bytes[KVF_NONCE_BYTES];
};

/* Two secrets for one lane, each used once: the consumer says `connect`, the source answers `accept`. */
struct kvf_lane_nonces {
    struct kvf_nonce connect;
    struct kvf_nonce accept;
};

struct kvf_transport_options {
    struct kvf_loop *loop;
    unsigned lane_threads; /* 0: 2 */
    /* Where blocks may lie; registered with the NICs; borrowed for life. */
    const struct kvf_arena *const *arenas;
    size_t arena_count;
    /* verbs, ucx: the devices to use, by name ("mlx5_0"), and nothing is opened when one of them is of no use; none:
     * all that are. */
    const char *const *nics;
    size_t nic_count;
    uint32_t lane_blocks; /* verbs: most blocks that a source lane has open; 0: 1024 */
    bool ucx_over_tcp;    /* ucx: over the loopback's TCP instead of RDMA; only for tests */
};

/* The names of all transports, by number from 0 on, also of those that this build or host lacks; NULL: there are no more. */
const char *kvf_transport_nth(size_t number);
/* Does this build have a transport of this name? (This host may lack what it needs all the same.) */
bool kvf_transport_is_built_in(const char *name);
/* name: "tcp", "verbs", "ucx". UNSUPPORTED: this build or host has no such transport (*why says what is missing). */
KVF_MUST_USE struct kvf_status kvf_transport_open(const char *name,
                                                  const struct kvf_transport_options *options,
                                                  struct kvf_transport **give, struct kvf_why *why);
const char *kvf_transport_name(const struct kvf_transport *transport);

#define KVF_TRANSPORT_DEVICES_MAX 16

/* What its owner must know of an open transport. */
struct kvf_transport_traits {
    /* source: blocks end only after kvf_lane_release; consumer: nothing comes without a token */
    bool needs_tokens;
    uint32_t lane_blocks; /* most blocks that a source lane can have open; 0: any number */
    /* The network's hardware cannot keep what one peer may read from another one: the owner serves one tenant only. */
    bool single_tenant;
    char single_tenant_why[128]; /* which device, and what it lacks */
    bool bares_consumers; /* then also who only consumes: its memory is open to its sources */
    /* Which lanes can be told to go over. None: it does not choose among devices. */
    const char *devices[KVF_TRANSPORT_DEVICES_MAX];
    size_t device_count;
    uint64_t locked_bytes; /* of memory: the arenas, once for each device */
};
const struct kvf_transport_traits *kvf_transport_traits(const struct kvf_transport *transport);

/* The transports of one node, the preferred one first. The two ends of a session choose one by its name. */
#define KVF_TRANSPORTS_MAX 2
struct kvf_transports {
    struct kvf_transport *list[KVF_TRANSPORTS_MAX];
    size_t count;
};

static inline struct kvf_transports kvf_transports_only(struct kvf_transport *transport)
{
    return (struct kvf_transports){.list = {transport}, .count = 1};
}

/* NULL: none of them is called that. */
struct kvf_transport *kvf_transports_find(const struct kvf_transports *transports,
                                          const char *name);

/* One way to the network for a transport that chooses among devices. */
struct kvf_nic {
    char device[64];
    char kind[16]; /* "RoCE v2", "RoCE v1", "IB" */
    char address[46];
    unsigned port, gid_index;
    int numa_node; /* -1: not known, or there is one only */
    bool is_active;
};
/* What this host has for the transport of this name; opens nothing. At most `room` are written; returns how many there
 * are. */
size_t kvf_transport_nics(const char *name, struct kvf_nic *nics, size_t room);

/* Every lane must be CLOSED. Joins the lane threads. NULL is fine. */
void kvf_transport_close(struct kvf_transport *transport);

/* Source: accept lanes on "HOST:PORT" (port 0: any). UNAVAILABLE: taken. Once per transport. */
KVF_MUST_USE struct kvf_status kvf_transport_listen(struct kvf_transport *transport,
                                                    const char *address, struct kvf_why *why);
int kvf_transport_port(const struct kvf_transport *transport);
/* Where its devices can be reached, each "HOST:PORT", when it listens; at most `room` are written, returns how many. None:
 * wherever the host is. */
#define KVF_TRANSPORT_ADDRESS_BYTES 64
size_t kvf_transport_addresses(const struct kvf_transport *transport,
                               char (*addresses)[KVF_TRANSPORT_ADDRESS_BYTES], size_t room);
/* How near a numeric "HOST:PORT" is to this device, as one of several: the bits that it has in common with the device's own
 * address. 0: not at all. */
unsigned kvf_transport_nearness(const struct kvf_transport *transport, size_t device,
                                const char *address);

/* By it the consumer may read one block. A secret: never logged. */
struct kvf_lane_token {
    uint32_t block;
    uint8_t length;
    uint8_t bytes[KVF_TOKEN_MAX_BYTES];
};

/* What a lane tells its owner. */
struct kvf_lane_events {
    void (*opened)(struct kvf_lane *lane, void *user);
    /* Source, where the transport needs tokens: these blocks of the Read can be read now; the consumer gets the tokens
     * and takes them. None comes for a block that was withdrawn or has ended. */
    void (*tokens)(struct kvf_lane *lane, void *user, struct kvf_lane_read *read,
                   const struct kvf_lane_token *tokens, size_t count);
    /* OK after kvf_lane_close; else why it ended: UNAVAILABLE (the other side or the network), DEADLINE (did not open
     * in time), PROTOCOL (the other side sent what is illegal), DENIED (a wrong nonce). */
    void (*closed)(struct kvf_lane *lane, void *user, struct kvf_status status);
};

/* Source: make nonces (random) and a lane that waits for the one connection that says them, until the deadline. */
KVF_MUST_USE struct kvf_status kvf_lane_invite(struct kvf_transport *transport,
                                               uint64_t deadline_ns,
                                               const struct kvf_lane_events *events, void *user,
                                               struct kvf_lane_nonces *nonces,
                                               struct kvf_lane **give);
#define KVF_ANY_DEVICE SIZE_MAX
/* Consumer: connect to "HOST:PORT", a numeric address or a name that the caller accepts to wait for. device: one of the
 * transport's (traits->devices) that the lane leaves by, or KVF_ANY_DEVICE, and the kernel's route decides. */
KVF_MUST_USE struct kvf_status
kvf_lane_connect(struct kvf_transport *transport, const char *address, size_t device,
                 const struct kvf_lane_nonces *nonces, uint64_t deadline_ns,
                 const struct kvf_lane_events *events, void *user, struct kvf_lane **give);
/* End it. Blocks that are still open end CANCELLED, then `closed` runs; neither waits for the other side. */
void kvf_lane_close(struct kvf_lane *lane);

/* One block of a Read, on one lane. The caller sets the first part. */
struct kvf_lane_block {
    struct kvf_extent extent;
    uint64_t length; /* >= 1; a block that will not be sent or expected has 0 and never ends */
    /* Source: how much of its front is in memory (offer: as given; later by kvf_lane_landed). */
    uint64_t landed_bytes;

    /* Set when it has ended. */
    /* OK: all `length` bytes were sent (verbs: could be read), or have arrived */
    struct kvf_status status;
    uint32_t crc32c; /* consumer, OK: of the bytes that arrived */

    /* transport's own */
    struct kvf_lane_read *read;
    struct kvf_lane_block *link; /* in one mailbox at a time, lane_core.h says in which */
    struct kvf_list node;        /* lane thread: in the Read's ready blocks */
    uint64_t done_bytes;         /* lane thread: sent or received */
    uint64_t framed_bytes;       /* lane thread: given to frames, asked for */
    _Atomic uint64_t ready_bytes;
    _Atomic bool withdrawn, released;
    _Atomic unsigned marks;            /* enum lane_block_mark */
    struct kvf_lane_block *token_link; /* source: in the mailbox of tokens */
    void *window;                      /* lane thread: verbs, source */
    uint8_t token_bytes; /* source: made by the lane thread; consumer: as it was taken */
    uint8_t token[KVF_LANE_TOKEN_ROOM];
};

/* A Read on one lane. Ids rise; within a lane an id is used once. */
struct kvf_lane_read {
    uint64_t id;       /* >= 1 */
    uint64_t instance; /* lanes serve instances in turns, then their Reads */
    struct kvf_lane_block *blocks;
    uint32_t block_count;
    /* On the loop's thread, once per block with a length. When it has run for the last one the Read is the caller's. */
    void (*ended)(struct kvf_lane_read *read, uint32_t block);

    /* transport's own */
    struct kvf_lane *lane;
    struct kvf_lane_read *link;   /* on its way to the lane thread */
    struct kvf_list node;         /* lane thread: in the lane's open Reads */
    struct kvf_list ready_node;   /* lane thread: in the lane's Reads that can send, or ask */
    struct kvf_list ready;        /* lane thread: blocks that can be sent, or asked for, by index */
    uint64_t turn, instance_turn; /* lane thread: when it and its instance were served */
    uint32_t open_blocks;         /* lane thread */
};

/* Consumer: these blocks may land here. The caller sends the Read to the source only after this. */
void kvf_lane_expect(struct kvf_lane *lane, struct kvf_lane_read *read);
/* Source: send these, each as far as it has landed. Blocks are sent in order of readiness, bytes of one block in order.
 * Not more of them than kvf_lane_room. */
void kvf_lane_offer(struct kvf_lane *lane, struct kvf_lane_read *read);
/* Source: how many more blocks can be offered now. Each block that ends makes room for one. */
uint64_t kvf_lane_room(const struct kvf_lane *lane);
/* Source: the front of this offered block is in memory now, `landed_bytes` of it. Ignored once it has ended. */
void kvf_lane_landed(struct kvf_lane_read *read, uint32_t block, uint64_t landed_bytes);

/* Consumer: the token by which this block can be read has come. Ignored once the block has ended. PROTOCOL: it is no
 * token of this transport, or the block has one already. */
KVF_MUST_USE struct kvf_status kvf_lane_take(struct kvf_lane_read *read, uint32_t block,
                                             const uint8_t *token, size_t token_bytes);

#define KVF_LANE_ALL_BLOCKS UINT32_MAX
/* Either side: stop with this block (or all that are open) as soon as its memory can be let go; it ends CANCELLED, or
 * OK if it was done already. At the consumer what still arrives for it is discarded. At a source whose tokens are out
 * that is not before the release: the consumer may be reading. */
void kvf_lane_withdraw(struct kvf_lane_read *read, uint32_t block);
/* Source: the consumer has said that it is done with this Read. What was not sent yet will not be; every block that is
 * open ends, OK where the consumer had all it needed to read it. Only for what the consumer has said: where it has not,
 * and memory must come back, close the lane first. After kvf_lane_close it lets go of nothing before the lane does. */
void kvf_lane_release(struct kvf_lane_read *read);

struct kvf_lane_stats {
    uint64_t sent_bytes;      /* payload; verbs: of the blocks that ended OK */
    uint64_t received_bytes;  /* payload that landed where it was expected */
    uint64_t discarded_bytes; /* payload that nobody expected any more */
    uint64_t protocol_errors; /* connections ended for what they sent, nonces that were wrong */
};

void kvf_transport_stats(const struct kvf_transport *transport, struct kvf_lane_stats *stats);

#endif
