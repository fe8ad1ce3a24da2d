/* The suite: its program and its list. The cases lie in conformance_blocks.c, conformance_lanes.c and
 * conformance_process.c. */
#include "transport/conformance.h"

#include "transport/conformance_cases.h"

#include <string.h>

#define TEST(function) TESTBED_TEST(transport, function)

static int run_suite(const char *transport)
{
    const struct CMUnitTest tests[] = {
        TEST(transfer__odd_sizes_and_places__equal_and_nothing_else_touched),
        TEST(transfer__block_of_128_mib__equal),
        TEST(transfer__before_the_lane_is_open__arrives),
        TEST(transfer__many_small_blocks__all_arrive),
        TEST(transfer__64_blocks_landing_in_steps__all_arrive),
        TEST(transfer__source_memory_reused_once_it_has_ended__right_bytes_arrive),
        TEST(stats__after_transfers__count_payload),
        TEST(turns__short_read_behind_a_long_one__ends_first),
        TEST(turns__one_read_of_an_instance_against_seven__ends_before_them),
        TEST(turns__modest_read_beside_sixty__waits_for_a_few_pieces),
        TEST(turns__modest_lane_beside_sixty_reads_of_another__waits_for_32_mib_at_most),
        TEST(withdraw__offered_block_that_has_not_landed__cancelled_and_lane_goes_on),
        TEST(withdraw__expected_blocks_at_once__cancelled_and_memory_left_alone),
        TEST(withdraw__at_random_on_both_sides__each_ends_once_and_is_let_go),
        TEST(close__by_the_consumer_under_way__all_end),
        TEST(close__by_the_source_under_way__all_end),
        TEST(close__by_the_consumer_while_bytes_come__memory_is_let_go),
        TEST(close__then_withdraw_and_land__ends_once),
        TEST(close__other_side_first__late_reads_still_end),
        TEST(close__by_the_source_after_sending__ends_with_truth),
        TEST(close__1000_times__no_descriptor_is_left),
        TEST(idle__open_lane_after_a_transfer__sleeps),
        TEST(invite__nobody_comes__closed_with_deadline),
        TEST(invite__many_lanes_at_once__each_nonce_opens_its_own),
        TEST(connect__wrong_nonce__refused_and_the_right_one_still_opens),
        TEST(connect__nonce_used_before__refused),
        TEST(connect__wrong_answer__denied),
        TEST(invite__deadline_already_over__closed_with_deadline),
        TEST(connect__bad_address__invalid_and_no_lane),
        TEST(death__of_the_source__blocks_end_unavailable),
        TEST(death__of_the_source_while_bytes_come__right_or_unavailable),
        TEST(death__of_the_consumer__blocks_end_unavailable),
        TEST(death__of_the_consumer_while_bytes_go__source_memory_comes_back),
        TEST(death__of_the_other_while_it_opens__lane_ends),
        TEST(stop__of_the_source__nothing_ends_until_we_close),
        TEST(stop__of_the_source_while_bytes_come__right_or_cancelled),
        TEST(stop__of_the_consumer__source_lets_go_when_it_closes),
        TEST(stop__of_one_consumer__other_lanes_go_on),
        TEST(stop__of_the_other_while_it_opens__lane_ends),
    };
    return cmocka_run_group_tests_name("transport_conformance", tests, NULL, NULL);
}

int conformance_run(const char *transport, int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "source") == 0)
        return conformance_be_source(transport, 10 * KVF_MIB);
    if (argc == 2 && strcmp(argv[1], "whole source") == 0)
        return conformance_be_source(transport, 20 * KVF_MIB);
    if (argc == 2 && strcmp(argv[1], "consumer") == 0)
        return conformance_be_consumer(transport);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return testbed_can_open(transport) ? run_suite(transport) : 0;
}
