#include "storage/faulty.h"

#include "base/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct faults faults;

struct faulty {
    struct kvf_ring base;
    struct kvf_ring *inner;
    struct kvf_io *back[64]; /* to be returned without having been started */
    unsigned back_count;
    struct kvf_io *kept[64]; /* FAULT_HOLD */
    unsigned kept_count;
    struct kvf_io *cut[64]; /* FAULT_SHORT: moves whole pages and says less */
    unsigned cut_count;
    int cut_to[64];
    unsigned inside; /* in the inner ring */
    bool broken;
};

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

static bool faulty_can_clone(void)
{
    return !faults.no_clone && faults.inner->can_clone();
}

static int faulty_hold(const struct iovec *buffers, unsigned count, struct kvf_ring **give)
{
    struct faulty *ring = calloc(1, sizeof(*ring));
    assert_non_null(ring);
    ring->base.engine = &faulty_engine;
    int error = faults.fix_error;
    if (error == 0)
        error = faults.inner->hold(buffers, count, &ring->inner);
    if (error == 0)
        *give = &ring->base;
    else
        free(ring);
    return error;
}

static int faulty_fix(struct kvf_ring *ring, const struct iovec *buffers, unsigned count,
                      struct kvf_ring *holder)
{
    if (faults.fix_error != 0)
        return faults.fix_error;
    return faults.inner->fix(faulty_of(ring)->inner, buffers, count,
                             holder != NULL ? faulty_of(holder)->inner : NULL);
}

static unsigned faulty_room(const struct kvf_ring *base)
{
    const struct faulty *ring = faulty_of(base);
    unsigned used = ring->back_count + ring->kept_count, room = faults.inner->room(ring->inner);
    return ring->broken || room <= used ? 0 : room - used;
}

/* splitmix64 */
static uint64_t draw(uint64_t seed, uint64_t number)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + number * UINT64_C(0xd1342543de82ef95);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static bool hits(uint64_t seed, uint64_t number, unsigned one_in)
{
    return one_in != 0 && draw(seed, number) % one_in == 0;
}

/* Under the lock. */
static struct plan look_up_rates(const struct kvf_io *io)
{
    const struct rates *rates = &faults.rates;
    static const int passing[] = {EAGAIN, EBUSY, EINTR};
    uint64_t number = faults.drawn++ * 4;
    if (hits(rates->seed, number, rates->error_in)) {
        atomic_fetch_add(&faults.errors, 1);
        return (struct plan){.fault = FAULT_ERROR, .value = EIO};
    }
    if (hits(rates->seed, number + 1, rates->passing_in)) {
        atomic_fetch_add(&faults.passings, 1);
        return (struct plan){.fault = FAULT_ERROR,
                             .value = passing[draw(rates->seed, number + 3) % 3]};
    }
    if (io->bytes > KVF_PAGE && hits(rates->seed, number + 2, rates->short_in)) {
        atomic_fetch_add(&faults.shorts, 1);
        uint64_t cut = 1 + draw(rates->seed, number + 3) % (io->bytes - 1);
        return (struct plan){.fault = FAULT_SHORT, .value = (int)cut};
    }
    return (struct plan){.fault = FAULT_NONE};
}

/* The plan for this operation; FAULT_NONE: none. */
static struct plan look_up(const struct kvf_io *io)
{
    struct plan plan = {.fault = FAULT_NONE};
    (void)pthread_mutex_lock(&faults.lock);
    const struct plan *all = &faults.plan;
    if (io->kind == KVF_IO_READ && faults.read_count < 4096) {
        faults.read_fds[faults.read_count] = io->fd;
        faults.read_offsets[faults.read_count++] = io->offset;
    }
    if (all->fault != FAULT_NONE && io->kind == all->kind && (all->fd < 0 || io->fd == all->fd)) {
        int number = faults.seen++;
        if (number >= all->first && number < all->first + all->count)
            plan = *all;
    }
    if (plan.fault == FAULT_NONE && atomic_load(&faults.then_error) != 0 &&
        faults.seen > all->first && io->kind == all->kind)
        plan = (struct plan){.fault = FAULT_ERROR, .value = atomic_load(&faults.then_error)};
    if (faults.rates.seed != 0 && io->kind == faults.rates.kind)
        plan = look_up_rates(io);
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
    case FAULT_MISDIRECT:
        io->offset = plan.where;
        break;
    case FAULT_SHORT:
        if (plan.value == 0) { /* no bytes at all: end of file */
            io->result = 0;
            ring->back[ring->back_count++] = io;
            return;
        }
        if (io->bytes > (uint64_t)plan.value) {
            if (io->parts == NULL) /* else more is written than is told */
                io->bytes = kvf_round_up_page((uint64_t)plan.value);
            ring->cut_to[ring->cut_count] = plan.value;
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
            io->result = io->result < ring->cut_to[i] ? io->result : ring->cut_to[i];
            ring->cut_count--;
            ring->cut[i] = ring->cut[ring->cut_count];
            ring->cut_to[i] = ring->cut_to[ring->cut_count];
            return;
        }
}

static unsigned faulty_turn(struct kvf_ring *base, struct kvf_io **done, unsigned max, int wait_ms)
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
        wait_ms = KVF_WAIT_NOT;
        (void)usleep(1000);
    }
    unsigned count = faults.inner->turn(ring->inner, done, max, wait_ms);
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

const struct kvf_engine faulty_engine = {
    .name = "faulty",
    .open = faulty_open,
    .can_clone = faulty_can_clone,
    .hold = faulty_hold,
    .fix = faulty_fix,
    .room = faulty_room,
    .add = faulty_add,
    .turn = faulty_turn,
    .is_broken = faulty_is_broken,
    .close = faulty_close,
};

void faulty_init(const struct kvf_engine *inner)
{
    memset(&faults, 0, sizeof(faults));
    assert_int_equal(pthread_mutex_init(&faults.lock, NULL), 0);
    faults.inner = inner;
}

void faulty_arm(struct plan plan)
{
    (void)pthread_mutex_lock(&faults.lock);
    faults.seen = 0;
    faults.read_count = 0;
    faults.plan = plan;
    faults.rates = (struct rates){.seed = 0};
    (void)pthread_mutex_unlock(&faults.lock);
    atomic_store(&faults.met, 0);
    atomic_store(&faults.held, plan.fault == FAULT_HOLD);
}

void faulty_rate(struct rates rates)
{
    faulty_arm((struct plan){.fault = FAULT_NONE});
    (void)pthread_mutex_lock(&faults.lock);
    faults.rates = rates;
    faults.drawn = 0;
    (void)pthread_mutex_unlock(&faults.lock);
    atomic_store(&faults.shorts, 0);
    atomic_store(&faults.passings, 0);
    atomic_store(&faults.errors, 0);
}

void faulty_disarm(void)
{
    faulty_arm((struct plan){.fault = FAULT_NONE});
}
