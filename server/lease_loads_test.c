/* What a lease loads: in which order, what goes wrong with it, what is checked. */
#include "server/lease_fixture.h"
#include "storage/faulty.h"

static void granted__cancelled_while_it_loads__keeps_its_charge_until_the_load_ends(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_evict(&node);
    lease_ask(&read, LIST(1), 1, 10000);
    kvf_lease_cancel(read.lease);
    kvf_lease_cancel(read.lease);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 0);
    assert_int_equal(lease_served_bytes(), NODE_BLOCK_BYTES);
    node_run_until(read.freed == 1); /* the lane stays */
    assert_int_equal(lease_served_bytes(), 0);
    assert_non_null(lane);
    lease_stop();
}

static void granted__lane_broken_while_it_loads__is_freed_after_release(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_evict(&node);
    lease_ask(&read, LIST(1, 2), 2, 10000);
    lease_close_lane();
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_int_equal(read.freed, 0);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    lease_stop();
}

static void granted__drive_fails__tells_a_fault_of_those_blocks_alone(void **state)
{
    (void)state;
    struct lease_read read, released;
    lease_start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_evict(&node);
    node_put(&node, 3);
    node_cut_segments(&node);
    lease_ask(&read, LIST(1, 2, 3, 1), 4, 10000);
    lease_ask(&released, LIST(1), 1, 10000);
    kvf_lease_release(released.lease);
    node_run_until(read.faults == 3 && released.freed == 1);
    assert_int_equal(released.faults, 0);
    assert_true(node_has(&node, 1)); /* for the next Read: the drive may come back */
    assert_int_equal(node.counters.dropped[KVF_DROP_READ_ERROR], 0);
    assert_true(node_has(&node, 3));
    kvf_lease_release(read.lease);
    lease_stop();
    assert_int_equal(read.faults, 3);
}

static void granted__forgotten_and_put_anew__keeps_the_old_bytes(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    node_put(&node, 1);
    lease_ask(&read, LIST(1), 1, 10000);
    struct kvf_entry *held = read.lease->blocks[0].entry;
    kvf_index_unlink(node.index, held);
    node_put(&node, 1);
    node_evict(&node);
    assert_ptr_equal(read.lease->blocks[0].entry, held);
    assert_true(held->resident && !held->linked);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void granted__not_released_two_seconds_after_the_deadline__is_overdue(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    node_put(&node, 1);
    lease_ask(&read, LIST(1), 1, 0);
    assert_int_equal(read.granted, 1);
    node_run_until(read.overdue == 1);
    lease_stop();
    assert_int_equal(read.freed, 1);
}

static void recheck__own_copy_is_bad__is_dropped(void **state)
{
    (void)state;
    struct lease_read read;
    lease_start(false);
    node_put(&node, 1);
    node_put(&node, 2);
    lease_ask(&read, LIST(1, 2), 2, 10000);
    kvf_extent_at(read.lease->blocks[1].entry->extent)[5] ^= 1;
    for (uint32_t block = 0; block < 4; block++)
        kvf_lease_recheck(read.lease, block);
    kvf_lease_recheck(read.lease, 1);
    kvf_lease_release(read.lease);
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_true(node_has(&node, 1));
    assert_false(node_has(&node, 2));
    lease_stop();
}

static void recheck__of_many__is_done_one_block_at_a_time(void **state)
{
    (void)state;
    enum { MANY = 8 };
    struct lease_read read;
    unsigned list[MANY];
    lease_start(false);
    for (unsigned i = 0; i < MANY; i++) {
        list[i] = i;
        node_put(&node, i);
    }
    lease_ask(&read, list, MANY, 10000);
    for (uint32_t block = 0; block < MANY; block++)
        kvf_lease_recheck(read.lease, block);
    assert_int_equal(kvf_loads_open(node.loads), 1);
    kvf_lease_release(read.lease);
    node_run_until(kvf_loads_open(node.loads) == 0);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(node_has(&node, i));
    lease_stop();
}

static void get__block_that_a_read_has_loaded__is_checked_first(void **state)
{
    (void)state;
    struct lease_read read;
    struct node_get get;
    lease_start(true);
    node_put(&node, 1);
    node_evict(&node);
    lease_ask(&read, LIST(1), 1, 10000);
    node_get_start(&node, &get, LIST(1), 1, 10000); /* joins the same load, and wants it checked */
    node_run_until(get.answered == 1);
    assert_int_equal(get.codes[0], KVF_OK);
    assert_true(node_find(&node, 1)->verified);
    node_get_release(&get);
    kvf_lease_release(read.lease);
    lease_stop();
}

static void get__bytes_that_a_read_has_loaded_are_bad__is_a_miss(void **state)
{
    (void)state;
    struct lease_read read;
    struct node_get get;
    lease_start(true);
    node_put(&node, 1);
    node_evict(&node);
    lease_ask(&read, LIST(1), 1, 10000);
    node_run_until(kvf_loads_open(node.loads) == 0);
    kvf_extent_at(node_find(&node, 1)->extent)[5] ^= 1;
    node_get_start(&node, &get, LIST(1), 1, 10000);
    node_run_until(get.answered == 1);
    assert_int_equal(get.codes[0], KVF_CORRUPT);
    assert_false(node_has(&node, 1));
    kvf_lease_release(read.lease);
    lease_stop();
}

/* As a daemon with a pool of 16 MiB sets it up that has limits of 4 for puts and of 4 for Gets. */
static void grant__more_than_the_reserve__leaves_puts_and_gets_what_is_theirs(void **state)
{
    (void)state;
    struct lease_read first, second;
    struct node_get gets;
    struct put *puts[4];
    lease_start(true);
    node.admission.classes[KVF_CLASS_DIRTY].limit_bytes = 4 * KVF_MIB;
    node.admission.classes[KVF_CLASS_PULL].limit_bytes = 4 * KVF_MIB;
    node.admission.classes[KVF_CLASS_SERVE].limit_bytes = 8 * KVF_MIB;
    node.admission.query.limit_bytes = 12 * KVF_MIB;
    for (unsigned i = 1; i <= 24; i++) /* the pool is full of what may be evicted */
        node_put(&node, i);
    lease_ask(&first, LIST(1, 2, 3, 4, 5, 6, 7, 8), 8, 10000);
    assert_int_equal(first.granted, 1);
    for (unsigned i = 0; i < 4; i++)
        puts[i] = node_begin(&node, 100 + i); /* at once */
    lease_ask(&second, LIST(13), 1, 100);
    node_run_until(second.refused == 1);
    assert_int_equal(second.refusal.shortage, KVF_SHORT_OF_CLASS);
    node_get_start(&node, &gets, LIST(9, 10, 11, 12), 4, 5000);
    node_run_until(gets.answered == 1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(gets.codes[i], KVF_OK);
    kvf_lease_release(first.lease);
    for (unsigned i = 0; i < 4; i++)
        put_abort(puts[i]);
    node_get_release(&gets);
    node_run_until(gets.freed == 1);
    lease_stop();
}

static void start_hanging(unsigned count)
{
    lease_start_with(&(struct node_options){.ssd = true, .faulty = true, .ssd_depth = 1});
    for (unsigned i = 1; i <= count; i++)
        node_put(&node, i);
    node_evict(&node);
    faulty_arm((struct plan){.kind = KVF_IO_READ, .count = 1, .fd = -1, .fault = FAULT_HOLD});
}

/* The number of the last read that the drive was sent for this block. */
static unsigned last_read(unsigned block)
{
    struct kvf_found found;
    unsigned last = 0, seen = 0;
    assert_true(node_look(&node, block, &found) && found.on_ssd);
    (void)pthread_mutex_lock(&faults.lock);
    for (unsigned i = 0; i < faults.read_count; i++)
        if (faults.read_offsets[i] >= found.location.offset &&
            faults.read_offsets[i] < found.location.offset + NODE_BLOCK_BYTES) {
            last = i;
            seen++;
        }
    (void)pthread_mutex_unlock(&faults.lock);
    assert_int_equal(found.location.segment, 0); /* offsets tell blocks apart */
    assert_int_equal(seen, 4);                   /* pieces, and none of them twice */
    return last;
}

static void let_go(struct lease_read *first, struct lease_read *second)
{
    atomic_store(&faults.held, false);
    node_run_until(kvf_loads_open(node.loads) == 0);
    kvf_lease_release(first->lease);
    kvf_lease_release(second->lease);
}

static void load__speculative__is_read_behind_what_is_demanded(void **state)
{
    (void)state;
    struct lease_read guessed, wanted;
    start_hanging(4);
    lease_guess(&guessed, LIST(1, 2), 2);
    lease_ask(&wanted, LIST(3, 4), 2, 10000);
    let_go(&guessed, &wanted);
    assert_true(last_read(4) < last_read(1));
    assert_true(last_read(1) < last_read(2));
    lease_stop();
}

static void raise__while_it_is_read__goes_before_other_guesses(void **state)
{
    (void)state;
    struct lease_read guessed, raised;
    start_hanging(4);
    lease_guess(&guessed, LIST(1, 2), 2);
    lease_guess(&raised, LIST(3, 4), 2);
    kvf_lease_raise(raised.lease);
    kvf_lease_raise(raised.lease);
    let_go(&guessed, &raised);
    assert_true(last_read(4) < last_read(1));
    lease_stop();
}

static void load__speculative_and_wanted_by_somebody_else__goes_before_other_guesses(void **state)
{
    (void)state;
    struct lease_read guessed, joined;
    struct node_get get;
    start_hanging(4);
    lease_guess(&guessed, LIST(1, 2), 2);
    lease_guess(&joined, LIST(3, 4), 2);
    node_get_start(&node, &get, LIST(4), 1, 10000);
    let_go(&guessed, &joined);
    node_run_until(get.answered == 1);
    assert_int_equal(get.codes[0], KVF_OK);
    node_get_release(&get);
    assert_true(last_read(4) < last_read(1));
    lease_stop();
}

static void load__wanted_and_guessed_by_somebody_else__stays_demanded(void **state)
{
    (void)state;
    struct lease_read guessed, wanted;
    start_hanging(4);
    lease_ask(&wanted, LIST(3, 4), 2, 10000);
    lease_guess(&guessed, LIST(1, 2, 4), 3);
    let_go(&guessed, &wanted);
    assert_true(last_read(4) < last_read(1));
    lease_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(granted__cancelled_while_it_loads__keeps_its_charge_until_the_load_ends),
        NODE_TEST(granted__lane_broken_while_it_loads__is_freed_after_release),
        NODE_TEST(granted__drive_fails__tells_a_fault_of_those_blocks_alone),
        NODE_TEST(granted__forgotten_and_put_anew__keeps_the_old_bytes),
        NODE_TEST(granted__not_released_two_seconds_after_the_deadline__is_overdue),
        NODE_TEST(recheck__own_copy_is_bad__is_dropped),
        NODE_TEST(recheck__of_many__is_done_one_block_at_a_time),
        NODE_TEST(grant__more_than_the_reserve__leaves_puts_and_gets_what_is_theirs),
        NODE_TEST(load__speculative__is_read_behind_what_is_demanded),
        NODE_TEST(raise__while_it_is_read__goes_before_other_guesses),
        NODE_TEST(load__speculative_and_wanted_by_somebody_else__goes_before_other_guesses),
        NODE_TEST(load__wanted_and_guessed_by_somebody_else__stays_demanded),
        NODE_TEST(get__block_that_a_read_has_loaded__is_checked_first),
        NODE_TEST(get__bytes_that_a_read_has_loaded_are_bad__is_a_miss),
    };
    return cmocka_run_group_tests_name("server/lease_loads", tests, NULL, NULL);
}
