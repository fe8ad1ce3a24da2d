#include "transport/verbs_wire.h"

#include "base/test.h"

#include <string.h>

static struct kvf_nonce sample_nonce(void)
{
    struct kvf_nonce nonce;
    for (unsigned i = 0; i < KVF_NONCE_BYTES; i++)
        nonce.bytes[i] = (uint8_t)(i * 37 + 11);
    return nonce;
}

/* Peers of other builds read these bytes: a change here needs another VERBS_VERSION. */
static void greeting__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t head[8] = {'k', 'v', 'f', 'V', 1, 0, 0, 0};
    struct kvf_nonce nonce = sample_nonce();
    uint8_t bytes[VERBS_GREETING_BYTES];
    verbs_greeting_write(&nonce, bytes);
    assert_memory_equal(bytes, head, sizeof(head));
    assert_memory_equal(bytes + 8, nonce.bytes, KVF_NONCE_BYTES);
}

static void greeting__padded__nonce_is_found(void **state)
{
    (void)state;
    struct kvf_nonce nonce = sample_nonce();
    uint8_t bytes[56] = {0};
    verbs_greeting_write(&nonce, bytes);
    assert_ptr_equal(verbs_greeting_nonce(bytes, sizeof(bytes)), bytes + 8);
    assert_ptr_equal(verbs_greeting_nonce(bytes, VERBS_GREETING_BYTES), bytes + 8);
}

static void greeting__short_or_wrong_head__none(void **state)
{
    (void)state;
    struct kvf_nonce nonce = sample_nonce();
    uint8_t bytes[VERBS_GREETING_BYTES];
    verbs_greeting_write(&nonce, bytes);
    assert_null(verbs_greeting_nonce(NULL, 0));
    for (size_t length = 0; length < sizeof(bytes); length++)
        assert_null(verbs_greeting_nonce(bytes, length));
    for (unsigned bit = 0; bit < 64; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_null(verbs_greeting_nonce(bytes, sizeof(bytes)));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void token__bytes_on_the_wire__as_documented(void **state)
{
    (void)state;
    static const uint8_t should[VERBS_TOKEN_BYTES] = {
        1, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    struct verbs_token token = {.address = 0x1122334455667788, .key = 0xdeadbeef};
    uint8_t bytes[VERBS_TOKEN_BYTES];
    verbs_token_write(&token, bytes);
    assert_memory_equal(bytes, should, sizeof(should));
    assert_true(verbs_token_is_legal(bytes, sizeof(bytes)));
    struct verbs_token back = verbs_token_read(bytes);
    assert_int_equal(back.address, token.address);
    assert_int_equal(back.key, token.key);
}

static void token__other_length_or_version__illegal(void **state)
{
    (void)state;
    uint8_t bytes[KVF_TOKEN_MAX_BYTES] = {0};
    verbs_token_write(&(struct verbs_token){.address = 1, .key = 2}, bytes);
    for (size_t length = 0; length <= sizeof(bytes); length++)
        assert_int_equal(verbs_token_is_legal(bytes, length), length == VERBS_TOKEN_BYTES);
    for (unsigned bit = 0; bit < 32; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(verbs_token_is_legal(bytes, VERBS_TOKEN_BYTES));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greeting__bytes_on_the_wire__as_documented),
        cmocka_unit_test(greeting__padded__nonce_is_found),
        cmocka_unit_test(greeting__short_or_wrong_head__none),
        cmocka_unit_test(token__bytes_on_the_wire__as_documented),
        cmocka_unit_test(token__other_length_or_version__illegal),
    };
    return cmocka_run_group_tests_name("verbs_wire", tests, NULL, NULL);
}
