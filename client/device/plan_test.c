#include "client/device/plan.h"

#include "base/test.h"

#define CHUNK UINT64_C(131072)
#define PITCH_MAX ((UINT64_C(1) << 31) - 1)

static struct kvf_geometry geometry; /* Qwen3-8B's */

static int make_geometry(void **state)
{
    (void)state;
    geometry = (struct kvf_geometry){.model = "m",
                                     .dtype = KVF_DTYPE_BF16,
                                     .layers = 36,
                                     .planes = 2,
                                     .page_tokens = 64,
                                     .token_elements = 1024};
    return 0;
}

/* Every chunk of the block is copied once, to where the cache has it. */
static uint64_t count_and_check(const struct plan *plan, uint64_t page,
                                uint64_t (*where)(uint32_t layer, uint32_t plane, uint64_t page))
{
    static unsigned seen[72];
    struct plan_walk walk = plan_begin(plan, page);
    struct plan_copy copy;
    uint64_t count = 0;
    memset(seen, 0, sizeof(seen));
    while (plan_next(&walk, &copy)) {
        count++;
        assert_int_equal(copy.width % CHUNK, 0);
        for (uint64_t row = 0; row < copy.rows; row++) {
            for (uint64_t at = 0; at < copy.width; at += CHUNK) {
                uint64_t offset = copy.block_offset + row * copy.block_pitch + at;
                uint32_t index = (uint32_t)(offset / CHUNK);
                assert_int_equal(offset % CHUNK, 0);
                seen[index]++;
                assert_int_equal(copy.address + row * copy.cache_pitch + at,
                                 where(index / geometry.planes, index % geometry.planes, page));
            }
        }
    }
    for (uint32_t i = 0; i < plan->chunks; i++)
        assert_int_equal(seen[i], 1);
    return count;
}

static uint64_t page_first(uint32_t layer, uint32_t plane, uint64_t page)
{
    return 0x10000 + page * 72 * CHUNK + (layer * 2 + plane) * CHUNK;
}

static void page_first__one_copy_a_block(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 100, .base = 0x10000};
    struct plan plan;
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 0, page_first), 1);
    assert_int_equal(count_and_check(&plan, 99, page_first), 1);
    kvf_geometry_page_first(&geometry);
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 7, page_first), 1);
}

static uint64_t layer_first(uint32_t layer, uint32_t plane, uint64_t page)
{
    return 0x10000 + (layer * 2 + plane) * 1000 * CHUNK + page * CHUNK;
}

static void layer_first__one_copy_of_72_rows(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 1000, .base = 0x10000};
    struct plan plan;
    kvf_geometry_layer_first(&geometry, 1000);
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 0, layer_first), 1);
    assert_int_equal(count_and_check(&plan, 999, layer_first), 1);
    /* Longer pitches than the device takes: row by row. */
    assert_int_equal(plan_make(&cache, 1000 * CHUNK - 1, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 5, layer_first), 72);
}

/* [plane][layer][page] */
static uint64_t plane_first(uint32_t layer, uint32_t plane, uint64_t page)
{
    return 0x10000 + plane * 360 * CHUNK + layer * 10 * CHUNK + page * CHUNK;
}

static void all_of_k_before_all_of_v__a_copy_a_plane(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 10, .base = 0x10000};
    struct plan plan;
    geometry.page_stride = CHUNK;
    geometry.layer_stride = 10 * CHUNK;
    geometry.plane_stride = 360 * CHUNK;
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 3, plane_first), 2);
}

/* A tensor [2][page] for each layer, at odd places. */
static uint64_t tensors[72];

static uint64_t in_tensors(uint32_t layer, uint32_t plane, uint64_t page)
{
    return tensors[layer * 2 + plane] + page * CHUNK;
}

static void tensor_for_each_layer__a_copy_a_layer(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 10, .chunks = tensors};
    struct plan plan;
    for (uint32_t layer = 0; layer < 36; layer++) {
        tensors[2 * layer] = (36 - layer) * UINT64_C(0x40000000) + layer * layer * 512;
        tensors[2 * layer + 1] = tensors[2 * layer] + 10 * CHUNK;
    }
    geometry.page_stride = CHUNK;
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 9, in_tensors), 36);
}

static void chunks_without_any_order__a_copy_a_chunk(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 10, .chunks = tensors};
    struct plan plan;
    for (uint32_t i = 0; i < 72; i++)
        tensors[i] = UINT64_C(0x900000000) - i * UINT64_C(0x2000000);
    geometry.page_stride = CHUNK;
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    assert_int_equal(count_and_check(&plan, 0, in_tensors), 72);
}

static void joint_planes__one_copy_of_a_row_a_layer(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 10, .base = 4096};
    struct plan plan;
    struct plan_copy copy;
    geometry.planes = 1;
    kvf_geometry_layer_first(&geometry, 10);
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    struct plan_walk walk = plan_begin(&plan, 2);
    assert_true(plan_next(&walk, &copy));
    assert_int_equal(copy.rows, 36);
    assert_int_equal(copy.width, CHUNK);
    assert_int_equal(copy.cache_pitch, 10 * CHUNK);
    assert_int_equal(copy.address, 4096 + 2 * CHUNK);
    assert_false(plan_next(&walk, &copy));
}

static void one_layer_of_one_plane__one_row(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 10, .base = 4096};
    struct plan plan;
    struct plan_copy copy;
    geometry.planes = geometry.layers = 1;
    geometry.page_stride = 2 * CHUNK; /* with gaps */
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_OK);
    struct plan_walk walk = plan_begin(&plan, 2);
    assert_true(plan_next(&walk, &copy));
    assert_int_equal(copy.rows, 1);
    assert_int_equal(copy.address, 4096 + 4 * CHUNK);
    assert_false(plan_next(&walk, &copy));
}

static void no_way_to_the_chunks__is_refused(void **state)
{
    (void)state;
    struct kvf_cache cache = {.geometry = &geometry, .pages = 10, .base = 4096};
    struct plan plan;
    geometry.page_stride = CHUNK; /* layers lie unevenly, and no list says where */
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_INVALID);
    geometry.layer_stride = CHUNK;
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_INVALID);
    geometry.plane_stride = CHUNK;
    cache.pages = 0;
    assert_int_equal(plan_make(&cache, PITCH_MAX, &plan).code, KVF_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(page_first__one_copy_a_block, make_geometry),
        cmocka_unit_test_setup(layer_first__one_copy_of_72_rows, make_geometry),
        cmocka_unit_test_setup(all_of_k_before_all_of_v__a_copy_a_plane, make_geometry),
        cmocka_unit_test_setup(tensor_for_each_layer__a_copy_a_layer, make_geometry),
        cmocka_unit_test_setup(chunks_without_any_order__a_copy_a_chunk, make_geometry),
        cmocka_unit_test_setup(joint_planes__one_copy_of_a_row_a_layer, make_geometry),
        cmocka_unit_test_setup(one_layer_of_one_plane__one_row, make_geometry),
        cmocka_unit_test_setup(no_way_to_the_chunks__is_refused, make_geometry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
