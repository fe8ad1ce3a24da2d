#include "server/tenants.h"

#include "base/test.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20 };

static struct kvf_tenants tenants;
static struct kvf_acl *acl; /* NULL: none */

static void take_acl(const char *shares)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "{\"tenants\": {%s}, \"identities\": {}}", shares);
    kvf_acl_close(acl);
    acl = NULL;
    assert_true(kvf_is_ok(kvf_acl_parse("acl", text, strlen(text), &acl, NULL)));
    tenants.acl = acl;
    kvf_tenants_reload(&tenants);
}

/* 100 MiB of either, of which 60 can be promised. */
static int set_up(void **state)
{
    (void)state;
    tenants = (struct kvf_tenants){.all_bytes = {100 * MIB, 100 * MIB},
                                   .safe_bytes = {60 * MIB, 60 * MIB}};
    return kvf_is_ok(kvf_tenants_init(&tenants, 1)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_tenants_fini(&tenants);
    kvf_acl_close(acl);
    acl = NULL;
    return 0;
}

static struct kvf_tenant *enter(const char *ns)
{
    struct kvf_tenant *tenant = kvf_tenants_enter(&tenants, ns);
    assert_non_null(tenant);
    return tenant;
}

static uint64_t excess(const struct kvf_tenant *tenant)
{
    return kvf_tenants_excess(&tenants, tenant, KVF_SHARE_SSD);
}

static void enter__namespaces_of_one_tenant__are_one_until_the_last_leaves(void **state)
{
    (void)state;
    struct kvf_tenant *one = enter("a/f");
    assert_ptr_equal(enter("a/g"), one);
    assert_ptr_equal(enter("a"), one);
    struct kvf_tenant *other = enter("ab/f");
    assert_ptr_not_equal(other, one);
    assert_string_equal(one->name, "a");
    kvf_tenants_leave(&tenants, other);
    for (int i = 0; i < 3; i++)
        kvf_tenants_leave(&tenants, one);
    assert_null(kvf_tenants_next(&tenants, NULL));
}

static void leave__while_it_has_blocks__is_an_assert(void **state)
{
    (void)state;
    struct kvf_tenant *one = enter("a/f");
    kvf_tenants_take(&tenants, one, KVF_SHARE_DRAM, MIB);
    assert_aborts(kvf_tenants_leave(&tenants, one));
    assert_aborts(kvf_tenants_give(&tenants, one, KVF_SHARE_DRAM, 2 * MIB));
}

static void shares__none__limit_nobody_and_nothing_is_safe(void **state)
{
    (void)state;
    struct kvf_tenant *one = enter("a/f");
    kvf_tenants_take(&tenants, one, KVF_SHARE_SSD, 3 * MIB);
    assert_false(tenants.has_shares[KVF_SHARE_SSD]);
    assert_true(kvf_tenant_has_room(one, KVF_SHARE_SSD, 1000 * (uint64_t)MIB));
    assert_int_equal(excess(one), 3 * MIB);
    assert_int_equal(kvf_tenants_limit(&tenants, "a/f", KVF_SHARE_SSD), UINT64_MAX);
    take_acl("\"a\": {\"dram\": 1, \"ssd\": 1}, \"b\": {}"); /* says nothing */
    assert_false(tenants.has_shares[KVF_SHARE_SSD]);
    assert_int_equal(tenants.names.count, 1);
}

static void shares__named_tenants__are_there_before_and_after_their_blocks(void **state)
{
    (void)state;
    take_acl("\"a\": {\"dram\": 0.25}");
    struct kvf_tenant *one = enter("a/f");
    assert_int_equal(tenants.names.count, 1);
    kvf_tenants_leave(&tenants, one);
    assert_int_equal(tenants.names.count, 1);
    assert_int_equal(one->limit_bytes[KVF_SHARE_DRAM], 25 * MIB);
    assert_false(kvf_tenant_has_share(one, KVF_SHARE_SSD));
    kvf_tenants_reload(&tenants); /* it counts once */
    take_acl("\"b\": {\"ssd\": 0.1}");
    assert_string_equal(kvf_tenants_next(&tenants, NULL)->name, "b");
    assert_int_equal(tenants.names.count, 1);
}

static void shares__room_and_holding__end_at_the_limit(void **state)
{
    (void)state;
    take_acl("\"a\": {\"dram\": 0.25}");
    struct kvf_tenant *one = enter("a/f");
    kvf_tenants_take(&tenants, one, KVF_SHARE_DRAM, 20 * MIB);
    one->cached_bytes = 12 * MIB;
    assert_true(kvf_tenant_has_room(one, KVF_SHARE_DRAM, 5 * MIB));
    assert_false(kvf_tenant_has_room(one, KVF_SHARE_DRAM, 5 * MIB + 1));
    assert_true(kvf_tenant_may_hold(one, 17 * MIB));
    assert_false(kvf_tenant_may_hold(one, 17 * MIB + 1));
    assert_false(kvf_tenant_may_hold(one, UINT64_MAX));
    assert_true(kvf_tenant_may_hold(NULL, UINT64_MAX) &&
                kvf_tenant_has_room(NULL, KVF_SHARE_DRAM, UINT64_MAX));
    take_acl("\"a\": {\"dram\": 0.05}"); /* less than it has */
    assert_false(kvf_tenant_has_room(one, KVF_SHARE_DRAM, 0));
    assert_false(kvf_tenant_may_hold(one, 0));
    kvf_tenants_give(&tenants, one, KVF_SHARE_DRAM, 20 * MIB);
    one->cached_bytes = 0;
    kvf_tenants_leave(&tenants, one);
}

static void safe__shares_fit__each_is_whole_and_the_rest_is_for_the_others(void **state)
{
    (void)state;
    take_acl("\"a\": {\"ssd\": 0.2}, \"b\": {\"ssd\": 0.3}");
    struct kvf_tenant *a = enter("a/f"), *c = enter("c/f"), *d = enter("d/f");
    kvf_tenants_take(&tenants, a, KVF_SHARE_SSD, 20 * MIB);
    assert_int_equal(excess(a), 0);
    kvf_tenants_take(&tenants, c, KVF_SHARE_SSD, 6 * MIB);
    kvf_tenants_take(&tenants, d, KVF_SHARE_SSD, 4 * MIB);
    assert_int_equal(excess(c), 0); /* of 60 - 20 - 30, with d */
    kvf_tenants_take(&tenants, d, KVF_SHARE_SSD, 1 * MIB);
    assert_int_equal(excess(c), MIB);
    assert_int_equal(excess(d), MIB);
    take_acl("\"a\": {\"ssd\": 0.2}, \"d\": {\"ssd\": 0.04}"); /* d is one of the others no more */
    assert_int_equal(excess(c), 0);
    assert_int_equal(excess(d), MIB);
    assert_int_equal(tenants.others_bytes[KVF_SHARE_SSD], 6 * MIB);
    take_acl("");
    assert_int_equal(tenants.others_bytes[KVF_SHARE_SSD], 31 * MIB);
}

static void safe__more_shares_than_can_be_promised__are_cut_in_proportion(void **state)
{
    (void)state;
    take_acl("\"a\": {\"ssd\": 0.8}, \"b\": {\"ssd\": 0.4}");
    struct kvf_tenant *a = enter("a/f"), *b = enter("b/f"), *c = enter("c/f");
    kvf_tenants_take(&tenants, a, KVF_SHARE_SSD, 80 * MIB); /* its limit is whole */
    kvf_tenants_take(&tenants, b, KVF_SHARE_SSD, 20 * MIB);
    kvf_tenants_take(&tenants, c, KVF_SHARE_SSD, MIB);
    assert_true(kvf_tenant_has_room(a, KVF_SHARE_SSD, 0));
    assert_in_range(excess(a), 40 * MIB - 4096, 40 * MIB + 4096);
    assert_in_range(excess(b), 0, 4096);
    assert_int_equal(excess(c), MIB);
    take_acl("\"a\": {\"ssd\": 0}");
    assert_int_equal(excess(a), 80 * MIB);
    assert_false(kvf_tenant_has_room(a, KVF_SHARE_SSD, 0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(enter__namespaces_of_one_tenant__are_one_until_the_last_leaves),
        TEST(leave__while_it_has_blocks__is_an_assert),
        TEST(shares__none__limit_nobody_and_nothing_is_safe),
        TEST(shares__named_tenants__are_there_before_and_after_their_blocks),
        TEST(shares__room_and_holding__end_at_the_limit),
        TEST(safe__shares_fit__each_is_whole_and_the_rest_is_for_the_others),
        TEST(safe__more_shares_than_can_be_promised__are_cut_in_proportion),
    };
    return cmocka_run_group_tests_name("server/tenants", tests, NULL, NULL);
}
