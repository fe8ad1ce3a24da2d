#include "server/index.h"

#include "base/test.h"

static struct kvf_pool *pool;
static struct kvf_index *index_;
static int freed;

static void count_freed(void *context)
{
    (void)context;
    freed++;
}

static int set_up(void **state)
{
    (void)state;
    freed = 0;
    if (!kvf_is_ok(kvf_pool_create(4 * KVF_MIB, false, &pool, NULL)))
        return -1;
    struct kvf_index_options options = {.pool = pool, .boot_epoch = 7, .freed = count_freed};
    return kvf_is_ok(kvf_index_create(&options, &index_)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_index_destroy(index_, false);
    kvf_pool_destroy(pool, false);
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
    assert_true(kvf_is_ok(kvf_index_room(index_, KVF_MIB, &room)));
    struct kvf_entry *entry = kvf_index_add(index_, ns, &key, KVF_MIB, KVF_ENTRY_PENDING);
    kvf_entry_give_extent(index_, entry, &room);
    kvf_entry_ready(index_, entry, 1);
    return entry;
}

static bool has(const char *ns, const char *text)
{
    struct kvf_key key = key_of(text);
    return kvf_index_find(index_, ns, &key) != NULL;
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
    assert_true(kvf_is_ok(kvf_index_room(index_, KVF_MIB, &room[0])));
    assert_false(has("t/f", "pulled"));
    assert_true(kvf_is_ok(kvf_index_room(index_, KVF_MIB, &room[1])));
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
    assert_int_equal(kvf_index_room(index_, KVF_MIB, &room).code, KVF_BUSY);
    for (int i = 0; i < 4; i++)
        kvf_entry_unpin(index_, entries[i]);
    assert_int_equal(stats().pinned_bytes, 0);
    assert_true(freed > 0);
    assert_true(kvf_is_ok(kvf_index_room(index_, 4 * KVF_MIB, &room)));
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
    struct kvf_key key = key_of("k");
    assert_ptr_equal(kvf_index_find(index_, "t/f", &key), new);
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
    assert_true(kvf_is_ok(kvf_index_room(index_, 10, &room)));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests_name("server/index", tests, NULL, NULL);
}
