#include "client/cli/cli.h"

#include <limits.h>
#include <stdio.h>

enum words_exit cli_open(const char *what, const char *run_dir, uint64_t timeout_ms,
                         struct kvf_client **give)
{
    char path[PATH_MAX];
    struct kvf_why why = {""};
    if (snprintf(path, sizeof(path), "%s/engine.sock", run_dir) >= (int)sizeof(path))
        return words_usage(
            "%s: --run-dir %.100s...: too long for a unix socket; use a shorter path", what,
            run_dir);
    struct kvf_client_options options = {
        .socket_path = path, .name = what, .timeout_ms = timeout_ms < 5000 ? timeout_ms : 5000};
    struct kvf_status status = kvf_client_open(&options, give, &why);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say(what, status, why.text);
}
