#include "client/cli/table.h"

#include "base/test.h"

#include <stdlib.h>
#include <string.h>

static void print_is(const char *json, const char *expected)
{
    char *text = NULL;
    size_t bytes = 0;
    cJSON *object = cJSON_Parse(json);
    assert_non_null(object);
    FILE *out = open_memstream(&text, &bytes);
    table_print(out, object);
    (void)fclose(out);
    assert_string_equal(text, expected);
    free(text);
    cJSON_Delete(object);
}

static void print__stat__one_line_a_part(void **state)
{
    (void)state;
    print_is("{\"node_id\":\"a\",\"read_batch_mib\":32,\"pull\":{\"reads\":3,\"bytes\":226492416},"
             "\"pool\":{\"dirty\":2048},\"ssd\":[{\"path\":\"/"
             "a\",\"read_only\":false},{\"path\":\"/b\",\"read_only\":true}]}",
             "node_id          a\n"
             "read_batch_mib   32\n"
             "pull             reads 3, bytes 226492416 (216.0 MiB)\n"
             "pool             dirty 2048 (2.0 KiB)\n"
             "ssd              path /a, read_only no\n"
             "ssd              path /b, read_only yes\n");
}

static void print__many_members__go_on_below_each_other(void **state)
{
    (void)state;
    print_is("{\"ssd\":[{\"path\":\"/var/lib/kvferry/nvme0\",\"capacity_bytes\":536870912,"
             "\"used_bytes\":4096,\"read_sets\":1,\"read_sqes\":2}]}",
             "ssd              path /var/lib/kvferry/nvme0, capacity_bytes 536870912 (512.0 MiB),\n"
             "                 used_bytes 4096 (4.0 KiB), read_sets 1, read_sqes 2\n");
}

/* What is longer than a line has one of its own. */
static void print__long_value__is_alone_in_its_line(void **state)
{
    (void)state;
    char json[400], expected[400], path[120];
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    (void)snprintf(json, sizeof(json), "{\"s\":{\"a\":1,\"p\":\"%s\",\"b\":2}}", path);
    (void)snprintf(expected, sizeof(expected), "%-17sa 1,\n%17sp %s,\n%17sb 2\n", "s", "", path,
                   "");
    print_is(json, expected);
}

static void print__odd_shapes__stay_lines(void **state)
{
    (void)state;
    print_is("{\"x\":\"a\\nb\",\"y\":null,\"z\":{\"deep\":{\"q\":1}},\"e\":[],\"n\":[1]}",
             "x                a?b\n"
             "y                -\n"
             "z                deep -\n"
             "n                \n");
    print_is("[]", "");
}

static void print__control_bytes_in_names__do_not_reach_the_terminal(void **state)
{
    (void)state;
    print_is("{\"a\\u001b[2J\":1,\"b\\r\":{\"c\\u0007\":2},\"d\\n\":[{\"e\\u007f\":3}]}",
             "a?[2J            1\n"
             "b?               c? 2\n"
             "d?               e? 3\n");
}

static void bytes_text__units(void **state)
{
    (void)state;
    char text[24];
    table_bytes_text(0, text);
    assert_string_equal(text, "0 B");
    table_bytes_text(1024, text);
    assert_string_equal(text, "1.0 KiB");
    table_bytes_text(9.5 * 1024 * 1024 * 1024, text);
    assert_string_equal(text, "9.5 GiB");
    table_bytes_text(1e30, text);
    assert_true(strlen(text) < sizeof(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(print__stat__one_line_a_part),
        cmocka_unit_test(print__many_members__go_on_below_each_other),
        cmocka_unit_test(print__long_value__is_alone_in_its_line),
        cmocka_unit_test(print__odd_shapes__stay_lines),
        cmocka_unit_test(print__control_bytes_in_names__do_not_reach_the_terminal),
        cmocka_unit_test(bytes_text__units),
    };
    return cmocka_run_group_tests_name("client/cli/table", tests, NULL, NULL);
}
