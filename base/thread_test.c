#include "base/thread.h"

#include "base/test.h"

#include <string.h>

static sigset_t seen;

static void *look(void *context)
{
    char name[16] = "";
    (void)pthread_sigmask(SIG_SETMASK, NULL, &seen);
    while (strcmp(name, context) != 0) /* its starter gives the name a moment later */
        (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    return NULL;
}

static void start__thread__is_deaf_and_named(void **state)
{
    (void)state;
    pthread_t thread;
    sigset_t mine;
    char name[] = "a-name-too-long";
    assert_int_equal(kvf_thread_start(&thread, "a-name-too-long-for-it", look, name), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(sigismember(&seen, SIGTERM) && sigismember(&seen, SIGINT));
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mine);
    assert_false(sigismember(&mine, SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start__thread__is_deaf_and_named),
    };
    return cmocka_run_group_tests_name("base/thread", tests, NULL, NULL);
}
