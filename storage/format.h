/* The on-disk structures: encoding, and a decoder that trusts nothing.
 *
 * A drive's directory holds a marker (what store this is) and segment files. A segment is
 *
 *     header page | group | group | ... | index | ... | footer page (the file's last)
 *
 * and a group is whole pages of packed record headers, followed by the payloads, each on its own pages, in order. Index
 * and footer are written when the segment is sealed: the index repeats every record header, so that recovery reads
 * nothing else. Every structure names the store, the segment and its sequence, so that what was copied, swapped or left
 * over from an earlier filling is recognised. Integers are little-endian.
 *
 * Pure functions, no state; sizes and offsets are bytes. Decoders return false (or 0, or a status) for anything that is
 * not exactly what an encoder wrote for this place. */
#ifndef KVFERRY_STORAGE_FORMAT_H
#define KVFERRY_STORAGE_FORMAT_H

#include "base/block.h"
#include "base/status.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_FORMAT_VERSION 1
#define KVF_SEGMENT_MAX_BYTES (UINT64_C(1) << 40)
#define KVF_SEGMENTS_MAX 65536 /* of one drive */
#define KVF_GROUP_PREFIX_BYTES 64
#define KVF_GROUPS_UNDER_WAY 3 /* of one segment: as many a crash may leave unfinished */
#define KVF_GROUP_PAGES_MAX_BYTES (UINT64_C(1) << 20) /* prefix and packed headers of one group */
#define KVF_RECORD_PREFIX_BYTES 80
#define KVF_RECORD_HEADER_MAX_BYTES                                                                \
    (KVF_RECORD_PREFIX_BYTES + KVF_KEY_MAX_BYTES + KVF_NAMESPACE_MAX_BYTES)

struct kvf_uuid {
    uint8_t bytes[16];
};

/* The file `kvferry.store`: one page. */
struct kvf_marker {
    uint32_t version;
    struct kvf_uuid uuid;
    uint64_t segment_bytes;
    uint64_t segment_count;
    uint64_t boot_epoch; /* of the last start */
};

void kvf_marker_encode(const struct kvf_marker *marker, uint8_t page[KVF_PAGE]);
/* INVALID: not a marker at all. CORRUPT: ours, but damaged. UNSUPPORTED: newer than this program. An older version is OK
 * and seen in ->version. */
KVF_MUST_USE struct kvf_status kvf_marker_decode(const uint8_t *page, size_t bytes,
                                                 struct kvf_marker *marker);

/* Where a structure is found, and so what it has to say of itself. */
struct kvf_place {
    struct kvf_uuid uuid;
    uint32_t segment;
    uint64_t segment_bytes;
    uint64_t sequence; /* of this filling of the segment */
};

void kvf_segment_header_encode(const struct kvf_place *place, bool in_use, uint8_t page[KVF_PAGE]);
/* place->sequence is not looked at but set on success. */
bool kvf_segment_header_decode(const uint8_t page[KVF_PAGE], struct kvf_place *place, bool *in_use);

/* A decoded record header; owns its strings. */
struct kvf_record_head {
    struct kvf_record record; /* .namespace points at `namespace` below */
    char namespace[KVF_NAMESPACE_MAX_BYTES + 1];
    uint32_t number; /* of the record in its segment, from 0 */
    uint64_t offset; /* of the payload in the segment */
};

/* The encoded size, a multiple of 8. The record must be valid. */
size_t kvf_record_header_bytes(const struct kvf_record *record);
/* Writes kvf_record_header_bytes() at `at` and returns them. */
size_t kvf_record_header_encode(const struct kvf_place *place, const struct kvf_record *record,
                                uint32_t number, uint64_t offset, uint8_t *at);
/* Bytes taken from `at`, or 0. On success the payload lies inside the segment. head must not move afterwards. */
size_t kvf_record_header_decode(const uint8_t *at, size_t left, const struct kvf_place *place,
                                struct kvf_record_head *head);

struct kvf_group {
    uint64_t offset;       /* of its first page in the segment */
    uint32_t header_bytes; /* of the packed headers behind the prefix */
    uint32_t record_count; /* >= 1 */
    uint32_t first_number;
};

/* Prefix and headers, in whole pages. */
static inline uint64_t kvf_group_pages_bytes(const struct kvf_group *group)
{
    return kvf_round_up_page(KVF_GROUP_PREFIX_BYTES + group->header_bytes);
}

/* The headers are in place behind the prefix: write the prefix and zero the tail of the last page. */
void kvf_group_encode(const struct kvf_place *place, const struct kvf_group *group, uint8_t *pages);
/* Reads the prefix only: enough to know how many pages kvf_group_check needs. */
bool kvf_group_decode(const uint8_t page[KVF_PAGE], const struct kvf_place *place, uint64_t offset,
                      struct kvf_group *group);
/* The checksum over prefix and headers; `pages` holds kvf_group_pages_bytes(). */
bool kvf_group_check(const uint8_t *pages, const struct kvf_group *group);

/* Where a start goes on with a segment that was open or sealed: one page, behind all that the segment held then. The
 * groups right in front of it are those that a crash may have cut off. */
void kvf_mark_encode(const struct kvf_place *place, uint64_t offset, uint8_t page[KVF_PAGE]);
bool kvf_mark_decode(const uint8_t page[KVF_PAGE], const struct kvf_place *place, uint64_t offset);

struct kvf_footer {
    uint64_t index_offset;
    uint64_t index_bytes; /* packed record headers */
    uint32_t record_count;
    uint32_t index_crc32c;
};

void kvf_footer_encode(const struct kvf_place *place, const struct kvf_footer *footer,
                       uint8_t page[KVF_PAGE]);
bool kvf_footer_decode(const uint8_t page[KVF_PAGE], const struct kvf_place *place,
                       struct kvf_footer *footer);

/* Which filling a whole footer page is of; false: it is no whole footer page. */
bool kvf_footer_sequence(const uint8_t page[KVF_PAGE], uint64_t *sequence);
/* Every header of the index decodes, in order and without overlap, and their checksum is the footer's: what an encoder
 * wrote and nothing else. `index` holds footer->index_bytes. */
bool kvf_index_check(const uint8_t *index, const struct kvf_place *place,
                     const struct kvf_footer *footer);

/* The most bytes of packed headers one segment may collect; the segment is full beyond. */
uint64_t kvf_index_max_bytes(uint64_t segment_bytes);

#endif
