#include "client/cli/names.h"

#include "base/test.h"

#include <stdlib.h>

static void key__literal__is_its_bytes(void **state)
{
    (void)state;
    struct kvf_key key;
    struct kvf_why why;
    assert_true(kvf_is_ok(names_key("a b/..", &key, &why)));
    assert_int_equal(key.length, 6);
    assert_memory_equal(key.bytes, "a b/..", 6);
}

static void key__hex__is_decoded(void **state)
{
    (void)state;
    struct kvf_key key;
    struct kvf_why why;
    assert_true(kvf_is_ok(names_key("hex:00fFa0", &key, &why)));
    assert_int_equal(key.length, 3);
    assert_memory_equal(key.bytes, "\x00\xff\xa0", 3);
}

static void key__bad__is_named_with_a_remedy(void **state)
{
    (void)state;
    struct kvf_key key;
    char long_key[66], long_hex[135] = "hex:";
    memset(long_key, 'k', 65);
    long_key[65] = '\0';
    memset(long_hex + 4, 'a', 130);
    long_hex[134] = '\0';
    const char *bad[] = {"", "hex:", "hex:0", "hex:0g", "hex:g0", "hex: 00", long_key, long_hex};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kvf_why why = {""};
        assert_int_equal(names_key(bad[i], &key, &why).code, KVF_INVALID);
        assert_non_null(strstr(why.text, "key"));
        assert_null(strchr(why.text, '\n'));
    }
    struct kvf_why why;
    long_key[64] = '\0';
    long_hex[132] = '\0';
    assert_true(kvf_is_ok(names_key(long_key, &key, &why)));
    assert_true(kvf_is_ok(names_key(long_hex, &key, &why)));
    assert_int_equal(key.length, 64);
}

static void namespace__bad__is_named(void **state)
{
    (void)state;
    struct kvf_why why = {""};
    assert_true(kvf_is_ok(names_namespace("t/f", &why)));
    assert_int_equal(names_namespace("tf", &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "'tf'"));
    assert_non_null(strstr(why.text, "TENANT/FINGERPRINT"));
}

static void address__shapes__are_judged(void **state)
{
    (void)state;
    struct kvf_why why;
    const char *good[] = {"127.0.0.1:9470", "host-a.example:1", "[::1]:65535"};
    const char *bad[] = {"",           "host",    ":1",     "host:", "host:0",
                         "host:65536", "host:1x", "::1:80", "[]:1",  "[::1:80"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(kvf_is_ok(names_address("--source", good[i], &why)));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(names_address("--source", bad[i], &why).code, KVF_INVALID);
        assert_non_null(strstr(why.text, "--source"));
    }
}

static void number__edges__are_kept(void **state)
{
    (void)state;
    struct kvf_why why;
    uint64_t n = 7;
    assert_true(kvf_is_ok(names_number("-n", "18446744073709551615", 0, UINT64_MAX, &n, &why)));
    assert_true(n == UINT64_MAX);
    assert_true(kvf_is_ok(names_number("-n", "0", 0, 1, &n, &why)));
    assert_true(n == 0);
    const char *bad[] = {"", "-1", "+1", " 1", "1 ", "0x1", "2", "18446744073709551616"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(names_number("-n", bad[i], 0, 1, &n, &why).code, KVF_INVALID);
    assert_true(n == 0);
}

static void key_text__any_key__reads_back(void **state)
{
    (void)state;
    const char *keys[] = {"plain", "a b", "hex:00", "\x01\x02", "\xff", "hex", "hex:"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct kvf_key key, again;
        struct kvf_why why;
        char text[KVF_KEY_TEXT_ROOM];
        assert_true(kvf_key_set(&key, keys[i], strlen(keys[i])));
        kvf_key_text(&key, text);
        assert_true(kvf_is_ok(names_key(text, &again, &why)));
        assert_true(kvf_key_equal(&key, &again));
    }
    struct kvf_key key;
    char text[KVF_KEY_TEXT_ROOM];
    assert_true(kvf_key_set(&key, "plain", 5));
    kvf_key_text(&key, text);
    assert_string_equal(text, "plain");
}

static void keys__repeated__are_kept_once_in_their_order(void **state)
{
    (void)state;
    char *texts[] = {"b", "a", "hex:62", "c", "a"};
    struct kvf_key *keys = NULL;
    struct kvf_why why;
    size_t count = 0;
    assert_true(kvf_is_ok(names_keys(texts, 5, &keys, &count, &why)));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(keys[i].bytes[0], "bac"[i]);
    free(keys);
    texts[3] = "hex:0";
    assert_int_equal(names_keys(texts, 5, &keys, &count, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "hex:0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key__literal__is_its_bytes),
        cmocka_unit_test(key__hex__is_decoded),
        cmocka_unit_test(key__bad__is_named_with_a_remedy),
        cmocka_unit_test(namespace__bad__is_named),
        cmocka_unit_test(address__shapes__are_judged),
        cmocka_unit_test(number__edges__are_kept),
        cmocka_unit_test(keys__repeated__are_kept_once_in_their_order),
        cmocka_unit_test(key_text__any_key__reads_back),
    };
    return cmocka_run_group_tests_name("client/cli/names", tests, NULL, NULL);
}
