/* From a Read to its grants: what is held, what waits, what is refused. */
#include "server/lease_fixture.h"

static void grant__hits_and_misses__hold_and_charge_the_hits_alone(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_evict(&node);
    node_put(&node, 2);
    lease_ask(&read, LIST(1, 2, 3), 3, 10000);
    assert_int_equal(read.granted, 1);
    assert_int_equal(read.codes[0], KVF_OK);
    assert_int_equal(read.codes[1], KVF_OK);
    assert_int_equal(read.codes[2], KVF_NOT_FOUND);
    assert_int_equal(read.lease->blocks[0].tier, KVF_TIER_SSD);
    assert_int_equal(read.lease->blocks[1].tier, KVF_TIER_DRAM);
    assert_int_equal(lease_served_bytes(), 2 * NODE_BLOCK_BYTES);
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_true(node_find(&node, 1)->resident);
    assert_false(node_find(&node, 1)->verified);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 0); /* the lane still has both */
    lease_close_lane();
    node_run_until(read.freed == 1);
    assert_int_equal(read.faults, 0);
    lease_stop();
}

static void grant__denied__is_like_one_of_keys_that_are_not_there(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    struct put *put = node_begin(&node, 2);
    node_put(&node, 1);
    lease_prepare(&read, LIST(1, 2, 3), 3, 10000);
    read.lease->denied = true;
    kvf_lease_start(read.lease);
    assert_int_equal(read.granted, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read.codes[i], KVF_NOT_FOUND);
    assert_int_equal(lease_served_bytes(), 0);
    node_commit(put, 2);
    assert_int_equal(read.committed, 0);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    lease_stop();
}

static void grant__pins_and_lengths_that_do_not_match__are_no_hits(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    node_put(&node, 1);
    lease_prepare(&read, LIST(1, 1, 1, 1), 4, 10000);
    read.lease->blocks[0].pin = (struct kvf_generation){7, 99};
    read.lease->blocks[1].length = 4096;
    read.lease->blocks[2].pin = node_find(&node, 1)->generation;
    read.lease->blocks[3].key = node_key(8);
    kvf_lease_start(read.lease);
    assert_int_equal(read.codes[0], KVF_STALE);
    assert_int_equal(read.codes[1], KVF_NOT_FOUND);
    assert_int_equal(read.codes[2], KVF_OK);
    assert_int_equal(lease_served_bytes(), NODE_BLOCK_BYTES);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void grant__stop_at_first_miss__grants_nothing_behind_it(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    node_put(&node, 1);
    node_put(&node, 3);
    lease_prepare(&read, LIST(1, 2, 3), 3, 10000);
    read.lease->stop_at_first_miss = true;
    kvf_lease_start(read.lease);
    assert_int_equal(read.codes[0], KVF_OK);
    assert_int_equal(read.codes[2], KVF_NOT_FOUND);
    assert_int_equal(node_find(&node, 3)->pins, 0);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void grant__the_same_key_twice__is_loaded_once(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_evict(&node);
    lease_ask(&read, LIST(1, 1), 2, 10000);
    assert_int_equal(read.codes[1], KVF_OK);
    assert_int_equal(kvf_loads_open(node.loads), 1);
    kvf_lease_release(read.lease);
    lease_stop();
    assert_int_equal(read.freed, 1);
}

static void grant__released_by_the_event__leaves_nothing(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_evict(&node);
    lease_prepare(&read, LIST(1, 2), 2, 10000);
    read.release_when_granted = true;
    kvf_lease_start(read.lease);
    node_run_until(read.freed == 1); /* the lane and the load let go first */
    lease_stop();
}

static void grant__pending__tells_when_it_is_committed(void **state)
{
    (void)state;
    struct lease_read read, released;
    lease_start(false);
    struct put *put = node_begin(&node, 1);
    lease_ask(&read, LIST(1), 1, 10000);
    lease_ask(&released, LIST(1), 1, 10000);
    assert_int_equal(read.codes[0], KVF_PENDING);
    assert_int_equal(lease_served_bytes(), 0);
    kvf_lease_release(released.lease);
    assert_int_equal(released.freed, 1);
    node_commit(put, 1);
    assert_int_equal(read.committed, 1);
    assert_int_equal(released.committed, 0);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    lease_stop();
}

static void grant__pending_aborted__is_a_fault(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    struct put *put = node_begin(&node, 1);
    lease_ask(&read, LIST(1), 1, 10000);
    put_abort(put);
    assert_int_equal(read.committed, 0);
    assert_int_equal(read.faults, 1);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void grant__behind_a_pending_one__is_granted_even_if_it_stops_at_a_miss(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    struct put *put = node_begin(&node, 1);
    node_put(&node, 2);
    lease_prepare(&read, LIST(1, 2, 3, 2), 4, 10000);
    read.lease->stop_at_first_miss = true;
    kvf_lease_start(read.lease);
    assert_int_equal(read.codes[0], KVF_PENDING);
    assert_int_equal(read.codes[1], KVF_OK);
    assert_int_equal(read.codes[2], KVF_NOT_FOUND);
    assert_int_equal(read.codes[3], KVF_NOT_FOUND);
    kvf_lease_release(read.lease);
    put_abort(put);
    lease_stop();
}

static void grant__unknown_while_recovery_runs__ends_as_committed_or_fault(void **state)
{
    (void)state;
    struct lease_read read, released;
    lease_start(true);
    node_put(&node, 1);
    struct node_lost lost = node_lose(&node, 1);
    kvf_awaited_open(&node.awaited);
    lease_ask(&read, LIST(1, 2, 3), 3, 10000);
    lease_ask(&released, LIST(1), 1, 10000);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read.codes[i], KVF_PENDING);
    assert_int_equal(lease_served_bytes(), 0);
    kvf_lease_release(released.lease);
    assert_int_equal(released.freed, 1);
    node_recovers(&node, &lost);
    assert_int_equal(read.committed, 1);
    struct put *put = node_begin(&node, 2);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(read.faults, 1); /* 3; 2 waits for its put now */
    node_commit(put, 2);
    assert_int_equal(read.committed, 2);
    assert_int_equal(released.committed + released.faults, 0);
    kvf_lease_release(read.lease);
    lease_stop();
}

/* Even then: one that is here, one that recovery finds meanwhile and one that is nowhere end alike, and together. */
static void grant__denied_while_recovery_runs__all_end_as_faults_at_its_end(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    struct node_lost lost = node_lose(&node, 1);
    kvf_awaited_open(&node.awaited);
    lease_prepare(&read, LIST(1, 2, 3), 3, 10000);
    read.lease->denied = true;
    kvf_lease_start(read.lease);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read.codes[i], KVF_PENDING);
    node_recovers(&node, &lost);
    assert_int_equal(read.committed + read.faults, 0);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(read.committed, 0);
    assert_int_equal(read.faults, 3);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void start__more_than_a_grant_may_be__is_too_large(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    node.leases.max_grant_bytes = NODE_BLOCK_BYTES;
    lease_ask(&read, LIST(1, 2), 2, 10000);
    assert_int_equal(read.refused, 1);
    assert_int_equal(read.refusal.code, KVF_TOO_LARGE);
    assert_int_equal(read.refusal.shortage, KVF_SHORT_OF_GRANT);
    assert_int_equal(read.refusal.short_bytes, NODE_BLOCK_BYTES);
    assert_int_equal(read.freed, 1);
    node.leases.max_grant_bytes = 64 * KVF_MIB;
    party.budget.limit_bytes = NODE_BLOCK_BYTES;
    lease_ask(&read, LIST(1, 2), 2, 10000);
    assert_int_equal(read.refusal.code, KVF_TOO_LARGE);
    assert_int_equal(read.refusal.shortage, KVF_SHORT_OF_INSTANCE);
    assert_int_equal(read.refusal.short_bytes, NODE_BLOCK_BYTES);
    lease_stop();
}

static void queued__deadline__is_busy(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_take_memory(&node);
    lease_ask(&read, LIST(1), 1, 50);
    assert_int_equal(read.granted + read.refused, 0);
    node_run_until(read.freed == 1);
    assert_int_equal(read.refused, 1);
    assert_int_equal(read.refusal.code, KVF_BUSY);
    assert_int_equal(read.refusal.shortage, KVF_SHORT_OF_MEMORY);
    assert_in_range(read.refusal.waited_ns, 50 * KVF_NS_PER_MS, NODE_WAIT_S * KVF_NS_PER_S);
    assert_int_equal(node.counters.serve.busy, 1);
    node_return_memory(&node);
    lease_stop();
}

static void queued__released__leaves_nothing(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_take_memory(&node);
    lease_ask(&read, LIST(1), 1, 10000);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    assert_int_equal(read.refused, 0);
    node_return_memory(&node);
    lease_stop();
}

static void queued__memory_comes_back__is_granted(void **state)
{
    (void)state;
    struct lease_read first, second;
    lease_start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_take_memory(&node);
    lease_ask(&first, LIST(1, 2), 2, 15000);
    lease_ask(&second, LIST(2), 1, 15000);
    assert_int_equal(first.granted + second.granted, 0);
    node_return_memory(&node);
    node_run_until(first.granted + second.granted == 2);
    kvf_lease_release(first.lease);
    kvf_lease_release(second.lease);
    lease_stop();
    assert_int_equal(first.freed + second.freed, 2);
}

static void queued__forgotten_meanwhile__is_a_miss_that_holds_nothing(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_take_memory(&node);
    lease_ask(&read, LIST(1, 2), 2, 15000);
    node_forget(&node, 1);
    kvf_admission_retry(&node.admission);
    kvf_loop_run_once(node_loop, 0);
    node_return_memory(&node);
    node_run_until(read.granted == 1);
    assert_int_equal(read.codes[0], KVF_NOT_FOUND);
    assert_int_equal(lease_served_bytes(), NODE_BLOCK_BYTES);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void release__out_of_order__asserts_nothing_and_frees_once(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    lease_ask(&read, LIST(1), 1, 10000);
    struct kvf_lease *lease = read.lease;
    kvf_lease_release(lease); /* the lane still has the block */
    kvf_lease_release(lease);
    kvf_lease_cancel(lease);
    kvf_lease_raise(lease);
    assert_aborts(kvf_lease_start(lease)); /* but it cannot begin again */
    lease_stop();
    assert_int_equal(read.freed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(grant__hits_and_misses__hold_and_charge_the_hits_alone),
        NODE_TEST(grant__denied__is_like_one_of_keys_that_are_not_there),
        NODE_TEST(grant__pins_and_lengths_that_do_not_match__are_no_hits),
        NODE_TEST(grant__stop_at_first_miss__grants_nothing_behind_it),
        NODE_TEST(grant__the_same_key_twice__is_loaded_once),
        NODE_TEST(grant__released_by_the_event__leaves_nothing),
        NODE_TEST(grant__pending__tells_when_it_is_committed),
        NODE_TEST(grant__pending_aborted__is_a_fault),
        NODE_TEST(grant__unknown_while_recovery_runs__ends_as_committed_or_fault),
        NODE_TEST(grant__denied_while_recovery_runs__all_end_as_faults_at_its_end),
        NODE_TEST(grant__behind_a_pending_one__is_granted_even_if_it_stops_at_a_miss),
        NODE_TEST(start__more_than_a_grant_may_be__is_too_large),
        NODE_TEST(queued__deadline__is_busy),
        NODE_TEST(queued__released__leaves_nothing),
        NODE_TEST(queued__memory_comes_back__is_granted),
        NODE_TEST(queued__forgotten_meanwhile__is_a_miss_that_holds_nothing),
        NODE_TEST(release__out_of_order__asserts_nothing_and_frees_once),
    };
    return cmocka_run_group_tests_name("server/lease", tests, NULL, NULL);
}
