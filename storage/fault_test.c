/* What storage does when the operating system does not do as asked: a faulty engine stands in front of each real one. */
#include "base/crc32c.h"
#include "base/faulty_memory.h"
#include "base/test.h"
#include "storage/faulty.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void init(struct fixture *f, void **state, uint64_t arena_bytes)
{
    faulty_init(host_engine(state));
    fixture_init(f, &faulty_engine, arena_bytes);
}

#define LENGTH (1500 << 10) /* six pieces of 256 KiB */

/* ---- reads ---- */

static void read__short_at_any_piece__asks_for_the_rest(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    const int values[] = {4096, 5000, 100 << 10, 8192 + 511};
    for (int at = 0; at < 8; at++)
        for (size_t v = 0; v < 4; v++) {
            struct kvf_drive_stats before = fixture_stats(&f);
            faulty_arm((struct plan){.kind = KVF_IO_READ,
                                     .first = at,
                                     .count = 1,
                                     .fd = -1,
                                     .fault = FAULT_SHORT,
                                     .value = values[v]});
            assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
            struct kvf_drive_stats after = fixture_stats(&f);
            assert_int_equal(after.read_sqes - before.read_sqes, 6 + atomic_load(&faults.met));
            assert_int_equal(after.read_payload_bytes - before.read_payload_bytes, LENGTH);
        }
    fixture_fini(&f);
}

static void read__always_short__still_every_byte(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    faulty_arm((struct plan){
        .kind = KVF_IO_READ, .count = 100000, .fd = -1, .fault = FAULT_SHORT, .value = 12288});
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
    fixture_fini(&f);
}

static void read__less_than_a_page_for_ever__ends_with_an_error(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    faulty_arm((struct plan){
        .kind = KVF_IO_READ, .count = 100000, .fd = -1, .fault = FAULT_SHORT, .value = 512});
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_IO);
    faulty_arm((struct plan){
        .kind = KVF_IO_READ, .count = 100000, .fd = -1, .fault = FAULT_SHORT, .value = 0});
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_IO);
    assert_int_equal(block.status.detail, ENODATA);
    faulty_disarm();
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
    fixture_fini(&f);
}

static void read__kernel_says_not_now__retried_but_not_for_ever(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    const int passing[] = {EAGAIN, EINTR, EBUSY};
    for (size_t i = 0; i < 3; i++) {
        faulty_arm((struct plan){.kind = KVF_IO_READ,
                                 .first = 2,
                                 .count = 5,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = passing[i]});
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
        faulty_arm((struct plan){.kind = KVF_IO_READ,
                                 .count = 1000000,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = passing[i]});
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_IO);
        assert_int_equal(block.status.detail, passing[i]);
    }
    fixture_fini(&f);
}

static void read__error_at_any_piece__ends_that_read_only(void **state)
{
    struct fixture f;
    static struct fixture_block blocks[4];
    struct kvf_read *reads[4];
    init(&f, state, 4 * KVF_MIB);
    fixture_open(&f);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, 600 << 10).code, KVF_OK);
    for (int at = 0; at < 12; at++) {
        faulty_arm((struct plan){.kind = KVF_IO_READ,
                                 .first = at,
                                 .count = 1,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = EIO});
        for (unsigned i = 0; i < 4; i++) {
            fixture_aim(&f, &blocks[i], 600 << 10, i * KVF_MIB);
            reads[i] = &blocks[i].read;
        }
        struct kvf_read_set set = {.reads = reads, .count = 4};
        kvf_store_read(f.store, &set);
        fixture_wait(&f, blocks, 4);
        unsigned failed = 0;
        for (unsigned i = 0; i < 4; i++) {
            failed += blocks[i].status.code == KVF_IO;
            if (kvf_is_ok(blocks[i].status))
                assert_true(fixture_is_right(&f, &blocks[i]));
            else
                assert_int_equal(blocks[i].status.detail, EIO);
        }
        assert_int_equal(failed, 1);
        assert_int_equal(fixture_stats(&f).reads_in_flight, 0);
        assert_false(fixture_stats(&f).read_only);
    }
    fixture_fini(&f);
}

static unsigned count_ended(const struct fixture_block *blocks, unsigned count)
{
    unsigned ended = 0;
    for (unsigned i = 0; i < count; i++)
        ended += blocks[i].ended;
    return ended;
}

/* One piece hangs: what lies in front of it has landed, the rest of the work goes on beside it, and its late completion
 * belongs to its own read. */
static void read__one_piece_hangs__others_pass_it(void **state)
{
    struct fixture f;
    static struct fixture_block blocks[20];
    struct kvf_read *reads[20];
    init(&f, state, 40 * KVF_MIB);
    f.options.capacity_bytes = 64 * KVF_MIB;
    fixture_open(&f);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, LENGTH).code, KVF_OK);
    for (unsigned i = 0; i < 20; i++) {
        fixture_aim(&f, &blocks[i], LENGTH, i * 2 * KVF_MIB);
        reads[i] = &blocks[i].read;
    }
    faulty_arm(
        (struct plan){.kind = KVF_IO_READ, .first = 0, .count = 1, .fd = -1, .fault = FAULT_HOLD});
    struct kvf_read_set first = {.reads = reads, .count = 10},
                        second = {.reads = reads + 10, .count = 10};
    kvf_store_read(f.store, &first);
    kvf_store_read(f.store, &second);
    time_t end = time(NULL) + 60;
    while (count_ended(blocks, 20) < 19 && time(NULL) < end)
        kvf_loop_run_once(f.loop, 100);
    assert_int_equal(count_ended(blocks, 20), 19);
    assert_int_equal(fixture_stats(&f).reads_in_flight, 1);
    for (unsigned i = 0; i < 20; i++)
        if (blocks[i].ended)
            assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
        else
            assert_true(blocks[i].landed < LENGTH);
    atomic_store(&faults.held, false);
    fixture_wait(&f, blocks, 20);
    for (unsigned i = 0; i < 20; i++)
        assert_true(kvf_is_ok(blocks[i].status) && fixture_is_right(&f, &blocks[i]));
    fixture_fini(&f);
}

static void read__ring_fails_at_any_piece__goes_on_in_another_ring(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    for (int at = 0; at < 6; at++) {
        faulty_arm((struct plan){
            .kind = KVF_IO_READ, .first = at, .count = 1, .fd = -1, .fault = FAULT_BREAK});
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
        assert_int_equal(atomic_load(&faults.breaks), at + 1);
    }
    fixture_fini(&f);
}

/* The reader's ring fails, and then the writer's; neither gets another one, nor any memory. */
static void ring__fails_and_no_other_can_be_opened__goes_on_by_pread(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    f.options.read_threads = 1;
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    const enum kvf_io_kind kinds[] = {KVF_IO_READ, KVF_IO_WRITE};
    for (size_t i = 0; i < 2; i++) {
        faulty_arm((struct plan){
            .kind = kinds[i], .first = 1, .count = 1, .fd = -1, .fault = FAULT_BREAK});
        faults.open_fails_at = faults.opens + 1;
        faulty_memory_fail_all(true);
        if (kinds[i] == KVF_IO_WRITE)
            assert_int_equal(fixture_put(&f, &block, 2, LENGTH).code, KVF_OK);
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
        faulty_memory_fail_all(false);
        assert_int_equal(faults.opens, faults.open_fails_at);
    }
    fixture_reopen(&f);
    assert_int_equal(f.found_count, 2);
    fixture_fini(&f);
}

/* ---- what happens now and then ---- */

/* A soak asks for more. */
static unsigned rounds(unsigned few, unsigned many)
{
    return getenv("KVF_STORAGE_SOAK") != NULL ? many : few;
}

/* Each block is one piece, so that each injected error is one failed read. */
static void read__faults_at_a_rate__no_wrong_byte_and_counted_exactly(void **state)
{
    enum { COUNT = 16 };
    struct fixture f;
    static struct fixture_block blocks[COUNT];
    struct kvf_read *reads[COUNT];
    init(&f, state, COUNT * 256 << 10);
    f.options.capacity_bytes = 16 * KVF_MIB;
    fixture_open(&f);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(fixture_put(&f, &blocks[i], i, (i + 1) * 15000).code, KVF_OK);
        reads[i] = &blocks[i].read;
    }
    struct kvf_drive_stats before = fixture_stats(&f);
    faulty_rate((struct rates){
        .kind = KVF_IO_READ, .seed = 20260711, .short_in = 32, .passing_in = 128, .error_in = 100});
    unsigned failed = 0, all = rounds(150, 6000);
    for (unsigned round = 0; round < all; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            fixture_aim(&f, &blocks[i], (i + 1) * 15000, i * 256 << 10);
        struct kvf_read_set set = {.reads = reads, .count = COUNT};
        kvf_store_read(f.store, &set);
        fixture_wait(&f, blocks, COUNT);
        for (unsigned i = 0; i < COUNT; i++) {
            failed += blocks[i].status.code == KVF_IO;
            assert_true(blocks[i].status.code == KVF_IO || fixture_is_right(&f, &blocks[i]));
        }
    }
    struct kvf_drive_stats after = fixture_stats(&f);
    int errors = atomic_load(&faults.errors), passings = atomic_load(&faults.passings),
        shorts = atomic_load(&faults.shorts);
    assert_true(errors > 5 && passings > 5 && shorts > 20);
    assert_int_equal(failed, errors);
    assert_int_equal(after.read_errors - before.read_errors, failed);
    /* Every request passed by here, and each fault but the errors made at least one more. */
    assert_int_equal(after.read_sqes - before.read_sqes, faults.drawn);
    assert_true(faults.drawn >= all * COUNT + (unsigned)(passings + shorts));
    assert_int_equal(after.reads_in_flight, 0);
    fixture_fini(&f);
}

/* Writes under the same weather, but for the errors: all durable. */
static void write__faults_at_a_rate__all_durable(void **state)
{
    struct fixture f;
    enum { COUNT = 120 };
    static struct fixture_block blocks[COUNT];
    init(&f, state, COUNT * 128 << 10);
    f.options.capacity_bytes = 32 * KVF_MIB;
    fixture_open(&f);
    faulty_rate((struct rates){.kind = KVF_IO_WRITE, .seed = 7, .short_in = 3, .passing_in = 4});
    for (unsigned i = 0; i < COUNT; i++)
        fixture_append(&f, &blocks[i], i, 1000 + (i * 7919) % 120000, i * 128 << 10);
    fixture_wait(&f, blocks, COUNT);
    assert_true(atomic_load(&faults.shorts) + atomic_load(&faults.passings) > 0);
    faulty_disarm();
    fixture_reopen(&f);
    assert_int_equal(f.found_count, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        struct fixture_block block = {.location = fixture_find(&f, i)->location, .seed = i};
        assert_int_equal(fixture_get(&f, &block, 1000 + (i * 7919) % 120000).code, KVF_OK);
    }
    fixture_fini(&f);
}

/* The drive answers with another record, whole and with its own right checksum. Storage cannot see that and says OK; the
 * owner compares with the checksum of the record it asked for. */
static void read__misdirected_to_another_record__not_the_checksum_asked_for(void **state)
{
    struct fixture f;
    struct fixture_block asked, other;
    init(&f, state, KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &other, 1, 100000).code, KVF_OK);
    assert_int_equal(fixture_put(&f, &asked, 2, 100000).code, KVF_OK);
    assert_int_equal(other.location.segment, asked.location.segment);
    faulty_arm((struct plan){.kind = KVF_IO_READ,
                             .count = 1,
                             .fd = -1,
                             .fault = FAULT_MISDIRECT,
                             .where = other.location.offset});
    assert_int_equal(fixture_get(&f, &asked, 100000).code, KVF_CORRUPT);
    assert_int_equal(asked.status.code, KVF_OK);
    uint32_t crc = kvf_crc32c(0, kvf_extent_at(asked.read.extent), 100000);
    assert_int_equal(crc, other.append.record.crc32c);
    assert_int_not_equal(crc, asked.append.record.crc32c);
    assert_int_equal(fixture_get(&f, &asked, 100000).code, KVF_OK);
    fixture_fini(&f);
}

/* A read that has failed waits for its last piece; as soon as it has ended, the same memory serves another read, and
 * nothing of the old one comes after that. */
static void read__failed_with_a_piece_outstanding__ends_only_when_it_is_back(void **state)
{
    struct fixture f;
    struct fixture_block block, other;
    struct kvf_read *reads[] = {&block.read};
    struct kvf_read_set set = {.reads = reads, .count = 1};
    init(&f, state, 4 * KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    assert_int_equal(fixture_put(&f, &other, 2, LENGTH).code, KVF_OK);
    for (unsigned round = 0; round < 20; round++) {
        fixture_aim(&f, &block, LENGTH, 0);
        faulty_arm((struct plan){
            .kind = KVF_IO_READ, .first = 1, .count = 1, .fd = -1, .fault = FAULT_HOLD});
        faults.then_error = EIO; /* the others, once one is held */
        kvf_store_read(f.store, &set);
        time_t end = time(NULL) + 30;
        while (atomic_load(&faults.met) < 2) { /* the held one, and one that fails */
            assert_true(time(NULL) < end);
            kvf_loop_run_once(f.loop, 1);
        }
        for (unsigned i = 0; i < 5; i++)
            kvf_loop_run_once(f.loop, 1);
        assert_false(block.ended);
        assert_int_equal(fixture_stats(&f).reads_in_flight, 1);
        faults.then_error = 0;
        atomic_store(&faults.held, false);
        fixture_wait(&f, &block, 1);
        assert_int_equal(block.status.code, KVF_IO);
        faulty_disarm();
        struct kvf_location own = block.location;
        block.location = other.location;
        block.seed = 2;
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
        block.location = own;
        block.seed = 1;
    }
    fixture_fini(&f);
}

/* ---- writes ---- */

static void write__short_or_not_now_at_any_piece__all_durable(void **state)
{
    const struct plan plans[] = {
        {.fault = FAULT_SHORT, .value = 4096},
        {.fault = FAULT_SHORT, .value = 9000},
        {.fault = FAULT_ERROR, .value = EAGAIN},
        {.fault = FAULT_ERROR, .value = EINTR},
        {.fault = FAULT_BREAK},
    };
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    f.options.capacity_bytes = 128 * KVF_MIB;
    fixture_open(&f);
    unsigned count = 0;
    for (size_t p = 0; p < 5; p++)
        for (int at = 0; at < 5; at++) {
            struct plan plan = plans[p];
            plan.kind = at == 4 && plan.fault != FAULT_SHORT ? KVF_IO_SYNC : KVF_IO_WRITE;
            plan.first = at == 4 ? 0 : at;
            plan.count = 1;
            plan.fd = -1;
            faulty_arm(plan);
            assert_int_equal(fixture_put(&f, &block, count++, 1200 << 10).code, KVF_OK);
            faulty_disarm();
            assert_int_equal(fixture_get(&f, &block, 1200 << 10).code, KVF_OK);
        }
    assert_false(fixture_stats(&f).read_only);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, count);
    for (unsigned i = 0; i < count; i++) {
        block.seed = i;
        block.location = fixture_find(&f, i)->location;
        assert_int_equal(fixture_get(&f, &block, 1200 << 10).code, KVF_OK);
    }
    fixture_fini(&f);
}

static void expect_read_only(struct fixture *f, struct fixture_block *good, enum kvf_code code,
                             int error)
{
    struct fixture_block block;
    assert_true(fixture_stats(f).read_only);
    struct kvf_status status = fixture_put(f, &block, 99, 5000);
    assert_int_equal(status.code, code);
    assert_int_equal(status.detail, error);
    assert_int_equal(fixture_get(f, good, 5000).code, KVF_OK);
    assert_int_equal(fixture_stats(f).writes_in_flight, 0);
}

static void write__fails__drive_is_read_only_and_reads_go_on(void **state)
{
    const struct {
        enum kvf_io_kind kind;
        int error;
        enum kvf_code code;
    } cases[] = {
        {KVF_IO_WRITE, EIO, KVF_IO},          {KVF_IO_WRITE, ENOSPC, KVF_NO_SPACE},
        {KVF_IO_WRITE, EDQUOT, KVF_NO_SPACE}, {KVF_IO_SYNC, EIO, KVF_IO},
        {KVF_IO_SYNC, ENOSPC, KVF_NO_SPACE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f;
        struct fixture_block good;
        static struct fixture_block blocks[10];
        init(&f, state, 8 * KVF_MIB);
        fixture_open(&f);
        assert_int_equal(fixture_put(&f, &good, 1, 5000).code, KVF_OK);
        faulty_arm((struct plan){.kind = cases[i].kind,
                                 .first = 0,
                                 .count = 1,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = cases[i].error});
        for (unsigned b = 0; b < 10; b++)
            fixture_append(&f, &blocks[b], 10 + b, 600 << 10, b * 700 * UINT64_C(1024));
        fixture_wait(&f, blocks, 10);
        for (unsigned b = 0; b < 10; b++) {
            assert_int_equal(blocks[b].status.code, cases[i].code);
            assert_int_equal(blocks[b].status.detail, cases[i].error);
        }
        assert_int_equal(fixture_stats(&f).dropped, 10);
        expect_read_only(&f, &good, cases[i].code, cases[i].error);
        faulty_disarm();
        fixture_reopen(&f); /* a start tries again */
        assert_non_null(fixture_find(&f, 1));
        assert_false(fixture_stats(&f).read_only);
        assert_int_equal(fixture_put(&f, &blocks[0], 50, 5000).code, KVF_OK);
        fixture_fini(&f);
    }
}

/* Sealing or marking a segment free fails: nothing that ended OK is lost. */
static void write__service_of_segments_fails__nothing_durable_is_lost(void **state)
{
    for (int at = 0; at < 60; at += 3) {
        struct fixture f;
        static struct fixture_block blocks[24];
        init(&f, state, 24 * 700 * 1024);
        f.options.read_threads = 1;
        f.options.capacity_bytes = 10 * KVF_MIB; /* a segment more than 11 blocks need */
        f.frees_at_once = at >= 30;
        fixture_open(&f);
        faulty_arm((struct plan){.kind = KVF_IO_WRITE,
                                 .first = at,
                                 .count = 1,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = EIO});
        unsigned right = 0;
        for (unsigned b = 0; b < (f.frees_at_once ? 24 : 11); b++) {
            fixture_append(&f, &blocks[b], b, 600 << 10, 0);
            fixture_wait(&f, &blocks[b], 1);
            assert_true(kvf_is_ok(blocks[b].status) || blocks[b].status.code == KVF_IO);
            right += kvf_is_ok(blocks[b].status);
        }
        assert_true(atomic_load(&faults.met) == 0 || fixture_stats(&f).read_only);
        faulty_disarm();
        fixture_reopen(&f);
        if (!f.frees_at_once || f.reclaim_count == 0)
            for (unsigned b = 0; b < right; b++)
                assert_non_null(fixture_find(&f, b));
        fixture_expect_found(&f);
        fixture_fini(&f);
    }
}

/* Whatever was under way when it failed: once the cause is gone the drive is written again without a restart, in
 * segments that recovery tells apart. `good` is what ended OK. */
static void write__cause_of_a_failure_goes__writable_again_and_nothing_lost(void **state)
{
    const int errors[] = {EIO, ENOSPC, EDQUOT};
    for (int at = 0; at < 24; at++) {
        struct fixture f;
        static struct fixture_block blocks[60];
        bool good[60] = {false};
        unsigned count = 0;
        uint64_t dropped = 0;
        init(&f, state, 24 * 700 * 1024);
        f.options.read_threads = 1;
        f.options.probe_ms = 20;
        f.options.capacity_bytes = 24 * KVF_MIB;
        fixture_open(&f);
        assert_int_equal(fixture_put(&f, &blocks[count], count, 5000).code, KVF_OK);
        good[count++] = true;
        faulty_arm((struct plan){.kind = at % 4 == 3 ? KVF_IO_SYNC : KVF_IO_WRITE,
                                 .first = at / 2,
                                 .count = 1000000,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = errors[at % 3]});
        for (unsigned i = 0; i < 20; i++, count++)
            fixture_append(&f, &blocks[count], count, (i % 3 + 1) * 70000, i * 700 * 1024);
        fixture_wait(&f, blocks, count);
        for (unsigned i = 1; i < count; i++) {
            good[i] = kvf_is_ok(blocks[i].status);
            dropped += !good[i];
            assert_true(good[i] || blocks[i].status.detail == errors[at % 3]);
        }
        if (fixture_stats(&f).read_only) {
            (void)usleep(60000); /* probes fail, too */
            assert_true(fixture_stats(&f).read_only);
            assert_int_equal(fixture_put(&f, &blocks[count], count, 5000).detail, errors[at % 3]);
            dropped++;
            count++;
        }
        assert_int_equal(fixture_stats(&f).dropped, dropped);
        faulty_disarm();
        fixture_wait_writable(&f);
        for (unsigned i = 0; i < 20; i++, count++) {
            assert_int_equal(fixture_put(&f, &blocks[count], count, 200 << 10).code, KVF_OK);
            good[count] = true;
        }
        assert_int_equal(fixture_stats(&f).dropped, dropped);
        if (at % 2 == 0)
            fixture_crash(&f);
        else
            fixture_close(&f);
        fixture_open(&f);
        for (unsigned i = 0; i < count; i++)
            if (good[i])
                assert_non_null(fixture_find(&f, i));
        fixture_expect_found(&f);
        fixture_fini(&f);
    }
}

/* Sealing or freeing failed, and all segments are full or given back: the probe is what was due. */
static void write__service_fails_for_a_while__segments_come_back(void **state)
{
    for (int at = 0; at < 12; at++) {
        struct fixture f;
        struct fixture_block block;
        init(&f, state, KVF_MIB);
        f.options.read_threads = 1;
        f.options.probe_ms = 5;
        f.options.capacity_bytes = 6 * KVF_MIB;
        f.frees_at_once = true;
        fixture_open(&f);
        faulty_arm((struct plan){.kind = KVF_IO_WRITE,
                                 .first = 2 + at,
                                 .count = 3,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = ENOSPC});
        unsigned failed = 0;
        for (unsigned i = 0; i < 40; i++) {
            struct kvf_status status = fixture_put(&f, &block, i, 600 << 10);
            failed += !kvf_is_ok(status);
            if (kvf_is_ok(status))
                assert_int_equal(fixture_get(&f, &block, 600 << 10).code, KVF_OK);
            else
                fixture_wait_writable(&f);
        }
        assert_int_equal(atomic_load(&faults.met), 3);
        assert_int_equal(fixture_stats(&f).dropped, failed);
        assert_true(failed <= 3);
        fixture_reopen(&f);
        assert_non_null(fixture_find(&f, 39));
        fixture_fini(&f);
    }
}

static void write__one_of_two_drives_fails__the_other_takes_what_was_queued(void **state)
{
    struct fixture f;
    static struct fixture_block blocks[40];
    init(&f, state, 24 * KVF_MIB);
    fixture_add_drive(&f);
    f.options.capacity_bytes = 64 * KVF_MIB;
    fixture_open(&f);
    int fd = f.store->drives[0].segments[0].fd; /* the first one that is taken */
    faulty_arm((struct plan){.kind = KVF_IO_WRITE,
                             .first = 0,
                             .count = 1,
                             .fd = fd,
                             .fault = FAULT_ERROR,
                             .value = EIO});
    for (unsigned i = 0; i < 40; i++)
        fixture_append(&f, &blocks[i], i, 500 << 10, i * 512 * UINT64_C(1024));
    fixture_wait(&f, blocks, 40);
    unsigned dropped = 0;
    for (unsigned i = 0; i < 40; i++) {
        if (!kvf_is_ok(blocks[i].status)) {
            dropped++;
            continue;
        }
        assert_int_equal(blocks[i].location.drive, 1);
        assert_int_equal(fixture_get(&f, &blocks[i], 500 << 10).code, KVF_OK);
    }
    struct kvf_drive_stats stats;
    kvf_store_stats(f.store, 1, &stats);
    assert_false(stats.read_only);
    assert_int_equal(stats.writes_in_flight, 0);
    stats = fixture_stats(&f);
    assert_true(stats.read_only);
    assert_int_equal(stats.dropped, dropped);
    assert_true(dropped >= 1 && dropped < 40);
    assert_int_equal(stats.writes_in_flight, 0);
    assert_int_equal(fixture_put(&f, &blocks[0], 77, 5000).code, KVF_OK);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read__short_at_any_piece__asks_for_the_rest),
        cmocka_unit_test(read__always_short__still_every_byte),
        cmocka_unit_test(read__less_than_a_page_for_ever__ends_with_an_error),
        cmocka_unit_test(read__kernel_says_not_now__retried_but_not_for_ever),
        cmocka_unit_test(read__error_at_any_piece__ends_that_read_only),
        cmocka_unit_test(read__one_piece_hangs__others_pass_it),
        cmocka_unit_test(read__ring_fails_at_any_piece__goes_on_in_another_ring),
        cmocka_unit_test(ring__fails_and_no_other_can_be_opened__goes_on_by_pread),
        cmocka_unit_test(read__faults_at_a_rate__no_wrong_byte_and_counted_exactly),
        cmocka_unit_test(write__faults_at_a_rate__all_durable),
        cmocka_unit_test(read__misdirected_to_another_record__not_the_checksum_asked_for),
        cmocka_unit_test(read__failed_with_a_piece_outstanding__ends_only_when_it_is_back),
        cmocka_unit_test(write__short_or_not_now_at_any_piece__all_durable),
        cmocka_unit_test(write__fails__drive_is_read_only_and_reads_go_on),
        cmocka_unit_test(write__service_of_segments_fails__nothing_durable_is_lost),
        cmocka_unit_test(write__cause_of_a_failure_goes__writable_again_and_nothing_lost),
        cmocka_unit_test(write__service_fails_for_a_while__segments_come_back),
        cmocka_unit_test(write__one_of_two_drives_fails__the_other_takes_what_was_queued),
    };
    return HOST_RUN_TESTS("faults", tests);
}
