#include "transport/ucx_wire.h"

#include "base/test.h"

#include <string.h>
#include <sys/random.h>

static const struct ucx_header sample = {
    .read = 0x1122334455667788, .offset = 0x99aabbccddeeff00, .block = 0xdeadbeef, .length = 4096};

static void header__written_then_read__same(void **state)
{
    (void)state;
    uint8_t bytes[UCX_HEADER_BYTES];
    struct ucx_header back;
    ucx_header_write(&sample, bytes);
    assert_true(ucx_header_read(bytes, sizeof(bytes), &back));
    assert_int_equal(back.read, sample.read);
    assert_int_equal(back.offset, sample.offset);
    assert_int_equal(back.block, sample.block);
    assert_int_equal(back.length, sample.length);
}

/* Peers of other builds read these bytes: a change here needs another UCX_VERSION. */
static void header__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t should[UCX_HEADER_BYTES] = {
        'p',  'i',  'e',  'c',  0,    0,    0,    0,    0x88, 0x77, 0x66,
        0x55, 0x44, 0x33, 0x22, 0x11, 0xef, 0xbe, 0xad, 0xde, 0x00, 0x10,
        0x00, 0x00, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99};
    uint8_t bytes[UCX_HEADER_BYTES];
    ucx_header_write(&sample, bytes);
    assert_memory_equal(bytes, should, sizeof(should));
}

static void header__length_that_no_piece_has__refused(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, (1u << 20) + 1, UINT32_MAX};
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct ucx_header header = sample, back;
        uint8_t bytes[UCX_HEADER_BYTES];
        header.length = lengths[i];
        ucx_header_write(&header, bytes);
        assert_false(ucx_header_read(bytes, sizeof(bytes), &back));
    }
}

static void header__of_another_size__refused(void **state)
{
    (void)state;
    uint8_t bytes[UCX_HEADER_BYTES + 1] = {0};
    struct ucx_header back;
    ucx_header_write(&sample, bytes);
    assert_false(ucx_header_read(NULL, 0, &back));
    assert_false(ucx_header_read(bytes, UCX_HEADER_BYTES - 1, &back));
    assert_false(ucx_header_read(bytes, UCX_HEADER_BYTES + 1, &back));
}

static void header__any_bit_of_mark_or_zero_changed__refused(void **state)
{
    (void)state;
    struct ucx_header back;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint8_t bytes[UCX_HEADER_BYTES];
        ucx_header_write(&sample, bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(ucx_header_read(bytes, sizeof(bytes), &back));
    }
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
    assert_true(ucx_greeting.is_ours(bytes));
    assert_true(ucx_greeting.has_nonce(bytes, &nonce));
    assert_false(ucx_greeting.has_nonce(bytes, &other));
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
        assert_false(ucx_greeting.is_ours(bytes));
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
        cmocka_unit_test(header__written_then_read__same),
        cmocka_unit_test(header__bytes_on_the_wire__as_documented),
        cmocka_unit_test(header__length_that_no_piece_has__refused),
        cmocka_unit_test(header__of_another_size__refused),
        cmocka_unit_test(header__any_bit_of_mark_or_zero_changed__refused),
        cmocka_unit_test(hello__written_then_read__same),
        cmocka_unit_test(hello__of_another_magic_or_version__not_ours),
        cmocka_unit_test(hello__address_that_is_none_or_too_long__refused),
    };
    return cmocka_run_group_tests_name("ucx_wire", tests, NULL, NULL);
}
