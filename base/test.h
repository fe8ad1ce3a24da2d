/* What every cmocka test includes: cmocka and the headers that it forgets to include itself. */
#ifndef KVFERRY_BASE_TEST_H
#define KVFERRY_BASE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* True in a child of ours, in which an assert is about to fail: it says nothing and leaves no core. */
static inline bool test_is_doomed_child(pid_t *child)
{
    *child = fork();
    if (*child != 0)
        return false;
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGABRT, SIG_DFL);
    int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
    (void)dup2(quiet, STDERR_FILENO);
    return true;
}

static inline bool test_child_aborted(pid_t child)
{
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGABRT;
}

/* A kvf_assert fails in this statement, which is run by a child, so that the test itself goes on. */
#define assert_aborts(statement)                                                                   \
    do {                                                                                           \
        pid_t child_;                                                                              \
        if (test_is_doomed_child(&child_)) {                                                       \
            statement;                                                                             \
            _exit(0);                                                                              \
        }                                                                                          \
        assert_true(test_child_aborted(child_));                                                   \
    } while (0)

#endif
