/* The index against a plain array: the same operations, in random order, on both; after each one they must agree about
 * every key, every pinned entry and every sum. Blocks are as large as a place in the pool, so that the model knows
 * exactly what making room evicts. */
#include "base/faulty_memory.h"
#include "server/node_fixture.h"

#include <stdlib.h>

#define KEYS 60
#define PLACES 8 /* of 1 MiB, in the pool */
#define SEGMENTS 4
#define UNLINKED 16

struct block {
    bool there;
    enum kvf_entry_state state;
    struct kvf_generation generation;
    uint32_t crc32c;
    bool extent; /* it has one; while not resident it is being filled */
    bool resident;
    bool on_ssd;
    bool hot;
    bool pulled;
    struct kvf_location location;
    unsigned pins;
    uint64_t cached_at;
    struct kvf_entry *entry; /* while pinned */
};

static struct node node;
static struct kvf_index *index_;
static struct block now[KEYS];          /* what each key names */
static struct block hidden[KEYS];       /* records behind what is being put or pulled */
static struct block unlinked[UNLINKED]; /* pinned, and named no more */
static uint64_t sequences[SEGMENTS];    /* of the present fillings */
static uint64_t generations, clock_;
static bool no_memory; /* allocations fail now and then: blocks may be misses */

static unsigned random_below(unsigned limit)
{
    return (unsigned)rand() % limit;
}

static void ignore(void *context)
{
    (void)context;
}

static const char *space_of(unsigned key)
{
    static const char *const spaces[] = {"t/a", "t/b", "other/c"};
    return spaces[key % 3];
}

static struct kvf_key key_of(unsigned key)
{
    struct kvf_key made = {.length = (uint8_t)(1 + key)};
    memset(made.bytes, (int)(key / 3), made.length);
    return made;
}

static bool look(unsigned key, struct kvf_found *found)
{
    struct kvf_key name = key_of(key);
    return kvf_index_find(index_, space_of(key), &name, found);
}

static uint8_t *front_of(const struct block *block)
{
    return kvf_extent_at(block->entry->extent);
}

/* ---- what the index is to do, on the model ---- */

static bool has_entry(const struct block *block)
{
    return block->there && (block->pins > 0 || block->resident);
}

static bool is_cached(const struct block *block)
{
    return block->there && block->resident && block->pins == 0;
}

static void model_unlink(struct block *block)
{
    if (!block->there)
        return;
    for (int i = 0; block->pins > 0; i++) {
        assert_true(i < UNLINKED); /* operations see to it that there is room */
        if (unlinked[i].there)
            continue;
        unlinked[i] = *block;
        break;
    }
    *block = (struct block){0};
}

static void model_settle(struct block *block, bool linked)
{
    if (block->pins > 0)
        return;
    block->entry = NULL;
    block->cached_at = ++clock_;
    if (!linked || (!block->resident && !block->on_ssd))
        *block = (struct block){0};
}

static bool model_evict(void)
{
    struct block *coldest = NULL;
    for (int i = 0; i < KEYS; i++) {
        struct block *block = &now[i];
        if (is_cached(block) &&
            (coldest == NULL || block->pulled > coldest->pulled ||
             (block->pulled == coldest->pulled && block->cached_at < coldest->cached_at)))
            coldest = block;
    }
    if (coldest == NULL)
        return false;
    coldest->extent = coldest->resident = false;
    if (!coldest->on_ssd)
        *coldest = (struct block){0};
    return true;
}

static unsigned places_taken(void)
{
    unsigned taken = 0;
    for (int i = 0; i < KEYS; i++)
        taken += now[i].extent;
    for (int i = 0; i < UNLINKED; i++)
        taken += unlinked[i].extent;
    return taken;
}

/* ---- checking ---- */

static void check_block(unsigned key)
{
    struct block *block = &now[key];
    struct kvf_found found;
    bool there = look(key, &found);
    if (no_memory && block->there && !has_entry(block) && !there)
        *block = (struct block){0}; /* its record found no memory */
    assert_int_equal(there, block->there);
    if (!there)
        return;
    assert_int_equal(found.entry != NULL, has_entry(block));
    assert_int_equal(found.state, block->state);
    assert_true(kvf_generation_equal(found.generation, block->generation));
    assert_int_equal(found.length, KVF_MIB);
    assert_true(found.resident == block->resident && found.on_ssd == block->on_ssd);
    assert_true(found.hot == block->hot && found.crc32c == block->crc32c);
    if (block->on_ssd)
        assert_memory_equal(&found.location, &block->location, sizeof(found.location));
    if (found.entry == NULL)
        return;
    assert_int_equal(found.entry->pulled, block->pulled);
    assert_int_equal(found.entry->pins, block->pins);
    if (block->resident)
        assert_int_equal(*kvf_extent_at(found.entry->extent), block->generation.counter & 0xff);
}

static void surface(unsigned key)
{
    if (now[key].there || !hidden[key].there)
        return;
    now[key] = hidden[key];
    hidden[key] = (struct block){0};
}

static void check_all(void)
{
    struct kvf_index_stats stats;
    uint64_t blocks = 0, behind = 0, entries = 0, pinned = 0, clean = 0;
    for (unsigned key = 0; key < KEYS; key++) {
        surface(key);
        check_block(key);
        behind += hidden[key].there;
        blocks += now[key].there;
        entries += has_entry(&now[key]);
        pinned += now[key].pins > 0 && now[key].extent;
        clean += is_cached(&now[key]);
    }
    for (int i = 0; i < UNLINKED; i++) {
        const struct block *block = &unlinked[i];
        blocks += block->there;
        entries += block->there;
        pinned += block->extent;
        if (!block->there)
            continue;
        assert_true(!block->entry->linked && block->entry->pins == block->pins);
        assert_int_equal(block->entry->on_ssd, block->on_ssd);
        if (block->resident)
            assert_int_equal(*front_of(block), block->generation.counter & 0xff);
    }
    kvf_index_get_stats(index_, &stats);
    /* What is hidden cannot be looked at: it may have found no memory. */
    assert_in_range(stats.blocks, blocks + (no_memory ? 0 : behind), blocks + behind);
    assert_int_equal(stats.entries, entries);
    assert_int_equal(stats.pinned_bytes, pinned * KVF_MIB);
    assert_int_equal(stats.clean_bytes, clean * KVF_MIB);
    assert_int_equal(kvf_pool_free_bytes(node.pool), (PLACES - places_taken()) * KVF_MIB);
}

/* ---- the operations, on both ---- */

/* One more may become unlinked. */
static bool may_unlink(void)
{
    int there = 0;
    for (int i = 0; i < UNLINKED; i++)
        there += unlinked[i].there;
    return there < UNLINKED;
}

static bool make_room(struct kvf_extent *room)
{
    bool can = places_taken() < PLACES || model_evict();
    assert_int_equal(kvf_is_ok(kvf_index_room(index_, NULL, KVF_MIB, room)), can);
    return can;
}

static struct block record_of(const struct block *block)
{
    struct block record = *block;
    record.pins = 0;
    record.entry = NULL;
    record.extent = record.resident = false;
    return record;
}

static void add(unsigned key)
{
    struct kvf_key name = key_of(key);
    struct kvf_extent room = {0};
    if (!may_unlink() || !make_room(&room))
        return;
    enum kvf_entry_state state = random_below(3) == 0 ? KVF_ENTRY_PULLING : KVF_ENTRY_PENDING;
    struct kvf_entry *entry = kvf_index_add(index_, space_of(key), &name, KVF_MIB, state);
    bool stays =
        state == KVF_ENTRY_PULLING && now[key].there && now[key].on_ssd && !now[key].resident;
    const struct block record = record_of(&now[key]);
    model_unlink(&now[key]);
    hidden[key] = stays && entry != NULL ? record : (struct block){0};
    if (stays && entry == NULL)
        now[key] = record;
    assert_true(entry != NULL || no_memory);
    if (entry == NULL) {
        kvf_index_return_room(index_, &room);
        return;
    }
    kvf_entry_give_extent(index_, entry, &room);
    now[key] =
        (struct block){.there = true, .state = state, .extent = true, .pins = 1, .entry = entry};
}

static void fill(struct block *block)
{
    *front_of(block) = (uint8_t)block->generation.counter;
    block->resident = true;
}

static void ready(struct block *block)
{
    if (!block->there || block->state == KVF_ENTRY_READY)
        return;
    block->crc32c = (uint32_t)rand();
    block->pulled = block->entry->pulled = block->state == KVF_ENTRY_PULLING;
    kvf_entry_ready(index_, block->entry, block->crc32c);
    if (block->state == KVF_ENTRY_PENDING)
        hidden[block - now] = (struct block){0};
    block->state = KVF_ENTRY_READY;
    block->generation = (struct kvf_generation){7, ++generations};
    fill(block);
}

static void pin(unsigned key)
{
    struct block *block = &now[key];
    struct kvf_found found;
    if (!look(key, &found))
        return;
    struct kvf_entry *entry = kvf_index_pin(index_, &found);
    assert_true(entry != NULL || (no_memory && !has_entry(block)));
    if (entry == NULL)
        return;
    block->pins++;
    block->entry = entry;
    block->hot = block->hot || block->state == KVF_ENTRY_READY;
}

/* As a load from SSD does. */
static void load(struct block *block)
{
    struct kvf_extent room = {0};
    if (!block->there || block->pins == 0 || block->extent || !make_room(&room))
        return;
    kvf_entry_give_extent(index_, block->entry, &room);
    block->extent = true;
    if (random_below(4) == 0) { /* in vain */
        kvf_entry_drop_extent(index_, block->entry);
        block->extent = false;
        return;
    }
    block->entry->resident = true;
    fill(block);
}

static void unpin(struct block *block, bool linked)
{
    if (!block->there || block->pins == 0)
        return;
    block->pins--;
    kvf_entry_unpin(index_, block->entry);
    model_settle(block, linked);
}

static struct kvf_location somewhere(void)
{
    uint32_t segment = random_below(SEGMENTS);
    return (struct kvf_location){.segment = segment,
                                 .sequence = sequences[segment] - (random_below(8) == 0),
                                 .offset = (2 + random_below(1000)) * KVF_PAGE};
}

static bool is_there_still(struct kvf_location where)
{
    return where.sequence == sequences[where.segment];
}

static void store(struct block *block)
{
    if (!block->there || block->pins == 0 || !block->resident || block->on_ssd)
        return;
    struct kvf_location where = somewhere();
    kvf_entry_stored(index_, block->entry, where);
    block->hot = false;
    block->on_ssd = is_there_still(where) && (!no_memory || block->entry->on_ssd);
    block->location = where;
    if (block->on_ssd)
        hidden[block - now] = (struct block){0};
}

static bool counts(const struct kvf_record *record, struct kvf_location where,
                   const struct block *than)
{
    if (!kvf_generation_equal(record->generation, than->generation))
        return kvf_generation_is_newer(record->generation, than->generation);
    return than->on_ssd && where.sequence > than->location.sequence;
}

static uint64_t blocks_known(void)
{
    struct kvf_index_stats stats;
    kvf_index_get_stats(index_, &stats);
    return stats.blocks;
}

static void recovered(unsigned key)
{
    struct block *block = &now[key];
    const uint64_t others = blocks_known() - hidden[key].there;
    struct kvf_record record = {.namespace = space_of(key),
                                .key = key_of(key),
                                .generation = {6 + random_below(3), random_below(1000)},
                                .length = KVF_MIB,
                                .crc32c = (uint32_t)rand()};
    struct kvf_location where = somewhere();
    if (!may_unlink())
        return;
    kvf_index_recovered(index_, &record, where);
    bool hides =
        block->there && (block->state != KVF_ENTRY_READY || (block->pulled && !block->on_ssd));
    if (block->there && !hides && !counts(&record, where, block))
        return;
    if (!hides)
        model_unlink(block);
    else if (hidden[key].there && !counts(&record, where, &hidden[key]))
        return;
    hidden[key] = (struct block){0};
    if (is_there_still(where) && !(hides && no_memory && blocks_known() == others))
        *(hides ? &hidden[key] : block) = (struct block){.there = true,
                                                         .state = KVF_ENTRY_READY,
                                                         .generation = record.generation,
                                                         .crc32c = record.crc32c,
                                                         .on_ssd = true,
                                                         .location = where};
}

static void forget(unsigned key)
{
    struct kvf_found found;
    if (!may_unlink() || !look(key, &found))
        return;
    kvf_index_forget(index_, &found);
    model_unlink(&now[key]);
    hidden[key] = (struct block){0};
}

static void leave(struct block *block, uint32_t segment, bool linked)
{
    if (!block->there || !block->on_ssd || block->location.segment != segment)
        return;
    block->on_ssd = false;
    if (!linked || block->resident)
        return;
    model_unlink(block);
}

static bool is_kept(const struct block *block, uint32_t segment)
{
    return block->there && block->on_ssd && block->location.segment == segment && block->hot;
}

/* Where a block of this segment is carried over to: another one, which may be gone by then. */
static struct kvf_location elsewhere(uint32_t segment)
{
    struct kvf_location where = somewhere();
    while (where.segment == segment)
        where = somewhere();
    return where;
}

static bool lies_at(unsigned key, struct kvf_location where)
{
    struct kvf_found found;
    return look(key, &found) && found.on_ssd && found.location.segment == where.segment;
}

static bool is_that(const struct block *block, const struct kvf_kept *kept)
{
    return block->there && block->on_ssd && block->location.segment == kept->location.segment &&
           block->location.offset == kept->location.offset &&
           kvf_generation_equal(block->generation, kept->record.generation);
}

static void move(const struct kvf_kept *kept)
{
    const uint32_t segment = kept->location.segment;
    struct kvf_location to = elsewhere(segment);
    const bool lost = random_below(4) == 0;
    unsigned key = 0;
    while (key < KEYS && !is_that(&now[key], kept) && !is_that(&hidden[key], kept))
        key++;
    assert_true(key < KEYS);
    bool behind = !is_that(&now[key], kept);
    struct block *block = behind ? &hidden[key] : &now[key];
    assert_string_equal(kept->record.namespace, space_of(key));
    assert_int_equal(kept->record.crc32c, block->crc32c);
    kvf_index_move(index_, &kept->record, kept->location, lost ? NULL : &to);
    if (lost || !is_there_still(to) || (no_memory && !behind && !lies_at(key, to)))
        leave(block, segment, true);
    else
        block->location = to; /* without memory what is hidden may be gone: see check_block */
}

/* Until the segment is empty: then it is given back. */
static void move_all(uint32_t segment)
{
    struct kvf_kept kept[3];
    struct kvf_location held = {.segment = segment};
    for (size_t count; (count = kvf_index_kept(index_, 0, kept, 3)) > 0;) {
        kvf_index_hold_segment(index_, held);
        for (size_t i = 0; i < count; i++)
            move(&kept[i]);
        kvf_index_unhold_segment(index_, held);
    }
    for (int i = 0; i < KEYS; i++)
        assert_false(now[i].there && now[i].on_ssd && now[i].location.segment == segment);
}

static void reclaim(uint32_t segment)
{
    const bool keeps = random_below(2) == 0;
    unsigned pinned = 0;
    for (int i = 0; i < KEYS; i++)
        pinned += now[i].pins > 0 && !now[i].resident;
    for (int i = 0; i < UNLINKED; i++)
        pinned += unlinked[i].there;
    if (pinned > UNLINKED)
        return;
    const uint64_t keep_bytes = keeps ? UINT64_MAX : 0;
    bool more = kvf_index_reclaim(index_, 0, segment, sequences[segment]++, keep_bytes, keep_bytes);
    while (more)
        more = kvf_index_sift(index_, 0);
    for (int i = 0; i < UNLINKED; i++)
        leave(&unlinked[i], segment, false);
    for (int i = 0; i < KEYS; i++) {
        if (keeps && is_kept(&now[i], segment))
            now[i].hot = false;
        else
            leave(&now[i], segment, true);
    }
    for (int i = 0; i < KEYS; i++)
        if (keeps && is_kept(&hidden[i], segment))
            hidden[i].hot = false;
        else
            leave(&hidden[i], segment, true);
    check_all();
    move_all(segment);
}

static void evict_all(void)
{
    uint64_t blocks = 0, bytes = 0, expected = 0;
    while (model_evict())
        expected++;
    kvf_index_evict_all(index_, &blocks, &bytes);
    assert_int_equal(blocks, expected);
    assert_int_equal(bytes, expected * KVF_MIB);
}

static void step(void)
{
    unsigned key = random_below(KEYS), dice = random_below(200);
    if (dice < 30)
        add(key);
    else if (dice < 70)
        ready(&now[key]);
    else if (dice < 90)
        pin(key);
    else if (dice < 100)
        load(&now[key]);
    else if (dice < 135)
        unpin(&now[key], true);
    else if (dice < 150)
        unpin(&unlinked[random_below(UNLINKED)], false);
    else if (dice < 180)
        store(&now[key]);
    else if (dice < 192)
        recovered(key);
    else if (dice < 196)
        forget(key);
    else if (dice < 198)
        reclaim(random_below(SEGMENTS));
    else if (dice < 199)
        evict_all();
}

static void run(unsigned seed, unsigned steps)
{
    struct kvf_index_options options = {
        .pool = node.pool, .store = node.store, .boot_epoch = 7, .sift_blocks = 2, .freed = ignore};
    assert_true(kvf_is_ok(kvf_index_create(&options, &index_)));
    memset(now, 0, sizeof(now));
    memset(unlinked, 0, sizeof(unlinked));
    memset(hidden, 0, sizeof(hidden));
    generations = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        sequences[i] = 2;
        kvf_index_reclaim(index_, 0, (uint32_t)i, 1, 0, 0);
    }
    srand(seed);
    for (unsigned i = 0; i < steps; i++) {
        if (no_memory && random_below(3) == 0)
            faulty_memory_fail_all(true);
        step();
        faulty_memory_fail_all(false);
        check_all();
    }
    for (int i = 0; i < KEYS; i++)
        while (now[i].there && now[i].pins > 0)
            unpin(&now[i], true);
    for (int i = 0; i < UNLINKED; i++)
        while (unlinked[i].there)
            unpin(&unlinked[i], false);
    check_all();
    kvf_index_destroy(index_, false);
    assert_int_equal(kvf_pool_free_bytes(node.pool), PLACES * KVF_MIB);
}

static int set_up(void **state)
{
    (void)state;
    node_set_up();
    node_start(&node, &(struct node_options){.pool_bytes = PLACES * KVF_MIB, .ssd = true});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    no_memory = false;
    node_stop(&node);
    node_tear_down();
    return 0;
}

static void model__random_operations__index_agrees_after_each(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 10; seed++)
        run(seed, 20000);
}

static void model__memory_fails_now_and_then__index_agrees_but_for_misses(void **state)
{
    (void)state;
    no_memory = true;
    for (unsigned seed = 100; seed < 110; seed++)
        run(seed, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(model__random_operations__index_agrees_after_each, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            model__memory_fails_now_and_then__index_agrees_but_for_misses, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("server/index, by a model", tests, NULL, NULL);
}
