#include "server/cold.h"

#include "base/faulty_memory.h"
#include "base/table.h"
#include "base/test.h"

#include <stdlib.h>

#define LISTS 32u

static struct kvf_cold *cold;
static struct kvf_cold_list lists[LISTS];

static int set_up(void **state)
{
    (void)state;
    if (!kvf_is_ok(kvf_cold_create(&cold)))
        return -1;
    for (unsigned i = 0; i < LISTS; i++)
        if (!kvf_cold_list_init(cold, &lists[i]))
            return -1;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_cold_destroy(cold);
    return 0;
}

/* Block n, with a key of key_bytes bytes; every field says which one it is. */
static struct kvf_cold_block block_of(uint32_t n, uint8_t key_bytes)
{
    struct kvf_cold_block block = {
        .key.length = key_bytes,
        .space = n % 3,
        .generation = {.epoch = n + 1, .counter = n + 2},
        .length = n + 3,
        .crc32c = n + 4,
        .list = &lists[n % LISTS],
        .page = n + 5,
        .hot = n % 2 != 0,
        .pulled = n % 5 == 0,
    };
    for (uint8_t i = 0; i < key_bytes; i++)
        block.key.bytes[i] = (uint8_t)(n >> (8 * (i % 4)));
    return block;
}

static uint64_t hash_of(const struct kvf_cold_block *block)
{
    return kvf_hash(block->space, block->key.bytes, block->key.length);
}

static bool add(uint32_t n, uint8_t key_bytes)
{
    struct kvf_cold_block block = block_of(n, key_bytes);
    return kvf_cold_add(cold, hash_of(&block), &block);
}

static uint32_t find(uint32_t n, uint8_t key_bytes)
{
    struct kvf_cold_block block = block_of(n, key_bytes);
    return kvf_cold_find(cold, hash_of(&block), block.space, &block.key);
}

static void assert_there(uint32_t n, uint8_t key_bytes)
{
    struct kvf_cold_block wanted = block_of(n, key_bytes), found;
    uint32_t link = find(n, key_bytes);
    assert_int_not_equal(link, KVF_COLD_NONE);
    kvf_cold_get(cold, link, &found);
    assert_true(kvf_key_equal(&found.key, &wanted.key));
    assert_true(kvf_generation_equal(found.generation, wanted.generation));
    assert_true(found.space == wanted.space && found.length == wanted.length);
    assert_true(found.crc32c == wanted.crc32c && found.list == wanted.list);
    assert_true(found.page == wanted.page && found.hot == wanted.hot);
    assert_true(found.pulled == wanted.pulled);
}

static void add__keys_of_every_length__come_back_as_they_were(void **state)
{
    (void)state;
    for (uint8_t bytes = 1; bytes <= KVF_KEY_MAX_BYTES; bytes++)
        assert_true(add(bytes, bytes));
    for (uint8_t bytes = 1; bytes <= KVF_KEY_MAX_BYTES; bytes++)
        assert_there(bytes, bytes);
    assert_int_equal(find(1, 2), KVF_COLD_NONE);
    assert_int_equal(kvf_cold_count(cold), KVF_KEY_MAX_BYTES);
}

static void find__another_namespace_with_an_equal_hash__is_not_found(void **state)
{
    (void)state;
    struct kvf_cold_block block = block_of(1, 8);
    assert_true(kvf_cold_add(cold, 5, &block));
    assert_int_not_equal(kvf_cold_find(cold, 5, block.space, &block.key), KVF_COLD_NONE);
    assert_int_equal(kvf_cold_find(cold, 5, block.space + 1, &block.key), KVF_COLD_NONE);
    block.key.bytes[7] ^= 1;
    assert_int_equal(kvf_cold_find(cold, 5, block.space, &block.key), KVF_COLD_NONE);
}

static void add_and_remove__many__all_are_found_at_every_size(void **state)
{
    (void)state;
    const uint32_t count = 40000;
    size_t empty = kvf_cold_bytes(cold);
    for (uint32_t n = 0; n < count; n++) {
        assert_true(add(n, 16));
        assert_there(n * 7919u % (n + 1), 16);
    }
    for (uint32_t n = 0; n < count; n++)
        assert_there(n, 16);
    for (uint32_t n = 0; n < count; n++) {
        kvf_cold_remove(cold, find(n, 16));
        assert_int_equal(find(n, 16), KVF_COLD_NONE);
        if (n + 1 < count)
            assert_there(n + 1 + n * 7919u % (count - n - 1), 16);
    }
    assert_int_equal(kvf_cold_count(cold), 0);
    assert_true(kvf_cold_bytes(cold) < empty + 100000); /* a slab, and the arrays of pointers */
}

/* Counted: all that was allocated for them. */
static void bytes__200000_blocks__are_at_most_96_and_the_key_for_each(void **state)
{
    (void)state;
    const uint32_t count = 200000;
    for (uint8_t key_bytes = 1; key_bytes <= KVF_KEY_MAX_BYTES; key_bytes += 9) {
        for (uint32_t n = 0; n < count; n++) {
            uint8_t length = key_bytes >= 4 ? key_bytes : 4; /* short ones would repeat */
            assert_true(add(n, length));
            if (n >= count / 2) /* not only at the end */
                assert_true(kvf_cold_bytes(cold) <= (n + 1) * (96 + (uint64_t)length));
        }
        tear_down(NULL);
        assert_int_equal(set_up(NULL), 0);
    }
}

static uint32_t number_of(uint32_t link)
{
    struct kvf_cold_block block;
    kvf_cold_get(cold, link, &block);
    return (uint32_t)block.generation.epoch - 1;
}

static void list__some_removed_and_one_moved__has_the_others_in_the_order_they_came(void **state)
{
    (void)state;
    const uint32_t count = 3200;
    for (uint32_t n = 0; n < count; n++)
        assert_true(add(n, (uint8_t)(4 + n % 60)));
    for (uint32_t n = 5; n < count; n += 2 * LISTS) /* from the middle as well */
        kvf_cold_remove(cold, find(n, (uint8_t)(4 + n % 60)));
    kvf_cold_move(cold, find(6, 10), &lists[5], 77);
    assert_int_equal(number_of(lists[6].first), 6 + LISTS);
    uint32_t left = 0;
    for (uint32_t n = 5 + LISTS; n < count; n += 2 * LISTS, left++) {
        assert_int_equal(number_of(lists[5].first), n);
        kvf_cold_remove(cold, lists[5].first);
    }
    assert_int_equal(left, count / LISTS / 2);
    assert_true(number_of(lists[5].first) == 6 && lists[5].last == lists[5].first);
    assert_int_equal(kvf_cold_next_in_list(cold, lists[5].first), KVF_COLD_NONE);
    kvf_cold_remove(cold, lists[5].first);
    kvf_cold_list_fini(cold, &lists[5]);
    assert_true(kvf_cold_list_init(cold, &lists[5]));
    for (uint32_t n = 0; n < count; n++)
        if (n != 6 && n % LISTS != 5)
            assert_there(n, (uint8_t)(4 + n % 60));
}

static void list_fini__not_empty__is_an_assert(void **state)
{
    (void)state;
    assert_true(add(3, 8));
    assert_aborts(kvf_cold_list_fini(cold, &lists[3]));
}

static void create__fails_at_each_step__leaves_nothing(void **state)
{
    (void)state;
    struct kvf_cold *other = NULL;
    unsigned nth = 0;
    do {
        faulty_memory_fail_at(++nth);
        struct kvf_status status = kvf_cold_create(&other);
        assert_int_equal(kvf_is_ok(status), !faulty_memory_failed());
        if (faulty_memory_failed())
            assert_null(other);
    } while (faulty_memory_failed());
    faulty_memory_fail_at(0);
    assert_true(nth > 3);
    kvf_cold_destroy(other);
}

static void add__no_memory_now_and_then__those_that_were_taken_are_there(void **state)
{
    (void)state;
    static bool there[20000];
    uint32_t refused = 0;
    for (uint32_t n = 0; n < 20000; n++) {
        if (n % 500 == 0) /* of a few hundred allocations in all */
            faulty_memory_fail_at(1 + n / 500 % 4);
        there[n] = add(n, (uint8_t)(4 + n % 60));
        refused += !there[n];
    }
    faulty_memory_fail_at(0);
    assert_true(refused > 0);
    assert_int_equal(kvf_cold_count(cold), 20000 - refused);
    for (uint32_t n = 0; n < 20000; n++)
        if (there[n])
            assert_there(n, (uint8_t)(4 + n % 60));
        else
            assert_int_equal(find(n, (uint8_t)(4 + n % 60)), KVF_COLD_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(add__keys_of_every_length__come_back_as_they_were, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(find__another_namespace_with_an_equal_hash__is_not_found,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(add_and_remove__many__all_are_found_at_every_size, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(bytes__200000_blocks__are_at_most_96_and_the_key_for_each,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            list__some_removed_and_one_moved__has_the_others_in_the_order_they_came, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(list_fini__not_empty__is_an_assert, set_up, tear_down),
        cmocka_unit_test(create__fails_at_each_step__leaves_nothing),
        cmocka_unit_test_setup_teardown(
            add__no_memory_now_and_then__those_that_were_taken_are_there, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("server/cold", tests, NULL, NULL);
}
