#include "storage/pin.h"

#include "base/arena.h"
#include "base/clock.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool may_lock_all(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    if (syscall(SYS_capget, &header, data) != 0)
        return false;
    return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

static uint64_t lock_limit(void)
{
    struct rlimit limit;
    if (may_lock_all() || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

static bool collect_buffers(struct kvf_pin *pin, const struct kvf_arena *const *arenas,
                            size_t arena_count)
{
    pin->buffers = calloc(arena_count + 1, sizeof(*pin->buffers));
    if (pin->buffers == NULL)
        return false;
    pin->buffer_count = (unsigned)arena_count;
    for (size_t i = 0; i < arena_count; i++) {
        pin->buffers[i] = (struct iovec){.iov_base = arenas[i]->base, .iov_len = arenas[i]->bytes};
        pin->bytes += arenas[i]->bytes;
    }
    return true;
}

bool kvf_pin_init(struct kvf_pin *pin, const struct kvf_engine *engine,
                  const struct kvf_arena *const *arenas, size_t arena_count, uint64_t locked_bytes,
                  unsigned rings)
{
    *pin = (struct kvf_pin){.limit_bytes = lock_limit()};
    if (!collect_buffers(pin, arenas, arena_count))
        return false;
    pin->off = arena_count == 0;
    if (pin->off)
        return true;
    bool once = engine->can_clone();
    pin->needed_bytes = pin->bytes * (once ? 1 : rings) + locked_bytes;
    if (pin->needed_bytes > pin->limit_bytes) {
        pin->error = -ENOMEM;
        pin->off = true;
    } else if (once) {
        uint64_t start = kvf_clock_now_ns();
        int error = engine->hold(pin->buffers, pin->buffer_count, &pin->holder);
        kvf_pin_count(pin, error, kvf_clock_now_ns() - start);
        pin->off = error < 0;
    }
    return true;
}

void kvf_pin_fini(struct kvf_pin *pin, const struct kvf_engine *engine)
{
    engine->close(pin->holder);
    free(pin->buffers);
    *pin = (struct kvf_pin){.off = true};
}

int kvf_pin_ring(const struct kvf_pin *pin, struct kvf_ring *ring)
{
    if (pin->off)
        return pin->error != 0 ? pin->error : -EOPNOTSUPP;
    return ring->engine->fix(ring, pin->buffers, pin->buffer_count, pin->holder);
}

void kvf_pin_count(struct kvf_pin *pin, int result, uint64_t took_ns)
{
    pin->took_ns += took_ns;
    pin->clones += result == KVF_FIX_CLONED;
    pin->registrations += result == KVF_FIX_REGISTERED;
    if (result < 0 && pin->error == 0)
        pin->error = result;
}

static unsigned long long mib(uint64_t bytes)
{
    return bytes >> 20;
}

static void say_fixed(const struct kvf_pin *pin, char *text, size_t bytes)
{
    unsigned long long ms = pin->took_ns / KVF_NS_PER_MS;
    if (pin->clones > 0)
        (void)snprintf(text, bytes,
                       "fixed buffers (%llu MiB, %u registration%s and %u clones, %llu ms)",
                       mib(pin->bytes), pin->registrations, pin->registrations == 1 ? "" : "s",
                       pin->clones, ms);
    else
        (void)snprintf(text, bytes,
                       "fixed buffers (%llu MiB, registered ring by ring, %u times, %llu ms)",
                       mib(pin->bytes), pin->registrations, ms);
}

void kvf_pin_text(const struct kvf_pin *pin, char *text, size_t bytes)
{
    if (pin->buffer_count == 0)
        (void)snprintf(text, bytes, "plain buffers: no arenas were given");
    else if (pin->error == 0)
        say_fixed(pin, text, bytes);
    else if (pin->error == -ENOMEM && pin->limit_bytes != UINT64_MAX)
        (void)snprintf(text, bytes,
                       "plain buffers: the pool of %llu MiB needs %llu MiB of lockable memory and "
                       "RLIMIT_MEMLOCK is %llu KiB: raise it (ulimit -l, LimitMEMLOCK=) or grant "
                       "CAP_IPC_LOCK",
                       mib(pin->bytes), mib(pin->needed_bytes),
                       (unsigned long long)pin->limit_bytes >> 10);
    else if (pin->error == -ENOMEM)
        (void)snprintf(text, bytes,
                       "plain buffers: the kernel does not let %llu MiB be locked: raise "
                       "RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=), outside of a user namespace",
                       mib(pin->needed_bytes));
    else
        (void)snprintf(text, bytes,
                       "plain buffers: the kernel refuses to fix the pool (%s): use a newer kernel",
                       strerror(-pin->error));
}
