/* Three ways through a segment, by what its header and footer say:
 *   free    nothing to tell;
 *   sealed  the index is whole: every header in it is told, payloads are not read;
 *   scan    no footer (it was open), or footer or index are damaged: group by group, each payload against its checksum.
 *           Behind a damaged group the search goes on page by page, for a durable group may follow it. */
#include "storage/recover.h"

#include "base/crc32c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES KVF_MIB

struct scan {
    struct kvf_drive *drive;
    struct kvf_segment *segment;
    struct kvf_place place;
    kvf_recover_found *found;
    void *context;
    uint8_t *chunk; /* CHUNK_BYTES, for payloads and for the search */
    uint8_t *group; /* KVF_GROUP_PAGES_MAX_BYTES */
    uint8_t *index; /* kvf_index_max_bytes */
    uint64_t index_bytes;
    uint32_t record_count;
    uint64_t end; /* behind the last group */
    int error;    /* of the drive, ends the segment */
};

/* All bytes, or scan->error. */
static bool read_all(struct scan *scan, uint8_t *memory, uint64_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t got = pread(scan->segment->fd, memory, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            scan->error = got < 0 ? errno : EIO;
            return false;
        }
        memory += got;
        bytes -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

static bool write_all(struct scan *scan, const uint8_t *memory, uint64_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t put = pwrite(scan->segment->fd, memory, bytes, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            scan->error = put < 0 ? errno : EIO;
            return false;
        }
        memory += put;
        bytes -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return true;
}

static void tell(struct scan *scan, const struct kvf_record_head *head)
{
    struct kvf_location location = {
        .drive = scan->drive->index,
        .segment = scan->segment->number,
        .sequence = scan->place.sequence,
        .offset = head->offset,
    };
    scan->segment->used_bytes += kvf_round_up_page(head->record.length);
    scan->record_count++;
    scan->found(scan->context, &head->record, location);
}

/* ---- sealed ---- */

/* False: not sealed, or not soundly; nothing was told. */
static bool tell_sealed(struct scan *scan)
{
    struct kvf_footer footer;
    if (!read_all(scan, scan->chunk, KVF_PAGE, scan->place.segment_bytes - KVF_PAGE) ||
        !kvf_footer_decode(scan->chunk, &scan->place, &footer) ||
        !read_all(scan, scan->index, kvf_round_up_page(footer.index_bytes), footer.index_offset) ||
        !kvf_index_check(scan->index, &scan->place, &footer))
        return false;
    struct kvf_record_head head;
    for (uint64_t at = 0; at < footer.index_bytes;) {
        at += kvf_record_header_decode(scan->index + at, footer.index_bytes - at, &scan->place,
                                       &head);
        tell(scan, &head);
    }
    return true;
}

/* ---- scan ---- */

static bool payload_is_whole(struct scan *scan, const struct kvf_record_head *head)
{
    uint32_t crc = 0;
    for (uint64_t done = 0; done < head->record.length;) {
        uint64_t left = head->record.length - done;
        uint64_t bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        if (!read_all(scan, scan->chunk, kvf_round_up_page(bytes), head->offset + done))
            return false;
        crc = kvf_crc32c(crc, scan->chunk, bytes);
        done += bytes;
    }
    return crc == head->record.crc32c;
}

static void keep_in_index(struct scan *scan, const uint8_t *header, size_t bytes)
{
    memcpy(scan->index + scan->index_bytes, header, bytes);
    scan->index_bytes += bytes;
}

/* Tell the whole records of one group. Returns the end of the group, or 0 when there is none at `offset`. */
static uint64_t tell_group(struct scan *scan, uint64_t offset)
{
    struct kvf_group group;
    if (!read_all(scan, scan->group, KVF_PAGE, offset) ||
        !kvf_group_decode(scan->group, &scan->place, offset, &group))
        return 0;
    uint64_t pages = kvf_group_pages_bytes(&group);
    if (!read_all(scan, scan->group, pages, offset) || !kvf_group_check(scan->group, &group))
        return 0;
    uint64_t payload = offset + pages, at = KVF_GROUP_PREFIX_BYTES;
    uint64_t headers_end = KVF_GROUP_PREFIX_BYTES + group.header_bytes;
    for (uint32_t i = 0; i < group.record_count; i++) {
        struct kvf_record_head head;
        size_t bytes =
            kvf_record_header_decode(scan->group + at, headers_end - at, &scan->place, &head);
        if (bytes == 0 || head.offset != payload || head.number != group.first_number + i)
            break; /* cannot be under a right checksum, but the drive does not get to prove that */
        payload += kvf_round_up_page(head.record.length);
        if (scan->index_bytes + bytes <= kvf_index_max_bytes(scan->place.segment_bytes) &&
            payload_is_whole(scan, &head)) {
            keep_in_index(scan, scan->group + at, bytes);
            tell(scan, &head);
        }
        at += bytes;
        if (scan->error != 0)
            break;
    }
    return payload;
}

/* The next page from `offset` on that starts a group of this filling, or the footer's offset. */
static uint64_t find_group(struct scan *scan, uint64_t offset)
{
    uint64_t end = scan->place.segment_bytes - KVF_PAGE;
    struct kvf_group ignored;
    while (offset < end) {
        uint64_t bytes = end - offset < CHUNK_BYTES ? end - offset : CHUNK_BYTES;
        if (!read_all(scan, scan->chunk, bytes, offset))
            break;
        for (uint64_t at = 0; at < bytes; at += KVF_PAGE)
            if (kvf_group_decode(scan->chunk + at, &scan->place, offset + at, &ignored))
                return offset + at;
        offset += bytes;
    }
    return end;
}

static void tell_groups(struct scan *scan)
{
    uint64_t offset = KVF_PAGE, end = scan->place.segment_bytes - KVF_PAGE;
    scan->index_bytes = 0;
    scan->record_count = 0;
    scan->end = KVF_PAGE;
    while (offset < end && scan->error == 0) {
        uint64_t next = tell_group(scan, offset);
        if (next != 0) {
            scan->end = offset = next;
            continue;
        }
        if (scan->error == 0)
            offset = find_group(scan, offset + KVF_PAGE);
    }
}

/* The index goes behind the last group; the writer kept room for it. */
static void seal(struct scan *scan)
{
    uint64_t index_pages = kvf_round_up_page(scan->index_bytes);
    struct kvf_footer footer = {
        .index_offset = scan->end,
        .index_bytes = scan->index_bytes,
        .record_count = scan->record_count,
        .index_crc32c = kvf_crc32c(0, scan->index, scan->index_bytes),
    };
    if (index_pages > scan->place.segment_bytes - KVF_PAGE - scan->end)
        return; /* not by our writer; it is simply scanned at every start */
    memset(scan->index + scan->index_bytes, 0, index_pages - scan->index_bytes);
    kvf_footer_encode(&scan->place, &footer, scan->chunk);
    if (write_all(scan, scan->index, index_pages, footer.index_offset) &&
        write_all(scan, scan->chunk, KVF_PAGE, scan->place.segment_bytes - KVF_PAGE) &&
        fdatasync(scan->segment->fd) != 0)
        scan->error = errno;
}

/* ---- all of it ---- */

static void recover_segment(struct scan *scan)
{
    struct kvf_segment *segment = scan->segment;
    bool in_use = false;
    segment->state = KVF_SEGMENT_LOST;
    segment->used_bytes = 0;
    scan->place = kvf_segment_place(scan->drive, segment);
    if (!read_all(scan, scan->chunk, KVF_PAGE, 0))
        return;
    if (!kvf_segment_header_decode(scan->chunk, &scan->place, &in_use) || !in_use) {
        segment->state = KVF_SEGMENT_FREE;
        return;
    }
    segment->sequence = scan->place.sequence;
    segment->state = KVF_SEGMENT_SEALED;
    scan->record_count = 0;
    if (tell_sealed(scan) || scan->error != 0)
        return;
    tell_groups(scan);
    if (scan->error == 0 && scan->record_count > 0)
        seal(scan);
    else if (scan->error == 0)
        segment->state = KVF_SEGMENT_FREE;
}

static bool scan_init(struct scan *scan, struct kvf_drive *drive)
{
    scan->drive = drive;
    scan->chunk = aligned_alloc(KVF_PAGE, CHUNK_BYTES);
    scan->group = aligned_alloc(KVF_PAGE, KVF_GROUP_PAGES_MAX_BYTES);
    scan->index = aligned_alloc(KVF_PAGE, kvf_index_max_bytes(drive->segment_bytes));
    return scan->chunk != NULL && scan->group != NULL && scan->index != NULL;
}

static void scan_fini(struct scan *scan)
{
    free(scan->chunk);
    free(scan->group);
    free(scan->index);
}

struct kvf_status kvf_recover_drive(struct kvf_drive *drive, kvf_recover_found *found,
                                    void *context, int *error, struct kvf_why *why)
{
    struct scan scan = {.found = found, .context = context};
    struct kvf_status status = kvf_ok();
    *error = 0;
    if (!scan_init(&scan, drive))
        status = kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    for (uint32_t i = 0; i < drive->segment_count && kvf_is_ok(status); i++) {
        scan.segment = &drive->segments[i];
        scan.error = 0;
        recover_segment(&scan);
        if (scan.error != 0 && *error == 0) {
            *error = scan.error;
            (void)kvf_why_set(
                why, kvf_ok(),
                "%s: segment %u cannot be read or sealed (%s): the drive is read-only", drive->path,
                i, strerror(scan.error));
        }
        drive->free_count += scan.segment->state == KVF_SEGMENT_FREE;
        drive->stats.used_bytes += scan.segment->used_bytes;
    }
    scan_fini(&scan);
    return status;
}
