#include "client/cli/pattern.h"

#include "base/test.h"

#include <stdlib.h>

#define BYTES                                                                                      \
    ((size_t)3 * 4096 + 40 + 5) /* whole chunks, whole vectors, a word, and a piece of one */

static void fill__twice__is_the_same_and_ends_where_told(void **state)
{
    (void)state;
    uint8_t *a = calloc(1, BYTES + 16), *b = calloc(1, BYTES + 16);
    pattern_fill(pattern_of(1, 2), a, BYTES);
    pattern_fill(pattern_of(1, 2), b, BYTES);
    assert_memory_equal(a, b, BYTES);
    for (size_t i = BYTES; i < BYTES + 16; i++)
        assert_int_equal(a[i], 0);
    free(a);
    free(b);
}

static void fill__shorter__is_a_prefix(void **state)
{
    (void)state;
    _Alignas(8) uint8_t whole[200], part[200];
    pattern_fill(pattern_of(9, 9), whole, sizeof(whole));
    for (size_t bytes = 1; bytes <= sizeof(part); bytes++) {
        memset(part, 0, sizeof(part));
        pattern_fill(pattern_of(9, 9), part, bytes);
        assert_memory_equal(part, whole, bytes);
    }
}

/* Golden bytes: a put of an older kvferry still compares equal. */
static void fill__golden_words__never_change(void **state)
{
    (void)state;
    uint64_t words[2];
    pattern_fill(pattern_of(0, 0), words, sizeof(words));
    uint64_t base = pattern_mix(pattern_mix(1));
    for (unsigned i = 0; i < 2; i++) {
        uint64_t x = base + i * UINT64_C(0x9E3779B97F4A7C15);
        x ^= x >> 31;
        x += x << 21;
        x ^= x >> 24;
        assert_true(words[i] == x);
    }
    assert_true(pattern_mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF); /* splitmix64, seed 0 */
}

static void compare__one_wrong_bit__is_found_where_it_is(void **state)
{
    (void)state;
    uint8_t *data = calloc(1, BYTES);
    struct pattern pattern = pattern_of(7, 1000000);
    pattern_fill(pattern, data, BYTES);
    assert_int_equal(pattern_compare(pattern, data, BYTES), BYTES);
    for (size_t i = 0; i < BYTES; i += i < 4000 ? 37 : 1) {
        data[i] ^= (uint8_t)(1u << (i % 8));
        assert_int_equal(pattern_compare(pattern, data, BYTES), i);
        data[i] ^= (uint8_t)(1u << (i % 8));
    }
    free(data);
}

static void compare__other_block_seed_or_place__differs(void **state)
{
    (void)state;
    uint8_t *data = calloc(1, 2 * BYTES);
    pattern_fill(pattern_of(7, 1), data, 2 * BYTES);
    assert_true(pattern_compare(pattern_of(7, 2), data, BYTES) < 8);
    assert_true(pattern_compare(pattern_of(8, 1), data, BYTES) < 8);
    assert_true(pattern_compare(pattern_of(7, 1), data + 8, BYTES) < 8);
    assert_true(pattern_compare(pattern_of(7, 1), data + 4096, BYTES) < 8);
    free(data);
}

static int order(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct kvf_key));
}

static void key__many_ids_and_seeds__all_differ(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    struct kvf_key *keys = calloc(2 * COUNT, sizeof(*keys));
    for (uint64_t id = 0; id < COUNT; id++) {
        keys[id] = pattern_key(0, id);
        keys[COUNT + id] = pattern_key(1, id);
    }
    qsort(keys, 2 * COUNT, sizeof(*keys), order);
    for (size_t i = 0; i < 2 * COUNT; i++) {
        assert_int_equal(keys[i].length, 32);
        if (i > 0)
            assert_false(kvf_key_equal(&keys[i - 1], &keys[i]));
    }
    free(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill__twice__is_the_same_and_ends_where_told),
        cmocka_unit_test(fill__shorter__is_a_prefix),
        cmocka_unit_test(fill__golden_words__never_change),
        cmocka_unit_test(compare__one_wrong_bit__is_found_where_it_is),
        cmocka_unit_test(compare__other_block_seed_or_place__differs),
        cmocka_unit_test(key__many_ids_and_seeds__all_differ),
    };
    return cmocka_run_group_tests_name("client/cli/pattern", tests, NULL, NULL);
}
