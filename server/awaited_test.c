#include "server/awaited.h"

#include "base/test.h"

static struct kvf_pool *pool;
static struct kvf_index *index_;
static struct kvf_awaited awaited;

static void nothing(void *context)
{
    (void)context;
}

static int set_up(void **state)
{
    (void)state;
    assert_true(kvf_is_ok(kvf_pool_create(2 * KVF_MIB, false, &pool, NULL)));
    struct kvf_index_options options = {.pool = pool, .boot_epoch = 9, .freed = nothing};
    assert_true(kvf_is_ok(kvf_index_create(&options, &index_)));
    assert_true(kvf_is_ok(kvf_awaited_init(&awaited, index_)));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_awaited_fini(&awaited);
    kvf_index_destroy(index_, false);
    kvf_pool_destroy(pool, false);
    return 0;
}

struct waiter {
    struct kvf_await await;
    struct kvf_key key;
    unsigned settled;
    struct waiter *leaves; /* ends this one's wait when it is settled */
    bool waits_again;
};

static void settled(struct kvf_await *await)
{
    struct waiter *waiter = kvf_container(await, struct waiter, await);
    waiter->settled++;
    if (waiter->leaves != NULL)
        kvf_awaited_remove(&awaited, &waiter->leaves->await);
    if (waiter->waits_again && awaited.open)
        kvf_awaited_add(&awaited, &waiter->await);
}

static void wait_for(struct waiter *waiter, const char *ns, const char *key)
{
    *waiter = (struct waiter){.await = {.ns = ns, .settled = settled}};
    assert_true(kvf_key_set(&waiter->key, key, strlen(key)));
    waiter->await.key = &waiter->key;
    kvf_awaited_add(&awaited, &waiter->await);
}

static void know(const char *ns, const char *text, enum kvf_entry_state state)
{
    struct kvf_key key;
    assert_true(kvf_key_set(&key, text, strlen(text)));
    struct kvf_entry *entry = kvf_index_add(index_, ns, &key, 4096, state);
    assert_non_null(entry);
    kvf_awaited_look(&awaited, ns, &key);
    kvf_index_unlink(index_, entry);
    kvf_entry_unpin(index_, entry);
}

static void look__key_is_known__settles_all_who_wait_for_it(void **state)
{
    (void)state;
    struct waiter a, b, other_key, other_space;
    kvf_awaited_open(&awaited);
    wait_for(&a, "t/f", "k");
    wait_for(&b, "t/f", "k");
    wait_for(&other_key, "t/f", "k2");
    wait_for(&other_space, "t/g", "k");
    know("t/f", "k", KVF_ENTRY_PENDING);
    assert_int_equal(a.settled, 1);
    assert_int_equal(b.settled, 1);
    assert_int_equal(other_key.settled + other_space.settled, 0);
    kvf_awaited_close(&awaited);
    assert_int_equal(a.settled + b.settled, 2);
    assert_int_equal(other_key.settled + other_space.settled, 2);
}

static void look__key_is_not_known_or_only_pulled__settles_nobody(void **state)
{
    (void)state;
    struct waiter a;
    kvf_awaited_open(&awaited);
    wait_for(&a, "t/f", "k");
    a.waits_again = true; /* would not end */
    kvf_awaited_look(&awaited, "t/f", &a.key);
    know("t/f", "k", KVF_ENTRY_PULLING);
    assert_int_equal(a.settled, 0);
    kvf_awaited_close(&awaited);
    assert_int_equal(a.settled, 1);
}

static void settled__ends_another_ones_wait__that_one_hears_nothing(void **state)
{
    (void)state;
    struct waiter a, b;
    kvf_awaited_open(&awaited);
    wait_for(&a, "t/f", "k");
    wait_for(&b, "t/f", "k"); /* the later one is settled first */
    b.leaves = &a;
    know("t/f", "k", KVF_ENTRY_PENDING);
    assert_int_equal(b.settled, 1);
    wait_for(&a, "t/f", "k1");
    wait_for(&b, "t/f", "k2");
    a.leaves = &b;
    kvf_awaited_close(&awaited);
    assert_int_equal(a.settled, 1);
    assert_int_equal(b.settled, 0);
}

static void is_open__only_while_recovery_runs(void **state)
{
    (void)state;
    assert_false(kvf_awaited_is_open(NULL));
    assert_false(kvf_awaited_is_open(&awaited));
    kvf_awaited_open(&awaited);
    assert_true(kvf_awaited_is_open(&awaited));
    kvf_awaited_close(&awaited);
    assert_false(kvf_awaited_is_open(&awaited));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(look__key_is_known__settles_all_who_wait_for_it),
        TEST(look__key_is_not_known_or_only_pulled__settles_nobody),
        TEST(settled__ends_another_ones_wait__that_one_hears_nothing),
        TEST(is_open__only_while_recovery_runs),
    };
    return cmocka_run_group_tests_name("server/awaited", tests, NULL, NULL);
}
