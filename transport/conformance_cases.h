/* The cases of the suite, and what its parts share. Private to it, test only. */
#ifndef KVFERRY_TRANSPORT_CONFORMANCE_CASES_H
#define KVFERRY_TRANSPORT_CONFORMANCE_CASES_H

#include "transport/testbed.h"

/* Two blocks of 20 MiB each, of which `landed` bytes have landed. */
struct testbed_read *conformance_big(struct testbed_end *end, uint64_t id, uint64_t landed);

/* The other process: what main returns there. */
int conformance_be_source(const char *transport, uint64_t landed);
int conformance_be_consumer(const char *transport);

void transfer__odd_sizes_and_places__equal_and_nothing_else_touched(void **state);
void transfer__block_of_128_mib__equal(void **state);
void transfer__before_the_lane_is_open__arrives(void **state);
void transfer__many_small_blocks__all_arrive(void **state);
void transfer__64_blocks_landing_in_steps__all_arrive(void **state);
void transfer__source_memory_reused_once_it_has_ended__right_bytes_arrive(void **state);
void stats__after_transfers__count_payload(void **state);
void turns__short_read_behind_a_long_one__ends_first(void **state);
void turns__one_read_of_an_instance_against_seven__ends_before_them(void **state);
void turns__modest_read_beside_sixty__waits_for_a_few_pieces(void **state);
void turns__modest_lane_beside_sixty_reads_of_another__waits_for_32_mib_at_most(void **state);
void withdraw__offered_block_that_has_not_landed__cancelled_and_lane_goes_on(void **state);
void withdraw__expected_blocks_at_once__cancelled_and_memory_left_alone(void **state);
void withdraw__at_random_on_both_sides__each_ends_once_and_is_let_go(void **state);
void close__by_the_consumer_under_way__all_end(void **state);
void close__by_the_source_under_way__all_end(void **state);
void close__by_the_consumer_while_bytes_come__memory_is_let_go(void **state);
void close__then_withdraw_and_land__ends_once(void **state);
void close__other_side_first__late_reads_still_end(void **state);
void close__by_the_source_after_sending__ends_with_truth(void **state);
void close__1000_times__no_descriptor_is_left(void **state);
void idle__open_lane_after_a_transfer__sleeps(void **state);
void invite__nobody_comes__closed_with_deadline(void **state);
void invite__many_lanes_at_once__each_nonce_opens_its_own(void **state);
void connect__wrong_nonce__refused_and_the_right_one_still_opens(void **state);
void connect__nonce_used_before__refused(void **state);
void connect__wrong_answer__denied(void **state);
void invite__deadline_already_over__closed_with_deadline(void **state);
void connect__bad_address__invalid_and_no_lane(void **state);
void death__of_the_source__blocks_end_unavailable(void **state);
void death__of_the_source_while_bytes_come__right_or_unavailable(void **state);
void death__of_the_consumer_while_bytes_go__source_memory_comes_back(void **state);
void death__of_the_other_while_it_opens__lane_ends(void **state);
void stop__of_the_source_while_bytes_come__right_or_cancelled(void **state);
void death__of_the_consumer__blocks_end_unavailable(void **state);
void stop__of_the_source__nothing_ends_until_we_close(void **state);
void stop__of_the_consumer__source_lets_go_when_it_closes(void **state);
void stop__of_one_consumer__other_lanes_go_on(void **state);
void stop__of_the_other_while_it_opens__lane_ends(void **state);

#endif
