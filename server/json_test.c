#include "server/json.h"

#include "base/test.h"

#include <stdlib.h>

static void json__every_kind__reads_as_it_was_given(void **state)
{
    (void)state;
    struct json json = {.ok = true};
    cJSON *root = cJSON_CreateObject();
    json_number(&json, root, "largest", UINT64_MAX); /* no double holds it */
    json_flag(&json, root, "flag", true);
    json_text(&json, json_object(&json, root, "object"), "text", "a\"b\n");
    cJSON *array = json_array(&json, root, "array");
    json_number(&json, json_element(&json, array), "n", 0);
    json_line(&json, array, "line");
    char *text = cJSON_PrintUnformatted(root);
    assert_true(json.ok);
    assert_string_equal(text,
                        "{\"largest\":18446744073709551615,\"flag\":true,\"object\":{\"text\":"
                        "\"a\\\"b\\n\"},\"array\":[{\"n\":0},\"line\"]}");
    free(text);
    cJSON_Delete(root);
}

static void utf8__what_is_no_text__becomes_question_marks(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/srv/gr\xc3\xbc\xc3\x9f", "/srv/gr\xc3\xbc\xc3\x9f"}, /* text */
        {"\xf0\x9f\x9a\xa2", "\xf0\x9f\x9a\xa2"},
        {"a\xff", "a?"},
        {"a\xc3", "a?"},              /* cut off */
        {"\xc0\xaf", "??"},           /* overlong */
        {"\xed\xa0\x80", "???"},      /* a surrogate */
        {"\xf4\x90\x80\x80", "????"}, /* beyond the last one */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *copy = kvf_json_utf8(cases[i][0]);
        assert_string_equal(copy, cases[i][1]);
        free(copy);
    }
}

static void json__parent_that_could_not_be_made__is_told_at_the_end(void **state)
{
    (void)state;
    struct json json = {.ok = true};
    json_text(&json, NULL, "text", "x");
    assert_false(json.ok);
    json = (struct json){.ok = true};
    json_number(&json, json_element(&json, NULL), "n", 1);
    assert_false(json.ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json__every_kind__reads_as_it_was_given),
        cmocka_unit_test(utf8__what_is_no_text__becomes_question_marks),
        cmocka_unit_test(json__parent_that_could_not_be_made__is_told_at_the_end),
    };
    return cmocka_run_group_tests_name("server/json", tests, NULL, NULL);
}
