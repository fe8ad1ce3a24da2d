/* Reads of a session, from the message to the Release. */
#include "server/consumer_fixture.h"

static void read__what_no_read_may_say__ends_the_session(void **state)
{
    (void)state;
    for (int bad = 0; bad < 8; bad++) {
        struct consumer consumer;
        consumer_open(&consumer);
        consumer_read(&consumer, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        node_run_until(consumer.grants == 1);
        assert_int_equal(consumer.code, KVF_NOT_FOUND);
        if (bad == 0)
            consumer_read(&consumer, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        else if (bad == 1)
            consumer_read(&consumer, 3, NODE_SPACE, 1, 65, NODE_BLOCK_BYTES);
        else if (bad == 2)
            consumer_read(&consumer, 3, NODE_SPACE, 1, 0, NODE_BLOCK_BYTES);
        else if (bad == 3)
            consumer_read(&consumer, 3, "u/f", 1, 1, NODE_BLOCK_BYTES);
        else if (bad == 4)
            consumer_read(&consumer, 3, NODE_SPACE, 1, 1, 0);
        else if (bad == 5)
            consumer_read(&consumer, 3, NODE_SPACE, 1, 1, KVF_BLOCK_MAX_BYTES + 1);
        else if (bad == 6)
            consumer_release(&consumer, 3);
        else
            consumer_cancel(&consumer, 3);
        node_run_until(consumer.call == NULL);
        assert_int_not_equal(consumer.status.code, KVF_OK);
        consumer_hang_up(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 0);
    }
}

static void read__more_than_may_be_open__is_busy_until_one_is_released(void **state)
{
    (void)state;
    struct consumer consumer;
    struct put *put = node_begin(&node, 1);
    consumer_open(&consumer);
    for (uint64_t id = 1; id <= KVF_MAX_OPEN_READS; id++)
        consumer_read(&consumer, id, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    consumer_read(&consumer, 50, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.refusals == 1);
    assert_int_equal(consumer.refused_code, KVF_BUSY);
    assert_int_equal(consumer.refused_id, 50);
    consumer_release(&consumer, 50); /* crosses: fine */
    consumer_release(&consumer, 3);
    consumer_release(&consumer, 3);
    consumer_cancel(&consumer, 4);
    consumer_read(&consumer, 51, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == KVF_MAX_OPEN_READS + 1);
    assert_int_equal(node.leases.open, KVF_MAX_OPEN_READS);
    node_commit(put, 1);
    node_run_until(consumer.commits == KVF_MAX_OPEN_READS);
    consumer_hang_up(&consumer);
}

static void read__released_while_its_blocks_load__does_not_count_as_open(void **state)
{
    (void)state;
    struct consumer consumer;
    for (unsigned block = 1; block <= 12; block++)
        node_put(&node, block);
    node_evict(&node);
    consumer_open(&consumer);
    for (uint64_t id = 1; id <= 3 * KVF_MAX_OPEN_READS; id++) {
        consumer_read(&consumer, id, NODE_SPACE, 1 + (unsigned)id % 12, 1, NODE_BLOCK_BYTES);
        consumer_release(&consumer, id);
    }
    node_run_until(consumer.grants + consumer.refusals == 3 * KVF_MAX_OPEN_READS);
    assert_int_equal(consumer.refusals, 0);
    node_assert_idle(&node);
    consumer_hang_up(&consumer);
}

static void read__consumer_vanishes_in_any_phase__leaves_nothing(void **state)
{
    (void)state;
    node_put(&node, 1);
    for (int phase = 0; phase < 3; phase++) {
        struct consumer consumer;
        node_evict(&node);
        consumer_open(&consumer);
        if (phase == 0)
            node_take_memory(&node);
        consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        if (phase == 0)
            node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_SERVE]));
        else
            node_run_until(node.leases.open == 1);
        if (phase == 2)
            node_run_until(consumer.grants == 1);
        consumer_hang_up(&consumer);
        node_run_until(kvf_peers_sessions(node.peers) == 0);
        node_return_memory(&node);
        node_assert_idle(&node);
    }
}

static void read__cancelled_in_any_phase__leaves_nothing(void **state)
{
    (void)state;
    node_put(&node, 1);
    for (int phase = 0; phase < 4; phase++) {
        struct consumer consumer;
        node_evict(&node);
        consumer_open(&consumer);
        if (phase == 0)
            node_take_memory(&node);
        consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
        if (phase == 0)
            node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_SERVE]));
        else if (phase == 1)
            node_run_until(node.leases.open == 1);
        else
            node_run_until(consumer.grants == 1);
        if (phase == 3)
            node_run_until(node.counters.serve.blocks > 0);
        consumer_cancel(&consumer, 1);
        consumer_cancel(&consumer, 1);
        consumer_release(&consumer, 1);
        node_run_until(node.leases.open == 0);
        node_return_memory(&node);
        node_assert_idle(&node);
        consumer_hang_up(&consumer);
    }
}

static void release__a_second_time__changes_nothing(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    consumer_open(&consumer);
    consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    consumer_read(&consumer, 2, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 2);
    for (int i = 0; i < 3; i++)
        consumer_release(&consumer, 1);
    consumer_raise(&consumer, 1); /* what crossed is ignored */
    consumer_cancel(&consumer, 1);
    node_run_until(node.leases.open == 1);
    consumer_read(&consumer, 3, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 3); /* the session lives, Read 2 is still pinned */
    assert_int_equal(node.leases.open, 2);
    consumer_hang_up(&consumer);
}

static void release__of_somebody_elses_read__ends_the_impostor_alone(void **state)
{
    (void)state;
    struct consumer owner, impostor;
    node_put(&node, 1);
    consumer_open(&owner);
    for (uint64_t id = 1; id <= 3; id++)
        consumer_read(&owner, id, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(owner.grants == 3);
    void (*const say[])(struct consumer *, uint64_t) = {consumer_release, consumer_cancel,
                                                        consumer_raise};
    for (unsigned i = 0; i < 3; i++) {
        consumer_call(&impostor);
        consumer_say_hello(&impostor, KVF_PEER_VERSION, "u", "tcp");
        node_run_until(impostor.welcomes == 1);
        say[i](&impostor, 3); /* ids belong to their session: here it is from the future */
        node_run_until(impostor.call == NULL);
        assert_int_equal(impostor.status.code, KVF_PROTOCOL);
        consumer_hang_up(&impostor);
        assert_int_equal(node.leases.open, 3);
    }
    assert_non_null(owner.call);
    consumer_hang_up(&owner);
}

static void release__lost__session_ends_two_seconds_after_the_deadline(void **state)
{
    (void)state;
    struct consumer consumer;
    node_put(&node, 1);
    node.leases.max_lease_ns = 100 * KVF_NS_PER_MS;
    consumer_open(&consumer);
    consumer_read(&consumer, 1, NODE_SPACE, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(consumer.grants == 1);
    node_run_until(consumer.call == NULL);
    assert_int_equal(consumer.status.code, KVF_DEADLINE);
    node_run_until(kvf_peers_sessions(node.peers) == 0);
    node_assert_idle(&node);
    consumer_hang_up(&consumer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONSUMER_TEST(read__what_no_read_may_say__ends_the_session),
        CONSUMER_TEST(read__more_than_may_be_open__is_busy_until_one_is_released),
        CONSUMER_TEST(read__released_while_its_blocks_load__does_not_count_as_open),
        CONSUMER_TEST(read__consumer_vanishes_in_any_phase__leaves_nothing),
        CONSUMER_TEST(read__cancelled_in_any_phase__leaves_nothing),
        CONSUMER_TEST(release__a_second_time__changes_nothing),
        CONSUMER_TEST(release__of_somebody_elses_read__ends_the_impostor_alone),
        CONSUMER_TEST(release__lost__session_ends_two_seconds_after_the_deadline),
    };
    return cmocka_run_group_tests_name("server/peer_reads", tests, NULL, NULL);
}
