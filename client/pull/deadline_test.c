/* Deadlines and cancelling: every result in time, every byte of memory given back. */
#include "client/pull/source_fixture.h"

#include "proto/peer.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void note(void *flag)
{
    *(bool *)flag = true;
}

/* ---- deadlines ---- */

/* A deadline by which the Read has gone out, on a busy host too. */
#define ASKED_MS 1000

static void expect_in_time(const struct wanted *wanted)
{
    assert_true(wanted->ended_ns >= wanted->pull.deadline_ns);
    assert_true(wanted->ended_ns < wanted->pull.deadline_ns + 3 * KVF_NS_PER_S);
}

static void deadline__silent_source__misses_in_time(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 4096);
    fx.answer = ANSWER_SILENT;
    want(&wanted, 0, 3, ASKED_MS);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    expect_in_time(&wanted);
    assert_all_missed(&wanted, KVF_DEADLINE);
    run_until(fx.log.releases == 1);
    run_until(fx.stats.quarantine_bytes == 0);
    assert_int_equal(fx.log.reads, 1); /* not asked for again */
    assert_int_equal(fx.log.hellos, 1);
    assert_int_equal(fx.stats.reads, 0);

    /* The session is as good as before. */
    fx.answer = ANSWER_GRANT;
    want_and_wait(&wanted, 0, 3);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.hellos, 1);
}

static void deadline__stalled_block__others_have_come(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 2 * KVF_MIB);
    fx.blocks[1].stall_at = KVF_MIB;
    want(&wanted, 0, 3, 300);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    expect_in_time(&wanted);
    assert_here(&wanted, 0);
    assert_missed(&wanted, 1, KVF_DEADLINE);
    assert_here(&wanted, 2);
    run_until(fx.log.releases == 1);
    run_until(wanted.blocks[1].state == KVF_PULL_ENDED);
    assert_int_equal(wanted.freed, wanted.told_state[1] == KVF_PULL_QUARANTINED ? 1 : 0);
    assert_int_equal(fx.stats.quarantine_bytes, 0);
    assert_true(kvf_source_is_idle(fx.source));
}

/* What comes after the deadline must not reach memory that is the caller's again. */
static void deadline__late_bytes__stay_out(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 2 * KVF_MIB);
    fx.blocks[0].stall_at = KVF_MIB;
    want(&wanted, 0, 1, ASKED_MS);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks[0].state == KVF_PULL_ENDED);
    uint8_t *at = kvf_extent_at(wanted.blocks[0].extent);
    memset(at, 0xab, 2 * KVF_MIB);
    fixture_land(0);
    run_for_ms(100);
    for (size_t i = 0; i < 2 * KVF_MIB; i++)
        assert_int_equal(at[i], 0xab);
}

static void deadline__bytes_but_no_grants__miss(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.answer = ANSWER_GRANT_LATER;
    want(&wanted, 0, 2, ASKED_MS);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    expect_in_time(&wanted);
    assert_all_missed(&wanted, KVF_DEADLINE);
    assert_int_equal(wanted.told_state[0], KVF_PULL_ENDED); /* the lane was done with it */
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.log.cancels, 0);
}

/* The Grants crossed with our Release: the source has counted them, so do we. */
static void deadline__grants_cross_release__are_counted(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.answer = ANSWER_GRANT_LATER;
    want(&wanted, 0, 2, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    run_for_ms(50);
    kvf_pull_cancel(&wanted.pull);
    fixture_grant(); /* before it has seen the Release */
    run_until(wanted.ended && fx.log.releases == 1 && fx.stats.reads == 1);
    assert_all_missed(&wanted, KVF_CANCELLED);
    fx.answer = ANSWER_GRANT;
    want_and_wait(&wanted, 0, 2);
    assert_int_equal(fx.log.hellos, 1);
}

static void deadline__passed_already__miss_without_asking(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    want_and_wait(&wanted, 0, 2);
    want(&wanted, 0, 2, 0);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_all_missed(&wanted, KVF_DEADLINE);
    assert_int_equal(fx.log.reads, 1);
}

static void deadline__while_connecting__in_time(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    fx.welcome = WELCOME_SILENT;
    want(&wanted, 0, 2, 100);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_all_missed(&wanted, KVF_DEADLINE);
    assert_int_equal(wanted.told_state[0], KVF_PULL_ENDED);
}

static void deadline__unasked_blocks__end_too(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(8, 4096);
    fx.answer = ANSWER_SILENT;
    want(&wanted, 0, 8, ASKED_MS);
    wanted.pull.batch_bytes = 4096;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_all_missed(&wanted, KVF_DEADLINE);
    assert_int_equal(fx.log.reads, 2);
    run_until(fx.log.releases == 2);
}

/* ---- a lane that hangs in the kernel ---- */

static atomic_bool hang; /* the next readv of a lane waits for `thaw` */
static atomic_bool hangs;
static sem_t thaw;

/* In the place of libc's: a read that takes as long as the test wants, and then still writes. */
ssize_t readv(int fd, const struct iovec *pieces, int count)
{
    if (atomic_exchange(&hang, false)) {
        atomic_store(&hangs, true);
        while (sem_wait(&thaw) != 0) {
        }
    }
    return syscall(SYS_readv, fd, pieces, count);
}

static void let_lane_hang(uint32_t block)
{
    (void)sem_init(&thaw, 0, 0);
    atomic_store(&hangs, false);
    run_for_ms(20);
    atomic_store(&hang, true);
    fixture_land_to(block, fx.blocks[block].stall_at + KVF_MIB / 2);
    run_until(atomic_load(&hangs));
}

static void deadline__lane_hangs__result_in_time_and_memory_later(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(3, 2 * KVF_MIB);
    fx.blocks[1].stall_at = KVF_MIB;
    want(&wanted, 0, 3, ASKED_MS);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks_ended == 2);
    let_lane_hang(1);
    run_until(wanted.ended);
    expect_in_time(&wanted);
    assert_missed(&wanted, 1, KVF_DEADLINE);
    assert_int_equal(wanted.told_state[1], KVF_PULL_QUARANTINED);
    assert_int_equal(fx.stats.quarantine_bytes, 2 * KVF_MIB);
    assert_false(kvf_source_is_idle(fx.source));
    run_until(fx.log.cancels == 1);
    /* Two seconds over its deadline the session goes, though the lane still hangs. */
    run_until(fx.log.calls_closed == 1);
    assert_true(kvf_clock_now_ns() >= wanted.pull.deadline_ns + KVF_PEER_RELEASE_GRACE_NS);
    assert_int_equal(wanted.freed, 0);
    assert_int_equal(fx.log.releases, 0);
    (void)sem_post(&thaw);
    run_until(wanted.freed == 1);
    assert_int_equal(wanted.blocks[1].state, KVF_PULL_ENDED);
    assert_int_equal(fx.stats.quarantine_bytes, 0);
    fx.blocks[1].stall_at = 0;
    run_until(kvf_source_is_idle(fx.source) && fx.open_sessions == 0);
    want_and_wait(&wanted, 0, 3);
    assert_all_here(&wanted);
    (void)sem_destroy(&thaw);
}

/* A cancelled block's memory is not the caller's before the lane has let go, not even when the source closes. */
static void source_close__lane_hangs__waits_for_its_memory(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 2 * KVF_MIB);
    fx.blocks[0].stall_at = KVF_MIB;
    want(&wanted, 0, 1, 1000);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    let_lane_hang(0);
    kvf_source_close(fx.source, note, &fx.source_closed);
    fx.source = NULL;
    run_for_ms(50);
    assert_int_equal(wanted.blocks_ended, 0);
    run_until(wanted.ended);
    expect_in_time(&wanted);
    assert_missed(&wanted, 0, KVF_CANCELLED);
    assert_int_equal(wanted.told_state[0], KVF_PULL_QUARANTINED);
    assert_false(fx.source_closed);
    (void)sem_post(&thaw);
    run_until(wanted.freed == 1);
    run_until(fx.source_closed);
    assert_int_equal(fx.stats.quarantine_bytes, 0);
    (void)sem_destroy(&thaw);
}

/* The session breaks under a pull whose lane hangs: its own deadline still holds, and what waits goes on later. */
static void session__breaks_while_lane_hangs__deadline_holds(void **state)
{
    static struct wanted wanted, patient;
    (void)state;
    fixture_add_blocks(2, 2 * KVF_MIB);
    fx.blocks[0].stall_at = KVF_MIB;
    want(&wanted, 0, 1, 1000);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    let_lane_hang(0);
    fixture_drop_calls();
    want(&patient, 1, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &patient.pull);
    run_until(wanted.ended);
    expect_in_time(&wanted);
    assert_missed(&wanted, 0, KVF_DEADLINE);
    assert_int_equal(fx.log.hellos, 1); /* no second lane beside the one that hangs */
    (void)sem_post(&thaw);
    run_until(patient.ended);
    assert_all_here(&patient);
    run_until(wanted.freed == (wanted.told_state[0] == KVF_PULL_QUARANTINED));
    assert_int_equal(fx.log.hellos, 2);
    (void)sem_destroy(&thaw);
}

/* ---- cancelling ---- */

static void cancel__at_any_moment__ends_once(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(4, 512 * 1024);
    want_and_wait(&wanted, 0, 4);
    for (unsigned moment = 0; moment < 60; moment++) {
        fx.arena_used = 0;
        fx.answer = moment % 3 == 0 ? ANSWER_GRANT_LATER : ANSWER_GRANT;
        fx.blocks[2].stall_at = moment % 2 == 0 ? 1000 : 0;
        want(&wanted, 0, 4, 1000 * WAIT_S);
        wanted.pull.batch_bytes = moment % 4 < 2 ? 1 : 0;
        kvf_pull_start(fx.source, &wanted.pull);
        for (unsigned round = 0; round < moment / 4 && !wanted.ended; round++)
            kvf_loop_run_once(fx.loop, 1);
        if (!wanted.ended)
            kvf_pull_cancel(&wanted.pull);
        if (!wanted.ended)
            kvf_pull_cancel(&wanted.pull);
        run_until(wanted.ended);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(wanted.told_state[i], KVF_PULL_ENDED);
            if (kvf_is_ok(wanted.blocks[i].status))
                assert_here(&wanted, i);
            else
                assert_missed(&wanted, i, KVF_CANCELLED);
        }
        run_until(fx.open_reads == 0);
    }
    assert_int_equal(fx.log.releases, fx.log.reads); /* each exactly once */
    assert_int_equal(fx.log.hellos, 1);              /* it never drops the session */
}

static void cancel__in_flight__cancel_then_release(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 2 * KVF_MIB);
    fx.blocks[0].stall_at = KVF_MIB;
    want(&wanted, 0, 2, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.blocks_ended == 1);
    kvf_pull_cancel(&wanted.pull);
    assert_int_equal(wanted.ended, 0); /* never inside the call */
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_CANCELLED);
    assert_here(&wanted, 1);
    run_until(fx.log.releases == 1);
    assert_int_equal(fx.log.cancels, 1);
    assert_int_equal(fx.log.cancel_id[0], 1);
}

static void cancel__before_connected__ends(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(2, 4096);
    want(&wanted, 0, 2, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    kvf_pull_cancel(&wanted.pull);
    assert_int_equal(wanted.blocks_ended, 0);
    run_until(wanted.ended);
    assert_all_missed(&wanted, KVF_CANCELLED);
    want_and_wait(&wanted, 0, 2);
    assert_all_here(&wanted);
    assert_int_equal(fx.log.reads, 1);
}

static void cancel_self(struct wanted *wanted, uint32_t block)
{
    (void)block;
    kvf_pull_cancel(&wanted->pull);
}

static void cancel__in_its_own_callback__ends_once(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(6, 4096);
    want(&wanted, 0, 6, 1000 * WAIT_S);
    wanted.pull.batch_bytes = 4096;
    wanted.on_block = cancel_self;
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(wanted.ended);
    assert_true(fx.log.reads < 6);
    run_until(fx.open_reads == 0);
    run_for_ms(20);
}

static void cancel__pending__ends(void **state)
{
    static struct wanted wanted;
    (void)state;
    fixture_add_blocks(1, 4096);
    fx.blocks[0].code = KVF_PENDING;
    want(&wanted, 0, 1, 1000 * WAIT_S);
    kvf_pull_start(fx.source, &wanted.pull);
    run_until(fx.log.reads == 1);
    run_for_ms(20);
    kvf_pull_cancel(&wanted.pull);
    run_until(wanted.ended);
    assert_missed(&wanted, 0, KVF_CANCELLED);
    run_until(fx.log.releases == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(deadline__silent_source__misses_in_time),
        TEST(deadline__stalled_block__others_have_come),
        TEST(deadline__late_bytes__stay_out),
        TEST(deadline__bytes_but_no_grants__miss),
        TEST(deadline__grants_cross_release__are_counted),
        TEST(deadline__passed_already__miss_without_asking),
        TEST(deadline__while_connecting__in_time),
        TEST(deadline__unasked_blocks__end_too),
        TEST(deadline__lane_hangs__result_in_time_and_memory_later),
        TEST(source_close__lane_hangs__waits_for_its_memory),
        TEST(session__breaks_while_lane_hangs__deadline_holds),
        TEST(cancel__at_any_moment__ends_once),
        TEST(cancel__in_flight__cancel_then_release),
        TEST(cancel__before_connected__ends),
        TEST(cancel__in_its_own_callback__ends_once),
        TEST(cancel__pending__ends),
    };
    return cmocka_run_group_tests_name("deadline", tests, NULL, NULL);
}
