/* libFuzzer over every decoder of on-disk bytes: the first page is offered to each of them, and what a group or an index
 * claims is walked as recovery would. */
#include "storage/format.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void walk_headers(const uint8_t *at, size_t left, const struct kvf_place *place)
{
    struct kvf_record_head head;
    for (size_t used; left > 0 && (used = kvf_record_header_decode(at, left, place, &head)) > 0;) {
        at += used;
        left -= used;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvf_place place = {.segment_bytes = 2 * KVF_MIB, .sequence = 1};
    struct kvf_marker marker;
    struct kvf_footer footer;
    struct kvf_group group;
    bool in_use;
    (void)kvf_is_ok(kvf_marker_decode(data, bytes, &marker));
    walk_headers(data, bytes, &place);
    uint8_t *pages = calloc(1, KVF_GROUP_PAGES_MAX_BYTES);
    if (pages == NULL)
        return 0;
    memcpy(pages, data, bytes < KVF_GROUP_PAGES_MAX_BYTES ? bytes : KVF_GROUP_PAGES_MAX_BYTES);
    (void)kvf_segment_header_decode(pages, &place, &in_use);
    (void)kvf_footer_decode(pages, &place, &footer);
    (void)kvf_mark_decode(pages, &place, KVF_PAGE);
    if (kvf_group_decode(pages, &place, KVF_PAGE, &group) && kvf_group_check(pages, &group))
        walk_headers(pages + KVF_GROUP_PREFIX_BYTES, group.header_bytes, &place);
    free(pages);
    return 0;
}
