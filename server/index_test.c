/* The index beside a node's real pool and store; where records lie is made up. */
#include "base/faulty_memory.h"
#include "server/index_state.h"
#include "server/node_fixture.h"

static struct node node;
static struct kvf_index *index_;
static int freed;

static void count_freed(void *context)
{
    (void)context;
    freed++;
}

static struct kvf_index_options options(void)
{
    return (struct kvf_index_options){
        .pool = node.pool, .store = node.store, .boot_epoch = 7, .freed = count_freed};
}

static int set_up(void **state)
{
    (void)state;
    freed = 0;
    node_set_up();
    node_start(&node, &(struct node_options){.pool_bytes = 4 * KVF_MIB, .ssd = true});
    struct kvf_index_options how = options();
    return kvf_is_ok(kvf_index_create(&how, &index_)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_index_destroy(index_, false);
    node_stop(&node);
    node_tear_down();
    return 0;
}

static struct kvf_key key_of(const char *text)
{
    struct kvf_key key;
    assert_true(kvf_key_set(&key, text, strlen(text)));
    return key;
}

/* A READY block of 1 MiB that somebody pins. */
static struct kvf_entry *add(const char *ns, const char *text)
{
    struct kvf_key key = key_of(text);
    struct kvf_extent room;
    assert_true(kvf_is_ok(kvf_index_room(index_, NULL, KVF_MIB, &room)));
    struct kvf_entry *entry = kvf_index_add(index_, ns, &key, KVF_MIB, KVF_ENTRY_PENDING);
    kvf_entry_give_extent(index_, entry, &room);
    kvf_entry_ready(index_, entry, 1);
    return entry;
}

static bool look(const char *ns, const char *text, struct kvf_found *found)
{
    struct kvf_key key = key_of(text);
    return kvf_index_find(index_, ns, &key, found);
}

static bool has(const char *ns, const char *text)
{
    struct kvf_found found;
    return look(ns, text, &found);
}

/* Its record is written, in this filling of a segment. */
static void store(struct kvf_entry *entry, uint32_t segment, uint64_t sequence)
{
    kvf_entry_stored(
        index_, entry,
        (struct kvf_location){.segment = segment,
                              .sequence = sequence,
                              .offset = 2 * KVF_PAGE + entry->generation.counter * KVF_PAGE});
}

/* Recovery finds a block with a key of its own, of 32 bytes. */
static void recover(uint32_t number, struct kvf_generation generation)
{
    struct kvf_record record = {.namespace = "t/f",
                                .key = {.length = 32},
                                .generation = generation,
                                .length = KVF_MIB,
                                .crc32c = number};
    memcpy(record.key.bytes, &number, sizeof(number));
    kvf_index_recovered(
        index_, &record,
        (struct kvf_location){.segment = number % 4, .sequence = 1, .offset = 4 * KVF_PAGE});
}

static bool look_number(uint32_t number, struct kvf_found *found)
{
    struct kvf_key key = {.length = 32};
    memcpy(key.bytes, &number, sizeof(number));
    return kvf_index_find(index_, "t/f", &key, found);
}

static void evict(void)
{
    uint64_t blocks = 0, bytes = 0;
    kvf_index_evict_all(index_, &blocks, &bytes);
}

static struct kvf_index_stats stats(void)
{
    struct kvf_index_stats now;
    kvf_index_get_stats(index_, &now);
    return now;
}

static void find__equal_keys_of_two_namespaces__are_two_blocks(void **state)
{
    (void)state;
    struct kvf_entry *a = add("t/a", "k"), *b = add("t/b", "k");
    assert_ptr_not_equal(a, b);
    assert_true(kvf_generation_is_newer(b->generation, a->generation));
    assert_int_equal(a->generation.epoch, 7);
    assert_false(has("t/c", "k"));
    assert_false(has("t/a", "k2"));
    kvf_entry_unpin(index_, a);
    kvf_entry_unpin(index_, b);
    assert_true(has("t/a", "k") && has("t/b", "k"));
}

static void room__cached_blocks__go_coldest_first_pulled_ones_before(void **state)
{
    (void)state;
    struct kvf_entry *entries[4];
    const char *names[] = {"put1", "put2", "pulled", "put3"};
    for (int i = 0; i < 4; i++) {
        entries[i] = add("t/f", names[i]);
        entries[i]->pulled = i == 2;
        kvf_entry_unpin(index_, entries[i]);
    }
    assert_int_equal(stats().clean_bytes, 4 * KVF_MIB);
    kvf_entry_pin(index_, entries[0]); /* used again: now the warmest */
    kvf_entry_unpin(index_, entries[0]);
    struct kvf_extent room[2];
    assert_true(kvf_is_ok(kvf_index_room(index_, NULL, KVF_MIB, &room[0])));
    assert_false(has("t/f", "pulled"));
    assert_true(kvf_is_ok(kvf_index_room(index_, NULL, KVF_MIB, &room[1])));
    assert_false(has("t/f", "put2"));
    assert_true(has("t/f", "put1") && has("t/f", "put3"));
    kvf_index_return_room(index_, &room[0]);
    kvf_index_return_room(index_, &room[1]);
}

static void room__pinned_blocks__are_never_taken(void **state)
{
    (void)state;
    struct kvf_entry *entries[4];
    struct kvf_extent room;
    for (int i = 0; i < 4; i++)
        entries[i] = add("t/f", (const char *[]){"a", "b", "c", "d"}[i]);
    assert_int_equal(stats().pinned_bytes, 4 * KVF_MIB);
    assert_int_equal(kvf_index_room(index_, NULL, KVF_MIB, &room).code, KVF_BUSY);
    for (int i = 0; i < 4; i++)
        kvf_entry_unpin(index_, entries[i]);
    assert_int_equal(stats().pinned_bytes, 0);
    assert_true(freed > 0);
    assert_true(kvf_is_ok(kvf_index_room(index_, NULL, 4 * KVF_MIB, &room)));
    assert_int_equal(stats().entries, 0);
    kvf_index_return_room(index_, &room);
}

static void unlink__pinned__is_not_found_but_keeps_its_bytes(void **state)
{
    (void)state;
    struct kvf_entry *old = add("t/f", "k");
    memset(kvf_extent_at(old->extent), 'o', KVF_MIB);
    struct kvf_entry *new = add("t/f", "k"); /* a new generation unlinks the old one */
    assert_false(old->linked);
    struct kvf_found found;
    assert_true(look("t/f", "k", &found));
    assert_ptr_equal(found.entry, new);
    memset(kvf_extent_at(new->extent), 'n', KVF_MIB);
    assert_int_equal(*kvf_extent_at(old->extent), 'o');
    uint64_t entries = stats().entries;
    kvf_entry_unpin(index_, old);
    assert_int_equal(stats().entries, entries - 1);
    kvf_entry_unpin(index_, new);
}

static int settled_count;

static void settled(struct kvf_entry_watch *watch)
{
    (void)watch;
    settled_count++;
}

static void watch__pending__is_told_once_at_commit_or_at_its_end(void **state)
{
    (void)state;
    struct kvf_key key = key_of("p");
    struct kvf_entry_watch commits = {.settled = settled}, ends = {.settled = settled},
                           never = {.settled = settled};
    settled_count = 0;
    struct kvf_entry *entry = kvf_index_add(index_, "t/f", &key, 10, KVF_ENTRY_PENDING);
    kvf_entry_watch(entry, &commits);
    kvf_entry_watch(entry, &never);
    kvf_entry_unwatch(&never);
    kvf_index_unlink(index_, entry);
    assert_int_equal(settled_count, 1);
    kvf_entry_unpin(index_, entry);

    entry = kvf_index_add(index_, "t/f", &key, 10, KVF_ENTRY_PENDING);
    struct kvf_extent room;
    assert_true(kvf_is_ok(kvf_index_room(index_, NULL, 10, &room)));
    kvf_entry_give_extent(index_, entry, &room);
    kvf_entry_watch(entry, &ends);
    kvf_entry_ready(index_, entry, 0);
    assert_int_equal(settled_count, 2);
    kvf_entry_unpin(index_, entry);
    assert_int_equal(settled_count, 2);
}

static void evict_all__pinned_stay__others_go(void **state)
{
    (void)state;
    struct kvf_entry *stays = add("t/f", "stays");
    kvf_entry_unpin(index_, add("t/f", "goes"));
    uint64_t blocks = 0, bytes = 0;
    kvf_index_evict_all(index_, &blocks, &bytes);
    assert_int_equal(blocks, 1);
    assert_int_equal(bytes, KVF_MIB);
    assert_true(has("t/f", "stays"));
    assert_false(has("t/f", "goes"));
    kvf_entry_unpin(index_, stays);
}

/* ---- what lies only on SSD ---- */

static void evict__on_ssd__leaves_a_record_that_unfolds_as_it_was(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_entry *entry = add("t/f", "k");
    struct kvf_generation generation = entry->generation;
    entry->pulled = true;
    store(entry, 2, 9);
    struct kvf_location at = entry->location;
    kvf_entry_unpin(index_, entry);
    assert_int_equal(stats().entries, 1);
    evict();
    assert_int_equal(stats().entries, 0);
    assert_int_equal(stats().blocks, 1);

    assert_true(look("t/f", "k", &found));
    assert_int_equal(stats().entries, 0); /* looking makes no entry */
    assert_null(found.entry);
    assert_true(found.state == KVF_ENTRY_READY && found.on_ssd && !found.resident);
    assert_true(kvf_generation_equal(found.generation, generation));
    assert_true(found.length == KVF_MIB && found.crc32c == 1);
    assert_memory_equal(&found.location, &at, sizeof(at));

    entry = kvf_index_pin(index_, &found);
    assert_int_equal(stats().entries, 1);
    assert_true(entry->state == KVF_ENTRY_READY && entry->on_ssd && entry->linked);
    assert_true(entry->pins == 1 && entry->pulled && !entry->resident && !entry->verified);
    assert_true(kvf_generation_equal(entry->generation, generation));
    assert_true(entry->length == KVF_MIB && entry->crc32c == 1);
    assert_memory_equal(&entry->location, &at, sizeof(at));
    assert_string_equal(entry->space->text, "t/f");
    kvf_entry_unpin(index_, entry);
    assert_int_equal(stats().entries, 0);
    assert_true(has("t/f", "k"));
}

static void hot__pinned_since_the_record_was_written__is_kept_by_folding(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_entry *entry = add("t/f", "k");
    assert_true(look("t/f", "k", &found));
    kvf_entry_unpin(index_, kvf_index_pin(index_, &found));
    assert_true(entry->hot);
    store(entry, 0, 1);
    assert_false(entry->hot); /* that was before */
    kvf_entry_unpin(index_, entry);
    evict();
    assert_true(look("t/f", "k", &found) && !found.hot);
    for (int i = 0; i < 2; i++) {
        kvf_entry_unpin(index_, kvf_index_pin(index_, &found));
        assert_true(look("t/f", "k", &found) && found.hot && found.entry == NULL);
    }
}

static void forget__entry_or_record__is_not_found_and_the_space_goes_with_the_last(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_entry *entry = add("t/other", "cold");
    store(entry, 0, 1);
    kvf_entry_unpin(index_, entry);
    evict();
    kvf_entry_unpin(index_, add("t/f", "warm"));
    assert_true(look("t/other", "cold", &found));
    kvf_index_forget(index_, &found);
    assert_true(look("t/f", "warm", &found));
    kvf_index_forget(index_, &found);
    assert_false(has("t/other", "cold") || has("t/f", "warm"));
    assert_int_equal(stats().blocks, 0);
}

static void add__key_of_a_record__is_the_new_block_alone(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_entry *entry = add("t/f", "k");
    store(entry, 1, 1);
    kvf_entry_unpin(index_, entry);
    evict();
    entry = add("t/f", "k");
    assert_int_equal(stats().blocks, 1);
    assert_true(look("t/f", "k", &found));
    assert_ptr_equal(found.entry, entry);
    kvf_index_reclaim(index_, 0, 1, 1, 0, 0);
    assert_true(has("t/f", "k"));
    kvf_entry_unpin(index_, entry);
}

static void reclaim__entries_and_records__leave_this_segment_only(void **state)
{
    (void)state;
    struct kvf_found found;
    const char *names[] = {"cold", "resident", "elsewhere"};
    for (uint32_t i = 0; i < 3; i++) {
        struct kvf_entry *entry = add("t/f", names[i]);
        store(entry, i == 2, 5);
        kvf_entry_unpin(index_, entry);
        if (i == 0)
            evict();
    }
    for (uint32_t n = 0; n < 400; n++)
        recover(1000 + n, (struct kvf_generation){1, n}); /* an older filling: not believed */
    assert_int_equal(stats().blocks, 3 + 200);
    kvf_index_reclaim(index_, 0, 0, 5, 0, 0);
    assert_false(has("t/f", "cold"));
    assert_true(look("t/f", "resident", &found) && !found.on_ssd);
    assert_true(look("t/f", "elsewhere", &found) && found.on_ssd);
    assert_int_equal(found.location.segment, 1);
    assert_int_equal(stats().blocks, 2 + 200);
}

static void stored__filling_was_reclaimed_meanwhile__is_not_on_ssd(void **state)
{
    (void)state;
    struct kvf_entry *late = add("t/f", "late"), *next = add("t/f", "next");
    kvf_index_reclaim(index_, 0, 3, 5, 0, 0);
    store(late, 3, 5);
    assert_false(late->on_ssd);
    store(next, 3, 6);
    assert_true(next->on_ssd);
    assert_int_equal(next->location.sequence, 6);
    kvf_entry_unpin(index_, late);
    kvf_entry_unpin(index_, next);
    assert_true(has("t/f", "late"));
    evict();
    assert_false(has("t/f", "late"));
    assert_true(has("t/f", "next"));
}

static void recovered__several_generations__the_newest_counts(void **state)
{
    (void)state;
    struct kvf_found found;
    recover(5, (struct kvf_generation){2, 3});
    recover(5, (struct kvf_generation){1, 9});
    assert_true(look_number(5, &found) && found.generation.epoch == 2);
    recover(5, (struct kvf_generation){2, 4});
    assert_true(look_number(5, &found) && found.generation.counter == 4);
    assert_int_equal(stats().blocks, 1);
    assert_int_equal(stats().entries, 0);
}

static void recovered__put_is_aborted__found_again(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_key key = {.length = 32, .bytes = {5}};
    struct kvf_entry *entry = kvf_index_add(index_, "t/f", &key, 10, KVF_ENTRY_PENDING);
    recover(5, (struct kvf_generation){2, 3});
    assert_true(look_number(5, &found));
    assert_ptr_equal(found.entry, entry);
    kvf_index_unlink(index_, entry);
    kvf_entry_unpin(index_, entry);
    assert_true(look_number(5, &found) && found.generation.counter == 3);
    assert_int_equal(stats().blocks, 1);
}

static void recovered__put_is_committed__gone_for_ever(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_key key = {.length = 32, .bytes = {5}};
    struct kvf_entry *entry = kvf_index_add(index_, "t/f", &key, 10, KVF_ENTRY_PENDING);
    recover(5, (struct kvf_generation){2, 3});
    kvf_entry_ready(index_, entry, 1);
    entry->resident = false; /* as if its memory had never been */
    kvf_entry_unpin(index_, entry);
    assert_false(look_number(5, &found));
    assert_int_equal(stats().blocks, 0);
}

/* The copy from a source leaves DRAM without a trace; forgotten, both are. */
static void recovered__key_is_pulled__found_again_when_the_copy_goes(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_key key = {.length = 32, .bytes = {5}};
    for (int round = 0; round < 2; round++) {
        struct kvf_entry *entry = kvf_index_add(index_, "t/f", &key, 10, KVF_ENTRY_PULLING);
        recover(5, (struct kvf_generation){2, 3});
        entry->pulled = true;
        kvf_entry_ready(index_, entry, 1);
        recover(5, (struct kvf_generation){2, 4});
        assert_true(look_number(5, &found));
        if (round == 1)
            kvf_index_forget(index_, &found);
        entry->resident = false;
        kvf_entry_unpin(index_, entry);
        assert_int_equal(look_number(5, &found), round == 0);
        assert_int_equal(stats().blocks, round == 0);
    }
}

static void recovered__two_copies_of_one_generation__the_newer_filling_counts(void **state)
{
    (void)state;
    struct kvf_found found;
    struct kvf_key key = {.length = 32, .bytes = {5}};
    struct kvf_record record = {
        .namespace = "t/f", .key = key, .generation = {2, 3}, .length = 10, .crc32c = 1};
    static const uint64_t orders[][2] = {{4, 9}, {9, 4}};
    for (int i = 0; i < 2; i++) {
        for (int copy = 0; copy < 2; copy++)
            kvf_index_recovered(index_, &record,
                                (struct kvf_location){.segment = orders[i][copy] == 9,
                                                      .sequence = orders[i][copy],
                                                      .offset = 2 * KVF_PAGE});
        assert_true(look_number(5, &found) && found.location.sequence == 9);
        kvf_index_forget(index_, &found);
    }
}

/* Counted: all that the index allocated. */
static void bytes__200000_blocks_on_ssd__are_at_most_96_and_the_key_for_each(void **state)
{
    (void)state;
    const uint32_t count = 200000;
    for (uint32_t n = 0; n < count; n++)
        recover(n, (struct kvf_generation){1, n});
    assert_int_equal(stats().blocks, count);
    assert_true(stats().bytes <= count * (96 + UINT64_C(32)));
}

/* ---- without memory ---- */

static void pin__no_memory__is_null_and_the_record_stays(void **state)
{
    (void)state;
    struct kvf_found found;
    recover(5, (struct kvf_generation){2, 3});
    assert_true(look_number(5, &found));
    faulty_memory_fail_all(true);
    assert_null(kvf_index_pin(index_, &found));
    faulty_memory_fail_all(false);
    assert_true(look_number(5, &found));
    struct kvf_entry *entry = kvf_index_pin(index_, &found);
    assert_non_null(entry);
    kvf_entry_unpin(index_, entry);
}

static void evict__no_memory_for_the_record__is_a_miss(void **state)
{
    (void)state;
    struct kvf_entry *entry = add("t/f", "k");
    store(entry, 0, 1);
    kvf_entry_unpin(index_, entry);
    faulty_memory_fail_all(true);
    evict();
    faulty_memory_fail_all(false);
    assert_false(has("t/f", "k"));
    assert_int_equal(stats().blocks, 0);
    assert_int_equal(kvf_pool_free_bytes(node.pool), 4 * KVF_MIB);
}

static void recovered__no_memory_at_any_step__is_a_miss(void **state)
{
    (void)state;
    struct kvf_found found;
    for (unsigned nth = 1;; nth++) {
        faulty_memory_fail_at(nth);
        recover(5, (struct kvf_generation){2, 3});
        bool failed = faulty_memory_failed();
        faulty_memory_fail_at(0);
        assert_int_equal(look_number(5, &found), !failed);
        assert_int_equal(stats().blocks, !failed);
        if (!failed)
            break;
        assert_in_range(nth, 1, 8);
    }
}

static void add__no_memory_at_any_step__is_null_and_leaves_nothing(void **state)
{
    (void)state;
    struct kvf_key key = key_of("k");
    struct kvf_entry *entry = NULL;
    for (unsigned nth = 1; entry == NULL; nth++) {
        assert_in_range(nth, 1, 8);
        faulty_memory_fail_at(nth);
        entry = kvf_index_add(index_, "t/f", &key, 10, KVF_ENTRY_PENDING);
        assert_int_equal(entry == NULL, faulty_memory_failed());
        faulty_memory_fail_at(0);
        assert_int_equal(stats().blocks, entry != NULL);
        assert_int_equal(has("t/f", "k"), entry != NULL);
    }
    kvf_entry_unpin(index_, entry);
}

static void create__fails_at_each_step__leaves_nothing(void **state)
{
    (void)state;
    struct kvf_index *other = NULL;
    struct kvf_index_options how = options();
    unsigned nth = 0;
    do {
        faulty_memory_fail_at(++nth);
        struct kvf_status status = kvf_index_create(&how, &other);
        assert_int_equal(kvf_is_ok(status), !faulty_memory_failed());
        assert_int_equal(other != NULL, !faulty_memory_failed());
    } while (other == NULL);
    faulty_memory_fail_at(0);
    assert_true(nth > 8);
    kvf_index_destroy(other, false);
}

static void ready__a_second_time__is_an_assert(void **state)
{
    (void)state;
    struct kvf_entry *entry = add("t/f", "a");
    assert_aborts(kvf_entry_ready(index_, entry, 2));
    kvf_entry_unpin(index_, entry);
}

static void make_hot(uint32_t number)
{
    struct kvf_found found;
    assert_true(look_number(number, &found));
    kvf_entry_unpin(index_, kvf_index_pin(index_, &found));
}

/* Its turn has not come when its only hot block goes: nobody else would give it back. */
static void kept__waiting_segment_becomes_empty__is_given_back(void **state)
{
    (void)state;
    struct kvf_kept kept[4];
    struct kvf_found found;
    for (uint32_t number = 1; number <= 2; number++) {
        recover(number, (struct kvf_generation){2, number});
        make_hot(number);
    }
    for (uint32_t segment = 1; segment <= 2; segment++)
        kvf_index_reclaim(index_, 0, segment, 1, 4 * KVF_MIB, 4 * KVF_MIB);
    assert_true(look_number(2, &found));
    kvf_index_forget(index_, &found);
    assert_int_equal(kvf_index_kept(index_, 0, kept, 4), 1);
    assert_int_equal(index_segment_of(index_, 0, 2)->reclaimed, 0);
    assert_true(look_number(1, &found));
}

static bool forget_number(uint32_t number)
{
    struct kvf_found found;
    bool known = look_number(number, &found);
    if (known)
        kvf_index_forget(index_, &found);
    return known;
}

enum { SMALL_BLOCKS = 5000, HOT_EVERY = 10 };

static bool is_hot(uint32_t number)
{
    return number % HOT_EVERY == 0;
}

/* Numbers of segment 1. */
static uint32_t small_block(uint32_t i)
{
    return 4 * i + 1;
}

/* The loop gets its turn in between, and whatever it does with the blocks is right. */
static void reclaim__more_blocks_than_the_loop_may_wait_for__bit_by_bit(void **state)
{
    (void)state;
    static struct kvf_kept kept[SMALL_BLOCKS];
    struct kvf_found found;
    for (uint32_t i = 0; i < SMALL_BLOCKS; i++) {
        recover(small_block(i), (struct kvf_generation){2, i});
        if (is_hot(i))
            make_hot(small_block(i));
    }
    assert_true(kvf_index_reclaim(index_, 0, 1, 1, UINT64_MAX, UINT64_MAX));
    assert_in_range(stats().blocks, SMALL_BLOCKS - 1024, SMALL_BLOCKS - 1);
    assert_int_equal(kvf_index_kept(index_, 0, kept, SMALL_BLOCKS), 0); /* not yet */
    unsigned forgotten = 0;
    for (uint32_t i = 0; i < SMALL_BLOCKS; i += 4 * HOT_EVERY)
        forgotten += forget_number(small_block(i)); /* looked at and kept, or to be looked at */
    assert_int_equal(forgotten, SMALL_BLOCKS / (4 * HOT_EVERY));
    uint32_t last = SMALL_BLOCKS - 1; /* is becoming hot now */
    while (!look_number(small_block(last), &found))
        last--;
    struct kvf_entry *pinned = kvf_index_pin(index_, &found);
    for (bool more = true; more;)
        more = kvf_index_sift(index_, 0);
    kvf_entry_unpin(index_, pinned);

    unsigned expected = SMALL_BLOCKS / HOT_EVERY - forgotten + !is_hot(last);
    assert_int_equal(stats().blocks, expected);
    assert_int_equal(stats().evicted_blocks, SMALL_BLOCKS - forgotten - expected);
    assert_int_equal(kvf_index_kept(index_, 0, kept, SMALL_BLOCKS), expected);
    assert_int_not_equal(index_segment_of(index_, 0, 1)->reclaimed, 0);
    for (unsigned i = 0; i < expected; i++) {
        struct kvf_location to = {.segment = 2, .sequence = 9, .offset = (i + 1) * KVF_PAGE};
        kvf_index_move(index_, &kept[i].record, kept[i].location, &to);
    }
    assert_int_equal(kvf_index_kept(index_, 0, kept, SMALL_BLOCKS), 0);
    assert_int_equal(index_segment_of(index_, 0, 1)->reclaimed, 0); /* it is given back */
    assert_int_equal(stats().blocks, expected);
    assert_false(kvf_index_reclaim(index_, 0, 2, 9, UINT64_MAX, UINT64_MAX));
    assert_int_equal(stats().blocks, 0); /* nobody asked for them since */
    assert_int_equal(stats().evicted_blocks, SMALL_BLOCKS - forgotten);
}

/* Room for one hot block: it is looked at first, and one that is pinned between two looks does not hide behind it. */
static void reclaim__block_is_pinned_between_two_looks__is_looked_at_all_the_same(void **state)
{
    (void)state;
    struct kvf_found found;
    for (uint32_t i = 0; i < SMALL_BLOCKS; i++) {
        recover(small_block(i), (struct kvf_generation){2, i});
        if (i == 0)
            make_hot(small_block(i));
    }
    assert_true(kvf_index_reclaim(index_, 0, 1, 1, KVF_MIB, KVF_MIB));
    assert_true(look_number(small_block(SMALL_BLOCKS - 1), &found));
    kvf_entry_unpin(index_, kvf_index_pin(index_, &found));
    for (bool more = true; more;)
        more = kvf_index_sift(index_, 0);
    assert_int_equal(stats().blocks, 1);
    assert_true(look_number(small_block(0), &found));
}

static void room__cannot_be_made__the_cache_stays(void **state)
{
    (void)state;
    struct kvf_entry *pinned = add("t/f", "pinned");
    static const char *const cached[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++)
        kvf_entry_unpin(index_, add("t/f", cached[i]));
    struct kvf_extent room = {0};
    assert_int_equal(kvf_index_room(index_, NULL, 4 * KVF_MIB, &room).code, KVF_BUSY);
    for (int i = 0; i < 3; i++)
        assert_true(has("t/f", cached[i]));
    kvf_entry_unpin(index_, pinned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kept__waiting_segment_becomes_empty__is_given_back, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(reclaim__more_blocks_than_the_loop_may_wait_for__bit_by_bit,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            reclaim__block_is_pinned_between_two_looks__is_looked_at_all_the_same, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(room__cannot_be_made__the_cache_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(find__equal_keys_of_two_namespaces__are_two_blocks, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(room__cached_blocks__go_coldest_first_pulled_ones_before,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(room__pinned_blocks__are_never_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unlink__pinned__is_not_found_but_keeps_its_bytes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(watch__pending__is_told_once_at_commit_or_at_its_end,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(evict_all__pinned_stay__others_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(evict__on_ssd__leaves_a_record_that_unfolds_as_it_was,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            hot__pinned_since_the_record_was_written__is_kept_by_folding, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            forget__entry_or_record__is_not_found_and_the_space_goes_with_the_last, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(add__key_of_a_record__is_the_new_block_alone, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(reclaim__entries_and_records__leave_this_segment_only,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(stored__filling_was_reclaimed_meanwhile__is_not_on_ssd,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(recovered__several_generations__the_newest_counts, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(recovered__put_is_committed__gone_for_ever, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(recovered__key_is_pulled__found_again_when_the_copy_goes,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            recovered__two_copies_of_one_generation__the_newer_filling_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(recovered__put_is_aborted__found_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            bytes__200000_blocks_on_ssd__are_at_most_96_and_the_key_for_each, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pin__no_memory__is_null_and_the_record_stays, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(evict__no_memory_for_the_record__is_a_miss, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(recovered__no_memory_at_any_step__is_a_miss, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(add__no_memory_at_any_step__is_null_and_leaves_nothing,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(create__fails_at_each_step__leaves_nothing, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(ready__a_second_time__is_an_assert, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("server/index", tests, NULL, NULL);
}
