/* Two ends of a transport in one process, on one loop, and Reads that check themselves: shared by
 * the transport's tests. Test only. */
#ifndef KVFERRY_TRANSPORT_TESTBED_H
#define KVFERRY_TRANSPORT_TESTBED_H

#include "base/test.h"

#include "base/block.h"
#include "transport/transport.h"

#define TESTBED_ARENA_BYTES (64 * KVF_MIB)
#define TESTBED_SENTINEL 0xa5
#define TESTBED_MAX_BLOCKS 512
#define TESTBED_WAIT_S 60

/* One side: a transport with one lane at a time, and an arena or two. */
struct testbed_end {
    struct kvf_transport *transport;
    struct kvf_arena arena;
    struct kvf_arena extra; /* 0 bytes: none */
    struct kvf_lane *lane;  /* NULL after closed */
    bool opened;
    unsigned opened_count, closed_count;
    struct kvf_status closed;
};

struct testbed_read;

struct testbed {
    char name[16];
    char host[64]; /* where the source listens */
    bool needs_tokens;
    bool ucx_over_tcp;    /* set before testbed_can_open and testbed_open */
    uint32_t lane_blocks; /* of every transport that is opened; 0: TESTBED_MAX_BLOCKS */
    /* Where tokens of a Read without a peer here go; NULL: nowhere. */
    void (*tell)(struct testbed_read *from, const struct kvf_lane_token *tokens, size_t count);
    struct kvf_loop *loop;
    struct testbed_end source, consumer;
    uint8_t *pattern; /* what the source's arena holds; made once */
    struct kvf_lane_nonces nonces;
    uint64_t random;
};

/* Where the transport needs tokens, the testbed plays the session: it brings the tokens of a source's Read to the
 * consumer's, and the word that this one has ended back as a release. */
struct testbed_read {
    struct kvf_lane_read read;
    struct kvf_lane_block blocks[TESTBED_MAX_BLOCKS];
    unsigned ended_count[TESTBED_MAX_BLOCKS];
    struct kvf_lane_token tokens[TESTBED_MAX_BLOCKS]; /* source: length 0 where none is out */
    struct testbed_read *peer;                        /* the other side's, while it is open */
    struct kvf_list node; /* consumer: in the testbed's expected Reads */
    uint32_t ended, ended_ok, expected;
    uint64_t last_event; /* number of the event that ended its last block */
    bool scribble;       /* overwrite a block's memory as soon as it has ended */
};

extern struct testbed testbed;

/* False: this host cannot run it, and words on stderr say why. */
bool testbed_can_open(const char *transport);
void testbed_open(const char *transport);
/* The same again, and each end has `extra` too. */
void testbed_reopen(uint64_t extra_bytes);
void testbed_close(void);

/* Around each test of a program: one that gets both ends of a transport. */
int testbed_set_up(void **state); /* *state: its name */
int testbed_tear_down(void **state);
#define TESTBED_TEST(transport, function)                                                          \
    cmocka_unit_test_prestate_setup_teardown(function, testbed_set_up, testbed_tear_down,          \
                                             (void *)(transport))

uint64_t testbed_random(uint64_t below);
/* Serve the loop until *condition, at most TESTBED_WAIT_S; fails the test then. */
void testbed_wait(bool (*condition)(void *), void *argument);
/* A source's Read that nobody expects any more is released for it. */
void testbed_wait_ended(struct testbed_read *read);
void testbed_wait_opened(struct testbed_end *end);
void testbed_wait_closed(struct testbed_end *end);
void testbed_serve_ms(unsigned ms);

/* Hold up the thread of this end's lane, so that what is handed to it meanwhile is there all at once. One at a time. */
void testbed_stall(struct testbed_end *end);
void testbed_go_on(void);
/* The same for the end that decides what moves when: the source, or who takes the tokens. It goes on when whatever is whole
 * can move. */
void testbed_hold(void);
void testbed_let_go(void);

/* Only sentinels there. */
bool testbed_is_untouched(const uint8_t *at, uint64_t bytes);

extern const struct kvf_lane_events testbed_events;
/* The source's. */
int testbed_port(void);
/* By any end, the testbed's own or a test's. The port is one on the source's host. */
void testbed_end_invite(struct testbed_end *end, struct kvf_lane_nonces *nonces,
                        uint64_t timeout_ms);
void testbed_end_connect(struct testbed_end *end, int port, const struct kvf_lane_nonces *nonces,
                         uint64_t timeout_ms);
/* By the testbed's own, the consumer to the source. */
void testbed_invite(uint64_t timeout_ms);
void testbed_connect(const struct kvf_lane_nonces *nonces, uint64_t timeout_ms);
/* Invite, connect, wait until both are open. */
void testbed_lanes_open(void);
/* Close both, wait. */
void testbed_lanes_close(void);

/* A read of this end's arena with block_count blocks, all of length 0. */
struct testbed_read *testbed_read_make(struct testbed_end *end, uint64_t id, uint64_t instance,
                                       uint32_t block_count);
void testbed_read_set(struct testbed_read *read, uint32_t block, uint64_t offset, uint64_t length,
                      uint64_t landed);
/* On the testbed's own lanes. What is offered belongs to what is expected under the same id. */
void testbed_expect(struct testbed_read *read);
void testbed_offer(struct testbed_read *read);
/* On other lanes. */
void testbed_transfer(struct kvf_lane *consumer, struct testbed_read *to, struct kvf_lane *source,
                      struct testbed_read *from);
/* Every block ended OK and holds what lies at the source block's place, CRC and tail included. */
void testbed_check_ok(const struct testbed_read *to, const struct testbed_read *from,
                      uint32_t block);
/* One block of so many bytes goes over the testbed's lanes, and is right. */
void testbed_check_transfer(uint64_t bytes);
struct kvf_lane_stats testbed_stats(const struct testbed_end *end);

/* TCP, for a peer that is none of ours: a socket that is connected to the source's port; one that listens on the loopback. */
int testbed_socket_connected(void);
int testbed_socket_listening(int *port);
/* How many this process has open. */
unsigned testbed_descriptors(void);

#endif
