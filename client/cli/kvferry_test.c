/* The binary as a script sees it, as far as it goes without a daemon: exit codes, one line that names the thing and the
 * remedy, and files that appear whole or not at all. */
#include "base/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BINARY "client/cli/kvferry"
#define WORDS_MOST 16
#define LONG_KEY "0123456789012345678901234567890123456789012345678901234567890123x"

static char directory[64], out_path[80], err_path[80];
static char errors[4096]; /* stderr of the last run */
static char output[8192]; /* stdout */

static const char *in_directory(const char *name)
{
    static char paths[16][128];
    static unsigned next;
    char *path = paths[next++ % 16];
    (void)snprintf(path, sizeof(paths[0]), "%s/%s", directory, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(in_directory(name), "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void read_file(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t bytes = read(fd, text, room - 1);
    assert_true(bytes >= 0);
    text[bytes] = '\0';
    (void)close(fd);
}

static void become(const char *const *words, const char *stdin_path)
{
    const char *streams[] = {stdin_path, out_path, err_path};
    for (int i = 0; i < 3; i++) {
        int fd = open(streams[i], i == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0 || dup2(fd, i) < 0)
            _exit(99);
    }
    (void)execv(BINARY, (char *const *)(uintptr_t)words);
    _exit(98);
}

/* Run `kvferry WORDS...` with this stdin; the exit code. */
static int run_with(const char *stdin_path, const char *const *words)
{
    const char *all[WORDS_MOST + 2] = {BINARY};
    for (size_t i = 0; i < WORDS_MOST && words[i] != NULL; i++)
        all[i + 1] = words[i];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become(all, stdin_path);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    read_file(err_path, errors, sizeof(errors));
    read_file(out_path, output, sizeof(output));
    return WEXITSTATUS(status);
}

#define run(...) run_with("/dev/null", (const char *const[WORDS_MOST + 1]){__VA_ARGS__})

/* One line, and these words in it. */
static void assert_says(const char *words)
{
    if (strstr(errors, words) == NULL)
        fail_msg("'%s' is not in: %s", words, errors);
    assert_int_equal(strncmp(errors, "kvferry: ", 9), 0);
    const char *end = strchr(errors, '\n');
    assert_non_null(end);
    assert_int_equal(end[1], '\0');
}

static int make_directory(void **state)
{
    (void)state;
    (void)unsetenv("KVFERRY_RUN_DIR");
    (void)snprintf(directory, sizeof(directory), "/tmp/kvf-cli-XXXXXX");
    if (mkdtemp(directory) == NULL)
        return -1;
    (void)snprintf(out_path, sizeof(out_path), "%s/.out", directory);
    (void)snprintf(err_path, sizeof(err_path), "%s/.err", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    return system(command);
}

/* ---- usage ---- */

static void usage__wrong_words__exit_2_and_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *words[WORDS_MOST + 1];
        const char *says;
    } cases[] = {
        {{NULL}, "no command"},
        {{"frobnicate"}, "'frobnicate' is no command"},
        {{"--frobnicate", "stat"}, "'--frobnicate' is no option"},
        {{"stat", "-x"}, "'-x' is no option"},
        {{"stat", "--durable=1", "--run-dir", "/x"}, "'--durable=1' is no option"},
        {{"stat", "--run-dir"}, "--run-dir needs a value"},
        {{"stat"}, "KVFERRY_RUN_DIR"},
        {{"stat", "--run-dir", ""}, "KVFERRY_RUN_DIR"},
        {{"stat", "more", "--run-dir", "/x"}, "usage: kvferry stat"},
        {{"stat", "--wait", "--run-dir", "/x"}, "stat takes no --wait"},
        {{"sync", "--dram", "--run-dir", "/x"}, "sync takes no --dram"},
        {{"evict", "--run-dir", "/x"}, "--dram is missing"},
        {{"--timeout-s", "0", "stat"}, "--timeout-s '0'"},
        {{"--timeout-s", "1.5", "stat"}, "--timeout-s '1.5'"},
        {{"--timeout-s", "99999999999999999999", "stat"}, "--timeout-s '9"},
        {{"bench"}, "bench what?"},
        {{"bench", "push"}, "'bench push' is no command"},
        {{"bench", "pull", "--run-dir", "/x"}, "bench pull: --source HOST:PORT is missing"},
        {{"bench", "pull", "--source", "h:1"}, "KVFERRY_RUN_DIR"},
        {{"bench", "pull", "--source", "h:1", "--sweep", "x=1", "--run-dir", "/x"},
         "--sweep 'x=1'"},
        {{"bench", "pull", "--source", "h:1", "--blocks", "0", "--run-dir", "/x"}, "--blocks '0'"},
        {{"bench", "pull", "--source", "h", "--run-dir", "/x"}, "--source 'h'"},
        {{"bench", "fill", "--sweep", "x", "--run-dir", "/x"}, "bench fill takes no --sweep"},
        {{"bench", "engine", "--source", "h:1", "--run-dir", "/x"}, "--blocks N"},
        {{"put", "t/f", "k", "--run-dir", "/x"}, "usage: kvferry put NS KEY FILE"},
        {{"put", "t/f", "k", "f", "g", "--run-dir", "/x"}, "usage: kvferry put NS KEY FILE"},
        {{"put", "tf", "k", "/dev/zero", "--run-dir", "/x"}, "namespace 'tf'"},
        {{"put", "t/f/g", "k", "/dev/zero", "--run-dir", "/x"}, "namespace 't/f/g'"},
        {{"put", "t/f", "", "/dev/zero", "--run-dir", "/x"}, "key is empty"},
        {{"put", "t/f", "hex:0", "/dev/zero", "--run-dir", "/x"}, "key hex:0"},
        {{"put", "t/f", LONG_KEY, "/dev/zero", "--run-dir", "/x"}, "has 65 bytes"},
        {{"put", "t/f", "k", "/nonexistent", "--run-dir", "/x"}, "cannot read /nonexistent"},
        {{"put", "t/f", "k", "/tmp", "--run-dir", "/x"}, "/tmp is a directory"},
        {{"put", "t/f", "k", "/dev/null", "--run-dir", "/x"}, "1 byte to 128 MiB"},
        {{"put", "t/f", "k", "-", "--run-dir", "/x"}, "1 byte to 128 MiB"},
        {{"put", "t/f", "k", "/dev/zero", "--run-dir", "/x"}, "larger than 128 MiB"},
        {{"get", "t/f", "--run-dir", "/x", "-o", "/x"}, "usage: kvferry get NS KEY..."},
        {{"get", "t/f", "k", "--run-dir", "/x"}, "-o DIR is missing"},
        {{"get", "t/f", "k", "l", "-o", "-", "--run-dir", "/x"}, "one block to stdout"},
        {{"get", "t/f", "k", "-o", "-", "--json", "--run-dir", "/x"}, "both want stdout"},
        {{"pull", "t/f", "k", "l", "-o", "-", "--source", "[::1]:1"}, "one block to stdout"},
        {{"get", "t", "k", "--run-dir", "/x", "-o", "/x"}, "namespace 't'"},
        {{"get", "t/f", "k", "hex:zz", "--run-dir", "/x", "-o", "/x"}, "'z' is no hex digit"},
        {{"get", "t/f", "k", "--run-dir", "/x", "-o", "/x", "--source", "host"}, "HOST:PORT"},
        {{"pull", "t/f", "k", "-o", "/x"}, "--source HOST:PORT is missing"},
        {{"pull", "t/f", "k", "--source", "127.0.0.1:1"}, "-o DIR is missing"},
        {{"pull", "t/f", "k", "-o", "/x", "--source", "10.0.0.1:1"}, "off loopback and needs TLS"},
        {{"pull", "t/f", "k", "-o", "/x", "--source", "[::1]:1", "--tls-key", "k"}, "together"},
        {{"pull", "t/f", "hex:1", "-o", "/x", "--source", "127.0.0.1:1"}, "key hex:1"},
        {{"set", "read-batch-mib", "--run-dir", "/x"}, "usage: kvferry set"},
        {{"set", "read-batch-mib", "-1", "--run-dir", "/x"}, "'-1' is no option"},
        {{"set", "read-batch-mib", "many", "--run-dir", "/x"}, "read-batch-mib 'many'"},
        {{"set", "pool-mib", "3", "--run-dir", "/x"}, "'pool-mib' cannot be set"},
        {{"replay"}, "--trace FILE is missing"},
        {{"replay", "--trace", "t", "--prefill", "a", "--decode", "b"},
         "--source HOST:PORT is missing"},
        {{"replay", "--trace", "t", "--order", "random"}, "--order 'random'"},
        {{"replay", "--block-bytes", "0"}, "--block-bytes '0'"},
        {{"replay", "--block-bytes", "134217729"}, "--block-bytes '134217729'"},
        {{"replay", "--requests", "0"}, "--requests '0'"},
        {{"replay", "--json"}, "--json"},
        {{"trace", "--requests", "3"}, "needs --requests N and -o FILE"},
        {{"trace", "-o", "f"}, "needs --requests N and -o FILE"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int code = run_with("/dev/null", cases[i].words);
        assert_says(cases[i].says);
        assert_int_equal(code, 2);
        assert_string_equal(output, "");
    }
}

static void help_and_version__exit_0(void **state)
{
    (void)state;
    assert_int_equal(run("--help"), 0);
    assert_non_null(strstr(output, "get NS KEY... -o DIR"));
    assert_string_equal(errors, "");
    assert_int_equal(run("stat", "-h"), 0);
    assert_int_equal(run("--version"), 0);
    assert_int_equal(strncmp(output, "kvferry ", 8), 0);
}

/* ---- no daemon ---- */

static void no_daemon__every_command__exit_1_names_the_remedy(void **state)
{
    (void)state;
    const char *d = directory;
    write_file("file", "bytes");
    const char *const cases[][WORDS_MOST + 1] = {
        {"--run-dir", d, "stat"},
        {"stat", "--json", "--run-dir", d},
        {"--json", "stat", "--run-dir", d},
        {"--run-dir", d, "sync", "--durable"},
        {"evict", "--dram", "--run-dir", d},
        {"set", "--run-dir", d, "read-batch-mib", "32"},
        {"drain", "--run-dir", d},
        {"drain", "--wait", "--run-dir", d},
        {"put", "--run-dir", d, "t/f", "hex:00ff", in_directory("file")},
        {"put", "--run-dir", d, "--", "t/f", "-key", in_directory("file")},
        {"get", "t/f", "k", "k", "-o", in_directory("blocks"), "--run-dir", d, "--source", "h:1"},
        {"get", "t/f", "k", "-o", "-", "--run-dir", d},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int code = run_with("/dev/null", cases[i]);
        assert_says("start it with --run-dir");
        assert_non_null(strstr(errors, d));
        assert_int_equal(code, 1);
    }
    struct stat found;
    assert_int_equal(stat(in_directory("blocks"), &found), -1);
}

static void run_dir__from_the_environment(void **state)
{
    (void)state;
    assert_int_equal(setenv("KVFERRY_RUN_DIR", directory, 1), 0);
    assert_int_equal(run("stat"), 1);
    assert_non_null(strstr(errors, directory));
    assert_int_equal(run("stat", "--run-dir", "/tmp/kvf-other"), 1); /* the flag wins */
    assert_non_null(strstr(errors, "/tmp/kvf-other"));
}

static void put__stdin_larger_than_a_block__exit_2(void **state)
{
    (void)state;
    int code = run_with("/dev/zero", (const char *const[WORDS_MOST + 1]){"put", "t/f", "k", "-",
                                                                         "--run-dir", "/x"});
    assert_says("larger than 128 MiB");
    assert_int_equal(code, 2);
}

/* ---- traces ---- */

static void trace__made__is_whole_and_repeatable(void **state)
{
    (void)state;
    static char a[4096], b[4096];
    assert_int_equal(run("trace", "--requests", "5", "--seed", "9", "-o", in_directory("a")), 0);
    assert_int_equal(run("--seed", "9", "-o", in_directory("b"), "trace", "--requests=5"), 0);
    read_file(in_directory("a"), a, sizeof(a));
    read_file(in_directory("b"), b, sizeof(b));
    assert_string_equal(a, b);
    assert_int_equal(strncmp(a, "{\"timestamp\": ", 14), 0);
    assert_int_equal(run("trace", "--requests", "5", "-o", in_directory("no/a")), 1);
    assert_says("/no/");
}

static void replay__bad_trace__exit_2_before_anything_is_put(void **state)
{
    (void)state;
    write_file(
        "trace",
        "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [0]}\n{\n");
    const char *trace = in_directory("trace"), *d = directory;
    char place[200];
    (void)snprintf(place, sizeof(place), "%s:2: ", trace);
    assert_int_equal(run("replay", "--trace", trace, "--prefill", d, "--decode", d, "--source",
                         "h:1", "--requests", "1"),
                     2);
    assert_says(place);
    assert_int_equal(
        run("replay", "--trace", "/nonexistent", "--prefill", d, "--decode", d, "--source", "h:1"),
        2);
    assert_says("/nonexistent");
}

static void replay__json_takes_a_file__on_either_side(void **state)
{
    (void)state;
    const char *json = in_directory("json"), *d = directory;
    write_file(
        "good",
        "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [0]}\n");
    write_file("json", "old");
    const char *trace = in_directory("good");
    assert_int_equal(run("--json", json, "replay", "--trace", trace, "--prefill", d, "--decode", d,
                         "--source", "h:1"),
                     1);
    assert_says("no kvferryd answers");
    assert_int_equal(run("replay", "--trace", trace, "--prefill", d, "--decode", d, "--source",
                         "h:1", "--json", json),
                     1);
    assert_says("no kvferryd answers");
    char text[16];
    read_file(json, text, sizeof(text));
    assert_string_equal(text, "old");
}

static void transports__any_host__lists_all_of_them(void **state)
{
    (void)state;
    assert_int_equal(run("transports"), 0);
    assert_non_null(strstr(output, "tcp    yes"));
    assert_non_null(strstr(output, "\nverbs  "));
    assert_non_null(strstr(output, "\nucx    "));
    assert_string_equal(errors, "");
    assert_int_equal(run("--json", "transports"), 0);
    assert_non_null(strstr(output, "\"usable\""));
    assert_int_equal(run("transports", "verbs"), 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        TEST(usage__wrong_words__exit_2_and_one_line),
        TEST(help_and_version__exit_0),
        TEST(no_daemon__every_command__exit_1_names_the_remedy),
        TEST(run_dir__from_the_environment),
        TEST(put__stdin_larger_than_a_block__exit_2),
        TEST(trace__made__is_whole_and_repeatable),
        TEST(replay__bad_trace__exit_2_before_anything_is_put),
        TEST(replay__json_takes_a_file__on_either_side),
        TEST(transports__any_host__lists_all_of_them),
    };
    return cmocka_run_group_tests_name("client/cli/kvferry", tests, NULL, NULL);
}
