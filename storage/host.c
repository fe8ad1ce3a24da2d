#include "storage/host.h"

#include "base/status.h"

#include <errno.h>
#include <liburing.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

static bool host_is(const char *name)
{
    const char *host = getenv("KVF_TEST_HOST");
    return host != NULL && strcmp(host, name) == 0;
}

static bool lacks(const char *word)
{
    const char *all = getenv("KVF_TEST_LACKS");
    return all != NULL && strstr(all, word) != NULL;
}

bool host_runs_uring(void)
{
    struct kvf_ring *ring = NULL;
    int wake_fd = eventfd(0, EFD_CLOEXEC);
    kvf_assert(wake_fd >= 0);
    int error = kvf_engine_uring.open(4, wake_fd, &ring);
    if (error == 0)
        kvf_engine_uring.close(ring);
    (void)close(wake_fd);
    bool denied = error == -EPERM || error == -ENOSYS;
    if (error == -ENOMEM && host_is("no-memlock"))
        return true;
    if (denied != host_is("no-uring"))
        (void)fprintf(stderr, "io_uring_setup says %s\n", strerror(-error));
    kvf_assert(denied == host_is("no-uring") && (denied || error == 0));
    return !denied;
}

bool host_runs_pread(void)
{
    return !host_is("lacks");
}

bool host_fixes_buffers(void)
{
    return !host_is("no-memlock") && !lacks("buffers");
}

/* ---- groups of tests ---- */

static const struct kvf_engine *uring = &kvf_engine_uring, *twin = &kvf_engine_pread;

int host_use_uring(void **state)
{
    *state = &uring;
    return 0;
}

int host_use_twin(void **state)
{
    *state = &twin;
    return 0;
}

const struct kvf_engine *host_engine(void *const *state)
{
    return *(const struct kvf_engine *const *)*state;
}

/* ---- kernels without ... ---- */

int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);
int __real_io_uring_register(unsigned fd, unsigned opcode, void *argument, unsigned count);
int __wrap_io_uring_register(unsigned fd, unsigned opcode, void *argument, unsigned count);
int __real_io_uring_register_ring_fd(struct io_uring *ring);
int __wrap_io_uring_register_ring_fd(struct io_uring *ring);
int __real_io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers,
                                     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers,
                                     unsigned count);

int __real_statx(int directory_fd, const char *path, int flags, unsigned mask, struct statx *file);
int __wrap_statx(int directory_fd, const char *path, int flags, unsigned mask, struct statx *file);

int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params)
{
    unsigned missing = 0;
    missing |= lacks("single-issuer") ? IORING_SETUP_SINGLE_ISSUER : 0; /* before 6.0 */
    missing |= lacks("defer-taskrun") ? IORING_SETUP_DEFER_TASKRUN : 0; /* before 6.1 */
    missing |= lacks("coop-taskrun") ? IORING_SETUP_COOP_TASKRUN : 0;   /* before 5.19 */
    if ((params->flags & missing) != 0)
        return -EINVAL;
    int error = __real_io_uring_queue_init_params(entries, ring, params);
    if (error == 0 && lacks("ext-arg")) /* before 5.11 */
        ring->features &= ~(unsigned)IORING_FEAT_EXT_ARG;
    return error;
}

int __wrap_io_uring_register(unsigned fd, unsigned opcode, void *argument, unsigned count)
{
    const unsigned clone_buffers = 30;
    if (opcode == clone_buffers && lacks("clone")) /* before 6.12 */
        return -EINVAL;
    return __real_io_uring_register(fd, opcode, argument, count);
}

int __wrap_io_uring_register_ring_fd(struct io_uring *ring)
{
    return lacks("ring-fd") ? -EINVAL : __real_io_uring_register_ring_fd(ring); /* before 5.18 */
}

int64_t host_dio_alignment = HOST_DIO_AS_IT_IS;

int __wrap_statx(int directory_fd, const char *path, int flags, unsigned mask, struct statx *file)
{
    int result = __real_statx(directory_fd, path, flags, mask, file);
    if (result != 0 || host_dio_alignment == HOST_DIO_AS_IT_IS)
        return result;
    file->stx_mask |= STATX_DIOALIGN;
    if (host_dio_alignment == HOST_DIO_UNKNOWN)
        file->stx_mask &= ~(unsigned)STATX_DIOALIGN;
    else
        file->stx_dio_mem_align = file->stx_dio_offset_align = (uint32_t)host_dio_alignment;
    return result;
}

int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers,
                                     unsigned count)
{
    if (lacks("buffers")) /* 5.10 takes no memory of a memfd */
        return -EOPNOTSUPP;
    return __real_io_uring_register_buffers(ring, buffers, count);
}
