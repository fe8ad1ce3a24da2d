#include "transport/ucx_wire.h"

#include "base/test.h"

#include <string.h>
#include <sys/random.h>

/* Peers of other builds read these bytes: a change here needs another version. */
static void header__first_bytes__its_mark(void **state)
{
    (void)state;
    uint8_t bytes[LANE_HEADER_BYTES];
    lane_header_write(UCX_MARK, &(struct lane_header){.length = 1}, bytes);
    assert_memory_equal(bytes, "piec", 4);
}

static void hello__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t head[16] = {'k', 'v', 'f', 'u', 'c', 'x', ' ', '\n', 1};
    static const uint8_t tail[] = {7, 0, 0, 0, 'a', 'd', 'd', 'r', 'e', 's', 's'};
    struct kvf_nonce nonce;
    uint8_t bytes[UCX_HELLO_MAX_BYTES];
    memset(&nonce, 0x5c, sizeof(nonce));
    assert_int_equal(ucx_hello_write(&nonce, "address", 7, bytes),
                     LANE_GREETING_BYTES + sizeof(tail));
    assert_memory_equal(bytes, head, sizeof(head));
    assert_memory_equal(bytes + sizeof(head), &nonce, sizeof(nonce));
    assert_memory_equal(bytes + LANE_GREETING_BYTES, tail, sizeof(tail));
}

static void hello__written_then_read__same(void **state)
{
    (void)state;
    struct kvf_nonce nonce, other;
    uint8_t address[UCX_ADDRESS_MAX_BYTES], bytes[UCX_HELLO_MAX_BYTES];
    assert_int_equal(getrandom(&nonce, sizeof(nonce), 0), sizeof(nonce));
    assert_int_equal(getrandom(address, 100, 0), 100);
    assert_int_equal(ucx_hello_write(&nonce, address, 100, bytes), 152);
    other = nonce;
    other.bytes[31] ^= 0x80;
    assert_true(lane_greeting_is(&ucx_greeting, bytes));
    assert_true(lane_greeting_has_nonce(bytes, &nonce));
    assert_false(lane_greeting_has_nonce(bytes, &other));
    assert_int_equal(ucx_hello_address_bytes(bytes), 100);
    assert_memory_equal(bytes + UCX_HELLO_HEAD_BYTES, address, 100);
    assert_int_equal(ucx_hello_write(&nonce, address, UCX_ADDRESS_MAX_BYTES, bytes),
                     UCX_HELLO_MAX_BYTES);
}

static void hello__of_another_magic_or_version__not_ours(void **state)
{
    (void)state;
    struct kvf_nonce nonce = {{0}};
    uint8_t bytes[UCX_HELLO_MAX_BYTES];
    for (unsigned at = 0; at < 16; at++) {
        (void)ucx_hello_write(&nonce, "x", 1, bytes);
        bytes[at] ^= 1;
        assert_false(lane_greeting_is(&ucx_greeting, bytes));
    }
}

static void hello__address_that_is_none_or_too_long__refused(void **state)
{
    (void)state;
    static const uint8_t lengths[][4] = {
        {0, 0, 0, 0}, {0x01, 0x10, 0, 0}, {0, 0, 0, 0x80}, {0xff, 0xff, 0xff, 0xff}};
    struct kvf_nonce nonce = {{0}};
    uint8_t bytes[UCX_HELLO_MAX_BYTES];
    (void)ucx_hello_write(&nonce, "x", 1, bytes);
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memcpy(bytes + LANE_GREETING_BYTES, lengths[i], 4);
        assert_int_equal(ucx_hello_address_bytes(bytes), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header__first_bytes__its_mark),
        cmocka_unit_test(hello__bytes_on_the_wire__as_documented),
        cmocka_unit_test(hello__written_then_read__same),
        cmocka_unit_test(hello__of_another_magic_or_version__not_ours),
        cmocka_unit_test(hello__address_that_is_none_or_too_long__refused),
    };
    return cmocka_run_group_tests_name("ucx_wire", tests, NULL, NULL);
}
