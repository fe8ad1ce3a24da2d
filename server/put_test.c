#include "server/node_fixture.h"
#include "storage/faulty.h"

#include <errno.h>

static struct node node;

/* A PutBegin and what came of it. */
struct places {
    struct put_begin *begin; /* NULL once answered */
    unsigned answered;
    struct kvf_status status;
    struct kvf_refusal refusal;
    enum kvf_code codes[NODE_MAX_ITEMS];
    struct put *puts[NODE_MAX_ITEMS];
};

static void answered(struct put_begin *begin)
{
    struct places *places = begin->user;
    places->answered++;
    places->begin = NULL;
    places->status = begin->status;
    places->refusal = begin->refusal;
    for (uint32_t i = 0; i < begin->item_count; i++) {
        places->codes[i] = begin->items[i].code;
        places->puts[i] = begin->items[i].put;
    }
}

static void begin_in(const char *ns, struct places *places, const unsigned *blocks, uint32_t count,
                     uint64_t length, uint64_t timeout_ms)
{
    *places = (struct places){.begin = put_begin_create(&node.puts, count)};
    struct put_begin *asked = places->begin;
    assert_non_null(asked);
    strcpy(asked->ns, ns);
    asked->deadline_ns = kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
    asked->answered = answered;
    asked->user = places;
    for (uint32_t i = 0; i < count; i++) {
        asked->items[i].key = node_key(blocks[i]);
        asked->items[i].length = length;
    }
    put_begin_start(asked);
}

static void begin(struct places *places, const unsigned *blocks, uint32_t count, uint64_t length,
                  uint64_t timeout_ms)
{
    begin_in(NODE_SPACE, places, blocks, count, length, timeout_ms);
}

static uint64_t dirty_bytes(void)
{
    return node.admission.classes[KVF_CLASS_DIRTY].used_bytes;
}

static bool is_stored(unsigned block)
{
    struct kvf_found found;
    return node_look(&node, block, &found) && found.on_ssd;
}

static void begin__known_keys__say_what_they_are_and_take_nothing(void **state)
{
    (void)state;
    struct places places;
    node_start(&node, &(struct node_options){0});
    node_put(&node, 1);
    struct put *open = node_begin(&node, 2);
    begin(&places, LIST(1, 2, 3, 3), 4, NODE_BLOCK_BYTES, 1000);
    assert_int_equal(places.codes[0], KVF_EXISTS);
    assert_int_equal(places.codes[1], KVF_PENDING);
    assert_int_equal(places.codes[2], KVF_OK);
    assert_int_equal(places.codes[3], KVF_PENDING); /* the same key twice */
    assert_int_equal(dirty_bytes(), 2 * NODE_BLOCK_BYTES);
    put_abort(places.puts[2]);
    put_abort(open);
    node_stop(&node);
}

static void begin__lengths_that_no_block_has__are_refused(void **state)
{
    (void)state;
    struct places places;
    node_start(&node, &(struct node_options){0});
    begin(&places, LIST(1), 1, 0, 1000);
    assert_int_equal(places.codes[0], KVF_INVALID);
    begin(&places, LIST(1), 1, KVF_BLOCK_MAX_BYTES + 1, 1000);
    assert_int_equal(places.codes[0], KVF_TOO_LARGE);
    begin(&places, LIST(1), 1, UINT64_MAX, 1000);
    assert_int_equal(places.codes[0], KVF_TOO_LARGE);
    begin(&places, LIST(1), 1, 17 * KVF_MIB, 1000); /* a block, but more than the limit */
    assert_int_equal(places.status.code, KVF_TOO_LARGE);
    node_stop(&node);
}

static void begin__dirty_bytes_at_their_limit__waits_and_is_busy_at_its_deadline(void **state)
{
    (void)state;
    struct places first, second, third;
    node_start(&node, &(struct node_options){0});
    begin(&first, LIST(1), 1, 12 * KVF_MIB, 1000);
    begin(&second, LIST(2), 1, 12 * KVF_MIB, 50);
    begin(&third, LIST(3), 1, 12 * KVF_MIB, 15000);
    assert_int_equal(second.answered + third.answered, 0);
    node_run_until(second.answered == 1);
    assert_int_equal(second.status.code, KVF_BUSY);
    assert_int_equal(node.counters.puts.busy, 1);
    put_abort(first.puts[0]);
    node_run_until(third.answered == 1);
    put_abort(third.puts[0]);
    node_stop(&node);
}

static void begin__nothing_needs_a_place__does_not_wait_behind_others(void **state)
{
    (void)state;
    struct places first, second, third;
    node_start(&node, &(struct node_options){0});
    node_put(&node, 9);
    begin(&first, LIST(1), 1, 12 * KVF_MIB, 1000);
    begin(&second, LIST(2), 1, 12 * KVF_MIB, 15000);
    begin(&third, LIST(9), 1, NODE_BLOCK_BYTES, 15000);
    assert_int_equal(third.answered, 1);
    assert_int_equal(third.codes[0], KVF_EXISTS);
    put_abort(first.puts[0]);
    node_run_until(second.answered == 1);
    put_abort(second.puts[0]);
    node_stop(&node);
}

static void begin__dropped_in_the_queue__leaves_nothing(void **state)
{
    (void)state;
    struct places first, second, third;
    node_start(&node, &(struct node_options){0});
    begin(&first, LIST(1), 1, 12 * KVF_MIB, 1000);
    begin(&second, LIST(2), 1, 12 * KVF_MIB, 15000);
    begin(&third, LIST(3), 1, 4 * KVF_MIB, 15000); /* fits, but stands behind the second */
    assert_int_equal(third.answered, 0);
    put_begin_drop(second.begin);
    node_run_until(third.answered == 1);
    assert_int_equal(second.answered, 0);
    put_abort(first.puts[0]);
    put_abort(third.puts[0]);
    node_stop(&node);
}

static void begin__no_memory_for_the_last_of_its_places__takes_none_and_waits(void **state)
{
    (void)state;
    struct places places;
    node_start(&node, &(struct node_options){0});
    node_take_memory(&node);
    begin(&places, LIST(1, 2), 2, NODE_BLOCK_BYTES, 15000);
    assert_int_equal(places.answered, 0);
    assert_int_equal(dirty_bytes(), 0);
    assert_false(node_has(&node, 1));
    node_return_memory(&node);
    node_run_until(places.answered == 1);
    put_abort(places.puts[0]);
    put_abort(places.puts[1]);
    node_stop(&node);
}

/* Memory for the first of two places, not for the second. */
static void begin__no_memory_for_the_last_of_its_places__nobody_hears_of_it(void **state)
{
    (void)state;
    struct places places;
    struct kvf_extent in_the_way = {0};
    node_start(&node, &(struct node_options){.ssd = true});
    node.puts.write_at_reuse = true;
    node_commit(node_begin(&node, 1), 1);
    struct kvf_key key = node_key(2);
    struct kvf_entry *pulling =
        kvf_index_add(node.index, NODE_SPACE, &key, NODE_BLOCK_BYTES, KVF_ENTRY_PULLING);
    assert_true(kvf_is_ok(kvf_index_room(node.index, NULL, 4 * KVF_MIB, &in_the_way)));
    begin(&places, LIST(1, 2, 3), 3, 7 * KVF_MIB, 15000);
    assert_int_equal(places.answered, 0);
    assert_true(pulling->linked);             /* whoever comes now shares the pull */
    assert_false(node_find(&node, 1)->dirty); /* and the block is not written at each try */
    assert_int_equal(dirty_bytes(), 0);

    kvf_index_return_room(node.index, &in_the_way);
    node_run_until(places.answered == 1);
    assert_int_equal(places.codes[0], KVF_EXISTS);
    assert_false(pulling->linked); /* a put wins */
    kvf_entry_unpin(node.index, pulling);
    put_abort(places.puts[1]);
    put_abort(places.puts[2]);
    node_run_until(is_stored(1));
    node_stop(&node);
}

static void begin__existed_when_counted_and_is_gone__is_busy_and_not_overcharged(void **state)
{
    (void)state;
    struct places places;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_take_memory(&node);
    begin(&places, LIST(1, 2), 2, NODE_BLOCK_BYTES, 15000);
    node_forget(&node, 1);
    node_return_memory(&node);
    node_run_until(places.answered == 1);
    assert_int_equal(dirty_bytes(), NODE_BLOCK_BYTES);
    for (int i = 0; i < 2; i++)
        if (places.puts[i] != NULL)
            put_abort(places.puts[i]);
    node_stop(&node);
}

static void finish__ssd__is_visible_at_once_and_clean_when_durable(void **state)
{
    (void)state;
    node_start(&node, &(struct node_options){.ssd = true});
    node_commit(node_begin(&node, 1), 1);
    struct kvf_entry *entry = node_find(&node, 1);
    assert_true(entry->state == KVF_ENTRY_READY && entry->dirty && !entry->on_ssd);
    assert_int_equal(dirty_bytes(), NODE_BLOCK_BYTES);
    node_evict(&node);
    assert_true(entry->resident);
    node_run_until(dirty_bytes() == 0);
    assert_true(entry->on_ssd && !entry->dirty);
    node_evict(&node);
    assert_null(node_find(&node, 1)); /* only a record is left */
    assert_true(is_stored(1));
    node_stop(&node);
}

static void finish__forgotten_while_it_is_written__leaves_nothing(void **state)
{
    (void)state;
    node_start(&node, &(struct node_options){.ssd = true});
    node_commit(node_begin(&node, 1), 1);
    node_forget(&node, 1);
    struct put *again = node_begin(&node, 1); /* the key is free at once */
    node_commit(again, 1);
    node_run_until(dirty_bytes() == 0);
    assert_true(node_find(&node, 1)->on_ssd);
    node_stop(&node);
}

static void finish__no_ssd__is_clean_at_once_and_counted(void **state)
{
    (void)state;
    node_start(&node, &(struct node_options){0});
    node_put(&node, 1);
    assert_int_equal(dirty_bytes(), 0);
    assert_int_equal(node.counters.dropped[KVF_DROP_NO_SSD], 1);
    node_stop(&node);
}

static void quarantine__engine_gone__key_is_free_memory_is_not(void **state)
{
    (void)state;
    node_start(&node, &(struct node_options){0});
    struct put *put = node_begin(&node, 1);
    put_quarantine(put);
    assert_false(node_has(&node, 1));
    assert_int_equal(dirty_bytes(), NODE_BLOCK_BYTES);
    assert_int_equal(node.puts.quarantine_bytes, NODE_BLOCK_BYTES);
    struct put *other = node_begin(&node, 1);
    put_abort(put);
    assert_int_equal(node.puts.quarantine_bytes, 0);
    assert_true(node_has(&node, 1));
    put_abort(other);
    node_stop(&node);
}

/* ---- sync ---- */

struct syncing {
    struct kvf_sync sync;
    unsigned done;
};

static void synced(struct kvf_sync *sync)
{
    kvf_container(sync, struct syncing, sync)->done++;
}

static void sync__waits_for_what_is_being_written_and_not_for_more(void **state)
{
    (void)state;
    struct syncing none = {.sync.done = synced}, some = none, cancelled = none;
    node_start(&node, &(struct node_options){.ssd = true});
    kvf_sync_start(&node.puts, &none.sync);
    assert_int_equal(none.done, 1);
    node_commit(node_begin(&node, 1), 1);
    node_commit(node_begin(&node, 2), 2);
    kvf_sync_start(&node.puts, &some.sync);
    kvf_sync_start(&node.puts, &cancelled.sync);
    assert_int_equal(some.done, 0);
    assert_int_equal(some.sync.blocks, 2);
    assert_int_equal(some.sync.bytes, 2 * NODE_BLOCK_BYTES);
    kvf_sync_cancel(&cancelled.sync);
    node_run_until(some.done == 1);
    assert_true(node_find(&node, 1)->on_ssd && node_find(&node, 2)->on_ssd);
    assert_int_equal(cancelled.done, 0);
    node_stop(&node);
}

/* ---- what is worth a place on SSD ---- */

static void reuse__second_put__writes_the_block(void **state)
{
    (void)state;
    struct places places;
    node_start(&node, &(struct node_options){.ssd = true});
    node.puts.write_at_reuse = true;
    node_commit(node_begin(&node, 1), 1);
    node_commit(node_begin(&node, 2), 2);
    assert_int_equal(dirty_bytes(), 0); /* nobody has asked for them again */
    begin(&places, LIST(1), 1, NODE_BLOCK_BYTES, 1000);
    assert_int_equal(places.codes[0], KVF_EXISTS);
    node_run_until(is_stored(1));
    assert_false(is_stored(2));
    node_stop(&node);
}

static void reuse__first_hit__writes_the_block(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node.puts.write_at_reuse = node.gets.keep_hits = true;
    node.gets.puts = &node.puts;
    node_commit(node_begin(&node, 1), 1);
    node_get_start(&node, &ask, LIST(1), 1, 1000);
    node_run_until(ask.answered == 1);
    node_get_release(&ask);
    node_run_until(is_stored(1));
    node_stop(&node);
}

static void reuse__dirty_class_full__lets_the_chance_pass(void **state)
{
    (void)state;
    struct places full, again;
    node_start(&node, &(struct node_options){.ssd = true});
    node.puts.write_at_reuse = true;
    node_commit(node_begin(&node, 1), 1);
    uint64_t room = node.admission.classes[KVF_CLASS_DIRTY].limit_bytes;
    node.admission.classes[KVF_CLASS_DIRTY].limit_bytes = 2 * KVF_MIB;
    begin(&full, LIST(2), 1, 2 * KVF_MIB, 1000);
    begin(&again, LIST(1), 1, NODE_BLOCK_BYTES, 1000);
    assert_int_equal(again.codes[0], KVF_EXISTS);
    assert_false(node_find(&node, 1)->dirty);
    node.admission.classes[KVF_CLASS_DIRTY].limit_bytes = room;
    put_abort(full.puts[0]);
    node_stop(&node);
}

static void keep_all__reuse__writes_what_is_in_dram_only(void **state)
{
    (void)state;
    struct syncing syncing = {.sync.done = synced};
    node_start(&node, &(struct node_options){.ssd = true});
    node.puts.write_at_reuse = true;
    node_commit(node_begin(&node, 1), 1);
    node_commit(node_begin(&node, 2), 2);
    node_find(&node, 2)->pulled = true; /* somebody else's: not ours to keep */
    put_keep_all(&node.puts);
    kvf_sync_start(&node.puts, &syncing.sync);
    node_run_until(syncing.done == 1);
    assert_true(is_stored(1));
    assert_false(is_stored(2));
    node_stop(&node);
}

/* A sync while the drive refuses says so, each time; the first one after that brings the blocks to the SSD. */
static void keep_all__drive_refused__is_tried_again_by_each_sync(void **state)
{
    (void)state;
    node_start(&node, &(struct node_options){.ssd = true, .faulty = true});
    node_put(&node, 1);
    faulty_arm((struct plan){
        .kind = KVF_IO_WRITE, .count = 1000000, .fd = -1, .fault = FAULT_ERROR, .value = ENOSPC});
    node_put(&node, 2);
    node_put(&node, 3);
    assert_int_equal(node.counters.dropped[KVF_DROP_WRITE_ERROR], 2);
    assert_int_equal(node.puts.read_only_drives, 1);
    for (unsigned round = 0; round < 3; round++) {
        struct syncing syncing = {.sync.done = synced};
        put_keep_all(&node.puts);
        kvf_sync_start(&node.puts, &syncing.sync);
        node_run_until(syncing.done == 1);
        assert_int_equal(syncing.sync.failed, 2);
        assert_int_equal(node.counters.dropped[KVF_DROP_WRITE_ERROR], 2);
        assert_false(is_stored(2) || is_stored(3));
    }
    faulty_disarm();
    struct kvf_drive_stats drive = {.read_only = true};
    while (drive.read_only) { /* until the drive's probe has found out */
        kvf_loop_run_once(node_loop, 20);
        kvf_store_stats(node.store, 0, &drive);
    }
    struct syncing syncing = {.sync.done = synced};
    put_keep_all(&node.puts);
    kvf_sync_start(&node.puts, &syncing.sync);
    node_run_until(syncing.done == 1);
    assert_int_equal(syncing.sync.failed, 0);
    assert_true(is_stored(1) && is_stored(2) && is_stored(3));
    assert_int_equal(node.puts.read_only_drives, 0);
    node_stop(&node);
}

/* ---- shares of the tenant ---- */

static void begin__above_the_share__waits_lets_others_pass_and_says_what_was_short(void **state)
{
    (void)state;
    struct kvf_acl *acl = node_shares("\"t\": {\"dram\": 0.25}"); /* 4 MiB */
    struct places open, waits, others, never;
    node_start(&node, &(struct node_options){.acl = acl});
    begin(&open, LIST(1, 2, 3), 3, KVF_MIB, 1000);
    begin(&waits, LIST(4, 5), 2, KVF_MIB, 200);
    begin_in("other/f", &others, LIST(1, 2, 3, 4, 5, 6), 6, KVF_MIB, 1000);
    begin(&never, LIST(7), 1, 5 * KVF_MIB, 1000);
    assert_int_equal(waits.answered, 0);
    assert_int_equal(others.answered, 1);
    assert_true(kvf_is_ok(others.status));
    assert_int_equal(never.status.code, KVF_TOO_LARGE);
    assert_int_equal(never.refusal.shortage, KVF_SHORT_OF_TENANT);
    assert_int_equal(never.refusal.short_bytes, KVF_MIB);
    node_run_until(waits.answered == 1);
    assert_int_equal(waits.status.code, KVF_BUSY);
    assert_int_equal(waits.refusal.shortage, KVF_SHORT_OF_TENANT);
    assert_int_equal(waits.refusal.short_bytes, KVF_MIB);
    begin(&waits, LIST(4, 5), 2, KVF_MIB, 10000);
    node_commit(open.puts[0], 1); /* without an SSD it may be evicted from now on */
    node_run_until(waits.answered == 1);
    assert_true(kvf_is_ok(waits.status));
    for (unsigned i = 0; i < 6; i++)
        put_abort(others.puts[i]);
    put_abort(open.puts[1]);
    put_abort(open.puts[2]);
    put_abort(waits.puts[0]);
    put_abort(waits.puts[1]);
    node_stop(&node);
    kvf_acl_close(acl);
}

static void begin__several_places__share_is_kept_for_all_of_them(void **state)
{
    (void)state;
    struct kvf_acl *acl = node_shares("\"t\": {\"dram\": 0.25}"); /* 4 MiB */
    struct places places;
    node_start(&node, &(struct node_options){.acl = acl});
    for (unsigned block = 1; block <= 4; block++)
        node_put(&node, block);
    begin(&places, LIST(5, 6, 7), 3, KVF_MIB, 1000);
    assert_true(kvf_is_ok(places.status));
    const struct kvf_tenant *tenant = places.puts[0]->entry->space->tenant;
    assert_int_equal(tenant->used_bytes[KVF_SHARE_DRAM], 4 * KVF_MIB);
    assert_true(node_has(&node, 4));
    assert_false(node_has(&node, 1) || node_has(&node, 2) || node_has(&node, 3));
    for (unsigned i = 0; i < 3; i++)
        put_abort(places.puts[i]);
    node_stop(&node);
    kvf_acl_close(acl);
}

/* Each new one is durable; the oldest go for it, and their places are not waited for. */
static void write__above_the_share__the_oldest_leave_the_ssd(void **state)
{
    (void)state;
    struct kvf_acl *acl = node_shares("\"t\": {\"ssd\": 0.0390625}"); /* 2.5 MiB */
    node_start(&node, &(struct node_options){.ssd = true, .acl = acl});
    for (unsigned block = 1; block <= 4; block++)
        node_put(&node, block);
    assert_true(is_stored(3) && is_stored(4));
    assert_false(is_stored(1) || is_stored(2));
    assert_true(node_has(&node, 1) && node_has(&node, 2)); /* in DRAM */
    node_evict(&node);
    assert_false(node_has(&node, 1) || node_has(&node, 2));
    for (int reason = 0; reason < KVF_DROP_COUNT; reason++)
        assert_int_equal(node.counters.dropped[reason], 0);
    node_stop(&node);
    kvf_acl_close(acl);
}

static void write__larger_than_the_whole_share__stays_in_dram_and_is_counted(void **state)
{
    (void)state;
    struct kvf_acl *acl = node_shares("\"t\": {\"ssd\": 0.0078125}"); /* 0.5 MiB */
    struct syncing syncing = {.sync.done = synced};
    node_start(&node, &(struct node_options){.ssd = true, .acl = acl});
    node_put(&node, 1);
    assert_false(is_stored(1));
    put_keep_all(&node.puts);
    kvf_sync_start(&node.puts, &syncing.sync);
    assert_int_equal(syncing.done, 1); /* there is nothing to wait for */
    assert_int_equal(node.counters.dropped[KVF_DROP_SSD_SHARE], 1);
    struct kvf_drive_stats drive;
    kvf_store_stats(node.store, 0, &drive);
    assert_int_equal(drive.write_payload_bytes, 0);
    node_put_in(&node, "other/f", 1);
    node_evict(&node);
    assert_false(node_has(&node, 1));
    assert_true(node_has_in(&node, "other/f", 1));
    node_stop(&node);
    kvf_acl_close(acl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(begin__known_keys__say_what_they_are_and_take_nothing),
        NODE_TEST(begin__lengths_that_no_block_has__are_refused),
        NODE_TEST(begin__dirty_bytes_at_their_limit__waits_and_is_busy_at_its_deadline),
        NODE_TEST(begin__nothing_needs_a_place__does_not_wait_behind_others),
        NODE_TEST(begin__dropped_in_the_queue__leaves_nothing),
        NODE_TEST(begin__no_memory_for_the_last_of_its_places__takes_none_and_waits),
        NODE_TEST(begin__no_memory_for_the_last_of_its_places__nobody_hears_of_it),
        NODE_TEST(begin__existed_when_counted_and_is_gone__is_busy_and_not_overcharged),
        NODE_TEST(finish__ssd__is_visible_at_once_and_clean_when_durable),
        NODE_TEST(finish__forgotten_while_it_is_written__leaves_nothing),
        NODE_TEST(finish__no_ssd__is_clean_at_once_and_counted),
        NODE_TEST(quarantine__engine_gone__key_is_free_memory_is_not),
        NODE_TEST(sync__waits_for_what_is_being_written_and_not_for_more),
        NODE_TEST(reuse__second_put__writes_the_block),
        NODE_TEST(reuse__first_hit__writes_the_block),
        NODE_TEST(reuse__dirty_class_full__lets_the_chance_pass),
        NODE_TEST(keep_all__reuse__writes_what_is_in_dram_only),
        NODE_TEST(keep_all__drive_refused__is_tried_again_by_each_sync),
        NODE_TEST(begin__above_the_share__waits_lets_others_pass_and_says_what_was_short),
        NODE_TEST(begin__several_places__share_is_kept_for_all_of_them),
        NODE_TEST(write__above_the_share__the_oldest_leave_the_ssd),
        NODE_TEST(write__larger_than_the_whole_share__stays_in_dram_and_is_counted),
    };
    return cmocka_run_group_tests_name("server/put", tests, NULL, NULL);
}
