/* By the linker's --wrap. Threads of the code under test allocate as well, so the counter is theirs too. */
#include "base/faulty_memory.h"

#include <stdatomic.h>
#include <stddef.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static atomic_uint left; /* until one fails, itself included; 0: none will */
static atomic_bool failed, all;

void faulty_memory_fail_at(unsigned nth)
{
    failed = false;
    left = nth;
}

void faulty_memory_fail_all(bool fail)
{
    all = fail;
}

bool faulty_memory_failed(void)
{
    return failed;
}

static bool fails(void)
{
    unsigned now = left;
    while (now > 0 && !atomic_compare_exchange_weak(&left, &now, now - 1))
        ;
    if (now == 1)
        failed = true;
    return now == 1 || all;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}
