/* Files damaged in every place: what is told after it, and that nothing wrong ever is. Seeded; KVF_STORAGE_SOAK asks for
 * many more rounds. */
#include "base/crc32c.h"
#include "base/test.h"
#include "storage/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENT_BYTES (512 * UINT64_C(1024))

static struct fixture_block blocks[64];

static uint64_t length_of(unsigned i)
{
    return 1 + i * 7919 % 9000;
}

/* `count` small records, each its own group, in two segments or more. */
static void start(struct fixture *f, unsigned count, bool crash)
{
    fixture_init(f, NULL, KVF_MIB);
    f->options.segment_bytes = SEGMENT_BYTES;
    f->options.capacity_bytes = 4 * SEGMENT_BYTES;
    f->options.read_threads = 1;
    fixture_open(f);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(fixture_put(f, &blocks[i], i, length_of(i)).code, KVF_OK);
    if (crash)
        fixture_crash(f);
    else
        fixture_close(f);
}

static int open_segment(const struct fixture *f, uint32_t segment)
{
    char name[32], path[128];
    (void)snprintf(name, sizeof(name), "segment-%05u", segment);
    fixture_file_path(f, name, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void load(const struct fixture *f, uint32_t segment, uint8_t *image)
{
    int fd = open_segment(f, segment);
    assert_int_equal(pread(fd, image, SEGMENT_BYTES, 0), SEGMENT_BYTES);
    assert_int_equal(close(fd), 0);
}

static void save(const struct fixture *f, uint32_t segment, const uint8_t *image)
{
    int fd = open_segment(f, segment);
    assert_int_equal(ftruncate(fd, (off_t)SEGMENT_BYTES), 0);
    assert_int_equal(pwrite(fd, image, SEGMENT_BYTES, 0), SEGMENT_BYTES);
    assert_int_equal(close(fd), 0);
}

/* The content is the seed's wherever the checksum that came with it agrees. How many do not agree. */
static unsigned read_all_found(struct fixture *f)
{
    unsigned damaged = 0;
    for (unsigned i = 0; i < f->found_count; i++) {
        struct fixture_block block = {.location = f->found[i].location};
        const struct kvf_record *record = &f->found[i].record;
        memcpy(&block.seed, record->key.bytes, sizeof(block.seed));
        struct kvf_status status = fixture_get(f, &block, record->length);
        const uint8_t *bytes = kvf_extent_at(block.read.extent);
        bool agrees = kvf_crc32c(0, bytes, record->length) == record->crc32c;
        assert_int_equal(status.code, agrees ? KVF_OK : KVF_CORRUPT);
        damaged += !agrees;
    }
    return damaged;
}

/* The file of one of `count` records' segments is cut at every 512 bytes of the 64 KiB before `end`. */
static void cut_everywhere(struct fixture *f, unsigned count, uint32_t segment, uint64_t end)
{
    static uint8_t image[SEGMENT_BYTES];
    load(f, segment, image);
    for (uint64_t cut = end - (64 << 10); cut <= end; cut += 512) {
        save(f, segment, image);
        int fd = open_segment(f, segment);
        assert_int_equal(ftruncate(fd, (off_t)cut), 0);
        assert_int_equal(close(fd), 0);
        fixture_open(f);
        for (unsigned i = 0; i < count; i++) {
            bool whole = blocks[i].location.segment != segment ||
                         blocks[i].location.offset + length_of(i) <= cut;
            assert_int_equal(fixture_find(f, i) != NULL, whole);
        }
        assert_int_equal(read_all_found(f), 0);
        fixture_close(f);
    }
}

static void recover__tail_cut_anywhere__what_lies_before_the_cut_is_there(void **state)
{
    struct fixture f;
    const unsigned count = 26;
    (void)state;
    start(&f, count, true);
    cut_everywhere(&f, count, blocks[count - 1].location.segment,
                   blocks[count - 1].location.offset + kvf_round_up_page(length_of(count - 1)));
    fixture_fini(&f);
}

/* Its index and its footer go first, then the last records. */
static void recover__sealed_tail_cut_anywhere__what_lies_before_the_cut_is_there(void **state)
{
    struct fixture f;
    const unsigned count = 60;
    (void)state;
    start(&f, count, false);
    assert_int_equal(blocks[0].location.segment, 0);
    assert_int_not_equal(blocks[count - 1].location.segment, 0);
    cut_everywhere(&f, count, 0, SEGMENT_BYTES);
    fixture_fini(&f);
}

/* ---- footers ---- */

static void footer_missing(uint8_t *page, const uint8_t *foreign)
{
    (void)foreign;
    memset(page, 0, KVF_PAGE);
}

static void footer_flipped(uint8_t *page, const uint8_t *foreign)
{
    (void)foreign;
    page[50] ^= 1;
}

/* Whole, but of a format to come. */
static void footer_of_another_version(uint8_t *page, const uint8_t *foreign)
{
    (void)foreign;
    page[8] = KVF_FORMAT_VERSION + 1;
    uint32_t crc = kvf_crc32c(0, page, KVF_PAGE - 4);
    memcpy(page + KVF_PAGE - 4, &crc, 4);
}

static void footer_of_another_store(uint8_t *page, const uint8_t *foreign)
{
    memcpy(page, foreign, KVF_PAGE);
}

static void recover__footer_not_right__scanned_and_sealed_anew(void **state)
{
    static uint8_t image[SEGMENT_BYTES], foreign[SEGMENT_BYTES];
    void (*const spoil[])(uint8_t *, const uint8_t *) = {
        footer_missing, footer_flipped, footer_of_another_version, footer_of_another_store};
    struct fixture f, other;
    const unsigned count = 30;
    (void)state;
    start(&other, count, false);
    start(&f, count, false);
    for (size_t i = 0; i < sizeof(spoil) / sizeof(spoil[0]); i++)
        for (uint32_t segment = 0; segment < 2; segment++) {
            load(&other, segment, foreign);
            load(&f, segment, image);
            spoil[i](image + SEGMENT_BYTES - KVF_PAGE, foreign + SEGMENT_BYTES - KVF_PAGE);
            save(&f, segment, image);
            for (unsigned starts = 0; starts < 2; starts++) {
                fixture_open(&f);
                for (unsigned b = 0; b < count; b++)
                    assert_non_null(fixture_find(&f, b));
                assert_int_equal(f.found_count, count);
                assert_int_equal(read_all_found(&f), 0);
                fixture_close(&f);
            }
            struct kvf_verify_options options = {.paths = f.paths, .path_count = 1};
            struct kvf_verify_result result;
            assert_true(kvf_is_ok(kvf_store_verify(&options, &result, &f.why)));
            assert_int_equal(result.damaged, 0);
        }
    fixture_fini(&f);
    fixture_fini(&other);
}

static void recover__segment_file_too_long_or_extra__the_rest_is_there(void **state)
{
    struct fixture f;
    char extra[128];
    struct stat file;
    const unsigned count = 30;
    (void)state;
    start(&f, count, false);
    int fd = open_segment(&f, 0);
    assert_int_equal(ftruncate(fd, (off_t)SEGMENT_BYTES + 12345), 0);
    assert_int_equal(close(fd), 0);
    fixture_file_path(&f, "segment-00077", extra);
    fd = open(extra, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(close(fd), 0);
    fixture_open(&f);
    assert_int_equal(f.found_count, count);
    assert_int_equal(read_all_found(&f), 0);
    assert_int_equal(stat(extra, &file), 0); /* not ours to remove while the store keeps its size */
    fixture_fini(&f);
}

/* ---- single bits ---- */

/* splitmix64 */
static uint64_t draw(uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x243f6a8885a308d3);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Any bit of the used part of any segment. A record is then right, damaged and seen to be so by its checksum, or not
 * told; in a payload exactly one is hit. */
static void store__one_bit_flipped_anywhere__never_a_wrong_byte(void **state)
{
    static uint8_t images[4][SEGMENT_BYTES];
    struct fixture f;
    const unsigned count = 40;
    unsigned rounds = getenv("KVF_STORAGE_SOAK") != NULL ? 10000 : 200, in_payload = 0;
    (void)state;
    start(&f, count, false);
    for (uint32_t i = 0; i < 4; i++)
        load(&f, i, images[i]);
    for (unsigned round = 0; round < rounds; round++) {
        uint32_t segment = (uint32_t)draw(round * 4) % 2;
        uint64_t at = draw(round * 4 + 1) % SEGMENT_BYTES;
        uint8_t bit = (uint8_t)(1 << draw(round * 4 + 2) % 8);
        for (uint32_t i = 0; i < 4; i++)
            save(&f, i, images[i]);
        images[segment][at] ^= bit;
        save(&f, segment, images[segment]);
        images[segment][at] ^= bit;
        bool hits_payload = false;
        for (unsigned i = 0; i < count; i++)
            hits_payload |= blocks[i].location.segment == segment &&
                            at >= blocks[i].location.offset &&
                            at < blocks[i].location.offset + length_of(i);
        struct kvf_verify_options options = {.paths = f.paths, .path_count = 1};
        struct kvf_verify_result result;
        assert_true(kvf_is_ok(kvf_store_verify(&options, &result, &f.why)));
        assert_true(result.damaged <= 1);
        fixture_open(&f);
        unsigned damaged = read_all_found(&f);
        assert_int_equal(damaged, hits_payload);
        if (hits_payload)
            assert_int_equal(result.damaged, 1);
        if (result.damaged == 0)
            assert_int_equal(f.found_count, count);
        in_payload += hits_payload;
        fixture_close(&f);
    }
    assert_true(in_payload > rounds / 10);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recover__tail_cut_anywhere__what_lies_before_the_cut_is_there),
        cmocka_unit_test(recover__sealed_tail_cut_anywhere__what_lies_before_the_cut_is_there),
        cmocka_unit_test(recover__footer_not_right__scanned_and_sealed_anew),
        cmocka_unit_test(recover__segment_file_too_long_or_extra__the_rest_is_there),
        cmocka_unit_test(store__one_bit_flipped_anywhere__never_a_wrong_byte),
    };
    return cmocka_run_group_tests_name("damage", tests, NULL, NULL);
}
