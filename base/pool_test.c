#include "base/pool.h"

#include "base/block.h"
#include "base/memory.h"
#include "base/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The model: who owns each page of each arena. */
#define MODEL_ARENAS 3u
#define MODEL_ARENA_BYTES (4 * KVF_MIB)
#define MODEL_BYTES (10 * KVF_MIB) /* the last arena is half as long */
#define MODEL_PAGES (MODEL_BYTES / KVF_PAGE)
#define MODEL_EXTENTS 512u

struct model {
    struct kvf_pool *pool;
    struct kvf_extent extents[MODEL_EXTENTS];
    uint16_t owner[MODEL_PAGES]; /* 0: free */
    uint64_t used_bytes;
    uint64_t random;
};

static uint64_t draw(struct model *model, uint64_t below)
{
    model->random = model->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (model->random >> 33) % below;
}

static uint16_t *owners_of(struct model *model, const struct kvf_extent *extent)
{
    return &model->owner[(extent->arena->id * MODEL_ARENA_BYTES + extent->offset) / KVF_PAGE];
}

/* The longest run of free pages in one arena, in bytes. */
static uint64_t longest_free(const struct model *model)
{
    uint64_t longest = 0, run = 0;
    for (size_t page = 0; page < MODEL_PAGES; page++) {
        if (page % (MODEL_ARENA_BYTES / KVF_PAGE) == 0)
            run = 0;
        run = model->owner[page] == 0 ? run + KVF_PAGE : 0;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static uint64_t draw_length(struct model *model)
{
    switch (draw(model, 4)) {
    case 0:
        return 1 + draw(model, 3 * KVF_PAGE);
    case 1:
        return 64 * 1024 + draw(model, 2);
    case 2:
        return 1 + draw(model, 128 * KVF_PAGE);
    default:
        return 1 + draw(model, MODEL_ARENA_BYTES);
    }
}

static void model_alloc(struct model *model, size_t slot)
{
    struct kvf_extent *extent = &model->extents[slot];
    uint64_t length = draw_length(model);
    struct kvf_status status = kvf_pool_alloc(model->pool, length, extent);
    if (kvf_round_up_page(length) > longest_free(model)) {
        assert_int_equal(status.code, KVF_BUSY);
        assert_int_equal(extent->bytes, 0);
        return;
    }
    assert_int_equal(status.code, KVF_OK);
    assert_int_equal(extent->bytes, kvf_round_up_page(length));
    assert_int_equal(extent->offset % KVF_PAGE, 0);
    assert_ptr_equal(extent->arena, kvf_pool_arena(model->pool, extent->arena->id));
    assert_true(extent->offset + extent->bytes <= extent->arena->bytes);
    for (size_t page = 0; page < extent->bytes / KVF_PAGE; page++) {
        assert_int_equal(owners_of(model, extent)[page], 0);
        owners_of(model, extent)[page] = (uint16_t)(slot + 1);
    }
    model->used_bytes += extent->bytes;
}

static void model_free(struct model *model, size_t slot)
{
    struct kvf_extent *extent = &model->extents[slot];
    memset(owners_of(model, extent), 0, extent->bytes / KVF_PAGE * sizeof(uint16_t));
    model->used_bytes -= extent->bytes;
    kvf_pool_free(model->pool, extent);
    assert_int_equal(extent->bytes, 0);
    assert_null(extent->arena);
}

/* All is free and each arena is one range. */
static void assert_whole(struct kvf_pool *pool)
{
    size_t count = kvf_pool_arena_count(pool);
    struct kvf_extent *wholes = calloc(count, sizeof(*wholes)), none = {0};
    assert_int_equal(kvf_pool_free_bytes(pool), kvf_pool_bytes(pool));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(kvf_pool_alloc(pool, kvf_pool_arena(pool, i)->bytes, &wholes[i]).code, 0);
    assert_int_equal(kvf_pool_free_bytes(pool), 0);
    assert_int_equal(kvf_pool_alloc(pool, 1, &none).code, KVF_BUSY);
    for (size_t i = 0; i < count; i++)
        kvf_pool_free(pool, &wholes[i]);
    free(wholes);
}

static void pool_alloc__random_lengths__matches_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct model *model = calloc(1, sizeof(*model));
        model->random = seed;
        assert_int_equal(
            kvf_pool_create_cut(MODEL_BYTES, MODEL_ARENA_BYTES, false, &model->pool, NULL).code, 0);
        assert_int_equal(kvf_pool_arena_count(model->pool), MODEL_ARENAS);
        /* Every seed lives at another level of filling. */
        size_t slots = MODEL_EXTENTS >> (seed % 5);
        for (size_t step = 0; step < 10000; step++) {
            size_t slot = (size_t)draw(model, slots);
            if (model->extents[slot].bytes != 0)
                model_free(model, slot);
            else
                model_alloc(model, slot);
            assert_int_equal(kvf_pool_free_bytes(model->pool), MODEL_BYTES - model->used_bytes);
        }
        for (size_t slot = 0; slot < slots; slot++) {
            if (model->extents[slot].bytes != 0)
                model_free(model, slot);
        }
        assert_whole(model->pool);
        kvf_pool_destroy(model->pool, false);
        free(model);
    }
}

static void pool_alloc__page_by_page_until_exhaustion__is_busy_and_comes_back_whole(void **state)
{
    (void)state;
    struct kvf_pool *pool;
    size_t pages = 2 * KVF_MIB / KVF_PAGE;
    struct kvf_extent extents[2 * KVF_MIB / KVF_PAGE] = {0}, none = {0};
    assert_int_equal(kvf_pool_create_cut(2 * KVF_MIB, KVF_MIB, false, &pool, NULL).code, 0);
    for (size_t i = 0; i < pages; i++)
        assert_int_equal(kvf_pool_alloc(pool, 1 + i, &extents[i]).code, KVF_OK);
    assert_int_equal(kvf_pool_alloc(pool, 1, &none).code, KVF_BUSY);
    assert_int_equal(kvf_pool_free_bytes(pool), 0);
    /* Every second page free: half is free, but nothing longer than a page. */
    for (size_t i = 0; i < pages; i += 2)
        kvf_pool_free(pool, &extents[i]);
    assert_int_equal(kvf_pool_free_bytes(pool), KVF_MIB);
    assert_int_equal(kvf_pool_alloc(pool, KVF_PAGE + 1, &none).code, KVF_BUSY);
    for (size_t i = 1; i < pages; i += 2)
        kvf_pool_free(pool, &extents[i]);
    assert_whole(pool);
    kvf_pool_destroy(pool, false);
}

static void pool_alloc__neighbours_in_two_arenas__are_never_joined(void **state)
{
    (void)state;
    struct kvf_pool *pool;
    struct kvf_extent extent = {0};
    assert_int_equal(kvf_pool_create_cut(2 * KVF_MIB, KVF_MIB, false, &pool, NULL).code, 0);
    assert_int_equal(kvf_pool_alloc(pool, KVF_MIB + 1, &extent).code, KVF_BUSY);
    assert_whole(pool);
    assert_int_equal(kvf_pool_alloc(pool, KVF_MIB + 1, &extent).code, KVF_BUSY);
    kvf_pool_destroy(pool, false);
}

static void pool_alloc__several_ranges__takes_the_shortest_that_fits(void **state)
{
    (void)state;
    struct kvf_pool *pool;
    struct kvf_extent hole3, hole70, wall1, wall2, again;
    assert_int_equal(kvf_pool_create(KVF_MIB, false, &pool, NULL).code, 0);
    assert_int_equal(kvf_pool_alloc(pool, 70 * KVF_PAGE, &hole70).code, KVF_OK);
    assert_int_equal(kvf_pool_alloc(pool, 1, &wall1).code, KVF_OK);
    assert_int_equal(kvf_pool_alloc(pool, 3 * KVF_PAGE, &hole3).code, KVF_OK);
    assert_int_equal(kvf_pool_alloc(pool, 1, &wall2).code, KVF_OK);
    uint64_t at3 = hole3.offset, at70 = hole70.offset;
    kvf_pool_free(pool, &hole3);
    kvf_pool_free(pool, &hole70);
    assert_int_equal(kvf_pool_alloc(pool, 2 * KVF_PAGE, &hole3).code, KVF_OK);
    assert_int_equal(hole3.offset, at3);
    assert_int_equal(kvf_pool_alloc(pool, 65 * KVF_PAGE, &hole70).code, KVF_OK);
    assert_int_equal(hole70.offset, at70);
    assert_int_equal(kvf_pool_alloc(pool, 5 * KVF_PAGE, &again).code, KVF_OK);
    assert_int_equal(again.offset, at70 + 65 * KVF_PAGE);
    kvf_pool_destroy(pool, true);
}

static void pool_alloc__one_byte_to_a_whole_gibibyte__fits(void **state)
{
    (void)state;
    struct kvf_pool *pool;
    struct kvf_extent whole = {0}, rest = {0}, none = {0};
    assert_int_equal(kvf_pool_create(KVF_ARENA_MAX_BYTES + KVF_MIB, false, &pool, NULL).code, 0);
    assert_int_equal(kvf_pool_arena_count(pool), 2);
    assert_int_equal(kvf_pool_arena(pool, 0)->bytes, KVF_ARENA_MAX_BYTES);
    assert_int_equal(kvf_pool_arena(pool, 1)->bytes, KVF_MIB);
    assert_int_equal(kvf_pool_alloc(pool, KVF_ARENA_MAX_BYTES + 1, &none).code, KVF_BUSY);
    assert_int_equal(kvf_pool_alloc(pool, KVF_ARENA_MAX_BYTES, &whole).code, KVF_OK);
    assert_int_equal(kvf_pool_alloc(pool, 1, &rest).code, KVF_OK);
    assert_int_equal(rest.arena->id, 1);
    kvf_extent_at(whole)[KVF_ARENA_MAX_BYTES - 1] = 1;
    kvf_pool_free(pool, &whole);
    kvf_pool_free(pool, &rest);
    kvf_pool_free(pool, &none); /* empty: fine */
    assert_whole(pool);
    kvf_pool_destroy(pool, false);
}

static void pool_create__impossible_sizes__are_refused_with_a_reason(void **state)
{
    (void)state;
    struct kvf_pool *pool = NULL;
    struct kvf_why why = {{0}};
    assert_int_equal(kvf_pool_create(0, false, &pool, &why).code, KVF_INVALID);
    assert_int_equal(kvf_pool_create(KVF_MIB + KVF_PAGE, false, &pool, NULL).code, KVF_INVALID);
    assert_int_equal(kvf_pool_create(KVF_MIB, true, &pool, NULL).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "MiB"));
    assert_int_equal(kvf_pool_create_cut(KVF_MIB, 2 * KVF_ARENA_MAX_BYTES, false, &pool, NULL).code,
                     KVF_INVALID);
    assert_int_equal(kvf_pool_create(UINT64_C(1) << 50, false, &pool, &why).code, KVF_TOO_LARGE);
    assert_null(pool);
    kvf_pool_destroy(NULL, false);
}

/* A process that may open no more than `more` further descriptors. */
static void limit_descriptors(unsigned more, struct rlimit *before)
{
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(lowest >= 0);
    assert_int_equal(close(lowest), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, before), 0);
    struct rlimit limit = {.rlim_cur = (rlim_t)lowest + more, .rlim_max = before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void pool_create__fails_at_each_arena__gives_all_back(void **state)
{
    (void)state;
    for (unsigned arenas = 0; arenas <= 4; arenas++) {
        struct kvf_pool *pool = NULL;
        struct kvf_why why = {{0}};
        struct rlimit before;
        limit_descriptors(arenas, &before);
        struct kvf_status status = kvf_pool_create_cut(4 * KVF_MIB, KVF_MIB, false, &pool, &why);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(status.code, arenas < 4 ? KVF_NO_MEMORY : KVF_OK);
        assert_true((pool != NULL) == (arenas == 4));
        assert_true((why.text[0] != '\0') == (arenas < 4));
        kvf_pool_destroy(pool, false);
    }
}

static void pool_create__more_than_there_is__is_refused_before_anything_is_taken(void **state)
{
    (void)state;
    struct kvf_pool *pool = NULL;
    struct kvf_why why = {.text = ""};
    uint64_t available_bytes = kvf_memory_available_bytes();
    assert_true(available_bytes > 0);
    if (available_bytes > (UINT64_C(4) << 40))
        skip(); /* more than a pool can have */
    uint64_t bytes = available_bytes / KVF_MIB * KVF_MIB + (UINT64_C(64) << 30);
    assert_int_equal(kvf_pool_create(bytes, false, &pool, &why).code, KVF_NO_MEMORY);
    assert_non_null(strstr(why.text, "--pool-mib"));
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_alloc__random_lengths__matches_the_model),
        cmocka_unit_test(pool_alloc__page_by_page_until_exhaustion__is_busy_and_comes_back_whole),
        cmocka_unit_test(pool_alloc__neighbours_in_two_arenas__are_never_joined),
        cmocka_unit_test(pool_alloc__several_ranges__takes_the_shortest_that_fits),
        cmocka_unit_test(pool_alloc__one_byte_to_a_whole_gibibyte__fits),
        cmocka_unit_test(pool_create__impossible_sizes__are_refused_with_a_reason),
        cmocka_unit_test(pool_create__fails_at_each_arena__gives_all_back),
        cmocka_unit_test(pool_create__more_than_there_is__is_refused_before_anything_is_taken),
    };
    return cmocka_run_group_tests_name("base/pool", tests, NULL, NULL);
}
