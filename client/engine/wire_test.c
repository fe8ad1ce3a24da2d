#include "client/engine/wire.h"

#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct line {
    int here;
    int there;
    uint8_t buffer[KVF_WIRE_MAX_BYTES + 16];
    size_t length;
    int fds[KVF_WIRE_MAX_FDS];
    size_t fd_count;
};

static struct line line;

static int open_line(void **state)
{
    (void)state;
    int pair[2];
    memset(&line, 0, sizeof(line));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    line.here = pair[0];
    line.there = pair[1];
    return 0;
}

static int close_line(void **state)
{
    (void)state;
    (void)close(line.here);
    (void)close(line.there);
    return 0;
}

static struct kvf_status receive(size_t room)
{
    return kvf_wire_receive(line.there, line.buffer, &line.length, line.fds, room, &line.fd_count);
}

static int lowest_free_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    return fd;
}

static void wire_send__shortest_and_longest__arrive_whole(void **state)
{
    (void)state;
    uint8_t *longest = malloc(KVF_WIRE_MAX_BYTES);
    memset(longest, 0x5a, KVF_WIRE_MAX_BYTES);
    assert_int_equal(kvf_wire_send(line.here, "x", 1, NULL, 0).code, KVF_OK);
    assert_int_equal(kvf_wire_send(line.here, longest, KVF_WIRE_MAX_BYTES, NULL, 0).code, KVF_OK);
    assert_int_equal(receive(0).code, KVF_OK);
    assert_int_equal(line.length, 1);
    assert_int_equal(line.buffer[0], 'x');
    assert_int_equal(receive(0).code, KVF_OK);
    assert_int_equal(line.length, KVF_WIRE_MAX_BYTES);
    assert_memory_equal(line.buffer, longest, KVF_WIRE_MAX_BYTES);
    assert_int_equal(receive(0).code, KVF_BUSY);
    free(longest);
}

static void wire_send__as_many_descriptors_as_the_kernel_takes__arrive_close_on_exec(void **state)
{
    (void)state;
    int fds[KVF_WIRE_MAX_FDS];
    struct stat mine, theirs;
    for (size_t i = 0; i < KVF_WIRE_MAX_FDS; i++)
        fds[i] = line.here;
    assert_int_equal(kvf_wire_send(line.here, "x", 1, fds, KVF_WIRE_MAX_FDS).code, KVF_OK);
    assert_int_equal(receive(KVF_WIRE_MAX_FDS).code, KVF_OK);
    assert_int_equal(line.fd_count, KVF_WIRE_MAX_FDS);
    assert_int_equal(fstat(line.here, &mine), 0);
    for (size_t i = 0; i < line.fd_count; i++) {
        assert_int_equal(fstat(line.fds[i], &theirs), 0);
        assert_true(theirs.st_ino == mine.st_ino);
        assert_int_equal(fcntl(line.fds[i], F_GETFD), FD_CLOEXEC);
        assert_int_equal(close(line.fds[i]), 0);
    }
}

static void wire_receive__more_descriptors_than_room__is_protocol_and_leaves_none_open(void **state)
{
    (void)state;
    int fds[3] = {line.here, line.here, line.here};
    int lowest = lowest_free_descriptor();
    assert_int_equal(kvf_wire_send(line.here, "x", 1, fds, 3).code, KVF_OK);
    assert_int_equal(receive(2).code, KVF_PROTOCOL);
    assert_int_equal(lowest_free_descriptor(), lowest);
    assert_int_equal(kvf_wire_send(line.here, "x", 1, fds, 3).code, KVF_OK);
    assert_int_equal(receive(0).code, KVF_PROTOCOL);
    assert_int_equal(lowest_free_descriptor(), lowest);
}

static void wire_receive__no_descriptors_left_in_the_process__is_no_memory(void **state)
{
    (void)state;
    int fds[3] = {line.here, line.here, line.here};
    int lowest = lowest_free_descriptor();
    struct rlimit before, limit;
    assert_int_equal(kvf_wire_send(line.here, "x", 1, fds, 3).code, KVF_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)lowest + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct kvf_status status = receive(KVF_WIRE_MAX_FDS);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status.code, KVF_NO_MEMORY);
    assert_int_equal(status.detail, EMFILE);
    assert_int_equal(lowest_free_descriptor(), lowest);
}

static void wire_receive__longer_than_a_message_may_be__is_protocol(void **state)
{
    (void)state;
    int fd = line.here, lowest = lowest_free_descriptor();
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {.iov_base = line.buffer, .iov_len = KVF_WIRE_MAX_BYTES + 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    assert_int_equal(sendmsg(line.here, &message, 0), KVF_WIRE_MAX_BYTES + 1);
    assert_int_equal(receive(1).code, KVF_PROTOCOL);
    assert_int_equal(lowest_free_descriptor(), lowest);
}

static void wire_send__socket_full__is_busy_and_goes_on_later(void **state)
{
    (void)state;
    uint8_t bytes[4096] = {0};
    size_t sent = 0, taken = 0;
    struct kvf_status status;
    while (kvf_is_ok(status = kvf_wire_send(line.here, bytes, sizeof(bytes), NULL, 0)))
        sent++;
    assert_int_equal(status.code, KVF_BUSY);
    assert_true(sent > 0);
    while (kvf_is_ok(receive(0)))
        taken++;
    assert_int_equal(taken, sent);
    assert_int_equal(kvf_wire_send(line.here, bytes, sizeof(bytes), NULL, 0).code, KVF_OK);
}

static void wire__other_end_gone__is_unavailable_without_a_signal(void **state)
{
    (void)state;
    assert_int_equal(kvf_wire_send(line.here, "last", 4, NULL, 0).code, KVF_OK);
    assert_int_equal(close(line.here), 0);
    assert_int_equal(receive(0).code, KVF_OK);
    assert_int_equal(receive(0).code, KVF_UNAVAILABLE);
    assert_int_equal(kvf_wire_send(line.there, "x", 1, NULL, 0).code, KVF_UNAVAILABLE);
    line.here = dup(line.there);
}

static void wire_connect__paths_of_every_kind__say_what_is_wrong(void **state)
{
    (void)state;
    char directory[] = "/tmp/kvf.XXXXXX", path[64], too_long[200];
    int fd = -1;
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof(path), "%s/engine.sock", directory);
    memset(too_long, 'a', sizeof(too_long));
    too_long[sizeof(too_long) - 1] = '\0';
    assert_int_equal(kvf_wire_connect(too_long, &fd).code, KVF_INVALID);
    assert_int_equal(kvf_wire_connect("", &fd).code, KVF_INVALID);
    assert_int_equal(kvf_wire_connect(path, &fd).code, KVF_UNAVAILABLE);

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(kvf_wire_connect(path, &fd).code, KVF_UNAVAILABLE);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(fd, -1);
    assert_int_equal(kvf_wire_connect(path, &fd).code, KVF_OK);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    /* The backlog is full now. */
    int second = -1;
    struct kvf_status status = kvf_wire_connect(path, &second);
    if (kvf_is_ok(status)) {
        (void)close(second);
        status = kvf_wire_connect(path, &second);
    }
    assert_int_equal(status.code, KVF_UNAVAILABLE);
    assert_int_equal(status.detail, EAGAIN);
    (void)close(fd);
    (void)close(listener);

    /* Somebody else's socket. */
    assert_int_equal(unlink(path), 0);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(kvf_wire_connect(path, &fd).code, KVF_UNAVAILABLE);
    (void)close(listener);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

#define ON_LINE(test) cmocka_unit_test_setup_teardown(test, open_line, close_line)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_LINE(wire_send__shortest_and_longest__arrive_whole),
        ON_LINE(wire_send__as_many_descriptors_as_the_kernel_takes__arrive_close_on_exec),
        ON_LINE(wire_receive__more_descriptors_than_room__is_protocol_and_leaves_none_open),
        ON_LINE(wire_receive__no_descriptors_left_in_the_process__is_no_memory),
        ON_LINE(wire_receive__longer_than_a_message_may_be__is_protocol),
        ON_LINE(wire_send__socket_full__is_busy_and_goes_on_later),
        ON_LINE(wire__other_end_gone__is_unavailable_without_a_signal),
        cmocka_unit_test(wire_connect__paths_of_every_kind__say_what_is_wrong),
    };
    return cmocka_run_group_tests_name("client/engine/wire", tests, NULL, NULL);
}
