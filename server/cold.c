/* In three parts: records and their links, buckets, lists. */
#include "server/cold.h"

#include "base/buckets.h"
#include "base/slab.h"

#include <stdlib.h>

#define CLASS_STEP 8u /* bytes of key */
#define CLASSES (KVF_KEY_MAX_BYTES / CLASS_STEP)
#define CLASS_SHIFT 29 /* a link: the class above, the number in its slabs below */
#define NUMBERS ((UINT32_C(1) << CLASS_SHIFT) - 1) /* the last one would be KVF_COLD_NONE */
#define SLAB_SHIFT 10
#define LIST_SLAB_SHIFT 6

_Static_assert((CLASSES - 1) >> (32 - CLASS_SHIFT) == 0, "a link holds every class");

struct record {
    struct kvf_generation generation;
    uint32_t next; /* in its bucket */
    uint32_t next_in_list, previous_in_list;
    uint32_t hash; /* the low half */
    uint32_t space;
    uint32_t length;
    uint32_t crc32c;
    uint32_t list;
    uint32_t page;
    uint8_t key_length;
    uint8_t hot : 1;
    uint8_t pulled : 1;
    uint8_t sifted : 1;
    uint8_t failures : 2;
    uint8_t unused[2];
    uint8_t key[]; /* room for the class's length */
};

_Static_assert(sizeof(struct record) == 56, "what cold.h says");

struct kvf_cold {
    struct kvf_slabs classes[CLASSES];
    struct kvf_buckets buckets; /* of links */
    struct kvf_slabs lists;     /* of struct kvf_cold_list *, by number */
    uint64_t count;
};

/* ---- records and their links ---- */

static unsigned class_of(uint8_t key_length)
{
    return (key_length - 1u) / CLASS_STEP;
}

static struct record *at(const struct kvf_cold *cold, uint32_t link)
{
    return kvf_slabs_at(&cold->classes[link >> CLASS_SHIFT], link & NUMBERS);
}

static uint32_t take(struct kvf_cold *cold, uint8_t key_length)
{
    unsigned class = class_of(key_length);
    uint32_t number;
    if (!kvf_slabs_take(&cold->classes[class], &number))
        return KVF_COLD_NONE;
    return class << CLASS_SHIFT | number;
}

static void pack(struct record *record, uint64_t hash, const struct kvf_cold_block *block)
{
    record->generation = block->generation;
    record->hash = (uint32_t)hash;
    record->space = block->space;
    record->length = block->length;
    record->crc32c = block->crc32c;
    record->list = block->list->number;
    record->page = block->page;
    record->key_length = block->key.length;
    record->hot = block->hot;
    record->pulled = block->pulled;
    record->sifted = block->sifted;
    record->failures = block->failures & 3u;
    memcpy(record->key, block->key.bytes, block->key.length);
}

static struct kvf_cold_list *list_of(const struct kvf_cold *cold, const struct record *record)
{
    return *(struct kvf_cold_list **)kvf_slabs_at(&cold->lists, record->list);
}

void kvf_cold_get(const struct kvf_cold *cold, uint32_t link, struct kvf_cold_block *block)
{
    const struct record *record = at(cold, link);
    block->key.length = record->key_length;
    memcpy(block->key.bytes, record->key, record->key_length);
    block->space = record->space;
    block->generation = record->generation;
    block->length = record->length;
    block->crc32c = record->crc32c;
    block->list = list_of(cold, record);
    block->page = record->page;
    block->hot = record->hot;
    block->pulled = record->pulled;
    block->sifted = record->sifted;
    block->failures = record->failures;
}

/* ---- buckets ---- */

static uint32_t *bucket_of(const struct kvf_cold *cold, uint32_t hash)
{
    return kvf_buckets_of(&cold->buckets, hash);
}

static bool split(struct kvf_cold *cold)
{
    struct kvf_buckets_split split;
    if (!kvf_buckets_split(&cold->buckets, &split))
        return false;
    uint32_t *old = split.old, *added = split.added, link = *old;
    *old = *added = KVF_COLD_NONE;
    while (link != KVF_COLD_NONE) {
        struct record *record = at(cold, link);
        uint32_t next = record->next, *into = (record->hash & split.bit) != 0 ? added : old;
        record->next = *into;
        *into = link;
        link = next;
    }
    return true;
}

static bool merge(struct kvf_cold *cold)
{
    struct kvf_buckets_merge merge;
    if (!kvf_buckets_merge(&cold->buckets, &merge))
        return false;
    uint32_t *end = merge.into;
    while (*end != KVF_COLD_NONE)
        end = &at(cold, *end)->next;
    *end = *(const uint32_t *)merge.last;
    kvf_buckets_drop_last(&cold->buckets);
    return true;
}

/* Between half a record and one for each bucket; two steps, so that the buckets keep up. */
static void resize(struct kvf_cold *cold)
{
    for (int step = 0; step < 2; step++)
        if (!(cold->count > cold->buckets.count && split(cold)) &&
            !(cold->count < cold->buckets.count / 2 && merge(cold)))
            return;
}

uint32_t kvf_cold_find(const struct kvf_cold *cold, uint64_t hash, uint32_t space,
                       const struct kvf_key *key)
{
    uint32_t link = *bucket_of(cold, (uint32_t)hash);
    while (link != KVF_COLD_NONE) {
        const struct record *record = at(cold, link);
        if (record->hash == (uint32_t)hash && record->space == space &&
            record->key_length == key->length && memcmp(record->key, key->bytes, key->length) == 0)
            return link;
        link = record->next;
    }
    return KVF_COLD_NONE;
}

/* ---- lists ---- */

bool kvf_cold_list_init(struct kvf_cold *cold, struct kvf_cold_list *list)
{
    if (!kvf_slabs_take(&cold->lists, &list->number))
        return false;
    *(struct kvf_cold_list **)kvf_slabs_at(&cold->lists, list->number) = list;
    list->first = list->last = KVF_COLD_NONE;
    return true;
}

void kvf_cold_list_fini(struct kvf_cold *cold, struct kvf_cold_list *list)
{
    kvf_assert(list->first == KVF_COLD_NONE);
    kvf_slabs_give(&cold->lists, list->number);
}

/* Sifted ones stand behind all others. */
static void enter_in_front(struct kvf_cold *cold, uint32_t link, struct record *record)
{
    struct kvf_cold_list *list = list_of(cold, record);
    record->previous_in_list = KVF_COLD_NONE;
    record->next_in_list = list->first;
    at(cold, list->first)->previous_in_list = link;
    list->first = link;
}

static void enter_list(struct kvf_cold *cold, uint32_t link, struct record *record)
{
    struct kvf_cold_list *list = list_of(cold, record);
    if (!record->sifted && list->last != KVF_COLD_NONE && at(cold, list->last)->sifted) {
        enter_in_front(cold, link, record);
        return;
    }
    record->next_in_list = KVF_COLD_NONE;
    record->previous_in_list = list->last;
    if (list->last != KVF_COLD_NONE)
        at(cold, list->last)->next_in_list = link;
    else
        list->first = link;
    list->last = link;
}

static void leave_list(struct kvf_cold *cold, const struct record *record)
{
    struct kvf_cold_list *list = list_of(cold, record);
    uint32_t next = record->next_in_list, previous = record->previous_in_list;
    if (next != KVF_COLD_NONE)
        at(cold, next)->previous_in_list = previous;
    else
        list->last = previous;
    if (previous != KVF_COLD_NONE)
        at(cold, previous)->next_in_list = next;
    else
        list->first = next;
}

uint32_t kvf_cold_next_in_list(const struct kvf_cold *cold, uint32_t link)
{
    return at(cold, link)->next_in_list;
}

void kvf_cold_sift(struct kvf_cold *cold, uint32_t link)
{
    struct record *record = at(cold, link);
    leave_list(cold, record);
    record->hot = false;
    record->sifted = true;
    enter_list(cold, link, record);
}

void kvf_cold_move(struct kvf_cold *cold, uint32_t link, struct kvf_cold_list *list, uint32_t page)
{
    struct record *record = at(cold, link);
    leave_list(cold, record);
    record->list = list->number;
    record->page = page;
    record->sifted = false;
    enter_list(cold, link, record);
}

/* ---- all of them ---- */

bool kvf_cold_add(struct kvf_cold *cold, uint64_t hash, const struct kvf_cold_block *block)
{
    kvf_assert(block->key.length > 0);
    uint32_t link = take(cold, block->key.length);
    if (link == KVF_COLD_NONE)
        return false;
    struct record *record = at(cold, link);
    pack(record, hash, block);
    uint32_t *first = bucket_of(cold, record->hash);
    record->next = *first;
    *first = link;
    enter_list(cold, link, record);
    cold->count++;
    resize(cold);
    return true;
}

void kvf_cold_remove(struct kvf_cold *cold, uint32_t link)
{
    const struct record *record = at(cold, link);
    uint32_t *from = bucket_of(cold, record->hash);
    while (*from != link) {
        kvf_assert(*from != KVF_COLD_NONE);
        from = &at(cold, *from)->next;
    }
    *from = record->next;
    leave_list(cold, record);
    kvf_slabs_give(&cold->classes[link >> CLASS_SHIFT], link & NUMBERS);
    cold->count--;
    resize(cold);
}

uint64_t kvf_cold_count(const struct kvf_cold *cold)
{
    return cold->count;
}

uint64_t kvf_cold_bytes(const struct kvf_cold *cold)
{
    uint64_t bytes =
        sizeof(*cold) + kvf_buckets_bytes(&cold->buckets) + kvf_slabs_bytes(&cold->lists);
    for (unsigned class = 0; class < CLASSES; class ++)
        bytes += kvf_slabs_bytes(&cold->classes[class]);
    return bytes;
}

/* ---- life ---- */

struct kvf_status kvf_cold_create(struct kvf_cold **give)
{
    struct kvf_cold *cold = calloc(1, sizeof(*cold));
    if (cold == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    for (unsigned class = 0; class < CLASSES; class ++)
        kvf_slabs_init(&cold->classes[class],
                       sizeof(struct record) + (class + (size_t)1) * CLASS_STEP, SLAB_SHIFT,
                       NUMBERS);
    kvf_slabs_init(&cold->lists, sizeof(struct kvf_cold_list *), LIST_SLAB_SHIFT, UINT32_MAX);
    struct kvf_status status = kvf_buckets_init(&cold->buckets, sizeof(uint32_t), 0xff);
    if (kvf_is_ok(status))
        *give = cold;
    else
        kvf_cold_destroy(cold);
    return status;
}

void kvf_cold_destroy(struct kvf_cold *cold)
{
    if (cold == NULL)
        return;
    for (unsigned class = 0; class < CLASSES; class ++)
        kvf_slabs_fini(&cold->classes[class]);
    kvf_buckets_fini(&cold->buckets);
    kvf_slabs_fini(&cold->lists);
    free(cold);
}
