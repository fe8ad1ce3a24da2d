#include "base/clock.h"
#include "base/log.h"
#include "base/test.h"

#include <string.h>

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

static void recent__after_many_lines__is_the_last_warnings_and_errors_in_order(void **state)
{
    char lines[KVF_LOG_RECENT][KVF_LOG_RECENT_BYTES];
    (void)state;
    assert_int_equal(kvf_log_recent(lines), 0);
    kvf_log_info("test", "no trouble");
    assert_int_equal(kvf_log_recent(lines), 0);
    kvf_log_warning("test", "a%cb", '\n');
    kvf_log_error("test", "second");
    assert_int_equal(kvf_log_recent(lines), 2);
    assert_non_null(strstr(lines[0], " warning test: a?b"));
    assert_non_null(strstr(lines[1], " error test: second"));
    for (unsigned i = 0; i < KVF_LOG_RECENT + 3; i++)
        kvf_log_error("test", "line %u", i);
    assert_int_equal(kvf_log_recent(lines), KVF_LOG_RECENT);
    assert_non_null(strstr(lines[0], "line 3"));
    assert_non_null(strstr(lines[KVF_LOG_RECENT - 1], "line 18"));
}

static void recent__a_long_line__is_cut(void **state)
{
    char lines[KVF_LOG_RECENT][KVF_LOG_RECENT_BYTES], text[900];
    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    kvf_log_error("test", "%s", text);
    size_t count = kvf_log_recent(lines);
    assert_true(count > 0);
    assert_int_equal(strlen(lines[count - 1]), KVF_LOG_RECENT_BYTES - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(may__more_than_a_second_takes__kept_back_and_counted),
        cmocka_unit_test(recent__after_many_lines__is_the_last_warnings_and_errors_in_order),
        cmocka_unit_test(recent__a_long_line__is_cut),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
