#include "client/pull/pack.h"

#include "base/block.h"
#include "base/test.h"

/* How many of the lengths from `first` on go into one Read. */
static uint32_t pack_from(const uint64_t *lengths, uint32_t first, uint32_t count,
                          uint64_t batch_bytes, uint64_t max_bytes, uint32_t max_blocks)
{
    struct pull_pack pack = {
        .batch_bytes = batch_bytes, .max_bytes = max_bytes, .max_blocks = max_blocks};
    for (uint32_t i = first; i < count; i++)
        if (!pull_pack_add(&pack, lengths[i]))
            break;
    return pack.blocks;
}

static uint32_t reads_of_equal(uint64_t block, uint32_t count, uint64_t batch, uint64_t max_bytes,
                               uint32_t max_blocks)
{
    uint64_t lengths[64];
    uint32_t reads = 0;
    for (uint32_t i = 0; i < count; i++)
        lengths[i] = block;
    for (uint32_t first = 0; first < count; reads++) {
        uint32_t n = pack_from(lengths, first, count, batch, max_bytes, max_blocks);
        assert_true(n >= 1 && n <= count - first);
        first += n;
    }
    return reads;
}

static void pull_pack__equal_blocks__as_the_formula_says(void **state)
{
    (void)state;
    const uint64_t block = 9 * KVF_MIB, none = UINT64_MAX;
    assert_int_equal(reads_of_equal(block, 8, 32 * KVF_MIB, none, 4096), 3);
    assert_int_equal(reads_of_equal(block, 8, 128 * KVF_MIB, none, 4096), 1);
    assert_int_equal(reads_of_equal(block, 8, 0, none, 4096), 1);
    assert_int_equal(reads_of_equal(block, 16, 32 * KVF_MIB, none, 4096), 6);
    assert_int_equal(reads_of_equal(block, 16, 128 * KVF_MIB, none, 4096), 2);
    assert_int_equal(reads_of_equal(block, 16, 0, none, 4096), 1);
    for (uint64_t mib = 1; mib <= 200; mib++) {
        uint64_t fit = mib / 9 > 0 ? mib / 9 : 1;
        assert_int_equal(reads_of_equal(block, 16, mib * KVF_MIB, none, 4096),
                         (16 + fit - 1) / fit);
    }
}

static void pull_pack__source_limits__bound_it(void **state)
{
    (void)state;
    assert_int_equal(reads_of_equal(9 * KVF_MIB, 16, 0, 18 * KVF_MIB, 4096), 8);
    assert_int_equal(reads_of_equal(9 * KVF_MIB, 16, 128 * KVF_MIB, 40 * KVF_MIB, 4096), 4);
    assert_int_equal(reads_of_equal(4096, 12, 0, UINT64_MAX, 5), 3);
    assert_int_equal(reads_of_equal(4096, 12, 0, UINT64_MAX, 0), 12);
    assert_int_equal(reads_of_equal(9 * KVF_MIB, 3, 0, KVF_MIB, 4096), 3); /* never none */
}

static void pull_pack__odd_lengths__source_counts_whole_pages(void **state)
{
    (void)state;
    assert_int_equal(reads_of_equal(1, 4, 0, 8192, 4096), 2);
    assert_int_equal(reads_of_equal(1, 4, 4, UINT64_MAX, 4096), 1); /* the batch counts lengths */
    assert_int_equal(reads_of_equal(4097, 4, 0, 8192, 4096), 4);
}

static void pull_pack__mixed_lengths__keep_their_order(void **state)
{
    (void)state;
    const uint64_t lengths[] = {5, 5, 20, 1, 1, 1};
    assert_int_equal(pack_from(lengths, 0, 6, 10, UINT64_MAX, 9), 2);
    assert_int_equal(pack_from(lengths, 2, 6, 10, UINT64_MAX, 9), 1); /* too long, alone */
    assert_int_equal(pack_from(lengths, 3, 6, 10, UINT64_MAX, 9), 3);
    assert_int_equal(pack_from(lengths, 6, 6, 10, UINT64_MAX, 9), 0);
    const uint64_t huge[] = {UINT64_MAX, 1};
    assert_int_equal(pack_from(huge, 0, 2, 10, UINT64_MAX, 9), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pull_pack__equal_blocks__as_the_formula_says),
        cmocka_unit_test(pull_pack__source_limits__bound_it),
        cmocka_unit_test(pull_pack__odd_lengths__source_counts_whole_pages),
        cmocka_unit_test(pull_pack__mixed_lengths__keep_their_order),
    };
    return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
