/* Who is denied, and what the audit log says of it and of what was allowed. */
#include "server/consumer_fixture.h"

static void stranger__session_and_lookup__denied_before_anything_is_said(void **state)
{
    (void)state;
    struct consumer consumer;
    struct kvf_key key = node_key(1);
    ProtobufCBinaryData keys[] = {{.len = key.length, .data = key.bytes}};
    node_put(&node, 1);
    consumer_call(&consumer);
    node_run_until(consumer.call == NULL);
    assert_int_equal(consumer.status.code, KVF_DENIED);
    consumer_hang_up(&consumer);
    lookup.answers = 0;
    assert_int_equal(consumer_look_up(NODE_SPACE, keys, 1), KVF_DENIED);
    assert_int_equal(lookup.answers, 0);
    assert_int_equal(
        audit_lines_with("denied identity=- tenant=-", "what=session reason=unknown_identity"), 1);
    assert_int_equal(
        audit_lines_with("denied identity=- tenant=-", "what=lookup reason=unknown_identity"), 1);
    assert_int_equal(audit_line_count, 2);
    assert_int_equal(kvf_peers_sessions(node.peers), 0);
}

static void audit__reads_of_every_outcome__one_line_each(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    consumer_open(&consumer);
    consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 1 && node.counters.serve.blocks == 1);
    consumer_release(&consumer, 1);
    consumer_read(&consumer, 2, NODE_SPACE, 7, 3, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 2);
    consumer_release(&consumer, 2);
    consumer_read(&consumer, 3, NODE_SPACE, 1, 64, 128 * KVF_MIB); /* more than the pool has */
    node_run_until(consumer.refusals == 1);
    consumer_hang_up(&consumer);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    assert_int_equal(
        audit_lines_with("read identity=- tenant=t id=1 blocks=1 hits=1 sent=1 bytes=1048576",
                         "outcome=OK"),
        1);
    assert_int_equal(audit_lines_with("id=1 ", " key=016b"), 1);
    assert_int_equal(audit_lines_with("id=2 blocks=3 hits=0 sent=0 bytes=0", "outcome=NOT_FOUND"),
                     1);
    assert_int_equal(audit_lines_with("id=3 blocks=64", "outcome=TOO_LARGE"), 1);
    assert_int_equal(audit_line_count, 3);
}

static void audit__read_cut_off_by_the_session__one_line(void **state)
{
    (void)state;
    struct consumer consumer;
    struct put *put = node_begin(&node, 1);
    consumer_open(&consumer);
    consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 1);
    consumer_hang_up(&consumer);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    assert_int_equal(audit_lines_with("read ", "id=1 blocks=1 hits=0"), 1);
    assert_int_equal(audit_line_count, 1);
    put_abort(put);
}

static void audit__forced_end__one_line(void **state)
{
    (void)state;
    struct consumer consumer;
    consumer_open(&consumer);
    kvf_peers_force(node.peers);
    kvf_peers_force(node.peers);
    node_run_until(consumer.call == NULL);
    consumer_hang_up(&consumer);
    assert_int_equal(audit_lines_with("forced identity=- tenant=t", "reason=drain"), 1);
    assert_int_equal(audit_line_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONSUMER_TEST_OF_STRANGERS(stranger__session_and_lookup__denied_before_anything_is_said),
        CONSUMER_TEST(audit__reads_of_every_outcome__one_line_each),
        CONSUMER_TEST(audit__read_cut_off_by_the_session__one_line),
        CONSUMER_TEST(audit__forced_end__one_line),
    };
    return cmocka_run_group_tests_name("server/peer_rights", tests, NULL, NULL);
}
