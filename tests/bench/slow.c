#include "tests/bench/slow.h"

#include "base/list.h"
#include "tests/bench/rounds.h"

#include <stdatomic.h>
#include <stdlib.h>

#define KEPT_MAX 64u

struct slow slow;
static atomic_uint reads_seen;

struct kept {
    struct kvf_io *io;
    double due_s; /* not before it */
    bool is_back;
};

struct slow_ring {
    struct kvf_ring base;
    struct kvf_ring *inner;
    struct kept kept[KEPT_MAX];
    unsigned kept_count;
};

static struct slow_ring *slow_of(const struct kvf_ring *ring)
{
    return kvf_container(ring, struct slow_ring, base);
}

static int slow_open(unsigned entries, int wake_fd, struct kvf_ring **give)
{
    struct slow_ring *ring = bench_allocate(sizeof(*ring));
    ring->base.engine = &slow_engine;
    int error = kvf_engine_uring.open(entries, wake_fd, &ring->inner);
    *give = &ring->base; /* a bench that cannot open a ring ends: nothing is freed */
    return error;
}

static bool slow_can_clone(void)
{
    return kvf_engine_uring.can_clone();
}

static int slow_hold(const struct iovec *buffers, unsigned count, struct kvf_ring **give)
{
    struct slow_ring *ring = bench_allocate(sizeof(*ring));
    ring->base.engine = &slow_engine;
    *give = &ring->base;
    return kvf_engine_uring.hold(buffers, count, &ring->inner);
}

static int slow_fix(struct kvf_ring *ring, const struct iovec *buffers, unsigned count,
                    struct kvf_ring *holder)
{
    return kvf_engine_uring.fix(slow_of(ring)->inner, buffers, count,
                                holder != NULL ? slow_of(holder)->inner : NULL);
}

static unsigned slow_room(const struct kvf_ring *base)
{
    const struct slow_ring *ring = slow_of(base);
    unsigned room = kvf_engine_uring.room(ring->inner);
    return room > ring->kept_count ? room - ring->kept_count : 0;
}

static void slow_add(struct kvf_ring *base, struct kvf_io *io)
{
    struct slow_ring *ring = slow_of(base);
    if (io->kind == KVF_IO_READ && slow.one_in != 0 && ring->kept_count < KEPT_MAX &&
        atomic_fetch_add(&reads_seen, 1) % slow.one_in == slow.one_in / 2)
        ring->kept[ring->kept_count++] =
            (struct kept){io, bench_now_s() + slow.late_ms / 1e3, false};
    kvf_engine_uring.add(ring->inner, io);
}

/* True: it is one of the slow ones and stays. */
static bool keep(struct slow_ring *ring, const struct kvf_io *io)
{
    for (unsigned i = 0; i < ring->kept_count; i++)
        if (ring->kept[i].io == io) {
            ring->kept[i].is_back = true;
            return true;
        }
    return false;
}

/* Appends those whose time has come. */
static unsigned release_due(struct slow_ring *ring, struct kvf_io **done, unsigned count,
                            unsigned max)
{
    double now = bench_now_s();
    for (unsigned i = 0; i < ring->kept_count && count < max;) {
        struct kept *kept = &ring->kept[i];
        if (!kept->is_back || kept->due_s > now) {
            i++;
            continue;
        }
        done[count++] = kept->io;
        *kept = ring->kept[--ring->kept_count];
    }
    return count;
}

/* Awake when the first kept one is due. */
static int bounded_wait(const struct slow_ring *ring, int wait_ms)
{
    double now = bench_now_s();
    for (unsigned i = 0; i < ring->kept_count && wait_ms != KVF_WAIT_NOT; i++) {
        double left = (ring->kept[i].due_s - now) * 1e3;
        int ms = left < 1 ? 1 : (int)left;
        if (ring->kept[i].is_back && (wait_ms == KVF_WAIT_EVER || ms < wait_ms))
            wait_ms = ms;
    }
    return wait_ms;
}

static unsigned slow_turn(struct kvf_ring *base, struct kvf_io **done, unsigned max, int wait_ms)
{
    struct slow_ring *ring = slow_of(base);
    unsigned count = kvf_engine_uring.turn(ring->inner, done, max, bounded_wait(ring, wait_ms));
    unsigned told = 0;
    for (unsigned i = 0; i < count; i++)
        if (!keep(ring, done[i]))
            done[told++] = done[i];
    return release_due(ring, done, told, max);
}

static bool slow_is_broken(const struct kvf_ring *base)
{
    return kvf_engine_uring.is_broken(slow_of(base)->inner);
}

static void slow_close(struct kvf_ring *base)
{
    if (base == NULL)
        return;
    kvf_engine_uring.close(slow_of(base)->inner);
    free(slow_of(base));
}

const struct kvf_engine slow_engine = {
    .name = "slow",
    .open = slow_open,
    .can_clone = slow_can_clone,
    .hold = slow_hold,
    .fix = slow_fix,
    .room = slow_room,
    .add = slow_add,
    .turn = slow_turn,
    .is_broken = slow_is_broken,
    .close = slow_close,
};
