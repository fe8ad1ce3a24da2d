/* kvf_store_verify. Each segment is gone through once, from front to back, in large reads: a sealed one by its index, one
 * without a whole footer or index by its groups.
 *
 * What is no damage: the last groups of a segment that was open may be cut off anywhere, as many as can be under way when
 * a daemon is killed. */
#include "storage/drive.h"
#include "storage/window.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW_BYTES (8 * KVF_MIB)

struct check {
    const struct kvf_verify_options *options;
    struct kvf_verify_result *result;
    struct kvf_why *why;
    uint64_t told_ns; /* of the last progress */

    struct kvf_drive drive;
    struct kvf_place place; /* of this segment */
    char name[KVF_SEGMENT_NAME_BYTES];
    uint64_t done_before; /* result->done_bytes at its start */

    struct kvf_window window;
    uint8_t *group; /* KVF_GROUP_PAGES_MAX_BYTES */
    uint8_t *index; /* kvf_index_max_bytes */
};

static void tell_progress(struct check *check, uint64_t offset)
{
    uint64_t now = kvf_clock_now_ns();
    check->result->done_bytes = check->done_before + offset;
    if (check->options->progress == NULL || now - check->told_ns < KVF_NS_PER_S)
        return;
    check->told_ns = now;
    check->options->progress(check->options->context, check->result);
}

static void tell_damage(struct check *check, uint64_t offset, const char *what,
                        const struct kvf_record *record)
{
    struct kvf_verify_damage damage = {
        .path = check->drive.path,
        .file = check->name,
        .offset = offset,
        .what = what,
        .record = record,
    };
    check->result->damaged++;
    if (check->options->damaged != NULL)
        check->options->damaged(check->options->context, &damage);
}

/* False also when it cannot be read. */
static bool payload_is_right(struct check *check, const struct kvf_record_head *head)
{
    bool right = kvf_window_holds(&check->window, head);
    tell_progress(check, head->offset);
    if (check->window.error != 0)
        return false;
    check->result->records++;
    check->result->bytes += head->record.length;
    return right;
}

/* ---- a sealed segment ---- */

/* Every payload that the index in check->index names. */
static void check_sealed(struct check *check, const struct kvf_footer *footer)
{
    for (uint64_t at = 0; at < footer->index_bytes && check->window.error == 0;) {
        struct kvf_record_head head;
        at += kvf_record_header_decode(check->index + at, footer->index_bytes - at, &check->place,
                                       &head);
        if (!payload_is_right(check, &head) && check->window.error == 0)
            tell_damage(check, head.offset, "payload does not match its checksum", &head.record);
    }
}

static bool page_is_zero(const uint8_t *page)
{
    static const uint8_t zeros[KVF_PAGE];
    return memcmp(page, zeros, KVF_PAGE) == 0;
}

enum seal {
    SEAL_WHOLE,
    SEAL_NONE, /* never sealed in this filling */
    SEAL_DAMAGED,
};

/* The footer page of a segment that is open is what its making or an earlier filling left there. */
static bool footer_is_older(const uint8_t *page, const struct kvf_place *place)
{
    struct kvf_place older = *place;
    struct kvf_footer ignored;
    if (page_is_zero(page))
        return true;
    return kvf_footer_sequence(page, &older.sequence) && older.sequence != place->sequence &&
           kvf_footer_decode(page, &older, &ignored);
}

/* Tells what is damaged. */
static enum seal look_at_seal(struct check *check, struct kvf_footer *footer)
{
    uint64_t offset = check->place.segment_bytes - KVF_PAGE;
    if (!kvf_window_read(&check->window, check->group, KVF_PAGE, offset))
        return SEAL_DAMAGED;
    if (!kvf_footer_decode(check->group, &check->place, footer)) {
        if (footer_is_older(check->group, &check->place))
            return SEAL_NONE;
        tell_damage(check, offset, "footer is damaged", NULL);
        return SEAL_DAMAGED;
    }
    if (!kvf_window_read(&check->window, check->index, kvf_round_up_page(footer->index_bytes),
                         footer->index_offset))
        return SEAL_DAMAGED;
    if (kvf_index_check(check->index, &check->place, footer))
        return SEAL_WHOLE;
    tell_damage(check, footer->index_offset, "index is damaged", NULL);
    return SEAL_DAMAGED;
}

/* ---- a segment by its groups ---- */

/* The pages of the group at `offset` in check->group; false: there is none. */
static bool read_group(struct check *check, uint64_t offset, struct kvf_group *group)
{
    const uint8_t *page = kvf_window_look(&check->window, offset, KVF_PAGE);
    if (page == NULL || !kvf_group_decode(page, &check->place, offset, group))
        return false;
    uint64_t bytes = kvf_group_pages_bytes(group);
    if (bytes > check->place.segment_bytes - KVF_PAGE - offset)
        return false;
    const uint8_t *pages = kvf_window_look(&check->window, offset, bytes);
    if (pages == NULL || !kvf_group_check(pages, group))
        return false;
    memcpy(check->group, pages, bytes);
    return true;
}

/* The end of the group. */
static uint64_t check_group(struct check *check, const struct kvf_group *group, bool may_be_cut)
{
    uint64_t payload = group->offset + kvf_group_pages_bytes(group), at = KVF_GROUP_PREFIX_BYTES;
    uint64_t headers_end = KVF_GROUP_PREFIX_BYTES + group->header_bytes;
    for (uint32_t i = 0; i < group->record_count && check->window.error == 0; i++) {
        struct kvf_record_head head;
        size_t bytes =
            kvf_record_header_decode(check->group + at, headers_end - at, &check->place, &head);
        if (bytes == 0 || head.offset != payload) {
            tell_damage(check, group->offset, "group is damaged", NULL);
            break;
        }
        at += bytes;
        payload += kvf_round_up_page(head.record.length);
        if (payload_is_right(check, &head) || check->window.error != 0)
            continue;
        if (may_be_cut)
            check->result->unfinished++;
        else
            tell_damage(check, head.offset, "payload does not match its checksum", &head.record);
    }
    return payload;
}

static bool is_mark(struct check *check, uint64_t offset)
{
    const uint8_t *page = kvf_window_look(&check->window, offset, KVF_PAGE);
    return page != NULL && kvf_mark_decode(page, &check->place, offset);
}

/* The next group from `offset` on; false: none follows in this stretch, which ends at *end. */
static bool find_group(struct check *check, uint64_t offset, struct kvf_group *group, uint64_t *end)
{
    *end = check->place.segment_bytes - KVF_PAGE;
    for (; offset < *end && check->window.error == 0; offset += KVF_PAGE) {
        if (read_group(check, offset, group))
            return true;
        if (is_mark(check, offset))
            *end = offset;
    }
    return false;
}

static uint64_t group_end(const struct check *check, const struct kvf_group *group)
{
    uint64_t end = group->offset + kvf_group_pages_bytes(group), at = KVF_GROUP_PREFIX_BYTES;
    uint64_t headers_end = KVF_GROUP_PREFIX_BYTES + group->header_bytes;
    for (uint32_t i = 0; i < group->record_count; i++) {
        struct kvf_record_head head;
        size_t bytes =
            kvf_record_header_decode(check->group + at, headers_end - at, &check->place, &head);
        if (bytes == 0)
            break;
        at += bytes;
        end += kvf_round_up_page(head.record.length);
    }
    return end;
}

/* What was written between two starts. */
struct stretch {
    uint64_t start, end;
    unsigned groups;
};

static struct stretch look_at_stretch(struct check *check, uint64_t start)
{
    struct stretch stretch = {.start = start};
    struct kvf_group group;
    for (uint64_t offset = start; find_group(check, offset, &group, &stretch.end); stretch.groups++)
        offset = group_end(check, &group);
    return stretch;
}

/* Its last groups may be cut, where no seal says that they were finished. */
static void check_stretch(struct check *check, const struct stretch *stretch, bool was_open)
{
    uint64_t offset = stretch->start, end;
    unsigned number = 0;
    struct kvf_group group;
    while (check->window.error == 0 && find_group(check, offset, &group, &end)) {
        number++;
        bool may_be_cut = was_open && number + KVF_GROUPS_UNDER_WAY > stretch->groups;
        bool may_follow_one = was_open && number + KVF_GROUPS_UNDER_WAY - 1 > stretch->groups;
        /* In front of it a whole group may be missing that was under way, too. */
        if (group.offset != offset && may_follow_one)
            check->result->unfinished++;
        else if (group.offset != offset)
            tell_damage(check, offset, "no group is where one must be", NULL);
        offset = check_group(check, &group, may_be_cut);
    }
}

/* A start goes on behind a mark, whatever a crash has left in front of it. */
static void check_groups(struct check *check, bool was_open)
{
    const uint64_t footer = check->place.segment_bytes - KVF_PAGE;
    for (uint64_t offset = KVF_PAGE; offset < footer && check->window.error == 0;) {
        struct stretch stretch = look_at_stretch(check, offset);
        bool is_last = stretch.end == footer;
        check_stretch(check, &stretch, was_open || !is_last);
        offset = is_last ? footer : stretch.end + KVF_PAGE;
    }
}

/* ---- a segment ---- */

static void check_content(struct check *check)
{
    struct kvf_footer footer;
    bool in_use = false;
    if (!kvf_window_read(&check->window, check->group, KVF_PAGE, 0))
        return;
    if (!kvf_segment_header_decode(check->group, &check->place, &in_use)) {
        if (!page_is_zero(check->group))
            tell_damage(check, 0, "segment header is damaged: its records are lost", NULL);
        return;
    }
    if (!in_use)
        return;
    check->result->segments++;
    enum seal seal = look_at_seal(check, &footer);
    if (check->window.error != 0)
        return;
    if (seal == SEAL_WHOLE)
        check_sealed(check, &footer);
    else
        check_groups(check, seal == SEAL_NONE);
}

static void check_file(struct check *check)
{
    struct stat file;
    if (fstat(check->window.fd, &file) != 0) {
        check->window.error = errno;
        return;
    }
    if (!S_ISREG(file.st_mode)) {
        tell_damage(check, 0, "segment is no plain file", NULL);
        return;
    }
    if ((uint64_t)file.st_size < check->place.segment_bytes)
        tell_damage(check, (uint64_t)file.st_size, "segment file is cut off here", NULL);
    check_content(check);
}

static void check_segment(struct check *check, uint32_t number)
{
    check->place = (struct kvf_place){
        .uuid = check->drive.uuid, .segment = number, .segment_bytes = check->drive.segment_bytes};
    kvf_segment_name(number, check->name);
    int fd = kvf_drive_open_to_read(&check->drive, number);
    kvf_window_aim(&check->window, fd, check->place.segment_bytes);
    if (fd == -ENOENT) {
        tell_damage(check, 0, "segment file is missing", NULL);
    } else if (fd < 0) {
        check->window.error = -fd;
    } else {
        check_file(check);
        (void)close(fd);
    }
    if (check->window.error != 0) {
        check->result->unreadable++;
        (void)kvf_why_set(check->why, kvf_ok(),
                          "%.200s/%s: cannot be read (%s): look at the kernel's log and the drive",
                          check->drive.path, check->name, strerror(check->window.error));
    }
    check->done_before += check->drive.segment_bytes;
    tell_progress(check, 0);
}

/* ---- a drive ---- */

static struct kvf_status check_drive(struct check *check)
{
    check->index = aligned_alloc(KVF_PAGE, kvf_index_max_bytes(check->drive.segment_bytes));
    if (check->index == NULL)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    for (uint32_t i = 0; i < check->drive.segment_count; i++)
        check_segment(check, i);
    free(check->index);
    return kvf_ok();
}

/* All locks are taken before the first record is looked at. */
static struct kvf_status check_drives(struct check *check, struct kvf_drive *drives)
{
    const struct kvf_verify_options *options = check->options;
    for (size_t i = 0; i < options->path_count; i++) {
        struct kvf_marker marker;
        KVF_TRY(kvf_drive_lock_to_read(&drives[i], options->paths[i], &marker, check->why));
        if (drives[i].was_old)
            return kvf_why_set(check->why, kvf_fail(KVF_MODULE_STORAGE, KVF_UNSUPPORTED, 0),
                               "%s: written in an older format: a start empties it, nothing is to "
                               "be checked",
                               options->paths[i]);
        check->result->total_bytes += drives[i].segment_count * drives[i].segment_bytes;
    }
    for (size_t i = 0; i < options->path_count; i++) {
        check->drive = drives[i];
        KVF_TRY(check_drive(check));
    }
    return check->result->unreadable == 0 ? kvf_ok() : kvf_fail(KVF_MODULE_STORAGE, KVF_IO, EIO);
}

struct kvf_status kvf_store_verify(const struct kvf_verify_options *options,
                                   struct kvf_verify_result *result, struct kvf_why *why)
{
    struct check check = {.options = options,
                          .result = result,
                          .why = why,
                          .told_ns = kvf_clock_now_ns(),
                          .window = {.capacity_bytes = WINDOW_BYTES, .cut_is_zeros = true}};
    struct kvf_status status = kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    struct kvf_drive *drives = calloc(options->path_count + 1, sizeof(*drives));
    *result = (struct kvf_verify_result){0};
    bool window = kvf_window_init(&check.window);
    check.group = aligned_alloc(KVF_PAGE, KVF_GROUP_PAGES_MAX_BYTES);
    if (drives != NULL && window && check.group != NULL)
        status = check_drives(&check, drives);
    for (size_t i = 0; drives != NULL && i < options->path_count; i++)
        kvf_drive_close(&drives[i], false);
    kvf_window_fini(&check.window);
    free(check.group);
    free(drives);
    return kvf_say_no_memory(status, why);
}
