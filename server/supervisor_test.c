#include "server/supervisor.h"

#include "base/test.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A supervisor that listens at this name. */
static int listen_at(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(name);
    assert_true(length < sizeof(address.sun_path));
    memcpy(address.sun_path, name, length);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
                     0);
    assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
    return fd;
}

static void hears(int fd, const char *wanted)
{
    char got[1024];
    ssize_t length = recv(fd, got, sizeof(got) - 1, 0);
    assert_true(length > 0);
    got[length] = '\0';
    assert_string_equal(got, wanted);
}

static void ready__at_a_path__is_heard(void **state)
{
    char name[64];
    (void)state;
    (void)snprintf(name, sizeof(name), "/tmp/kvferry-notify.%d", getpid());
    (void)unlink(name);
    int fd = listen_at(name);
    assert_true(kvf_supervisor_ready("node a"));
    hears(fd, "READY=1\nSTATUS=node a\n");
    (void)close(fd);
    (void)unlink(name);
}

static void stopping__at_an_abstract_name__says_how_long_it_may_take(void **state)
{
    char name[64];
    (void)state;
    (void)snprintf(name, sizeof(name), "@kvferry-notify.%d", getpid());
    int fd = listen_at(name);
    assert_true(kvf_supervisor_stopping("SIGTERM", 45));
    hears(fd, "STOPPING=1\nSTATUS=draining: SIGTERM\nEXTEND_TIMEOUT_USEC=45000000\n");
    (void)close(fd);
}

static void ready__with_a_newline_in_its_status__is_still_two_lines(void **state)
{
    char name[64];
    (void)state;
    (void)snprintf(name, sizeof(name), "@kvferry-notify2.%d", getpid());
    int fd = listen_at(name);
    assert_true(kvf_supervisor_ready("a\nMAINPID=1"));
    hears(fd, "READY=1\nSTATUS=a?MAINPID=1\n");
    (void)close(fd);
}

static void ready__without_a_supervisor_that_listens__says_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {
        "", "/", "@", "relative", "vsock:2:1", "/tmp/kvferry-nobody-listens-here"};
    char longest[300];
    for (size_t at = 0; at < sizeof(names) / sizeof(names[0]); at++) {
        assert_int_equal(setenv("NOTIFY_SOCKET", names[at], 1), 0);
        assert_false(kvf_supervisor_ready("x"));
    }
    memset(longest, 'x', sizeof(longest) - 1);
    longest[0] = '/';
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(setenv("NOTIFY_SOCKET", longest, 1), 0);
    assert_false(kvf_supervisor_ready("x"));
    assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
    assert_false(kvf_supervisor_stopping("x", 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready__at_a_path__is_heard),
        cmocka_unit_test(stopping__at_an_abstract_name__says_how_long_it_may_take),
        cmocka_unit_test(ready__with_a_newline_in_its_status__is_still_two_lines),
        cmocka_unit_test(ready__without_a_supervisor_that_listens__says_nothing),
    };
    return cmocka_run_group_tests_name("supervisor", tests, NULL, NULL);
}
