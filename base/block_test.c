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
        cmocka_unit_test(key_set__lengths__1_to_64),
        cmocka_unit_test(round_up_page__edges),
    };
    return cmocka_run_group_tests_name("base/block", tests, NULL, NULL);
}
