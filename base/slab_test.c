#include "base/slab.h"

#include "base/faulty_memory.h"
#include "base/test.h"

#include <stdlib.h>
#include <string.h>

#define ITEM_BYTES 24
#define SHIFT 3 /* 8 items a slab */
#define PER_SLAB 8u

static struct kvf_slabs slabs;

static int set_up(void **state)
{
    (void)state;
    kvf_slabs_init(&slabs, ITEM_BYTES, SHIFT, 1000);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_slabs_fini(&slabs);
    return 0;
}

static uint32_t take(void)
{
    uint32_t number;
    assert_true(kvf_slabs_take(&slabs, &number));
    memset(kvf_slabs_at(&slabs, number), (int)(number & 0xff), ITEM_BYTES);
    return number;
}

static void assert_whole(uint32_t number)
{
    const uint8_t *bytes = kvf_slabs_at(&slabs, number);
    for (int i = 0; i < ITEM_BYTES; i++)
        assert_int_equal(bytes[i], number & 0xff);
}

static void take__many__are_apart_and_do_not_move(void **state)
{
    (void)state;
    const void *first = NULL;
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t number = take();
        assert_int_equal(number, i); /* dense while none is given back */
        if (i == 0)
            first = kvf_slabs_at(&slabs, number);
    }
    assert_ptr_equal(kvf_slabs_at(&slabs, 0), first);
    for (uint32_t i = 0; i < 50; i++)
        assert_whole(i);
    assert_int_equal(slabs.live, 7);
}

static void take__at_the_limit__is_refused(void **state)
{
    (void)state;
    uint32_t number;
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(take() < 1000);
    assert_false(kvf_slabs_take(&slabs, &number));
    kvf_slabs_give(&slabs, 77);
    assert_int_equal(take(), 77);
}

static void give__empty_slab__goes_back_and_its_numbers_come_again(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4 * PER_SLAB; i++)
        (void)take();
    size_t full = kvf_slabs_bytes(&slabs);
    kvf_slabs_give(&slabs, 0); /* the first slab has room, so another one may go */
    for (uint32_t i = PER_SLAB; i < 2 * PER_SLAB; i++)
        kvf_slabs_give(&slabs, i);
    assert_int_equal(slabs.live, 3);
    assert_int_equal(kvf_slabs_bytes(&slabs), full - PER_SLAB * ITEM_BYTES);
    assert_int_equal(take(), 0);
    for (uint32_t i = PER_SLAB; i < 2 * PER_SLAB; i++)
        assert_int_equal(take(), i);
    for (uint32_t i = 0; i < 4 * PER_SLAB; i++)
        assert_whole(i);
}

static void give__last_slab_with_room__stays(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) { /* would allocate each time otherwise */
        uint32_t number = take();
        assert_int_equal(slabs.live, 1);
        kvf_slabs_give(&slabs, number);
        assert_int_equal(slabs.live, 1);
    }
}

static void take__no_memory__is_refused_and_nothing_is_lost(void **state)
{
    (void)state;
    uint32_t number, count = 0;
    for (unsigned nth = 1; count < 100; nth = nth % 3 + 1) {
        faulty_memory_fail_at(nth);
        for (int i = 0; i < 20; i++)
            if (kvf_slabs_take(&slabs, &number)) {
                assert_int_equal(number, count++);
                memset(kvf_slabs_at(&slabs, number), (int)(number & 0xff), ITEM_BYTES);
            }
        faulty_memory_fail_at(0);
    }
    for (uint32_t i = 0; i < count; i++)
        assert_whole(i);
}

static void give_and_take__at_random__every_item_is_its_own(void **state)
{
    (void)state;
    bool taken[1000] = {false};
    size_t count = 0;
    srand(1);
    for (int step = 0; step < 100000; step++) {
        /* Waves, so that slabs fill and empty. */
        bool grow = rand() % 100 < (step / 5000 % 2 == 0 ? 70 : 30);
        uint32_t number = (uint32_t)rand() % 1000;
        if (grow && count < 900) {
            number = take();
            assert_false(taken[number]);
            taken[number] = true;
            count++;
        } else if (taken[number]) {
            assert_whole(number);
            kvf_slabs_give(&slabs, number);
            taken[number] = false;
            count--;
        }
    }
    for (uint32_t i = 0; i < 1000; i++)
        if (taken[i])
            kvf_slabs_give(&slabs, i);
    assert_int_equal(slabs.live, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(take__many__are_apart_and_do_not_move, set_up, tear_down),
        cmocka_unit_test_setup_teardown(take__at_the_limit__is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(give__empty_slab__goes_back_and_its_numbers_come_again,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(give__last_slab_with_room__stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(take__no_memory__is_refused_and_nothing_is_lost, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(give_and_take__at_random__every_item_is_its_own, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests_name("base/slab", tests, NULL, NULL);
}
