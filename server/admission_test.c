#include "server/admission.h"

#include "base/block.h"
#include "base/test.h"

enum { MIB = 1 << 20 };

static struct kvf_admission admission;
static struct kvf_budget instance;

struct asker {
    struct kvf_request request;
    bool memory; /* what its admit finds */
    int admitted, tried;
};

static bool admit(struct kvf_request *request)
{
    struct asker *asker = kvf_container(request, struct asker, request);
    asker->tried++;
    asker->admitted += asker->memory;
    return asker->memory;
}

static struct asker asks(enum kvf_class class, uint64_t bytes)
{
    return (struct asker){
        .request = {.class = class, .bytes = bytes, .admit = admit, .instance = &instance},
        .memory = true};
}

static int set_up(void **state)
{
    (void)state;
    admission = (struct kvf_admission){.query.limit_bytes = 16 * MIB};
    admission.classes[KVF_CLASS_DIRTY].limit_bytes = 4 * MIB;
    admission.classes[KVF_CLASS_PULL].limit_bytes = 10 * MIB;
    admission.classes[KVF_CLASS_SERVE].limit_bytes = 10 * MIB;
    instance = (struct kvf_budget){.limit_bytes = 12 * MIB};
    kvf_admission_init(&admission);
    return kvf_is_ok(kvf_loop_create(&admission.loop)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_loop_run_once(admission.loop, 0);
    kvf_loop_destroy(admission.loop);
    return 0;
}

static void submit__waiting__is_served_in_order_when_bytes_return(void **state)
{
    (void)state;
    struct asker first = asks(KVF_CLASS_PULL, 8 * MIB), large = asks(KVF_CLASS_PULL, 6 * MIB),
                 small = asks(KVF_CLASS_PULL, MIB);
    kvf_admission_submit(&admission, &first.request);
    kvf_admission_submit(&admission, &large.request);
    kvf_admission_submit(&admission, &small.request);
    assert_int_equal(first.admitted, 1);
    assert_int_equal(large.admitted, 0);
    assert_int_equal(small.admitted, 0); /* it would fit, but does not pass the one before it */
    assert_int_equal(admission.waited, 2);
    kvf_admission_return(&admission, &first.request, 8 * MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(large.admitted, 1);
    assert_int_equal(small.admitted, 1);
    assert_int_equal(admission.query.used_bytes, 7 * MIB);
    assert_int_equal(admission.query.peak_bytes, 8 * MIB);
    kvf_admission_return(&admission, &large.request, 6 * MIB);
    kvf_admission_return(&admission, &small.request, MIB);
    assert_int_equal(admission.query.used_bytes, 0);
    assert_int_equal(instance.used_bytes, 0);
    assert_int_equal(admission.peak_instance_bytes, 8 * MIB);
}

static void submit__a_full_class__does_not_hold_up_another(void **state)
{
    (void)state;
    struct asker get = asks(KVF_CLASS_PULL, 10 * MIB), waits = asks(KVF_CLASS_PULL, MIB),
                 put = asks(KVF_CLASS_DIRTY, 4 * MIB);
    put.request.instance = NULL;
    kvf_admission_submit(&admission, &get.request);
    kvf_admission_submit(&admission, &waits.request);
    kvf_admission_submit(&admission, &put.request);
    assert_int_equal(waits.admitted, 0);
    assert_int_equal(put.admitted, 1);
    kvf_admission_withdraw(&admission, &waits.request);
    assert_int_equal(waits.request.state, KVF_REQUEST_IDLE);
    kvf_admission_return(&admission, &get.request, 10 * MIB);
    kvf_loop_run_once(admission.loop, 0);
    assert_int_equal(waits.admitted, 0);
    kvf_admission_return(&admission, &put.request, 4 * MIB);
}

static void submit__no_memory_now__takes_nothing_and_is_tried_again(void **state)
{
    (void)state;
    struct asker asker = asks(KVF_CLASS_SERVE, 5 * MIB);
    asker.memory = false;
    kvf_admission_submit(&admission, &asker.request);
    assert_int_equal(asker.tried, 1);
    assert_int_equal(asker.request.state, KVF_REQUEST_QUEUED);
    assert_int_equal(admission.query.used_bytes, 0);
    assert_int_equal(admission.query.peak_bytes, 0);
    assert_int_equal(admission.peak_instance_bytes, 0);
    asker.memory = true;
    kvf_admission_retry(&admission);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(asker.admitted, 1);
    kvf_admission_return(&admission, &asker.request, 5 * MIB);
}

/* Finds no memory, and gives back what it had pinned. */
static bool admit_in_vain(struct kvf_request *request)
{
    kvf_container(request, struct asker, request)->tried++;
    kvf_admission_retry(&admission);
    return false;
}

static void retry__try_in_vain_frees_what_it_had_taken__is_not_repeated_for_that(void **state)
{
    (void)state;
    struct asker vain = asks(KVF_CLASS_PULL, MIB), waits = asks(KVF_CLASS_PULL, MIB);
    vain.request.admit = admit_in_vain;
    kvf_admission_submit(&admission, &vain.request);
    kvf_admission_submit(&admission, &waits.request);
    kvf_admission_retry(&admission);
    for (int i = 0; i < 5; i++)
        kvf_loop_run_once(admission.loop, 0);
    assert_int_equal(vain.tried, 2);
    assert_int_equal(waits.tried, 0);
    kvf_admission_withdraw(&admission, &vain.request);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(waits.admitted, 1);
    kvf_admission_return(&admission, &waits.request, MIB);
}

static void submit__instance_at_its_own_limit__lets_others_pass_but_not_its_own(void **state)
{
    (void)state;
    struct kvf_budget other = {.limit_bytes = 4 * MIB};
    instance.limit_bytes = 6 * MIB;
    struct asker holds = asks(KVF_CLASS_PULL, 5 * MIB), large = asks(KVF_CLASS_PULL, 4 * MIB),
                 small = asks(KVF_CLASS_PULL, MIB), passes = asks(KVF_CLASS_PULL, 4 * MIB),
                 behind = asks(KVF_CLASS_PULL, MIB);
    passes.request.instance = behind.request.instance = &other;
    kvf_admission_submit(&admission, &holds.request);
    kvf_admission_submit(&admission, &large.request);
    kvf_admission_submit(&admission, &small.request); /* fits, but is of the same instance */
    kvf_admission_submit(&admission, &passes.request);
    kvf_admission_submit(&admission, &behind.request);
    assert_int_equal(large.admitted + small.admitted + behind.admitted, 0);
    assert_int_equal(passes.admitted, 1);
    kvf_admission_return(&admission, &passes.request, 4 * MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(behind.admitted, 1);
    assert_int_equal(large.admitted + small.admitted, 0);
    kvf_admission_return(&admission, &holds.request, 5 * MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(large.admitted + small.admitted, 2);
    kvf_admission_return(&admission, &large.request, 4 * MIB);
    kvf_admission_return(&admission, &small.request, MIB);
    kvf_admission_return(&admission, &behind.request, MIB);
    assert_int_equal(admission.query.used_bytes + other.used_bytes + instance.used_bytes, 0);
}

static void can_ever_fit__each_bound__is_looked_at(void **state)
{
    (void)state;
    struct asker asker = asks(KVF_CLASS_PULL, 10 * MIB);
    assert_true(kvf_admission_can_ever_fit(&admission, &asker.request));
    asker.request.bytes++;
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
    asker.request.bytes = 9 * MIB;
    instance.limit_bytes = 8 * MIB;
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
    instance.limit_bytes = 12 * MIB;
    admission.query.limit_bytes = 8 * MIB;
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(submit__waiting__is_served_in_order_when_bytes_return,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(submit__a_full_class__does_not_hold_up_another, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(submit__no_memory_now__takes_nothing_and_is_tried_again,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            retry__try_in_vain_frees_what_it_had_taken__is_not_repeated_for_that, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(
            submit__instance_at_its_own_limit__lets_others_pass_but_not_its_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(can_ever_fit__each_bound__is_looked_at, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("server/admission", tests, NULL, NULL);
}
