#include "server/parties.h"

#include "base/test.h"

static struct kvf_parties parties;

static int set_up(void **state)
{
    (void)state;
    kvf_parties_init(&parties, 100);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_true(kvf_list_is_empty(&parties.identities));
    return 0;
}

static void join__same_name__is_the_same_party(void **state)
{
    (void)state;
    struct kvf_party *a = kvf_parties_join(&parties, "spiffe://x/a");
    struct kvf_party *b = kvf_parties_join(&parties, "spiffe://x/b");
    assert_ptr_equal(kvf_parties_join(&parties, "spiffe://x/a"), a);
    assert_ptr_not_equal(a, b);
    assert_int_equal(a->budget.limit_bytes, 100);
    kvf_parties_leave(a);
    kvf_parties_leave(b);
    a->budget.used_bytes = 5; /* still there: it was joined twice */
    assert_ptr_equal(kvf_parties_join(&parties, "spiffe://x/a"), a);
    a->budget.used_bytes = 0;
    kvf_parties_leave(a);
    kvf_parties_leave(a);
}

static void join_instance__keeps_its_identity__until_it_leaves(void **state)
{
    (void)state;
    struct kvf_party *identity = kvf_parties_join(&parties, "a");
    struct kvf_party *one = kvf_parties_join_instance(identity, 7, 1);
    struct kvf_party *other = kvf_parties_join_instance(identity, 8, 1);
    assert_ptr_not_equal(one, other);
    assert_ptr_equal(one->parent, identity);
    assert_ptr_equal(kvf_parties_join_instance(identity, 7, 1), one);
    kvf_parties_leave(identity);
    kvf_parties_leave(one);
    kvf_parties_leave(other);
    assert_ptr_equal(kvf_parties_join(&parties, "a"), identity);
    kvf_parties_leave(identity);
    kvf_parties_leave(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(join__same_name__is_the_same_party, set_up, tear_down),
        cmocka_unit_test_setup_teardown(join_instance__keeps_its_identity__until_it_leaves, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests_name("server/parties", tests, NULL, NULL);
}
