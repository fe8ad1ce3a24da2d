#include "client/cli/files.h"

#include "base/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64];

static const char *in_directory(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    return path;
}

static int make_directory(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof(directory), "/tmp/kvf-files-XXXXXX");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int entries(const char *path)
{
    DIR *open_directory = opendir(path);
    assert_non_null(open_directory);
    int count = 0;
    while (readdir(open_directory) != NULL)
        count++;
    (void)closedir(open_directory);
    return count - 2;
}

static int remove_directory(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    return system(command);
}

static const char *name_of(const void *bytes, size_t length)
{
    static char name[FILES_NAME_ROOM];
    struct kvf_key key;
    assert_true(kvf_key_set(&key, bytes, length));
    files_name(&key, name);
    return name;
}

static void name__plain_bytes__stay(void **state)
{
    (void)state;
    assert_string_equal(name_of("Az09-_x.y", 9), "Az09-_x.y");
}

static void name__other_bytes__are_escaped(void **state)
{
    (void)state;
    assert_string_equal(name_of("..", 2), "%2E.");
    assert_string_equal(name_of(".", 1), "%2E");
    assert_string_equal(name_of("a/b%c", 5), "a%2Fb%25c");
    assert_string_equal(name_of("\0\xff ", 3), "%00%FF%20");
}

static void name__longest_key__fits(void **state)
{
    (void)state;
    uint8_t bytes[KVF_KEY_MAX_BYTES];
    memset(bytes, 0xab, sizeof(bytes));
    assert_int_equal(strlen(name_of(bytes, sizeof(bytes))), FILES_NAME_ROOM - 1);
}

static void read_back(const char *path, const char *expected)
{
    char text[64] = "";
    size_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(kvf_is_ok(files_read(fd, text, sizeof(text) - 1, &bytes)));
    (void)close(fd);
    assert_string_equal(text, expected);
    assert_int_equal(bytes, strlen(expected));
}

static void write__new_and_old_file__holds_exactly_the_bytes(void **state)
{
    (void)state;
    struct kvf_why why;
    const char *path = in_directory("f");
    assert_true(kvf_is_ok(files_write(path, "a longer text", 13, &why)));
    read_back(path, "a longer text");
    assert_true(kvf_is_ok(files_write(path, "short", 5, &why)));
    read_back(path, "short");
    assert_int_equal(entries(directory), 1);
}

static void write__no_such_directory__says_which_and_leaves_nothing(void **state)
{
    (void)state;
    struct kvf_why why = {""};
    struct kvf_status status = files_write(in_directory("no/f"), "x", 1, &why);
    assert_int_equal(status.code, KVF_IO);
    assert_int_equal(status.detail, ENOENT);
    assert_non_null(strstr(why.text, "/no/"));
}

static void write__disk_full__old_content_stays(void **state)
{
    (void)state;
    struct kvf_why why = {""};
    struct kvf_status status = files_write("/dev/full", "x", 1, &why);
    assert_int_equal(status.code, KVF_NO_SPACE);
    struct stat device;
    assert_int_equal(stat("/dev/full", &device), 0);
    assert_true(S_ISCHR(device.st_mode)); /* written to, not replaced */
}

static void write__path_is_a_directory__refused(void **state)
{
    (void)state;
    struct kvf_why why = {""};
    assert_int_equal(files_write(directory, "x", 1, &why).detail, EISDIR);
    assert_int_equal(entries(directory), 0);
}

static void make_directory__nested__made_once(void **state)
{
    (void)state;
    struct kvf_why why = {""};
    const char *path = in_directory("a/b//c/");
    assert_true(kvf_is_ok(files_make_directory(path, &why)));
    assert_true(kvf_is_ok(files_make_directory(path, &why)));
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    assert_true(S_ISDIR(found.st_mode));
}

static void make_directory__file_in_the_way__is_named(void **state)
{
    (void)state;
    struct kvf_why why = {""};
    assert_true(kvf_is_ok(files_write(in_directory("f"), "", 0, &why)));
    assert_int_equal(files_make_directory(in_directory("f/d"), &why).detail, ENOTDIR);
    assert_non_null(strstr(why.text, "/f"));
    assert_int_equal(files_make_directory("", &why).code, KVF_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name__plain_bytes__stay),
        cmocka_unit_test(name__other_bytes__are_escaped),
        cmocka_unit_test(name__longest_key__fits),
        cmocka_unit_test_setup_teardown(write__new_and_old_file__holds_exactly_the_bytes,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(write__no_such_directory__says_which_and_leaves_nothing,
                                        make_directory, remove_directory),
        cmocka_unit_test(write__disk_full__old_content_stays),
        cmocka_unit_test_setup_teardown(write__path_is_a_directory__refused, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(make_directory__nested__made_once, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(make_directory__file_in_the_way__is_named, make_directory,
                                        remove_directory),
    };
    return cmocka_run_group_tests_name("client/cli/files", tests, NULL, NULL);
}
