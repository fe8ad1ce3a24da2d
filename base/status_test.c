#include "base/status.h"
#include "base/test.h"

#include <string.h>

static void code_name__every_code__has_a_name(void **state)
{
    (void)state;
    for (unsigned code = 0; code < KVF_CODE_COUNT; code++) {
        assert_non_null(kvf_code_name(code));
        assert_string_not_equal(kvf_code_name(code), "UNKNOWN");
    }
    assert_string_equal(kvf_code_name(KVF_CODE_COUNT), "UNKNOWN");
    for (unsigned module = 0; module < KVF_MODULE_COUNT; module++)
        assert_string_not_equal(kvf_module_name(module), "unknown");
}

static struct kvf_status tries(struct kvf_status status, bool *went_on)
{
    KVF_TRY(status);
    *went_on = true;
    return kvf_ok();
}

static void try__failure__returns_it_unchanged(void **state)
{
    (void)state;
    bool went_on = false;
    struct kvf_status status = tries(kvf_fail(KVF_MODULE_STORAGE, KVF_IO, 5), &went_on);
    assert_int_equal(status.code, KVF_IO);
    assert_int_equal(status.module, KVF_MODULE_STORAGE);
    assert_int_equal(status.detail, 5);
    assert_false(went_on);
    assert_true(kvf_is_ok(tries(kvf_ok(), &went_on)));
    assert_true(went_on);
}

static void why_set__long_text__is_cut_and_terminated(void **state)
{
    (void)state;
    struct kvf_why why;
    char longer[sizeof(why.text) * 2];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    struct kvf_status status =
        kvf_why_set(&why, kvf_fail(KVF_MODULE_BASE, KVF_INVALID, 0), "%s", longer);
    assert_int_equal(status.code, KVF_INVALID);
    assert_int_equal(strlen(why.text), sizeof(why.text) - 1);
    status = kvf_why_set(NULL, status, "nobody listens");
    assert_int_equal(status.code, KVF_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_name__every_code__has_a_name),
        cmocka_unit_test(try__failure__returns_it_unchanged),
        cmocka_unit_test(why_set__long_text__is_cut_and_terminated),
    };
    return cmocka_run_group_tests_name("base/status", tests, NULL, NULL);
}
