#include "client/pull/source_fixture.h"

#include <stdlib.h>
#include <string.h>

struct question {
    struct kvf_lookup lookup;
    struct kvf_lookup_block blocks[FIXTURE_BLOCKS];
    unsigned ended;
};

static void lookup_ended(struct kvf_lookup *lookup)
{
    kvf_container(lookup, struct question, lookup)->ended++;
}

static void ask(struct question *question, uint32_t count, uint64_t ms)
{
    memset(question, 0, sizeof(*question));
    question->lookup = (struct kvf_lookup){.namespace = SPACE,
                                           .deadline_ns = kvf_clock_now_ns() + ms * KVF_NS_PER_MS,
                                           .blocks = question->blocks,
                                           .block_count = count,
                                           .ended = lookup_ended};
    for (uint32_t i = 0; i < count; i++)
        assert_true(kvf_key_set(&question->blocks[i].key, (uint8_t[]){(uint8_t)i, 'k'}, 2));
    kvf_lookup_start(fx.source, &question->lookup);
    assert_int_equal(question->ended, 0);
    assert_false(kvf_source_is_idle(fx.source));
}

static void ask_and_wait(struct question *question, uint32_t count)
{
    ask(question, count, 1000 * WAIT_S);
    run_until(question->ended);
    assert_true(kvf_source_is_idle(fx.source));
}

static void assert_all(const struct question *question, enum kvf_code code)
{
    assert_int_equal(question->ended, 1);
    for (uint32_t i = 0; i < question->lookup.block_count; i++)
        assert_string_equal(kvf_code_name(question->blocks[i].status.code), kvf_code_name(code));
}

static void lookup__some_there__says_which(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(4, 5000);
    fx.blocks[1].code = KVF_NOT_FOUND;
    fx.blocks[2].code = KVF_PENDING;
    ask_and_wait(&question, 6);
    assert_true(kvf_is_ok(question.blocks[0].status));
    assert_int_equal(question.blocks[0].length, 5000);
    assert_int_equal(question.blocks[0].generation.counter, 1);
    assert_int_equal(question.blocks[0].tier, KVF_TIER_SSD);
    assert_int_equal(question.blocks[1].status.code, KVF_NOT_FOUND);
    assert_int_equal(question.blocks[2].status.code, KVF_PENDING);
    assert_true(kvf_is_ok(question.blocks[3].status));
    assert_int_equal(question.blocks[4].status.code, KVF_NOT_FOUND);
    assert_int_equal(fx.log.hellos, 0);
}

static void lookup__impossible_length__is_no_block(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.blocks[0].granted_length = KVF_BLOCK_MAX_BYTES + 1;
    fx.blocks[1].granted_length = KVF_BLOCK_MAX_BYTES;
    ask_and_wait(&question, 2);
    assert_int_equal(question.blocks[0].status.code, KVF_NOT_FOUND);
    assert_int_equal(question.blocks[0].length, 0);
    assert_true(kvf_is_ok(question.blocks[1].status));
}

static void lookup__no_keys__ends(void **state)
{
    static struct question question;
    (void)state;
    ask_and_wait(&question, 0);
    assert_int_equal(fx.log.lookups, 0);
}

static void lookup__very_many_keys__asked_in_pages(void **state)
{
    static struct question question;
    const uint32_t count = 9000;
    (void)state;
    fixture_add_blocks(3, 5000);
    struct kvf_lookup_block *blocks = calloc(count, sizeof(*blocks));
    assert_non_null(blocks);
    for (uint32_t i = 0; i < count; i++)
        assert_true(kvf_key_set(&blocks[i].key, (uint8_t[]){(uint8_t)(i % 4), 'k'}, 2));
    question.lookup = (struct kvf_lookup){.namespace = SPACE,
                                          .deadline_ns = kvf_clock_now_ns() + WAIT_S * KVF_NS_PER_S,
                                          .blocks = blocks,
                                          .block_count = count,
                                          .ended = lookup_ended};
    question.ended = 0;
    kvf_lookup_start(fx.source, &question.lookup);
    run_until(question.ended);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(blocks[i].status.code, i % 4 < 3 ? KVF_OK : KVF_NOT_FOUND);
    assert_int_equal(fx.log.lookups, 3);
    free(blocks);
}

static void lookup__wrong_answers__are_none(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.lookup_short = true;
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_UNAVAILABLE);
    fx.lookup_short = false;
    fx.lookup_garbage = true;
    run_for_ms(150);
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_UNAVAILABLE);
    assert_int_equal(fx.log.lookups, 2);
    fx.lookup_garbage = false;
    run_for_ms(250);
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_OK);
}

static void lookup__source_may_not_serve__is_not_believed(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.deny = true;
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_DENIED);
}

static void lookup__deadline__ends_in_time(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.lookup_silent = true;
    ask(&question, 2, 100);
    run_until(question.ended);
    assert_all(&question, KVF_DEADLINE);
    ask(&question, 2, 0);
    run_until(question.ended);
    assert_all(&question, KVF_DEADLINE);
}

/* Who does not answer a look-up within a second is not there, and nobody else waits for him again so soon. */
static void lookup__silent_source__unavailable_and_back_off(void **state)
{
    static struct question question;
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.lookup_silent = true;
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_UNAVAILABLE);
    want_and_wait(&wanted, 0, 2);
    assert_all_missed(&wanted, KVF_UNAVAILABLE);
    assert_int_equal(fx.log.hellos, 0);
}

static void lookup__nobody_there_and_back__works(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_OK);
    fixture_stop_server();
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_UNAVAILABLE);
    fixture_start_server();
    do {
        run_for_ms(20);
        ask_and_wait(&question, 2);
    } while (question.blocks[0].status.code == KVF_UNAVAILABLE);
    assert_all(&question, KVF_OK);
}

static void lookup__draining__is_told(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.lookup_draining = true;
    ask_and_wait(&question, 2);
    assert_all(&question, KVF_OK);
    assert_true(kvf_source_is_draining(fx.source));
    run_until(fx.draining_calls == 1);
}

static void lookup_cancel__ends_once(void **state)
{
    static struct question question;
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.lookup_silent = true;
    ask(&question, 2, 1000 * WAIT_S);
    kvf_lookup_cancel(&question.lookup);
    kvf_lookup_cancel(&question.lookup);
    run_until(question.ended);
    assert_all(&question, KVF_CANCELLED);
    ask(&question, 2, 1000 * WAIT_S);
    run_until(fx.log.lookups == 1);
    kvf_lookup_cancel(&question.lookup);
    run_until(question.ended);
    assert_all(&question, KVF_CANCELLED);
}

static void source_close__lookups__end_cancelled(void **state)
{
    static struct question questions[3];
    (void)state;
    fixture_add_blocks(2, 5000);
    fx.lookup_silent = true;
    for (unsigned i = 0; i < 3; i++)
        ask(&questions[i], 2, 1000 * WAIT_S);
    fixture_close_source();
    for (unsigned i = 0; i < 3; i++)
        assert_all(&questions[i], KVF_CANCELLED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lookup__some_there__says_which),
        TEST(lookup__impossible_length__is_no_block),
        TEST(lookup__no_keys__ends),
        TEST(lookup__very_many_keys__asked_in_pages),
        TEST(lookup__wrong_answers__are_none),
        TEST(lookup__source_may_not_serve__is_not_believed),
        TEST(lookup__deadline__ends_in_time),
        TEST(lookup__silent_source__unavailable_and_back_off),
        TEST(lookup__nobody_there_and_back__works),
        TEST(lookup__draining__is_told),
        TEST(lookup_cancel__ends_once),
        TEST(source_close__lookups__end_cancelled),
    };
    return cmocka_run_group_tests_name("lookup", tests, NULL, NULL);
}
