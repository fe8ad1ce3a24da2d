/* In which order and how parallel reads go out, by what the engine is given. */
#include "base/test.h"
#include "storage/faulty.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 24 };

#define PIECE_BYTES (UINT64_C(256) << 10)

static struct fixture_block blocks[BLOCKS];
static struct kvf_read *reads[BLOCKS];

static void init(struct fixture *f, void **state, uint64_t arena_bytes)
{
    faulty_init(host_engine(state));
    fixture_init(f, &faulty_engine, arena_bytes);
}

static void aim_all(struct fixture *f, unsigned count, uint64_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        fixture_aim(f, &blocks[i], bytes, i * kvf_round_up_page(bytes));
        reads[i] = &blocks[i].read;
    }
}

static unsigned ended_on(unsigned count, uint32_t drive)
{
    unsigned ended = 0;
    for (unsigned i = 0; i < count; i++)
        ended += blocks[i].ended && blocks[i].location.drive == drive;
    return ended;
}

static void run_until(struct fixture *f, unsigned count, uint32_t drive, unsigned ended)
{
    time_t end = time(NULL) + 30;
    while (ended_on(count, drive) < ended) {
        assert_true(time(NULL) < end);
        kvf_loop_run_once(f->loop, 100);
    }
}

/* Blocks that follow each other lie on different drives, and one set reads both drives at once: what hangs on one does
 * not hold up the other. */
static void read__one_set_over_two_drives_and_their_segments__in_parallel(void **state)
{
    struct fixture f;
    const uint64_t bytes = 600 << 10;
    init(&f, state, BLOCKS * bytes);
    fixture_add_drive(&f);
    f.options.read_threads = 4;
    fixture_open(&f);
    uint32_t most[2] = {0, 0};
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_int_equal(fixture_put(&f, &blocks[i], i, bytes).code, KVF_OK);
        struct kvf_location at = blocks[i].location;
        most[at.drive] = at.segment > most[at.drive] ? at.segment : most[at.drive];
        if (i > 0)
            assert_int_not_equal(at.drive, blocks[i - 1].location.drive);
    }
    assert_true(most[0] >= 3 && most[1] >= 3);
    for (uint32_t hung = 0; hung < 2; hung++) {
        struct kvf_read_set set = {.reads = reads, .count = BLOCKS};
        aim_all(&f, BLOCKS, bytes);
        int fd = f.store->drives[hung].segments[0].fd;
        /* The twin needs a thread for each read: all of a drive's would take all of them. */
        int held = faults.inner == &kvf_engine_pread ? 1 : 100000;
        faulty_arm(
            (struct plan){.kind = KVF_IO_READ, .count = held, .fd = fd, .fault = FAULT_HOLD});
        kvf_store_read(f.store, &set);
        run_until(&f, BLOCKS, 1 - hung, BLOCKS / 2);
        assert_true(ended_on(BLOCKS, hung) < BLOCKS / 2);
        atomic_store(&faults.held, false);
        fixture_wait(&f, blocks, BLOCKS);
        for (unsigned i = 0; i < BLOCKS; i++)
            assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
    }
    fixture_fini(&f);
}

/* Small reads that come while a window full of a large set's pieces is under way go out in their first turn. */
static void read__small_set_behind_a_large_one__takes_turns(void **state)
{
    enum { LARGE = 8, SMALL = 12, DEPTH = 2 };
    const uint64_t large = 6 * PIECE_BYTES;
    struct fixture f;
    static struct fixture_block small[SMALL];
    struct kvf_read *small_reads[SMALL];
    init(&f, state, LARGE * large + KVF_MIB);
    f.options.capacity_bytes = 32 * KVF_MIB;
    f.options.queue_depth = DEPTH;
    f.options.read_threads = 3;
    fixture_open(&f);
    for (unsigned i = 0; i < LARGE; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, large).code, KVF_OK);
    for (unsigned i = 0; i < SMALL; i++)
        assert_int_equal(fixture_put(&f, &small[i], 100 + i, KVF_PAGE).code, KVF_OK);
    aim_all(&f, LARGE, large);
    for (unsigned i = 0; i < SMALL; i++) {
        fixture_aim(&f, &small[i], KVF_PAGE, LARGE * large + i * KVF_PAGE);
        small_reads[i] = &small[i].read;
    }
    struct kvf_read_set first = {.reads = reads, .count = LARGE};
    struct kvf_read_set second = {.reads = small_reads, .count = SMALL};
    faulty_arm((struct plan){.kind = KVF_IO_READ, .count = DEPTH, .fd = -1, .fault = FAULT_HOLD});
    kvf_store_read(f.store, &first);
    kvf_store_read(f.store, &second);
    atomic_store(&faults.held, false);
    fixture_wait(&f, small, SMALL);
    fixture_wait(&f, blocks, LARGE);
    assert_int_equal(faults.read_count, LARGE * 6 + SMALL);
    unsigned last = 0;
    for (unsigned i = 0; i < faults.read_count; i++)
        for (unsigned s = 0; s < SMALL; s++)
            if (faults.read_offsets[i] == small[s].location.offset &&
                faults.read_fds[i] == f.store->drives[0].segments[small[s].location.segment].fd)
                last = i;
    /* What was under way, the large set's turn, the small ones; a reader may hand on what it took a little later than
     * another one: even the large set's first piece. */
    assert_in_range(last, SMALL - 1, DEPTH + 2 + SMALL + DEPTH);
    unsigned last_large = 0;
    for (unsigned i = 0; i < LARGE; i++) {
        assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
        last_large = blocks[i].order > last_large ? blocks[i].order : last_large;
    }
    for (unsigned i = 0; i < SMALL; i++) {
        assert_true(kvf_is_ok(small[i].status) && fixture_is_right(&f, &small[i]));
        assert_true(small[i].order <
                    last_large); /* it does not wait for the end of the large one */
    }
    fixture_fini(&f);
}

/* What nobody waits for yet was first, and still only its pieces that are out already go before what is demanded. */
static void read__speculative_set__goes_out_behind_what_is_demanded(void **state)
{
    enum { GUESSED = 8, WANTED = 12, DEPTH = 2, PIECES = 3 };
    struct fixture f;
    static struct fixture_block wanted[WANTED];
    struct kvf_read *wanted_reads[WANTED];
    init(&f, state, (GUESSED + WANTED) * PIECES * PIECE_BYTES);
    f.options.capacity_bytes = 32 * KVF_MIB;
    f.options.queue_depth = DEPTH;
    f.options.read_threads = 1;
    fixture_open(&f);
    for (unsigned i = 0; i < GUESSED; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, PIECES * PIECE_BYTES).code, KVF_OK);
    for (unsigned i = 0; i < WANTED; i++)
        assert_int_equal(fixture_put(&f, &wanted[i], 100 + i, PIECES * PIECE_BYTES).code, KVF_OK);
    for (unsigned round = 0; round < 2; round++) {
        aim_all(&f, GUESSED, PIECES * PIECE_BYTES);
        for (unsigned i = 0; i < WANTED; i++) {
            fixture_aim(&f, &wanted[i], PIECES * PIECE_BYTES, (GUESSED + i) * PIECES * PIECE_BYTES);
            wanted_reads[i] = &wanted[i].read;
        }
        /* Two sets of each kind; within a kind they take turns. */
        struct kvf_read_set guesses[] = {
            {.reads = reads, .count = GUESSED / 2, .speculative = true},
            {.reads = reads + GUESSED / 2, .count = GUESSED / 2, .speculative = true}};
        struct kvf_read_set wishes[] = {{.reads = wanted_reads, .count = WANTED / 2},
                                        {.reads = wanted_reads + WANTED / 2, .count = WANTED / 2}};
        faulty_arm(
            (struct plan){.kind = KVF_IO_READ, .count = DEPTH, .fd = -1, .fault = FAULT_HOLD});
        for (unsigned i = 0; i < 2; i++)
            kvf_store_read(f.store, &guesses[i]);
        for (unsigned i = 0; i < 2; i++)
            kvf_store_read(f.store, &wishes[i]);
        atomic_store(&faults.held, false);
        fixture_wait(&f, wanted, WANTED);
        fixture_wait(&f, blocks, GUESSED);
        unsigned last = 0, seen = 0;
        for (unsigned i = 0; i < faults.read_count; i++)
            for (unsigned w = 0; w < WANTED; w++)
                if (faults.read_fds[i] ==
                        f.store->drives[0].segments[wanted[w].location.segment].fd &&
                    faults.read_offsets[i] >= wanted[w].location.offset &&
                    faults.read_offsets[i] < wanted[w].location.offset + PIECES * PIECE_BYTES) {
                    last = i;
                    seen++;
                }
        assert_int_equal(seen, WANTED * PIECES);
        assert_in_range(last, WANTED * PIECES - 1, DEPTH + WANTED * PIECES - 1);
        for (unsigned i = 0; i < WANTED; i++)
            assert_true(kvf_is_ok(wanted[i].status) && fixture_is_right(&f, &wanted[i]));
        for (unsigned i = 0; i < GUESSED; i++)
            assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
    }
    fixture_fini(&f);
}

/* Two guesses take turns, until somebody waits for the second one. */
static void raise__one_of_two_speculative_sets__goes_out_before_the_other(void **state)
{
    enum { COUNT = 4, DEPTH = 2, PIECES = 3 };
    struct fixture f;
    init(&f, state, 2 * COUNT * PIECES * PIECE_BYTES);
    f.options.capacity_bytes = 32 * KVF_MIB;
    f.options.queue_depth = DEPTH;
    f.options.read_threads = 1;
    fixture_open(&f);
    for (unsigned i = 0; i < 2 * COUNT; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, PIECES * PIECE_BYTES).code, KVF_OK);
    aim_all(&f, 2 * COUNT, PIECES * PIECE_BYTES);
    struct kvf_read_set guesses[] = {{.reads = reads, .count = COUNT, .speculative = true},
                                     {.reads = reads + COUNT, .count = COUNT, .speculative = true}};
    faulty_arm((struct plan){.kind = KVF_IO_READ, .count = DEPTH, .fd = -1, .fault = FAULT_HOLD});
    for (unsigned i = 0; i < 2; i++)
        kvf_store_read(f.store, &guesses[i]);
    kvf_store_raise(f.store, &guesses[1]);
    assert_false(guesses[1].speculative);
    atomic_store(&faults.held, false);
    fixture_wait(&f, blocks, 2 * COUNT);
    unsigned last = 0;
    for (unsigned i = 0; i < faults.read_count; i++)
        for (unsigned b = COUNT; b < 2 * COUNT; b++)
            if (faults.read_fds[i] == f.store->drives[0].segments[blocks[b].location.segment].fd &&
                faults.read_offsets[i] >= blocks[b].location.offset &&
                faults.read_offsets[i] < blocks[b].location.offset + PIECES * PIECE_BYTES)
                last = i;
    assert_in_range(last, COUNT * PIECES - 1, DEPTH + COUNT * PIECES - 1);
    kvf_store_raise(f.store, &guesses[0]); /* all of it is sent: nothing changes */
    for (unsigned i = 0; i < 2 * COUNT; i++)
        assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
    fixture_fini(&f);
}

/* Pieces of one block go out front to back, and blocks in the order of their set. */
static void read__one_set__goes_out_in_its_order(void **state)
{
    const uint64_t bytes = 3 * PIECE_BYTES;
    struct fixture f;
    init(&f, state, BLOCKS * bytes);
    f.options.capacity_bytes = 32 * KVF_MIB;
    f.options.read_threads = 1;
    fixture_open(&f);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, bytes).code, KVF_OK);
    aim_all(&f, BLOCKS, bytes);
    faulty_disarm();
    struct kvf_read_set set = {.reads = reads, .count = BLOCKS};
    kvf_store_read(f.store, &set);
    fixture_wait(&f, blocks, BLOCKS);
    assert_int_equal(faults.read_count, BLOCKS * 3);
    for (unsigned i = 0; i < BLOCKS * 3; i++)
        assert_int_equal(faults.read_offsets[i],
                         blocks[i / 3].location.offset + i % 3 * PIECE_BYTES);
    fixture_fini(&f);
}

/* Queued at once or one by one: as many on each drive. */
static void append__equal_blocks_over_two_drives__spread_evenly(void **state)
{
    struct fixture f;
    const uint64_t bytes = 300 << 10;
    init(&f, state, 8 * bytes + KVF_MIB);
    fixture_add_drive(&f);
    fixture_open(&f);
    for (unsigned round = 0; round < 4; round++) {
        unsigned on_first = 0;
        for (unsigned i = 0; i < 8; i++) {
            fixture_append(&f, &blocks[i], round * 8 + i, bytes, i * kvf_round_up_page(bytes));
            if (round % 2 == 1)
                fixture_wait(&f, &blocks[i], 1);
        }
        fixture_wait(&f, blocks, 8);
        for (unsigned i = 0; i < 8; i++) {
            assert_int_equal(blocks[i].status.code, KVF_OK);
            on_first += blocks[i].location.drive == 0;
            if (i > 0)
                assert_int_not_equal(blocks[i].location.drive, blocks[i - 1].location.drive);
        }
        assert_int_equal(on_first, 4);
    }
    fixture_fini(&f);
}

/* The window is full of reads, and none comes back: a write does not need a place in it. */
static void append__every_read_hangs__is_written(void **state)
{
    struct fixture f;
    struct fixture_block block;
    const uint64_t bytes = 3 * PIECE_BYTES;
    init(&f, state, (BLOCKS + 1) * bytes);
    f.options.capacity_bytes = 32 * KVF_MIB;
    fixture_open(&f);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, bytes).code, KVF_OK);
    aim_all(&f, BLOCKS, bytes);
    struct kvf_read_set set = {.reads = reads, .count = BLOCKS};
    faulty_arm((struct plan){.kind = KVF_IO_READ, .count = 100000, .fd = -1, .fault = FAULT_HOLD});
    kvf_store_read(f.store, &set);
    for (unsigned i = 0; i < 3; i++) {
        fixture_append(&f, &block, 100 + i, bytes, BLOCKS * bytes);
        fixture_wait(&f, &block, 1);
        assert_int_equal(block.status.code, KVF_OK);
    }
    assert_int_equal(ended_on(BLOCKS, 0), 0);
    atomic_store(&faults.held, false);
    fixture_wait(&f, blocks, BLOCKS);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read__one_set_over_two_drives_and_their_segments__in_parallel),
        cmocka_unit_test(read__small_set_behind_a_large_one__takes_turns),
        cmocka_unit_test(read__speculative_set__goes_out_behind_what_is_demanded),
        cmocka_unit_test(raise__one_of_two_speculative_sets__goes_out_before_the_other),
        cmocka_unit_test(read__one_set__goes_out_in_its_order),
        cmocka_unit_test(append__equal_blocks_over_two_drives__spread_evenly),
        cmocka_unit_test(append__every_read_hangs__is_written),
    };
    return HOST_RUN_TESTS("order", tests);
}
