/* The io_uring engine; liburing appears only here.
 *
 * The ring's own eventfd read, armed before the first sleep and after each wake, is what lets another thread end a
 * sleep: it is the one completion whose user_data is NULL. */
#include "storage/engine.h"

#include "base/list.h"
#include "base/status.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Kernel 6.12; this liburing does not know it yet. */
#define REGISTER_CLONE_BUFFERS 30
#define BUSY_ROUNDS_MAX                                                                            \
    1000 /* of 1 ms, without any completion, until a ring that only says EAGAIN is given up */

struct clone_buffers {
    uint32_t source_fd;
    uint32_t flags;
    uint32_t source_offset;
    uint32_t target_offset;
    uint32_t count;
    uint32_t zero[3];
};

struct uring {
    struct kvf_ring base;
    struct io_uring ring;
    unsigned entries;
    unsigned held; /* operations that are not back */
    unsigned busy; /* rounds in a row that the kernel refused for now */
    bool armed;    /* the eventfd read is in the kernel or about to go there */
    bool broken;
    int wake_fd;
    uint64_t wake_count; /* where the eventfd read lands */
    unsigned added_first, added_count;
    struct kvf_io **
        added; /* in the submission queue and not yet taken by the kernel; NULL: the eventfd read. A ring of
                              entries + 1 */
};

static struct uring *uring_of(const struct kvf_ring *ring)
{
    return kvf_container(ring, struct uring, base);
}

static int queue_init(unsigned entries, struct io_uring *ring)
{
    /* One thread submits and wants its completions in batches: the kernel can spare locks and interrupts (6.1). */
    struct io_uring_params params = {.flags =
                                         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int error = io_uring_queue_init_params(entries, ring, &params);
    if (error != -EINVAL)
        return error;
    params = (struct io_uring_params){0};
    return io_uring_queue_init_params(entries, ring, &params);
}

static int uring_open(unsigned entries, int wake_fd, struct kvf_ring **give)
{
    struct uring *u = calloc(1, sizeof(*u));
    if (u == NULL)
        return -ENOMEM;
    int error = -ENOMEM;
    u->base.engine = &kvf_engine_uring;
    u->entries = entries;
    u->wake_fd = wake_fd;
    u->added = calloc(entries + 1, sizeof(struct kvf_io *));
    if (u->added == NULL)
        goto free_ring;
    error = queue_init(entries + 1, &u->ring);
    if (error < 0)
        goto free_added;
    (void)io_uring_ring_dontfork(&u->ring);
    (void)io_uring_register_ring_fd(
        &u->ring); /* a shortcut of 5.18; without it all is the same, only slower */
    *give = &u->base;
    return 0;

free_added:
    free(u->added);
free_ring:
    free(u);
    return error;
}

static int clone_buffers(struct io_uring *target, const struct io_uring *source)
{
    struct clone_buffers clone = {.source_fd = (uint32_t)source->ring_fd};
    return io_uring_register((unsigned)target->ring_fd, REGISTER_CLONE_BUFFERS, &clone, 1);
}

/* With one page; kernels before 6.12 do not know it. */
static bool uring_can_clone(void)
{
    static uint8_t page[4096] __attribute__((aligned(4096)));
    const struct iovec buffer = {.iov_base = page, .iov_len = sizeof(page)};
    struct io_uring source, target;
    bool can = false;
    if (io_uring_queue_init(1, &source, 0) != 0)
        return false;
    if (io_uring_queue_init(1, &target, 0) == 0) {
        can = io_uring_register_buffers(&source, &buffer, 1) == 0 &&
              clone_buffers(&target, &source) == 0;
        io_uring_queue_exit(&target);
    }
    io_uring_queue_exit(&source);
    return can;
}

/* Without SINGLE_ISSUER: the kernel clones only from a ring that belongs to no other thread. */
static int uring_hold(const struct iovec *buffers, unsigned count, struct kvf_ring **give)
{
    struct uring *u = calloc(1, sizeof(*u));
    if (u == NULL)
        return -ENOMEM;
    u->base.engine = &kvf_engine_uring;
    int error = io_uring_queue_init(1, &u->ring, 0);
    if (error < 0)
        goto free_ring;
    error = io_uring_register_buffers(&u->ring, buffers, count);
    if (error < 0)
        goto exit_queue;
    (void)io_uring_ring_dontfork(&u->ring);
    *give = &u->base;
    return 0;

exit_queue:
    io_uring_queue_exit(&u->ring);
free_ring:
    free(u);
    return error;
}

static int uring_fix(struct kvf_ring *ring, const struct iovec *buffers, unsigned count,
                     struct kvf_ring *holder)
{
    struct uring *u = uring_of(ring);
    if (holder != NULL && clone_buffers(&u->ring, &uring_of(holder)->ring) == 0)
        return KVF_FIX_CLONED;
    int error = io_uring_register_buffers(&u->ring, buffers, count);
    return error < 0 ? error : KVF_FIX_REGISTERED;
}

static unsigned uring_room(const struct kvf_ring *ring)
{
    const struct uring *u = uring_of(ring);
    return u->broken ? 0 : u->entries - u->held;
}

static struct io_uring_sqe *next_sqe(struct uring *u, struct kvf_io *io)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    kvf_assert(sqe != NULL); /* the queue has entries + 1 and held never exceeds entries */
    u->added[(u->added_first + u->added_count) % (u->entries + 1)] = io;
    u->added_count++;
    return sqe;
}

static void uring_add(struct kvf_ring *ring, struct kvf_io *io)
{
    struct uring *u = uring_of(ring);
    kvf_assert(uring_room(ring) > 0);
    u->held++;
    struct io_uring_sqe *sqe = next_sqe(u, io);
    unsigned bytes = (unsigned)io->bytes;
    switch (io->kind) {
    case KVF_IO_READ:
        if (io->buffer >= 0)
            io_uring_prep_read_fixed(sqe, io->fd, io->memory, bytes, io->offset, io->buffer);
        else
            io_uring_prep_read(sqe, io->fd, io->memory, bytes, io->offset);
        break;
    case KVF_IO_WRITE:
        if (io->parts != NULL)
            io_uring_prep_writev(sqe, io->fd, io->parts, io->part_count, io->offset);
        else if (io->buffer >= 0)
            io_uring_prep_write_fixed(sqe, io->fd, io->memory, bytes, io->offset, io->buffer);
        else
            io_uring_prep_write(sqe, io->fd, io->memory, bytes, io->offset);
        break;
    case KVF_IO_SYNC:
        io_uring_prep_fsync(sqe, io->fd, IORING_FSYNC_DATASYNC);
        break;
    }
    io_uring_sqe_set_data(sqe, io);
}

static void arm(struct uring *u)
{
    struct io_uring_sqe *sqe = next_sqe(u, NULL);
    io_uring_prep_read(sqe, u->wake_fd, &u->wake_count, sizeof(u->wake_count), 0);
    io_uring_sqe_set_data(sqe, NULL);
    u->armed = true;
}

static struct kvf_io *pop_added(struct uring *u)
{
    struct kvf_io *io = u->added[u->added_first];
    u->added_first = (u->added_first + 1) % (u->entries + 1);
    u->added_count--;
    return io;
}

static void pause_1ms(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    (void)nanosleep(&ms, NULL);
}

/* The kernel takes what was added, in order. Refusals that pass by themselves are tried again in the next turn. */
static void submit(struct uring *u, bool sleep)
{
    /* Without a sleep, too, the kernel must be entered for what is finished (DEFER_TASKRUN). */
    int taken =
        sleep ? io_uring_submit_and_wait(&u->ring, 1) : io_uring_submit_and_get_events(&u->ring);
    for (int i = 0; i < taken && u->added_count > 0; i++)
        (void)pop_added(u);
    if (taken >= 0) {
        u->busy = 0;
        return;
    }
    if (taken == -EINTR)
        return;
    if ((taken == -EAGAIN || taken == -EBUSY) && u->busy++ < BUSY_ROUNDS_MAX) {
        pause_1ms();
        return;
    }
    u->broken = true;
}

static unsigned reap(struct uring *u, struct kvf_io **done, unsigned max)
{
    struct io_uring_cqe *cqes[64];
    unsigned count = io_uring_peek_batch_cqe(&u->ring, cqes, max < 64 ? max : 64);
    unsigned returned = 0;
    for (unsigned i = 0; i < count; i++) {
        struct kvf_io *io = io_uring_cqe_get_data(cqes[i]);
        if (io == NULL) {
            u->armed = false;
            continue;
        }
        io->result = cqes[i]->res;
        u->held--;
        done[returned++] = io;
    }
    io_uring_cq_advance(&u->ring, count);
    return returned;
}

/* What the kernel has not taken comes back as not started. */
static unsigned give_up(struct uring *u, struct kvf_io **done, unsigned max)
{
    unsigned returned = 0;
    while (u->added_count > 0 && returned < max) {
        struct kvf_io *io = pop_added(u);
        if (io == NULL) {
            u->armed = false;
            continue;
        }
        io->result = -EAGAIN;
        u->held--;
        done[returned++] = io;
    }
    return returned;
}

/* The sleep with a limit is the exception (a drive that failed): it may cost a second way into the kernel. A kernel whose
 * rings know no limit (before 5.11) has none that poll misses either (DEFER_TASKRUN). */
static void submit_and_wait_ms(struct uring *u, int wait_ms)
{
    struct __kernel_timespec limit = {.tv_sec = wait_ms / 1000,
                                      .tv_nsec = wait_ms % 1000 * 1000000LL};
    struct pollfd completions = {.fd = u->ring.ring_fd, .events = POLLIN};
    struct io_uring_cqe *cqe;
    submit(u, false);
    if (io_uring_cq_ready(&u->ring) > 0 || u->broken)
        return;
    if ((u->ring.features & IORING_FEAT_EXT_ARG) != 0)
        (void)io_uring_wait_cqe_timeout(&u->ring, &cqe, &limit);
    else
        (void)poll(&completions, 1, wait_ms);
}

static unsigned uring_turn(struct kvf_ring *ring, struct kvf_io **done, unsigned max, int wait_ms)
{
    struct uring *u = uring_of(ring);
    if (u->broken) {
        unsigned returned = give_up(u, done, max);
        if (returned == 0 && u->held > 0) {
            struct io_uring_cqe *cqe;
            if (io_uring_wait_cqe(&u->ring, &cqe) != 0)
                pause_1ms();
        }
        return returned > 0 ? returned : reap(u, done, max);
    }
    if (wait_ms != KVF_WAIT_NOT && !u->armed)
        arm(u);
    if (wait_ms > 0)
        submit_and_wait_ms(u, wait_ms);
    else
        submit(u, wait_ms == KVF_WAIT_EVER && io_uring_cq_ready(&u->ring) == 0);
    return reap(u, done, max);
}

static bool uring_is_broken(const struct kvf_ring *ring)
{
    return uring_of(ring)->broken && uring_of(ring)->held == 0;
}

/* The eventfd read must not outlive wake_count: the ring's end is asynchronous. False: it would not come back. */
static bool disarm(struct uring *u)
{
    struct __kernel_timespec limit = {.tv_nsec = 10000000};
    struct io_uring_cqe *cqe;
    struct kvf_io *done[1];
    for (int round = 0; u->armed && round < 100; round++) {
        (void)eventfd_write(u->wake_fd, 1);
        (void)io_uring_wait_cqe_timeout(&u->ring, &cqe, &limit);
        (void)reap(u, done, 1);
    }
    return !u->armed;
}

static void uring_close(struct kvf_ring *ring)
{
    if (ring == NULL)
        return;
    struct uring *u = uring_of(ring);
    kvf_assert(u->held == 0);
    bool quiet = disarm(u);
    io_uring_queue_exit(&u->ring);
    free(u->added);
    if (quiet) /* else the kernel may still write to wake_count: a few lost bytes are better */
        free(u);
}

const struct kvf_engine kvf_engine_uring = {
    .name = "io_uring",
    .open = uring_open,
    .can_clone = uring_can_clone,
    .hold = uring_hold,
    .fix = uring_fix,
    .room = uring_room,
    .add = uring_add,
    .turn = uring_turn,
    .is_broken = uring_is_broken,
    .close = uring_close,
};
