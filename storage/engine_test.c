/* What storage relies on in a ring, on both engines. */
#include "storage/engine.h"
#include "storage/host.h"

#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

static int temporary_file(void)
{
    char path[] = "/tmp/kvf-engine-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    return fd;
}

struct rig {
    const struct kvf_engine *engine;
    struct kvf_ring *ring;
    int wake_fd;
    int fd;
    uint8_t *memory; /* 16 pages */
};

static void rig_open(struct rig *rig, void **state)
{
    rig->engine = host_engine(state);
    rig->wake_fd = eventfd(0, EFD_CLOEXEC);
    rig->fd = temporary_file();
    rig->memory = aligned_alloc(PAGE, 16 * PAGE);
    memset(rig->memory, 0, 16 * PAGE);
    assert_int_equal(rig->engine->open(8, rig->wake_fd, &rig->ring), 0);
}

static void rig_close(struct rig *rig)
{
    rig->engine->close(rig->ring);
    (void)close(rig->wake_fd);
    (void)close(rig->fd);
    free(rig->memory);
}

/* Run all of them, as many at a time as the ring takes. */
static void run_all(struct rig *rig, struct kvf_io *ios, unsigned count)
{
    struct kvf_io *done[8];
    unsigned next = 0, back = 0;
    while (back < count) {
        while (next < count && rig->engine->room(rig->ring) > 0)
            rig->engine->add(rig->ring, &ios[next++]);
        back += rig->engine->turn(rig->ring, done, 8, KVF_WAIT_EVER);
    }
}

static struct kvf_io io_of(const struct rig *rig, enum kvf_io_kind kind, unsigned page)
{
    return (struct kvf_io){.kind = kind,
                           .fd = rig->fd,
                           .buffer = -1,
                           .memory = rig->memory + page * PAGE,
                           .bytes = PAGE,
                           .offset = page * PAGE,
                           .result = -1};
}

static void ring__writes_sync_reads__each_back_once_with_its_bytes(void **state)
{
    struct rig rig;
    struct kvf_io ios[16];
    rig_open(&rig, state);
    for (unsigned i = 0; i < 16; i++) {
        memset(rig.memory + i * PAGE, (int)i + 1, PAGE);
        ios[i] = io_of(&rig, KVF_IO_WRITE, i);
    }
    run_all(&rig, ios, 16);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(ios[i].result, PAGE);
    ios[0] = io_of(&rig, KVF_IO_SYNC, 0);
    run_all(&rig, ios, 1);
    assert_int_equal(ios[0].result, 0);
    memset(rig.memory, 0, 16 * PAGE);
    for (unsigned i = 0; i < 16; i++)
        ios[i] = io_of(&rig, KVF_IO_READ, i);
    run_all(&rig, ios, 16);
    for (unsigned i = 0; i < 16 * PAGE; i++)
        assert_int_equal(rig.memory[i], i / PAGE + 1);
    rig_close(&rig);
}

static void ring__operation_that_fails__says_its_errno(void **state)
{
    struct rig rig;
    rig_open(&rig, state);
    struct kvf_io io = io_of(&rig, KVF_IO_READ, 0);
    io.fd = -1;
    run_all(&rig, &io, 1);
    assert_int_equal(io.result, -EBADF);
    io = io_of(&rig, KVF_IO_READ, 0); /* an empty file */
    run_all(&rig, &io, 1);
    assert_int_equal(io.result, 0);
    rig_close(&rig);
}

static void read_back_fixed(struct rig *rig)
{
    struct kvf_io io = io_of(rig, KVF_IO_READ, 9);
    memset(io.memory, 0, PAGE);
    io.buffer = 1;
    run_all(rig, &io, 1);
    assert_int_equal(io.result, PAGE);
    assert_int_equal(rig->memory[9 * PAGE + 4095], 7);
}

/* The holder belongs to this thread, and so do the rings: that a thread's own ring clones from another's holder is what
 * pin_test sees. */
static void ring__fixed_buffers__registered_or_cloned_they_read_right(void **state)
{
    struct rig rig;
    struct kvf_ring *second, *holder = NULL;
    rig_open(&rig, state);
    struct iovec buffers[2] = {{rig.memory, 8 * PAGE}, {rig.memory + 8 * PAGE, 8 * PAGE}};
    int error = rig.engine->fix(rig.ring, buffers, 2, NULL);
    if (error == -EOPNOTSUPP ||
        error == -ENOMEM) { /* the twin; a host with little lockable memory */
        assert_false(rig.engine->can_clone() && error == -EOPNOTSUPP);
        rig_close(&rig);
        return;
    }
    assert_int_equal(error, KVF_FIX_REGISTERED);
    struct kvf_io io = io_of(&rig, KVF_IO_WRITE, 9);
    memset(io.memory, 7, PAGE);
    io.buffer = 1;
    run_all(&rig, &io, 1);
    assert_int_equal(io.result, PAGE);
    read_back_fixed(&rig);
    int wake_fd = eventfd(0, EFD_CLOEXEC);
    struct kvf_ring *first = rig.ring;
    assert_int_equal(rig.engine->open(8, wake_fd, &second), 0);
    assert_int_equal(rig.engine->hold(buffers, 2, &holder), 0);
    assert_int_equal(rig.engine->fix(second, buffers, 2, holder),
                     rig.engine->can_clone() ? KVF_FIX_CLONED : KVF_FIX_REGISTERED);
    rig.ring = second;
    read_back_fixed(&rig);
    rig.engine->close(holder); /* what was cloned stays */
    read_back_fixed(&rig);
    rig.engine->close(second);
    (void)close(wake_fd);
    rig.ring = first;
    rig_close(&rig);
}

static void *wake_later(void *context)
{
    (void)usleep(20000);
    (void)eventfd_write(*(int *)context, 1);
    return NULL;
}

static void turn__asleep_without_work__ends_by_the_eventfd_each_time(void **state)
{
    struct rig rig;
    struct kvf_io *done[8];
    rig_open(&rig, state);
    for (unsigned i = 0; i < 3; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wake_later, &rig.wake_fd), 0);
        assert_int_equal(rig.engine->turn(rig.ring, done, 8, KVF_WAIT_EVER), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    rig_close(&rig);
}

static void turn__asleep_with_a_limit__ends_by_it_or_by_the_eventfd(void **state)
{
    struct rig rig;
    struct kvf_io *done[8];
    rig_open(&rig, state);
    for (unsigned i = 0; i < 3; i++) {
        pthread_t thread;
        assert_int_equal(rig.engine->turn(rig.ring, done, 8, 5), 0);
        assert_int_equal(pthread_create(&thread, NULL, wake_later, &rig.wake_fd), 0);
        time_t start = time(NULL);
        assert_int_equal(rig.engine->turn(rig.ring, done, 8, 60000), 0);
        assert_true(time(NULL) - start < 30);
        assert_int_equal(pthread_join(thread, NULL), 0);
        struct kvf_io io = io_of(&rig, KVF_IO_WRITE, 0);
        run_all(&rig, &io, 1);
    }
    rig_close(&rig);
}

static void ring__closed_while_asleep_was_possible__no_write_comes_late(void **state)
{
    for (unsigned i = 0; i < 50; i++) {
        struct rig rig;
        struct kvf_io *done[8];
        rig_open(&rig, state);
        (void)eventfd_write(rig.wake_fd, 1);
        (void)rig.engine->turn(rig.ring, done, 8, KVF_WAIT_EVER);
        struct kvf_io io = io_of(&rig, KVF_IO_WRITE, 0);
        run_all(&rig, &io, 1); /* arms the wake-up again on the way */
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring__writes_sync_reads__each_back_once_with_its_bytes),
        cmocka_unit_test(ring__operation_that_fails__says_its_errno),
        cmocka_unit_test(ring__fixed_buffers__registered_or_cloned_they_read_right),
        cmocka_unit_test(turn__asleep_without_work__ends_by_the_eventfd_each_time),
        cmocka_unit_test(turn__asleep_with_a_limit__ends_by_it_or_by_the_eventfd),
        cmocka_unit_test(ring__closed_while_asleep_was_possible__no_write_comes_late),
    };
    return HOST_RUN_TESTS("engine", tests);
}
