/* What a node does when its drive, or its memory, lies or hangs: real pool, index, loads and lanes over a store whose
 * reads fail as planned. Seeded; KVF_STORAGE_SOAK asks for many more rounds and the whole minute of a hung read. */
#include "server/node_fixture.h"
#include "storage/faulty.h"

#include "base/crc32c.h"

#include <errno.h>
#include <stdlib.h>

#define SECONDS 1000u
enum { BLOCKS = 8 };

static struct node node, source;

static unsigned rounds(unsigned few, unsigned many)
{
    return getenv("KVF_STORAGE_SOAK") != NULL ? many : few;
}

/* splitmix64 */
static uint64_t draw(uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x13198a2e03707344);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void start_filled(struct node *n, const struct node_options *options)
{
    node_start(n, options);
    for (unsigned block = 0; block < BLOCKS; block++)
        node_put(n, block);
    node_evict(n);
}

/* Gets one block, and gives it back: the code. What comes as OK was compared by the fixture. */
static enum kvf_code get_one(unsigned block, uint64_t timeout_ms)
{
    struct node_get ask;
    node_get_start(&node, &ask, &block, 1, timeout_ms);
    node_run_until(ask.answered == 1);
    node_get_release(&ask);
    return ask.codes[0];
}

/* What the index knew of a block, as a start would tell it again. */
struct known {
    struct kvf_record record;
    struct kvf_location location;
};

static struct known know(struct node *n, unsigned block)
{
    struct kvf_found found;
    assert_true(node_look(n, block, &found));
    assert_true(found.on_ssd);
    return (struct known){.record = {.namespace = NODE_SPACE,
                                     .key = node_key(block),
                                     .generation = found.generation,
                                     .length = found.length,
                                     .crc32c = found.crc32c},
                          .location = found.location};
}

/* ---- bits that flip ---- */

static void get__one_bit_flipped_on_ssd__is_corrupt_and_counted(void **state)
{
    (void)state;
    const unsigned all = rounds(300, 10000);
    start_filled(&node, &(struct node_options){.ssd = true});
    for (unsigned round = 0; round < all; round++) {
        unsigned block = (unsigned)(draw(2 * round) % BLOCKS);
        uint64_t bit = draw(2 * round + 1) % (8 * NODE_BLOCK_BYTES);
        struct known known = know(&node, block);
        node_evict(&node);
        node_flip_on_ssd(&node, known.location, bit);
        assert_int_equal(get_one(block, 10 * SECONDS), KVF_CORRUPT);
        assert_false(node_has(&node, block));
        assert_int_equal(node.counters.misses[KVF_CORRUPT], round + 1);
        assert_int_equal(node.counters.dropped[KVF_DROP_CORRUPT], round + 1);
        kvf_index_recovered(node.index, &known.record, known.location);
        node_flip_on_ssd(&node, known.location, bit);
        if (round % 10 == 0)
            assert_int_equal(get_one(block, 10 * SECONDS), KVF_OK);
    }
    node_stop(&node);
}

/* In the source's memory, after the checksum was taken: the consumer sees it, the source looks and drops its copy. */
static void pull__one_bit_flipped_in_the_sources_arena__is_corrupt_and_dropped_there(void **state)
{
    (void)state;
    const unsigned all = rounds(100, 2000);
    node_start(&source, &(struct node_options){0});
    node_start(&node, &(struct node_options){.peers = {source.address}});
    for (unsigned round = 0; round < all; round++) {
        uint64_t bit = draw(round) % (8 * NODE_BLOCK_BYTES);
        node_put(&source, 1);
        kvf_extent_at(node_find(&source, 1)->extent)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(get_one(1, 10 * SECONDS), KVF_CORRUPT);
        assert_int_equal(node.counters.misses[KVF_CORRUPT], round + 1);
        node_run_until(!node_has(&source, 1));
        assert_int_equal(source.counters.dropped[KVF_DROP_CORRUPT], round + 1);
    }
    node_put(&source, 1);
    assert_int_equal(get_one(1, 10 * SECONDS), KVF_OK);
    node_stop(&node);
    node_stop(&source);
}

/* The drive answers with another record: whole, of the same length, right by its own checksum. It is not the record that
 * was asked for, whose checksum the index knows. */
static void get__read_is_misdirected__is_corrupt_and_never_the_other_block(void **state)
{
    (void)state;
    start_filled(&node, &(struct node_options){.ssd = true, .faulty = true});
    for (unsigned block = 1; block < BLOCKS; block++) {
        struct known known = know(&node, block);
        const struct kvf_location other = know(&node, block - 1).location;
        if (other.segment != known.location.segment)
            continue;
        for (unsigned piece = 0; piece < 4; piece++) {
            node_evict(&node);
            faulty_arm((struct plan){.kind = KVF_IO_READ,
                                     .first = (int)piece,
                                     .count = 1,
                                     .fd = -1,
                                     .fault = FAULT_MISDIRECT,
                                     .where = other.offset + piece * (256 << 10)});
            assert_int_equal(get_one(block, 10 * SECONDS), KVF_CORRUPT);
            assert_int_equal(atomic_load(&faults.met), 1);
            faulty_disarm();
            kvf_index_recovered(node.index, &known.record, known.location);
        }
        assert_int_equal(get_one(block, 10 * SECONDS), KVF_OK);
    }
    assert_true(node.counters.dropped[KVF_DROP_CORRUPT] >= 4);
    node_stop(&node);
}

/* ---- a drive under bad weather ---- */

/* Blocks of four pieces; an error in any of them is a miss of that block, and nothing else is one. */
static void get__faults_at_a_rate__no_wrong_byte_and_misses_are_counted(void **state)
{
    (void)state;
    const unsigned all = rounds(60, 2000);
    struct known known[BLOCKS];
    uint64_t missed = 0;
    start_filled(&node, &(struct node_options){.ssd = true, .faulty = true});
    for (unsigned block = 0; block < BLOCKS; block++)
        known[block] = know(&node, block);
    faulty_rate((struct rates){
        .kind = KVF_IO_READ, .seed = 20261130, .short_in = 32, .passing_in = 128, .error_in = 100});
    for (unsigned round = 0; round < all; round++) {
        static const unsigned list[BLOCKS] = {0, 1, 2, 3, 4, 5, 6, 7};
        struct node_get ask;
        node_evict(&node);
        node_get_start(&node, &ask, list, BLOCKS, 20 * SECONDS);
        node_run_until(ask.answered == 1);
        for (unsigned block = 0; block < BLOCKS; block++) {
            assert_true(ask.codes[block] == KVF_OK || ask.codes[block] == KVF_IO);
            missed += ask.codes[block] == KVF_IO;
        }
        node_get_release(&ask);
        for (unsigned block = 0; block < BLOCKS; block++)
            if (!node_has(&node, block))
                kvf_index_recovered(node.index, &known[block].record, known[block].location);
    }
    uint64_t errors = (uint64_t)atomic_load(&faults.errors);
    assert_true(missed > 0 && missed <= errors && missed >= errors / 4);
    assert_int_equal(node.counters.misses[KVF_IO], missed);
    struct kvf_drive_stats drive;
    kvf_store_stats(node.store, 0, &drive);
    assert_int_equal(drive.read_errors, missed);
    assert_true(node.counters.dropped[KVF_DROP_READ_ERROR] <= missed / 3);
    assert_true(atomic_load(&faults.shorts) > 0 && atomic_load(&faults.passings) > 0);
    faulty_disarm();
    node_stop(&node);
}

/* Every path to the drive goes away for a moment, and again: nothing of the cache is lost, until it fails for good. */
static void get__drive_fails_now_and_then__every_block_is_there_afterwards(void **state)
{
    (void)state;
    start_filled(&node, &(struct node_options){.ssd = true, .faulty = true});
    for (unsigned round = 0; round < 6; round++) {
        for (unsigned block = 0; block < BLOCKS; block++) {
            node_evict(&node);
            faulty_arm((struct plan){.kind = KVF_IO_READ,
                                     .count = round % 3 < 2 ? 1000 : 0,
                                     .fd = -1,
                                     .fault = FAULT_ERROR,
                                     .value = EIO});
            assert_int_equal(get_one(block, 10 * SECONDS), round % 3 < 2 ? KVF_IO : KVF_OK);
            faulty_disarm();
            assert_true(node_has(&node, block));
        }
    }
    assert_int_equal(node.counters.misses[KVF_IO], 4 * BLOCKS);
    assert_int_equal(node.counters.dropped[KVF_DROP_READ_ERROR], 0);
    for (unsigned round = 0; round < 3; round++) {
        assert_true(node_has(&node, 0));
        node_evict(&node);
        faulty_arm((struct plan){
            .kind = KVF_IO_READ, .count = 1000, .fd = -1, .fault = FAULT_ERROR, .value = EIO});
        assert_int_equal(get_one(0, 10 * SECONDS), KVF_IO);
        faulty_disarm();
    }
    assert_false(node_has(&node, 0));
    assert_int_equal(node.counters.dropped[KVF_DROP_READ_ERROR], 1);
    node_stop(&node);
}

/* ---- a read that hangs ---- */

static uint64_t pinned_bytes(struct node *n)
{
    struct kvf_index_stats stats;
    kvf_index_get_stats(n->index, &stats);
    return stats.pinned_bytes;
}

static uint64_t reads_in_flight(struct node *n)
{
    struct kvf_drive_stats stats;
    kvf_store_stats(n->store, 0, &stats);
    return stats.reads_in_flight;
}

static void hang_first_read(void)
{
    faulty_arm((struct plan){.kind = KVF_IO_READ, .count = 1, .fd = -1, .fault = FAULT_HOLD});
}

/* Other work goes on for the whole time that the drive keeps the read. */
static void work_beside_it(unsigned first, uint64_t seconds)
{
    uint64_t until_ns = kvf_clock_now_ns() + seconds * KVF_NS_PER_S;
    for (unsigned i = 0; kvf_clock_now_ns() < until_ns; i++) {
        node_evict(&node);
        assert_int_equal(get_one(first + i % (BLOCKS - first), 10 * SECONDS), KVF_OK);
    }
}

static void get__read_hangs__its_caller_hears_at_the_deadline_and_memory_waits(void **state)
{
    (void)state;
    struct node_get hung, again;
    const unsigned block = 0;
    start_filled(&node, &(struct node_options){.ssd = true, .faulty = true});
    hang_first_read();
    node_get_start(&node, &hung, &block, 1, 200);
    node_run_until(hung.answered == 1);
    assert_int_equal(hung.codes[0], KVF_DEADLINE);
    assert_int_equal(node.counters.misses[KVF_DEADLINE], 1);
    work_beside_it(1, rounds(1, 60));
    /* The kernel may still write there: nobody else gets this memory, and it is charged and shown. */
    assert_int_equal(hung.freed, 0);
    assert_int_equal(pinned_bytes(&node), NODE_BLOCK_BYTES);
    assert_int_equal(node.admission.query.used_bytes, NODE_BLOCK_BYTES);
    assert_int_equal(node.admission.classes[KVF_CLASS_PULL].used_bytes, NODE_BLOCK_BYTES);
    assert_int_equal(reads_in_flight(&node), 1);
    /* Who asks meanwhile waits for the same read, and is answered when it comes back. */
    node_get_start(&node, &again, &block, 1, 20 * SECONDS);
    kvf_loop_run_once(node_loop, 20);
    assert_int_equal(again.answered, 0);
    atomic_store(&faults.held, false);
    node_run_until(again.answered == 1 && hung.freed == 1);
    assert_int_equal(again.codes[0], KVF_OK);
    node_get_release(&again);
    assert_int_equal(reads_in_flight(&node), 0);
    assert_int_equal(pinned_bytes(&node), 0);
    node_stop(&node);
}

/* With the caller gone altogether (its engine died). */
static void get__dropped_while_its_read_hangs__memory_comes_back_with_the_read(void **state)
{
    (void)state;
    struct node_get hung;
    const unsigned block = 0;
    start_filled(&node, &(struct node_options){.ssd = true, .faulty = true});
    hang_first_read();
    node_get_start(&node, &hung, &block, 1, 20 * SECONDS);
    kvf_loop_run_once(node_loop, 20);
    node_get_drop(&hung);
    work_beside_it(1, 1);
    assert_int_equal(pinned_bytes(&node), NODE_BLOCK_BYTES);
    assert_int_equal(reads_in_flight(&node), 1);
    atomic_store(&faults.held, false);
    node_run_until(hung.freed == 1);
    assert_int_equal(pinned_bytes(&node), 0);
    node_stop(&node);
}

/* The drive is the source's: the consumer hears at its deadline, its other blocks come, and neither node keeps anything
 * once the read is back. */
static void pull__sources_read_hangs__costs_that_block_only(void **state)
{
    (void)state;
    struct node_get hung;
    static const unsigned list[] = {0, 1, 2, 3};
    start_filled(&source, &(struct node_options){.ssd = true, .faulty = true});
    node_start(&node, &(struct node_options){.peers = {source.address}});
    hang_first_read();
    node_get_start(&node, &hung, list, 4, 1 * SECONDS);
    node_run_until(hung.answered == 1);
    unsigned came = 0;
    for (unsigned i = 0; i < 4; i++)
        came += hung.codes[i] == KVF_OK;
    assert_int_equal(came, 3);
    node_get_release(&hung);
    assert_int_equal(reads_in_flight(&source), 1);
    for (unsigned block = 4; block < BLOCKS; block++)
        assert_int_equal(get_one(block, 10 * SECONDS), KVF_OK);
    assert_true(pinned_bytes(&source) >= NODE_BLOCK_BYTES);
    atomic_store(&faults.held, false);
    node_run_until(reads_in_flight(&source) == 0 && source.leases.open == 0);
    assert_int_equal(pinned_bytes(&source), 0);
    faulty_disarm();
    for (unsigned block = 0; block < BLOCKS; block++)
        assert_int_equal(get_one(block, 10 * SECONDS), KVF_OK);
    node_stop(&node);
    node_stop(&source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(get__one_bit_flipped_on_ssd__is_corrupt_and_counted),
        NODE_TEST(pull__one_bit_flipped_in_the_sources_arena__is_corrupt_and_dropped_there),
        NODE_TEST(get__read_is_misdirected__is_corrupt_and_never_the_other_block),
        NODE_TEST(get__faults_at_a_rate__no_wrong_byte_and_misses_are_counted),
        NODE_TEST(get__drive_fails_now_and_then__every_block_is_there_afterwards),
        NODE_TEST(get__read_hangs__its_caller_hears_at_the_deadline_and_memory_waits),
        NODE_TEST(get__dropped_while_its_read_hangs__memory_comes_back_with_the_read),
        NODE_TEST(pull__sources_read_hangs__costs_that_block_only),
    };
    return cmocka_run_group_tests_name("server/survive", tests, NULL, NULL);
}
