#include "base/buckets.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS_MAX (UINT32_C(1) << 30)

/* The next bucket has a page to lie in. */
static bool make_page(struct kvf_buckets *buckets)
{
    if (buckets->count < buckets->page_count << buckets->shift)
        return true;
    if (buckets->page_count == buckets->page_room) {
        uint32_t room = buckets->page_room + buckets->page_room / 2 + 4;
        char **more = realloc(buckets->pages, room * sizeof(*more));
        if (more == NULL)
            return false;
        buckets->pages = more;
        buckets->page_room = room;
    }
    char *page = malloc(KVF_BUCKETS_PAGE_BYTES);
    if (page == NULL)
        return false;
    buckets->pages[buckets->page_count++] = page;
    return true;
}

struct kvf_status kvf_buckets_init(struct kvf_buckets *buckets, size_t bucket_bytes, uint8_t empty)
{
    kvf_assert(bucket_bytes == 4 || bucket_bytes == 8);
    *buckets = (struct kvf_buckets){.shift = bucket_bytes == 4 ? 10 : 9};
    if (!make_page(buckets)) {
        kvf_buckets_fini(buckets);
        return kvf_fail(KVF_MODULE_BASE, KVF_NO_MEMORY, 0);
    }
    memset(buckets->pages[0], empty, KVF_BUCKETS_PAGE_BYTES);
    buckets->count = UINT32_C(1) << buckets->shift;
    return kvf_ok();
}

void kvf_buckets_fini(struct kvf_buckets *buckets)
{
    for (uint32_t i = 0; i < buckets->page_count; i++)
        free(buckets->pages[i]);
    free(buckets->pages);
    *buckets = (struct kvf_buckets){0};
}

bool kvf_buckets_split(struct kvf_buckets *buckets, struct kvf_buckets_split *split)
{
    if (buckets->count == BUCKETS_MAX || !make_page(buckets))
        return false;
    uint32_t width = kvf_buckets_width(buckets);
    split->old = kvf_buckets_at(buckets, buckets->count - width);
    split->added = kvf_buckets_at(buckets, buckets->count);
    split->bit = width;
    buckets->count++;
    return true;
}

bool kvf_buckets_merge(const struct kvf_buckets *buckets, struct kvf_buckets_merge *merge)
{
    if (buckets->page_count <= 1)
        return false;
    struct kvf_buckets fewer = *buckets;
    uint32_t last = --fewer.count;
    merge->last = kvf_buckets_at(buckets, last);
    merge->into = kvf_buckets_at(buckets, last - kvf_buckets_width(&fewer));
    return true;
}

void kvf_buckets_drop_last(struct kvf_buckets *buckets)
{
    buckets->count--;
    if (buckets->count == (buckets->page_count - 1) << buckets->shift)
        free(buckets->pages[--buckets->page_count]);
}

size_t kvf_buckets_bytes(const struct kvf_buckets *buckets)
{
    return (size_t)buckets->page_count * KVF_BUCKETS_PAGE_BYTES +
           buckets->page_room * sizeof(*buckets->pages);
}
