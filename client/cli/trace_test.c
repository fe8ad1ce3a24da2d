#include "client/cli/trace.h"

#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE(ids)                                                                                  \
    "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": " ids "}"

static char path[64];

static const char *file_with(const char *text, size_t bytes)
{
    (void)snprintf(path, sizeof(path), "/tmp/kvf-trace-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), (ssize_t)bytes);
    (void)close(fd);
    return path;
}

static struct kvf_status load(const char *text, uint64_t most, struct trace *trace,
                              struct kvf_why *why)
{
    *why = (struct kvf_why){""};
    struct kvf_status status = trace_load(file_with(text, strlen(text)), most, trace, why);
    (void)unlink(path);
    return status;
}

static void load__three_requests__numbered_by_first_appearance(void **state)
{
    (void)state;
    struct trace trace;
    struct kvf_why why;
    const char *text = LINE("[7, 900, 3]") "\n" LINE("[]") "\r\n" LINE("[3, 9007199254740991, 7]");
    assert_true(kvf_is_ok(load(text, UINT64_MAX, &trace, &why)));
    assert_int_equal(trace.request_count, 3);
    assert_int_equal(trace.reference_count, 6);
    assert_int_equal(trace.distinct_count, 4);
    const size_t first[] = {0, 3, 3, 6};
    const uint32_t references[] = {0, 1, 2, 2, 3, 0};
    const uint64_t ids[] = {7, 900, 3, 9007199254740991};
    assert_memory_equal(trace.first, first, sizeof(first));
    assert_memory_equal(trace.references, references, sizeof(references));
    assert_memory_equal(trace.ids, ids, sizeof(ids));
    trace_free(&trace);
}

static void load__most__keeps_the_first_and_judges_all(void **state)
{
    (void)state;
    struct trace trace;
    struct kvf_why why;
    assert_true(kvf_is_ok(load(LINE("[1, 2]") "\n" LINE("[3]") "\n", 1, &trace, &why)));
    assert_int_equal(trace.request_count, 1);
    assert_int_equal(trace.distinct_count, 2);
    trace_free(&trace);
    assert_int_equal(load(LINE("[1, 2]") "\n{\n", 1, &trace, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, ":2: "));
}

static void load__bad_lines__name_file_line_and_what_was_expected(void **state)
{
    (void)state;
    const char *bad[] = {
        "nonsense",
        "",
        "[]",
        "3",
        "{}",
        "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1}",
        "{\"timestamp\": \"0\", \"input_length\": 9, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": -9, \"output_length\": 1, \"hash_ids\": []}",
        LINE("7"),
        LINE("[1.5]"),
        LINE("[-1]"),
        LINE("[\"1\"]"),
        LINE("[9007199254740992]"),
        LINE("[1e400]"),
        LINE("[null]"),
        LINE("[1]") " x",
        LINE("[1]") LINE("[1]"),
        LINE("[1"),
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct trace trace;
        struct kvf_why why;
        char text[512], place[80];
        (void)snprintf(text, sizeof(text), "%s\n%s\n", LINE("[0]"), bad[i]);
        assert_int_equal(load(text, UINT64_MAX, &trace, &why).code, KVF_INVALID);
        (void)snprintf(place, sizeof(place), "%s:2: ", path);
        assert_non_null(strstr(why.text, place));
        assert_non_null(strstr(why.text, "\"hash_ids\": [0, 1]}"));
    }
}

static void load__zero_byte_in_a_line__is_no_object(void **state)
{
    (void)state;
    struct trace trace;
    struct kvf_why why = {""};
    static const char text[] = LINE("[0]") "\0" LINE("[1]") "\n";
    const char *file = file_with(text, sizeof(text) - 1);
    assert_int_equal(trace_load(file, UINT64_MAX, &trace, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, ":1: "));
    (void)unlink(path);
}

static void load__deep_nesting__is_refused_not_fatal(void **state)
{
    (void)state;
    struct trace trace;
    struct kvf_why why;
    enum { DEPTH = 200000 };
    char *text = malloc(DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = '\0';
    assert_int_equal(load(text, UINT64_MAX, &trace, &why).code, KVF_INVALID);
    free(text);
}

static void load__nothing__says_so(void **state)
{
    (void)state;
    struct trace trace;
    struct kvf_why why;
    assert_int_equal(load("", UINT64_MAX, &trace, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "no request"));
    assert_int_equal(trace_load("/nonexistent/t", UINT64_MAX, &trace, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "/nonexistent/t"));
    assert_int_equal(trace_load("/tmp", UINT64_MAX, &trace, &why).code, KVF_IO);
}

static void make__same_seed__same_text(void **state)
{
    (void)state;
    char *a, *b, *c;
    size_t a_bytes, b_bytes, c_bytes;
    assert_true(kvf_is_ok(trace_make(50, 3, &a, &a_bytes)));
    assert_true(kvf_is_ok(trace_make(50, 3, &b, &b_bytes)));
    assert_true(kvf_is_ok(trace_make(50, 4, &c, &c_bytes)));
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    free(a);
    free(b);
    free(c);
}

static double hit_share(const struct trace *trace)
{
    return 1.0 - (double)trace->distinct_count / (double)trace->reference_count;
}

static void make__whole_length__has_the_published_shape(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    struct trace trace;
    struct kvf_why why;
    assert_true(kvf_is_ok(trace_make(12031, 1, &text, &bytes)));
    assert_int_equal(strlen(text), bytes);
    assert_true(kvf_is_ok(load(text, UINT64_MAX, &trace, &why)));
    free(text);
    assert_int_equal(trace.request_count, 12031);
    double mean = (double)trace.reference_count / (double)trace.request_count;
    assert_true(mean > 22 && mean < 26);
    assert_true(hit_share(&trace) > 0.360 && hit_share(&trace) < 0.372);
    size_t longest = 0;
    for (size_t r = 0; r < trace.request_count; r++) {
        size_t count = trace.first[r + 1] - trace.first[r];
        longest = count > longest ? count : longest;
        assert_int_equal(trace.references[trace.first[r]], 0);
        /* Known blocks come first: a prompt extends a prefix, it never finds a block behind a new one. */
        for (size_t i = trace.first[r] + 1; i < trace.first[r + 1]; i++)
            assert_true(trace.references[i] > trace.references[i - 1]);
    }
    assert_int_equal(longest, TRACE_LONGEST_PROMPT);
    trace_free(&trace);
}

static void make__short__keeps_the_share_of_hits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        char *text;
        size_t bytes;
        struct trace trace;
        struct kvf_why why;
        assert_true(kvf_is_ok(trace_make(200, seed, &text, &bytes)));
        assert_true(kvf_is_ok(load(text, UINT64_MAX, &trace, &why)));
        assert_true(hit_share(&trace) > 0.30 && hit_share(&trace) < 0.43);
        trace_free(&trace);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load__three_requests__numbered_by_first_appearance),
        cmocka_unit_test(load__most__keeps_the_first_and_judges_all),
        cmocka_unit_test(load__bad_lines__name_file_line_and_what_was_expected),
        cmocka_unit_test(load__zero_byte_in_a_line__is_no_object),
        cmocka_unit_test(load__deep_nesting__is_refused_not_fatal),
        cmocka_unit_test(load__nothing__says_so),
        cmocka_unit_test(make__same_seed__same_text),
        cmocka_unit_test(make__whole_length__has_the_published_shape),
        cmocka_unit_test(make__short__keeps_the_share_of_hits),
    };
    return cmocka_run_group_tests_name("client/cli/trace", tests, NULL, NULL);
}
