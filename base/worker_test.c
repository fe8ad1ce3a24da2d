#include "base/list.h"
#include "base/test.h"
#include "base/worker.h"

#include <pthread.h>
#include <time.h>

enum { JOBS = 2000 };

struct number {
    struct kvf_job job;
    int value, rounds;
    pthread_t worked_by;
};

static struct kvf_loop *loop;
static struct kvf_worker *worker;
static int worked, seen, wanted;

static int set_up(void **state)
{
    (void)state;
    worked = seen = 0;
    if (!kvf_is_ok(kvf_loop_create(&loop)))
        return -1;
    return kvf_is_ok(kvf_worker_create(loop, &worker)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_worker_destroy(worker);
    kvf_loop_destroy(loop);
    return 0;
}

static void work(struct kvf_job *job)
{
    struct number *number = kvf_container(job, struct number, job);
    number->value +=
        worked++; /* only the worker touches `worked`: its order is the order of the jobs */
    number->worked_by = pthread_self();
}

static void done_in_order(struct kvf_job *job)
{
    struct number *number = kvf_container(job, struct number, job);
    assert_int_equal(number->value, 1000 + seen);
    assert_false(pthread_equal(number->worked_by, pthread_self()));
    if (++seen == wanted)
        kvf_loop_stop(loop);
}

static void start__many_jobs__worked_and_done_in_their_order(void **state)
{
    (void)state;
    static struct number numbers[JOBS];
    wanted = JOBS;
    for (int i = 0; i < JOBS; i++) {
        numbers[i] = (struct number){.job = {.work = work, .done = done_in_order}, .value = 1000};
        kvf_worker_start(worker, &numbers[i].job);
    }
    kvf_loop_run(loop);
    assert_int_equal(seen, JOBS);
}

static void done_again(struct kvf_job *job)
{
    struct number *number = kvf_container(job, struct number, job);
    if (++number->rounds == 100)
        kvf_loop_stop(loop);
    else
        kvf_worker_start(worker, job);
}

static void start__from_its_own_done__runs_again(void **state)
{
    (void)state;
    struct number number = {.job = {.work = work, .done = done_again}};
    kvf_worker_start(worker, &number.job);
    kvf_loop_run(loop);
    assert_int_equal(number.rounds, 100);
    assert_int_equal(number.value, 99 * 100 / 2);
}

static void done_and_destroy(struct kvf_job *job)
{
    (void)job;
    kvf_worker_destroy(worker);
    worker = NULL;
    kvf_loop_stop(loop);
}

static void destroy__inside_the_last_done__joins(void **state)
{
    (void)state;
    struct number number = {.job = {.work = work, .done = done_and_destroy}};
    kvf_worker_start(worker, &number.job);
    kvf_loop_run(loop);
    assert_null(worker);
}

static void destroy__idle_worker__used_no_cpu(void **state)
{
    (void)state;
    struct timespec before, after, pause = {.tv_nsec = 100 * 1000 * 1000};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    long used_ns = (after.tv_sec - before.tv_sec) * 1000000000 + (after.tv_nsec - before.tv_nsec);
    assert_true(used_ns < 50 * 1000 * 1000); /* a spinning thread would have used all of it */
}

static void create_destroy__many_times__clean(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct kvf_worker *other = NULL;
        assert_true(kvf_is_ok(kvf_worker_create(loop, &other)));
        kvf_worker_destroy(other);
    }
    kvf_worker_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(start__many_jobs__worked_and_done_in_their_order, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(start__from_its_own_done__runs_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(destroy__inside_the_last_done__joins, set_up, tear_down),
        cmocka_unit_test_setup_teardown(destroy__idle_worker__used_no_cpu, set_up, tear_down),
        cmocka_unit_test_setup_teardown(create_destroy__many_times__clean, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
