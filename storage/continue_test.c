/* The open segment goes on, after writes that failed and after starts: what was not filled of it is not given away, and
 * what a crash or a failed write left behind its last record is never found. */
#include "base/test.h"
#include "storage/faulty.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write__fails_now_and_then__segment_goes_on_where_it_was),
        cmocka_unit_test(write__groups_fail_when_they_are_written__never_found),
    };
    return HOST_RUN_TESTS("continue", tests);
}
