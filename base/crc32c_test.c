#include "base/crc32c.h"
#include "base/test.h"

#include <string.h>

/* RFC 3720 B.4, and the usual check string. */
static void crc32c__known_vectors__match(void **state)
{
    (void)state;
    unsigned char bytes[32];
    assert_int_equal(kvf_crc32c(0, "123456789", 9), 0xE3069283u);
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(kvf_crc32c(0, bytes, sizeof(bytes)), 0x8A9136AAu);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(kvf_crc32c(0, bytes, sizeof(bytes)), 0x62A8AB43u);
    assert_int_equal(kvf_crc32c(0, bytes, 0), 0);
}

static void crc32c__in_pieces__equals_the_whole(void **state)
{
    (void)state;
    unsigned char bytes[5000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 31 + 7);
    uint32_t whole = kvf_crc32c(0, bytes, sizeof(bytes));
    for (size_t split = 0; split <= sizeof(bytes); split += 617) {
        uint32_t crc = kvf_crc32c(0, bytes, split);
        assert_int_equal(kvf_crc32c(crc, bytes + split, sizeof(bytes) - split), whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c__known_vectors__match),
        cmocka_unit_test(crc32c__in_pieces__equals_the_whole),
    };
    return cmocka_run_group_tests_name("base/crc32c", tests, NULL, NULL);
}
