/* Blocks carried over from a segment that is to be given back: appends whose bytes come from SSD. */
#include "base/test.h"
#include "storage/faulty.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH (300 << 10) /* six in a segment of 2 MiB */
#define MANY 64

static struct fixture_block blocks[MANY];

static void init(struct fixture *f, void **state)
{
    faulty_init(host_engine(state));
    fixture_init(f, &faulty_engine, 8 * KVF_MIB);
    f->options.read_threads = 1;
}

/* Puts until the first segment is sealed; how many. */
static unsigned fill_first_segment(struct fixture *f, uint64_t length)
{
    unsigned count = 0;
    do
        assert_int_equal(fixture_put(f, &blocks[count], count, length).code, KVF_OK);
    while (blocks[count++].location.segment == blocks[0].location.segment);
    return count;
}

static bool is_sealed(struct fixture *f, struct kvf_location location)
{
    (void)pthread_mutex_lock(&f->store->lock);
    enum kvf_segment_state state =
        f->store->drives[location.drive].segments[location.segment].state;
    (void)pthread_mutex_unlock(&f->store->lock);
    return state == KVF_SEGMENT_SEALED;
}

/* Puts until the segment that it lies in is sealed. */
static void seal(struct fixture *f, const struct fixture_block *block)
{
    static uint64_t seed = 1000;
    struct fixture_block filler;
    while (!is_sealed(f, block->location))
        assert_int_equal(fixture_put(f, &filler, seed++, LENGTH).code, KVF_OK);
}

static void append_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    struct fixture_block *block = kvf_container(append, struct fixture_block, append);
    assert_false(block->ended);
    block->ended = true;
    block->status = status;
    if (kvf_is_ok(status))
        block->location = location;
}

static void start_carry(struct fixture *f, struct fixture_block *block)
{
    block->append = (struct kvf_append){
        .record = block->append.record, .from = block->location, .ended = append_ended};
    block->ended = false;
    kvf_store_append(f->store, &block->append);
}

static struct kvf_status carry(struct fixture *f, struct fixture_block *block)
{
    start_carry(f, block);
    fixture_wait(f, block, 1);
    return block->status;
}

static bool same_place(struct kvf_location a, struct kvf_location b)
{
    return a.segment == b.segment && a.sequence == b.sequence && a.offset == b.offset;
}

static void expect_found(struct fixture *f, const struct fixture_block *block, uint64_t length)
{
    const struct fixture_found *found = fixture_find(f, block->seed);
    assert_non_null(found);
    assert_int_equal(found->record.generation.counter, block->seed);
    assert_int_equal(found->record.crc32c, block->append.record.crc32c);
    struct fixture_block there = {.seed = block->seed, .location = found->location};
    assert_int_equal(fixture_get(f, &there, length).code, KVF_OK);
}

/* ---- what is carried ---- */

static void carry__any_length__same_block_elsewhere_also_after_a_restart(void **state)
{
    const uint64_t lengths[] = {1, KVF_PAGE, 5000, LENGTH, 1500 << 10};
    for (size_t i = 0; i < 5; i++) {
        struct fixture f;
        init(&f, state);
        fixture_open(&f);
        (void)fill_first_segment(&f, lengths[i] < LENGTH ? LENGTH : lengths[i]);
        struct fixture_block *block = &blocks[0];
        if (lengths[i] < LENGTH) { /* small ones lie in front of large ones */
            fixture_reopen(&f);
            assert_int_equal(fixture_put(&f, block, 40, lengths[i]).code, KVF_OK);
            seal(&f, block);
        }
        struct kvf_location before = block->location;
        struct kvf_drive_stats then = fixture_stats(&f);
        assert_int_equal(carry(&f, block).code, KVF_OK);
        assert_false(same_place(before, block->location));
        assert_int_equal(fixture_get(&f, block, lengths[i]).code, KVF_OK);
        struct kvf_drive_stats now = fixture_stats(&f);
        assert_int_equal(now.carried_blocks, then.carried_blocks + 1);
        assert_int_equal(now.carried_bytes, then.carried_bytes + lengths[i]);
        assert_int_equal(now.write_payload_bytes, then.write_payload_bytes);
        assert_true(now.write_device_bytes >= then.write_device_bytes + lengths[i]);
        kvf_store_free(f.store, 0, before.segment, before.sequence);
        fixture_reopen(&f);
        assert_true(same_place(fixture_find(&f, block->seed)->location, block->location));
        expect_found(&f, block, lengths[i]);
        fixture_fini(&f);
    }
}

static void carry__many_neighbours_and_lonely_ones__each_its_own_bytes(void **state)
{
    enum { SMALL = 40 };
    struct fixture f;
    init(&f, state);
    fixture_open(&f);
    for (unsigned i = 0; i < SMALL; i++)
        fixture_append(&f, &blocks[i], i, 1 + i * 997 % 20000, i * 32768);
    fixture_wait(&f, blocks, SMALL);
    fixture_reopen(&f);
    seal(&f, &blocks[0]);
    for (unsigned i = 0; i < SMALL; i++)
        if (i % 5 != 4)
            start_carry(&f, &blocks[i]);
    fixture_wait(&f, blocks, SMALL);
    struct kvf_location old = blocks[4].location;
    for (unsigned i = 0; i < SMALL; i++) {
        assert_int_equal(blocks[i].status.code, KVF_OK);
        assert_int_equal(fixture_get(&f, &blocks[i], 1 + i * 997 % 20000).code, KVF_OK);
        assert_int_equal(blocks[i].location.sequence == old.sequence, i % 5 == 4);
    }
    fixture_fini(&f);
}

static void carry__twice__the_last_place_counts(void **state)
{
    struct fixture f;
    init(&f, state);
    fixture_open(&f);
    (void)fill_first_segment(&f, LENGTH);
    for (unsigned round = 0; round < 2; round++) {
        struct kvf_location before = blocks[0].location;
        assert_int_equal(carry(&f, &blocks[0]).code, KVF_OK);
        kvf_store_free(f.store, 0, before.segment, before.sequence);
        fixture_reopen(&f);
        seal(&f, &blocks[0]);
    }
    fixture_reopen(&f);
    unsigned count = 0;
    for (unsigned i = 0; i < f.found_count; i++)
        count += f.found[i].record.generation.counter == blocks[0].seed;
    assert_int_equal(count, 1);
    assert_true(same_place(fixture_find(&f, 0)->location, blocks[0].location));
    expect_found(&f, &blocks[0], LENGTH);
    fixture_fini(&f);
}

/* The checksum stays that of the block that was put. */
static void carry__damaged_block__stays_detected(void **state)
{
    struct fixture f;
    char file[32];
    init(&f, state);
    fixture_open(&f);
    (void)fill_first_segment(&f, LENGTH);
    (void)snprintf(file, sizeof(file), "segment-%05u", blocks[0].location.segment);
    fixture_flip(&f, file, blocks[0].location.offset + 12345);
    assert_int_equal(carry(&f, &blocks[0]).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &blocks[0], LENGTH).code, KVF_CORRUPT);
    fixture_reopen(&f);
    bool found_carried = false;
    for (unsigned i = 0; i < f.found_count; i++)
        if (same_place(f.found[i].location, blocks[0].location)) {
            assert_int_equal(f.found[i].record.crc32c, blocks[0].append.record.crc32c);
            found_carried = true;
        }
    assert_true(found_carried);
    assert_int_equal(fixture_get(&f, &blocks[0], LENGTH).code, KVF_CORRUPT);
    fixture_fini(&f);
}

static void carry__while_the_block_is_read__both_are_right(void **state)
{
    struct fixture f;
    init(&f, state);
    f.options.read_threads = 3;
    fixture_open(&f);
    (void)fill_first_segment(&f, LENGTH);
    for (unsigned round = 0; round < 12; round++) {
        struct fixture_block reader = {.seed = 0, .location = blocks[0].location};
        struct kvf_read *reads[] = {&reader.read};
        struct kvf_read_set set = {.reads = reads, .count = 1};
        fixture_aim(&f, &reader, LENGTH, 4 * KVF_MIB);
        start_carry(&f, &blocks[0]);
        kvf_store_read(f.store, &set);
        fixture_wait(&f, &blocks[0], 1);
        fixture_wait(&f, &reader, 1);
        assert_true(kvf_is_ok(reader.status) && fixture_is_right(&f, &reader));
        assert_int_equal(blocks[0].status.code, KVF_OK);
        assert_int_equal(fixture_get(&f, &blocks[0], LENGTH).code, KVF_OK);
        blocks[0].location = reader.location;
    }
    fixture_fini(&f);
}

static void carry__from_nowhere_or_what_is_given_back__refused(void **state)
{
    struct fixture f;
    init(&f, state);
    fixture_open(&f);
    (void)fill_first_segment(&f, LENGTH);
    struct kvf_location right = blocks[0].location;
    const struct kvf_location wrong[] = {
        {0},
        {.drive = 1, .sequence = right.sequence, .offset = KVF_PAGE},
        {.segment = 99, .sequence = right.sequence, .offset = KVF_PAGE},
        {.segment = right.segment, .sequence = right.sequence, .offset = right.offset + 1},
        {.segment = right.segment, .sequence = right.sequence, .offset = 2 * KVF_MIB - KVF_PAGE},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        blocks[0].location = wrong[i];
        assert_int_equal(carry(&f, &blocks[0]).code, KVF_INVALID);
    }
    blocks[0].location = right;
    blocks[0].location.sequence++;
    assert_int_equal(carry(&f, &blocks[0]).code, KVF_STALE);
    blocks[0].location = right;
    kvf_store_free(f.store, 0, right.segment, right.sequence);
    assert_int_equal(carry(&f, &blocks[0]).code, KVF_STALE);
    assert_int_equal(fixture_stats(&f).carries_failed, 7);
    assert_int_equal(fixture_stats(&f).dropped, 0);
    assert_int_equal(fixture_stats(&f).writes_in_flight, 0);
    fixture_fini(&f);
}

/* ---- what goes wrong ---- */

static void carry__source_cannot_be_read__fails_alone(void **state)
{
    struct fixture f;
    init(&f, state);
    fixture_open(&f);
    unsigned count = fill_first_segment(&f, LENGTH) - 1;
    unsigned failed = 0;
    for (unsigned i = 0; i < count; i++) {
        struct kvf_location before = blocks[i].location;
        if (i == 2)
            faulty_arm((struct plan){
                .kind = KVF_IO_READ, .count = 1, .fd = -1, .fault = FAULT_ERROR, .value = EIO});
        struct kvf_status status = carry(&f, &blocks[i]);
        failed += !kvf_is_ok(status);
        assert_true(kvf_is_ok(status) || status.code == KVF_IO);
        assert_true(kvf_is_ok(status) || same_place(before, blocks[i].location));
        assert_int_equal(fixture_get(&f, &blocks[i], LENGTH).code, KVF_OK);
    }
    assert_int_equal(failed, 1);
    assert_int_equal(fixture_stats(&f).carries_failed, 1);
    assert_int_equal(fixture_stats(&f).carried_blocks, count - 1);
    assert_false(fixture_stats(&f).read_only);
    fixture_fini(&f);
}

static void carry__short_or_not_now_at_any_request__right_all_the_same(void **state)
{
    const struct plan plans[] = {
        {.kind = KVF_IO_READ, .fault = FAULT_SHORT, .value = 9000},
        {.kind = KVF_IO_READ, .fault = FAULT_ERROR, .value = EAGAIN},
        {.kind = KVF_IO_WRITE, .fault = FAULT_SHORT, .value = 9000},
        {.kind = KVF_IO_WRITE, .fault = FAULT_ERROR, .value = EINTR},
        {.kind = KVF_IO_READ, .fault = FAULT_BREAK},
    };
    struct fixture f;
    init(&f, state);
    f.options.capacity_bytes = 64 * KVF_MIB;
    fixture_open(&f);
    (void)fill_first_segment(&f, 1500 << 10);
    struct kvf_location source = blocks[0].location;
    for (size_t p = 0; p < 5; p++)
        for (int at = 0; at < 3; at++) {
            struct plan plan = plans[p];
            plan.first = at;
            plan.count = 1;
            plan.fd = -1;
            blocks[0].location = source;
            faulty_arm(plan);
            assert_int_equal(carry(&f, &blocks[0]).code, KVF_OK);
            faulty_disarm();
            assert_int_equal(fixture_get(&f, &blocks[0], 1500 << 10).code, KVF_OK);
        }
    fixture_fini(&f);
}

/* From some request on nothing reaches the drive any more, and then the process is gone: the block is there, as the old
 * record, the new one or both. */
static void carry__crash_at_each_step__old_or_new_is_found(void **state)
{
    const enum kvf_io_kind kinds[] = {KVF_IO_READ, KVF_IO_WRITE, KVF_IO_SYNC};
    for (int at = 0; at < 5; at++)
        for (size_t k = 0; k < 3; k++) {
            struct fixture f;
            init(&f, state);
            fixture_open(&f);
            unsigned count = fill_first_segment(&f, LENGTH);
            faulty_arm((struct plan){.kind = kinds[k],
                                     .first = at,
                                     .count = 1000000,
                                     .fd = -1,
                                     .fault = FAULT_ERROR,
                                     .value = EIO});
            for (unsigned i = 0; i + 1 < count; i += 2)
                (void)carry(&f, &blocks[i]);
            fixture_crash(&f);
            faulty_disarm();
            fixture_open(&f);
            for (unsigned i = 0; i < count; i++)
                expect_found(&f, &blocks[i], LENGTH);
            fixture_expect_found(&f); /* every copy that is told */
            fixture_fini(&f);
        }
}

static void carry__drive_refuses_for_a_while__fails_and_later_works(void **state)
{
    const int errors[] = {ENOSPC, EDQUOT, EIO};
    for (size_t e = 0; e < 3; e++) {
        struct fixture f;
        init(&f, state);
        f.options.probe_ms = 10;
        fixture_open(&f);
        (void)fill_first_segment(&f, LENGTH);
        faulty_arm((struct plan){.kind = KVF_IO_WRITE,
                                 .count = 1000000,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = errors[e]});
        struct kvf_status status = carry(&f, &blocks[0]);
        assert_int_equal(status.detail, errors[e]);
        assert_int_equal(status.code, errors[e] == EIO ? KVF_IO : KVF_NO_SPACE);
        assert_true(fixture_stats(&f).read_only);
        status = carry(&f, &blocks[1]); /* refused at once */
        assert_int_equal(status.detail, errors[e]);
        assert_int_equal(fixture_get(&f, &blocks[0], LENGTH).code, KVF_OK);
        assert_int_equal(fixture_stats(&f).carries_failed, 2);
        assert_int_equal(fixture_stats(&f).dropped, 0);
        faulty_disarm();
        fixture_wait_writable(&f);
        assert_int_equal(carry(&f, &blocks[0]).code, KVF_OK);
        assert_int_equal(fixture_get(&f, &blocks[0], LENGTH).code, KVF_OK);
        fixture_fini(&f);
    }
}

/* It stays on its drive while that can be written. */
static void carry__several_drives__own_one_or_the_one_that_is_left(void **state)
{
    struct fixture f;
    init(&f, state);
    fixture_add_drive(&f);
    f.options.probe_ms = 60000;
    fixture_open(&f);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, LENGTH).code, KVF_OK);
    for (unsigned i = 0; i < 8; i++)
        seal(&f, &blocks[i]);
    for (unsigned i = 0; i < 4; i++) {
        uint32_t drive = blocks[i].location.drive;
        assert_int_equal(carry(&f, &blocks[i]).code, KVF_OK);
        assert_int_equal(blocks[i].location.drive, drive);
    }
    faulty_arm((struct plan){
        .kind = KVF_IO_SYNC, .count = 1, .fd = -1, .fault = FAULT_ERROR, .value = EIO});
    uint32_t failed = blocks[4].location.drive;
    assert_int_equal(carry(&f, &blocks[4]).code, KVF_IO);
    assert_int_equal(carry(&f, &blocks[4]).code, KVF_OK);
    assert_int_equal(blocks[4].location.drive, 1 - failed);
    assert_int_equal(fixture_get(&f, &blocks[4], LENGTH).code, KVF_OK);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(fixture_get(&f, &blocks[i], LENGTH).code, KVF_OK);
    fixture_fini(&f);
}

/* ---- a full store ---- */

/* Nobody gives a segment back, and all are full: what is put waits for that, what is carried over has the last quarter
 * (there are three segments) and never waits. */
static void carry__no_segment_comes_back__takes_the_room_kept_or_ends(void **state)
{
    struct fixture f;
    init(&f, state);
    f.options.capacity_bytes = 6 * KVF_MIB;
    fixture_open(&f);
    for (unsigned i = 0; i < MANY; i++)
        fixture_append(&f, &blocks[i], i, LENGTH, 0);
    uint64_t written = 0;
    for (unsigned still = 0; still < 3; still++) { /* until nothing moves */
        (void)usleep(300000);
        while (kvf_loop_run_once(f.loop, 0), fixture_stats(&f).write_payload_bytes != written)
            written = fixture_stats(&f).write_payload_bytes, still = 0;
    }
    kvf_loop_run_once(f.loop, 0);
    assert_int_equal(f.reclaim_count, 1);
    unsigned count = 0, carried = 0;
    while (blocks[count].ended)
        count++;
    assert_in_range(count, 10, MANY - 10);
    while (blocks[carried].location.sequence == f.reclaims[0].sequence &&
           kvf_is_ok(carry(&f, &blocks[carried])))
        carried++;
    assert_true(carried >= 1);
    assert_int_equal(blocks[carried].status.code, KVF_NO_SPACE);
    assert_false(blocks[count].ended);
    f.frees_at_once = true;
    kvf_store_free(f.store, 0, f.reclaims[0].segment, f.reclaims[0].sequence);
    fixture_wait(&f, blocks + count, MANY - count);
    for (unsigned i = count; i < MANY; i++)
        assert_int_equal(blocks[i].status.code, KVF_OK);
    assert_int_equal(fixture_stats(&f).dropped, 0);
    fixture_fini(&f);
}

/* An owner who would rather keep the oldest: at first it gives back the second one in its place. */
static void reclaim_second(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    struct fixture *f = context;
    const struct kvf_location *second = &blocks[7].location; /* six in a segment */
    uint64_t told = 0;
    if (f->reclaim_count == 0) {
        assert_int_equal(sequence, blocks[0].location.sequence);
        for (uint32_t other = 0; other < 8; other++) /* itself, the open one, the free one */
            if (other == segment || other >= 6)
                assert_false(kvf_store_ask_instead(f->store, drive, segment, other, &told));
        assert_true(kvf_store_ask_instead(f->store, drive, segment, second->segment, &told));
        assert_int_equal(told, second->sequence);
        assert_false(
            kvf_store_ask_instead(f->store, drive, second->segment, second->segment, &told));
        segment = second->segment;
        sequence = told;
    }
    f->reclaims[f->reclaim_count++] =
        (struct kvf_location){.drive = drive, .segment = segment, .sequence = sequence};
    kvf_store_free(f->store, drive, segment, sequence);
}

static void
ask_instead__another_sealed_one__is_given_back_and_the_oldest_the_next_time(void **state)
{
    struct fixture f;
    init(&f, state);
    f.options.reclaim = reclaim_second;
    fixture_open(&f);
    unsigned count = 0;
    while (f.reclaim_count == 0) {
        assert_int_equal(fixture_put(&f, &blocks[count], count, LENGTH).code, KVF_OK);
        count++;
    }
    assert_int_equal(fixture_get(&f, &blocks[0], LENGTH).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &blocks[7], LENGTH).code, KVF_STALE);
    while (f.reclaim_count == 1) {
        assert_int_equal(fixture_put(&f, &blocks[count], count, LENGTH).code, KVF_OK);
        count++;
    }
    assert_int_equal(f.reclaims[1].sequence, blocks[0].location.sequence);
    fixture_fini(&f);
}

/* An owner for whom every block is hot: what the store asks back is carried over up to a quarter, the rest is gone. */
struct owner {
    struct fixture *f;
    struct fixture_block *first; /* `count` blocks, by seed */
    unsigned count;
    unsigned open; /* carries that have not ended */
    struct kvf_location reclaimed[8];
    unsigned reclaimed_count;
    unsigned lost;
};

static struct owner owner;

static void give_back(void)
{
    struct kvf_location *segment = &owner.reclaimed[0];
    kvf_store_free(owner.f->store, 0, segment->segment, segment->sequence);
    owner.reclaimed_count--;
    memmove(segment, segment + 1, owner.reclaimed_count * sizeof(*segment));
}

static void carry_next(void);

static void carried(struct kvf_append *append, struct kvf_status status,
                    struct kvf_location location)
{
    struct fixture_block *block = kvf_container(append, struct fixture_block, append);
    if (kvf_is_ok(status))
        block->location = location;
    else
        block->location.sequence = 0;
    owner.lost += !kvf_is_ok(status);
    if (--owner.open == 0) {
        give_back();
        carry_next();
    }
}

static void carry_next(void)
{
    uint64_t quota = owner.f->options.segment_bytes / 4;
    if (owner.reclaimed_count == 0)
        return;
    for (unsigned i = 0; i < owner.count; i++) {
        struct fixture_block *block = &owner.first[i];
        uint64_t bytes = kvf_round_up_page(block->append.record.length);
        if (!block->ended || block->location.sequence != owner.reclaimed[0].sequence)
            continue;
        if (bytes > quota) {
            block->location.sequence = 0;
            continue;
        }
        quota -= bytes;
        owner.open++;
        block->append = (struct kvf_append){
            .record = block->append.record, .from = block->location, .ended = carried};
        kvf_store_append(owner.f->store, &block->append);
    }
    if (owner.open == 0) {
        give_back();
        carry_next();
    }
}

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    (void)context;
    assert_true(owner.reclaimed_count < 8);
    owner.reclaimed[owner.reclaimed_count++] =
        (struct kvf_location){.drive = drive, .segment = segment, .sequence = sequence};
    if (owner.reclaimed_count == 1)
        carry_next();
}

static void run_full_store(void **state, uint64_t segments, uint64_t length, unsigned count)
{
    struct fixture f;
    struct fixture_block *all = calloc(count, sizeof(*all));
    init(&f, state);
    f.options.capacity_bytes = segments * 2 * KVF_MIB;
    f.options.reclaim = reclaim;
    owner = (struct owner){.f = &f, .first = all, .count = count};
    fixture_open(&f);
    for (unsigned i = 0; i < count; i += 8) { /* eight at a time */
        unsigned some = count - i < 8 ? count - i : 8;
        for (unsigned b = i; b < i + some; b++)
            fixture_append(&f, &all[b], b, length, b % 8 * kvf_round_up_page(length));
        fixture_wait(&f, all + i, some);
        for (unsigned b = i; b < i + some; b++)
            assert_int_equal(all[b].status.code, KVF_OK);
    }
    for (time_t end = time(NULL) + 30; owner.reclaimed_count > 0;) {
        assert_true(time(NULL) < end);
        kvf_loop_run_once(f.loop, 100);
    }
    struct kvf_drive_stats stats = fixture_stats(&f);
    assert_true(stats.carried_blocks > 0);
    assert_int_equal(stats.dropped, 0);
    assert_int_equal(stats.writes_in_flight, 0);
    assert_int_equal(stats.write_payload_bytes, count * length);
    /* A third of what is put at most, and whatever headers, index and footer of small segments take. */
    assert_true(stats.carried_bytes * 3 <= stats.write_payload_bytes + f.options.segment_bytes);
    unsigned there = 0;
    for (unsigned i = 0; i < count; i++) {
        if (all[i].location.sequence == 0)
            continue;
        struct kvf_status status = fixture_get(&f, &all[i], length);
        /* Stale: its segment was asked for before its owner heard of its end. */
        assert_true(kvf_is_ok(status) || status.code == KVF_STALE);
        there += kvf_is_ok(status);
    }
    assert_true(there * kvf_round_up_page(length) > (segments - 2) * KVF_MIB);
    free(all);
    fixture_fini(&f);
}

static void put__store_full_of_hot_blocks__goes_on(void **state)
{
    run_full_store(state, 8, LENGTH, 200);
    run_full_store(state, 8, 5000, 4000);
    run_full_store(state, 3, LENGTH, 100);
    run_full_store(state, 2, LENGTH, 60);
    run_full_store(state, 2, 20000, 600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(carry__any_length__same_block_elsewhere_also_after_a_restart),
        cmocka_unit_test(carry__many_neighbours_and_lonely_ones__each_its_own_bytes),
        cmocka_unit_test(carry__twice__the_last_place_counts),
        cmocka_unit_test(carry__damaged_block__stays_detected),
        cmocka_unit_test(carry__while_the_block_is_read__both_are_right),
        cmocka_unit_test(carry__from_nowhere_or_what_is_given_back__refused),
        cmocka_unit_test(carry__source_cannot_be_read__fails_alone),
        cmocka_unit_test(carry__short_or_not_now_at_any_request__right_all_the_same),
        cmocka_unit_test(carry__crash_at_each_step__old_or_new_is_found),
        cmocka_unit_test(carry__drive_refuses_for_a_while__fails_and_later_works),
        cmocka_unit_test(carry__several_drives__own_one_or_the_one_that_is_left),
        cmocka_unit_test(carry__no_segment_comes_back__takes_the_room_kept_or_ends),
        cmocka_unit_test(
            ask_instead__another_sealed_one__is_given_back_and_the_oldest_the_next_time),
        cmocka_unit_test(put__store_full_of_hot_blocks__goes_on),
    };
    return HOST_RUN_TESTS("carry", tests);
}
