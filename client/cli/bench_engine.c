/* kvferry bench engine: an engine that restores once for each line `restore` on its stdin, and says what came of it in
 * one line of JSON. deploy/qualify drives it: it lives as long as an engine does, through warm-ups and measured restores,
 * and unregisters when its stdin ends or its daemon drains. */
#include "base/clock.h"
#include "client/cli/bench.h"
#include "client/cli/names.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_MOST 64

struct engine {
    struct bench bench;
    size_t blocks;
    char line[LINE_MOST];
    size_t line_bytes;
    uint64_t restores, missing, mismatches;
    const char *ended; /* NULL: goes on */
};

static void print_restore(const struct engine *engine, const struct bench_restore *restore)
{
    (void)printf("{\"restore\": %" PRIu64 ", \"get_ns\": %" PRIu64 ", \"copy_ns\": %" PRIu64
                 ", \"h2d_bytes\": %" PRIu64 ", \"blocks\": %zu, \"missing\": %zu, "
                 "\"mismatches\": %zu, \"hits\": {\"dram\": %zu, \"ssd\": %zu, \"remote_dram\": "
                 "%zu, \"remote_ssd\": %zu}, \"reason\": \"%s\"}\n",
                 engine->restores, restore->get_ns, restore->copy_ns, restore->bytes,
                 engine->blocks, restore->missing, restore->mismatches, restore->dram, restore->ssd,
                 restore->remote_dram, restore->remote_ssd, kvf_code_name(restore->reason));
    (void)fflush(stdout);
}

/* The daemon's leaving ends us; it is no failure of ours. */
static enum words_exit note_status(struct engine *engine, struct kvf_status status)
{
    if (kvf_is_ok(status))
        return WORDS_EXIT_OK;
    if (status.code == KVF_DRAINING || status.code == KVF_UNAVAILABLE) {
        engine->ended = status.code == KVF_DRAINING ? "draining" : "gone";
        return WORDS_EXIT_OK;
    }
    return words_say("bench engine", status, NULL);
}

static enum words_exit obey(struct engine *engine, const char *line)
{
    struct bench_restore restore;
    if (strcmp(line, "restore") != 0)
        return words_usage("bench engine: '%.60s': say restore, or end its stdin", line);
    enum words_exit code =
        note_status(engine, bench_restore(&engine->bench, engine->blocks, &restore));
    if (code != WORDS_EXIT_OK || engine->ended != NULL)
        return code;
    engine->restores++;
    engine->missing += restore.missing;
    engine->mismatches += restore.mismatches;
    print_restore(engine, &restore);
    return WORDS_EXIT_OK;
}

/* What has come on stdin: each whole line is obeyed. */
static enum words_exit take_input(struct engine *engine)
{
    enum words_exit code = WORDS_EXIT_OK;
    char *end;
    ssize_t bytes =
        read(STDIN_FILENO, engine->line + engine->line_bytes, LINE_MOST - 1 - engine->line_bytes);
    if (bytes < 0 && errno == EINTR)
        return WORDS_EXIT_OK;
    if (bytes <= 0) {
        engine->ended = "told";
        return WORDS_EXIT_OK;
    }
    engine->line_bytes += (size_t)bytes;
    while (code == WORDS_EXIT_OK && engine->ended == NULL &&
           (end = memchr(engine->line, '\n', engine->line_bytes)) != NULL) {
        *end = '\0';
        code = obey(engine, engine->line);
        size_t used = (size_t)(end + 1 - engine->line);
        engine->line_bytes -= used;
        memmove(engine->line, end + 1, engine->line_bytes);
    }
    if (engine->line_bytes == LINE_MOST - 1)
        return words_usage("bench engine: a line of stdin is too long");
    return code;
}

static enum words_exit serve(struct engine *engine)
{
    while (engine->ended == NULL) {
        struct pollfd watch[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                  {.fd = kvf_client_fd(engine->bench.client), .events = POLLIN}};
        /* Before the sleep: a notice that came amidst an answer is not in the socket any more. */
        enum words_exit code = note_status(engine, kvf_client_poll(engine->bench.client));
        if (code == WORDS_EXIT_OK && engine->ended == NULL && poll(watch, 2, -1) > 0 &&
            watch[0].revents != 0)
            code = take_input(engine);
        if (code != WORDS_EXIT_OK)
            return code;
    }
    return WORDS_EXIT_OK;
}

static enum words_exit begin(struct engine *engine, const struct cli_options *options,
                             char **arguments, size_t count)
{
    struct kvf_why why = {""};
    uint64_t blocks;
    enum words_exit code = bench_begin(&engine->bench, "bench engine", options, arguments, count);
    if (code != WORDS_EXIT_OK)
        return code;
    if (options->blocks == NULL || options->source == NULL)
        return words_usage("bench engine: needs --source HOST:PORT and --blocks N");
    if (!kvf_is_ok(names_number("--blocks", options->blocks, 1, CLI_CALL_BLOCKS, &blocks, &why)))
        return words_usage("bench engine: %s", why.text);
    engine->blocks = (size_t)blocks;
    return bench_open(&engine->bench, "bench engine", engine->blocks);
}

enum words_exit cli_bench_engine(const struct cli_options *options, char **arguments, size_t count)
{
    struct engine engine = {.ended = NULL};
    enum words_exit code = begin(&engine, options, arguments, count);
    if (code == WORDS_EXIT_OK) {
        (void)printf("{\"registered\": true}\n");
        (void)fflush(stdout);
        code = note_status(&engine, bench_forget(&engine.bench, engine.blocks));
    }
    if (code == WORDS_EXIT_OK)
        code = serve(&engine);
    struct kvf_status closed = bench_close(&engine.bench);
    if (code != WORDS_EXIT_OK)
        return code;
    (void)printf("{\"ended\": \"%s\", \"restores\": %" PRIu64
                 ", \"unregistered\": true, \"daemon_was_gone\": %s}\n",
                 engine.ended, engine.restores, closed.detail == 1 ? "true" : "false");
    return engine.mismatches > 0 ? WORDS_EXIT_FAILED
           : engine.missing > 0  ? WORDS_EXIT_MISSING
                                 : WORDS_EXIT_OK;
}
