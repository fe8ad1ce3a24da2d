#include "client/cli/sweep.h"

#include "base/test.h"

#include <math.h>
#include <string.h>

static void sweep_parse__list__values_in_their_order(void **state)
{
    (void)state;
    struct sweep sweep;
    struct kvf_why why = {""};
    assert_true(kvf_is_ok(sweep_parse("read-batch-mib=32,0,128", &sweep, &why)));
    assert_int_equal(sweep.count, 3);
    assert_int_equal(sweep.values[0], 32);
    assert_int_equal(sweep.values[1], 0);
    assert_int_equal(sweep.values[2], 128);
}

static void sweep_parse__anything_else__invalid_and_says_so(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "read-batch-mib",
        "read-batch-mib=",
        "read-batch-mib=1,",
        "read-batch-mib=,1",
        "read-batch-mib=1,1",
        "read-batch-mib=1 ,2",
        "read-batch-mib=-1",
        "pool-mib=1,2",
        "read-batch-mib=99999999999999999999999999",
        "read-batch-mib=17592186044416",
        "read-batch-mib=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct sweep sweep;
        struct kvf_why why = {""};
        assert_int_equal(sweep_parse(bad[i], &sweep, &why).code, KVF_INVALID);
        assert_non_null(strstr(why.text, "--sweep"));
    }
}

static void sweep_list__out_of_range__invalid(void **state)
{
    (void)state;
    struct sweep sweep;
    struct kvf_why why = {""};
    assert_int_equal(sweep_list("--blocks", "8,257", 1, 256, &sweep, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "--blocks"));
    assert_true(kvf_is_ok(sweep_list("--blocks", "256", 1, 256, &sweep, &why)));
}

static void sweep_compare__the_same_times__one_and_an_interval_round_it(void **state)
{
    (void)state;
    const uint64_t times[] = {100, 110, 90, 105, 95, 101, 99, 120, 80, 100};
    struct sweep_ratio got = sweep_compare(times, times, 2, 5);
    assert_true(fabs(got.ratio - 1) < 1e-12);
    assert_true(got.low < 1 && got.high > 1);
}

static void sweep_compare__half_the_time__half_and_an_interval_below_one(void **state)
{
    (void)state;
    const uint64_t slow[] = {200, 210, 190, 400, 410, 390, 100, 105, 95};
    const uint64_t fast[] = {100, 105, 95, 200, 205, 195, 50, 52, 48};
    struct sweep_ratio got = sweep_compare(slow, fast, 3, 3);
    assert_true(fabs(got.ratio - 0.5) < 1e-12);
    assert_true(got.low <= got.ratio && got.ratio <= got.high);
    assert_true(got.low > 0.4 && got.high < 0.6);
}

static void sweep_compare__twice__the_same_interval(void **state)
{
    (void)state;
    const uint64_t a[] = {10, 12, 9, 14, 11, 13}, b[] = {11, 9, 10, 15, 12, 10};
    struct sweep_ratio one = sweep_compare(a, b, 2, 3), two = sweep_compare(a, b, 2, 3);
    assert_memory_equal(&one, &two, sizeof(one));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sweep_parse__list__values_in_their_order),
        cmocka_unit_test(sweep_parse__anything_else__invalid_and_says_so),
        cmocka_unit_test(sweep_list__out_of_range__invalid),
        cmocka_unit_test(sweep_compare__the_same_times__one_and_an_interval_round_it),
        cmocka_unit_test(sweep_compare__half_the_time__half_and_an_interval_below_one),
        cmocka_unit_test(sweep_compare__twice__the_same_interval),
    };
    return cmocka_run_group_tests_name("client/cli/sweep", tests, NULL, NULL);
}
