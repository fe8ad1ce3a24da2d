#include "storage/format.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <stdlib.h>
#include <string.h>

static const struct kvf_place place = {
    .uuid = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
    .segment = 5,
    .segment_bytes = 2 * KVF_MIB,
    .sequence = UINT64_C(0x100000007),
};

static struct kvf_record a_record(size_t key_bytes, const char *namespace)
{
    static const uint8_t bytes[KVF_KEY_MAX_BYTES] = {9, 0, 255, 7};
    struct kvf_record record = {.namespace = namespace,
                                .generation = {.epoch = 3, .counter = 4},
                                .length = 5000,
                                .crc32c = 0xdeadbeef};
    (void)kvf_key_set(&record.key, bytes, key_bytes);
    return record;
}

/* ---- the marker ---- */

static const struct kvf_marker a_marker = {
    .version = KVF_FORMAT_VERSION,
    .uuid = {{42}},
    .segment_bytes = 256 * KVF_MIB,
    .segment_count = 77,
    .boot_epoch = 12,
};

static void marker__encoded__decodes_to_the_same(void **state)
{
    (void)state;
    uint8_t page[KVF_PAGE];
    struct kvf_marker marker;
    kvf_marker_encode(&a_marker, page);
    assert_memory_equal(page, "KVFSTORE", 8);
    assert_int_equal(kvf_marker_decode(page, sizeof(page), &marker).code, KVF_OK);
    assert_int_equal(marker.version, a_marker.version);
    assert_memory_equal(&marker.uuid, &a_marker.uuid, sizeof(marker.uuid));
    assert_int_equal(marker.segment_bytes, a_marker.segment_bytes);
    assert_int_equal(marker.segment_count, a_marker.segment_count);
    assert_int_equal(marker.boot_epoch, a_marker.boot_epoch);
}

static void marker__cut_flipped_or_foreign__told_apart(void **state)
{
    (void)state;
    uint8_t page[KVF_PAGE];
    struct kvf_marker marker;
    kvf_marker_encode(&a_marker, page);
    assert_int_equal(kvf_marker_decode(page, 7, &marker).code, KVF_INVALID);
    assert_int_equal(kvf_marker_decode(page, 100, &marker).code, KVF_CORRUPT);
    for (size_t i = 0; i < KVF_PAGE; i++) {
        page[i] ^= 1;
        assert_int_equal(kvf_marker_decode(page, sizeof(page), &marker).code,
                         i < 8 ? KVF_INVALID : KVF_CORRUPT);
        page[i] ^= 1;
    }
    struct kvf_marker newer = a_marker;
    newer.version++;
    kvf_marker_encode(&newer, page);
    assert_int_equal(kvf_marker_decode(page, sizeof(page), &marker).code, KVF_UNSUPPORTED);
    struct kvf_marker without_segments = a_marker;
    without_segments.segment_bytes = 0;
    kvf_marker_encode(&without_segments, page);
    assert_int_equal(kvf_marker_decode(page, sizeof(page), &marker).code, KVF_CORRUPT);
}

/* ---- records ---- */

static void record_header__any_key_and_namespace__decodes_to_the_same(void **state)
{
    (void)state;
    char longest[KVF_NAMESPACE_MAX_BYTES + 1];
    memset(longest, 'n', KVF_NAMESPACE_MAX_BYTES);
    longest[KVF_NAMESPACE_MAX_BYTES] = '\0';
    longest[50] = '/';
    const char *namespaces[] = {"a/b", "tenant/model", longest};
    for (size_t n = 0; n < 3; n++)
        for (size_t key_bytes = 1; key_bytes <= KVF_KEY_MAX_BYTES; key_bytes++) {
            uint8_t bytes[KVF_RECORD_HEADER_MAX_BYTES];
            struct kvf_record record = a_record(key_bytes, namespaces[n]);
            struct kvf_record_head head;
            size_t size = kvf_record_header_bytes(&record);
            assert_true(size <= sizeof(bytes) && size % 8 == 0);
            assert_int_equal(kvf_record_header_encode(&place, &record, 11, 3 * KVF_PAGE, bytes),
                             size);
            assert_int_equal(kvf_record_header_decode(bytes, size, &place, &head), size);
            assert_int_equal(kvf_record_header_decode(bytes, size - 1, &place, &head), 0);
            assert_string_equal(head.record.namespace, namespaces[n]);
            assert_true(kvf_key_equal(&head.record.key, &record.key));
            assert_true(kvf_generation_equal(head.record.generation, record.generation));
            assert_int_equal(head.record.length, 5000);
            assert_int_equal(head.record.crc32c, 0xdeadbeef);
            assert_int_equal(head.number, 11);
            assert_int_equal(head.offset, 3 * KVF_PAGE);
        }
}

static void record_header__any_bit_flipped__refused(void **state)
{
    (void)state;
    uint8_t bytes[KVF_RECORD_HEADER_MAX_BYTES];
    struct kvf_record record = a_record(32, "tenant/model");
    struct kvf_record_head head;
    size_t size = kvf_record_header_encode(&place, &record, 0, 2 * KVF_PAGE, bytes);
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(kvf_record_header_decode(bytes, sizeof(bytes), &place, &head), 0);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void record_header__of_another_place__refused(void **state)
{
    (void)state;
    uint8_t bytes[KVF_RECORD_HEADER_MAX_BYTES];
    struct kvf_record record = a_record(32, "tenant/model");
    struct kvf_record_head head;
    (void)kvf_record_header_encode(&place, &record, 0, 2 * KVF_PAGE, bytes);
    struct kvf_place other = place;
    other.uuid.bytes[3]++;
    assert_int_equal(kvf_record_header_decode(bytes, sizeof(bytes), &other, &head), 0);
    other = place;
    other.segment++;
    assert_int_equal(kvf_record_header_decode(bytes, sizeof(bytes), &other, &head), 0);
    other = place;
    other.sequence++;
    assert_int_equal(kvf_record_header_decode(bytes, sizeof(bytes), &other, &head), 0);
}

/* A right checksum is no proof: the numbers behind it are checked as well. */
static void record_header__impossible_numbers_under_a_right_checksum__refused(void **state)
{
    (void)state;
    const struct {
        uint64_t offset, length;
    } impossible[] = {
        {0, 1},
        {KVF_PAGE, 1},
        {2 * KVF_PAGE + 512, 1},
        {2 * KVF_PAGE, 0},
        {2 * KVF_PAGE, KVF_BLOCK_MAX_BYTES + 1},
        {2 * KVF_PAGE, 2 * KVF_MIB},
        {2 * KVF_MIB - KVF_PAGE, 1},
        {UINT64_MAX & ~(KVF_PAGE - 1), 4096},
        {2 * KVF_PAGE, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++) {
        uint8_t bytes[KVF_RECORD_HEADER_MAX_BYTES];
        struct kvf_record record = a_record(8, "tenant/model");
        struct kvf_record_head head;
        record.length = impossible[i].length;
        (void)kvf_record_header_encode(&place, &record, 0, impossible[i].offset, bytes);
        assert_int_equal(kvf_record_header_decode(bytes, sizeof(bytes), &place, &head), 0);
    }
    uint8_t bytes[KVF_RECORD_HEADER_MAX_BYTES];
    struct kvf_record record = a_record(8, "no-slash");
    struct kvf_record_head head;
    (void)kvf_record_header_encode(&place, &record, 0, 2 * KVF_PAGE, bytes);
    assert_int_equal(kvf_record_header_decode(bytes, sizeof(bytes), &place, &head), 0);
}

/* ---- pages ---- */

static void segment_header__decodes__only_at_home(void **state)
{
    (void)state;
    uint8_t page[KVF_PAGE];
    bool in_use = false;
    struct kvf_place here = place;
    kvf_segment_header_encode(&place, true, page);
    here.sequence = 0;
    assert_true(kvf_segment_header_decode(page, &here, &in_use));
    assert_true(in_use);
    assert_int_equal(here.sequence, place.sequence);
    here.segment++;
    assert_false(kvf_segment_header_decode(page, &here, &in_use));
    here = place;
    here.segment_bytes *= 2;
    assert_false(kvf_segment_header_decode(page, &here, &in_use));
    memset(page, 0, sizeof(page));
    here = place;
    assert_false(kvf_segment_header_decode(page, &here, &in_use));
}

static void footer__impossible_index__refused(void **state)
{
    (void)state;
    uint8_t page[KVF_PAGE];
    struct kvf_footer good = {
        .index_offset = 5 * KVF_PAGE, .index_bytes = 300, .record_count = 3, .index_crc32c = 9};
    struct kvf_footer found;
    kvf_footer_encode(&place, &good, page);
    assert_true(kvf_footer_decode(page, &place, &found));
    assert_memory_equal(&found, &good, sizeof(good));
    struct kvf_footer bad[] = {good, good, good, good};
    bad[0].index_offset = 5000;
    bad[1].index_offset = 2 * KVF_MIB;
    bad[2].index_bytes = UINT64_MAX;
    bad[3].index_offset = 0;
    for (size_t i = 0; i < 4; i++) {
        kvf_footer_encode(&place, &bad[i], page);
        assert_false(kvf_footer_decode(page, &place, &found));
    }
}

static void group__encoded__decodes_at_its_offset_only(void **state)
{
    (void)state;
    uint8_t pages[2 * KVF_PAGE];
    struct kvf_group group = {
        .offset = 7 * KVF_PAGE, .header_bytes = 4200, .record_count = 40, .first_number = 3};
    struct kvf_group found;
    memset(pages, 0x5a, sizeof(pages));
    kvf_group_encode(&place, &group, pages);
    assert_int_equal(kvf_group_pages_bytes(&group), 2 * KVF_PAGE);
    assert_int_equal(pages[2 * KVF_PAGE - 1], 0);
    assert_true(kvf_group_decode(pages, &place, 7 * KVF_PAGE, &found));
    assert_int_equal(found.offset, group.offset);
    assert_int_equal(found.header_bytes, group.header_bytes);
    assert_int_equal(found.record_count, group.record_count);
    assert_int_equal(found.first_number, group.first_number);
    assert_true(kvf_group_check(pages, &found));
    assert_false(kvf_group_decode(pages, &place, 8 * KVF_PAGE, &found));
    for (size_t i = 0; i < KVF_GROUP_PREFIX_BYTES + group.header_bytes; i += 7) {
        pages[i] ^= 4;
        assert_false(kvf_group_decode(pages, &place, 7 * KVF_PAGE, &found) &&
                     kvf_group_check(pages, &found));
        pages[i] ^= 4;
    }
}

static void mark__encoded__decodes_at_its_place_only(void **state)
{
    (void)state;
    uint8_t page[KVF_PAGE];
    struct kvf_place other = place;
    other.sequence++;
    memset(page, 0x5a, sizeof(page));
    kvf_mark_encode(&place, 7 * KVF_PAGE, page);
    assert_true(kvf_mark_decode(page, &place, 7 * KVF_PAGE));
    assert_false(kvf_mark_decode(page, &place, 8 * KVF_PAGE));
    assert_false(kvf_mark_decode(page, &other, 7 * KVF_PAGE));
    for (size_t i = 0; i < KVF_PAGE; i++) {
        page[i] ^= 4;
        assert_false(kvf_mark_decode(page, &place, 7 * KVF_PAGE));
        page[i] ^= 4;
    }
}

/* The decoders on noise and on damaged encodings: nothing is believed, nothing is read out of bounds (ASan). */
static void decoders__noise__never_believed(void **state)
{
    (void)state;
    uint64_t random = 88172645463325252;
    uint8_t *page = malloc(KVF_PAGE); /* exactly that, for ASan */
    struct kvf_marker marker;
    struct kvf_footer footer;
    struct kvf_group group;
    struct kvf_record_head head;
    struct kvf_record record = a_record(32, "tenant/model");
    for (unsigned round = 0; round < 20000; round++) {
        if (round % 4 == 0)
            memset(page, (int)(random & 0xff), KVF_PAGE);
        if (round % 4 == 1)
            kvf_marker_encode(&a_marker, page);
        if (round % 4 == 2)
            (void)kvf_record_header_encode(&place, &record, 0, 2 * KVF_PAGE, page);
        for (unsigned i = 0; i < 3; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            page[random % 96] = (uint8_t)(page[random % 96] ^ (1 + (random >> 32) % 255));
        }
        struct kvf_place here = place;
        bool in_use;
        size_t left = random % (KVF_PAGE + 1);
        if (round % 4 != 1) /* three flips may cancel one another out */
            assert_false(kvf_is_ok(kvf_marker_decode(page, KVF_PAGE, &marker)));
        assert_false(kvf_segment_header_decode(page, &here, &in_use));
        assert_false(kvf_footer_decode(page, &place, &footer));
        assert_false(kvf_mark_decode(page, &place, 0));
        assert_false(kvf_group_decode(page, &place, 0, &group));
        if (round % 4 != 2)
            assert_int_equal(kvf_record_header_decode(page, left, &place, &head), 0);
        else
            (void)kvf_record_header_decode(page, left, &place, &head);
    }
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marker__encoded__decodes_to_the_same),
        cmocka_unit_test(marker__cut_flipped_or_foreign__told_apart),
        cmocka_unit_test(record_header__any_key_and_namespace__decodes_to_the_same),
        cmocka_unit_test(record_header__any_bit_flipped__refused),
        cmocka_unit_test(record_header__of_another_place__refused),
        cmocka_unit_test(record_header__impossible_numbers_under_a_right_checksum__refused),
        cmocka_unit_test(segment_header__decodes__only_at_home),
        cmocka_unit_test(footer__impossible_index__refused),
        cmocka_unit_test(group__encoded__decodes_at_its_offset_only),
        cmocka_unit_test(mark__encoded__decodes_at_its_place_only),
        cmocka_unit_test(decoders__noise__never_believed),
    };
    return cmocka_run_group_tests_name("format", tests, NULL, NULL);
}
