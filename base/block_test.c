#include "base/block.h"
#include "base/test.h"

static void namespace__shapes__are_judged(void **state)
{
    (void)state;
    assert_true(kvf_namespace_is_valid("t/qwen3-8b.bf16_tp1"));
    const char *bad[] = {"", "t", "/f", "t/", "t/f/g", "t /f", "t/f\n", "../x/..", "t//f"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(kvf_namespace_is_valid(bad[i]));
    char longest[KVF_NAMESPACE_MAX_BYTES + 2];
    memset(longest, 'a', sizeof(longest));
    longest[1] = '/';
    longest[KVF_NAMESPACE_MAX_BYTES] = '\0';
    assert_true(kvf_namespace_is_valid(longest));
    longest[KVF_NAMESPACE_MAX_BYTES] = 'a';
    longest[KVF_NAMESPACE_MAX_BYTES + 1] = '\0';
    assert_false(kvf_namespace_is_valid(longest));
    assert_int_equal(kvf_namespace_tenant_bytes("ab/c"), 2);
}

static void tenant__shapes__are_judged(void **state)
{
    (void)state;
    assert_true(kvf_tenant_is_valid("t-1.a_B"));
    const char *bad[] = {"", "t/f", "t/", "/", "a b", "*", "t\n", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(kvf_tenant_is_valid(bad[i]));
    char longest[KVF_NAMESPACE_MAX_BYTES];
    memset(longest, 'a', sizeof(longest));
    longest[KVF_NAMESPACE_MAX_BYTES - 1] = '\0';
    assert_false(kvf_tenant_is_valid(longest)); /* no fingerprint would fit */
    longest[KVF_NAMESPACE_MAX_BYTES - 2] = '\0';
    assert_true(kvf_tenant_is_valid(longest));
}

static void key_set__lengths__1_to_64(void **state)
{
    (void)state;
    struct kvf_key key, other;
    uint8_t bytes[65] = {1, 2, 3};
    assert_false(kvf_key_set(&key, bytes, 0));
    assert_false(kvf_key_set(&key, bytes, 65));
    assert_true(kvf_key_set(&key, bytes, 64));
    assert_true(kvf_key_set(&other, bytes, 3));
    assert_false(kvf_key_equal(&key, &other));
    assert_true(kvf_key_set(&key, bytes, 3));
    assert_true(kvf_key_equal(&key, &other));
}

static void key_text__any_key__is_as_it_is_typed(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        const char *text;
    } cases[] = {
        {"plain!~", "plain!~"},   {"a b", "hex:612062"},    {"hex:00", "hex:6865783a3030"},
        {"hex", "hex"},           {"hex:", "hex:6865783a"}, {"hexe:", "hexe:"},
        {"\x01\xff", "hex:01ff"}, {"a\x7f", "hex:617f"},    {"\n", "hex:0a"},
    };
    char text[KVF_KEY_TEXT_ROOM];
    struct kvf_key key;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(kvf_key_set(&key, cases[i].bytes, strlen(cases[i].bytes)));
        kvf_key_text(&key, text);
        assert_string_equal(text, cases[i].text);
    }
    const uint8_t zeros[KVF_KEY_MAX_BYTES] = {0};
    assert_true(kvf_key_set(&key, zeros, sizeof(zeros)));
    kvf_key_text(&key, text);
    assert_int_equal(strlen(text), KVF_KEY_TEXT_ROOM - 1); /* the longest fits */
}

static void round_up_page__edges(void **state)
{
    (void)state;
    assert_int_equal(kvf_round_up_page(1), 4096);
    assert_int_equal(kvf_round_up_page(4096), 4096);
    assert_int_equal(kvf_round_up_page(4097), 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(namespace__shapes__are_judged),
        cmocka_unit_test(tenant__shapes__are_judged),
        cmocka_unit_test(key_set__lengths__1_to_64),
        cmocka_unit_test(key_text__any_key__is_as_it_is_typed),
        cmocka_unit_test(round_up_page__edges),
    };
    return cmocka_run_group_tests_name("base/block", tests, NULL, NULL);
}
