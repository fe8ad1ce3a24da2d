#include "client/cli/json.h"

#include "base/test.h"

#include <stdlib.h>

static void text__numbers__keep_their_digits(void **state)
{
    (void)state;
    cJSON *object = cJSON_CreateObject();
    json_add_number(object, "most", UINT64_MAX);
    json_add_number(object, "none", 0);
    json_add_decimal(object, "share", 1.0 / 3);
    json_add_decimal(object, "big", 1.5e20);
    char *text = json_text(object);
    assert_string_equal(
        text, "{\n\t\"most\":\t18446744073709551615,\n\t\"none\":\t0,\n\t\"share\":\t0.333333,\n"
              "\t\"big\":\t1.5e+20\n}\n");
    free(text);
}

static void text__nothing__is_null(void **state)
{
    (void)state;
    assert_null(json_text(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text__numbers__keep_their_digits),
        cmocka_unit_test(text__nothing__is_null),
    };
    return cmocka_run_group_tests_name("client/cli/json", tests, NULL, NULL);
}
