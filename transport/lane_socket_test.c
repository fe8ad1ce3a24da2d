#include "transport/lane_socket.h"

#include "base/test.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

static struct kvf_loop *loop;
static struct lane_addresses addresses;
static int refusing, listening; /* at addresses 0 and 1 */

static bool has_answer;

static void note_answer(struct kvf_watch *watch, uint32_t events)
{
    (void)watch, (void)events;
    has_answer = true;
}

static int add_address(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    memcpy(&addresses.at[addresses.count], &address, bytes);
    addresses.bytes[addresses.count++] = bytes;
    return fd;
}

static int set_up(void **state)
{
    (void)state;
    addresses = (struct lane_addresses){0};
    refusing = add_address();
    listening = add_address();
    assert_int_equal(listen(listening, 1), 0);
    return kvf_is_ok(kvf_loop_create(&loop)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_loop_destroy(loop);
    (void)close(refusing);
    (void)close(listening);
    return 0;
}

static int await_answer(struct kvf_watch *watch)
{
    for (has_answer = false; !has_answer;)
        kvf_loop_run_once(loop, 100);
    return lane_socket_answer(watch);
}

static void connect__first_address_refuses__the_second_is_tried(void **state)
{
    (void)state;
    struct kvf_watch watch = {.fd = -1, .ready = note_answer};
    assert_int_equal(lane_socket_connect(loop, &watch, &addresses, 0), 0);
    int error = await_answer(&watch);
    assert_int_equal(error, ECONNREFUSED);
    assert_int_equal(lane_socket_connect(loop, &watch, &addresses, error), 0);
    assert_int_equal(await_answer(&watch), 0);
    int fd = accept(listening, NULL, NULL);
    assert_true(fd >= 0);
    lane_socket_close(loop, &watch);
    assert_int_equal(watch.fd, -1);
    lane_socket_close(loop, &watch);
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    (void)close(fd);
}

static void connect__no_address_left__why_it_was_and_no_socket(void **state)
{
    (void)state;
    struct kvf_watch watch = {.fd = -1, .ready = note_answer};
    addresses.count = 1;
    assert_int_equal(lane_socket_connect(loop, &watch, &addresses, 0), 0);
    int error = await_answer(&watch);
    assert_int_equal(lane_socket_connect(loop, &watch, &addresses, error), ECONNREFUSED);
    assert_int_equal(watch.fd, -1);
}

/* Fails at once, with no answer to wait for. */
static void connect__address_of_no_family__the_next_is_tried(void **state)
{
    (void)state;
    struct kvf_watch watch = {.fd = -1, .ready = note_answer};
    addresses.at[0].ss_family = AF_MAX;
    assert_int_equal(lane_socket_connect(loop, &watch, &addresses, 0), 0);
    assert_int_equal(await_answer(&watch), 0);
    lane_socket_close(loop, &watch);
    addresses.next = 0;
    addresses.count = 1;
    assert_int_equal(lane_socket_connect(loop, &watch, &addresses, 0), EAFNOSUPPORT);
    assert_int_equal(watch.fd, -1);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(connect__first_address_refuses__the_second_is_tried),
        TEST(connect__no_address_left__why_it_was_and_no_socket),
        TEST(connect__address_of_no_family__the_next_is_tried),
    };
    return cmocka_run_group_tests_name("lane_socket", tests, NULL, NULL);
}
