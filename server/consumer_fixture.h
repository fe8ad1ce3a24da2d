/* Consumers by hand: each one call, one lane and what came down, at a node that serves. A test is set up and torn down by
 * CONSUMER_TEST; the node's audit lines are kept. */
#ifndef KVFERRY_SERVER_CONSUMER_FIXTURE_H
#define KVFERRY_SERVER_CONSUMER_FIXTURE_H

#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "server/node_fixture.h"

#include <stdio.h>

/* The source. Blocks are NODE_BLOCK_BYTES long, the namespace is NODE_SPACE. */
extern struct node node;

int consumer_set_up(void **state);
/* With an ACL that names somebody else: nobody here has a certificate, so nobody can be in it. */
int consumer_set_up_strangers(void **state);
int consumer_tear_down(void **state);

#define CONSUMER_TEST(name)                                                                        \
    cmocka_unit_test_setup_teardown(name, consumer_set_up, consumer_tear_down)
#define CONSUMER_TEST_OF_STRANGERS(name)                                                           \
    cmocka_unit_test_setup_teardown(name, consumer_set_up_strangers, consumer_tear_down)

/* ---- a session ---- */

struct consumer {
    struct kvf_rpc_channel *channel;
    struct kvf_rpc_call *call; /* NULL once closed */
    struct kvf_lane *lane;
    unsigned welcomes, grants, refusals, drain_notices, commits;
    bool lane_open;
    struct kvf_lane_nonces nonces;
    char data_address[32];
    uint32_t refused_code;
    uint64_t refused_id;
    struct kvf_status status;
    uint32_t code; /* the first of the last Grants */
    struct expected {
        struct kvf_lane_read read;
        struct kvf_lane_block block;
    } expected[64]; /* by id */
    uint64_t last_expected;
};

void consumer_call(struct consumer *consumer);
void consumer_hang_up(struct consumer *consumer); /* and waits for both ends */
void consumer_say_hello(struct consumer *consumer, uint32_t version, const char *tenant,
                        const char *transport);
/* A lane with the nonces that this one, or another, was told. */
void consumer_connect(struct consumer *consumer, const struct consumer *whose);
/* All of that, until call and lane are open. */
void consumer_open(struct consumer *consumer);

/* A Read of blocks first, first + 1, ... */
void consumer_read(struct consumer *consumer, uint64_t id, const char *ns, unsigned first,
                   size_t count, uint64_t length);
void consumer_release(struct consumer *consumer, uint64_t id);
void consumer_cancel(struct consumer *consumer, uint64_t id);
void consumer_raise(struct consumer *consumer, uint64_t id);

/* A megabyte of empty blocks in one Read, or of empty keys in one Lookup: it would unpack to sixty times its size. */
#define CONSUMER_EMPTY_BYTES (UINT64_C(1) << 20)
size_t consumer_fill_empty(uint8_t bytes[CONSUMER_EMPTY_BYTES], bool is_read);

/* ---- Lookup ---- */

struct consumer_lookup {
    unsigned answers;
    uint64_t count; /* of the last answer */
    uint32_t codes[4];
};
extern struct consumer_lookup lookup;

/* Waits for the end of the call: its code. */
enum kvf_code consumer_ask(struct kvf_bytes question);
enum kvf_code consumer_look_up(const char *ns, ProtobufCBinaryData *keys, size_t count);

/* ---- the audit log ---- */

extern unsigned audit_line_count;
/* How many lines have all of this in them. */
unsigned audit_lines_with(const char *one, const char *other);

#endif
