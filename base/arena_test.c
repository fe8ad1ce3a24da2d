#include "base/arena.h"
#include "base/block.h"
#include "base/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void arena__created_and_mapped__share_bytes_and_cannot_shrink(void **state)
{
    (void)state;
    struct kvf_arena made, mapped;
    assert_true(kvf_is_ok(kvf_arena_create(2 * KVF_MIB, 3, false, &made, NULL)));
    assert_true(kvf_is_ok(kvf_arena_map(dup(made.fd), 2 * KVF_MIB, 3, &mapped)));
    memcpy(made.base + KVF_MIB, "ferry", 5);
    assert_memory_equal(mapped.base + KVF_MIB, "ferry", 5);
    assert_int_equal(ftruncate(made.fd, 4096), -1);
    struct kvf_extent extent = {.arena = &mapped, .offset = KVF_MIB, .bytes = KVF_PAGE};
    assert_memory_equal(kvf_extent_at(extent), "ferry", 5);
    kvf_arena_close(&mapped);
    kvf_arena_close(&made);
    kvf_arena_close(&made);
}

static void arena_create__not_whole_huge_pages__is_aligned_and_all_there(void **state)
{
    (void)state;
    const uint64_t bytes = 4 * KVF_MIB + KVF_PAGE;
    struct kvf_arena made;
    struct stat file;
    assert_true(kvf_is_ok(kvf_arena_create(bytes, 0, false, &made, NULL)));
    assert_int_equal((uintptr_t)made.base % (2 * KVF_MIB), 0);
    assert_int_equal(fstat(made.fd, &file), 0);
    assert_true((uint64_t)file.st_blocks * 512 >= bytes);
    for (uint64_t at = 0; at < bytes; at += KVF_PAGE)
        assert_int_equal(made.base[at], 0);
    made.base[bytes - 1] = 1;
    kvf_arena_close(&made);
}

static void arena_map__unsealed_or_wrong_size__is_refused(void **state)
{
    (void)state;
    struct kvf_arena arena;
    int fd = memfd_create("plain", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(kvf_arena_map(fd, 8192, 0, &arena).code, KVF_INVALID);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* taken, hence closed */
    struct kvf_arena made;
    assert_true(kvf_is_ok(kvf_arena_create(8192, 0, false, &made, NULL)));
    assert_int_equal(kvf_arena_map(dup(made.fd), 16384, 0, &arena).code, KVF_INVALID);
    fd = dup(made.fd);
    assert_int_equal(kvf_arena_map(fd, 0, 0, &arena).code, KVF_INVALID);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    kvf_arena_close(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena__created_and_mapped__share_bytes_and_cannot_shrink),
        cmocka_unit_test(arena_create__not_whole_huge_pages__is_aligned_and_all_there),
        cmocka_unit_test(arena_map__unsealed_or_wrong_size__is_refused),
    };
    return cmocka_run_group_tests_name("base/arena", tests, NULL, NULL);
}
