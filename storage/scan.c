/* Two ways through a segment, by what its footer says:
 *   by its index   whole: every header in it is told, payloads are not read;
 *   by its groups  no footer (it was open), or footer or index are damaged or unreadable: group by group, each payload
 *                  against its checksum. Behind a damaged group the search goes on page by page, for a durable group may
 *                  follow it. Then it is sealed. */
#include "storage/scan.h"

#include "base/crc32c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW_BYTES (2 * KVF_MIB)

static bool write_all(struct kvf_scan *scan, const uint8_t *memory, uint64_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t put = pwrite(scan->segment->fd, memory, bytes, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            scan->write_error = put < 0 ? errno : EIO;
            return false;
        }
        memory += put;
        bytes -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return true;
}

static void tell(struct kvf_scan *scan, const struct kvf_record_head *head)
{
    scan->used_bytes += kvf_round_up_page(head->record.length);
    scan->record_count++;
    scan->found(scan, head);
}

/* ---- by its index ---- */

/* False: not sealed, or not soundly; nothing was told. */
static bool tell_sealed(struct kvf_scan *scan)
{
    struct kvf_footer footer;
    if (!kvf_window_read(&scan->window, scan->group, KVF_PAGE,
                         scan->place.segment_bytes - KVF_PAGE) ||
        !kvf_footer_decode(scan->group, &scan->place, &footer) ||
        !kvf_window_read(&scan->window, scan->index, kvf_round_up_page(footer.index_bytes),
                         footer.index_offset) ||
        !kvf_index_check(scan->index, &scan->place, &footer))
        return false;
    struct kvf_record_head head;
    for (uint64_t at = 0; at < footer.index_bytes;) {
        at += kvf_record_header_decode(scan->index + at, footer.index_bytes - at, &scan->place,
                                       &head);
        tell(scan, &head);
    }
    scan->index_bytes = footer.index_bytes;
    scan->end = footer.index_offset + kvf_round_up_page(footer.index_bytes);
    return true;
}

/* ---- by its groups ---- */

static void keep_in_index(struct kvf_scan *scan, const uint8_t *header, size_t bytes)
{
    memcpy(scan->index + scan->index_bytes, header, bytes);
    scan->index_bytes += bytes;
}

/* The pages of the group at `offset` in scan->group; false: there is none. */
static bool read_group(struct kvf_scan *scan, uint64_t offset, struct kvf_group *group)
{
    const uint8_t *page = kvf_window_look(&scan->window, offset, KVF_PAGE);
    if (page == NULL || !kvf_group_decode(page, &scan->place, offset, group))
        return false;
    const uint8_t *pages = kvf_window_look(&scan->window, offset, kvf_group_pages_bytes(group));
    if (pages == NULL || !kvf_group_check(pages, group))
        return false;
    memcpy(scan->group, pages, kvf_group_pages_bytes(group));
    return true;
}

/* Tell the whole records of one group. Returns the end of the group, or 0 when there is none at `offset`. */
static uint64_t tell_group(struct kvf_scan *scan, uint64_t offset)
{
    struct kvf_group group;
    if (!read_group(scan, offset, &group))
        return 0;
    uint64_t payload = offset + kvf_group_pages_bytes(&group), at = KVF_GROUP_PREFIX_BYTES;
    uint64_t headers_end = KVF_GROUP_PREFIX_BYTES + group.header_bytes;
    for (uint32_t i = 0; i < group.record_count; i++) {
        struct kvf_record_head head;
        size_t bytes =
            kvf_record_header_decode(scan->group + at, headers_end - at, &scan->place, &head);
        if (bytes == 0 || head.offset != payload || head.number != group.first_number + i)
            break; /* cannot be under a right checksum, but the drive does not get to prove that */
        payload += kvf_round_up_page(head.record.length);
        if (scan->index_bytes + bytes <= kvf_index_max_bytes(scan->place.segment_bytes) &&
            kvf_window_holds(&scan->window, &head)) {
            keep_in_index(scan, scan->group + at, bytes);
            tell(scan, &head);
        }
        at += bytes;
        if (kvf_window_is_over(&scan->window))
            break;
    }
    return payload;
}

/* Behind damage the next group may begin on any page. What is told counts as durable, and a crash may have left it in a
 * cache only. */
static void tell_groups(struct kvf_scan *scan)
{
    if (fdatasync(scan->segment->fd) != 0)
        scan->write_error = errno;
    uint64_t offset = KVF_PAGE, end = scan->place.segment_bytes - KVF_PAGE;
    scan->index_bytes = 0;
    scan->end = KVF_PAGE;
    while (offset < end && !kvf_window_is_over(&scan->window)) {
        uint64_t next = tell_group(scan, offset);
        offset = next != 0 ? next : offset + KVF_PAGE;
        if (next != 0)
            scan->end = next;
    }
}

/* The index goes behind the last group; the writer kept room for it. */
static void seal(struct kvf_scan *scan)
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
    kvf_footer_encode(&scan->place, &footer, scan->group);
    if (write_all(scan, scan->index, index_pages, footer.index_offset) &&
        write_all(scan, scan->group, KVF_PAGE, scan->place.segment_bytes - KVF_PAGE) &&
        fdatasync(scan->segment->fd) != 0)
        scan->write_error = errno;
}

/* Nothing that names this filling is whole behind `end`: the scan has looked at every page, or the index says so. What the
 * writer puts there cannot be mistaken. An eighth of the segment is worth it. */
static bool find_rest(struct kvf_scan *scan)
{
    uint64_t bytes = scan->place.segment_bytes, position = scan->end + KVF_PAGE;
    uint64_t needed = position + kvf_round_up_page(scan->index_bytes) + KVF_PAGE;
    if (!scan->is_newest || needed + bytes / 8 > bytes)
        return false;
    uint8_t *index = malloc(scan->index_bytes);
    if (index == NULL)
        return false;
    memcpy(index, scan->index, scan->index_bytes);
    scan->rest = (struct kvf_rest){
        .segment = scan->segment,
        .position = position,
        .record_count = scan->record_count,
        .index = index,
        .index_bytes = scan->index_bytes,
        .is_sealed = !scan->by_groups,
    };
    return true;
}

/* ---- all of it ---- */

enum kvf_segment_state kvf_scan_header(const struct kvf_drive *drive, struct kvf_segment *segment,
                                       uint8_t *page, int *error)
{
    struct kvf_place place = kvf_segment_place(drive, segment);
    bool in_use = false;
    struct kvf_window window = {0};
    kvf_window_aim(&window, segment->fd, drive->segment_bytes);
    bool read = kvf_window_read(&window, page, KVF_PAGE, 0);
    *error = window.error;
    if (!read)
        return KVF_SEGMENT_LOST;
    if (!kvf_segment_header_decode(page, &place, &in_use) || !in_use)
        return KVF_SEGMENT_FREE;
    segment->sequence = place.sequence;
    return KVF_SEGMENT_UNREAD;
}

enum kvf_segment_state kvf_scan_segment(struct kvf_scan *scan, struct kvf_segment *segment)
{
    scan->segment = segment;
    scan->place = kvf_segment_place(scan->drive, segment);
    scan->used_bytes = 0;
    scan->record_count = 0;
    scan->write_error = 0;
    scan->rest = (struct kvf_rest){0};
    kvf_window_aim(&scan->window, segment->fd, scan->place.segment_bytes);
    scan->by_groups = !tell_sealed(scan);
    if (scan->by_groups) {
        scan->window.error = 0; /* an index that cannot be read is as good as none */
        tell_groups(scan);
    }
    bool whole = !kvf_window_is_over(&scan->window) && scan->record_count > 0;
    if (whole && scan->write_error == 0 && !find_rest(scan) && scan->by_groups)
        seal(scan);
    scan->read_error = scan->window.error;
    if (atomic_load(scan->stop))
        return KVF_SEGMENT_UNREAD;
    if (scan->read_error != 0)
        return KVF_SEGMENT_LOST;
    return scan->record_count > 0 || !scan->by_groups ? KVF_SEGMENT_SEALED : KVF_SEGMENT_FREE;
}

bool kvf_scan_init(struct kvf_scan *scan)
{
    void *index = mmap(NULL, kvf_index_max_bytes(scan->drive->segment_bytes),
                       PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    scan->index = index != MAP_FAILED ? index : NULL;
    scan->window = (struct kvf_window){.capacity_bytes = WINDOW_BYTES, .stop = scan->stop};
    scan->group = aligned_alloc(KVF_PAGE, KVF_GROUP_PAGES_MAX_BYTES);
    return kvf_window_init(&scan->window) && scan->group != NULL && scan->index != NULL;
}

void kvf_scan_fini(struct kvf_scan *scan)
{
    kvf_window_fini(&scan->window);
    free(scan->group);
    if (scan->index != NULL)
        (void)munmap(scan->index, kvf_index_max_bytes(scan->drive->segment_bytes));
}
