/* What a pull does with what a source says about its blocks. */
#include "client/pull/source_fixture.h"

static void pull__twelve_small_blocks__come_in_one_read(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(12, 4096);
    want_and_wait(&wanted, 0, 12);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.reads, 1);
    assert_int_equal(fx.log.read_id[0], 1);
    assert_int_equal(fx.log.read_instance[0], 5);
    assert_false(fx.log.read_stops[0]);
    assert_true(fx.log.read_deadline_us[0] > 0 &&
                fx.log.read_deadline_us[0] <= WAIT_S * UINT64_C(1000000));
    assert_string_equal(fx.log.tenant, TENANT);
    assert_int_equal(fx.log.instance, 99);
    assert_int_equal(fx.log.purpose, 0);
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.log.release_id[0], 1);
    assert_int_equal(fx.log.release_bad_count[0], 0);
    assert_int_equal(fx.log.cancels, 0);
    assert_int_equal(fx.stats.reads, 1);
    assert_int_equal(fx.stats.blocks, 12);
    assert_int_equal(fx.stats.bytes, 12 * 4096);
    assert_int_equal(fx.stats.misses, 0);
}

static void pull__odd_lengths__tails_are_zero(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 1);
    fixture_add_blocks(1, 4095);
    fixture_add_blocks(1, 4097);
    fixture_add_blocks(1, 3 * KVF_MIB + 17);
    want_and_wait(&wanted, 0, 4);
    assert_all_here(&wanted);
    assert_int_equal(fx.stats.bytes, 1 + 4095 + 4097 + 3 * KVF_MIB + 17);
}

static void pull__again__same_session_and_rising_ids(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(4, 4096);
    for (uint64_t i = 0; i < 40; i++) {
        want_and_wait(&wanted, 0, 4);
        assert_all_here(&wanted);
        assert_int_equal(fx.log.read_id[i], i + 1);
    }
    assert_int_equal(fx.log.hellos, 1);
    run_until(fx.log.releases == 40);
    assert_int_equal(fx.stats.reads, 40);
}

static void expect_reads(uint64_t batch_mib, unsigned reads)
{
    static struct wanted wanted;
    unsigned before = fx.log.reads;
    fx.arena_used = 0;
    want(&wanted, 0, 16, 1000 * WAIT_S);
    wanted.pull.batch_bytes = batch_mib * KVF_MIB / 16;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.reads - before, reads);
}

/* Scaled down by 16: 9 MiB blocks and batches of so many MiB. */
static void pull__batches__as_the_formula_says(void **state)
{
    (void)state;
    fixture_add_blocks(16, 9 * KVF_MIB / 16);
    expect_reads(32, 6);
    expect_reads(128, 2);
    expect_reads(0, 1);
    expect_reads(1, 16);
}

static void pull__welcome_limits__bound_a_read(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(10, 8192);
    fx.max_blocks = 4;
    fx.max_grant_bytes = 3 * 8192;
    want_and_wait(&wanted, 0, 10);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.reads, 4);
    assert_int_equal(fx.log.read_blocks[0], 3);
}

static void pull__small_messages__bound_a_read(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(10, 4096);
    fx.max_message_bytes = 512 + 3 * 128;
    want_and_wait(&wanted, 0, 10);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.reads, 4);
}

static void pull__max_open_reads__never_exceeded(void **state)
{
    static struct wanted wanted[4];
    (void)state;
    fixture_add_blocks(12, 64 * 1024);
    fx.max_open_reads = 3;
    for (unsigned i = 0; i < 4; i++) {
        want(&wanted[i], 0, 12, 1000 * WAIT_S);
        wanted[i].pull.batch_bytes = 1;
        wanted[i].pull.batches_in_flight = 8;
        kvf_pull_start(fx.source, &wanted[i].pull);
    }
    for (unsigned i = 0; i < 4; i++) {
        run_until(wanted[i].ended);
        assert_all_here(&wanted[i]);
    }
    assert_int_equal(fx.log.reads, 48);
    assert_true(fx.log.open_reads_peak >= 2 && fx.log.open_reads_peak <= 3);
}

static void pull__batches_in_flight__bound_one_pull(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(6, 4096);
    fx.answer = ANSWER_GRANT_LATER;
    want(&wanted, 0, 6, 1000 * WAIT_S);
    wanted.pull.batch_bytes = 4096;
    wanted.pull.batches_in_flight = 2;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 2);
    run_for_ms(50);
    assert_int_equal(fx.log.reads, 2);
    while (!wanted.ended) {
        fixture_grant();
        run_for_ms(1);
    }
    assert_all_here(&wanted);
    assert_int_equal(fx.log.open_reads_peak, 2);
}

static void pull__two_pulls__take_turns(void **state)
{
    static struct wanted long_one, short_one;
    (void)state;
    fixture_add_blocks(40, 4096);
    fx.max_open_reads = 1;
    want(&long_one, 0, 30, 1000 * WAIT_S);
    long_one.pull.batch_bytes = 4096;
    want(&short_one, 30, 2, 1000 * WAIT_S);
    short_one.pull.batch_bytes = 4096;
    kvf_pull_start(fx.source, &long_one.pull);
    kvf_pull_start(fx.source, &short_one.pull);
    run_until(short_one.ended);
    assert_true(fx.log.reads <= 6); /* it did not wait for thirty others */
    run_until(long_one.ended);
    assert_all_here(&long_one);
    assert_all_here(&short_one);
}

static void pull__bytes_before_grants__wait_for_them(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 100000);
    fx.answer = ANSWER_GRANT_LATER;
    want(&wanted, 0, 3, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    run_for_ms(50); /* the bytes have come */
    assert_int_equal(wanted.blocks_ended, 0);
    fixture_grant();
    run_until(wanted.ended);
    assert_all_here(&wanted);
}

static void pull__bytes_before_misses__are_not_believed(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 4096);
    fx.answer = ANSWER_GRANT_LATER;
    want(&wanted, 0, 3, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    run_for_ms(50);
    fx.blocks[0].code = KVF_NOT_FOUND;
    fx.blocks[1].corrupt = true;
    fx.blocks[2].granted_length = 4095;
    fixture_grant();
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_NOT_FOUND);
    assert_missed(&wanted, 1, KVF_CORRUPT);
    assert_missed(&wanted, 2, KVF_STALE);
    assert_int_equal(fx.stats.blocks, 0);
    assert_int_equal(fx.stats.misses, 3);
}

static void pull__some_missing__others_come(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(5, 9000);
    fx.blocks[1].code = KVF_NOT_FOUND;
    fx.blocks[2].code = KVF_DENIED;
    fx.blocks[3].code = 4711;
    want_and_wait(&wanted, 0, 5);
    assert_here(&wanted, 0);
    assert_missed(&wanted, 1, KVF_NOT_FOUND);
    assert_missed(&wanted, 2, KVF_NOT_FOUND);
    assert_missed(&wanted, 3, KVF_UNAVAILABLE);
    assert_here(&wanted, 4);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(wanted.told_state[i], KVF_PULL_ENDED);
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.stats.misses, 3);
    assert_int_equal(fx.stats.blocks, 2);
}

static void pull__nothing_there__released_once(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 4096);
    for (unsigned i = 0; i < 3; i++)
        fx.blocks[i].code = KVF_NOT_FOUND;
    want_and_wait(&wanted, 0, 3);
    assert_all_missed(&wanted, KVF_NOT_FOUND);
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.stats.reads, 1);
}

static void pull__crc_differs__miss_and_report(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(4, 70000);
    fx.blocks[2].corrupt = true;
    want_and_wait(&wanted, 0, 4);
    assert_missed(&wanted, 2, KVF_CORRUPT);
    assert_here(&wanted, 0);
    assert_here(&wanted, 1);
    assert_here(&wanted, 3);
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.log.release_bad_count[0], 1);
    assert_int_equal(fx.log.release_bad[0], 2);
    assert_int_equal(fx.log.reads, 1); /* not asked for again */
}

static void pull__other_length__stale(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 70000);
    fx.blocks[0].granted_length = 70001;
    fx.blocks[0].stall_at = 10; /* its bytes are still on the way: withdrawn */
    fx.blocks[1].granted_length = 4096;
    want_and_wait(&wanted, 0, 3);
    assert_missed(&wanted, 0, KVF_STALE);
    assert_missed(&wanted, 1, KVF_STALE);
    assert_here(&wanted, 2);
    run_until(fx.log.releases == 1);
}

static void pull__pinned_generation__another_one_is_stale(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    want(&wanted, 0, 2, 1000 * WAIT_S);
    wanted.blocks[0].pin = (struct kvf_generation){7, 99};
    wanted.blocks[1].pin = (struct kvf_generation){7, 2};
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_STALE);
    assert_here(&wanted, 1);
}

static void pull__fault__ends_that_block_alone(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 3 * KVF_MIB);
    fx.blocks[1].stall_at = KVF_MIB;
    fx.blocks[1].fault = KVF_IO;
    want_and_wait(&wanted, 0, 3);
    assert_here(&wanted, 0);
    assert_missed(&wanted, 1, KVF_IO);
    assert_here(&wanted, 2);
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.log.reads, 1);
    assert_int_equal(fx.log.hellos, 1);
}

static void pull__refused__no_release_no_retry(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 4096);
    const uint32_t codes[] = {KVF_BUSY, KVF_TOO_LARGE, KVF_INVALID};
    fx.answer = ANSWER_REFUSE;
    for (unsigned i = 0; i < 3; i++) {
        fx.refuse_code = codes[i];
        want_and_wait(&wanted, 0, 3);
        assert_all_missed(&wanted, (enum kvf_code)codes[i]);
        assert_int_equal(wanted.told_state[0], KVF_PULL_ENDED);
        assert_int_equal(fx.refusals, i + 1);
        assert_non_null(
            strstr(fx.refusal_text, " after 2.0 s, 4096 bytes short of the identity's own share"));
    }
    run_for_ms(50);
    assert_int_equal(fx.log.reads, 3);
    assert_int_equal(fx.log.releases, 0);
    assert_int_equal(fx.stats.reads, 0);
    assert_int_equal(fx.stats.misses, 9);
    fx.answer = ANSWER_GRANT;
    want_and_wait(&wanted, 0, 3);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.hellos, 1);
}

static void pull__stop_at_first_miss__later_blocks_are_not_asked(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(10, 4096);
    fx.blocks[3].code = KVF_NOT_FOUND;
    want(&wanted, 0, 10, 1000 * WAIT_S);
    wanted.pull.batch_bytes = 2 * 4096;
    wanted.pull.batches_in_flight = 1;
    wanted.pull.stop_at_first_miss = true;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    for (unsigned i = 0; i < 3; i++)
        assert_here(&wanted, i);
    for (unsigned i = 3; i < 10; i++)
        assert_missed(&wanted, i, KVF_NOT_FOUND);
    assert_int_equal(fx.log.reads, 2);
    assert_true(fx.log.read_stops[0]);
    assert_int_equal(fx.stats.misses, 7);
}

/* A put behind the first miss is not worth waiting for, whichever is known first. */
static void pull__stop_at_first_miss__pending_behind_it_ends(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(6, 4096);
    fx.blocks[1].code = fx.blocks[4].code = KVF_PENDING;
    fx.blocks[2].code = KVF_NOT_FOUND;
    want(&wanted, 0, 6, 1000 * WAIT_S);
    wanted.pull.stop_at_first_miss = true;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks_ended == 5);
    assert_here(&wanted, 0);
    assert_missed(&wanted, 2, KVF_NOT_FOUND);
    assert_here(&wanted, 3); /* it was on its way already */
    assert_missed(&wanted, 4, KVF_PENDING);
    fixture_commit(1);
    run_until(wanted.ended);
    assert_here(&wanted, 1);

    fx.blocks[0].code = fx.blocks[5].code = KVF_PENDING;
    fx.blocks[2].code = KVF_PENDING;
    want(&wanted, 0, 6, 1000 * WAIT_S);
    wanted.pull.stop_at_first_miss = true;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks_ended == 2);
    run_for_ms(20);
    fx.blocks[0].code = KVF_OK;
    fx.blocks[0].length--; /* committed, but another one than we want: a miss */
    fixture_commit(0);
    fx.blocks[0].length++;
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_STALE);
    assert_missed(&wanted, 2, KVF_NOT_FOUND);
    assert_missed(&wanted, 5, KVF_NOT_FOUND);
    run_until(fx.open_reads == 0);
}

/* The put was aborted, or what could have been found was not. */
static void pull__pending_then_fault__is_a_miss_at_once(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.blocks[0].code = KVF_PENDING;
    fx.blocks[0].fault = KVF_NOT_FOUND;
    want(&wanted, 0, 2, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_NOT_FOUND);
    assert_here(&wanted, 1);
    run_until(fx.open_reads == 0);
}

static void pull__committed__is_asked_for_again(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 50000);
    fx.blocks[0].code = KVF_PENDING;
    want(&wanted, 0, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    run_for_ms(50);
    assert_int_equal(wanted.blocks_ended, 0);
    assert_int_equal(fx.log.releases, 0); /* its id must live for Committed */
    fixture_commit(0);
    run_until(wanted.ended);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.reads, 2);
    run_until(fx.log.releases == 2);
    assert_int_equal(fx.stats.misses, 0);
}

/* What came with a pending block is given back to the source at once; the pending one waits alone. */
static void pull__pending_among_hits__hits_are_released(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(4, 50000);
    fx.blocks[1].code = fx.blocks[3].code = KVF_PENDING;
    want(&wanted, 0, 4, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 2 && fx.log.releases == 1);
    assert_int_equal(fx.log.release_id[0], 1);
    assert_int_equal(fx.log.read_blocks[1], 2);
    assert_here(&wanted, 0);
    assert_here(&wanted, 2);
    assert_int_equal(wanted.blocks_ended, 2);
    fixture_commit(3);
    run_until(wanted.blocks_ended == 3);
    assert_here(&wanted, 3);
    fixture_commit(1);
    run_until(wanted.ended);
    assert_all_here(&wanted);
    run_until(fx.open_reads == 0);
}

static void pull__pending_until_deadline__miss(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.blocks[0].code = fx.blocks[1].code = KVF_PENDING;
    want(&wanted, 0, 2, 200);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_true(wanted.ended_ns >= wanted.pull.deadline_ns);
    assert_all_missed(&wanted, KVF_PENDING);
    assert_int_equal(wanted.told_state[0], KVF_PULL_ENDED);
    run_until(fx.open_reads == 0);
    assert_int_equal(fx.log.releases, fx.log.reads);
}

static void pull__committed_again_and_again__gives_up(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 4096);
    fx.blocks[0].code = KVF_PENDING;
    want(&wanted, 0, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    unsigned answered = 0;
    while (!wanted.ended) {
        if (fx.log.reads > answered) {
            answered = fx.log.reads;
            fixture_commit(0);
            fx.blocks[0].code = KVF_PENDING;
        }
        run_for_ms(1);
        assert_true(fx.log.reads <= 6);
    }
    assert_missed(&wanted, 0, KVF_PENDING);
}

static void pull__committed_with_another_length__stale(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 4096);
    fx.blocks[0].code = KVF_PENDING;
    want(&wanted, 0, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    fx.blocks[0].length = 4095;
    fixture_commit(0);
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_STALE);
}

/* Pulls that only wait for somebody's put must not keep others from the session. */
static void pull__many_pending__others_pass(void **state)
{
    static struct wanted pending[6], wanted;
    (void)state;
    fixture_add_blocks(7, 4096);
    fx.max_open_reads = 4;
    for (unsigned i = 0; i < 6; i++) {
        fx.blocks[i].code = KVF_PENDING;
        want(&pending[i], i, 1, 1000 * WAIT_S);
        kvf_pull_start(fx.source, &pending[i].pull);
    }
    run_until(fx.log.reads >= 6);
    for (unsigned i = 0; i < 10; i++) {
        want_and_wait(&wanted, 6, 1);
        assert_all_here(&wanted);
    }
    run_until(fx.open_reads <= 2); /* but for a moment, when the others ask again */
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(pending[i].ended, 0);
        fixture_commit(i);
    }
    for (unsigned i = 0; i < 6; i++) {
        run_until(pending[i].ended);
        assert_all_here(&pending[i]);
    }
}

static void pull__no_blocks__ends(void **state)
{
    static struct wanted wanted;
    (void)state;
    want_and_wait(&wanted, 0, 0);
    assert_true(kvf_source_is_idle(fx.source));
    assert_int_equal(fx.log.hellos, 0);
}

static struct wanted next;

static void start_next(struct wanted *wanted)
{
    (void)wanted;
    want(&next, 0, 3, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &next.pull);
}

static void pull__started_in_a_callback__works(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 4096);
    want(&wanted, 0, 3, 1000 * WAIT_S);
    wanted.on_ended = start_next;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_false(kvf_source_is_idle(fx.source));
    run_until(next.ended);
    assert_all_here(&wanted);
    assert_all_here(&next);
    assert_true(kvf_source_is_idle(fx.source));
}

static void pull_raise__speculative__is_told(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_close_source();
    fixture_create_source(true);
    fixture_add_blocks(4, 4096);
    fx.answer = ANSWER_GRANT_LATER;
    want(&wanted, 0, 4, 1000 * WAIT_S);
    wanted.pull.batch_bytes = 4096;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 2);
    assert_int_equal(fx.log.purpose, 1);
    assert_int_equal(fx.log.raises, 0);
    kvf_pull_raise(&wanted.pull);
    kvf_pull_raise(&wanted.pull);
    run_until(fx.log.raises == 2);
    fx.answer = ANSWER_GRANT;
    fixture_grant();
    run_until(wanted.ended);
    run_until(fx.log.raises == 4); /* those asked for later are raised, too */
    assert_int_equal(fx.log.raise_id[3], 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pull__twelve_small_blocks__come_in_one_read),
        TEST(pull__odd_lengths__tails_are_zero),
        TEST(pull__again__same_session_and_rising_ids),
        TEST(pull__batches__as_the_formula_says),
        TEST(pull__welcome_limits__bound_a_read),
        TEST(pull__small_messages__bound_a_read),
        TEST(pull__max_open_reads__never_exceeded),
        TEST(pull__batches_in_flight__bound_one_pull),
        TEST(pull__two_pulls__take_turns),
        TEST(pull__bytes_before_grants__wait_for_them),
        TEST(pull__bytes_before_misses__are_not_believed),
        TEST(pull__some_missing__others_come),
        TEST(pull__nothing_there__released_once),
        TEST(pull__crc_differs__miss_and_report),
        TEST(pull__other_length__stale),
        TEST(pull__pinned_generation__another_one_is_stale),
        TEST(pull__fault__ends_that_block_alone),
        TEST(pull__refused__no_release_no_retry),
        TEST(pull__stop_at_first_miss__later_blocks_are_not_asked),
        TEST(pull__stop_at_first_miss__pending_behind_it_ends),
        TEST(pull__pending_then_fault__is_a_miss_at_once),
        TEST(pull__committed__is_asked_for_again),
        TEST(pull__pending_among_hits__hits_are_released),
        TEST(pull__pending_until_deadline__miss),
        TEST(pull__committed_again_and_again__gives_up),
        TEST(pull__committed_with_another_length__stale),
        TEST(pull__many_pending__others_pass),
        TEST(pull__no_blocks__ends),
        TEST(pull__started_in_a_callback__works),
        TEST(pull_raise__speculative__is_told),
    };
    return cmocka_run_group_tests_name("pull", tests, NULL, NULL);
}
