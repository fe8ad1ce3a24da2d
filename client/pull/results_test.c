#include "client/pull/results.h"

#include "base/test.h"
#include "client/pull/source.h"

static struct kvf_pull_stats stats;
static struct kvf_source source;
static struct kvf_pull_block block;
static struct kvf_pull pull;

static int set_up(void **state)
{
    (void)state;
    stats = (struct kvf_pull_stats){0};
    source = (struct kvf_source){.options.stats = &stats};
    block = (struct kvf_pull_block){.length = 1, .extent.bytes = 4096};
    pull = (struct kvf_pull){.blocks = &block, .block_count = 1};
    kvf_list_init(&source.delivering);
    results_init(&pull, &source);
    return 0;
}

static void end__twice__is_an_assert(void **state)
{
    (void)state;
    results_end(&pull, 0, pull_fail(KVF_NOT_FOUND));
    assert_aborts(results_end(&pull, 0, kvf_ok()));
    assert_aborts(results_asked(&pull, 0));
    assert_aborts(results_wait(&pull, 0));
    assert_aborts(results_quarantine(&pull, 0, pull_fail(KVF_DEADLINE)));
    assert_int_equal(stats.misses, 1);
}

static void quarantine__not_asked__is_an_assert(void **state)
{
    (void)state;
    assert_aborts(results_quarantine(&pull, 0, pull_fail(KVF_DEADLINE)));
    results_asked(&pull, 0);
    assert_aborts(results_asked(&pull, 0));
    assert_aborts(results_quarantine(&pull, 0, kvf_ok()));
    assert_aborts(results_free(&pull, 0));
}

static void quarantine__then_free__once(void **state)
{
    (void)state;
    results_asked(&pull, 0);
    results_quarantine(&pull, 0, pull_fail(KVF_DEADLINE));
    assert_int_equal(stats.quarantine_bytes, 4096);
    assert_aborts(results_end(&pull, 0, kvf_ok()));
    assert_aborts(results_quarantine(&pull, 0, pull_fail(KVF_DEADLINE)));
    block.told = true;
    results_free(&pull, 0);
    assert_int_equal(stats.quarantine_bytes, 0);
    assert_aborts(results_free(&pull, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(end__twice__is_an_assert, set_up),
        cmocka_unit_test_setup(quarantine__not_asked__is_an_assert, set_up),
        cmocka_unit_test_setup(quarantine__then_free__once, set_up),
    };
    return cmocka_run_group_tests_name("client/pull/results", tests, NULL, NULL);
}
