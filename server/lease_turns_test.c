/* Who waits for whom: places on the lane, guesses behind demand. */
#include "server/lease_fixture.h"

/* ---- places on the lane ---- */

static void start_with_places(uint32_t places)
{
    lease_start(false);
    kvf_lease_lane_init(&shared, lane, &(struct kvf_transport_traits){.lane_blocks = places});
}

static void places__too_few__waits_behind_its_lane_and_holds_nothing(void **state)
{
    (void)state;
    struct lease_read first, second, third;
    start_with_places(3);
    for (unsigned i = 1; i <= 3; i++)
        node_put(&node, i);
    lease_ask(&first, LIST(1, 2), 2, 10000);
    lease_ask(&second, LIST(1, 2), 2, 10000);
    lease_ask(&third, LIST(3), 1, 10000); /* it would fit, but others came before */
    assert_int_equal(first.granted, 1);
    assert_int_equal(second.granted + third.granted, 0);
    assert_int_equal(lease_served_bytes(), 2 * NODE_BLOCK_BYTES);
    kvf_lease_release(first.lease); /* the lane has never opened: it lets go at once */
    node_run_until(second.granted == 1 && third.granted == 1);
    assert_int_equal(first.freed, 1);
    kvf_lease_release(second.lease);
    kvf_lease_release(third.lease);
    node_run_until(second.freed == 1 && third.freed == 1);
    assert_int_equal(shared.places, 3);
    lease_stop();
}

static void places__of_blocks_that_are_missing__are_there_for_others(void **state)
{
    (void)state;
    struct lease_read first, second;
    start_with_places(2);
    node_put(&node, 1);
    lease_ask(&first, LIST(1, 7), 2, 10000);
    assert_int_equal(first.granted, 1);
    lease_ask(&second, LIST(1), 1, 10000);
    assert_int_equal(second.granted, 1);
    kvf_lease_release(first.lease);
    kvf_lease_release(second.lease);
    lease_stop();
    assert_int_equal(shared.places, 2);
}

static void places__none_until_the_deadline__busy_and_says_so(void **state)
{
    (void)state;
    struct lease_read first, second;
    start_with_places(1);
    node_put(&node, 1);
    lease_ask(&first, LIST(1), 1, 10000);
    lease_ask(&second, LIST(1), 1, 30);
    node_run_until(second.refused == 1);
    assert_int_equal(second.refusal.code, KVF_BUSY);
    assert_int_equal(second.refusal.shortage, KVF_SHORT_OF_READS);
    assert_true(second.refusal.waited_ns > 0);
    kvf_lease_release(first.lease);
    lease_stop();
    assert_int_equal(shared.places, 1);
}

static void places__waiting_one_is_released__the_next_takes_its_turn(void **state)
{
    (void)state;
    struct lease_read first, large, small;
    start_with_places(2);
    node_put(&node, 1);
    node_put(&node, 2);
    lease_ask(&first, LIST(1), 1, 10000);
    lease_ask(&large, LIST(1, 2), 2, 10000);
    lease_ask(&small, LIST(2), 1, 10000);
    assert_int_equal(small.granted, 0);
    kvf_lease_release(large.lease);
    assert_int_equal(large.freed, 1);
    assert_int_equal(small.granted, 1);
    kvf_lease_release(first.lease);
    kvf_lease_release(small.lease);
    lease_stop();
    assert_int_equal(shared.places, 2);
}

/* ---- speculative ---- */

static void speculative__beside_demand__holds_a_quarter_and_waits_behind(void **state)
{
    (void)state;
    struct lease_read first, second, demand, fifth;
    lease_start(true);
    for (unsigned i = 1; i <= 10; i++)
        node_put(&node, i);
    lease_guess(&first, LIST(1, 2, 3, 4), 4);
    assert_int_equal(first.granted, 1); /* all of the quarter */
    lease_guess(&second, LIST(5), 1);
    assert_int_equal(second.granted, 0);
    lease_ask(&demand, LIST(6, 7), 2, 10000);
    assert_int_equal(demand.granted, 1);
    lease_guess(&fifth, LIST(1, 2, 3, 4, 5), 5);
    assert_int_equal(fifth.refusal.code, KVF_TOO_LARGE);
    assert_int_equal(fifth.refusal.shortage, KVF_SHORT_OF_SPECULATIVE);
    kvf_lease_raise(first.lease); /* it is demand now: the quarter is free */
    node_run_until(second.granted == 1);
    kvf_lease_release(first.lease);
    kvf_lease_release(second.lease);
    kvf_lease_release(demand.lease);
    lease_close_lane();
    node_run_until(node.leases.open == 0);
    assert_int_equal(node.admission.speculative.used_bytes, 0);
    lease_stop();
}

static void raise__queued__is_granted_as_demand(void **state)
{
    (void)state;
    struct lease_read first, second;
    lease_start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    lease_guess(&first, LIST(1), 1);
    node.admission.speculative.limit_bytes = NODE_BLOCK_BYTES;
    lease_guess(&second, LIST(2), 1);
    assert_int_equal(second.granted, 0);
    kvf_lease_raise(second.lease);
    kvf_lease_raise(second.lease); /* once more changes nothing */
    node_run_until(second.granted == 1);
    assert_int_equal(node.admission.speculative.used_bytes, NODE_BLOCK_BYTES);
    kvf_lease_release(second.lease);
    kvf_lease_raise(first.lease);
    kvf_lease_release(first.lease);
    lease_stop();
}

/* They wait for memory meanwhile, and are admitted long after they came. */
static void places__of_blocks_found_missing_later__are_there_for_others(void **state)
{
    (void)state;
    struct lease_read filler, missing, waiting;
    start_with_places(4);
    node_put(&node, 1);
    node_put(&node, 2);
    node.admission.speculative.limit_bytes = 2 * NODE_BLOCK_BYTES;
    lease_guess(&filler, LIST(1, 2), 2);
    lease_guess(&missing, LIST(7, 8), 2);
    lease_ask(&waiting, LIST(1), 1, 10000);
    assert_int_equal(missing.granted, 0);
    assert_int_equal(waiting.granted, 0);
    kvf_lease_raise(missing.lease);
    node_run_until(missing.granted == 1);
    node_run_until(waiting.granted == 1);
    kvf_lease_release(filler.lease);
    kvf_lease_release(missing.lease);
    kvf_lease_release(waiting.lease);
    lease_stop();
    assert_int_equal(shared.places, 4);
}

/* Blocks 1 to `count` lie on SSD, and the drive's first read hangs: what is asked for now waits behind it. */

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(places__too_few__waits_behind_its_lane_and_holds_nothing),
        NODE_TEST(places__of_blocks_that_are_missing__are_there_for_others),
        NODE_TEST(places__of_blocks_found_missing_later__are_there_for_others),
        NODE_TEST(places__none_until_the_deadline__busy_and_says_so),
        NODE_TEST(places__waiting_one_is_released__the_next_takes_its_turn),
        NODE_TEST(speculative__beside_demand__holds_a_quarter_and_waits_behind),
        NODE_TEST(raise__queued__is_granted_as_demand),
    };
    return cmocka_run_group_tests_name("server/lease_turns", tests, NULL, NULL);
}
