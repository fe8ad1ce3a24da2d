/* Engines that die, are drained or forced out: what they held comes back. */
#include "server/engine_fixture.h"

#include <signal.h>

/* ---- engines that die ---- */

static void engine__dies_after_release__leaves_nothing(void **state)
{
    (void)state;
    struct raw_engine engine;
    node_put(&node, 1);
    for (int cancel = 0; cancel < 2; cancel++) {
        raw_join(&engine);
        assert_int_equal(raw_register(&engine), KVF_OK);
        uint64_t get = raw_send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
        assert_int_equal(raw_code_of(&engine, get), KVF_OK);
        (void)(cancel ? raw_send_cancel(&engine, get) : raw_send_release(&engine, get));
        raw_leave(&engine);
        node_run_until(kvf_engines_count(engines) == 0);
        node_assert_idle(&node);
    }
}

static void engine__dies_while_two_of_its_gets_share_a_load__leaves_nothing(void **state)
{
    (void)state;
    struct raw_engine engine;
    node_put(&node, 1);
    for (int round = 0; round < 8; round++) {
        node_evict(&node);
        raw_join(&engine);
        assert_int_equal(raw_register(&engine), KVF_OK);
        (void)raw_send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
        (void)raw_send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
        node_run_until(node.gets.open == 2 || node.counters.hits[KVF_HIT_SSD] > 0);
        raw_leave(&engine);
        node_run_until(kvf_engines_count(engines) == 0);
        node_assert_idle(&node);
    }
}

static void engine__dies_after_a_commit_that_its_own_get_waits_for__all_of_it_counts(void **state)
{
    (void)state;
    struct raw_engine engine;
    raw_join_as_process(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 1, 3, NODE_BLOCK_BYTES)),
                     KVF_OK);
    (void)raw_send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
    (void)raw_send_commit(&engine, 1, 3);
    raw_leave(&engine);
    raw_end_process();
    node_run_until(kvf_engines_count(engines) == 0);
    for (unsigned i = 1; i <= 3; i++)
        assert_true(node_has(&node, i));
    node_assert_idle(&node);
}

static void engine__dies_between_begin_and_commit__memory_waits_for_its_process(void **state)
{
    (void)state;
    struct raw_engine engine, other;
    raw_join_as_process(&engine);
    raw_join(&other);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_int_equal(raw_register(&other), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 1, 1, NODE_BLOCK_BYTES)),
                     KVF_OK);
    uint64_t get = raw_send_get(&other, 1, 1, NODE_BLOCK_BYTES); /* waits for the commit */
    raw_leave(&engine);
    assert_int_equal(raw_code_of(&other, get), KVF_OK);
    assert_false(node_has(&node, 1));
    assert_int_equal(node.puts.quarantine_bytes, NODE_BLOCK_BYTES);
    assert_int_equal(kvf_engines_count(engines), 2);
    raw_end_process();
    node_run_until(kvf_engines_count(engines) == 1);
    assert_int_equal(raw_dirty_bytes(), 0);
    raw_leave(&other);
}

static void engine__unregisters_with_open_places__memory_is_free_at_once(void **state)
{
    (void)state;
    struct raw_engine engine;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 1, 2, NODE_BLOCK_BYTES)),
                     KVF_OK);
    (void)raw_send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
    assert_int_equal(raw_code_of(&engine, raw_send_unregister(&engine)), KVF_OK);
    assert_int_equal(raw_dirty_bytes(), 0);
    raw_leave(&engine);
}

/* It closed before its answer went out, and with another answer unread: what it gave back before counts. */
static void engine__unregisters_and_is_gone_before_the_answer__memory_is_free_at_once(void **state)
{
    (void)state;
    for (unsigned unread = 0; unread < 2; unread++) {
        struct raw_engine engine, other;
        raw_join(&engine);
        raw_join(&other);
        assert_int_equal(raw_register(&engine), KVF_OK);
        assert_int_equal(raw_register(&other), KVF_OK);
        for (unsigned i = 0; i < unread; i++)
            (void)raw_send_put_begin(&engine, 1, 1, NODE_BLOCK_BYTES);
        raw_settle(&other);
        (void)raw_send_put_begin(&engine, 2, 2, NODE_BLOCK_BYTES);
        (void)raw_send_unregister(&engine);
        raw_leave(&engine);
        node_run_until(kvf_engines_count(engines) == 1);
        assert_int_equal(node.puts.quarantine_bytes, 0);
        assert_int_equal(raw_dirty_bytes(), 0);
        raw_leave(&other);
        node_run_until(kvf_engines_count(engines) == 0);
    }
}

static void engine__dies_in_the_queue_for_dirty_bytes__leaves_nothing(void **state)
{
    (void)state;
    struct raw_engine engine;
    struct put *full = node_begin(&node, 200);
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    (void)raw_send_put_begin(&engine, 1, 1, 16 * KVF_MIB);
    node_run_until(!kvf_list_is_empty(&node.admission.queues[KVF_CLASS_DIRTY]));
    raw_leave(&engine);
    node_run_until(kvf_engines_count(engines) == 0);
    assert_true(kvf_list_is_empty(&node.admission.queues[KVF_CLASS_DIRTY]));
    put_abort(full);
}

/* ---- draining ---- */

static void drain__registered_hear_it__others_are_refused_and_do_not_count(void **state)
{
    (void)state;
    struct raw_engine engine, silent, late;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    raw_join(&silent);
    kvf_loop_run_once(node_loop, 20);
    kvf_engines_drain(engines);
    assert_int_equal(raw_code_of(&engine, 0), KVF_OK); /* the DrainNotice */
    assert_null(raw_next_reply(&silent));
    raw_join(&late);
    assert_int_equal(raw_register(&late), KVF_DRAINING);
    assert_int_equal(kvf_engines_count(engines), 1);
    assert_int_equal(raw_code_of(&engine, raw_send_get(&engine, 1, 1, 0)), KVF_DRAINING);
    assert_int_equal(raw_code_of(&engine, raw_send_unregister(&engine)), KVF_OK);
    raw_leave(&engine);
    raw_leave(&silent);
    node_run_until(kvf_engines_count(engines) == 0);
    /* `late` is still connected when the engines are destroyed. */
}

static void drain__the_end_of_one_ends_another__both_are_gone(void **state)
{
    (void)state;
    struct raw_engine first, second;
    raw_join_as_process(&first);
    assert_int_equal(raw_register(&first), KVF_OK);
    raw_join(&second);
    assert_int_equal(raw_register(&second), KVF_OK);
    assert_int_equal(raw_code_of(&first, raw_send_put_begin(&first, 1, 1, NODE_BLOCK_BYTES)),
                     KVF_OK);
    (void)raw_send_get(&second, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(node.gets.open == 1);
    raw_leave(&first);
    raw_leave(&second);
    kvf_engines_drain(engines); /* notices that both are dead */
    raw_end_process();
    node_run_until(kvf_engines_count(engines) == 0);
}

static void force__everybody__is_gone_with_places_of_living_processes(void **state)
{
    (void)state;
    struct raw_engine first, second;
    raw_join_as_process(&first);
    assert_int_equal(raw_register(&first), KVF_OK);
    raw_join(&second);
    assert_int_equal(raw_register(&second), KVF_OK);
    assert_int_equal(raw_code_of(&first, raw_send_put_begin(&first, 1, 1, NODE_BLOCK_BYTES)),
                     KVF_OK);
    (void)raw_send_get(&second, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(node.gets.open == 1);
    raw_leave(&second);
    kvf_engines_force(engines);
    assert_int_equal(kvf_engines_count(engines),
                     0); /* no memory is given out any more: nothing to wait for */
    assert_int_equal(node.puts.quarantine_bytes, 0);
    raw_end_process();
    raw_leave(&first);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        RAW_ENGINE_TEST(engine__dies_after_release__leaves_nothing),
        RAW_ENGINE_TEST(engine__dies_while_two_of_its_gets_share_a_load__leaves_nothing),
        RAW_ENGINE_TEST(engine__dies_after_a_commit_that_its_own_get_waits_for__all_of_it_counts),
        RAW_ENGINE_TEST(engine__dies_between_begin_and_commit__memory_waits_for_its_process),
        RAW_ENGINE_TEST(engine__unregisters_with_open_places__memory_is_free_at_once),
        RAW_ENGINE_TEST(engine__unregisters_and_is_gone_before_the_answer__memory_is_free_at_once),
        RAW_ENGINE_TEST(engine__dies_in_the_queue_for_dirty_bytes__leaves_nothing),
        RAW_ENGINE_TEST(drain__registered_hear_it__others_are_refused_and_do_not_count),
        RAW_ENGINE_TEST(drain__the_end_of_one_ends_another__both_are_gone),
        RAW_ENGINE_TEST(force__everybody__is_gone_with_places_of_living_processes),
    };
    return cmocka_run_group_tests_name("server/engines: ends", tests, NULL, NULL);
}
