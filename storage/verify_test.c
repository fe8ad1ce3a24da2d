/* kvf_store_verify: what it finds, what it leaves alone. */
#include "base/test.h"
#include "storage/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 40 };

#define LENGTH UINT64_C(307000) /* 75 pages: 6 a segment */

static struct fixture_block blocks[COUNT];

struct finding {
    unsigned damages, of_records;
    struct kvf_verify_damage last;
    char last_file[32], last_what[64];
    uint64_t last_seed;
    struct kvf_verify_result result;
    struct kvf_status status;
};

static void damaged(void *context, const struct kvf_verify_damage *damage)
{
    struct finding *finding = context;
    finding->damages++;
    finding->last = *damage;
    (void)snprintf(finding->last_file, sizeof(finding->last_file), "%s", damage->file);
    (void)snprintf(finding->last_what, sizeof(finding->last_what), "%s", damage->what);
    if (damage->record == NULL)
        return;
    assert_string_equal(damage->record->namespace, FIXTURE_NAMESPACE);
    finding->of_records++;
    memcpy(&finding->last_seed, damage->record->key.bytes, sizeof(finding->last_seed));
}

static struct finding verify(struct fixture *f)
{
    struct finding finding = {0};
    struct kvf_verify_options options = {
        .paths = f->paths, .path_count = 1, .damaged = damaged, .context = &finding};
    f->why.text[0] = '\0';
    finding.status = kvf_store_verify(&options, &finding.result, &f->why);
    assert_int_equal(finding.result.damaged, finding.damages);
    return finding;
}

static void start(struct fixture *f)
{
    fixture_init(f, NULL, KVF_MIB);
    f->options.capacity_bytes = 32 * KVF_MIB;
    fixture_open(f);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(fixture_put(f, &blocks[i], i, LENGTH).code, KVF_OK);
}

static void file_of(uint32_t segment, char name[32])
{
    (void)snprintf(name, 32, "segment-%05u", segment);
}

static void flip(const struct fixture *f, uint32_t segment, uint64_t offset)
{
    char name[32];
    file_of(segment, name);
    fixture_flip(f, name, offset);
}

static void expect_clean(const struct finding *finding)
{
    assert_int_equal(finding->status.code, KVF_OK);
    assert_int_equal(finding->damages, 0);
    assert_int_equal(finding->result.unfinished, 0);
    assert_int_equal(finding->result.records, COUNT);
    assert_int_equal(finding->result.bytes, COUNT * LENGTH);
    assert_int_equal(finding->result.segments, 7);
    assert_int_equal(finding->result.done_bytes, 32 * KVF_MIB);
    assert_int_equal(finding->result.total_bytes, 32 * KVF_MIB);
}

static void verify__closed_store__clean(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    fixture_close(&f);
    struct finding finding = verify(&f);
    expect_clean(&finding);
    fixture_fini(&f);
}

static void verify__crashed_store__clean(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    fixture_crash(&f);
    struct finding finding = verify(&f);
    expect_clean(&finding);
    fixture_fini(&f);
}

/* Of each segment, the marker and the directory: content, size, modification and change time. */
struct image {
    struct stat stat;
    uint32_t sum;
};

static void take_image(const struct fixture *f, struct image images[18])
{
    static uint8_t bytes[2 << 20];
    for (uint32_t i = 0; i < 18; i++) {
        char name[32] = "kvferry.store", path[128];
        if (i < 16)
            file_of(i, name);
        fixture_file_path(f, i == 17 ? "." : name, path);
        assert_int_equal(stat(path, &images[i].stat), 0);
        images[i].sum = 0;
        if (i == 17)
            continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOATIME);
        ssize_t got = read(fd, bytes, sizeof(bytes));
        assert_int_equal(got, images[i].stat.st_size);
        for (ssize_t at = 0; at < got; at++)
            images[i].sum = images[i].sum * 31 + bytes[at];
        (void)close(fd);
    }
}

static void verify__any_store__nothing_is_changed(void **state)
{
    struct fixture f;
    struct image before[18], after[18];
    (void)state;
    start(&f);
    fixture_crash(&f); /* a start would seal and raise the epoch */
    flip(&f, blocks[0].location.segment, blocks[0].location.offset);
    take_image(&f, before);
    assert_int_equal(verify(&f).damages, 1);
    take_image(&f, after);
    for (unsigned i = 0; i < 18; i++) {
        assert_int_equal(before[i].sum, after[i].sum);
        assert_int_equal(before[i].stat.st_size, after[i].stat.st_size);
        assert_int_equal(before[i].stat.st_ino, after[i].stat.st_ino);
        assert_memory_equal(&before[i].stat.st_mtim, &after[i].stat.st_mtim,
                            sizeof(struct timespec));
        assert_memory_equal(&before[i].stat.st_ctim, &after[i].stat.st_ctim,
                            sizeof(struct timespec));
    }
    fixture_fini(&f);
}

static void verify__one_bit_of_any_payload__named(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    fixture_close(&f);
    for (unsigned i = 0; i < COUNT; i += 3) {
        char name[32];
        struct kvf_location at = blocks[i].location;
        uint64_t offset = at.offset + i * LENGTH / COUNT;
        flip(&f, at.segment, offset);
        struct finding finding = verify(&f);
        file_of(at.segment, name);
        assert_int_equal(finding.status.code, KVF_OK);
        assert_int_equal(finding.of_records, 1);
        assert_int_equal(finding.damages, 1);
        assert_string_equal(finding.last_file, name);
        assert_int_equal(finding.last.offset, at.offset);
        assert_int_equal(finding.last_seed, i);
        assert_int_equal(finding.result.records, COUNT);
        flip(&f, at.segment, offset);
    }
    struct finding finding = verify(&f);
    expect_clean(&finding);
    fixture_fini(&f);
}

/* Each page that records are found by: every eighth of its bits in use, one at a time. */
static void verify__structures_damaged__told(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    fixture_close(&f);
    uint32_t segment = blocks[0].location.segment;
    const struct {
        uint64_t offset;
        unsigned bytes, records;
        const char *what;
    } cases[] = {
        {0, 64, COUNT - 6, "segment header"},
        {f.options.segment_bytes - KVF_PAGE, 72, COUNT, "footer"},
        {blocks[5].location.offset + kvf_round_up_page(LENGTH), 200, COUNT, "index"},
    };
    for (size_t c = 0; c < 3; c++)
        for (unsigned byte = 0; byte < cases[c].bytes; byte += 7) {
            flip(&f, segment, cases[c].offset + byte);
            struct finding finding = verify(&f);
            assert_int_equal(finding.status.code, KVF_OK);
            assert_int_equal(finding.damages, 1);
            assert_non_null(strstr(finding.last_what, cases[c].what));
            assert_int_equal(finding.result.records, cases[c].records);
            flip(&f, segment, cases[c].offset + byte);
        }
    fixture_fini(&f);
}

static void verify__segment_file_missing_or_cut__told(void **state)
{
    struct fixture f;
    char name[32], path[128];
    (void)state;
    start(&f);
    fixture_close(&f);
    file_of(blocks[0].location.segment, name);
    fixture_file_path(&f, name, path);
    /* Behind the second record: four are gone, and the seal. The last two may be a crash's. */
    assert_int_equal(truncate(path, (off_t)blocks[2].location.offset), 0);
    struct finding finding = verify(&f);
    assert_int_equal(finding.status.code, KVF_OK);
    assert_true(finding.damages >= 1);
    assert_true(finding.result.records <= COUNT);
    assert_int_equal(unlink(path), 0);
    finding = verify(&f);
    assert_int_equal(finding.damages, 1);
    assert_string_equal(finding.last_file, name);
    assert_non_null(strstr(finding.last_what, "missing"));
    assert_int_equal(finding.result.records, COUNT - 6);
    fixture_fini(&f);
}

/* In a segment that was open, the last writes may be cut off; in front of them nothing may be wrong. */
static void verify__crashed_store_damaged__told_from_unfinished(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    fixture_crash(&f);
    struct kvf_location last = blocks[COUNT - 1].location, first = blocks[COUNT - 4].location;
    assert_int_equal(last.segment, first.segment);
    flip(&f, last.segment, last.offset + 5);
    struct finding finding = verify(&f);
    assert_int_equal(finding.damages, 0);
    assert_int_equal(finding.result.unfinished, 1);
    flip(&f, first.segment, first.offset + 5);
    finding = verify(&f);
    assert_int_equal(finding.damages, 1);
    assert_int_equal(finding.last_seed, COUNT - 4);
    assert_int_equal(finding.result.unfinished, 1);
    fixture_fini(&f);
}

static void verify__a_daemon_has_it__busy(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    assert_int_equal(verify(&f).status.code, KVF_BUSY);
    assert_non_null(strstr(f.why.text, f.path));
    fixture_close(&f);
    assert_int_equal(verify(&f).status.code, KVF_OK);
    fixture_open(&f); /* the lock is given back */
    fixture_fini(&f);
}

static void verify__no_store_there__refused_and_nothing_made(void **state)
{
    struct fixture f;
    char path[128];
    struct stat file;
    (void)state;
    fixture_init(&f, NULL, KVF_MIB);
    assert_int_equal(verify(&f).status.code, KVF_INVALID);
    fixture_file_path(&f, "kvferry.store", path);
    assert_int_equal(stat(path, &file), -1);
    f.paths[0] = "/tmp/kvf-not-there";
    assert_int_equal(verify(&f).status.code, KVF_IO);
    fixture_fini(&f);
}

static void verify__marker_damaged__corrupt(void **state)
{
    struct fixture f;
    (void)state;
    start(&f);
    fixture_close(&f);
    fixture_flip(&f, "kvferry.store", 33);
    assert_int_equal(verify(&f).status.code, KVF_CORRUPT);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verify__closed_store__clean),
        cmocka_unit_test(verify__crashed_store__clean),
        cmocka_unit_test(verify__any_store__nothing_is_changed),
        cmocka_unit_test(verify__one_bit_of_any_payload__named),
        cmocka_unit_test(verify__structures_damaged__told),
        cmocka_unit_test(verify__segment_file_missing_or_cut__told),
        cmocka_unit_test(verify__crashed_store_damaged__told_from_unfinished),
        cmocka_unit_test(verify__a_daemon_has_it__busy),
        cmocka_unit_test(verify__no_store_there__refused_and_nothing_made),
        cmocka_unit_test(verify__marker_damaged__corrupt),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
