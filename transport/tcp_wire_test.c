#include "transport/tcp_wire.h"

#include "base/test.h"

#include <string.h>
#include <sys/random.h>

static const struct tcp_header sample = {
    .read = 0x1122334455667788, .offset = 0x99aabbccddeeff00, .block = 0xdeadbeef, .length = 4096};

static void header__written_then_read__same(void **state)
{
    (void)state;
    uint8_t bytes[TCP_HEADER_BYTES];
    struct tcp_header back;
    tcp_header_write(&sample, bytes);
    assert_true(tcp_header_read(bytes, &back));
    assert_int_equal(back.read, sample.read);
    assert_int_equal(back.offset, sample.offset);
    assert_int_equal(back.block, sample.block);
    assert_int_equal(back.length, sample.length);
}

/* Peers of other builds read these bytes: a change here needs another TCP_VERSION. */
static void header__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t should[TCP_HEADER_BYTES] = {
        'f',  'r',  'a',  'm',  0,    0,    0,    0,    0x88, 0x77, 0x66,
        0x55, 0x44, 0x33, 0x22, 0x11, 0xef, 0xbe, 0xad, 0xde, 0x00, 0x10,
        0x00, 0x00, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99};
    uint8_t bytes[TCP_HEADER_BYTES];
    tcp_header_write(&sample, bytes);
    assert_memory_equal(bytes, should, sizeof(should));
}

static void header__length_that_no_frame_has__refused(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, (1u << 20) + 1, UINT32_MAX};
    for (unsigned i = 0; i < 3; i++) {
        struct tcp_header header = sample, back;
        uint8_t bytes[TCP_HEADER_BYTES];
        header.length = lengths[i];
        tcp_header_write(&header, bytes);
        assert_false(tcp_header_read(bytes, &back));
    }
}

static void header__any_bit_of_its_mark_wrong__refused(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint8_t bytes[TCP_HEADER_BYTES];
        struct tcp_header back;
        tcp_header_write(&sample, bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(tcp_header_read(bytes, &back));
    }
}

static void greeting__any_bit_wrong__not_ours_or_not_the_nonce(void **state)
{
    (void)state;
    struct kvf_nonce nonce;
    uint8_t bytes[TCP_GREETING_BYTES];
    for (unsigned i = 0; i < KVF_NONCE_BYTES; i++)
        nonce.bytes[i] = (uint8_t)(i * 37 + 11);
    tcp_greeting_write(&nonce, bytes);
    assert_true(tcp_greeting_is_ours(bytes) && tcp_greeting_has_nonce(bytes, &nonce));
    for (unsigned bit = 0; bit < 8 * TCP_GREETING_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(tcp_greeting_is_ours(bytes), bit >= 128);
        assert_int_equal(tcp_greeting_has_nonce(bytes, &nonce), bit < 128);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void nonce__a_million_guesses__none_is_it(void **state)
{
    (void)state;
    struct kvf_nonce nonce, guess;
    uint8_t bytes[TCP_GREETING_BYTES];
    uint64_t random = 88172645463325252u; /* xorshift */
    assert_int_equal(getrandom(&nonce, sizeof(nonce), 0), sizeof(nonce));
    for (unsigned i = 0; i < 1000000; i++) {
        for (unsigned word = 0; word < KVF_NONCE_BYTES / 8; word++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            memcpy(guess.bytes + 8 * word, &random, 8);
        }
        tcp_greeting_write(&guess, bytes);
        assert_false(tcp_greeting_has_nonce(bytes, &nonce));
    }
    tcp_greeting_write(&nonce, bytes);
    assert_true(tcp_greeting_has_nonce(bytes, &nonce));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header__written_then_read__same),
        cmocka_unit_test(header__bytes_on_the_wire__as_documented),
        cmocka_unit_test(header__length_that_no_frame_has__refused),
        cmocka_unit_test(header__any_bit_of_its_mark_wrong__refused),
        cmocka_unit_test(greeting__any_bit_wrong__not_ours_or_not_the_nonce),
        cmocka_unit_test(nonce__a_million_guesses__none_is_it),
    };
    return cmocka_run_group_tests_name("tcp_wire", tests, NULL, NULL);
}
