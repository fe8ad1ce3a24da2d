/* What outlives the segment that it was written to. Segments hold 15 blocks, the store has four of them. */
#include "server/node_fixture.h"

#include <stdio.h>

#define SEGMENT_BLOCKS 15u

static struct node node;

static int set_up(void **state)
{
    (void)state;
    const struct node_options options = {.ssd = true};
    node_set_up();
    node_start(&node, &options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    node_stop(&node);
    node_tear_down();
    return 0;
}

static struct kvf_drive_stats drive_stats(void)
{
    struct kvf_drive_stats stats;
    kvf_store_stats(node.store, 0, &stats);
    return stats;
}

/* Its bytes are compared with what was put. */
static void get(unsigned block)
{
    struct node_get ask;
    node_get_start(&node, &ask, &block, 1, 5000);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    node_get_release(&ask);
    node_run_until(ask.freed == 1);
}

static void put_and_evict(unsigned first, unsigned count)
{
    for (unsigned block = first; block < first + count; block++)
        node_put(&node, block);
    node_evict(&node);
    node_run_until(kvf_carries_open(node.carries) == 0);
}

static void reclaim_segment_of(unsigned block)
{
    struct kvf_found found;
    assert_true(node_look(&node, block, &found) && found.on_ssd);
    kvf_carries_reclaim(node.carries, found.location.drive, found.location.segment,
                        found.location.sequence);
}

/* ---- who stays ---- */

static void carry__asked_for_again_and_again__outlives_every_segment(void **state)
{
    (void)state;
    struct kvf_found before, found;
    put_and_evict(0, SEGMENT_BLOCKS);
    assert_true(node_look(&node, 1, &before));
    for (unsigned round = 1; round < 12; round++) {
        get(1);
        put_and_evict(round * SEGMENT_BLOCKS, SEGMENT_BLOCKS);
    }
    assert_true(node_look(&node, 1, &found) && found.on_ssd);
    assert_true(kvf_generation_equal(found.generation, before.generation));
    assert_int_not_equal(found.location.sequence, before.location.sequence);
    assert_false(node_has(&node, 2));
    assert_true(drive_stats().carried_blocks >= 2);
    assert_int_equal(drive_stats().carries_failed, 0);
    get(1);
    node_assert_idle(&node);
}

static void carry__asked_for_once__has_one_more_turn(void **state)
{
    (void)state;
    put_and_evict(0, SEGMENT_BLOCKS);
    get(1);
    put_and_evict(100, 2 * SEGMENT_BLOCKS);
    assert_true(node_has(&node, 1));
    assert_false(node_has(&node, 2));
    assert_int_equal(drive_stats().carried_blocks, 1);
    put_and_evict(150, 4 * SEGMENT_BLOCKS);
    assert_false(node_has(&node, 1));
    assert_int_equal(drive_stats().carried_blocks, 1);
}

/* Of every segment a quarter stays, puts go on, and what is found is right. */
static void carry__everything_is_hot__a_quarter_stays(void **state)
{
    (void)state;
    unsigned found = 0;
    const unsigned count = 10 * SEGMENT_BLOCKS;
    for (unsigned block = 0; block < count; block++) {
        node_put(&node, block);
        get(block);
    }
    node_evict(&node);
    node_run_until(kvf_carries_open(node.carries) == 0);
    struct kvf_drive_stats stats = drive_stats();
    assert_true(stats.carried_blocks > 0);
    assert_int_equal(stats.dropped, 0);
    assert_int_equal(stats.write_payload_bytes, count * NODE_BLOCK_BYTES);
    assert_true(stats.carried_bytes * 3 <= stats.write_payload_bytes);
    assert_true((double)stats.write_device_bytes <= 1.34 * (double)stats.write_payload_bytes);
    for (unsigned block = 0; block < count; block++)
        if (node_has(&node, block)) {
            get(block);
            found++;
        }
    assert_in_range(found, 2 * SEGMENT_BLOCKS, 4 * SEGMENT_BLOCKS);
}

/* ---- what happens meanwhile ---- */

static void carry__block_is_read_meanwhile__both_end_well(void **state)
{
    (void)state;
    const unsigned block = 1;
    struct node_get ask;
    struct kvf_found before, found;
    put_and_evict(0, SEGMENT_BLOCKS + 2);
    get(block);
    node_evict(&node);
    assert_true(node_look(&node, block, &before));
    node_get_start(&node, &ask, &block, 1, 5000);
    reclaim_segment_of(block);
    assert_int_equal(kvf_carries_open(node.carries), 1);
    node_run_until(ask.answered == 1 && kvf_carries_open(node.carries) == 0);
    assert_int_equal(ask.codes[0], KVF_OK);
    node_get_release(&ask);
    node_run_until(ask.freed == 1);
    assert_true(node_look(&node, block, &found) && found.on_ssd);
    assert_int_not_equal(found.location.sequence, before.location.sequence);
    node_evict(&node);
    get(block);
}

static void carry__asked_for_while_it_is_carried__found_at_its_old_place(void **state)
{
    (void)state;
    const unsigned block = 1;
    struct node_get ask;
    put_and_evict(0, SEGMENT_BLOCKS + 2);
    get(block);
    node_evict(&node);
    reclaim_segment_of(block);
    node_get_start(&node, &ask, &block, 1, 5000);
    node_run_until(ask.answered == 1 && kvf_carries_open(node.carries) == 0);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.tiers[0], KVF_TIER_SSD);
    node_get_release(&ask);
    node_run_until(ask.freed == 1);
    node_evict(&node);
    get(block);
    uint64_t used = drive_stats().used_bytes;
    assert_int_equal(used,
                     3 * NODE_BLOCK_BYTES); /* the two behind, and it: the segment was given back */
}

static void carry__forgotten_meanwhile__stays_forgotten_and_the_segment_goes(void **state)
{
    (void)state;
    put_and_evict(0, SEGMENT_BLOCKS + 2);
    get(1);
    get(2);
    node_evict(&node);
    reclaim_segment_of(1);
    node_forget(&node, 1);
    node_run_until(kvf_carries_open(node.carries) == 0);
    assert_false(node_has(&node, 1));
    get(2);
    assert_int_equal(drive_stats().used_bytes, 4 * NODE_BLOCK_BYTES);
    put_and_evict(100, 5 * SEGMENT_BLOCKS);
}

static void carry__put_anew_meanwhile__the_new_one_stays(void **state)
{
    (void)state;
    struct kvf_found found;
    put_and_evict(0, SEGMENT_BLOCKS + 2);
    get(1);
    node_evict(&node);
    reclaim_segment_of(1);
    node_forget(&node, 1);
    node_put(&node, 1);
    node_run_until(kvf_carries_open(node.carries) == 0);
    assert_true(node_look(&node, 1, &found));
    assert_int_equal(found.generation.counter, SEGMENT_BLOCKS + 3);
    node_evict(&node);
    get(1);
}

static void carry__damaged_on_the_drive__still_detected(void **state)
{
    (void)state;
    const unsigned block = 1;
    struct node_get ask;
    put_and_evict(0, SEGMENT_BLOCKS + 2);
    get(block);
    node_evict(&node);
    node_change_segments(&node);
    reclaim_segment_of(block);
    node_run_until(kvf_carries_open(node.carries) == 0);
    assert_true(node_has(&node, block));
    node_get_start(&node, &ask, &block, 1, 1000);
    node_run_until(ask.answered == 1);
    assert_int_not_equal(ask.codes[0], KVF_OK);
    node_get_release(&ask);
    node_run_until(ask.freed == 1);
    assert_false(node_has(&node, block));
}

static void carry__cannot_be_read__is_evicted(void **state)
{
    (void)state;
    put_and_evict(0, SEGMENT_BLOCKS + 2);
    get(1);
    node_evict(&node);
    node_cut_segments(&node);
    reclaim_segment_of(1);
    node_run_until(kvf_carries_open(node.carries) == 0);
    assert_false(node_has(&node, 1));
    assert_int_equal(drive_stats().carries_failed, 1);
}

/* ---- shares: of the store's 64 MiB 20 can be promised ---- */

#define GREEDY "greedy/f"

static struct kvf_acl *start_with_shares(const char *tenants)
{
    struct kvf_acl *acl = node_shares(tenants);
    node_stop(&node);
    node_start(&node, &(struct node_options){.ssd = true, .acl = acl});
    return acl;
}

static void greedy_puts(unsigned count)
{
    static unsigned block;
    for (unsigned i = 0; i < count; i++)
        node_put_in(&node, GREEDY, block++);
    node_evict(&node);
    node_run_until(kvf_carries_open(node.carries) == 0);
}

static unsigned greedy_has(void)
{
    unsigned count = 0;
    for (unsigned block = 0; block < 256; block++)
        count += node_has_in(&node, GREEDY, block);
    return count;
}

/* Its blocks lie among the other's: each segment that is given back has some, until they have come together. */
static void carry__greedy_tenant_turns_the_store_over__modest_one_keeps_every_block(void **state)
{
    (void)state;
    const char *shares[] = {
        "\"greedy\": {\"ssd\": 0.15625}",                            /* 10 */
        "\"greedy\": {\"ssd\": 0.15625}, \"t\": {\"ssd\": 0.15625}", /* 10, 10 */
        "\"t\": {\"ssd\": 0.15625}"};                                /* all, 10 */
    for (unsigned s = 0; s < 3; s++) {
        struct kvf_acl *acl = start_with_shares(shares[s]);
        for (unsigned block = 0; block < 10; block++) {
            node_put(&node, block);
            greedy_puts(2);
        }
        for (unsigned turn = 0; turn < 3; turn++) {
            greedy_puts(40);
            for (unsigned block = 0; block < 10; block++)
                assert_true(node_has(&node, block));
            assert_in_range(greedy_has(), 10, s < 2 ? 10 : 54);
        }
        for (unsigned block = 0; block < 10; block++)
            get(block);
        struct kvf_drive_stats stats = drive_stats();
        assert_true(stats.carried_blocks > 0);
        assert_int_equal(stats.carries_failed + stats.dropped, 0);
        assert_true(stats.write_device_bytes < 2 * stats.write_payload_bytes);
        node_stop(&node);
        kvf_acl_close(acl);
        node_start(&node, &(struct node_options){.ssd = true});
    }
}

/* More than finds room when its segment is given back: others are, at no cost. */
static void carry__segment_full_of_what_is_safe__is_not_the_one_that_goes(void **state)
{
    (void)state;
    struct kvf_acl *acl = start_with_shares("\"t\": {\"ssd\": 0.3125}"); /* 20 */
    for (unsigned block = 0; block < SEGMENT_BLOCKS; block++)
        node_put(&node, block);
    greedy_puts(100);
    for (unsigned block = 0; block < SEGMENT_BLOCKS; block++)
        assert_true(node_has(&node, block));
    assert_int_equal(drive_stats().carried_blocks, 0);
    assert_in_range(greedy_has(), 1, 3 * SEGMENT_BLOCKS);
    get(3);
    node_stop(&node);
    kvf_acl_close(acl);
    node_start(&node, &(struct node_options){.ssd = true});
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(carry__asked_for_again_and_again__outlives_every_segment),
        TEST(carry__asked_for_once__has_one_more_turn),
        TEST(carry__everything_is_hot__a_quarter_stays),
        TEST(carry__block_is_read_meanwhile__both_end_well),
        TEST(carry__asked_for_while_it_is_carried__found_at_its_old_place),
        TEST(carry__forgotten_meanwhile__stays_forgotten_and_the_segment_goes),
        TEST(carry__put_anew_meanwhile__the_new_one_stays),
        TEST(carry__damaged_on_the_drive__still_detected),
        TEST(carry__cannot_be_read__is_evicted),
        TEST(carry__greedy_tenant_turns_the_store_over__modest_one_keeps_every_block),
        TEST(carry__segment_full_of_what_is_safe__is_not_the_one_that_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
