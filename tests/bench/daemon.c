#include "tests/bench/daemon.h"

#include "tests/bench/rounds.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

const char *bench_setting(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        bench_die("%s is not set: call tests/bench/run", name);
    return value;
}

void daemon_command(const char *run_dir, const char *command, const char *option)
{
    const char *kvferry = bench_setting("KVFERRY");
    char *arguments[] = {(char *)kvferry, "--run-dir",    (char *)run_dir,
                         (char *)command, (char *)option, NULL};
    posix_spawn_file_actions_t quiet;
    pid_t pid;
    int status = -1;
    (void)posix_spawn_file_actions_init(&quiet);
    (void)posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&pid, kvferry, &quiet, NULL, arguments, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0)
        bench_die("kvferry %s %s failed", command, option != NULL ? option : "");
    (void)posix_spawn_file_actions_destroy(&quiet);
}

uint64_t daemon_drive_stat(const char *run_dir, const char *member)
{
    static char json[1 << 16];
    char command[1024];
    (void)snprintf(command, sizeof(command), "'%s' --run-dir '%s' --json stat",
                   bench_setting("KVFERRY"), run_dir);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        bench_die("kvferry stat: %s", strerror(errno));
    json[fread(json, 1, sizeof(json) - 1, pipe)] = '\0';
    if (pclose(pipe) != 0)
        bench_die("kvferry stat failed");
    cJSON *root = cJSON_Parse(json);
    cJSON *drive = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "ssd"), 0);
    cJSON *number = cJSON_GetObjectItem(drive, member);
    if (!cJSON_IsNumber(number))
        bench_die("stat has no ssd[0].%s: %.200s", member, json);
    uint64_t value = (uint64_t)cJSON_GetNumberValue(number);
    cJSON_Delete(root);
    return value;
}

static struct kvf_status open_client(const char *run_dir, struct kvf_client **give,
                                     struct kvf_why *why)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/engine.sock", run_dir);
    struct kvf_client_options options = {.socket_path = path, .name = "bench"};
    return kvf_client_open(&options, give, why);
}

bool daemon_try_client(const char *run_dir, struct kvf_client **give)
{
    struct kvf_why why;
    return kvf_is_ok(open_client(run_dir, give, &why));
}

void daemon_client(const char *run_dir, struct kvf_client **give)
{
    struct kvf_why why = {.text = ""};
    if (!kvf_is_ok(open_client(run_dir, give, &why)))
        bench_die("%s", why.text);
}

void daemon_key(struct kvf_key *key, uint64_t number)
{
    (void)kvf_key_set(key, &number, sizeof(number));
}

void daemon_put(struct kvf_client *client, const char *ns, uint64_t number, uint64_t bytes)
{
    struct kvf_put put = {.length = bytes};
    daemon_key(&put.key, number);
    bench_check(kvf_put_begin(client, ns, &put, 1, DAEMON_TIMEOUT_MS), "put");
    if (put.code == KVF_EXISTS)
        return;
    bench_check(kvf_fail(KVF_MODULE_SERVER, put.code, 0), "put");
    bench_fill(put.data, put.length, number);
    bench_check(kvf_put_commit(client, &put, 1), "commit");
    bench_check(kvf_fail(KVF_MODULE_SERVER, put.code, 0), "commit");
}
