#include "transport/tcp_wire.h"

#include "base/test.h"

/* Peers of other builds read these bytes: a change here needs another version. */
static void header__first_bytes__its_mark(void **state)
{
    (void)state;
    uint8_t bytes[LANE_HEADER_BYTES];
    lane_header_write(TCP_MARK, &(struct lane_header){.length = 1}, bytes);
    assert_memory_equal(bytes, "fram", 4);
}

static void greeting__first_bytes__its_magic_and_version(void **state)
{
    (void)state;
    static const uint8_t head[16] = {'k', 'v', 'f', 'l', 'a', 'n', 'e', '\n', 1};
    uint8_t bytes[LANE_GREETING_BYTES];
    lane_greeting_write(&tcp_greeting, &(struct kvf_nonce){{0}}, bytes);
    assert_memory_equal(bytes, head, sizeof(head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header__first_bytes__its_mark),
        cmocka_unit_test(greeting__first_bytes__its_magic_and_version),
    };
    return cmocka_run_group_tests_name("tcp_wire", tests, NULL, NULL);
}
