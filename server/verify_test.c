/* What kvferryd --verify says and with which status it ends. */
#include "server/verify.h"

#include "base/arena.h"
#include "base/crc32c.h"
#include "base/test.h"
#include "storage/storage.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kvf_location location;
static char path[64];
static char said[16384]; /* report, then progress */

static void appended(struct kvf_append *append, struct kvf_status status, struct kvf_location at)
{
    (void)append;
    assert_int_equal(status.code, KVF_OK);
    location = at;
}

static void ignore(struct kvf_recovery *recovery, const struct kvf_record *record,
                   struct kvf_location at)
{
    (void)recovery, (void)record, (void)at;
}

static void recovered(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    (void)result;
    *(bool *)recovery->context = true;
}

static struct kvf_store *open_store(struct kvf_loop *loop)
{
    const char *paths[] = {path};
    struct kvf_why why;
    struct kvf_store *store = NULL;
    struct kvf_store_options options = {
        .loop = loop,
        .paths = paths,
        .path_count = 1,
        .capacity_bytes = 4 * KVF_MIB,
        .segment_bytes = 2 * KVF_MIB,
        .read_threads = 1,
    };
    assert_true(kvf_is_ok(kvf_store_open(&options, &store, &why)));
    return store;
}

/* A store with one block: key "k\n", 5000 bytes. */
static int make_store(void **state)
{
    struct kvf_loop *loop;
    struct kvf_arena arena;
    struct kvf_why why;
    (void)state;
    (void)strcpy(path, "/tmp/kvf-verify-XXXXXX");
    assert_non_null(mkdtemp(path));
    assert_true(kvf_is_ok(kvf_loop_create(&loop)));
    assert_true(kvf_is_ok(kvf_arena_create(KVF_MIB, 0, false, &arena, &why)));
    struct kvf_store *store = open_store(loop);
    bool over = false;
    struct kvf_recovery recovery = {.found = ignore, .ended = recovered, .context = &over};
    assert_true(kvf_is_ok(kvf_store_recover(store, &recovery, &why)));
    while (!over)
        kvf_loop_run_once(loop, 1000);
    memset(arena.base, 7, 5000);
    struct kvf_append append = {
        .record = {.namespace = "tenant/model",
                   .generation = {1, 1},
                   .length = 5000,
                   .crc32c = kvf_crc32c(0, arena.base, 5000)},
        .extent = {&arena, 0, 8192},
        .ended = appended,
    };
    (void)kvf_key_set(&append.record.key, "k\n", 2);
    location.offset = 0;
    kvf_store_append(store, &append);
    while (location.offset == 0)
        kvf_loop_run_once(loop, 1000);
    kvf_store_close(store);
    kvf_arena_close(&arena);
    kvf_loop_destroy(loop);
    return 0;
}

static int remove_store(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r %s", path);
    return system(command);
}

static int run(const char *directory)
{
    struct kvf_config_list paths = {.items = &directory, .count = 1};
    FILE *report = tmpfile(), *progress = tmpfile();
    assert_true(report != NULL && progress != NULL);
    int code = kvf_verify_run(&paths, report, progress);
    rewind(report);
    rewind(progress);
    size_t bytes = fread(said, 1, sizeof(said) / 2, report);
    bytes += fread(said + bytes, 1, sizeof(said) / 2 - 1, progress);
    said[bytes] = '\0';
    (void)fclose(report);
    (void)fclose(progress);
    return code;
}

static void flip(const char *file, off_t offset)
{
    char name[128];
    uint8_t byte;
    (void)snprintf(name, sizeof(name), "%s/%s", path, file);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    (void)close(fd);
}

static void verify_run__whole_store__0(void **state)
{
    (void)state;
    assert_int_equal(run(path), 0);
    assert_non_null(strstr(said, "1 records of 5000 bytes in 1 segments: 0 damaged"));
}

static void verify_run__flipped_bit__5_with_name_and_remedy(void **state)
{
    (void)state;
    flip("segment-00000", (off_t)location.offset + 4999);
    assert_int_equal(run(path), 5);
    assert_non_null(strstr(said, "segment-00000, offset "));
    assert_non_null(strstr(said, "tenant/model hex:6b0a"));
    assert_non_null(strstr(said, "1 damaged"));
    assert_non_null(strstr(said, "replace"));
    assert_non_null(strstr(said, path));
}

static void verify_run__marker_damaged__5(void **state)
{
    (void)state;
    flip("kvferry.store", 40);
    assert_int_equal(run(path), 5);
    assert_non_null(strstr(said, path));
}

static void verify_run__a_daemon_has_it__1(void **state)
{
    struct kvf_loop *loop;
    (void)state;
    assert_true(kvf_is_ok(kvf_loop_create(&loop)));
    struct kvf_store *store = open_store(loop);
    assert_int_equal(run(path), 1);
    assert_non_null(strstr(said, "in use"));
    kvf_store_close(store);
    kvf_loop_destroy(loop);
}

static void verify_run__foreign_or_no_directory__1(void **state)
{
    (void)state;
    assert_int_equal(run("/proc/self/fdinfo"), 1); /* not empty, and no store of ours */
    assert_int_equal(run("/tmp/kvf-not-there"), 1);
    flip("kvferry.store", 0); /* no marker any more, but what it stood for */
    assert_int_equal(run(path), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(verify_run__whole_store__0, make_store, remove_store),
        cmocka_unit_test_setup_teardown(verify_run__flipped_bit__5_with_name_and_remedy, make_store,
                                        remove_store),
        cmocka_unit_test_setup_teardown(verify_run__marker_damaged__5, make_store, remove_store),
        cmocka_unit_test_setup_teardown(verify_run__a_daemon_has_it__1, make_store, remove_store),
        cmocka_unit_test_setup_teardown(verify_run__foreign_or_no_directory__1, make_store,
                                        remove_store),
    };
    return cmocka_run_group_tests_name("verify_run", tests, NULL, NULL);
}
