#include "server/node_fixture.h"
#include "storage/faulty.h"

static struct node node;

/* A session's part of a lease: a lane that nobody has joined, and what the lease told. */
static struct kvf_lane *lane;
static struct kvf_lease_lane shared;
static struct kvf_party party;

struct read {
    struct kvf_lease *lease; /* NULL once freed */
    unsigned granted, refused, faults, committed, overdue, freed;
    struct kvf_refusal refusal;
    enum kvf_code codes[NODE_MAX_ITEMS];
    bool release_when_granted;
};

static void granted(struct kvf_lease *lease)
{
    struct read *read = lease->user;
    read->granted++;
    for (uint32_t i = 0; i < lease->block_count; i++)
        read->codes[i] = lease->blocks[i].code;
    if (read->release_when_granted)
        kvf_lease_release(lease);
}

static void refused(struct kvf_lease *lease, const struct kvf_refusal *refusal)
{
    struct read *read = lease->user;
    read->refused++;
    read->refusal = *refusal;
}

static void fault(struct kvf_lease *lease, uint32_t block, enum kvf_code code)
{
    (void)block;
    (void)code;
    ((struct read *)lease->user)->faults++;
}

static void committed(struct kvf_lease *lease, uint32_t block, uint64_t length)
{
    (void)block;
    assert_int_equal(length, NODE_BLOCK_BYTES);
    ((struct read *)lease->user)->committed++;
}

static void overdue(struct kvf_lease *lease)
{
    ((struct read *)lease->user)->overdue++;
    kvf_lease_release(lease);
}

static void freed(void *user, const struct kvf_lease *lease)
{
    struct read *read = user;
    assert_ptr_equal(lease->party, &party);
    read->freed++;
    read->lease = NULL;
}

static const struct kvf_lease_events events = {.granted = granted,
                                               .refused = refused,
                                               .fault = fault,
                                               .committed = committed,
                                               .overdue = overdue};

static void lane_closed(struct kvf_lane *closed, void *user, struct kvf_status status)
{
    (void)closed;
    (void)user;
    (void)status;
    lane = NULL;
}

static void lane_opened(struct kvf_lane *opened, void *user)
{
    (void)opened;
    (void)user;
}

static const struct kvf_lane_events lane_events = {.opened = lane_opened, .closed = lane_closed};
static uint64_t next_id;

static void start_with(const struct node_options *options)
{
    struct kvf_lane_nonces nonces;
    node_start(&node, options);
    party = (struct kvf_party){.budget.limit_bytes = 12 * KVF_MIB};
    next_id = 0;
    assert_true(
        kvf_is_ok(kvf_lane_invite(node.transport, kvf_clock_now_ns() + NODE_WAIT_S * KVF_NS_PER_S,
                                  &lane_events, NULL, &nonces, &lane)));
    kvf_lease_lane_init(&shared, lane, kvf_transport_traits(node.transport));
}

static void start(bool ssd)
{
    start_with(&(struct node_options){.ssd = ssd});
}

static void close_lane(void)
{
    if (lane != NULL)
        kvf_lane_close(lane);
    node_run_until(lane == NULL);
}

static void stop(void)
{
    close_lane();
    node_run_until(node.leases.open == 0);
    assert_int_equal(party.budget.used_bytes, 0);
    node_stop(&node);
}

static void prepare(struct read *read, const unsigned *blocks, uint32_t count, uint64_t timeout_ms)
{
    *read = (struct read){.lease = kvf_lease_create(&node.leases, count)};
    struct kvf_lease *lease = read->lease;
    assert_non_null(lease);
    lease->id = ++next_id;
    lease->deadline_ns = kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
    strcpy(lease->ns, NODE_SPACE);
    lease->lane = &shared;
    lease->party = &party;
    lease->events = &events;
    lease->freed = freed;
    lease->user = read;
    for (uint32_t i = 0; i < count; i++) {
        lease->blocks[i].key = node_key(blocks[i]);
        lease->blocks[i].length = NODE_BLOCK_BYTES;
    }
}

static void ask(struct read *read, const unsigned *blocks, uint32_t count, uint64_t timeout_ms)
{
    prepare(read, blocks, count, timeout_ms);
    kvf_lease_start(read->lease);
}

static uint64_t served_bytes(void)
{
    return node.admission.classes[KVF_CLASS_SERVE].used_bytes;
}

static void grant__hits_and_misses__hold_and_charge_the_hits_alone(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_evict(&node);
    node_put(&node, 2);
    ask(&read, LIST(1, 2, 3), 3, 10000);
    assert_int_equal(read.granted, 1);
    assert_int_equal(read.codes[0], KVF_OK);
    assert_int_equal(read.codes[1], KVF_OK);
    assert_int_equal(read.codes[2], KVF_NOT_FOUND);
    assert_int_equal(read.lease->blocks[0].tier, KVF_TIER_SSD);
    assert_int_equal(read.lease->blocks[1].tier, KVF_TIER_DRAM);
    assert_int_equal(served_bytes(), 2 * NODE_BLOCK_BYTES);
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_true(node_find(&node, 1)->resident);
    assert_false(node_find(&node, 1)->verified);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 0); /* the lane still has both */
    close_lane();
    node_run_until(read.freed == 1);
    assert_int_equal(read.faults, 0);
    stop();
}

static void grant__denied__is_like_one_of_keys_that_are_not_there(void **state)
{
    (void)state;
    struct read read;
    start(true);
    struct put *put = node_begin(&node, 2);
    node_put(&node, 1);
    prepare(&read, LIST(1, 2, 3), 3, 10000);
    read.lease->denied = true;
    kvf_lease_start(read.lease);
    assert_int_equal(read.granted, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read.codes[i], KVF_NOT_FOUND);
    assert_int_equal(served_bytes(), 0);
    node_commit(put, 2);
    assert_int_equal(read.committed, 0);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    stop();
}

static void grant__pins_and_lengths_that_do_not_match__are_no_hits(void **state)
{
    (void)state;
    struct read read;
    start(false);
    node_put(&node, 1);
    prepare(&read, LIST(1, 1, 1, 1), 4, 10000);
    read.lease->blocks[0].pin = (struct kvf_generation){7, 99};
    read.lease->blocks[1].length = 4096;
    read.lease->blocks[2].pin = node_find(&node, 1)->generation;
    read.lease->blocks[3].key = node_key(8);
    kvf_lease_start(read.lease);
    assert_int_equal(read.codes[0], KVF_STALE);
    assert_int_equal(read.codes[1], KVF_NOT_FOUND);
    assert_int_equal(read.codes[2], KVF_OK);
    assert_int_equal(served_bytes(), NODE_BLOCK_BYTES);
    kvf_lease_release(read.lease);
    stop();
}

static void grant__stop_at_first_miss__grants_nothing_behind_it(void **state)
{
    (void)state;
    struct read read;
    start(false);
    node_put(&node, 1);
    node_put(&node, 3);
    prepare(&read, LIST(1, 2, 3), 3, 10000);
    read.lease->stop_at_first_miss = true;
    kvf_lease_start(read.lease);
    assert_int_equal(read.codes[0], KVF_OK);
    assert_int_equal(read.codes[2], KVF_NOT_FOUND);
    assert_int_equal(node_find(&node, 3)->pins, 0);
    kvf_lease_release(read.lease);
    stop();
}

static void grant__the_same_key_twice__is_loaded_once(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_evict(&node);
    ask(&read, LIST(1, 1), 2, 10000);
    assert_int_equal(read.codes[1], KVF_OK);
    assert_int_equal(kvf_loads_open(node.loads), 1);
    kvf_lease_release(read.lease);
    stop();
    assert_int_equal(read.freed, 1);
}

static void grant__released_by_the_event__leaves_nothing(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_evict(&node);
    prepare(&read, LIST(1, 2), 2, 10000);
    read.release_when_granted = true;
    kvf_lease_start(read.lease);
    node_run_until(read.freed == 1); /* the lane and the load let go first */
    stop();
}

static void grant__pending__tells_when_it_is_committed(void **state)
{
    (void)state;
    struct read read, released;
    start(false);
    struct put *put = node_begin(&node, 1);
    ask(&read, LIST(1), 1, 10000);
    ask(&released, LIST(1), 1, 10000);
    assert_int_equal(read.codes[0], KVF_PENDING);
    assert_int_equal(served_bytes(), 0);
    kvf_lease_release(released.lease);
    assert_int_equal(released.freed, 1);
    node_commit(put, 1);
    assert_int_equal(read.committed, 1);
    assert_int_equal(released.committed, 0);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    stop();
}

static void grant__pending_aborted__is_a_fault(void **state)
{
    (void)state;
    struct read read;
    start(false);
    struct put *put = node_begin(&node, 1);
    ask(&read, LIST(1), 1, 10000);
    put_abort(put);
    assert_int_equal(read.committed, 0);
    assert_int_equal(read.faults, 1);
    kvf_lease_release(read.lease);
    stop();
}

static void grant__behind_a_pending_one__is_granted_even_if_it_stops_at_a_miss(void **state)
{
    (void)state;
    struct read read;
    start(false);
    struct put *put = node_begin(&node, 1);
    node_put(&node, 2);
    prepare(&read, LIST(1, 2, 3, 2), 4, 10000);
    read.lease->stop_at_first_miss = true;
    kvf_lease_start(read.lease);
    assert_int_equal(read.codes[0], KVF_PENDING);
    assert_int_equal(read.codes[1], KVF_OK);
    assert_int_equal(read.codes[2], KVF_NOT_FOUND);
    assert_int_equal(read.codes[3], KVF_NOT_FOUND);
    kvf_lease_release(read.lease);
    put_abort(put);
    stop();
}

static void grant__unknown_while_recovery_runs__ends_as_committed_or_fault(void **state)
{
    (void)state;
    struct read read, released;
    start(true);
    node_put(&node, 1);
    struct node_lost lost = node_lose(&node, 1);
    kvf_awaited_open(&node.awaited);
    ask(&read, LIST(1, 2, 3), 3, 10000);
    ask(&released, LIST(1), 1, 10000);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read.codes[i], KVF_PENDING);
    assert_int_equal(served_bytes(), 0);
    kvf_lease_release(released.lease);
    assert_int_equal(released.freed, 1);
    node_recovers(&node, &lost);
    assert_int_equal(read.committed, 1);
    struct put *put = node_begin(&node, 2);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(read.faults, 1); /* 3; 2 waits for its put now */
    node_commit(put, 2);
    assert_int_equal(read.committed, 2);
    assert_int_equal(released.committed + released.faults, 0);
    kvf_lease_release(read.lease);
    stop();
}

/* Even then: one that is here, one that recovery finds meanwhile and one that is nowhere end alike, and together. */
static void grant__denied_while_recovery_runs__all_end_as_faults_at_its_end(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    struct node_lost lost = node_lose(&node, 1);
    kvf_awaited_open(&node.awaited);
    prepare(&read, LIST(1, 2, 3), 3, 10000);
    read.lease->denied = true;
    kvf_lease_start(read.lease);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read.codes[i], KVF_PENDING);
    node_recovers(&node, &lost);
    assert_int_equal(read.committed + read.faults, 0);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(read.committed, 0);
    assert_int_equal(read.faults, 3);
    kvf_lease_release(read.lease);
    stop();
}

static void start__more_than_a_grant_may_be__is_too_large(void **state)
{
    (void)state;
    struct read read;
    start(false);
    node.leases.max_grant_bytes = NODE_BLOCK_BYTES;
    ask(&read, LIST(1, 2), 2, 10000);
    assert_int_equal(read.refused, 1);
    assert_int_equal(read.refusal.code, KVF_TOO_LARGE);
    assert_int_equal(read.refusal.shortage, KVF_SHORT_OF_GRANT);
    assert_int_equal(read.refusal.short_bytes, NODE_BLOCK_BYTES);
    assert_int_equal(read.freed, 1);
    node.leases.max_grant_bytes = 64 * KVF_MIB;
    party.budget.limit_bytes = NODE_BLOCK_BYTES;
    ask(&read, LIST(1, 2), 2, 10000);
    assert_int_equal(read.refusal.code, KVF_TOO_LARGE);
    assert_int_equal(read.refusal.shortage, KVF_SHORT_OF_INSTANCE);
    assert_int_equal(read.refusal.short_bytes, NODE_BLOCK_BYTES);
    stop();
}

static void queued__deadline__is_busy(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_take_memory(&node);
    ask(&read, LIST(1), 1, 50);
    assert_int_equal(read.granted + read.refused, 0);
    node_run_until(read.freed == 1);
    assert_int_equal(read.refused, 1);
    assert_int_equal(read.refusal.code, KVF_BUSY);
    assert_int_equal(read.refusal.shortage, KVF_SHORT_OF_MEMORY);
    assert_in_range(read.refusal.waited_ns, 50 * KVF_NS_PER_MS, NODE_WAIT_S * KVF_NS_PER_S);
    assert_int_equal(node.counters.serve.busy, 1);
    node_return_memory(&node);
    stop();
}

static void queued__released__leaves_nothing(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_take_memory(&node);
    ask(&read, LIST(1), 1, 10000);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    assert_int_equal(read.refused, 0);
    node_return_memory(&node);
    stop();
}

static void queued__memory_comes_back__is_granted(void **state)
{
    (void)state;
    struct read first, second;
    start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_take_memory(&node);
    ask(&first, LIST(1, 2), 2, 15000);
    ask(&second, LIST(2), 1, 15000);
    assert_int_equal(first.granted + second.granted, 0);
    node_return_memory(&node);
    node_run_until(first.granted + second.granted == 2);
    kvf_lease_release(first.lease);
    kvf_lease_release(second.lease);
    stop();
    assert_int_equal(first.freed + second.freed, 2);
}

static void queued__forgotten_meanwhile__is_a_miss_that_holds_nothing(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_take_memory(&node);
    ask(&read, LIST(1, 2), 2, 15000);
    node_forget(&node, 1);
    kvf_admission_retry(&node.admission);
    kvf_loop_run_once(node_loop, 0);
    node_return_memory(&node);
    node_run_until(read.granted == 1);
    assert_int_equal(read.codes[0], KVF_NOT_FOUND);
    assert_int_equal(served_bytes(), NODE_BLOCK_BYTES);
    kvf_lease_release(read.lease);
    stop();
}

static void granted__cancelled_while_it_loads__keeps_its_charge_until_the_load_ends(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_evict(&node);
    ask(&read, LIST(1), 1, 10000);
    kvf_lease_cancel(read.lease);
    kvf_lease_cancel(read.lease);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 0);
    assert_int_equal(served_bytes(), NODE_BLOCK_BYTES);
    node_run_until(read.freed == 1); /* the lane stays */
    assert_int_equal(served_bytes(), 0);
    assert_non_null(lane);
    stop();
}

static void granted__lane_broken_while_it_loads__is_freed_after_release(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_evict(&node);
    ask(&read, LIST(1, 2), 2, 10000);
    close_lane();
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_int_equal(read.freed, 0);
    kvf_lease_release(read.lease);
    assert_int_equal(read.freed, 1);
    stop();
}

static void granted__drive_fails__tells_a_fault_of_those_blocks_alone(void **state)
{
    (void)state;
    struct read read, released;
    start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    node_evict(&node);
    node_put(&node, 3);
    node_cut_segments(&node);
    ask(&read, LIST(1, 2, 3, 1), 4, 10000);
    ask(&released, LIST(1), 1, 10000);
    kvf_lease_release(released.lease);
    node_run_until(read.faults == 3 && released.freed == 1);
    assert_int_equal(released.faults, 0);
    assert_true(node_has(&node, 1)); /* for the next Read: the drive may come back */
    assert_int_equal(node.counters.dropped[KVF_DROP_READ_ERROR], 0);
    assert_true(node_has(&node, 3));
    kvf_lease_release(read.lease);
    stop();
    assert_int_equal(read.faults, 3);
}

static void granted__forgotten_and_put_anew__keeps_the_old_bytes(void **state)
{
    (void)state;
    struct read read;
    start(false);
    node_put(&node, 1);
    ask(&read, LIST(1), 1, 10000);
    struct kvf_entry *held = read.lease->blocks[0].entry;
    kvf_index_unlink(node.index, held);
    node_put(&node, 1);
    node_evict(&node);
    assert_ptr_equal(read.lease->blocks[0].entry, held);
    assert_true(held->resident && !held->linked);
    kvf_lease_release(read.lease);
    stop();
}

static void granted__not_released_two_seconds_after_the_deadline__is_overdue(void **state)
{
    (void)state;
    struct read read;
    start(false);
    node_put(&node, 1);
    ask(&read, LIST(1), 1, 0);
    assert_int_equal(read.granted, 1);
    node_run_until(read.overdue == 1);
    stop();
    assert_int_equal(read.freed, 1);
}

static void recheck__own_copy_is_bad__is_dropped(void **state)
{
    (void)state;
    struct read read;
    start(false);
    node_put(&node, 1);
    node_put(&node, 2);
    ask(&read, LIST(1, 2), 2, 10000);
    kvf_extent_at(read.lease->blocks[1].entry->extent)[5] ^= 1;
    for (uint32_t block = 0; block < 4; block++)
        kvf_lease_recheck(read.lease, block);
    kvf_lease_recheck(read.lease, 1);
    kvf_lease_release(read.lease);
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_true(node_has(&node, 1));
    assert_false(node_has(&node, 2));
    stop();
}

static void recheck__of_many__is_done_one_block_at_a_time(void **state)
{
    (void)state;
    enum { MANY = 8 };
    struct read read;
    unsigned list[MANY];
    start(false);
    for (unsigned i = 0; i < MANY; i++) {
        list[i] = i;
        node_put(&node, i);
    }
    ask(&read, list, MANY, 10000);
    for (uint32_t block = 0; block < MANY; block++)
        kvf_lease_recheck(read.lease, block);
    assert_int_equal(kvf_loads_open(node.loads), 1);
    kvf_lease_release(read.lease);
    node_run_until(kvf_loads_open(node.loads) == 0);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(node_has(&node, i));
    stop();
}

static void get__block_that_a_read_has_loaded__is_checked_first(void **state)
{
    (void)state;
    struct read read;
    struct node_get get;
    start(true);
    node_put(&node, 1);
    node_evict(&node);
    ask(&read, LIST(1), 1, 10000);
    node_get_start(&node, &get, LIST(1), 1, 10000); /* joins the same load, and wants it checked */
    node_run_until(get.answered == 1);
    assert_int_equal(get.codes[0], KVF_OK);
    assert_true(node_find(&node, 1)->verified);
    node_get_release(&get);
    kvf_lease_release(read.lease);
    stop();
}

static void get__bytes_that_a_read_has_loaded_are_bad__is_a_miss(void **state)
{
    (void)state;
    struct read read;
    struct node_get get;
    start(true);
    node_put(&node, 1);
    node_evict(&node);
    ask(&read, LIST(1), 1, 10000);
    node_run_until(kvf_loads_open(node.loads) == 0);
    kvf_extent_at(node_find(&node, 1)->extent)[5] ^= 1;
    node_get_start(&node, &get, LIST(1), 1, 10000);
    node_run_until(get.answered == 1);
    assert_int_equal(get.codes[0], KVF_CORRUPT);
    assert_false(node_has(&node, 1));
    kvf_lease_release(read.lease);
    stop();
}

/* As a daemon with a pool of 16 MiB sets it up that has limits of 4 for puts and of 4 for Gets. */
static void grant__more_than_the_reserve__leaves_puts_and_gets_what_is_theirs(void **state)
{
    (void)state;
    struct read first, second;
    struct node_get gets;
    struct put *puts[4];
    start(true);
    node.admission.classes[KVF_CLASS_DIRTY].limit_bytes = 4 * KVF_MIB;
    node.admission.classes[KVF_CLASS_PULL].limit_bytes = 4 * KVF_MIB;
    node.admission.classes[KVF_CLASS_SERVE].limit_bytes = 8 * KVF_MIB;
    node.admission.query.limit_bytes = 12 * KVF_MIB;
    for (unsigned i = 1; i <= 24; i++) /* the pool is full of what may be evicted */
        node_put(&node, i);
    ask(&first, LIST(1, 2, 3, 4, 5, 6, 7, 8), 8, 10000);
    assert_int_equal(first.granted, 1);
    for (unsigned i = 0; i < 4; i++)
        puts[i] = node_begin(&node, 100 + i); /* at once */
    ask(&second, LIST(13), 1, 100);
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
    stop();
}

/* ---- places on the lane ---- */

static void start_with_places(uint32_t places)
{
    start(false);
    kvf_lease_lane_init(&shared, lane, &(struct kvf_transport_traits){.lane_blocks = places});
}

static void places__too_few__waits_behind_its_lane_and_holds_nothing(void **state)
{
    (void)state;
    struct read first, second, third;
    start_with_places(3);
    for (unsigned i = 1; i <= 3; i++)
        node_put(&node, i);
    ask(&first, LIST(1, 2), 2, 10000);
    ask(&second, LIST(1, 2), 2, 10000);
    ask(&third, LIST(3), 1, 10000); /* it would fit, but others came before */
    assert_int_equal(first.granted, 1);
    assert_int_equal(second.granted + third.granted, 0);
    assert_int_equal(served_bytes(), 2 * NODE_BLOCK_BYTES);
    kvf_lease_release(first.lease); /* the lane has never opened: it lets go at once */
    node_run_until(second.granted == 1 && third.granted == 1);
    assert_int_equal(first.freed, 1);
    kvf_lease_release(second.lease);
    kvf_lease_release(third.lease);
    node_run_until(second.freed == 1 && third.freed == 1);
    assert_int_equal(shared.places, 3);
    stop();
}

static void places__of_blocks_that_are_missing__are_there_for_others(void **state)
{
    (void)state;
    struct read first, second;
    start_with_places(2);
    node_put(&node, 1);
    ask(&first, LIST(1, 7), 2, 10000);
    assert_int_equal(first.granted, 1);
    ask(&second, LIST(1), 1, 10000);
    assert_int_equal(second.granted, 1);
    kvf_lease_release(first.lease);
    kvf_lease_release(second.lease);
    stop();
    assert_int_equal(shared.places, 2);
}

static void places__none_until_the_deadline__busy_and_says_so(void **state)
{
    (void)state;
    struct read first, second;
    start_with_places(1);
    node_put(&node, 1);
    ask(&first, LIST(1), 1, 10000);
    ask(&second, LIST(1), 1, 30);
    node_run_until(second.refused == 1);
    assert_int_equal(second.refusal.code, KVF_BUSY);
    assert_int_equal(second.refusal.shortage, KVF_SHORT_OF_READS);
    assert_true(second.refusal.waited_ns > 0);
    kvf_lease_release(first.lease);
    stop();
    assert_int_equal(shared.places, 1);
}

static void places__waiting_one_is_released__the_next_takes_its_turn(void **state)
{
    (void)state;
    struct read first, large, small;
    start_with_places(2);
    node_put(&node, 1);
    node_put(&node, 2);
    ask(&first, LIST(1), 1, 10000);
    ask(&large, LIST(1, 2), 2, 10000);
    ask(&small, LIST(2), 1, 10000);
    assert_int_equal(small.granted, 0);
    kvf_lease_release(large.lease);
    assert_int_equal(large.freed, 1);
    assert_int_equal(small.granted, 1);
    kvf_lease_release(first.lease);
    kvf_lease_release(small.lease);
    stop();
    assert_int_equal(shared.places, 2);
}

/* ---- speculative ---- */

static void guess(struct read *read, const unsigned *blocks, uint32_t count)
{
    prepare(read, blocks, count, 10000);
    read->lease->speculative = true;
    kvf_lease_start(read->lease);
}

static void speculative__beside_demand__holds_a_quarter_and_waits_behind(void **state)
{
    (void)state;
    struct read first, second, demand, fifth;
    start(true);
    for (unsigned i = 1; i <= 10; i++)
        node_put(&node, i);
    guess(&first, LIST(1, 2, 3, 4), 4);
    assert_int_equal(first.granted, 1); /* all of the quarter */
    guess(&second, LIST(5), 1);
    assert_int_equal(second.granted, 0);
    ask(&demand, LIST(6, 7), 2, 10000);
    assert_int_equal(demand.granted, 1);
    guess(&fifth, LIST(1, 2, 3, 4, 5), 5);
    assert_int_equal(fifth.refusal.code, KVF_TOO_LARGE);
    assert_int_equal(fifth.refusal.shortage, KVF_SHORT_OF_SPECULATIVE);
    kvf_lease_raise(first.lease); /* it is demand now: the quarter is free */
    node_run_until(second.granted == 1);
    kvf_lease_release(first.lease);
    kvf_lease_release(second.lease);
    kvf_lease_release(demand.lease);
    close_lane();
    node_run_until(node.leases.open == 0);
    assert_int_equal(node.admission.speculative.used_bytes, 0);
    stop();
}

static void raise__queued__is_granted_as_demand(void **state)
{
    (void)state;
    struct read first, second;
    start(true);
    node_put(&node, 1);
    node_put(&node, 2);
    guess(&first, LIST(1), 1);
    node.admission.speculative.limit_bytes = NODE_BLOCK_BYTES;
    guess(&second, LIST(2), 1);
    assert_int_equal(second.granted, 0);
    kvf_lease_raise(second.lease);
    kvf_lease_raise(second.lease); /* once more changes nothing */
    node_run_until(second.granted == 1);
    assert_int_equal(node.admission.speculative.used_bytes, NODE_BLOCK_BYTES);
    kvf_lease_release(second.lease);
    kvf_lease_raise(first.lease);
    kvf_lease_release(first.lease);
    stop();
}

/* They wait for memory meanwhile, and are admitted long after they came. */
static void places__of_blocks_found_missing_later__are_there_for_others(void **state)
{
    (void)state;
    struct read filler, missing, waiting;
    start_with_places(4);
    node_put(&node, 1);
    node_put(&node, 2);
    node.admission.speculative.limit_bytes = 2 * NODE_BLOCK_BYTES;
    guess(&filler, LIST(1, 2), 2);
    guess(&missing, LIST(7, 8), 2);
    ask(&waiting, LIST(1), 1, 10000);
    assert_int_equal(missing.granted, 0);
    assert_int_equal(waiting.granted, 0);
    kvf_lease_raise(missing.lease);
    node_run_until(missing.granted == 1);
    node_run_until(waiting.granted == 1);
    kvf_lease_release(filler.lease);
    kvf_lease_release(missing.lease);
    kvf_lease_release(waiting.lease);
    stop();
    assert_int_equal(shared.places, 4);
}

/* Blocks 1 to `count` lie on SSD, and the drive's first read hangs: what is asked for now waits behind it. */
static void start_hanging(unsigned count)
{
    start_with(&(struct node_options){.ssd = true, .faulty = true, .ssd_depth = 1});
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

static void let_go(struct read *first, struct read *second)
{
    atomic_store(&faults.held, false);
    node_run_until(kvf_loads_open(node.loads) == 0);
    kvf_lease_release(first->lease);
    kvf_lease_release(second->lease);
}

static void load__speculative__is_read_behind_what_is_demanded(void **state)
{
    (void)state;
    struct read guessed, wanted;
    start_hanging(4);
    guess(&guessed, LIST(1, 2), 2);
    ask(&wanted, LIST(3, 4), 2, 10000);
    let_go(&guessed, &wanted);
    assert_true(last_read(4) < last_read(1));
    assert_true(last_read(1) < last_read(2));
    stop();
}

static void raise__while_it_is_read__goes_before_other_guesses(void **state)
{
    (void)state;
    struct read guessed, raised;
    start_hanging(4);
    guess(&guessed, LIST(1, 2), 2);
    guess(&raised, LIST(3, 4), 2);
    kvf_lease_raise(raised.lease);
    kvf_lease_raise(raised.lease);
    let_go(&guessed, &raised);
    assert_true(last_read(4) < last_read(1));
    stop();
}

static void load__speculative_and_wanted_by_somebody_else__goes_before_other_guesses(void **state)
{
    (void)state;
    struct read guessed, joined;
    struct node_get get;
    start_hanging(4);
    guess(&guessed, LIST(1, 2), 2);
    guess(&joined, LIST(3, 4), 2);
    node_get_start(&node, &get, LIST(4), 1, 10000);
    let_go(&guessed, &joined);
    node_run_until(get.answered == 1);
    assert_int_equal(get.codes[0], KVF_OK);
    node_get_release(&get);
    assert_true(last_read(4) < last_read(1));
    stop();
}

static void load__wanted_and_guessed_by_somebody_else__stays_demanded(void **state)
{
    (void)state;
    struct read guessed, wanted;
    start_hanging(4);
    ask(&wanted, LIST(3, 4), 2, 10000);
    guess(&guessed, LIST(1, 2, 4), 3);
    let_go(&guessed, &wanted);
    assert_true(last_read(4) < last_read(1));
    stop();
}

static void release__out_of_order__asserts_nothing_and_frees_once(void **state)
{
    (void)state;
    struct read read;
    start(true);
    node_put(&node, 1);
    ask(&read, LIST(1), 1, 10000);
    struct kvf_lease *lease = read.lease;
    kvf_lease_release(lease); /* the lane still has the block */
    kvf_lease_release(lease);
    kvf_lease_cancel(lease);
    kvf_lease_raise(lease);
    assert_aborts(kvf_lease_start(lease)); /* but it cannot begin again */
    stop();
    assert_int_equal(read.freed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(grant__hits_and_misses__hold_and_charge_the_hits_alone),
        NODE_TEST(grant__denied__is_like_one_of_keys_that_are_not_there),
        NODE_TEST(grant__pins_and_lengths_that_do_not_match__are_no_hits),
        NODE_TEST(grant__stop_at_first_miss__grants_nothing_behind_it),
        NODE_TEST(grant__the_same_key_twice__is_loaded_once),
        NODE_TEST(grant__released_by_the_event__leaves_nothing),
        NODE_TEST(grant__pending__tells_when_it_is_committed),
        NODE_TEST(grant__pending_aborted__is_a_fault),
        NODE_TEST(grant__unknown_while_recovery_runs__ends_as_committed_or_fault),
        NODE_TEST(grant__denied_while_recovery_runs__all_end_as_faults_at_its_end),
        NODE_TEST(grant__behind_a_pending_one__is_granted_even_if_it_stops_at_a_miss),
        NODE_TEST(start__more_than_a_grant_may_be__is_too_large),
        NODE_TEST(queued__deadline__is_busy),
        NODE_TEST(queued__released__leaves_nothing),
        NODE_TEST(queued__memory_comes_back__is_granted),
        NODE_TEST(queued__forgotten_meanwhile__is_a_miss_that_holds_nothing),
        NODE_TEST(granted__cancelled_while_it_loads__keeps_its_charge_until_the_load_ends),
        NODE_TEST(granted__lane_broken_while_it_loads__is_freed_after_release),
        NODE_TEST(granted__drive_fails__tells_a_fault_of_those_blocks_alone),
        NODE_TEST(granted__forgotten_and_put_anew__keeps_the_old_bytes),
        NODE_TEST(granted__not_released_two_seconds_after_the_deadline__is_overdue),
        NODE_TEST(recheck__own_copy_is_bad__is_dropped),
        NODE_TEST(recheck__of_many__is_done_one_block_at_a_time),
        NODE_TEST(grant__more_than_the_reserve__leaves_puts_and_gets_what_is_theirs),
        NODE_TEST(places__too_few__waits_behind_its_lane_and_holds_nothing),
        NODE_TEST(places__of_blocks_that_are_missing__are_there_for_others),
        NODE_TEST(places__of_blocks_found_missing_later__are_there_for_others),
        NODE_TEST(places__none_until_the_deadline__busy_and_says_so),
        NODE_TEST(places__waiting_one_is_released__the_next_takes_its_turn),
        NODE_TEST(speculative__beside_demand__holds_a_quarter_and_waits_behind),
        NODE_TEST(raise__queued__is_granted_as_demand),
        NODE_TEST(load__speculative__is_read_behind_what_is_demanded),
        NODE_TEST(raise__while_it_is_read__goes_before_other_guesses),
        NODE_TEST(load__speculative_and_wanted_by_somebody_else__goes_before_other_guesses),
        NODE_TEST(load__wanted_and_guessed_by_somebody_else__stays_demanded),
        NODE_TEST(release__out_of_order__asserts_nothing_and_frees_once),
        NODE_TEST(get__block_that_a_read_has_loaded__is_checked_first),
        NODE_TEST(get__bytes_that_a_read_has_loaded_are_bad__is_a_miss),
    };
    return cmocka_run_group_tests_name("server/lease", tests, NULL, NULL);
}
