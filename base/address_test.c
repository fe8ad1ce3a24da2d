#include "base/address.h"

#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void parse__good_text__host_and_port(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        unsigned port;
        bool is_ipv6, is_numeric;
    } good[] = {
        {"10.0.0.2:9470", "10.0.0.2", 9470, false, true},
        {"0.0.0.0:0", "0.0.0.0", 0, false, true},
        {"[fd00::1]:65535", "fd00::1", 65535, true, true},
        {"[::]:80", "::", 80, true, true},
        {"[fe80::1%eth0]:80", "fe80::1%eth0", 80, true, true},
        {"name:00080", "name", 80, false, false},
        {"node-1.rack_2.example.:1", "node-1.rack_2.example.", 1, false, false},
        {"1a:1", "1a", 1, false, false},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct kvf_address address;
        assert_true(kvf_address_parse(good[i].text, &address));
        assert_string_equal(address.host, good[i].host);
        assert_int_equal(address.port, good[i].port);
        assert_int_equal(address.is_ipv6, good[i].is_ipv6);
        assert_int_equal(kvf_address_is_numeric(&address), good[i].is_numeric);
    }
}

static void parse__anything_else__refused_and_untouched(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      ":",
                                      ":80",
                                      "host",
                                      "host:",
                                      "host:port",
                                      "host:65536",
                                      "host:-1",
                                      "host:+1",
                                      "host: 1",
                                      "host:1 ",
                                      "host:1x",
                                      "host:0x50",
                                      "host:",
                                      "host:000000",
                                      "host:99999999999999999999",
                                      "::1:80",
                                      "fd00::1:80",
                                      "[]:80",
                                      "[::1",
                                      "[::1]",
                                      "[::1]80",
                                      "[::1]x:80",
                                      "[name]:80",
                                      "[1.2.3.4]:80",
                                      "[fe80::1%]:80",
                                      "[fe80::1%a/b]:80",
                                      "[%eth0]:80",
                                      "10.1:80",
                                      "1.2.3.4.5:80",
                                      "1.2.3.256:80",
                                      ".:80",
                                      "-a:80",
                                      ".a:80",
                                      "a b:80",
                                      "a/b:80",
                                      "a@b:80",
                                      "a\n:80",
                                      "h:80,h:81",
                                      "unix:/x",
                                      "dns:///h:80",
                                      "ipv4:1.2.3.4:5",
                                      "\xc3\xa9:80"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kvf_address address = {.port = 7};
        if (kvf_address_parse(bad[i], &address))
            fail_msg("\"%s\" was taken", bad[i]);
        assert_int_equal(address.port, 7);
    }
}

static void parse__longest_host__fits_and_one_more_does_not(void **state)
{
    (void)state;
    char text[300];
    struct kvf_address address;
    for (size_t bytes = 255; bytes <= 256; bytes++) {
        memset(text, 'a', bytes);
        strcpy(text + bytes, ":65535");
        assert_int_equal(kvf_address_parse(text, &address), bytes == 255);
    }
    strcpy(text, "[fe80::1%");
    for (size_t bytes = 255; bytes <= 256; bytes++) {
        memset(text + 9, 'a', bytes - 8);
        strcpy(text + 1 + bytes, "]:65535");
        assert_int_equal(kvf_address_parse(text, &address), bytes == 255);
    }
}

static void format__what_was_parsed__is_the_same_text(void **state)
{
    (void)state;
    char longest[300] = "[fe80::1%", text[KVF_ADDRESS_TEXT_BYTES];
    memset(longest + 9, 'a', 255 - 8);
    strcpy(longest + 256, "]:65535");
    assert_int_equal(strlen(longest) + 1, KVF_ADDRESS_TEXT_BYTES);
    const char *const texts[] = {"10.0.0.2:9470", "[fd00::1]:0", "name:65535", longest};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct kvf_address address;
        assert_true(kvf_address_parse(texts[i], &address));
        kvf_address_format(&address, text);
        assert_string_equal(text, texts[i]);
    }
}

static void is_loopback__what_is_known_to_be__and_nothing_else(void **state)
{
    (void)state;
    static const char *const yes[] = {"127.0.0.1:1", "127.255.0.9:1", "[::1]:1", "localhost:1",
                                      "LocalHost:1"};
    static const char *const no[] = {"128.0.0.1:1", "0.0.0.0:1",    "10.0.0.1:1",
                                     "[::]:1",      "[fd00::1]:1",  "[::ffff:127.0.0.1]:1",
                                     "name:1",      "localhost.:1", "127.a:1"};
    struct kvf_address address;
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        assert_true(kvf_address_parse(yes[i], &address));
        assert_true(kvf_address_is_loopback(&address));
    }
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++) {
        assert_true(kvf_address_parse(no[i], &address));
        assert_false(kvf_address_is_loopback(&address));
    }
}

/* Listens on a number with port 0. -1 when the host has no such address. */
static int listen_on(const char *text)
{
    struct kvf_address address;
    struct addrinfo *found = NULL;
    assert_true(kvf_address_parse(text, &address));
    assert_int_equal(kvf_address_resolve(&address, true, &found), 0);
    int fd = kvf_address_listen(found->ai_addr, found->ai_addrlen, 1);
    freeaddrinfo(found);
    return fd;
}

static void listen__port_0__can_be_connected_at_its_port(void **state)
{
    (void)state;
    static const char *const texts[] = {"127.0.0.1:0", "[::1]:0"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct kvf_address address;
        struct addrinfo *found = NULL;
        int listener = listen_on(texts[i]);
        if (listener < 0 && i == 1)
            continue; /* a host without IPv6 */
        assert_true(listener >= 0);
        assert_true(fcntl(listener, F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(listener, F_GETFD) & FD_CLOEXEC);
        assert_true(kvf_address_parse(texts[i], &address));
        int port = kvf_address_bound_port(listener);
        assert_in_range(port, 1, 65535);
        address.port = (unsigned)port;
        assert_int_equal(kvf_address_resolve(&address, false, &found), 0);
        int fd = socket(found->ai_family, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, found->ai_addr, found->ai_addrlen), 0);
        errno = 0;
        assert_int_equal(kvf_address_listen(found->ai_addr, found->ai_addrlen, 1), -1);
        assert_int_equal(errno, EADDRINUSE);
        freeaddrinfo(found);
        (void)close(fd);
        (void)close(listener);
    }
}

static void listen__no_address_of_this_host__says_so(void **state)
{
    (void)state;
    errno = 0;
    assert_int_equal(listen_on("192.0.2.1:0"), -1);
    assert_int_equal(errno, EADDRNOTAVAIL);
}

static void bound_port__no_tcp_socket__none(void **state)
{
    (void)state;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(kvf_address_bound_port(fd), -1);
    (void)close(fd);
    assert_int_equal(kvf_address_bound_port(-1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse__good_text__host_and_port),
        cmocka_unit_test(parse__anything_else__refused_and_untouched),
        cmocka_unit_test(parse__longest_host__fits_and_one_more_does_not),
        cmocka_unit_test(format__what_was_parsed__is_the_same_text),
        cmocka_unit_test(is_loopback__what_is_known_to_be__and_nothing_else),
        cmocka_unit_test(listen__port_0__can_be_connected_at_its_port),
        cmocka_unit_test(listen__no_address_of_this_host__says_so),
        cmocka_unit_test(bound_port__no_tcp_socket__none),
    };
    return cmocka_run_group_tests_name("base/address", tests, NULL, NULL);
}
