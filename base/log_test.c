#include "base/clock.h"
#include "base/log.h"
#include "base/test.h"

static void may__more_than_a_second_takes__kept_back_and_counted(void **state)
{
    (void)state;
    struct kvf_log_limit limit = {0};
    uint64_t suppressed = 7;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(kvf_log_may(&limit, 3, 5 * KVF_NS_PER_S + i, &suppressed));
        assert_int_equal(suppressed, 0);
    }
    for (unsigned i = 0; i < 10; i++)
        assert_false(kvf_log_may(&limit, 3, 5 * KVF_NS_PER_S + 100 + i, &suppressed));
    assert_true(kvf_log_may(&limit, 3, 6 * KVF_NS_PER_S, &suppressed));
    assert_int_equal(suppressed, 10);
    assert_true(kvf_log_may(&limit, 3, 6 * KVF_NS_PER_S + 1, &suppressed));
    assert_int_equal(suppressed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(may__more_than_a_second_takes__kept_back_and_counted),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
