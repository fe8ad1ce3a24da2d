#include "client/geometry.h"

#include "base/test.h"

#include <stdio.h>

static struct kvf_geometry qwen3_8b(void)
{
    return (struct kvf_geometry){.model = "Qwen/Qwen3-8B@main",
                                 .dtype = KVF_DTYPE_BF16,
                                 .layers = 36,
                                 .planes = 2,
                                 .page_tokens = 64,
                                 .token_elements = 8 * 128};
}

static void assert_refused(const struct kvf_geometry *geometry, enum kvf_code code,
                           const char *word)
{
    struct kvf_why why = {.text = ""};
    assert_int_equal(kvf_geometry_check(geometry, &why).code, code);
    assert_int_equal(kvf_geometry_check(geometry, NULL).code, code);
    assert_non_null(strstr(why.text, word));
}

static void block_bytes__known_models__are_what_their_papers_say(void **state)
{
    (void)state;
    struct kvf_geometry geometry = qwen3_8b();
    assert_int_equal(kvf_geometry_check(&geometry, NULL).code, KVF_OK);
    assert_int_equal(kvf_geometry_chunk_bytes(&geometry), 131072);
    assert_int_equal(kvf_geometry_block_bytes(&geometry), 9 * KVF_MIB);
    geometry = (struct kvf_geometry){.model = "deepseek-v3",
                                     .dtype = KVF_DTYPE_BF16,
                                     .layers = 61,
                                     .planes = 1,
                                     .page_tokens = 64,
                                     .token_elements = 576,
                                     .replicated = true};
    assert_int_equal(kvf_geometry_check(&geometry, NULL).code, KVF_OK);
    assert_int_equal(kvf_geometry_block_bytes(&geometry), 4497408);
}

static void check__each_field_out_of_range__is_named(void **state)
{
    (void)state;
    const struct kvf_geometry good = qwen3_8b();
    char longest[1002];
    memset(longest, 'm', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    struct kvf_geometry bad = good;
    bad.model = NULL;
    assert_refused(&bad, KVF_INVALID, "model");
    bad.model = longest;
    assert_refused(&bad, KVF_INVALID, "1000 bytes");
    bad = good, bad.salt = longest;
    assert_refused(&bad, KVF_INVALID, "1000 bytes");
    bad = good, bad.dtype = (enum kvf_dtype)0;
    assert_refused(&bad, KVF_INVALID, "dtype");
    bad = good, bad.dtype = (enum kvf_dtype)99;
    assert_refused(&bad, KVF_INVALID, "dtype");
    bad = good, bad.layers = 0;
    assert_refused(&bad, KVF_INVALID, "layers");
    bad = good, bad.layers = UINT32_MAX;
    assert_refused(&bad, KVF_INVALID, "layers");
    bad = good, bad.planes = 3;
    assert_refused(&bad, KVF_INVALID, "planes");
    bad = good, bad.page_tokens = 0;
    assert_refused(&bad, KVF_INVALID, "page_tokens");
    bad = good, bad.token_elements = 0;
    assert_refused(&bad, KVF_INVALID, "token_elements");
    bad = good, bad.tp_rank = 1;
    assert_refused(&bad, KVF_INVALID, "rank");
    bad = good, bad.pp_rank = 4, bad.pp_size = 4;
    assert_refused(&bad, KVF_INVALID, "rank");
    bad = good, bad.layer_stride = 131072;
    assert_refused(&bad, KVF_INVALID, "stride");
    bad = good, bad.page_tokens = 1024;
    assert_refused(&bad, KVF_TOO_LARGE, "150994944");
}

static void strides__both_usual_caches__are_valid_and_do_not_overlap(void **state)
{
    (void)state;
    struct kvf_geometry geometry = qwen3_8b();
    kvf_geometry_page_first(&geometry);
    assert_int_equal(kvf_geometry_check(&geometry, NULL).code, KVF_OK);
    assert_int_equal(geometry.plane_stride, 131072);
    assert_int_equal(geometry.layer_stride, 2 * 131072);
    assert_int_equal(geometry.page_stride, 9 * KVF_MIB);
    kvf_geometry_layer_first(&geometry, 1000);
    assert_int_equal(kvf_geometry_check(&geometry, NULL).code, KVF_OK);
    assert_int_equal(geometry.page_stride, 131072);
    assert_int_equal(geometry.plane_stride, 131072000);
    assert_int_equal(geometry.layer_stride, 262144000);
    geometry.plane_stride = 131071;
    assert_refused(&geometry, KVF_INVALID, "stride");
}

static void assert_other_name(const struct kvf_geometry *geometry, const char *name)
{
    char other[KVF_NAMESPACE_MAX_BYTES + 1];
    assert_int_equal(kvf_geometry_namespace(geometry, "acme", other).code, KVF_OK);
    assert_true(kvf_namespace_is_valid(other));
    assert_string_not_equal(name, other);
}

static void namespace__anything_that_changes_bytes__is_another_one(void **state)
{
    (void)state;
    const struct kvf_geometry good = qwen3_8b();
    char name[KVF_NAMESPACE_MAX_BYTES + 1];
    assert_int_equal(kvf_geometry_namespace(&good, "acme", name).code, KVF_OK);
    /* As it is for ever: blocks on drives and at other nodes go by it. */
    assert_string_equal(name, "acme/Qwen-Qwen3-8B-main.bf16.l36x2.t64.e1024.tp0of1.pp0of1."
                              "22d36650a8ef3f28613472f16ade2cf3");
    struct kvf_geometry other = good;
    other.model = "Qwen/Qwen3-8B+main"; /* is shown alike */
    assert_other_name(&other, name);
    other = good, other.dtype = KVF_DTYPE_F16;
    assert_other_name(&other, name);
    other = good, other.layout = "page_first.k";
    assert_other_name(&other, name);
    other = good, other.salt = "seed 7";
    assert_other_name(&other, name);
    other = good, other.layers = 72, other.planes = 1;
    assert_other_name(&other, name);
    other = good, other.page_tokens = 16;
    assert_other_name(&other, name);
    other = good, other.token_elements = 512;
    assert_other_name(&other, name);
    other = good, other.tp_size = 2;
    assert_other_name(&other, name);
    other = good, other.tp_size = 2, other.tp_rank = 1;
    assert_other_name(&other, name);
    other = good, other.pp_size = 2, other.pp_rank = 1;
    assert_other_name(&other, name);
}

static void namespace__layout_and_salt__do_not_run_together(void **state)
{
    (void)state;
    struct kvf_geometry one = qwen3_8b();
    char name[KVF_NAMESPACE_MAX_BYTES + 1];
    one.layout = "ab", one.salt = "c";
    assert_int_equal(kvf_geometry_namespace(&one, "acme", name).code, KVF_OK);
    one.layout = "a", one.salt = "bc";
    assert_other_name(&one, name);
}

static void namespace__where_this_process_keeps_its_cache__does_not_matter(void **state)
{
    (void)state;
    struct kvf_geometry one = qwen3_8b(), other = qwen3_8b();
    char name[KVF_NAMESPACE_MAX_BYTES + 1], same[KVF_NAMESPACE_MAX_BYTES + 1];
    kvf_geometry_layer_first(&other, 77);
    other.salt = other.layout = "", other.tp_size = other.pp_size = 1;
    assert_int_equal(kvf_geometry_namespace(&one, "acme", name).code, KVF_OK);
    assert_int_equal(kvf_geometry_namespace(&other, "acme", same).code, KVF_OK);
    assert_string_equal(name, same);
}

static void namespace__replicated_kv__is_the_same_for_every_rank(void **state)
{
    (void)state;
    struct kvf_geometry one = qwen3_8b(), other = qwen3_8b();
    char name[KVF_NAMESPACE_MAX_BYTES + 1], same[KVF_NAMESPACE_MAX_BYTES + 1];
    one.replicated = other.replicated = true;
    one.tp_size = other.tp_size = 8;
    other.tp_rank = 5;
    assert_int_equal(kvf_geometry_namespace(&one, "acme", name).code, KVF_OK);
    assert_int_equal(kvf_geometry_namespace(&other, "acme", same).code, KVF_OK);
    assert_string_equal(name, same);
}

static void namespace__bad_or_long_tenants__are_refused(void **state)
{
    (void)state;
    const struct kvf_geometry good = qwen3_8b();
    char name[KVF_NAMESPACE_MAX_BYTES + 1], tenant[KVF_NAMESPACE_MAX_BYTES];
    memset(tenant, 't', sizeof(tenant));
    tenant[sizeof(tenant) - 1] = '\0';
    assert_int_equal(kvf_geometry_namespace(&good, "a/b", name).code, KVF_INVALID);
    assert_int_equal(kvf_geometry_namespace(&good, "", name).code, KVF_INVALID);
    assert_int_equal(kvf_geometry_namespace(&good, tenant, name).code, KVF_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_bytes__known_models__are_what_their_papers_say),
        cmocka_unit_test(check__each_field_out_of_range__is_named),
        cmocka_unit_test(strides__both_usual_caches__are_valid_and_do_not_overlap),
        cmocka_unit_test(namespace__anything_that_changes_bytes__is_another_one),
        cmocka_unit_test(namespace__layout_and_salt__do_not_run_together),
        cmocka_unit_test(namespace__where_this_process_keeps_its_cache__does_not_matter),
        cmocka_unit_test(namespace__replicated_kv__is_the_same_for_every_rank),
        cmocka_unit_test(namespace__bad_or_long_tenants__are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
