/* Opening a store: what is refused, what is made of what is there, which engine it gets. On both engines. */
#include "base/clock.h"
#include "base/faulty_memory.h"
#include "base/test.h"
#include "storage/faulty.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- directories and options ---- */

static void expect_refused(struct fixture *f, enum kvf_code code, const char *word)
{
    struct kvf_status status = fixture_try_open(f);
    assert_int_equal(status.code, code);
    if (strstr(f->why.text, word) == NULL)
        fail_msg("'%s' is not in '%s'", word, f->why.text);
    assert_null(f->store);
}

static void open__locked_by_another__busy(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_open(&f);
    struct kvf_store *second;
    assert_int_equal(kvf_store_open(&f.options, &second, &f.why).code, KVF_BUSY);
    assert_non_null(strstr(f.why.text, f.path));
    struct fixture_block block;
    assert_int_equal(fixture_put(&f, &block, 1, 1).code, KVF_OK);
    fixture_fini(&f);
}

/* What a daemon that was killed leaves behind while the kernel still writes for it: a description of the segment's file. */
static int hold_segment(const struct fixture *f, const char *name)
{
    char path[128];
    fixture_file_path(f, name, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    return fd;
}

static void open__writes_of_the_daemon_before_under_way__waits_for_their_end(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_open(&f);
    fixture_close(&f);
    int fd = hold_segment(&f, "segment-00001");
    pid_t holder = fork();
    assert_true(holder >= 0);
    if (holder == 0) {
        (void)usleep(300000);
        _exit(0);
    }
    assert_int_equal(close(fd), 0); /* the child has the description now */
    uint64_t start_ns = kvf_clock_now_ns();
    fixture_open(&f);
    assert_true(kvf_clock_now_ns() - start_ns >= 200 * KVF_NS_PER_MS);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    fixture_fini(&f);
}

static void open__writes_of_the_daemon_before_never_end__busy_and_untouched(void **state)
{
    struct fixture f;
    struct fixture_block block;
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, 1).code, KVF_OK);
    fixture_close(&f);
    int fd = hold_segment(&f, "segment-00000");
    expect_refused(&f, KVF_BUSY, "segment-00000");
    assert_int_equal(close(fd), 0);
    fixture_open(&f);
    fixture_fini(&f);
}

static void touch(const struct fixture *f, const char *name)
{
    char path[128];
    fixture_file_path(f, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
}

static bool exists(const struct fixture *f, const char *name)
{
    char path[128];
    fixture_file_path(f, name, path);
    return access(path, F_OK) == 0;
}

static void open__foreign_directory__denied_and_untouched(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    touch(&f, "thesis.tex");
    expect_refused(&f, KVF_DENIED, "thesis.tex");
    assert_true(exists(&f, "thesis.tex"));
    assert_false(exists(&f, "kvferry.store"));
    assert_false(exists(&f, "segment-00000"));
    fixture_fini(&f);
}

static void open__directory_with_lost_and_found__is_empty(void **state)
{
    struct fixture f;
    char path[128];
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_file_path(&f, "lost+found", path);
    assert_int_equal(mkdir(path, 0700), 0);
    fixture_open(&f);
    assert_int_equal(kvf_store_segment_count(f.store, 0), 8);
    assert_true(exists(&f, "segment-00007"));
    fixture_fini(&f);
}

/* What the kernel names as the alignment of direct I/O decides; ours is 4 KiB throughout. */
static void open__alignment_of_direct_io__fits_ours_or_is_refused(void **state)
{
    const int64_t fitting[] = {512, 4096, HOST_DIO_UNKNOWN}, too_large[] = {8192, 65536, 3000};
    struct fixture f;
    struct fixture_block block;
    fixture_init(&f, host_engine(state), KVF_MIB);
    for (size_t i = 0; i < 3; i++) {
        host_dio_alignment = too_large[i];
        char bytes[16];
        (void)snprintf(bytes, sizeof(bytes), "%d bytes", (int)too_large[i]);
        expect_refused(&f, KVF_UNSUPPORTED, bytes);
        assert_false(exists(&f, "kvferry.store") || exists(&f, "segment-00000"));
    }
    for (size_t i = 0; i < 4; i++) {
        host_dio_alignment = i < 3 ? fitting[i] : 0; /* 0: the filesystem has no direct I/O */
        fixture_open(&f);
        assert_int_equal(f.store->drives[0].direct, i < 3);
        assert_int_equal(strstr(kvf_store_io_text(f.store), "page cache") != NULL, i == 3);
        assert_int_equal(fixture_put(&f, &block, i, 70000).code, KVF_OK);
        assert_int_equal(fixture_get(&f, &block, 70000).code, KVF_OK);
        fixture_close(&f);
    }
    host_dio_alignment = HOST_DIO_AS_IT_IS;
    fixture_fini(&f);
}

static void open__impossible_options__said_in_words(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    struct kvf_store_options good = f.options;
    f.options.capacity_bytes = 3 * KVF_MIB;
    expect_refused(&f, KVF_INVALID, "capacity");
    f.options = good;
    f.options.queue_depth = 5000;
    expect_refused(&f, KVF_INVALID, "4096");
    f.options = good;
    f.options.io_bytes = 5000;
    expect_refused(&f, KVF_INVALID, "4 KiB");
    f.options = good;
    f.paths[0] = "/tmp/kvf-storage-does-not-exist";
    expect_refused(&f, KVF_IO, "does-not-exist");
    f.paths[0] = "/proc/self/status";
    expect_refused(&f, KVF_IO, "/proc/self/status");
    f.paths[0] = f.path;
    f.options.segment_bytes = UINT64_C(1)
                              << 39; /* more than any drive has; refused before any is taken */
    f.options.capacity_bytes = UINT64_C(1) << 42;
    expect_refused(&f, KVF_NO_SPACE, "capacity");
    assert_false(exists(&f, "kvferry.store"));
    assert_false(exists(&f, "segment-00000"));
    fixture_fini(&f);
}

static void open__another_capacity__grows_but_does_not_shrink(void **state)
{
    struct fixture f;
    struct fixture_block block;
    fixture_init(&f, host_engine(state), KVF_MIB);
    fixture_open(&f);
    assert_int_equal(fixture_put(&f, &block, 1, 5000).code, KVF_OK);
    fixture_close(&f);
    f.options.capacity_bytes = 20 * KVF_MIB;
    fixture_open(&f);
    assert_int_equal(f.found_count, 1);
    assert_int_equal(kvf_store_segment_count(f.store, 0), 10);
    assert_int_equal(fixture_get(&f, &block, 5000).code, KVF_OK);
    fixture_close(&f);
    f.options.capacity_bytes = 18 * KVF_MIB;
    expect_refused(&f, KVF_INVALID, "shrink");
    f.options.capacity_bytes = 20 * KVF_MIB;
    f.options.segment_bytes = KVF_MIB;
    expect_refused(&f, KVF_INVALID, "segments of");
    f.options.segment_bytes = 2 * KVF_MIB;
    fixture_open(&f);
    assert_int_equal(f.found_count, 1);
    fixture_fini(&f);
}

static void open__no_segment_size__keeps_that_of_the_store_when_it_grows(void **state)
{
    struct fixture f;
    struct fixture_block block;
    fixture_init(&f, host_engine(state), KVF_MIB);
    f.options.segment_bytes = 0;
    f.options.capacity_bytes = 512 * KVF_MIB;
    fixture_open(&f);
    assert_int_equal(kvf_store_segment_count(f.store, 0), 3); /* of 170 MiB, not 2 of 256 */
    assert_int_equal(fixture_put(&f, &block, 1, 5000).code, KVF_OK);
    fixture_close(&f);
    f.options.capacity_bytes = 700 * KVF_MIB; /* alone it would be 3 of 233 MiB */
    fixture_open(&f);
    assert_int_equal(kvf_store_segment_count(f.store, 0), 4);
    assert_int_equal(f.found_count, 1);
    assert_int_equal(fixture_get(&f, &block, 5000).code, KVF_OK);
    fixture_fini(&f);
}

static void open__no_segment_size__two_of_the_largest_blocks_share_a_segment(void **state)
{
    struct fixture f;
    static struct fixture_block blocks[2];
    fixture_init(&f, host_engine(state), KVF_BLOCK_MAX_BYTES);
    f.options.segment_bytes = 0;
    f.options.capacity_bytes = 1024 * KVF_MIB;
    fixture_open(&f);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(fixture_put(&f, &blocks[i], i, KVF_BLOCK_MAX_BYTES).code, KVF_OK);
    assert_int_equal(blocks[0].location.segment, blocks[1].location.segment);
    fixture_fini(&f);
}

static void open__io_text__names_the_engine(void **state)
{
    struct fixture f;
    bool pread = host_engine(state) == &kvf_engine_pread;
    fixture_init(&f, NULL, KVF_MIB);
    f.options.io = pread ? KVF_STORE_IO_PREAD : KVF_STORE_IO_AUTO;
    fixture_open(&f);
    const char *text = kvf_store_io_text(f.store);
    if (pread) {
        assert_non_null(strstr(text, "pread"));
        assert_int_equal(fixture_stats(&f).registrations, 0);
    } else {
        assert_non_null(strstr(text, "io_uring"));
        bool fixed = strstr(text, "fixed") != NULL;
        assert_int_equal(fixture_stats(&f).registrations > 0, fixed);
    }
    fixture_fini(&f);
}

/* ---- engines ---- */

#define LENGTH (1500 << 10)

static void open__fails_at_each_step__nothing_is_left(void **state)
{
    for (int at = 1; at <= 4; at++) { /* three readers and the writer */
        struct fixture f;
        faulty_init(host_engine(state));
        fixture_init(&f, &faulty_engine, KVF_MIB);
        faults.open_fails_at = at;
        assert_int_equal(fixture_try_open(&f).code, KVF_NO_MEMORY);
        assert_true(strlen(f.why.text) > 0);
        assert_int_equal(rmdir(f.path), 0); /* only an empty directory goes */
        fixture_fini(&f);
    }
}

/* Until an open with its recovery needs no further allocation. */
static void open__no_memory_at_each_step__said_and_nothing_is_left(void **state)
{
    unsigned refused = 0, nth = 1;
    for (bool failed = true; failed; nth++) {
        struct fixture f;
        fixture_init(&f, host_engine(state), KVF_MIB);
        faulty_memory_fail_at(nth);
        struct kvf_status status = fixture_try_open(&f);
        if (kvf_is_ok(status))
            status = fixture_start_recovery(&f);
        failed = faulty_memory_failed();
        faulty_memory_fail_at(0);
        if (!kvf_is_ok(status)) {
            assert_int_equal(status.code, KVF_NO_MEMORY);
            assert_true(strlen(f.why.text) > 0);
            refused++;
        }
        if (f.store == NULL)
            assert_int_equal(rmdir(f.path), 0);
        fixture_fini(&f);
    }
    assert_true(refused > 10);
}

static void open__no_memory_to_lock__plain_buffers_and_the_remedy(void **state)
{
    struct fixture f;
    struct fixture_block block;
    faulty_init(host_engine(state));
    fixture_init(&f, &faulty_engine, 2 * KVF_MIB);
    faults.fix_error = -ENOMEM;
    fixture_open(&f);
    assert_non_null(strstr(kvf_store_io_text(f.store), "RLIMIT_MEMLOCK"));
    assert_non_null(strstr(kvf_store_io_text(f.store), " MiB"));
    assert_int_equal(fixture_stats(&f).registrations, 0);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
    fixture_fini(&f);
}

/* Where rings cannot share one registration each has its own, and so each pins the pool. */
static void open__kernel_cannot_clone__registered_ring_by_ring(void **state)
{
    struct fixture f;
    struct fixture_block block;
    faulty_init(host_engine(state));
    fixture_init(&f, &faulty_engine, 2 * KVF_MIB);
    faults.no_clone = true;
    fixture_open(&f);
    bool fixes = strstr(kvf_store_io_text(f.store), "fixed buffers") != NULL;
    assert_int_equal(fixes, faults.inner == &kvf_engine_uring && host_fixes_buffers());
    assert_int_equal(fixture_stats(&f).registrations, fixes ? 3 : 0);
    assert_int_equal(fixture_put(&f, &block, 1, LENGTH).code, KVF_OK);
    assert_int_equal(fixture_get(&f, &block, LENGTH).code, KVF_OK);
    fixture_fini(&f);
}

/* io_uring_setup says EPERM from here on, as under a container's seccomp profile. */
static void forbid_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(10);
}

static int forbidden_child(struct fixture *f)
{
    struct fixture_block block;
    forbid_uring();
    f->options.io = KVF_STORE_IO_URING;
    if (fixture_try_open(f).code != KVF_UNSUPPORTED)
        return 11;
    if (strstr(f->why.text, "seccomp") == NULL)
        return 12;
    f->options.io = KVF_STORE_IO_AUTO;
    fixture_open(f);
    if (strstr(kvf_store_io_text(f->store), "pread: io_uring is forbidden") == NULL)
        return 13;
    if (!kvf_is_ok(fixture_put(f, &block, 1, 5000)) || !kvf_is_ok(fixture_get(f, &block, 5000)))
        return 14;
    fixture_close(f);
    return 0;
}

static void open__io_uring_forbidden__auto_reads_plainly_and_uring_says_why(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f, NULL, KVF_MIB);
    pid_t pid = fork();
    if (pid == 0)
        _exit(forbidden_child(&f));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open__locked_by_another__busy),
        cmocka_unit_test(open__writes_of_the_daemon_before_under_way__waits_for_their_end),
        cmocka_unit_test(open__writes_of_the_daemon_before_never_end__busy_and_untouched),
        cmocka_unit_test(open__foreign_directory__denied_and_untouched),
        cmocka_unit_test(open__directory_with_lost_and_found__is_empty),
        cmocka_unit_test(open__alignment_of_direct_io__fits_ours_or_is_refused),
        cmocka_unit_test(open__impossible_options__said_in_words),
        cmocka_unit_test(open__another_capacity__grows_but_does_not_shrink),
        cmocka_unit_test(open__no_segment_size__keeps_that_of_the_store_when_it_grows),
        cmocka_unit_test(open__no_segment_size__two_of_the_largest_blocks_share_a_segment),
        cmocka_unit_test(open__io_text__names_the_engine),
        cmocka_unit_test(open__fails_at_each_step__nothing_is_left),
        cmocka_unit_test(open__no_memory_at_each_step__said_and_nothing_is_left),
        cmocka_unit_test(open__no_memory_to_lock__plain_buffers_and_the_remedy),
        cmocka_unit_test(open__kernel_cannot_clone__registered_ring_by_ring),
        cmocka_unit_test(open__io_uring_forbidden__auto_reads_plainly_and_uring_says_why),
    };
    return HOST_RUN_TESTS("open", tests);
}
