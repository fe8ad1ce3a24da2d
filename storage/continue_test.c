/* The open segment goes on, after writes that failed and after starts: what was not filled of it is not given away, and
 * what a crash or a failed write left behind its last record is never found. */
#include "base/test.h"
#include "storage/faulty.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    COUNT = 16,
    A_SEGMENT = 6
}; /* of the last segment a quarter is kept for what is carried over */

#define LENGTH (300 << 10) /* 75 pages: 6 a segment, with room for a few pages more */

static struct fixture_block blocks[COUNT];

/* A few segments, and nobody who gives one back: what does not fit waits until the test fails. */
static void start(struct fixture *f, void **state, unsigned segments)
{
    faulty_init(host_engine(state));
    fixture_init(f, &faulty_engine, 8 * KVF_MIB);
    f->options.read_threads = 1;
    f->options.probe_ms = 5;
    f->options.capacity_bytes = segments * 2 * KVF_MIB;
    fixture_open(f);
}

static void put(struct fixture *f, unsigned i)
{
    assert_int_equal(fixture_put(f, &blocks[i], i, LENGTH).code, KVF_OK);
}

static void damaged(void *context, const struct kvf_verify_damage *damage)
{
    (void)context;
    print_error("%s at %llu: %s\n", damage->file, (unsigned long long)damage->offset, damage->what);
}

/* Whatever state it was left in: nothing of it is damage. */
static void expect_undamaged(struct fixture *f)
{
    struct kvf_verify_options options = {.paths = f->paths, .path_count = 1, .damaged = damaged};
    struct kvf_verify_result result;
    assert_int_equal(kvf_store_verify(&options, &result, &f->why).code, KVF_OK);
    assert_int_equal(result.damaged, 0);
}

/* Blocks 0 to count - 1, each once and in its segment. */
static void expect_all(struct fixture *f, unsigned count)
{
    assert_int_equal(f->found_count, count);
    for (unsigned i = 0; i < count; i++) {
        assert_non_null(fixture_find(f, i));
        assert_int_equal(fixture_find(f, i)->location.segment, i / A_SEGMENT);
    }
    fixture_expect_found(f);
}

/* ---- writes that fail ---- */

enum { FAILING = 6, FIRST_FAILING = 1000 };

static bool failed[100];

/* Up to three groups are under way, and fail: before a byte is written, half of it, or when all of it is. */
static void fail_some(struct fixture *f, unsigned round, unsigned first)
{
    static struct fixture_block failing[FAILING];
    const struct plan plans[] = {
        {.kind = KVF_IO_SYNC, .fault = FAULT_ERROR, .value = EIO},
        {.kind = KVF_IO_WRITE, .fault = FAULT_ERROR, .value = ENOSPC},
        {.kind = KVF_IO_WRITE, .first = 1, .fault = FAULT_ERROR, .value = EDQUOT},
    };
    struct plan plan = plans[round % 3];
    plan.fd = -1;
    plan.count = 1;
    faulty_arm(plan);
    for (unsigned i = 0; i < FAILING; i++)
        fixture_append(f, &failing[i], FIRST_FAILING + first + i, 200 << 10,
                       KVF_MIB + i * (256 << 10));
    fixture_wait(f, failing, FAILING);
    assert_int_equal(atomic_load(&faults.met), 1);
    for (unsigned i = 0; i < FAILING; i++)
        failed[first + i] = !kvf_is_ok(failing[i].status);
    faulty_disarm();
    fixture_wait_writable(f);
}

static void write__fails_now_and_then__segment_goes_on_where_it_was(void **state)
{
    for (unsigned how = 0; how < 2; how++) {
        struct fixture f;
        struct fixture_block lost;
        start(&f, state, 3);
        for (unsigned i = 0; i < COUNT; i++) {
            put(&f, i);
            if (i % A_SEGMENT != A_SEGMENT - 1) {
                faulty_arm((struct plan){.kind = how == 0 ? KVF_IO_SYNC : KVF_IO_WRITE,
                                         .count = 1,
                                         .fd = -1,
                                         .fault = FAULT_ERROR,
                                         .value = how == 0 ? EIO : ENOSPC});
                assert_false(kvf_is_ok(fixture_put(&f, &lost, 500 + i, LENGTH)));
                fixture_wait_writable(&f);
            }
        }
        if (how == 0)
            fixture_crash(&f);
        else
            fixture_close(&f);
        expect_undamaged(&f);
        fixture_open(&f);
        expect_all(&f, COUNT);
        fixture_fini(&f);
    }
}

/* The groups of what failed may be whole on the drive: they are not found behind the new ones. */
static void write__groups_fail_when_they_are_written__never_found(void **state)
{
    for (unsigned round = 0; round < 12; round++) {
        struct fixture f;
        unsigned count = 2 + round / 3;
        start(&f, state, 8);
        for (unsigned i = 0; i < count; i++) {
            put(&f, i);
            fail_some(&f, round + i, FAILING * i);
        }
        fixture_crash(&f);
        expect_undamaged(&f);
        fixture_open(&f);
        for (unsigned i = 0; i < count; i++)
            assert_non_null(fixture_find(&f, i));
        for (unsigned i = 0; i < FAILING * count; i++)
            assert_true((fixture_find(&f, FIRST_FAILING + i) == NULL) == failed[i]);
        fixture_expect_found(&f);
        fixture_fini(&f);
    }
}

/* ---- starts ---- */

static void end(struct fixture *f, bool crash)
{
    if (crash)
        fixture_crash(f);
    else
        fixture_close(f);
    expect_undamaged(f);
}

/* One block a start, as if it were killed each time, or ended, or both: the segments fill as without any start. */
static void start__again_and_again__goes_on_with_the_newest_segment(void **state)
{
    for (unsigned how = 0; how < 3; how++) {
        struct fixture f;
        start(&f, state, 3);
        for (unsigned i = 0; i < COUNT; i++) {
            put(&f, i);
            end(&f, how == 2 ? i % 2 == 0 : how == 1);
            fixture_open(&f);
            expect_all(&f, i + 1);
        }
        for (unsigned i = 0; i < f.reclaim_count; i++)
            assert_int_equal(f.reclaims[i].segment,
                             0); /* as without a start: the third one was taken */
        fixture_fini(&f);
    }
}

/* A start that writes nothing leaves everything as it was. */
static void start__nothing_is_written__costs_no_room(void **state)
{
    struct fixture f;
    start(&f, state, 3);
    put(&f, 0);
    for (unsigned i = 0; i < 20; i++) {
        end(&f, i % 3 == 0);
        fixture_open(&f);
        expect_all(&f, 1);
    }
    put(&f, 1);
    assert_int_equal(blocks[1].location.segment, 0);
    assert_in_range(blocks[1].location.offset, blocks[0].location.offset + LENGTH,
                    blocks[0].location.offset + LENGTH + 6 * KVF_PAGE);
    fixture_fini(&f);
}

static void flip(const struct fixture *f, const struct fixture_block *block, uint64_t before)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "segment-%05u", block->location.segment);
    fixture_flip(f, name, block->location.offset - before);
}

/* What a crash has cut off stays lost, is never damage, and what comes behind it is found after the next crash. */
static void start__after_a_torn_group__goes_on_behind_it(void **state)
{
    const uint64_t cuts[] = {0, KVF_PAGE - 70}; /* in the payload, in the group's page */
    for (unsigned round = 0; round < 4; round++) {
        struct fixture f;
        struct fixture_block torn[2];
        start(&f, state, 8);
        put(&f, 0);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(fixture_put(&f, &torn[i], 100 + i, 5000).code, KVF_OK);
        fixture_crash(&f);
        flip(&f, &torn[round / 2], cuts[round % 2]);
        expect_undamaged(&f);
        for (unsigned i = 1; i < 13; i++) { /* more than were under way behind it, in two starts */
            if (i == 1 || i == 8) {
                fixture_open(&f);
                assert_int_equal(f.found_count, i + 1);
            }
            put(&f, i);
            if (i == 7 || i == 12)
                end(&f, true);
        }
        fixture_open(&f);
        assert_int_equal(f.found_count, 13 + 1);
        for (unsigned i = 0; i < 13; i++)
            assert_non_null(fixture_find(&f, i));
        assert_null(fixture_find(&f, 100 + round / 2));
        assert_non_null(fixture_find(&f, 100 + 1 - round / 2));
        fixture_expect_found(&f);
        fixture_fini(&f);
    }
}

/* Going on takes two writes, each durable before the next; a start finds all wherever it ends. */
static void start__going_on_fails_at_each_step__found_and_tried_again(void **state)
{
    const enum kvf_io_kind kinds[] = {KVF_IO_WRITE, KVF_IO_SYNC};
    for (unsigned round = 0; round < 16; round++) {
        struct fixture f;
        struct fixture_block lost;
        bool crash = round & 1, again = round & 2;
        start(&f, state, 3);
        put(&f, 0);
        end(&f, crash);
        fixture_open(&f);
        faulty_arm((struct plan){.kind = kinds[round / 4 % 2],
                                 .first = (int)round / 8,
                                 .count = again ? 1 : 1000000,
                                 .fd = -1,
                                 .fault = FAULT_ERROR,
                                 .value = ENOSPC});
        assert_int_equal(fixture_put(&f, &lost, 100, LENGTH).code, KVF_NO_SPACE);
        if (again) {
            fixture_wait_writable(&f);
            put(&f, 1);
            faulty_disarm();
        }
        end(&f, true);
        faulty_disarm();
        fixture_open(&f);
        expect_all(&f, again ? 2 : 1);
        put(&f, again ? 2 : 1);
        assert_int_equal(blocks[again ? 2 : 1].location.segment, 0);
        fixture_reopen(&f);
        expect_all(&f, again ? 3 : 2);
        fixture_fini(&f);
    }
}

/* Recovery does not come to an end: what is put goes elsewhere. */
static void start__recovery_is_cancelled__another_segment_is_filled(void **state)
{
    struct fixture f;
    start(&f, state, 3);
    put(&f, 0);
    fixture_crash(&f);
    assert_true(kvf_is_ok(fixture_try_open(&f)));
    assert_true(kvf_is_ok(fixture_start_recovery(&f)));
    fixture_append(&f, &blocks[1], 1, LENGTH, 0);
    kvf_store_recover_cancel(f.store);
    fixture_wait(&f, &blocks[1], 1);
    assert_true(kvf_is_ok(blocks[1].status));
    fixture_wait_recovery(&f);
    end(&f, true);
    fixture_open(&f);
    assert_int_equal(f.found_count, 2);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static atomic_uint syncs; /* of segments */

/* In libc's place: counts, and does it. */
int fdatasync(int fd)
{
    char link[64], path[256];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof(path) - 1);
    path[bytes > 0 ? bytes : 0] = '\0';
    if (strstr(path, "/segment-") != NULL)
        atomic_fetch_add(&syncs, 1);
    return (int)syscall(SYS_fdatasync, fd);
}

/* A kill may have left them in the drive's cache only: that they are told makes them durable. */
static void start__after_a_crash__syncs_what_it_has_found(void **state)
{
    struct fixture f;
    start(&f, state, 3);
    put(&f, 0);
    fixture_crash(&f);
    unsigned before = atomic_load(&syncs);
    fixture_open(&f);
    expect_all(&f, 1);
    assert_int_equal(atomic_load(&syncs) - before, 1);
    end(&f, false);
    before = atomic_load(&syncs);
    fixture_open(&f); /* sealed: all of it was synced */
    expect_all(&f, 1);
    assert_int_equal(atomic_load(&syncs) - before, 0);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write__fails_now_and_then__segment_goes_on_where_it_was),
        cmocka_unit_test(start__again_and_again__goes_on_with_the_newest_segment),
        cmocka_unit_test(start__nothing_is_written__costs_no_room),
        cmocka_unit_test(start__after_a_crash__syncs_what_it_has_found),
        cmocka_unit_test(start__after_a_torn_group__goes_on_behind_it),
        cmocka_unit_test(start__going_on_fails_at_each_step__found_and_tried_again),
        cmocka_unit_test(start__recovery_is_cancelled__another_segment_is_filled),
        cmocka_unit_test(write__groups_fail_when_they_are_written__never_found),
    };
    return HOST_RUN_TESTS("continue", tests);
}
