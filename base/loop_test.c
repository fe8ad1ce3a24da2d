#include "base/clock.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

struct world {
    struct kvf_loop *loop;
    int seen;
};

static struct world world;

static int set_up(void **state)
{
    (void)state;
    world.seen = 0;
    return kvf_is_ok(kvf_loop_create(&world.loop)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_loop_destroy(world.loop);
    return 0;
}

enum { THREADS = 4, POSTS = 2000 };

struct letter {
    struct kvf_post post;
    int thread, number;
};

static int last_seen[THREADS];

static void read_letter(struct kvf_post *post)
{
    struct letter *letter = kvf_container(post, struct letter, post);
    assert_int_equal(letter->number, last_seen[letter->thread]);
    last_seen[letter->thread]++;
    if (++world.seen == THREADS * POSTS)
        kvf_loop_stop(world.loop);
}

static void *write_letters(void *argument)
{
    struct letter *letters = argument;
    for (int i = 0; i < POSTS; i++)
        kvf_loop_post(world.loop, &letters[i].post);
    return NULL;
}

static void post__many_threads__each_in_order_none_lost(void **state)
{
    (void)state;
    static struct letter letters[THREADS][POSTS];
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < POSTS; i++)
            letters[t][i] = (struct letter){.post.run = read_letter, .thread = t, .number = i};
        assert_int_equal(pthread_create(&threads[t], NULL, write_letters, letters[t]), 0);
    }
    kvf_loop_run(world.loop);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(world.seen, THREADS * POSTS);
}

struct tick {
    struct kvf_timer timer;
    uint64_t due;
};

static uint64_t last_due;

static void tick(struct kvf_timer *timer)
{
    struct tick *t = kvf_container(timer, struct tick, timer);
    assert_true(kvf_clock_now_ns() >= t->due);
    assert_true(t->due >= last_due);
    last_due = t->due;
    world.seen++;
}

static void timer__many_started_moved_stopped__fire_in_order(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    static struct tick ticks[COUNT];
    uint64_t start = kvf_clock_now_ns();
    srand(7);
    last_due = 0;
    for (int i = 0; i < COUNT; i++) {
        ticks[i] = (struct tick){.timer.fire = tick};
        ticks[i].due = start + (uint64_t)(rand() % 20) * KVF_NS_PER_MS;
        kvf_timer_start(world.loop, &ticks[i].timer, ticks[i].due + KVF_NS_PER_S);
        kvf_timer_start(world.loop, &ticks[i].timer, ticks[i].due);
    }
    for (int i = 0; i < COUNT; i += 3) {
        kvf_timer_stop(world.loop, &ticks[i].timer);
        kvf_timer_stop(world.loop, &ticks[i].timer);
    }
    while (world.seen < COUNT - COUNT / 3)
        kvf_loop_run_once(world.loop, 100);
    kvf_loop_run_once(world.loop, 30);
    assert_int_equal(world.seen, COUNT - COUNT / 3);
}

static struct kvf_watch first, second;

static void stop_both(struct kvf_watch *watch, uint32_t events)
{
    (void)watch;
    assert_true(events & EPOLLIN);
    world.seen++;
    kvf_watch_stop(world.loop, &first);
    kvf_watch_stop(world.loop, &second);
}

static void watch__stopped_by_another_in_the_same_round__is_not_called(void **state)
{
    (void)state;
    int a[2], b[2];
    assert_int_equal(pipe(a), 0);
    assert_int_equal(pipe(b), 0);
    first = (struct kvf_watch){.fd = a[0], .events = EPOLLIN, .ready = stop_both};
    second = (struct kvf_watch){.fd = b[0], .events = EPOLLIN, .ready = stop_both};
    assert_true(kvf_is_ok(kvf_watch_start(world.loop, &first)));
    assert_true(kvf_is_ok(kvf_watch_start(world.loop, &second)));
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_int_equal(write(b[1], "x", 1), 1);
    kvf_loop_run_once(world.loop, 100);
    assert_int_equal(world.seen, 1);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(post__many_threads__each_in_order_none_lost, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(timer__many_started_moved_stopped__fire_in_order, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(watch__stopped_by_another_in_the_same_round__is_not_called,
                                        set_up, tear_down),
    };
    return cmocka_run_group_tests_name("base/loop", tests, NULL, NULL);
}
