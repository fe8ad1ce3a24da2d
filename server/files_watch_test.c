#include "server/files_watch.h"

#include "base/clock.h"
#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct kvf_loop *loop;
static char folder[32];
static char path[64], other[64];
static struct kvf_files_watch watch;
static unsigned changes;

static void count(void *context)
{
    (void)context;
    changes++;
}

static void write_file(const char *at, const char *text)
{
    FILE *file = fopen(at, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/kvf-watch-XXXXXX");
    if (mkdtemp(folder) == NULL || !kvf_is_ok(kvf_loop_create(&loop)))
        return -1;
    (void)snprintf(path, sizeof(path), "%s/file", folder);
    (void)snprintf(other, sizeof(other), "%s/other", folder);
    write_file(path, "one");
    changes = 0;
    watch = (struct kvf_files_watch){.loop = loop, .paths = {path}, .changed = count};
    kvf_files_watch_start(&watch);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_files_watch_stop(&watch);
    kvf_files_watch_stop(&watch);
    kvf_loop_destroy(loop);
    (void)unlink(path);
    (void)unlink(other);
    return rmdir(folder);
}

static void run_until_changes(unsigned wanted)
{
    uint64_t until_ns = kvf_clock_now_ns() + 20 * KVF_NS_PER_S;
    while (changes < wanted) {
        assert_true(kvf_clock_now_ns() < until_ns);
        kvf_loop_run_once(loop, 100);
    }
    assert_int_equal(changes, wanted);
}

static void run_for(uint64_t ns)
{
    uint64_t until_ns = kvf_clock_now_ns() + ns;
    while (kvf_clock_now_ns() < until_ns)
        kvf_loop_run_once(loop, 100);
}

static void file__written_replaced_and_gone__told_once_each(void **state)
{
    (void)state;
    write_file(path, "two");
    run_until_changes(1);
    write_file(other, "two");
    assert_int_equal(rename(other, path), 0);
    run_until_changes(2);
    assert_int_equal(unlink(path), 0);
    run_until_changes(3);
    write_file(path, "two");
    run_until_changes(4);
}

static void file__untouched__never_told(void **state)
{
    (void)state;
    run_for(5 * KVF_NS_PER_S / 2);
    assert_int_equal(changes, 0);
}

static void link__turned_to_another_file__told(void **state)
{
    (void)state;
    char link[64], fresh[64];
    (void)snprintf(link, sizeof(link), "%s/link", folder);
    (void)snprintf(fresh, sizeof(fresh), "%s/fresh", folder);
    write_file(other, "one");
    kvf_files_watch_stop(&watch);
    assert_int_equal(symlink("file", link), 0);
    watch.paths[0] = link;
    kvf_files_watch_start(&watch);
    assert_int_equal(symlink("other", fresh), 0);
    assert_int_equal(rename(fresh, link), 0);
    run_until_changes(1);
    assert_int_equal(unlink(link), 0);
}

static void again__untouched_file__told_once_more(void **state)
{
    (void)state;
    kvf_files_watch_again(&watch);
    kvf_files_watch_again(&watch);
    run_until_changes(1);
    run_for(5 * KVF_NS_PER_S / 2);
    assert_int_equal(changes, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(file__written_replaced_and_gone__told_once_each),
        TEST(file__untouched__never_told),
        TEST(link__turned_to_another_file__told),
        TEST(again__untouched_file__told_once_more),
    };
    return cmocka_run_group_tests_name("files_watch", tests, NULL, NULL);
}
