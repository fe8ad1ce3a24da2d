#include "transport/lane_wire.h"

#include "base/test.h"

#include <string.h>
#include <sys/random.h>

#define MARK 0x01234567u

static const struct lane_greeting kind = {.magic = "greeting", .version = 3};
static const struct lane_header sample = {
    .read = 0x1122334455667788, .offset = 0x99aabbccddeeff00, .block = 0xdeadbeef, .length = 4096};

/* Peers of other builds read these bytes: a change here needs another version of whoever uses it. */
static void header__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t should[LANE_HEADER_BYTES] = {
        0x67, 0x45, 0x23, 0x01, 0,    0,    0,    0,    0x88, 0x77, 0x66,
        0x55, 0x44, 0x33, 0x22, 0x11, 0xef, 0xbe, 0xad, 0xde, 0x00, 0x10,
        0x00, 0x00, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99};
    uint8_t bytes[LANE_HEADER_BYTES];
    lane_header_write(MARK, &sample, bytes);
    assert_memory_equal(bytes, should, sizeof(should));
}

static void header__written_then_read__same(void **state)
{
    (void)state;
    uint8_t bytes[LANE_HEADER_BYTES];
    struct lane_header back;
    lane_header_write(MARK, &sample, bytes);
    assert_true(lane_header_read(MARK, bytes, &back));
    assert_int_equal(back.read, sample.read);
    assert_int_equal(back.offset, sample.offset);
    assert_int_equal(back.block, sample.block);
    assert_int_equal(back.length, sample.length);
}

static void header__length_that_no_piece_has__refused(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, (1u << 20) + 1, UINT32_MAX};
    for (unsigned i = 0; i < 3; i++) {
        struct lane_header header = sample, back;
        uint8_t bytes[LANE_HEADER_BYTES];
        header.length = lengths[i];
        lane_header_write(MARK, &header, bytes);
        assert_false(lane_header_read(MARK, bytes, &back));
    }
}

static void header__any_bit_of_its_mark_wrong__refused(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint8_t bytes[LANE_HEADER_BYTES];
        struct lane_header back;
        lane_header_write(MARK, &sample, bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(lane_header_read(MARK, bytes, &back));
    }
}

static void greeting__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t head[16] = {'g', 'r', 'e', 'e', 't', 'i', 'n', 'g', 3};
    struct kvf_nonce nonce;
    uint8_t bytes[LANE_GREETING_BYTES];
    memset(&nonce, 0x5c, sizeof(nonce));
    lane_greeting_write(&kind, &nonce, bytes);
    assert_memory_equal(bytes, head, sizeof(head));
    assert_memory_equal(bytes + sizeof(head), &nonce, sizeof(nonce));
}

static void greeting__any_bit_wrong__not_ours_or_not_the_nonce(void **state)
{
    (void)state;
    struct kvf_nonce nonce;
    uint8_t bytes[LANE_GREETING_BYTES];
    for (unsigned i = 0; i < KVF_NONCE_BYTES; i++)
        nonce.bytes[i] = (uint8_t)(i * 37 + 11);
    lane_greeting_write(&kind, &nonce, bytes);
    assert_true(lane_greeting_is(&kind, bytes) && lane_greeting_has_nonce(bytes, &nonce));
    for (unsigned bit = 0; bit < 8 * LANE_GREETING_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(lane_greeting_is(&kind, bytes), bit >= 128);
        assert_int_equal(lane_greeting_has_nonce(bytes, &nonce), bit < 128);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void nonce__a_million_guesses__none_is_it(void **state)
{
    (void)state;
    struct kvf_nonce nonce, guess;
    uint8_t bytes[LANE_GREETING_BYTES];
    uint64_t random = 88172645463325252u; /* xorshift */
    assert_int_equal(getrandom(&nonce, sizeof(nonce), 0), sizeof(nonce));
    for (unsigned i = 0; i < 1000000; i++) {
        for (unsigned word = 0; word < KVF_NONCE_BYTES / 8; word++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            memcpy(guess.bytes + 8 * word, &random, 8);
        }
        lane_greeting_write(&kind, &guess, bytes);
        assert_false(lane_greeting_has_nonce(bytes, &nonce));
    }
    lane_greeting_write(&kind, &nonce, bytes);
    assert_true(lane_greeting_has_nonce(bytes, &nonce));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header__bytes_on_the_wire__as_documented),
        cmocka_unit_test(header__written_then_read__same),
        cmocka_unit_test(header__length_that_no_piece_has__refused),
        cmocka_unit_test(header__any_bit_of_its_mark_wrong__refused),
        cmocka_unit_test(greeting__bytes_on_the_wire__as_documented),
        cmocka_unit_test(greeting__any_bit_wrong__not_ours_or_not_the_nonce),
        cmocka_unit_test(nonce__a_million_guesses__none_is_it),
    };
    return cmocka_run_group_tests_name("lane_wire", tests, NULL, NULL);
}
