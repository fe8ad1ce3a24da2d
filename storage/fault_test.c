/* What storage does when the operating system does not do as asked: a faulty engine stands in front of each real one. */
#include "base/test.h"
#include "storage/fixture.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the faulty engine ---- */

enum fault {
    FAULT_NONE = 0,
    FAULT_ERROR, /* comes back with -value, not started */
    FAULT_SHORT, /* moves only `value` bytes */
    FAULT_HOLD,  /* comes back only after release_held() */
    FAULT_BREAK, /* the ring fails: this one is not started */
};

/* Operations of `kind` number first to first + count - 1 (over all rings, from arming on) on `fd` (-1: any). */
struct plan {
    enum kvf_io_kind kind;
    int first, count;
    int fd;
    enum fault fault;
    int value;
};

static struct {
    const struct kvf_engine *inner;
    pthread_mutex_t lock; /* of plan and seen */
    struct plan plan;
    int seen;          /* of the plan's kind */
    atomic_int met;    /* faults done */
    atomic_bool held;  /* FAULT_HOLD holds */
    int open_fails_at; /* the nth open from now on; 0: never */
    int opens;
    int fix_error;
    atomic_int breaks;
} faults;

struct faulty {
    struct kvf_ring base;
    struct kvf_ring *inner;
    struct kvf_io *back[64]; /* to be returned without having been started */
    unsigned back_count;
    struct kvf_io *kept[64]; /* FAULT_HOLD */
    unsigned kept_count;
    struct kvf_io *cut[64]; /* FAULT_SHORT: moves whole pages and says less */
    unsigned cut_count;
    int cut_to;
    unsigned inside; /* in the inner ring */
    bool broken;
};

static const struct kvf_engine faulty_engine;

static struct faulty *faulty_of(const struct kvf_ring *ring)
{
    return kvf_container(ring, struct faulty, base);
}

static int faulty_open(unsigned entries, int wake_fd, struct kvf_ring **give)
{
    if (++faults.opens == faults.open_fails_at)
        return -ENOMEM;
    struct faulty *ring = calloc(1, sizeof(*ring));
    assert_non_null(ring);
    ring->base.engine = &faulty_engine;
    assert_int_equal(faults.inner->open(entries < 64 ? entries : 64, wake_fd, &ring->inner), 0);
    *give = &ring->base;
    return 0;
}

static int faulty_fix(struct kvf_ring *ring, const struct iovec *buffers, unsigned count,
                      struct kvf_ring *like)
{
    if (faults.fix_error != 0)
        return faults.fix_error;
    return faults.inner->fix(faulty_of(ring)->inner, buffers, count,
                             like != NULL ? faulty_of(like)->inner : NULL);
}

static unsigned faulty_room(const struct kvf_ring *base)
{
    const struct faulty *ring = faulty_of(base);
    unsigned used = ring->back_count + ring->kept_count, room = faults.inner->room(ring->inner);
    return ring->broken || room <= used ? 0 : room - used;
}

/* The plan for this operation; FAULT_NONE: none. */
static struct plan look_up(const struct kvf_io *io)
{
    struct plan plan = {.fault = FAULT_NONE};
    (void)pthread_mutex_lock(&faults.lock);
    const struct plan *all = &faults.plan;
    if (all->fault != FAULT_NONE && io->kind == all->kind && (all->fd < 0 || io->fd == all->fd)) {
        int number = faults.seen++;
        if (number >= all->first && number < all->first + all->count)
            plan = *all;
    }
    (void)pthread_mutex_unlock(&faults.lock);
    return plan;
}

static void faulty_add(struct kvf_ring *base, struct kvf_io *io)
{
    struct faulty *ring = faulty_of(base);
    struct plan plan = look_up(io);
    if (plan.fault != FAULT_NONE)
        atomic_fetch_add(&faults.met, 1);
    switch (plan.fault) {
    case FAULT_ERROR:
        io->result = -plan.value;
        ring->back[ring->back_count++] = io;
        return;
    case FAULT_BREAK:
        ring->broken = true;
        atomic_fetch_add(&faults.breaks, 1);
        break;
    case FAULT_HOLD:
        ring->kept[ring->kept_count++] = io;
        return;
    case FAULT_SHORT:
        if (plan.value == 0) { /* no bytes at all: end of file */
            io->result = 0;
            ring->back[ring->back_count++] = io;
            return;
        }
        if (io->bytes > (uint64_t)plan.value) {
            io->bytes = kvf_round_up_page((uint64_t)plan.value);
            ring->cut_to = plan.value;
            ring->cut[ring->cut_count++] = io;
        }
        break;
    case FAULT_NONE:
        break;
    }
    if (ring->broken) {
        io->result = -EAGAIN;
        ring->back[ring->back_count++] = io;
        return;
    }
    ring->inside++;
    faults.inner->add(ring->inner, io);
}

static void cut_result(struct faulty *ring, struct kvf_io *io)
{
    for (unsigned i = 0; i < ring->cut_count; i++)
        if (ring->cut[i] == io) {
            ring->cut[i] = ring->cut[--ring->cut_count];
            io->result = io->result < ring->cut_to ? io->result : ring->cut_to;
            return;
        }
}

static unsigned faulty_turn(struct kvf_ring *base, struct kvf_io **done, unsigned max, bool sleep)
{
    struct faulty *ring = faulty_of(base);
    if (ring->back_count > 0) {
        done[0] = ring->back[--ring->back_count];
        return 1;
    }
    if (ring->kept_count > 0 && !atomic_load(&faults.held) && faults.inner->room(ring->inner) > 0) {
        ring->inside++;
        faults.inner->add(ring->inner, ring->kept[--ring->kept_count]);
    }
    if (ring->kept_count > 0 || (ring->broken && ring->inside == 0)) {
        sleep = false;
        (void)usleep(1000);
    }
    unsigned count = faults.inner->turn(ring->inner, done, max, sleep);
    ring->inside -= count;
    for (unsigned i = 0; i < count; i++)
        cut_result(ring, done[i]);
    return count;
}

static bool faulty_is_broken(const struct kvf_ring *base)
{
    const struct faulty *ring = faulty_of(base);
    return ring->broken && ring->inside + ring->back_count + ring->kept_count == 0;
}

static void faulty_close(struct kvf_ring *base)
{
    if (base == NULL)
        return;
    faults.inner->close(faulty_of(base)->inner);
    free(faulty_of(base));
}

static const struct kvf_engine faulty_engine = {
    .name = "faulty",
    .open = faulty_open,
    .fix = faulty_fix,
    .room = faulty_room,
    .add = faulty_add,
    .turn = faulty_turn,
    .is_broken = faulty_is_broken,
    .close = faulty_close,
};

static void arm(struct plan plan)
{
    (void)pthread_mutex_lock(&faults.lock);
    faults.seen = 0;
    faults.plan = plan;
    (void)pthread_mutex_unlock(&faults.lock);
    atomic_store(&faults.met, 0);
    atomic_store(&faults.held, plan.fault == FAULT_HOLD);
}

static void disarm(void)
{
    arm((struct plan){.fault = FAULT_NONE});
}

static void init(struct fixture *f, void **state, uint64_t arena_bytes)
{
    memset(&faults, 0, sizeof(faults));
    assert_int_equal(pthread_mutex_init(&faults.lock, NULL), 0);
    faults.inner = *(const struct kvf_engine **)*state;
    fixture_init(f, KVF_STORE_IO_AUTO, arena_bytes);
    f->engine = &faulty_engine;
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
            arm((struct plan){.kind = KVF_IO_READ,
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
    arm((struct plan){
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
    arm((struct plan){
        .kind = KVF_IO_READ, .count = 100000, .fd = -1, .fault = FAULT_SHORT, .value = 512});
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_IO);
    arm((struct plan){
        .kind = KVF_IO_READ, .count = 100000, .fd = -1, .fault = FAULT_SHORT, .value = 0});
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_IO);
    assert_int_equal(block.status.detail, ENODATA);
    disarm();
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
        arm((struct plan){.kind = KVF_IO_READ,
                          .first = 2,
                          .count = 5,
                          .fd = -1,
                          .fault = FAULT_ERROR,
                          .value = passing[i]});
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
        arm((struct plan){.kind = KVF_IO_READ,
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
        arm((struct plan){.kind = KVF_IO_READ,
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
    arm((struct plan){.kind = KVF_IO_READ, .first = 0, .count = 1, .fd = -1, .fault = FAULT_HOLD});
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
        arm((struct plan){
            .kind = KVF_IO_READ, .first = at, .count = 1, .fd = -1, .fault = FAULT_BREAK});
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
        assert_int_equal(atomic_load(&faults.breaks), at + 1);
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
            arm(plan);
            assert_int_equal(fixture_put(&f, &block, count++, 1200 << 10).code, KVF_OK);
            disarm();
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
        arm((struct plan){.kind = cases[i].kind,
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
        disarm();
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
    for (int at = 0; at < 60; at += 2) {
        struct fixture f;
        static struct fixture_block blocks[24];
        init(&f, state, 24 * 700 * 1024);
        f.options.read_threads = 1;
        f.options.capacity_bytes = 8 * KVF_MIB;
        f.frees_at_once = at >= 30;
        fixture_open(&f);
        arm((struct plan){.kind = KVF_IO_WRITE,
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
        disarm();
        fixture_reopen(&f);
        if (!f.frees_at_once || f.reclaim_count == 0)
            for (unsigned b = 0; b < right; b++)
                assert_non_null(fixture_find(&f, b));
        for (unsigned i = 0; i < f.found_count; i++) {
            struct fixture_block block = {.location = f.found[i].location};
            memcpy(&block.seed, f.found[i].record.key.bytes, sizeof(block.seed));
            assert_int_equal(fixture_get(&f, &block, 600 << 10).code, KVF_OK);
        }
        fixture_fini(&f);
    }
}

static void write__one_of_two_drives_fails__the_other_takes_what_was_queued(void **state)
{
    struct fixture f;
    static struct fixture_block blocks[40];
    init(&f, state, 24 * KVF_MIB);
    char other[] = "/tmp/kvf-storage-XXXXXX";
    assert_non_null(mkdtemp(other));
    const char *paths[] = {f.path, other};
    f.options.paths = paths;
    f.options.path_count = 2;
    f.options.capacity_bytes = 64 * KVF_MIB;
    fixture_open(&f);
    int fd = f.store->drives[0].segments[0].fd; /* the first one that is taken */
    arm((struct plan){.kind = KVF_IO_WRITE,
                      .first = 1,
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
    fixture_close(&f);
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r %s", other);
    assert_int_equal(system(command), 0);
    fixture_fini(&f);
}

/* ---- opening ---- */

static void open__fails_at_each_step__nothing_is_left(void **state)
{
    for (int at = 1; at <= 4; at++) { /* three readers and the writer */
        struct fixture f;
        init(&f, state, KVF_MIB);
        faults.open_fails_at = at;
        assert_int_equal(fixture_try_open(&f).code, KVF_NO_MEMORY);
        assert_true(strlen(f.why.text) > 0);
        assert_int_equal(rmdir(f.path), 0); /* only an empty directory goes */
        fixture_fini(&f);
    }
}

static void open__no_memory_to_lock__plain_buffers_and_the_remedy(void **state)
{
    struct fixture f;
    struct fixture_block block;
    init(&f, state, 2 * KVF_MIB);
    faults.fix_error = -ENOMEM;
    fixture_open(&f);
    assert_non_null(strstr(kvf_store_io_text(f.store), "RLIMIT_MEMLOCK"));
    assert_non_null(strstr(kvf_store_io_text(f.store), "6 MiB")); /* three rings times 2 MiB */
    assert_int_equal(fixture_stats(&f).registrations, 0);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
    fixture_fini(&f);
}

/* io_uring_setup says EPERM from here on, as under a container's seccomp profile. */
static void forbid_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(10);
}

static int forbidden_child(struct fixture *f)
{
    struct fixture_block block;
    forbid_uring();
    f->options.io = KVF_STORE_IO_URING;
    if (fixture_try_open(f).code != KVF_UNSUPPORTED)
        return 11;
    if (strstr(f->why.text, "seccomp") == NULL)
        return 12;
    f->options.io = KVF_STORE_IO_AUTO;
    fixture_open(f);
    if (strstr(kvf_store_io_text(f->store), "pread: io_uring is forbidden") == NULL)
        return 13;
    if (!kvf_is_ok(fixture_put(f, &block, 1, 5000)) || !kvf_is_ok(fixture_get(f, &block, 5000)))
        return 14;
    fixture_close(f);
    return 0;
}

static void open__io_uring_forbidden__auto_reads_plainly_and_uring_says_why(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f, KVF_STORE_IO_AUTO, KVF_MIB);
    pid_t pid = fork();
    if (pid == 0)
        _exit(forbidden_child(&f));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fixture_fini(&f);
}

static const struct kvf_engine *uring = &kvf_engine_uring, *twin = &kvf_engine_pread;

static int use_uring(void **state)
{
    *state = &uring;
    return 0;
}

static int use_twin(void **state)
{
    *state = &twin;
    return 0;
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
        cmocka_unit_test(write__short_or_not_now_at_any_piece__all_durable),
        cmocka_unit_test(write__fails__drive_is_read_only_and_reads_go_on),
        cmocka_unit_test(write__service_of_segments_fails__nothing_durable_is_lost),
        cmocka_unit_test(write__one_of_two_drives_fails__the_other_takes_what_was_queued),
        cmocka_unit_test(open__fails_at_each_step__nothing_is_left),
        cmocka_unit_test(open__no_memory_to_lock__plain_buffers_and_the_remedy),
        cmocka_unit_test(open__io_uring_forbidden__auto_reads_plainly_and_uring_says_why),
    };
    int failed = cmocka_run_group_tests_name("faults over pread", tests, use_twin, NULL);
    return failed + cmocka_run_group_tests_name("faults over io_uring", tests, use_uring, NULL);
}
