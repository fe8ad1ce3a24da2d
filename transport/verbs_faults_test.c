/* verbs where a call fails, at each of them in turn, and on a device without windows. */
#include "transport/testbed.h"
#include "transport/verbs.h"
#include "transport/verbs_faults.h"

#include "base/faulty_memory.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS 4
#define MOST_STEPS 500

/* ---- opening the transport ---- */

static struct kvf_loop *loop;

/* True: it was the last step, nothing failed. */
static bool open_and_close(const struct kvf_transport_options *options, bool (*has_failed)(void))
{
    struct kvf_transport *transport = NULL;
    struct kvf_why why = {0};
    struct kvf_status status = kvf_transport_open("verbs", options, &transport, &why);
    bool failed = has_failed();
    verbs_faults_fail_at(0);
    faulty_memory_fail_at(0);
    if (failed) {
        assert_false(kvf_is_ok(status));
        assert_true(status.code == KVF_NO_MEMORY || why.text[0] != '\0');
        assert_null(transport);
        return false;
    }
    if (!kvf_is_ok(status))
        fail_msg("%s", why.text);
    kvf_transport_close(transport);
    return true;
}

static void check_open_fails_at_each(void (*fail_at)(unsigned), bool (*has_failed)(void))
{
    struct kvf_arena arena;
    assert_true(kvf_is_ok(kvf_loop_create(&loop)));
    assert_true(kvf_is_ok(kvf_arena_create(KVF_MIB, 0, false, &arena, NULL)));
    const struct kvf_arena *arenas[] = {&arena};
    struct kvf_transport_options options = {.loop = loop, .arenas = arenas, .arena_count = 1};
    assert_true(open_and_close(&options, has_failed));
    unsigned before = testbed_descriptors(), step = 0;
    do {
        assert_int_equal(testbed_descriptors(), before);
        assert_true(++step < MOST_STEPS);
        fail_at(step);
    } while (!open_and_close(&options, has_failed));
    assert_true(step > 5);
    assert_int_equal(testbed_descriptors(), before);
    kvf_arena_close(&arena);
    kvf_loop_destroy(loop);
}

static void open__a_call_fails__says_so_and_leaves_nothing(void **state)
{
    (void)state;
    check_open_fails_at_each(verbs_faults_fail_at, verbs_faults_failed);
}

static void open__memory_is_out__says_so_and_leaves_nothing(void **state)
{
    (void)state;
    check_open_fails_at_each(faulty_memory_fail_at, faulty_memory_failed);
}

/* ---- lanes ---- */

static int set_up(void **state)
{
    (void)state;
    testbed_open("verbs");
    testbed.lane_blocks = BLOCKS;
    testbed_reopen(0);
    return 0;
}

static struct testbed_read *make(struct testbed_end *end, uint64_t landed)
{
    struct testbed_read *read = testbed_read_make(end, 1, 7, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        testbed_read_set(read, i, i * 2 * KVF_MIB, KVF_MIB + i, landed > 0 ? KVF_MIB + i : 0);
    return read;
}

static bool both_are_over(void *to)
{
    struct testbed_read *read = to;
    return read->ended == read->expected || testbed.source.lane == NULL ||
           testbed.consumer.lane == NULL;
}

/* A lane and a transfer, with whatever may fail. True: it went well. */
static bool try_transfer(void)
{
    struct testbed_read *to = make(&testbed.consumer, 0), *from = make(&testbed.source, 1);
    testbed_invite(TESTBED_WAIT_S * 1000);
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait(both_are_over, to);
    bool went_well = to->ended_ok == BLOCKS;
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (to->ended_count[i] > 0 && kvf_is_ok(to->blocks[i].status))
            testbed_check_ok(to, from, i);
    testbed_lanes_close();
    assert_int_equal(to->ended, BLOCKS);
    assert_int_equal(from->ended, BLOCKS);
    free(to);
    free(from);
    return went_well;
}

static void lane__a_call_fails__both_ends_end_and_the_next_lane_works(void **state)
{
    (void)state;
    assert_true(try_transfer());
    unsigned before = testbed_descriptors(), step = 0, bad = 0;
    do {
        assert_int_equal(testbed_descriptors(), before);
        assert_true(++step < MOST_STEPS);
        verbs_faults_fail_at(step);
        bad += !try_transfer();
    } while (verbs_faults_failed());
    verbs_faults_fail_at(0);
    assert_true(bad > 10);
    assert_true(try_transfer());
    assert_int_equal(testbed_descriptors(), before);
}

/* ---- no windows ---- */

static void no_windows__one_tenant_and_all_arrives(void **state)
{
    (void)state;
    verbs_faults_no_windows(true);
    testbed_reopen(0);
    const struct kvf_transport_traits *traits = kvf_transport_traits(testbed.source.transport);
    assert_true(traits->needs_tokens && traits->single_tenant);
    assert_non_null(strstr(traits->single_tenant_why, "no memory windows"));
    assert_int_equal(traits->lane_blocks, 0);
    for (unsigned round = 0; round < 5; round++)
        assert_true(try_transfer());
    verbs_faults_no_windows(false);
}

static bool second_is_told(void *from)
{
    return ((struct testbed_read *)from)->tokens[1].length > 0;
}

static void no_windows__withdrawn_and_released__each_ends_once(void **state)
{
    (void)state;
    verbs_faults_no_windows(true);
    testbed_reopen(0);
    struct testbed_read *from = make(&testbed.source, 1);
    from->blocks[0].landed_bytes = 1;
    testbed_lanes_open();
    testbed_offer(from);
    testbed_wait(second_is_told, from);
    kvf_lane_withdraw(&from->read, 0);
    kvf_lane_withdraw(&from->read, 1);
    testbed_serve_ms(20);
    assert_int_equal(from->ended, 1); /* the other may be read still */
    kvf_lane_release(&from->read);
    testbed_wait_ended(from);
    assert_int_equal(from->blocks[0].status.code, KVF_CANCELLED);
    assert_int_equal(from->blocks[1].status.code, KVF_CANCELLED);
    assert_int_equal(from->blocks[2].status.code, KVF_OK);
    assert_int_equal(from->blocks[3].status.code, KVF_OK);
    free(from);
    verbs_faults_no_windows(false);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, testbed_tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open__a_call_fails__says_so_and_leaves_nothing),
        cmocka_unit_test(open__memory_is_out__says_so_and_leaves_nothing),
        TEST(lane__a_call_fails__both_ends_end_and_the_next_lane_works),
        TEST(no_windows__one_tenant_and_all_arrives),
        TEST(no_windows__withdrawn_and_released__each_ends_once),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return testbed_can_open("verbs")
               ? cmocka_run_group_tests_name("verbs_faults", tests, NULL, NULL)
               : 0;
}
