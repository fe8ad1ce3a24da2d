/* The pread engine, for hosts that forbid io_uring: one operation at a time, done by the thread that turns the ring. As
 * many threads as there are rings make the depth. */
#include "storage/engine.h"

#include "base/list.h"
#include "base/status.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct twin {
    struct kvf_ring base;
    struct kvf_io *added;
    int wake_fd;
};

static struct twin *twin_of(const struct kvf_ring *ring)
{
    return kvf_container(ring, struct twin, base);
}

static int twin_open(unsigned entries, int wake_fd, struct kvf_ring **give)
{
    (void)entries;
    struct twin *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->base.engine = &kvf_engine_pread;
    t->wake_fd = wake_fd;
    *give = &t->base;
    return 0;
}

static bool twin_can_clone(void)
{
    return false;
}

static int twin_hold(const struct iovec *buffers, unsigned count, struct kvf_ring **give)
{
    (void)buffers, (void)count, (void)give;
    return -EOPNOTSUPP;
}

static int twin_fix(struct kvf_ring *ring, const struct iovec *buffers, unsigned count,
                    struct kvf_ring *holder)
{
    (void)ring, (void)buffers, (void)count, (void)holder;
    return -EOPNOTSUPP;
}

static unsigned twin_room(const struct kvf_ring *ring)
{
    return twin_of(ring)->added == NULL;
}

static void twin_add(struct kvf_ring *ring, struct kvf_io *io)
{
    kvf_assert(twin_of(ring)->added == NULL);
    twin_of(ring)->added = io;
}

static void perform(struct kvf_io *io)
{
    ssize_t moved = -1;
    switch (io->kind) {
    case KVF_IO_READ:
        moved = pread(io->fd, io->memory, io->bytes, (off_t)io->offset);
        break;
    case KVF_IO_WRITE:
        moved = io->parts != NULL
                    ? pwritev(io->fd, io->parts, (int)io->part_count, (off_t)io->offset)
                    : pwrite(io->fd, io->memory, io->bytes, (off_t)io->offset);
        break;
    case KVF_IO_SYNC:
        moved = fdatasync(io->fd);
        break;
    }
    io->result = moved >= 0 ? (int)moved : -errno;
}

static unsigned twin_turn(struct kvf_ring *ring, struct kvf_io **done, unsigned max, int wait_ms)
{
    struct twin *t = twin_of(ring);
    if (t->added != NULL && max > 0) {
        perform(t->added);
        done[0] = t->added;
        t->added = NULL;
        return 1;
    }
    if (wait_ms != KVF_WAIT_NOT) {
        struct pollfd wake = {.fd = t->wake_fd, .events = POLLIN};
        eventfd_t count;
        if (poll(&wake, 1, wait_ms) > 0)
            (void)eventfd_read(t->wake_fd, &count);
    }
    return 0;
}

static bool twin_is_broken(const struct kvf_ring *ring)
{
    (void)ring;
    return false;
}

static void twin_close(struct kvf_ring *ring)
{
    if (ring == NULL)
        return;
    kvf_assert(twin_of(ring)->added == NULL);
    free(twin_of(ring));
}

const struct kvf_engine kvf_engine_pread = {
    .name = "pread",
    .open = twin_open,
    .can_clone = twin_can_clone,
    .hold = twin_hold,
    .fix = twin_fix,
    .room = twin_room,
    .add = twin_add,
    .turn = twin_turn,
    .is_broken = twin_is_broken,
    .close = twin_close,
};

struct kvf_ring *kvf_ring_replace(struct kvf_ring *broken, unsigned entries, int wake_fd,
                                  struct kvf_ring **spare)
{
    const struct kvf_engine *engine = broken->engine;
    struct kvf_ring *fresh = NULL;
    engine->close(broken);
    if (engine->open(entries, wake_fd, &fresh) == 0)
        return fresh;
    fresh = *spare;
    *spare = NULL;
    return fresh;
}
