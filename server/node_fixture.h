/* A node without its Manager: real pool, index, admission, loads, store, lanes and peer service, all on the test's loop.
 * One is a daemon's inside; two are a consumer and its source. */
#ifndef KVFERRY_SERVER_NODE_FIXTURE_H
#define KVFERRY_SERVER_NODE_FIXTURE_H

#include "base/clock.h"
#include "base/test.h"
#include "server/awaited.h"
#include "server/carry.h"
#include "server/get.h"
#include "server/peers.h"
#include "server/put.h"

#define NODE_WAIT_S 20
#define NODE_SPACE "t/f"
#define NODE_BLOCK_BYTES KVF_MIB

struct node_options {
    uint64_t pool_bytes; /* 0: 16 MiB; likewise every class */
    bool ssd;
    bool
        faulty; /* its reads and writes pass through storage's faulty engine; one such node at a time */
    unsigned
        ssd_depth; /* pieces of reads in flight, by one reader: they start in their order. 0: 4 */
    const char *peers[2]; /* addresses of sources, NULL: no more */
    const struct kvf_acl *acl;
    struct kvf_audit *audit;
};

struct node {
    struct kvf_pool *pool;
    const struct kvf_arena *arenas[64];
    struct kvf_worker *worker;
    struct kvf_store *store;
    struct kvf_index *index;
    struct kvf_awaited awaited; /* a test opens and closes it */
    struct kvf_recovery recovery;
    struct kvf_loads *loads;
    struct kvf_carries *carries; /* NULL: no store */
    struct kvf_transport *transport;
    struct kvf_sources *sources;
    struct kvf_peers *peers;
    struct kvf_rpc_server *server;
    struct kvf_rpc_method methods[KVF_PEERS_METHODS];
    struct kvf_admission admission;
    struct gets gets;
    struct puts puts;
    struct kvf_leases leases;
    struct kvf_counters counters;
    struct kvf_pull_stats pull_stats;
    const char *peer_addresses[2];
    char path[64];
    char address[32]; /* of the peer service */
};

extern struct kvf_loop *node_loop;
extern struct kvf_rpc *node_rpc;

/* The loop and gRPC that all nodes of a test share. */
void node_set_up(void);
void node_tear_down(void);
/* Likewise, for cmocka. */
int node_set_up_test(void **state);
int node_tear_down_test(void **state);
#define NODE_TEST(name) cmocka_unit_test_setup_teardown(name, node_set_up_test, node_tear_down_test)

void node_start(struct node *node, const struct node_options *options);
/* Waits until nothing is in flight; every gauge must be zero then. */
void node_stop(struct node *node);
void node_assert_idle(struct node *node);
/* The peer service goes: sessions end, nobody answers at the address any more. */
void node_stop_serving(struct node *node);

/* Drives the loop until the condition holds; a test that would wait for ever fails instead. */
#define node_run_until(condition)                                                                  \
    do {                                                                                           \
        uint64_t until_ = kvf_clock_now_ns() + NODE_WAIT_S * KVF_NS_PER_S;                         \
        while (!(condition)) {                                                                     \
            assert_true(kvf_clock_now_ns() < until_);                                              \
            kvf_loop_run_once(node_loop, 20);                                                      \
        }                                                                                          \
    } while (0)

/* An ACL of shares alone: what stands between the braces of "tenants". */
struct kvf_acl *node_shares(const char *tenants);
struct kvf_key node_key(unsigned block);
uint32_t node_crc(unsigned block, uint64_t length);
/* Puts a block of NODE_BLOCK_BYTES and waits until its record is durable. */
void node_put(struct node *node, unsigned block);
void node_put_in(struct node *node, const char *ns, unsigned block);
/* A place that is not committed. */
struct put *node_begin(struct node *node, unsigned block);
void node_commit(struct put *put, unsigned block);
/* What the node's index says to a block; false: nothing. */
bool node_look(struct node *node, unsigned block, struct kvf_found *found);
bool node_has(struct node *node, unsigned block);
bool node_has_in(struct node *node, const char *ns, unsigned block);
/* Its entry; NULL: it is not there, or lies only on SSD. */
struct kvf_entry *node_find(struct node *node, unsigned block);
void node_forget(struct node *node, unsigned block);
/* What a recovery that the test has opened (node->awaited) finds: the record of a block that node_lose has taken. */
struct node_lost {
    struct kvf_record record;
    struct kvf_location location;
};
/* The block (on SSD) is unknown from now on, as at a start. */
struct node_lost node_lose(struct node *node, unsigned block);
void node_recovers(struct node *node, const struct node_lost *lost);
/* Only on SSD from now on, or gone where there is none. */
void node_evict(struct node *node);
/* A bit of what lies there on SSD flips; the same once more brings it back. */
void node_flip_on_ssd(struct node *node, struct kvf_location at, uint64_t bit);
/* What lies on SSD goes bad: the drive's segments are cut (reads fail) or changed (bytes are wrong). */
void node_cut_segments(struct node *node);
void node_change_segments(struct node *node);
/* All of the pool is taken, until it is given back. */
void node_take_memory(struct node *node);
void node_return_memory(struct node *node);

#define NODE_MAX_ITEMS 8

/* Numbers of blocks. */
#define LIST(...)                                                                                  \
    (const unsigned[])                                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* A Get and what came of it. */
struct node_get {
    struct node *node;
    struct get *get; /* NULL once freed */
    unsigned answered, freed;
    uint32_t prefix;
    struct kvf_status status;
    enum kvf_code codes[NODE_MAX_ITEMS];
    enum kvf_tier tiers[NODE_MAX_ITEMS];
    enum kvf_origin origins[NODE_MAX_ITEMS];
    unsigned blocks[NODE_MAX_ITEMS];
    void (*on_answer)(struct node_get *ask);
    struct node_get *other; /* for on_answer */
};

/* Prepares a Get of `count` blocks (a list of their numbers) with lengths as put. */
void node_get_prepare(struct node *node, struct node_get *ask, const unsigned *blocks,
                      uint32_t count, uint64_t timeout_ms);
/* The same, started. Held blocks are compared with what was put when the answer comes. */
void node_get_start(struct node *node, struct node_get *ask, const unsigned *blocks, uint32_t count,
                    uint64_t timeout_ms);
void node_get_release(struct node_get *ask);
void node_get_drop(struct node_get *ask);

#endif
