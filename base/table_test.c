#include "base/faulty_memory.h"
#include "base/list.h"
#include "base/table.h"
#include "base/test.h"

struct item {
    struct kvf_table_node node;
    unsigned key;
};

static bool same(const struct kvf_table_node *node, const void *key)
{
    return ((const struct item *)(const void *)node)->key == *(const unsigned *)key;
}

static uint64_t hash_of(unsigned key)
{
    return kvf_hash(1, &key, sizeof(key));
}

static void table__many_items__all_found_and_removed(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    static struct item items[COUNT];
    struct kvf_table table;
    assert_true(kvf_is_ok(kvf_table_init(&table)));
    for (unsigned i = 0; i < COUNT; i++) {
        items[i].key = i;
        kvf_table_insert(&table, &items[i].node, hash_of(i));
    }
    assert_int_equal(table.count, COUNT);
    for (unsigned i = 0; i < COUNT; i += 2)
        kvf_table_remove(&table, &items[i].node);
    for (unsigned i = 0; i < COUNT; i++) {
        struct kvf_table_node *found = kvf_table_find(&table, hash_of(i), same, &i);
        assert_ptr_equal(found, i % 2 ? &items[i].node : NULL);
    }
    size_t seen = 0;
    for (struct kvf_table_node *n = kvf_table_next(&table, NULL); n; n = kvf_table_next(&table, n))
        seen++;
    assert_int_equal(seen, COUNT / 2);
    kvf_table_fini(&table);
}

static void table__equal_hashes__are_told_apart(void **state)
{
    (void)state;
    struct item a = {.key = 1}, b = {.key = 2};
    struct kvf_table table;
    assert_true(kvf_is_ok(kvf_table_init(&table)));
    kvf_table_insert(&table, &a.node, 7);
    kvf_table_insert(&table, &b.node, 7);
    assert_ptr_equal(kvf_table_find(&table, 7, same, &a.key), &a.node);
    assert_ptr_equal(kvf_table_find(&table, 7, same, &b.key), &b.node);
    kvf_table_fini(&table);
}

/* Growth is spread over the insertions, and without memory the chains only become longer. */
static void table__no_memory_now_and_then__all_found(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static struct item items[COUNT];
    struct kvf_table table;
    assert_true(kvf_is_ok(kvf_table_init(&table)));
    for (unsigned i = 0; i < COUNT; i++) {
        items[i].key = i;
        faulty_memory_fail_all(i / 1000 % 2 != 0);
        kvf_table_insert(&table, &items[i].node, hash_of(i));
        faulty_memory_fail_all(false);
        unsigned some = i * 7919 % (i + 1);
        assert_ptr_equal(kvf_table_find(&table, hash_of(some), same, &some), &items[some].node);
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_ptr_equal(kvf_table_find(&table, hash_of(i), same, &i), &items[i].node);
    size_t seen = 0;
    for (struct kvf_table_node *n = kvf_table_next(&table, NULL); n; n = kvf_table_next(&table, n))
        seen++;
    assert_int_equal(seen, COUNT);
    kvf_table_fini(&table);
}

static void table__no_memory__is_not_made(void **state)
{
    (void)state;
    struct kvf_table table;
    unsigned nth = 0;
    for (bool made = false; !made;) {
        faulty_memory_fail_at(++nth);
        made = kvf_is_ok(kvf_table_init(&table));
        assert_int_equal(made, !faulty_memory_failed());
    }
    faulty_memory_fail_at(0);
    assert_int_equal(nth, 3);
    kvf_table_fini(&table);
}

static void list__remove_twice_and_splice__keeps_order(void **state)
{
    (void)state;
    struct kvf_list a, b, nodes[4];
    kvf_list_init(&a);
    kvf_list_init(&b);
    kvf_list_push_back(&a, &nodes[0]);
    kvf_list_push_back(&b, &nodes[2]);
    kvf_list_push_front(&b, &nodes[1]);
    kvf_list_push_back(&b, &nodes[3]);
    kvf_list_splice_back(&a, &b);
    kvf_list_splice_back(&a, &b);
    assert_true(kvf_list_is_empty(&b));
    kvf_list_remove(&nodes[2]);
    kvf_list_remove(&nodes[2]);
    assert_ptr_equal(kvf_list_pop_front(&a), &nodes[0]);
    assert_ptr_equal(kvf_list_pop_front(&a), &nodes[1]);
    assert_ptr_equal(kvf_list_pop_front(&a), &nodes[3]);
    assert_null(kvf_list_pop_front(&a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table__many_items__all_found_and_removed),
        cmocka_unit_test(table__equal_hashes__are_told_apart),
        cmocka_unit_test(table__no_memory_now_and_then__all_found),
        cmocka_unit_test(table__no_memory__is_not_made),
        cmocka_unit_test(list__remove_twice_and_splice__keeps_order),
    };
    return cmocka_run_group_tests_name("base/table", tests, NULL, NULL);
}
