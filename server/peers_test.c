/* Sessions, from the call to its end: Hello, the lane and its nonces, draining. */
#include "server/consumer_fixture.h"
#include "server/peer_session.h"

/* ---- beginning ---- */

static void session__call_dropped_before_hello__leaves_nothing(void **state)
{
    (void)state;
    struct consumer consumer;
    for (int i = 0; i < 3; i++) {
        consumer_call(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 1);
        consumer_hang_up(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 0);
    }
}

static void session__bad_hello__is_ended(void **state)
{
    (void)state;
    char long_tenant[300];
    memset(long_tenant, 'a', sizeof(long_tenant) - 1);
    long_tenant[sizeof(long_tenant) - 1] = '\0';
    const struct {
        uint32_t version;
        const char *tenant, *transport;
        enum kvf_code code;
    } bad[] = {
        {KVF_PEER_VERSION + 1, "t", "tcp", KVF_UNSUPPORTED},
        {KVF_PEER_VERSION, "t", "pigeons", KVF_UNSUPPORTED},
        {KVF_PEER_VERSION, "", "tcp", KVF_OK},
        {KVF_PEER_VERSION, "t/f", "tcp", KVF_OK},
        {KVF_PEER_VERSION, long_tenant, "tcp", KVF_OK},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct consumer consumer;
        consumer_call(&consumer);
        consumer_say_hello(&consumer, bad[i].version, bad[i].tenant, bad[i].transport);
        node_run_until(consumer.call == NULL);
        assert_int_equal(consumer.welcomes, 0);
        assert_int_not_equal(consumer.status.code, KVF_OK);
        if (bad[i].code != KVF_OK)
            assert_int_equal(consumer.status.code, bad[i].code);
        consumer_hang_up(&consumer);
    }
}

static void session__garbage__is_ended(void **state)
{
    (void)state;
    const uint8_t garbage[] = {0xff, 0xff, 0xff, 0xff};
    for (int length = 0; length <= 4; length += 4) {
        struct consumer consumer;
        consumer_call(&consumer);
        kvf_rpc_call_send(consumer.call, (struct kvf_bytes){garbage, (size_t)length});
        node_run_until(consumer.call == NULL);
        assert_int_not_equal(consumer.status.code, KVF_OK);
        consumer_hang_up(&consumer);
    }
}

static void session__half_a_million_empty_blocks__is_ended(void **state)
{
    (void)state;
    static uint8_t bytes[CONSUMER_EMPTY_BYTES];
    struct consumer consumer;
    consumer_open(&consumer);
    size_t length = consumer_fill_empty(bytes, true);
    kvf_rpc_call_send(consumer.call, (struct kvf_bytes){bytes, length});
    node_run_until(consumer.call == NULL);
    assert_int_not_equal(consumer.status.code, KVF_OK);
    consumer_hang_up(&consumer);
}

static void session__lane_does_not_come__is_ended(void **state)
{
    (void)state;
    struct consumer consumer;
    consumer_call(&consumer);
    consumer_say_hello(&consumer, KVF_PEER_VERSION, "t", "tcp");
    node_run_until(consumer.welcomes == 1);
    node_run_until(consumer.call == NULL);
    consumer_hang_up(&consumer);
}

static void session__the_same_consumer_again__ends_the_older_one(void **state)
{
    (void)state;
    struct consumer older, newer;
    node_put(&node, 1);
    consumer_open(&older);
    consumer_read(&older, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(older.grants == 1);
    consumer_open(&newer);
    node_run_until(older.call == NULL && older.lane == NULL);
    node_assert_idle(&node);
    assert_non_null(newer.call);
    consumer_hang_up(&newer);
    consumer_hang_up(&older);
}

static void set_state__every_pair__follows_the_life_of_a_session(void **state)
{
    (void)state;
    for (enum session_state from = SESSION_HELLO; from <= SESSION_CLOSING; from++)
        for (enum session_state to = SESSION_HELLO; to <= SESSION_CLOSING; to++) {
            struct session session = {.state = from};
            bool legal = from != SESSION_CLOSING && (to == from + 1 || to == SESSION_CLOSING);
            if (legal)
                peer_set_state(&session, to);
            else
                assert_aborts(peer_set_state(&session, to));
        }
}

/* ---- nonces ---- */

/* A nonce belongs to the session, and so to the identity, that it was told to: whoever else says it opens that session's
 * lane, not one of his own, and what he asks for on his call is never sent there. */
static void nonce__of_another_session__opens_no_lane_of_ones_own(void **state)
{
    (void)state;
    struct consumer victim, thief;
    node_put(&node, 1);
    consumer_call(&victim);
    consumer_say_hello(&victim, KVF_PEER_VERSION, "t", "tcp");
    consumer_call(&thief);
    consumer_say_hello(&thief, KVF_PEER_VERSION, "u", "tcp");
    node_run_until(victim.welcomes == 1 && thief.welcomes == 1);
    consumer_connect(&thief, &victim);
    node_run_until(thief.lane_open);
    node_run_until(thief.call == NULL); /* its own lane has not opened in time */
    assert_int_equal(thief.status.code, KVF_DEADLINE);
    /* Used up: its owner cannot open the lane any more, and gives the session up. */
    consumer_connect(&victim, &victim);
    node_run_until(victim.lane == NULL);
    assert_false(victim.lane_open);
    consumer_hang_up(&thief);
    consumer_hang_up(&victim);
}

static void nonce__said_again_or_too_late__opens_nothing(void **state)
{
    (void)state;
    struct consumer consumer, again = {0};
    consumer_open(&consumer);
    consumer_connect(&again, &consumer);
    node_run_until(again.lane == NULL);
    assert_false(again.lane_open);
    consumer_hang_up(&consumer);
    consumer_connect(&again, &consumer); /* its session is gone */
    node_run_until(again.lane == NULL);
    assert_false(again.lane_open);

    consumer_call(&consumer);
    consumer_say_hello(&consumer, KVF_PEER_VERSION, "t", "tcp");
    node_run_until(consumer.call == NULL); /* a second has passed */
    consumer_connect(&again, &consumer);
    node_run_until(again.lane == NULL);
    assert_false(again.lane_open);
    consumer_hang_up(&consumer);
}

/* ---- draining ---- */

static void drain__session_with_a_lease__ends_when_that_is_released(void **state)
{
    (void)state;
    struct consumer idle, busy;
    node_put(&node, 1);
    node_put(&node, 2);
    consumer_open(&busy);
    consumer_read(&busy, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    consumer_read(&busy, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(busy.grants == 2);
    consumer_cancel(&busy, 1); /* the lane gives the blocks back, the leases stay */
    consumer_cancel(&busy, 2);
    kvf_peers_drain(node.peers);
    node_run_until(busy.drain_notices == 1);
    consumer_read(&busy, 3, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(busy.refusals == 1);
    assert_int_equal(busy.refused_code, KVF_DRAINING);
    consumer_release(&busy, 1);
    consumer_release(&busy, 2);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    node_run_until(busy.call == NULL);
    assert_int_equal(busy.status.code, KVF_UNAVAILABLE); /* gRPC has no other word */
    consumer_call(&idle);
    node_run_until(idle.call == NULL);
    assert_int_equal(idle.status.code, KVF_UNAVAILABLE);
    consumer_hang_up(&busy);
    consumer_hang_up(&idle);
}

static void drain__queued_read__is_refused_and_its_session_ends(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    node_take_memory(&node);
    consumer_open(&consumer);
    consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_SERVE]));
    kvf_peers_drain(node.peers);
    node_run_until(consumer.call == NULL);
    assert_int_equal(consumer.refusals, 1);
    assert_int_equal(consumer.refused_code, KVF_DRAINING);
    node_return_memory(&node);
    consumer_hang_up(&consumer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONSUMER_TEST(session__call_dropped_before_hello__leaves_nothing),
        CONSUMER_TEST(session__bad_hello__is_ended),
        CONSUMER_TEST(session__garbage__is_ended),
        CONSUMER_TEST(session__half_a_million_empty_blocks__is_ended),
        CONSUMER_TEST(session__lane_does_not_come__is_ended),
        CONSUMER_TEST(session__the_same_consumer_again__ends_the_older_one),
        CONSUMER_TEST(drain__session_with_a_lease__ends_when_that_is_released),
        CONSUMER_TEST(drain__queued_read__is_refused_and_its_session_ends),
        CONSUMER_TEST(nonce__of_another_session__opens_no_lane_of_ones_own),
        CONSUMER_TEST(nonce__said_again_or_too_late__opens_nothing),
        CONSUMER_TEST(set_state__every_pair__follows_the_life_of_a_session),
    };
    return cmocka_run_group_tests_name("server/peers", tests, NULL, NULL);
}
