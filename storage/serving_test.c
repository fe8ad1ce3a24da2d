/* A store that serves while it recovers: what is appended, read, freed, cancelled or killed meanwhile; what cannot be
 * read. */
#include "base/test.h"
#include "storage/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEGMENTS 10u
#define PER_SEGMENT 6u /* blocks of LENGTH in a segment of 2 MiB */
#define LENGTH (UINT64_C(300) << 10)
#define COUNT 40u /* six segments full, four blocks in the seventh, three segments free */

static struct fixture_block blocks[COUNT], more[24];

static void start(struct fixture *f, bool crash)
{
    fixture_init(f, NULL, 24 * LENGTH);
    f->frees_at_once = true;
    f->options.capacity_bytes = SEGMENTS * f->options.segment_bytes;
    fixture_open(f);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(fixture_put(f, &blocks[i], i, LENGTH).code, KVF_OK);
    assert_int_equal(f->reclaim_count, 0);
    if (crash)
        fixture_crash(f);
    else
        fixture_close(f);
}

static void open_only(struct fixture *f)
{
    assert_int_equal(fixture_try_open(f).code, KVF_OK);
    assert_true(kvf_is_ok(fixture_start_recovery(f)));
}

static void expect_all_right(struct fixture *f, unsigned first, unsigned count)
{
    for (unsigned i = first; i < count; i++) {
        const struct fixture_found *found = fixture_find(f, i);
        assert_non_null(found);
        struct fixture_block block = {.seed = i, .location = found->location};
        assert_int_equal(fixture_get(f, &block, LENGTH).code, KVF_OK);
    }
}

/* ---- appends and reads ---- */

static void append__during_recovery__is_durable_and_what_was_there_is_found(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, true);
    open_only(&f);
    assert_true(fixture_stats(&f).recovering);
    assert_int_equal(fixture_put(&f, &more[0], 1000, LENGTH).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &more[0], LENGTH).code, KVF_OK);
    fixture_wait_recovery(&f);
    assert_false(fixture_stats(&f).recovering);
    assert_int_equal(f.found_count, COUNT); /* what is appended meanwhile is not told */
    assert_int_equal(f.result.records, COUNT);
    assert_int_equal(f.result.segments, 7);
    assert_int_equal(f.result.scanned, 1);
    assert_int_equal(fixture_stats(&f).used_bytes, (COUNT + 1) * LENGTH);
    expect_all_right(&f, 0, COUNT);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, COUNT + 1);
    fixture_fini(&f);
}

static struct fixture_block early;
static bool early_started;

static void read_the_first(struct fixture *f)
{
    static struct kvf_read *reads[] = {&early.read};
    static struct kvf_read_set set = {.reads = reads, .count = 1};
    if (early_started)
        return;
    early_started = true;
    early = (struct fixture_block){.location = f->found[0].location};
    memcpy(&early.seed, f->found[0].record.key.bytes, sizeof(early.seed));
    fixture_aim(f, &early, LENGTH, 0);
    kvf_store_read(f->store, &set);
}

static void read__of_what_was_just_told__is_served(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, false);
    f.on_found = read_the_first;
    early_started = false;
    open_only(&f);
    fixture_wait_recovery(&f);
    fixture_wait(&f, &early, 1);
    assert_int_equal(early.status.code, KVF_OK);
    assert_true(fixture_is_right(&f, &early));
    fixture_fini(&f);
}

/* ---- room ---- */

/* Every record of the segment that is asked back was told before, and no older segment is left. */
static void reclaim_and_check(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    struct fixture *f = context;
    unsigned told = 0;
    for (unsigned i = 0; i < f->found_count; i++)
        told += f->found[i].location.sequence == sequence;
    assert_int_equal(told, PER_SEGMENT);
    assert_int_equal(sequence,
                     blocks[f->reclaim_count * PER_SEGMENT].location.sequence); /* oldest first */
    f->reclaims[f->reclaim_count++] =
        (struct kvf_location){.drive = drive, .segment = segment, .sequence = sequence};
    kvf_store_free(f->store, drive, segment, sequence);
}

static void
append__more_than_is_free_during_recovery__takes_the_oldest_once_they_are_told(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, true);
    f.options.reclaim = reclaim_and_check;
    open_only(&f);
    for (unsigned i = 0; i < 24; i++) /* four segments, three are free */
        fixture_append(&f, &more[i], 1000 + i, LENGTH, i * LENGTH);
    fixture_wait(&f, more, 24);
    for (unsigned i = 0; i < 24; i++)
        assert_int_equal(more[i].status.code, KVF_OK);
    fixture_wait_recovery(&f);
    assert_int_equal(f.found_count, COUNT);
    unsigned freed = f.reclaim_count;
    /* The fourth segment; how far ahead of need depends on who is faster. */
    assert_true(freed >= 1);
    f.options.reclaim = NULL;
    fixture_reopen(&f);
    assert_null(fixture_find(&f, 0));
    expect_all_right(&f, freed * PER_SEGMENT, COUNT);
    for (unsigned i = 0; i < 24; i++)
        assert_non_null(fixture_find(&f, 1000 + i));
    fixture_fini(&f);
}

/* ---- ending early ---- */

static void cancel_after_some(struct fixture *f)
{
    if (f->found_count == 9)
        kvf_store_recover_cancel(f->store);
}

static void cancel__in_the_middle__nothing_more_is_told_and_nothing_is_lost(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, true);
    f.on_found = cancel_after_some;
    open_only(&f);
    fixture_wait_recovery(&f);
    assert_true(f.result.cancelled);
    assert_int_equal(f.found_count, 9);
    assert_true(fixture_stats(&f).recovering);
    assert_int_equal(fixture_put(&f, &more[0], 1000, LENGTH).code, KVF_OK);
    fixture_close(&f);
    f.on_found = NULL;
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT + 1);
    expect_all_right(&f, 0, COUNT);
    fixture_fini(&f);
}

static void close__before_anything_was_told__nothing_is_lost(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, true);
    for (int i = 0; i < 5; i++) {
        open_only(&f);
        fixture_close(&f); /* cancels */
        assert_int_equal(f.found_count, 0);
    }
    fixture_open(&f);
    assert_false(f.result.cancelled);
    assert_int_equal(f.found_count, COUNT);
    expect_all_right(&f, 0, COUNT);
    fixture_fini(&f);
}

static void store__killed_during_recovery__the_next_one_finds_all(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, true);
    for (int rounds = 0; rounds < 12; rounds++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (!kvf_is_ok(fixture_try_open(&f)) || !kvf_is_ok(fixture_start_recovery(&f)))
                _exit(2);
            for (int i = 0; i < rounds; i++)
                kvf_loop_run_once(f.loop, 5);
            (void)raise(SIGKILL);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
    }
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT);
    expect_all_right(&f, 0, COUNT);
    fixture_fini(&f);
}

/* ---- what cannot be read ---- */

/* Reads behind `bytes` fail from now on: the store has the file open and does not look again. */
static void cut(const struct fixture *f, uint32_t segment, uint64_t bytes)
{
    char name[32], path[128];
    (void)snprintf(name, sizeof(name), "segment-%05u", segment);
    fixture_file_path(f, name, path);
    assert_int_equal(truncate(path, (off_t)bytes), 0);
}

static void recover__segment_unreadable__is_named_and_neither_filled_nor_freed(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, false);
    assert_int_equal(fixture_try_open(&f).code, KVF_OK);
    const struct kvf_location whole_gone = blocks[0].location, half_gone = blocks[8].location;
    cut(&f, whole_gone.segment, 0);
    cut(&f, half_gone.segment, half_gone.offset);
    assert_true(kvf_is_ok(fixture_start_recovery(&f)));
    fixture_wait_recovery(&f);
    assert_int_equal(f.result.unreadable, 2);
    assert_non_null(strstr(f.result.why.text, f.path));
    assert_false(fixture_stats(&f).read_only);
    assert_int_equal(f.found_count, COUNT - PER_SEGMENT - 4); /* two were found by scanning */
    expect_all_right(&f, 6, 8);
    expect_all_right(&f, 12, COUNT);
    for (unsigned i = 0; i < 24; i++) {
        assert_int_equal(fixture_put(&f, &more[i], 1000 + i, LENGTH).code, KVF_OK);
        assert_int_not_equal(more[i].location.segment, whole_gone.segment);
        assert_int_not_equal(more[i].location.segment, half_gone.segment);
    }
    fixture_fini(&f);
}

static void append__every_segment_is_unreadable__drive_is_read_only(void **state)
{
    struct fixture f;
    (void)state;
    start(&f, false);
    assert_int_equal(fixture_try_open(&f).code, KVF_OK);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        cut(&f, i, 0);
    assert_true(kvf_is_ok(fixture_start_recovery(&f)));
    fixture_wait_recovery(&f);
    assert_int_equal(f.result.unreadable, SEGMENTS);
    assert_int_equal(fixture_put(&f, &more[0], 1000, LENGTH).code, KVF_NO_SPACE);
    assert_true(fixture_stats(&f).read_only);
    fixture_fini(&f);
}

/* ---- many ---- */

static void recover__many_small_records__all_told_once(void **state)
{
    enum { MANY = 3000, AT_ONCE = 250 };
    static struct fixture_block small[AT_ONCE];
    static bool seen[MANY];
    struct fixture f;
    (void)state;
    for (int crash = 0; crash < 2; crash++) {
        fixture_init(&f, NULL, AT_ONCE * KVF_PAGE);
        f.options.capacity_bytes = 32 * KVF_MIB;
        fixture_open(&f);
        for (unsigned done = 0; done < MANY; done += AT_ONCE) {
            for (unsigned i = 0; i < AT_ONCE; i++)
                fixture_append(&f, &small[i], done + i, 1 + i, i * KVF_PAGE);
            fixture_wait(&f, small, AT_ONCE);
        }
        if (crash)
            fixture_crash(&f);
        else
            fixture_close(&f);
        fixture_open(&f);
        assert_int_equal(f.found_count, MANY);
        memset(seen, 0, sizeof(seen));
        for (unsigned i = 0; i < MANY; i++) {
            uint64_t seed;
            memcpy(&seed, f.found[i].record.key.bytes, sizeof(seed));
            assert_true(seed < MANY && !seen[seed]);
            seen[seed] = true;
        }
        fixture_fini(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append__during_recovery__is_durable_and_what_was_there_is_found),
        cmocka_unit_test(read__of_what_was_just_told__is_served),
        cmocka_unit_test(
            append__more_than_is_free_during_recovery__takes_the_oldest_once_they_are_told),
        cmocka_unit_test(cancel__in_the_middle__nothing_more_is_told_and_nothing_is_lost),
        cmocka_unit_test(close__before_anything_was_told__nothing_is_lost),
        cmocka_unit_test(store__killed_during_recovery__the_next_one_finds_all),
        cmocka_unit_test(recover__segment_unreadable__is_named_and_neither_filled_nor_freed),
        cmocka_unit_test(append__every_segment_is_unreadable__drive_is_read_only),
        cmocka_unit_test(recover__many_small_records__all_told_once),
    };
    return cmocka_run_group_tests_name("recovery while serving", tests, NULL, NULL);
}
