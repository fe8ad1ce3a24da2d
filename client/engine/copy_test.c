#include "client/engine/copy.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE_BYTES 64u
#define PIECE_BYTES 4096u
#define LONGEST (3 * PIECE_BYTES)
#define ROOM (LONGEST + 3 * LINE_BYTES)

static uint8_t pattern[LONGEST];
static uint8_t wanted[ROOM];
static uint8_t got[ROOM] __attribute__((aligned(64)));

static int fill_pattern(void **state)
{
    (void)state;
    uint32_t number = 1;
    for (size_t i = 0; i < sizeof(pattern); i++) {
        number = number * 1664525u + 1013904223u;
        pattern[i] = (uint8_t)(number >> 24);
    }
    return 0;
}

/* Every byte arrives, none beside them is written, and none behind the source is read (ASan). */
static void check(size_t bytes, size_t to_shift, size_t from_shift)
{
    uint8_t *from = malloc(from_shift + bytes);
    assert_non_null(from);
    memcpy(from + from_shift, pattern, bytes);
    memset(wanted, 0xA5, ROOM);
    memset(got, 0xA5, ROOM);
    memcpy(wanted + LINE_BYTES + to_shift, pattern, bytes);
    uint32_t crc = copy_with_crc32c(got + LINE_BYTES + to_shift, from + from_shift, bytes);
    assert_int_equal(crc, kvf_crc32c(0, pattern, bytes));
    assert_int_equal(memcmp(got, wanted, ROOM), 0);
    free(from);
}

static void copy__every_alignment__is_as_memcpy(void **state)
{
    (void)state;
    static const size_t lengths[] = {1,
                                     63,
                                     64,
                                     65,
                                     127,
                                     128,
                                     191,
                                     PIECE_BYTES - 1,
                                     PIECE_BYTES,
                                     PIECE_BYTES + 1,
                                     2 * PIECE_BYTES + 65};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
        for (size_t to_shift = 0; to_shift < LINE_BYTES; to_shift++)
            for (size_t from_shift = 1; from_shift <= 16; from_shift++)
                check(lengths[i], to_shift, from_shift);
}

static void copy__every_length__is_as_memcpy(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes <= 4 * LINE_BYTES + 1; bytes++)
        for (size_t to_shift = 0; to_shift < LINE_BYTES; to_shift++)
            check(bytes, to_shift, 1);
    for (size_t pieces = 1; pieces <= 2; pieces++)
        for (size_t more = 0; more <= 2 * LINE_BYTES; more++)
            check(pieces * PIECE_BYTES - LINE_BYTES + more, 3, 5);
    check(LONGEST, 0, 0);
}

static void copy__nothing__is_fine(void **state)
{
    (void)state;
    assert_int_equal(copy_with_crc32c(NULL, NULL, 0), 0);
}

/* The destination is the source, mapped once more and a line further on: the copy itself changes what it reads. */
static void copy__source_changes_meanwhile__the_checksum_is_of_the_newer_bytes(void **state)
{
    (void)state;
    const size_t bytes = PIECE_BYTES - LINE_BYTES;
    int memory = memfd_create("source", MFD_CLOEXEC);
    assert_true(memory >= 0);
    assert_int_equal(ftruncate(memory, PIECE_BYTES), 0);
    uint8_t *source = mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    uint8_t *alias = mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    assert_ptr_not_equal(source, MAP_FAILED);
    assert_ptr_not_equal(alias, MAP_FAILED);
    memcpy(source, pattern, PIECE_BYTES);
    uint32_t crc = copy_with_crc32c(alias + LINE_BYTES, source, bytes);
    assert_int_equal(crc, kvf_crc32c(0, source, bytes));
    assert_int_not_equal(crc, kvf_crc32c(0, pattern, bytes));
    (void)munmap(source, PIECE_BYTES);
    (void)munmap(alias, PIECE_BYTES);
    (void)close(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy__every_alignment__is_as_memcpy),
        cmocka_unit_test(copy__every_length__is_as_memcpy),
        cmocka_unit_test(copy__nothing__is_fine),
        cmocka_unit_test(copy__source_changes_meanwhile__the_checksum_is_of_the_newer_bytes),
    };
    return cmocka_run_group_tests_name("client/engine/copy", tests, fill_pattern, NULL);
}
