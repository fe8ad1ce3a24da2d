#include "transport/tcp_wire.h"

#include "base/test.h"

/* Peers of other builds read these bytes: a change here needs another version. */
static void header__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t should[LANE_HEADER_BYTES] = {
        'f',  'r',  'a',  'm',  0,    0,    0,    0,    0x88, 0x77, 0x66,
        0x55, 0x44, 0x33, 0x22, 0x11, 0xef, 0xbe, 0xad, 0xde, 0x00, 0x10,
        0x00, 0x00, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99};
    const struct lane_header header = {.read = 0x1122334455667788,
                                       .offset = 0x99aabbccddeeff00,
                                       .block = 0xdeadbeef,
                                       .length = 4096};
    uint8_t bytes[LANE_HEADER_BYTES];
    lane_header_write(TCP_MARK, &header, bytes);
    assert_memory_equal(bytes, should, sizeof(should));
}

static void greeting__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t should[16] = {'k', 'v', 'f', 'l', 'a', 'n', 'e', '\n', 1};
    struct kvf_nonce nonce;
    uint8_t bytes[LANE_GREETING_BYTES];
    memset(&nonce, 0x5c, sizeof(nonce));
    lane_greeting_write(&tcp_greeting, &nonce, bytes);
    assert_memory_equal(bytes, should, sizeof(should));
    assert_memory_equal(bytes + 16, &nonce, sizeof(nonce));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header__bytes_on_the_wire__as_documented),
        cmocka_unit_test(greeting__bytes_on_the_wire__as_documented),
    };
    return cmocka_run_group_tests_name("tcp_wire", tests, NULL, NULL);
}
