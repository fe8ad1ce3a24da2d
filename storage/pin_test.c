/* Fixed buffers of a whole store: shared by all rings, larger than one kernel buffer, or not allowed at all. */
#include "base/test.h"
#include "storage/fixture.h"

#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (700 << 10)

static void open__rings_can_share__one_registration_and_a_clone_each(void **state)
{
    struct fixture f;
    struct fixture_block block;
    (void)state;
    fixture_init(&f, NULL, 2 * KVF_MIB);
    f.options.io = KVF_STORE_IO_URING;
    f.options.read_threads = 5;
    fixture_open(&f);
    const char *text = kvf_store_io_text(f.store);
    uint64_t registrations = fixture_stats(&f).registrations;
    if (kvf_engine_uring.can_clone()) {
        assert_int_equal(registrations, 1);
        assert_non_null(strstr(text, "1 registration and 5 clones"));
    } else {
        assert_int_equal(registrations, 5);
        assert_non_null(strstr(text, "ring by ring"));
    }
    assert_non_null(strstr(text, " ms)"));
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
    assert_int_equal(fixture_stats(&f).registrations, registrations);
    fixture_fini(&f);
}

/* Blocks written from and read into every arena; of several, the last one has only a quarter where it is long. */
static void use_arenas(uint64_t arena_bytes, size_t count)
{
    struct fixture f;
    struct kvf_arena *arenas = calloc(count, sizeof(*arenas));
    const struct kvf_arena **list = calloc(count, sizeof(struct kvf_arena *));
    assert_true(arenas != NULL && list != NULL);
    fixture_init(&f, NULL, KVF_MIB);
    f.options.io = KVF_STORE_IO_URING;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = i > 0 && arena_bytes == 1024 * KVF_MIB ? arena_bytes / 4 : arena_bytes;
        assert_true(kvf_is_ok(kvf_arena_create(bytes, (uint32_t)i, false, &arenas[i], &f.why)));
        list[i] = &arenas[i];
    }
    f.options.arenas = list;
    f.options.arena_count = count;
    fixture_open(&f);
    assert_non_null(strstr(kvf_store_io_text(f.store), "io_uring, fixed buffers"));
    struct kvf_arena plain = f.arena;
    for (size_t i = 0; i < count; i++) {
        struct fixture_block block;
        struct kvf_read *reads[] = {&block.read};
        struct kvf_read_set set = {.reads = reads, .count = 1};
        f.arena = arenas[i];
        uint64_t end = arenas[i].bytes - kvf_round_up_page(LENGTH); /* its last bytes */
        fixture_append(&f, &block, i, LENGTH, end);
        fixture_wait(&f, &block, 1);
        assert_int_equal(block.status.code, KVF_OK);
        fixture_aim(&f, &block, LENGTH, end);
        block.read.extent.arena = list[i];
        kvf_store_read(f.store, &set);
        fixture_wait(&f, &block, 1);
        assert_int_equal(block.status.code, KVF_OK);
        assert_true(fixture_is_right(&f, &block));
    }
    f.arena = plain;
    fixture_close(&f);
    for (size_t i = 0; i < count; i++)
        kvf_arena_close(&arenas[i]);
    fixture_fini(&f);
    free(arenas);
    free(list);
}

static void open__several_arenas__each_is_a_fixed_buffer(void **state)
{
    (void)state;
    use_arenas(4 * KVF_MIB, 7);
}

/* One fixed buffer may have 1 GiB at most: a pool of 1.25 GiB is two arenas, as kvf_pool_create cuts it. */
static void open__pool_of_1280_mib__fixed_in_two_buffers(void **state)
{
    (void)state;
    use_arenas(1024 * KVF_MIB, 2);
}

/* As a daemon under a plain user with `limit` bytes of lockable memory. */
static bool become_limited(rlim_t limit)
{
    struct rlimit both = {limit, limit};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    return setrlimit(RLIMIT_MEMLOCK, &both) == 0 && syscall(SYS_capget, &header, data) == 0 &&
           (data[0].effective &= ~(UINT32_C(1) << CAP_IPC_LOCK), true) &&
           syscall(SYS_capset, &header, data) == 0;
}

static int limited_child(struct fixture *f, rlim_t limit, const char *expected,
                         uint64_t registrations)
{
    struct fixture_block block;
    if (!become_limited(limit))
        return 10;
    fixture_open(f);
    if (strstr(kvf_store_io_text(f->store), expected) == NULL) {
        print_error("%s\n", kvf_store_io_text(f->store));
        return 11;
    }
    if (fixture_stats(f).registrations != registrations)
        return 12;
    if (!kvf_is_ok(fixture_put(f, &block, 1, LENGTH)) || !kvf_is_ok(fixture_get(f, &block, LENGTH)))
        return 13;
    fixture_close(f);
    return 0;
}

static void expect_limited(enum kvf_store_io io, rlim_t limit, const char *expected,
                           uint64_t registrations)
{
    struct fixture f;
    fixture_init(&f, NULL, 4 * KVF_MIB);
    f.options.io = io;
    pid_t pid = fork();
    if (pid == 0)
        _exit(limited_child(&f, limit, expected, registrations));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fixture_fini(&f);
}

static void open__little_lockable_memory__plain_buffers_and_the_numbers(void **state)
{
    (void)state;
    expect_limited(KVF_STORE_IO_URING, 1 << 20, "RLIMIT_MEMLOCK is 1024 KiB", 0);
    expect_limited(KVF_STORE_IO_URING, 3 << 20, "plain buffers: the pool of 4 MiB needs ", 0);
    if (kvf_engine_uring.can_clone()) /* enough for the pool once */
        expect_limited(KVF_STORE_IO_URING, 6 << 20,
                       "io_uring, fixed buffers (4 MiB, 1 registration", 1);
}

/* Since Linux 6.14 the rings themselves count. There may be enough for the first of them only. */
static void open__too_little_lockable_memory_for_the_rings__opens_and_says_so(void **state)
{
    (void)state;
    for (rlim_t kib = 0; kib <= 64; kib += 8)
        expect_limited(KVF_STORE_IO_AUTO, kib << 10, "RLIMIT_MEMLOCK", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open__rings_can_share__one_registration_and_a_clone_each),
        cmocka_unit_test(open__several_arenas__each_is_a_fixed_buffer),
        cmocka_unit_test(open__pool_of_1280_mib__fixed_in_two_buffers),
        cmocka_unit_test(open__little_lockable_memory__plain_buffers_and_the_numbers),
        cmocka_unit_test(open__too_little_lockable_memory_for_the_rings__opens_and_says_so),
    };
    return cmocka_run_group_tests_name("pin", tests, NULL, NULL);
}
