#include "base/memory.h"

#include "base/test.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GIB (UINT64_C(1) << 30)
#define ROOT_MAX 64

/* ---- a host made of files ---- */

static void make_directories(const char *path)
{
    char part[512];
    (void)snprintf(part, sizeof(part), "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        assert_true(mkdir(part, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
}

static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s%s", root, name);
    make_directories(path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Of `gib` GiB of memory, all available. */
static void make_host(char root[ROOT_MAX], unsigned gib, const char *cgroup)
{
    char meminfo[128];
    (void)snprintf(root, ROOT_MAX, "/tmp/kvf-memory-XXXXXX");
    assert_non_null(mkdtemp(root));
    (void)snprintf(meminfo, sizeof(meminfo), "MemTotal: %u kB\nMemAvailable: %u kB\n", gib << 20,
                   gib << 20);
    put(root, "/proc/meminfo", meminfo);
    put(root, "/proc/self/cgroup", cgroup);
}

static void put_gib(const char *root, const char *group, const char *file, uint64_t gib)
{
    char name[256], text[32];
    (void)snprintf(name, sizeof(name), "/sys/fs/cgroup%s/%s", group, file);
    (void)snprintf(text, sizeof(text), "%" PRIu64 "\n", gib * GIB);
    put(root, name, text);
}

static void put_v2(const char *root, const char *group, uint64_t limit_gib, uint64_t used_gib)
{
    put_gib(root, group, "memory.max", limit_gib);
    put_gib(root, group, "memory.current", used_gib);
}

static void put_v1(const char *root, const char *group, uint64_t limit_gib, uint64_t used_gib)
{
    put_gib(root, group, "memory.limit_in_bytes", limit_gib);
    put_gib(root, group, "memory.usage_in_bytes", used_gib);
}

static int remove_one(const char *path, const struct stat *file, int type, struct FTW *walk)
{
    (void)file, (void)type, (void)walk;
    return remove(path);
}

/* And removes the host. */
static void expect_gib(const char *root, uint64_t gib)
{
    assert_int_equal(kvf_memory_available_bytes_at(root), gib * GIB);
    (void)nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- tests ---- */

static void available__no_group_has_a_limit__what_the_host_has(void **state)
{
    char root[ROOT_MAX];
    (void)state;
    make_host(root, 40, "0::/user.slice\n");
    put(root, "/sys/fs/cgroup/user.slice/memory.max", "max\n");
    put_gib(root, "/user.slice", "memory.current", 30);
    expect_gib(root, 40);
}

static void available__nothing_can_be_read__no_bound(void **state)
{
    (void)state;
    assert_true(kvf_memory_available_bytes_at("/nonexistent") == UINT64_MAX);
    assert_true(kvf_memory_available_bytes() > 0);
}

static void available__limit_of_our_own_group__below_the_mount_is_found(void **state)
{
    char root[ROOT_MAX];
    (void)state;
    make_host(root, 40, "0::/system.slice/kvferryd.service\n");
    put_v2(root, "/system.slice/kvferryd.service", 10, 3);
    expect_gib(root, 7);
    make_host(root, 40, "9:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/docker/abc\n0::/\n");
    put_v1(root, "/memory/docker/abc", 12, 4);
    expect_gib(root, 8);
}

static void available__limit_of_a_group_above_ours__counts_where_it_leaves_less(void **state)
{
    char root[ROOT_MAX];
    (void)state;
    make_host(root, 40, "0::/pods/ours/daemon\n");
    put_v2(root, "/pods/ours/daemon", 10, 3);
    put_v2(root, "/pods", 30, 26);
    expect_gib(root, 4);
}

/* A container without a namespace of groups is told a path that it does not see. */
static void available__our_path_is_not_there__the_mount_is_our_group(void **state)
{
    char root[ROOT_MAX];
    (void)state;
    make_host(root, 40, "4:memory:/docker/abc\n");
    put_v1(root, "/memory", 6, 1);
    expect_gib(root, 5);
    make_host(root, 40, "0::/../../other\n");
    put_v2(root, "", 5, 1);
    put_v2(root, "/../other", 2, 2);
    expect_gib(root, 4);
}

/* Nine of ten GiB are used, six of them by page cache. */
static void available__page_cache_in_the_group__counts_as_free(void **state)
{
    char root[ROOT_MAX];
    (void)state;
    make_host(root, 40, "0::/ours\n");
    put_v2(root, "/ours", 10, 9);
    put(root, "/sys/fs/cgroup/ours/memory.stat",
        "anon 5\ninactive_file 4294967296\nactive_file 2147483648\nfile 7\n");
    expect_gib(root, 7);

    make_host(root, 40, "4:memory:/ours\n");
    put_v1(root, "/memory/ours", 10, 9);
    put(root, "/sys/fs/cgroup/memory/ours/memory.stat",
        "inactive_file 77\ntotal_inactive_file 4294967296\ntotal_active_file 2147483648\n");
    expect_gib(root, 7);
}

static void available__group_is_full__nothing(void **state)
{
    char root[ROOT_MAX];
    (void)state;
    make_host(root, 40, "0::/ours\n");
    put_v2(root, "/ours", 10, 12);
    expect_gib(root, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(available__no_group_has_a_limit__what_the_host_has),
        cmocka_unit_test(available__nothing_can_be_read__no_bound),
        cmocka_unit_test(available__limit_of_our_own_group__below_the_mount_is_found),
        cmocka_unit_test(available__limit_of_a_group_above_ours__counts_where_it_leaves_less),
        cmocka_unit_test(available__our_path_is_not_there__the_mount_is_our_group),
        cmocka_unit_test(available__page_cache_in_the_group__counts_as_free),
        cmocka_unit_test(available__group_is_full__nothing),
    };
    return cmocka_run_group_tests_name("base/memory", tests, NULL, NULL);
}
