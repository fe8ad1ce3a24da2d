#include "client/pull/address.h"

#include "base/test.h"

#include <string.h>

static void expect(const char *advertised, const char *peer, const char *wanted)
{
    char address[ADDRESS_MAX_BYTES] = "untouched";
    assert_true(address_of_lane(advertised, peer, address));
    assert_string_equal(address, wanted);
}

static void refuse(const char *advertised, const char *peer)
{
    char address[ADDRESS_MAX_BYTES];
    assert_false(address_of_lane(advertised, peer, address));
}

static void address_of_lane__own_host__is_taken(void **state)
{
    (void)state;
    expect("10.0.0.9:7000", "ipv4:10.0.0.2:9470", "10.0.0.9:7000");
    expect("[fd00::9]:7000", "ipv4:10.0.0.2:9470", "[fd00::9]:7000");
}

static void address_of_lane__empty_host__is_the_dialled_one(void **state)
{
    (void)state;
    expect(":7000", "ipv4:10.0.0.2:9470", "10.0.0.2:7000");
    expect(":7000", "ipv6:[fd00::1]:9470", "[fd00::1]:7000");
    expect(":7000", "ipv6:%5Bfd00::1%5D:9470", "[fd00::1]:7000");
    expect(":7000", "ipv6:%5Bfe80::1%25eth0%5D:9470", "[fe80::1%eth0]:7000");
    expect(":7000", "unix:/tmp/x", "127.0.0.1:7000");
}

static void address_of_lane__anything_else__is_refused(void **state)
{
    (void)state;
    const char *bad[] = {"",
                         "7000",
                         "name:7000",
                         "10.0.0.9:",
                         "10.0.0.9:0",
                         "10.0.0.9:65536",
                         "10.0.0.9:7000x",
                         "10.0.0.9: 7000",
                         "fd00::9:7000",
                         "[fd00::9]7000",
                         "[]:7000x",
                         "10.0.0.9\n:7000"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse(bad[i], "ipv4:10.0.0.2:9470");
    refuse(":7000", "");
    refuse(":7000", "dns:name:9470");
    refuse(":7000", "ipv4:");
    refuse(":7000", "ipv6:%");
    char longest[400];
    memset(longest, '1', sizeof(longest));
    memcpy(longest + sizeof(longest) - 6, ":7000", 6);
    refuse(longest, "ipv4:10.0.0.2:9470");
    refuse("127.0.0.1:11111111111111111111111111111111111111", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_of_lane__own_host__is_taken),
        cmocka_unit_test(address_of_lane__empty_host__is_the_dialled_one),
        cmocka_unit_test(address_of_lane__anything_else__is_refused),
    };
    return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
