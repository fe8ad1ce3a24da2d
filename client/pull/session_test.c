/* Sessions: opening, breaking, coming back, draining, closing; and a source that says what is illegal. */
#include "client/pull/source_fixture.h"

/* ---- opening ---- */

static void expect_no_session(enum fixture_welcome welcome, enum kvf_code code)
{
    static struct wanted wanted;
    fx.welcome = welcome;
    uint64_t before_ns = kvf_clock_now_ns();
    want_and_wait(&wanted, 0, 2);
    assert_all_missed(&wanted, code);
    assert_true(kvf_clock_now_ns() - before_ns < 10 * KVF_NS_PER_S);
    assert_int_equal(fx.log.reads, 0);
    run_until(fx.open_sessions == 0);
}

#define BAD_WELCOME_TEST(what, welcome, code)                                                      \
    static void session__welcome_##what##__misses(void **state)                                    \
    {                                                                                              \
        (void)state;                                                                               \
        fixture_add_blocks(2, 4096);                                                               \
        expect_no_session(welcome, code);                                                          \
    }

BAD_WELCOME_TEST(silent, WELCOME_SILENT, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(of_another_version, WELCOME_VERSION, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(of_another_transport, WELCOME_TRANSPORT, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(with_short_nonce, WELCOME_SHORT_NONCE, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(with_wrong_nonce, WELCOME_WRONG_NONCE, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(without_lane, WELCOME_NO_LANE, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(with_a_name, WELCOME_NAME, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(garbage, WELCOME_GARBAGE, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(is_grants, WELCOME_GRANTS, KVF_UNAVAILABLE)
BAD_WELCOME_TEST(is_drain_notice, WELCOME_DRAIN_NOTICE, KVF_DRAINING)
BAD_WELCOME_TEST(busy, WELCOME_BUSY, KVF_BUSY)

static void session__source_may_not_serve__nothing_is_asked(void **state)
{
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.deny = true;
    expect_no_session(WELCOME_GOOD, KVF_DENIED);
}

static void session__nobody_there__fast_misses_and_back_off(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fixture_stop_server();
    want_and_wait(&wanted, 0, 2);
    assert_all_missed(&wanted, KVF_UNAVAILABLE);
    uint64_t before_ns = kvf_clock_now_ns();
    want_and_wait(&wanted, 0, 2); /* within the back-off: at once */
    assert_all_missed(&wanted, KVF_UNAVAILABLE);
    assert_true(kvf_clock_now_ns() - before_ns < 5 * KVF_NS_PER_S);
    fixture_start_server();
    do {
        want_and_wait(&wanted, 0, 2);
        run_for_ms(20);
    } while (wanted.blocks[0].status.code == KVF_UNAVAILABLE);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.hellos, 1);
}

static void session__pulls_while_connecting__share_it(void **state)
{
    static struct wanted wanted[5];
    (void)state;
    fixture_add_blocks(5, 4096);
    for (unsigned i = 0; i < 5; i++) {
        want(&wanted[i], 0, 5, 1000 * WAIT_S);
        kvf_pull_start(fx.source, &wanted[i].pull);
    }
    for (unsigned i = 0; i < 5; i++) {
        run_until(wanted[i].ended);
        assert_all_here(&wanted[i]);
    }
    assert_int_equal(fx.log.hellos, 1);
    assert_int_equal(fx.log.reads, 5);
}

/* ---- breaking ---- */

static void expect_one_retry(struct wanted *wanted, void (*break_it)(void))
{
    fixture_add_blocks(4, 2 * KVF_MIB);
    fx.blocks[2].stall_at = KVF_MIB;
    want(wanted, 0, 4, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted->pull);
    run_until(wanted->blocks_ended == 3);
    fx.blocks[2].stall_at = 0;
    break_it();
    run_until(wanted->ended);
    assert_all_here(wanted);
    assert_int_equal(fx.log.hellos, 2);
    assert_int_equal(fx.log.reads, 2);
    assert_int_equal(fx.log.read_blocks[1], 1); /* verified blocks stay */
    assert_int_equal(fx.log.read_first_key[1], 2);
    assert_int_equal(fx.log.read_id[1], 1);
    assert_int_equal(fx.stats.reads, 2);
    assert_int_equal(fx.stats.blocks, 4);
    run_until(fx.log.releases == 1);
}

static void session__call_breaks__the_rest_is_asked_once_more(void **state)
{
    static struct wanted wanted;
    (void)state;
    expect_one_retry(&wanted, fixture_drop_calls);
}

static void session__lane_breaks__the_rest_is_asked_once_more(void **state)
{
    static struct wanted wanted;
    (void)state;
    expect_one_retry(&wanted, fixture_close_lanes);
}

/* Bytes that came without their grant are not believed later. */
static void session__breaks_before_grants__asked_once_more(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 4096);
    fx.answer = ANSWER_GRANT_LATER;
    fx.answer_times = 1;
    want(&wanted, 0, 3, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    run_for_ms(50);
    fixture_drop_calls();
    run_until(wanted.ended);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.read_blocks[1], 3);
    assert_int_equal(fx.stats.reads, 1);
}

static void expect_gives_up(enum fixture_answer answer)
{
    static struct wanted wanted;
    fixture_add_blocks(3, 4096);
    fx.blocks[1].stall_at = 100;
    fx.answer = answer;
    want_and_wait(&wanted, 0, 3);
    assert_missed(&wanted, 1, KVF_UNAVAILABLE);
    assert_int_equal(wanted.told_state[1], KVF_PULL_ENDED);
    assert_int_equal(fx.log.hellos, 2);
    assert_int_equal(fx.log.reads, 2);
    run_until(fx.open_sessions == 0 && fx.open_lanes == 0);
}

static void session__call_breaks_twice__misses(void **state)
{
    (void)state;
    expect_gives_up(ANSWER_DROP_CALL);
}

static void session__lane_breaks_twice__misses(void **state)
{
    (void)state;
    expect_gives_up(ANSWER_CLOSE_LANE);
}

static void session__breaks_twice__unasked_blocks_end_too(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(6, 4096);
    fx.answer = ANSWER_DROP_CALL;
    want(&wanted, 0, 6, 1000 * WAIT_S);
    wanted.pull.batch_bytes = 4096;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_all_missed(&wanted, KVF_UNAVAILABLE);
    assert_int_equal(fx.log.hellos, 2);
}

static void session__source_is_gone_after_break__misses(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, KVF_MIB);
    fx.blocks[0].stall_at = 4096;
    want(&wanted, 0, 2, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks_ended == 1);
    fixture_stop_server();
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_UNAVAILABLE);
    assert_here(&wanted, 1);
}

static void session__idle_one_breaks__next_pull_connects(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    want_and_wait(&wanted, 0, 2);
    fixture_drop_calls();
    run_until(fx.open_sessions == 0);
    run_for_ms(20);
    want_and_wait(&wanted, 0, 2);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.hellos, 2);
}

static void session__another_boot__is_told(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    want_and_wait(&wanted, 0, 2);
    assert_int_equal(fx.draining_calls, 0);
    fx.boot_epoch = 8;
    fixture_drop_calls();
    run_until(fx.open_sessions == 0);
    want_and_wait(&wanted, 0, 2);
    assert_all_here(&wanted);
    assert_int_equal(fx.draining_calls, 1);
    assert_false(kvf_source_is_draining(fx.source));
}

/* ---- what is illegal ---- */

static void expect_protocol_error(enum fixture_answer answer)
{
    static struct wanted wanted;
    fixture_add_blocks(2, 2 * KVF_MIB);
    fx.answer = answer;
    want_and_wait(&wanted, 0, 2);
    assert_missed(&wanted, 0, KVF_UNAVAILABLE);
    assert_int_equal(fx.log.hellos, 2);
    run_until(fx.open_sessions == 0 && fx.open_lanes == 0);

    /* Nothing of it stays behind. */
    fx.answer = ANSWER_GRANT;
    fx.blocks[0].stall_at = 0;
    do {
        want_and_wait(&wanted, 0, 2);
        run_for_ms(20);
    } while (wanted.blocks[0].status.code == KVF_UNAVAILABLE);
    assert_all_here(&wanted);
}

#define ILLEGAL_TEST(what, answer)                                                                 \
    static void session__##what##__ends_it(void **state)                                           \
    {                                                                                              \
        (void)state;                                                                               \
        expect_protocol_error(answer);                                                             \
    }

ILLEGAL_TEST(grants_twice, ANSWER_GRANT_TWICE)
ILLEGAL_TEST(grants_of_other_count, ANSWER_WRONG_COUNT)
ILLEGAL_TEST(id_from_the_future, ANSWER_FUTURE_ID)
ILLEGAL_TEST(id_zero, ANSWER_ID_ZERO)
ILLEGAL_TEST(garbage, ANSWER_GARBAGE)
ILLEGAL_TEST(empty_message, ANSWER_EMPTY)
ILLEGAL_TEST(second_welcome, ANSWER_WELCOME_AGAIN)
ILLEGAL_TEST(grant_without_generation, ANSWER_NO_GENERATION)
ILLEGAL_TEST(fault_before_grants, ANSWER_FAULT_FIRST)
ILLEGAL_TEST(fault_of_no_block, ANSWER_FAULT_INDEX)
ILLEGAL_TEST(fault_that_is_ok, ANSWER_FAULT_OK)
ILLEGAL_TEST(committed_of_no_block, ANSWER_COMMITTED_INDEX)
ILLEGAL_TEST(refused_with_ok, ANSWER_REFUSE_OK)
ILLEGAL_TEST(tokens_over_tcp, ANSWER_TOKENS)

static void session__grants_after_refused__no_harm(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.answer = ANSWER_REFUSE_THEN_GRANT;
    want_and_wait(&wanted, 0, 2);
    assert_missed(&wanted, 0, KVF_BUSY);
    run_for_ms(50);
    assert_int_equal(fx.stats.reads, 0);
}

/* ---- draining ---- */

static void session__drain_notice__finishes_and_leaves(void **state)
{
    static struct wanted wanted, later;
    (void)state;
    fixture_add_blocks(4, 2 * KVF_MIB);
    fx.blocks[1].stall_at = KVF_MIB;
    want(&wanted, 0, 4, 1000 * WAIT_S);
    wanted.pull.batch_bytes = 4 * KVF_MIB;
    wanted.pull.batches_in_flight = 1;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks_ended == 1);
    fixture_drain_notice();
    run_until(fx.draining_calls == 1);
    assert_true(kvf_source_is_draining(fx.source));
    want_and_wait(&later, 0, 2);
    assert_all_missed(&later, KVF_DRAINING);
    assert_int_equal(wanted.ended, 0);
    fixture_land(1);
    run_until(wanted.ended);
    assert_here(&wanted, 0);
    assert_here(&wanted, 1);
    assert_missed(&wanted, 2, KVF_DRAINING);
    assert_missed(&wanted, 3, KVF_DRAINING);
    run_until(fx.open_sessions == 0 && fx.open_lanes == 0);
    assert_int_equal(fx.log.half_closes, 1);
    assert_int_equal(fx.log.releases, 1);
    assert_int_equal(fx.log.reads, 1);
    assert_int_equal(fx.log.hellos, 1);
    assert_int_equal(fx.draining_calls, 1);

    /* A READY daemon is there again. */
    fx.boot_epoch++;
    do {
        want_and_wait(&wanted, 0, 4);
        run_for_ms(20);
    } while (wanted.blocks[0].status.code == KVF_DRAINING);
    assert_all_here(&wanted);
    assert_false(kvf_source_is_draining(fx.source));
    assert_int_equal(fx.draining_calls, 2);
}

static void session__drain_notice__pending_is_a_miss(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 4096);
    fx.blocks[0].code = KVF_PENDING;
    want(&wanted, 0, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    fixture_drain_notice();
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_DRAINING);
    run_until(fx.open_sessions == 0);
    assert_int_equal(fx.log.releases, 1);
}

static void session__refused_draining__is_a_drain(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.answer = ANSWER_REFUSE;
    fx.refuse_code = KVF_DRAINING;
    want_and_wait(&wanted, 0, 2);
    assert_all_missed(&wanted, KVF_DRAINING);
    assert_true(kvf_source_is_draining(fx.source));
    assert_int_equal(fx.draining_calls, 1);
    run_until(fx.open_sessions == 0);
    assert_int_equal(fx.log.releases, 0);
}

/* ---- closing ---- */

static void source_close__unused__closes(void **state)
{
    (void)state;
    fixture_close_source();
}

static void source_close__idle__says_goodbye(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    want_and_wait(&wanted, 0, 2);
    fixture_close_source();
    run_until(fx.open_sessions == 0);
    assert_int_equal(fx.log.half_closes, 1);
    assert_int_equal(fx.log.releases, 1);
}

static void note(void *flag)
{
    *(bool *)flag = true;
}

static void source_close__at_any_moment__pulls_end_cancelled(void **state)
{
    static struct wanted wanted[3];
    (void)state;
    fixture_add_blocks(3, 3 * KVF_MIB);
    fixture_close_source();
    for (unsigned moment = 0; moment < 60; moment++) {
        bool closed = false;
        fx.arena_used = 0;
        fixture_create_source(false);
        fx.blocks[1].stall_at = moment % 2 == 0 ? KVF_MIB : 0;
        for (unsigned i = 0; i < 2; i++) {
            want(&wanted[i], 0, 3, 1000 * WAIT_S);
            kvf_pull_start(fx.source, &wanted[i].pull);
        }
        for (unsigned round = 0; round < moment; round++)
            kvf_loop_run_once(fx.loop, 1);
        kvf_source_close(fx.source, note, &closed);
        want(&wanted[2], 0, 1, 1000 * WAIT_S);
        kvf_pull_start(fx.source, &wanted[2].pull);
        run_until(closed);
        fx.source = NULL;
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(wanted[i].ended, 1);
            for (uint32_t block = 0; block < wanted[i].pull.block_count; block++)
                if (kvf_is_ok(wanted[i].blocks[block].status))
                    assert_here(&wanted[i], block);
                else
                    assert_missed(&wanted[i], block, KVF_CANCELLED);
        }
        assert_all_missed(&wanted[2], KVF_CANCELLED);
        run_until(fx.open_sessions == 0 && fx.open_lanes == 0);
    }
    assert_int_equal(fx.stats.quarantine_bytes, 0);
}

static void source_close__while_connecting_to_silence__is_prompt(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 4096);
    fx.welcome = WELCOME_SILENT;
    want(&wanted, 0, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.hellos == 1);
    fixture_close_source();
    assert_all_missed(&wanted, KVF_CANCELLED);
}

static void close_source(struct wanted *wanted, uint32_t block)
{
    (void)wanted;
    if (block == 0)
        kvf_source_close(fx.source, note, &fx.source_closed);
}

static void source_close__in_a_callback__works(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.blocks[1].stall_at = 10;
    want(&wanted, 0, 2, 1000 * WAIT_S);
    wanted.on_block = close_source;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.source_closed);
    fx.source = NULL;
    assert_here(&wanted, 0);
    assert_missed(&wanted, 1, KVF_CANCELLED);
    run_until(fx.open_sessions == 0);
    assert_int_equal(fx.log.releases, 1); /* it does not just drop the session */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(session__welcome_silent__misses),
        TEST(session__welcome_of_another_version__misses),
        TEST(session__welcome_of_another_transport__misses),
        TEST(session__welcome_with_short_nonce__misses),
        TEST(session__welcome_with_wrong_nonce__misses),
        TEST(session__welcome_without_lane__misses),
        TEST(session__welcome_with_a_name__misses),
        TEST(session__welcome_garbage__misses),
        TEST(session__welcome_is_grants__misses),
        TEST(session__welcome_is_drain_notice__misses),
        TEST(session__welcome_busy__misses),
        TEST(session__source_may_not_serve__nothing_is_asked),
        TEST(session__nobody_there__fast_misses_and_back_off),
        TEST(session__pulls_while_connecting__share_it),
        TEST(session__call_breaks__the_rest_is_asked_once_more),
        TEST(session__lane_breaks__the_rest_is_asked_once_more),
        TEST(session__breaks_before_grants__asked_once_more),
        TEST(session__call_breaks_twice__misses),
        TEST(session__lane_breaks_twice__misses),
        TEST(session__breaks_twice__unasked_blocks_end_too),
        TEST(session__source_is_gone_after_break__misses),
        TEST(session__idle_one_breaks__next_pull_connects),
        TEST(session__another_boot__is_told),
        TEST(session__grants_twice__ends_it),
        TEST(session__grants_of_other_count__ends_it),
        TEST(session__id_from_the_future__ends_it),
        TEST(session__id_zero__ends_it),
        TEST(session__garbage__ends_it),
        TEST(session__empty_message__ends_it),
        TEST(session__second_welcome__ends_it),
        TEST(session__grant_without_generation__ends_it),
        TEST(session__fault_before_grants__ends_it),
        TEST(session__fault_of_no_block__ends_it),
        TEST(session__fault_that_is_ok__ends_it),
        TEST(session__committed_of_no_block__ends_it),
        TEST(session__refused_with_ok__ends_it),
        TEST(session__tokens_over_tcp__ends_it),
        TEST(session__grants_after_refused__no_harm),
        TEST(session__drain_notice__finishes_and_leaves),
        TEST(session__drain_notice__pending_is_a_miss),
        TEST(session__refused_draining__is_a_drain),
        TEST(source_close__unused__closes),
        TEST(source_close__idle__says_goodbye),
        TEST(source_close__at_any_moment__pulls_end_cancelled),
        TEST(source_close__while_connecting_to_silence__is_prompt),
        TEST(source_close__in_a_callback__works),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
