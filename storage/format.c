#include "storage/format.h"

#include "base/crc32c.h"

#include <string.h>

#define MARKER_MAGIC UINT64_C(0x45524f545346564b)  /* "KVFSTORE" */
#define SEGMENT_MAGIC UINT64_C(0x474553595246564b) /* "KVFRYSEG" */
#define GROUP_MAGIC UINT64_C(0x505247595246564b)   /* "KVFRYGRP" */
#define FOOTER_MAGIC UINT64_C(0x544f4f465246564b)  /* "KVFRFOOT" */
#define MARK_MAGIC UINT64_C(0x4b52414d5246564b)    /* "KVFRMARK" */
#define RECORD_MAGIC UINT32_C(0x5246564b)          /* "KVFR" */

#define PAGE_CRC_AT                                                                                \
    (KVF_PAGE - 4)       /* every one-page structure carries its checksum in its last four bytes */
#define PREFIX_CRC_AT 60 /* groups and records: in the last four bytes of their first 64 */

static void put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void put32(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)value);
    put16(at + 2, (uint16_t)(value >> 16));
}

static void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t get32(const uint8_t *at)
{
    return get16(at) | (uint32_t)get16(at + 2) << 16;
}

static uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}

/* ---- pages ---- */

static void page_start(uint8_t *page, uint64_t magic, uint32_t version)
{
    memset(page, 0, KVF_PAGE);
    put64(page, magic);
    put32(page + 8, version);
}

static void page_seal(uint8_t *page)
{
    put32(page + PAGE_CRC_AT, kvf_crc32c(0, page, PAGE_CRC_AT));
}

static bool page_is_whole(const uint8_t *page, uint64_t magic)
{
    return get64(page) == magic && get32(page + PAGE_CRC_AT) == kvf_crc32c(0, page, PAGE_CRC_AT);
}

/* uuid, sequence and segment at `at`: 28 bytes. */
static void place_put(uint8_t *at, const struct kvf_place *place)
{
    memcpy(at, place->uuid.bytes, sizeof(place->uuid.bytes));
    put64(at + 16, place->sequence);
    put32(at + 24, place->segment);
}

static bool place_is(const uint8_t *at, const struct kvf_place *place)
{
    return memcmp(at, place->uuid.bytes, sizeof(place->uuid.bytes)) == 0 &&
           get64(at + 16) == place->sequence && get32(at + 24) == place->segment;
}

/* ---- the marker ---- */

void kvf_marker_encode(const struct kvf_marker *marker, uint8_t page[KVF_PAGE])
{
    page_start(page, MARKER_MAGIC, marker->version);
    memcpy(page + 16, marker->uuid.bytes, sizeof(marker->uuid.bytes));
    put64(page + 32, marker->segment_bytes);
    put64(page + 40, marker->segment_count);
    put64(page + 48, marker->boot_epoch);
    page_seal(page);
}

struct kvf_status kvf_marker_decode(const uint8_t *page, size_t bytes, struct kvf_marker *marker)
{
    if (bytes < 8 || get64(page) != MARKER_MAGIC)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0);
    if (bytes < KVF_PAGE || !page_is_whole(page, MARKER_MAGIC))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_CORRUPT, 0);
    struct kvf_marker found = {
        .version = get32(page + 8),
        .segment_bytes = get64(page + 32),
        .segment_count = get64(page + 40),
        .boot_epoch = get64(page + 48),
    };
    memcpy(found.uuid.bytes, page + 16, sizeof(found.uuid.bytes));
    if (found.version > KVF_FORMAT_VERSION)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_UNSUPPORTED, 0);
    if (found.version == KVF_FORMAT_VERSION &&
        (found.segment_bytes < 16 * KVF_PAGE || found.segment_bytes % KVF_PAGE != 0 ||
         found.segment_bytes > KVF_SEGMENT_MAX_BYTES || found.segment_count > KVF_SEGMENTS_MAX))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_CORRUPT, 0);
    *marker = found;
    return kvf_ok();
}

/* ---- the segment's header and footer ---- */

void kvf_segment_header_encode(const struct kvf_place *place, bool in_use, uint8_t page[KVF_PAGE])
{
    page_start(page, SEGMENT_MAGIC, KVF_FORMAT_VERSION);
    page[12] = in_use;
    place_put(page + 16, place);
    put64(page + 48, place->segment_bytes);
    page_seal(page);
}

bool kvf_segment_header_decode(const uint8_t page[KVF_PAGE], struct kvf_place *place, bool *in_use)
{
    if (!page_is_whole(page, SEGMENT_MAGIC) || get32(page + 8) != KVF_FORMAT_VERSION ||
        get64(page + 48) != place->segment_bytes)
        return false;
    struct kvf_place here = *place;
    here.sequence = get64(page + 32);
    if (here.sequence == 0 || !place_is(page + 16, &here))
        return false;
    place->sequence = here.sequence;
    *in_use = page[12] != 0;
    return true;
}

void kvf_footer_encode(const struct kvf_place *place, const struct kvf_footer *footer,
                       uint8_t page[KVF_PAGE])
{
    page_start(page, FOOTER_MAGIC, KVF_FORMAT_VERSION);
    place_put(page + 16, place);
    put32(page + 44, footer->record_count);
    put64(page + 48, footer->index_offset);
    put64(page + 56, footer->index_bytes);
    put32(page + 64, footer->index_crc32c);
    page_seal(page);
}

bool kvf_footer_decode(const uint8_t page[KVF_PAGE], const struct kvf_place *place,
                       struct kvf_footer *footer)
{
    if (!page_is_whole(page, FOOTER_MAGIC) || get32(page + 8) != KVF_FORMAT_VERSION ||
        !place_is(page + 16, place))
        return false;
    struct kvf_footer found = {
        .record_count = get32(page + 44),
        .index_offset = get64(page + 48),
        .index_bytes = get64(page + 56),
        .index_crc32c = get32(page + 64),
    };
    uint64_t footer_offset = place->segment_bytes - KVF_PAGE;
    if (found.index_bytes > kvf_index_max_bytes(place->segment_bytes) ||
        found.index_offset < KVF_PAGE || found.index_offset % KVF_PAGE != 0 ||
        found.index_offset > footer_offset ||
        kvf_round_up_page(found.index_bytes) > footer_offset - found.index_offset)
        return false;
    *footer = found;
    return true;
}

bool kvf_footer_sequence(const uint8_t page[KVF_PAGE], uint64_t *sequence)
{
    if (!page_is_whole(page, FOOTER_MAGIC))
        return false;
    *sequence = get64(page + 32);
    return true;
}

uint64_t kvf_index_max_bytes(uint64_t segment_bytes)
{
    return kvf_round_up_page(segment_bytes / 16);
}

/* ---- record headers ---- */

size_t kvf_record_header_bytes(const struct kvf_record *record)
{
    size_t bytes = KVF_RECORD_PREFIX_BYTES + record->key.length + strlen(record->namespace);
    return (bytes + 7) & ~(size_t)7;
}

static uint32_t prefixed_crc(const uint8_t *at, size_t bytes)
{
    uint32_t crc = kvf_crc32c(0, at, PREFIX_CRC_AT);
    return kvf_crc32c(crc, at + PREFIX_CRC_AT + 4, bytes - PREFIX_CRC_AT - 4);
}

size_t kvf_record_header_encode(const struct kvf_place *place, const struct kvf_record *record,
                                uint32_t number, uint64_t offset, uint8_t *at)
{
    size_t bytes = kvf_record_header_bytes(record);
    size_t namespace_bytes = strlen(record->namespace);
    memset(at, 0, bytes);
    put32(at, RECORD_MAGIC);
    put16(at + 4, (uint16_t)bytes);
    at[6] = record->key.length;
    at[7] = (uint8_t)namespace_bytes;
    place_put(at + 8, place);
    put32(at + 36, number);
    put64(at + 40, offset);
    put64(at + 48, record->length);
    put32(at + 56, record->crc32c);
    put64(at + 64, record->generation.epoch);
    put64(at + 72, record->generation.counter);
    memcpy(at + KVF_RECORD_PREFIX_BYTES, record->key.bytes, record->key.length);
    memcpy(at + KVF_RECORD_PREFIX_BYTES + record->key.length, record->namespace, namespace_bytes);
    put32(at + PREFIX_CRC_AT, prefixed_crc(at, bytes));
    return bytes;
}

static bool payload_is_inside(const struct kvf_place *place, uint64_t offset, uint64_t length)
{
    uint64_t end = place->segment_bytes - KVF_PAGE;
    return length >= 1 && length <= KVF_BLOCK_MAX_BYTES && offset % KVF_PAGE == 0 &&
           offset >= 2 * KVF_PAGE && offset <= end && kvf_round_up_page(length) <= end - offset;
}

size_t kvf_record_header_decode(const uint8_t *at, size_t left, const struct kvf_place *place,
                                struct kvf_record_head *head)
{
    if (left < KVF_RECORD_PREFIX_BYTES || get32(at) != RECORD_MAGIC)
        return 0;
    size_t bytes = get16(at + 4), key_bytes = at[6], namespace_bytes = at[7];
    size_t needed = KVF_RECORD_PREFIX_BYTES + key_bytes + namespace_bytes;
    if (bytes > left || bytes != ((needed + 7) & ~(size_t)7) ||
        namespace_bytes > KVF_NAMESPACE_MAX_BYTES)
        return 0;
    if (get32(at + PREFIX_CRC_AT) != prefixed_crc(at, bytes) || !place_is(at + 8, place))
        return 0;
    *head = (struct kvf_record_head){
        .number = get32(at + 36),
        .offset = get64(at + 40),
        .record = {.length = get64(at + 48),
                   .crc32c = get32(at + 56),
                   .generation = {.epoch = get64(at + 64), .counter = get64(at + 72)}},
    };
    memcpy(head->namespace, at + KVF_RECORD_PREFIX_BYTES + key_bytes, namespace_bytes);
    head->record.namespace = head->namespace;
    if (!kvf_key_set(&head->record.key, at + KVF_RECORD_PREFIX_BYTES, key_bytes) ||
        strlen(head->namespace) != namespace_bytes || !kvf_namespace_is_valid(head->namespace) ||
        !payload_is_inside(place, head->offset, head->record.length))
        return 0;
    return bytes;
}

/* ---- groups ---- */

void kvf_group_encode(const struct kvf_place *place, const struct kvf_group *group, uint8_t *pages)
{
    size_t bytes = KVF_GROUP_PREFIX_BYTES + group->header_bytes;
    memset(pages, 0, KVF_GROUP_PREFIX_BYTES);
    put64(pages, GROUP_MAGIC);
    place_put(pages + 8, place);
    put32(pages + 36, group->header_bytes);
    put64(pages + 40, group->offset);
    put32(pages + 48, group->record_count);
    put32(pages + 52, group->first_number);
    put32(pages + PREFIX_CRC_AT, prefixed_crc(pages, bytes));
    memset(pages + bytes, 0, kvf_group_pages_bytes(group) - bytes);
}

bool kvf_group_decode(const uint8_t page[KVF_PAGE], const struct kvf_place *place, uint64_t offset,
                      struct kvf_group *group)
{
    if (get64(page) != GROUP_MAGIC || !place_is(page + 8, place) || get64(page + 40) != offset)
        return false;
    struct kvf_group found = {
        .offset = offset,
        .header_bytes = get32(page + 36),
        .record_count = get32(page + 48),
        .first_number = get32(page + 52),
    };
    if (found.header_bytes < KVF_RECORD_PREFIX_BYTES ||
        found.header_bytes > KVF_GROUP_PAGES_MAX_BYTES - KVF_GROUP_PREFIX_BYTES ||
        found.record_count == 0 ||
        found.record_count > found.header_bytes / KVF_RECORD_PREFIX_BYTES || offset < KVF_PAGE ||
        offset > place->segment_bytes ||
        kvf_group_pages_bytes(&found) > place->segment_bytes - offset)
        return false;
    *group = found;
    return true;
}

bool kvf_group_check(const uint8_t *pages, const struct kvf_group *group)
{
    return get32(pages + PREFIX_CRC_AT) ==
           prefixed_crc(pages, KVF_GROUP_PREFIX_BYTES + group->header_bytes);
}

/* ---- marks ---- */

void kvf_mark_encode(const struct kvf_place *place, uint64_t offset, uint8_t page[KVF_PAGE])
{
    page_start(page, MARK_MAGIC, KVF_FORMAT_VERSION);
    place_put(page + 16, place);
    put64(page + 48, offset);
    page_seal(page);
}

bool kvf_mark_decode(const uint8_t page[KVF_PAGE], const struct kvf_place *place, uint64_t offset)
{
    return page_is_whole(page, MARK_MAGIC) && get32(page + 8) == KVF_FORMAT_VERSION &&
           place_is(page + 16, place) && get64(page + 48) == offset;
}

/* ---- the index ---- */

bool kvf_index_check(const uint8_t *index, const struct kvf_place *place,
                     const struct kvf_footer *footer)
{
    struct kvf_record_head head;
    uint64_t at = 0, free_from = 2 * KVF_PAGE;
    if (kvf_crc32c(0, index, footer->index_bytes) != footer->index_crc32c)
        return false;
    for (uint32_t i = 0; i < footer->record_count; i++) {
        size_t bytes = kvf_record_header_decode(index + at, footer->index_bytes - at, place, &head);
        if (bytes == 0 || head.offset < free_from)
            return false;
        free_from = head.offset + kvf_round_up_page(head.record.length);
        if (free_from > footer->index_offset)
            return false;
        at += bytes;
    }
    return at == footer->index_bytes;
}
