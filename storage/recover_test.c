/* What a start finds after crashes, damage and mix-ups; on both engines. */
#include "base/crc32c.h"
#include "base/test.h"
#include "storage/fixture.h"
#include "storage/host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- kill -9 ---- */

static uint64_t length_of(uint64_t seed)
{
    return 1 + (seed * 7919 * 4099) % 200000;
}

enum { WRITERS = 12 };

struct stream {
    struct fixture *f;
    struct fixture_block blocks[WRITERS];
    int pipe;
    uint64_t next;
};

static struct stream stream;

static void stream_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location);

static void stream_next(struct fixture_block *block)
{
    unsigned i = (unsigned)(block - stream.blocks);
    uint64_t seed = stream.next++;
    fixture_append(stream.f, block, seed, length_of(seed), i * UINT64_C(204800));
    block->append.ended = stream_ended;
}

static void stream_ended(struct kvf_append *append, struct kvf_status status,
                         struct kvf_location location)
{
    struct fixture_block *block = kvf_container(append, struct fixture_block, append);
    (void)location;
    if (!kvf_is_ok(status) ||
        write(stream.pipe, &block->seed, sizeof(block->seed)) != sizeof(block->seed))
        _exit(3);
    stream_next(block);
}

/* Appends without end; each one that ended OK is told through the pipe. */
static void child(struct fixture *f, int pipe, uint64_t first_seed)
{
    f->frees_at_once = false;
    if (!kvf_is_ok(fixture_try_open(f)) || !kvf_is_ok(fixture_start_recovery(f)))
        _exit(2);
    stream = (struct stream){.f = f, .pipe = pipe, .next = first_seed};
    for (unsigned i = 0; i < WRITERS; i++)
        stream_next(&stream.blocks[i]);
    for (;;)
        kvf_loop_run_once(f->loop, 1000);
}

static void store__killed_in_a_stream_of_appends__every_ended_one_is_there(void **state)
{
    struct fixture f;
    static uint64_t told[FIXTURE_FOUND_MAX];
    unsigned count = 0;
    fixture_init(&f, host_engine(state), 4 * KVF_MIB);
    f.options.capacity_bytes = 512 * KVF_MIB; /* sparse enough that nothing is reclaimed */
    f.options.segment_bytes = 8 * KVF_MIB;
    for (unsigned round = 0; round < 4; round++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0)
            child(&f, ends[1], UINT64_C(1000) * (round + 1));
        (void)close(ends[1]);
        unsigned until = count + 60 + round * 37;
        while (count < until && read(ends[0], &told[count], sizeof(told[0])) == sizeof(told[0]))
            count++;
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        while (read(ends[0], &told[count], sizeof(told[0])) == sizeof(told[0]))
            count++;
        (void)close(ends[0]);
        assert_true(count >= until);

        fixture_open(&f);
        for (unsigned i = 0; i < count; i++) {
            const struct fixture_found *found = fixture_find(&f, told[i]);
            assert_non_null(found);
            assert_int_equal(found->record.length, length_of(told[i]));
        }
        fixture_expect_found(&f);
        fixture_close(&f);
    }
    fixture_fini(&f);
}

/* ---- damage ---- */

enum { COUNT = 40 };

/* 300 KiB each, 6 a segment: six sealed segments and an open one. */
static void fill(struct fixture *f, struct fixture_block *blocks)
{
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(fixture_put(f, &blocks[i], i, 300 << 10).code, KVF_OK);
}

static void segment_file(uint32_t segment, char name[32])
{
    (void)snprintf(name, 32, "segment-%05u", segment);
}

static void flip_segment(const struct fixture *f, uint32_t segment, uint64_t offset)
{
    char name[32];
    segment_file(segment, name);
    fixture_flip(f, name, offset);
}

static void start_open(struct fixture *f, void **state, struct fixture_block *blocks)
{
    fixture_init(f, host_engine(state), KVF_MIB);
    f->options.capacity_bytes = 32 * KVF_MIB;
    fixture_open(f);
    fill(f, blocks);
}

static void start(struct fixture *f, void **state, struct fixture_block *blocks)
{
    start_open(f, state, blocks);
    fixture_close(f);
}

static void start_crashed(struct fixture *f, void **state, struct fixture_block *blocks)
{
    start_open(f, state, blocks);
    fixture_crash(f);
}

static struct fixture_block blocks[COUNT];

static void recover__crashed_store__all_there_and_then_sealed(void **state)
{
    struct fixture f;
    start_crashed(&f, state, blocks);
    for (unsigned i = 0; i < 3; i++) {
        fixture_open(&f);
        assert_int_equal(f.found_count, COUNT);
        fixture_expect_found(&f);
        fixture_close(&f);
    }
    fixture_fini(&f);
}

/* What only a scan would find is gone without one. */
static void close__segment_is_open__sealed_so_that_no_start_scans_it(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    flip_segment(&f, blocks[COUNT - 1].location.segment,
                 blocks[COUNT - 1].location.offset - KVF_PAGE + 70); /* its group's header */
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__footer_damaged__found_by_scanning(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    flip_segment(&f, blocks[0].location.segment, 2 * KVF_MIB - KVF_PAGE + 48);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT);
    fixture_expect_found(&f);
    fixture_reopen(&f); /* sealed again meanwhile */
    assert_int_equal(f.found_count, COUNT);
    fixture_fini(&f);
}

static void recover__index_damaged__found_by_scanning(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    struct kvf_location last = blocks[5].location; /* the index lies behind the last payload */
    assert_int_equal(last.segment, blocks[0].location.segment);
    flip_segment(&f, last.segment, last.offset + (300 << 10) + 100);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__payload_damaged_in_the_open_segment__only_that_one_is_gone(void **state)
{
    struct fixture f;
    start_crashed(&f, state, blocks);
    flip_segment(&f, blocks[COUNT - 2].location.segment,
                 blocks[COUNT - 2].location.offset + 299999);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT - 1);
    assert_null(fixture_find(&f, COUNT - 2));
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__group_header_damaged_in_the_open_segment__later_ones_are_found(void **state)
{
    struct fixture f;
    start_crashed(&f, state, blocks);
    assert_int_equal(blocks[COUNT - 1].location.segment, blocks[COUNT - 2].location.segment);
    flip_segment(&f, blocks[COUNT - 2].location.segment,
                 blocks[COUNT - 2].location.offset - KVF_PAGE + 70);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT - 1);
    assert_null(fixture_find(&f, COUNT - 2));
    assert_non_null(fixture_find(&f, COUNT - 1));
    fixture_expect_found(&f);
    /* What is written next does not collide with what is there. */
    struct fixture_block more;
    assert_int_equal(fixture_put(&f, &more, 1000, 300 << 10).code, KVF_OK);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, COUNT);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__segment_header_damaged__segment_is_free(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    flip_segment(&f, blocks[0].location.segment, 20);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT - 6);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__every_byte_of_a_page_damaged_in_turn__nothing_wrong_is_told(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), KVF_MIB);
    f.options.read_threads = 1;
    f.options.segment_bytes = 64 << 10;
    f.options.capacity_bytes = 4 * f.options.segment_bytes;
    fixture_open(&f);
    struct fixture_block block;
    assert_int_equal(fixture_put(&f, &block, 5, 5000).code, KVF_OK);
    fixture_crash(&f);
    for (unsigned at = 0; at < 200; at += 3) {
        uint64_t offset = block.location.offset - KVF_PAGE + at; /* in the group's header */
        flip_segment(&f, block.location.segment, offset);
        flip_segment(&f, block.location.segment,
                     f.options.segment_bytes - KVF_PAGE + at); /* in the footer */
        fixture_open(&f);
        assert_true(f.found_count <= 1);
        fixture_expect_found(&f);
        bool gone = f.found_count == 0;
        fixture_close(&f);
        if (gone) { /* the segment counts as free now, but nothing was written there */
            flip_segment(&f, block.location.segment, offset);
            fixture_open(&f);
            assert_int_equal(f.found_count, 1);
            fixture_close(&f);
        }
    }
    fixture_fini(&f);
}

static void open__marker_damaged__corrupt_and_untouched(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    fixture_flip(&f, "kvferry.store", 20);
    assert_int_equal(fixture_try_open(&f).code, KVF_CORRUPT);
    assert_non_null(strstr(f.why.text, f.path));
    fixture_flip(&f, "kvferry.store", 20);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT);
    fixture_fini(&f);
}

/* ---- mix-ups ---- */

static void swap_files(const struct fixture *f, const char *a, const char *b)
{
    char from[128], to[128], spare[128];
    fixture_file_path(f, a, from);
    fixture_file_path(f, b, to);
    fixture_file_path(f, "spare", spare);
    assert_int_equal(rename(from, spare), 0);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(rename(spare, to), 0);
}

static void recover__segment_files_swapped__neither_is_believed(void **state)
{
    struct fixture f;
    char a[32], b[32];
    start(&f, state, blocks);
    segment_file(blocks[0].location.segment, a);
    segment_file(blocks[10].location.segment, b);
    assert_string_not_equal(a, b);
    swap_files(&f, a, b);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT - 12);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__segment_of_another_store__not_believed(void **state)
{
    struct fixture mine, other;
    char from[128], to[128], name[32];
    start(&other, state, blocks);
    start(&mine, state, blocks);
    segment_file(blocks[0].location.segment, name);
    fixture_file_path(&other, name, from);
    fixture_file_path(&mine, name, to);
    assert_int_equal(rename(from, to), 0);
    fixture_open(&mine);
    assert_int_equal(mine.found_count, COUNT - 6);
    fixture_expect_found(&mine);
    fixture_fini(&mine);
    fixture_fini(&other);
}

/* An older filling of the same segment file comes back under the header of a newer one. */
static void recover__groups_of_an_earlier_filling__never_come_back(void **state)
{
    struct fixture f;
    fixture_init(&f, host_engine(state), 4 * KVF_MIB);
    f.options.capacity_bytes = 4 * KVF_MIB; /* two segments */
    f.frees_at_once = true;
    fixture_open(&f);
    struct fixture_block block;
    for (unsigned i = 0; i < 14; i++) /* 6 a segment: the last two go where 0 to 5 were */
        assert_int_equal(fixture_put(&f, &block, i, 300 << 10).code, KVF_OK);
    fixture_reopen(&f);
    for (unsigned i = 0; i < 6; i++)
        assert_null(fixture_find(&f, i));
    assert_non_null(fixture_find(&f, 13));
    fixture_expect_found(&f);
    fixture_fini(&f);
}

static void recover__segment_file_gone_or_cut__the_rest_is_there(void **state)
{
    struct fixture f;
    char name[32], path[128];
    start(&f, state, blocks);
    segment_file(blocks[0].location.segment, name);
    fixture_file_path(&f, name, path);
    assert_int_equal(unlink(path), 0);
    segment_file(blocks[10].location.segment, name);
    fixture_file_path(&f, name, path);
    assert_int_equal(truncate(path, (off_t)(blocks[7].location.offset + (300 << 10))), 0);
    fixture_open(&f);
    assert_int_equal(f.found_count, COUNT - 6 - 4);
    fixture_expect_found(&f);
    fixture_fini(&f);
}

/* ---- formats ---- */

static void write_marker_version(const struct fixture *f, uint32_t version)
{
    char path[128];
    uint8_t page[KVF_PAGE];
    struct kvf_marker marker;
    fixture_file_path(f, "kvferry.store", path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, page, sizeof(page), 0), sizeof(page));
    assert_true(kvf_is_ok(kvf_marker_decode(page, sizeof(page), &marker)));
    marker.version = version;
    kvf_marker_encode(&marker, page);
    assert_int_equal(pwrite(fd, page, sizeof(page), 0), sizeof(page));
    assert_int_equal(close(fd), 0);
}

static void open__older_format__starts_empty_and_says_so(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    write_marker_version(&f, KVF_FORMAT_VERSION - 1);
    fixture_open(&f);
    assert_int_equal(f.found_count, 0);
    assert_non_null(strstr(kvf_store_io_text(f.store), "older format"));
    assert_true(kvf_store_boot_epoch(f.store) > 1);
    struct fixture_block block;
    assert_int_equal(fixture_put(&f, &block, 1, 100).code, KVF_OK);
    fixture_reopen(&f);
    assert_int_equal(f.found_count, 1);
    assert_null(strstr(kvf_store_io_text(f.store), "older format"));
    fixture_fini(&f);
}

static void open__newer_format__refused_and_untouched(void **state)
{
    struct fixture f;
    start(&f, state, blocks);
    write_marker_version(&f, KVF_FORMAT_VERSION);
    char path[128];
    uint8_t page[KVF_PAGE];
    fixture_file_path(&f, "kvferry.store", path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, page, sizeof(page), 0), sizeof(page));
    page[8] = KVF_FORMAT_VERSION + 1;
    uint32_t crc = kvf_crc32c(0, page, KVF_PAGE - 4);
    memcpy(page + KVF_PAGE - 4, &crc, 4);
    assert_int_equal(pwrite(fd, page, sizeof(page), 0), sizeof(page));
    assert_int_equal(close(fd), 0);
    assert_int_equal(fixture_try_open(&f).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(f.why.text, "newer"));
    fixture_fini(&f);
}

static void open__killed_while_it_was_made__is_made_again(void **state)
{
    struct fixture f;
    char path[128];
    start(&f, state, blocks);
    struct kvf_marker marker = {
        .version = KVF_FORMAT_VERSION, .segment_bytes = 2 * KVF_MIB, .boot_epoch = 9};
    uint8_t page[KVF_PAGE];
    kvf_marker_encode(&marker, page);
    fixture_file_path(&f, "kvferry.store", path);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
    assert_int_equal(close(fd), 0);
    fixture_file_path(&f, "segment-00003", path);
    assert_int_equal(truncate(path, 12345), 0);
    fixture_open(&f);
    assert_int_equal(f.found_count, 0);
    assert_int_equal(kvf_store_boot_epoch(f.store), 10);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store__killed_in_a_stream_of_appends__every_ended_one_is_there),
        cmocka_unit_test(recover__crashed_store__all_there_and_then_sealed),
        cmocka_unit_test(close__segment_is_open__sealed_so_that_no_start_scans_it),
        cmocka_unit_test(recover__footer_damaged__found_by_scanning),
        cmocka_unit_test(recover__index_damaged__found_by_scanning),
        cmocka_unit_test(recover__payload_damaged_in_the_open_segment__only_that_one_is_gone),
        cmocka_unit_test(recover__group_header_damaged_in_the_open_segment__later_ones_are_found),
        cmocka_unit_test(recover__segment_header_damaged__segment_is_free),
        cmocka_unit_test(recover__every_byte_of_a_page_damaged_in_turn__nothing_wrong_is_told),
        cmocka_unit_test(open__marker_damaged__corrupt_and_untouched),
        cmocka_unit_test(recover__segment_files_swapped__neither_is_believed),
        cmocka_unit_test(recover__segment_of_another_store__not_believed),
        cmocka_unit_test(recover__groups_of_an_earlier_filling__never_come_back),
        cmocka_unit_test(recover__segment_file_gone_or_cut__the_rest_is_there),
        cmocka_unit_test(open__older_format__starts_empty_and_says_so),
        cmocka_unit_test(open__newer_format__refused_and_untouched),
        cmocka_unit_test(open__killed_while_it_was_made__is_made_again),
    };
    return HOST_RUN_TESTS("recover", tests);
}
