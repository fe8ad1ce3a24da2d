#include "client/cli/words.h"

#include "base/test.h"

#include <errno.h>
#include <string.h>

static struct kvf_status code(enum kvf_code c)
{
    return kvf_fail(KVF_MODULE_SERVER, c, 0);
}

static void meaning__every_code__has_words_and_a_remedy(void **state)
{
    (void)state;
    for (unsigned c = 0; c < KVF_CODE_COUNT; c++) {
        assert_non_null(words_meaning(c));
        assert_non_null(words_remedy(c));
        assert_true(strlen(words_remedy(c)) > 5);
        for (unsigned other = 0; other < c; other++)
            assert_string_not_equal(words_meaning(c), words_meaning(other));
    }
    assert_non_null(words_meaning(KVF_CODE_COUNT));
    assert_non_null(words_remedy(70000));
}

static void exit_of_call__codes__as_promised(void **state)
{
    (void)state;
    assert_int_equal(words_exit_of_call(KVF_OK), 0);
    assert_int_equal(words_exit_of_call(KVF_EXISTS), 0);
    assert_int_equal(words_exit_of_call(KVF_UNAVAILABLE), 1);
    assert_int_equal(words_exit_of_call(KVF_BUSY), 1);
    assert_int_equal(words_exit_of_call(KVF_DENIED), 1);
    assert_int_equal(words_exit_of_call(KVF_DEADLINE), 1);
    assert_int_equal(words_exit_of_call(KVF_TOO_LARGE), 2);
    assert_int_equal(words_exit_of_call(KVF_INVALID), 2);
    assert_int_equal(words_exit_of_call(12345), 1);
}

static void exit_of_block__codes__missing_unless_worse(void **state)
{
    (void)state;
    assert_int_equal(words_exit_of_block(KVF_OK), 0);
    assert_int_equal(words_exit_of_block(KVF_NOT_FOUND), 4);
    assert_int_equal(words_exit_of_block(KVF_DEADLINE), 4);
    assert_int_equal(words_exit_of_block(KVF_CORRUPT), 4);
    assert_int_equal(words_exit_of_block(KVF_UNAVAILABLE), 4);
    assert_int_equal(words_exit_of_block(KVF_BUSY), 1);
    assert_int_equal(words_exit_of_block(KVF_TOO_LARGE), 2);
}

static void exit_worse__order__usage_failed_missing_ok(void **state)
{
    (void)state;
    assert_int_equal(words_exit_worse(WORDS_EXIT_OK, WORDS_EXIT_MISSING), 4);
    assert_int_equal(words_exit_worse(WORDS_EXIT_MISSING, WORDS_EXIT_OK), 4);
    assert_int_equal(words_exit_worse(WORDS_EXIT_MISSING, WORDS_EXIT_FAILED), 1);
    assert_int_equal(words_exit_worse(WORDS_EXIT_USAGE, WORDS_EXIT_FAILED), 2);
}

static void line__no_why__meaning_code_and_remedy(void **state)
{
    (void)state;
    char line[512];
    words_line(line, sizeof(line), "put", code(KVF_BUSY), NULL);
    assert_string_equal(line,
                        "kvferry: put: no room before the deadline (BUSY); try again later, with a "
                        "longer --timeout-s, or with fewer blocks at a time");
    words_line(line, sizeof(line), "put", kvf_fail(KVF_MODULE_STORAGE, KVF_IO, EIO), "");
    assert_non_null(strstr(line, "Input/output error"));
}

static void line__foreign_text__cannot_forge_a_line(void **state)
{
    (void)state;
    char line[512];
    words_line(line, sizeof(line), "x", code(KVF_INVALID), "bad\nkvferry: all is well\x1b[0m");
    assert_string_equal(line, "kvferry: x: bad?kvferry: all is well?[0m (INVALID)");
}

static void line__little_room__is_cut_and_ended(void **state)
{
    (void)state;
    char line[16];
    words_line(line, sizeof(line), "put", code(KVF_BUSY), NULL);
    assert_int_equal(strlen(line), 15);
}

static void limit__whole_and_broken_mib__as_the_flag_says(void **state)
{
    (void)state;
    char text[WORDS_LIMIT_ROOM];
    words_limit(text, "--dirty-limit-mib", 128 << 20);
    assert_string_equal(text, "--dirty-limit-mib 128");
    words_limit(text, "--dirty-limit-mib", (128 << 20) + (1 << 19));
    assert_string_equal(text, "--dirty-limit-mib 128.500");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limit__whole_and_broken_mib__as_the_flag_says),
        cmocka_unit_test(meaning__every_code__has_words_and_a_remedy),
        cmocka_unit_test(exit_of_call__codes__as_promised),
        cmocka_unit_test(exit_of_block__codes__missing_unless_worse),
        cmocka_unit_test(exit_worse__order__usage_failed_missing_ok),
        cmocka_unit_test(line__no_why__meaning_code_and_remedy),
        cmocka_unit_test(line__foreign_text__cannot_forge_a_line),
        cmocka_unit_test(line__little_room__is_cut_and_ended),
    };
    return cmocka_run_group_tests_name("client/cli/words", tests, NULL, NULL);
}
