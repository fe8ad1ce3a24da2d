/* kvferry: the operator's command. This file reads the command line and calls the subcommand; options may stand before
 * or behind it, and everything behind `--` is an argument. */
#include "base/version.h"
#include "client/cli/cli.h"
#include "client/cli/names.h"
#include "client/cli/sweep.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_DEFAULT_S 30
#define TIMEOUT_MOST_S 1000000

/* Above all characters, so that getopt's own answers are not among them. */
enum option_id {
    OPTION_RUN_DIR = 256,
    OPTION_JSON,
    OPTION_TIMEOUT,
    OPTION_OUTPUT,
    OPTION_SOURCE,
    OPTION_TLS_CERT,
    OPTION_TLS_KEY,
    OPTION_TLS_CA,
    OPTION_DURABLE,
    OPTION_DRAM,
    OPTION_WAIT,
    OPTION_TRACE,
    OPTION_PREFILL,
    OPTION_DECODE,
    OPTION_BLOCK_BYTES,
    OPTION_REQUESTS,
    OPTION_SEED,
    OPTION_ORDER,
    OPTION_SWEEP,
    OPTION_BLOCKS,
    OPTION_PAIRS,
    OPTION_RESTORES,
    OPTION_WARMUPS,
    OPTION_HELP,
    OPTION_VERSION,
};

#define BIT(option) (1u << ((option)-OPTION_RUN_DIR))
#define BENCH (DAEMON | BIT(OPTION_BLOCK_BYTES) | BIT(OPTION_BLOCKS) | BIT(OPTION_SEED))
#define DAEMON (BIT(OPTION_RUN_DIR) | BIT(OPTION_JSON) | BIT(OPTION_TIMEOUT))

struct command {
    const char *name;
    const char *usage;
    const char *what; /* for --help */
    unsigned options; /* those that it takes */
    bool needs_run_dir;
    size_t least, most; /* arguments */
    enum words_exit (*run)(const struct cli_options *options, char **arguments, size_t count);
};

static const struct command commands[] = {
    {"put", "put NS KEY FILE", "put a file as a block; of an existing key the first content stays",
     DAEMON, true, 3, 3, cli_put},
    {"get", "get NS KEY... -o DIR [--source HOST:PORT]",
     "write blocks to DIR (-: one to stdout), from here or from the source, every byte checked",
     DAEMON | BIT(OPTION_OUTPUT) | BIT(OPTION_SOURCE), true, 2, SIZE_MAX, cli_get},
    {"pull", "pull NS KEY... --source HOST:PORT -o DIR [--tls-cert F --tls-key F --tls-ca F]",
     "as get, straight from the source: needs no daemon on this host",
     BIT(OPTION_RUN_DIR) | BIT(OPTION_JSON) | BIT(OPTION_TIMEOUT) | BIT(OPTION_OUTPUT) |
         BIT(OPTION_SOURCE) | BIT(OPTION_TLS_CERT) | BIT(OPTION_TLS_KEY) | BIT(OPTION_TLS_CA),
     false, 2, SIZE_MAX, cli_pull},
    {"stat", "stat", "state, counters, drives and drain gauges of the daemon", DAEMON, true, 0, 0,
     cli_stat},
    {"sync", "sync [--durable]",
     "wait until what was put is on SSD; --durable: whatever the write policy",
     DAEMON | BIT(OPTION_DURABLE), true, 0, 0, cli_sync},
    {"evict", "evict --dram", "drop what is cached and unpinned from DRAM",
     DAEMON | BIT(OPTION_DRAM), true, 0, 0, cli_evict},
    {"set", "set read-batch-mib N",
     "most MiB that one Read asks for, from now on; 0: all that is wanted", DAEMON, true, 2, 2,
     cli_set},
    {"drain", "drain [--wait]", "let the daemon finish and end; --wait: until it has",
     DAEMON | BIT(OPTION_WAIT), true, 0, 0, cli_drain},
    {"replay",
     "replay --trace FILE --prefill DIR_A --decode DIR_B --source HOST:PORT [--block-bytes N] "
     "[--requests N] [--seed N] [--order phased|interleaved] [--json FILE]",
     "put a trace's blocks on one daemon, get them on the other, compare every byte",
     DAEMON | BIT(OPTION_SOURCE) | BIT(OPTION_TRACE) | BIT(OPTION_PREFILL) | BIT(OPTION_DECODE) |
         BIT(OPTION_BLOCK_BYTES) | BIT(OPTION_REQUESTS) | BIT(OPTION_SEED) | BIT(OPTION_ORDER),
     false, 0, 0, cli_replay},
    {"transports", "transports",
     "what lanes can run on from this host, and why not; needs no daemon",
     BIT(OPTION_RUN_DIR) | BIT(OPTION_JSON) | BIT(OPTION_TIMEOUT), false, 0, 0, cli_transports},
    {"trace", "trace --requests N [--seed N] -o FILE",
     "make a trace of the shape of a real chat service",
     BIT(OPTION_RUN_DIR) | BIT(OPTION_TIMEOUT) | BIT(OPTION_OUTPUT) | BIT(OPTION_REQUESTS) |
         BIT(OPTION_SEED),
     false, 0, 0, cli_trace},
    {"bench pull",
     "bench pull [NS] --source HOST:PORT [--sweep read-batch-mib=0,8,32,128] [--block-bytes N] "
     "[--blocks 8,16] [--prefill DIR] [--pairs N] [--restores N] [--warmups N] [--seed N]",
     "what a setting of this daemon does to restores from the source: times, Reads, ratios",
     BENCH | BIT(OPTION_SOURCE) | BIT(OPTION_SWEEP) | BIT(OPTION_PREFILL) | BIT(OPTION_PAIRS) |
         BIT(OPTION_RESTORES) | BIT(OPTION_WARMUPS),
     true, 0, 1, cli_bench_pull},
    {"bench fill", "bench fill [NS] [--block-bytes N] [--blocks N] [--seed N]",
     "put the blocks that bench pull restores, on the source's host; they end on its SSD", BENCH,
     true, 0, 1, cli_bench_fill},
    {"bench engine", "bench engine [NS] --source HOST:PORT --blocks N [--block-bytes N] [--seed N]",
     "an engine that restores once for each line 'restore' of its stdin, told in JSON",
     BENCH | BIT(OPTION_SOURCE), true, 0, 1, cli_bench_engine},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* --json is a switch, but for replay, which takes --json FILE. */
#define LONG_OPTIONS(json_argument)                                                                \
    {                                                                                              \
        {"run-dir", required_argument, NULL, OPTION_RUN_DIR},                                      \
            {"json", json_argument, NULL, OPTION_JSON},                                            \
            {"timeout-s", required_argument, NULL, OPTION_TIMEOUT},                                \
            {"output", required_argument, NULL, OPTION_OUTPUT},                                    \
            {"source", required_argument, NULL, OPTION_SOURCE},                                    \
            {"tls-cert", required_argument, NULL, OPTION_TLS_CERT},                                \
            {"tls-key", required_argument, NULL, OPTION_TLS_KEY},                                  \
            {"tls-ca", required_argument, NULL, OPTION_TLS_CA},                                    \
            {"durable", no_argument, NULL, OPTION_DURABLE},                                        \
            {"dram", no_argument, NULL, OPTION_DRAM}, {"wait", no_argument, NULL, OPTION_WAIT},    \
            {"trace", required_argument, NULL, OPTION_TRACE},                                      \
            {"prefill", required_argument, NULL, OPTION_PREFILL},                                  \
            {"decode", required_argument, NULL, OPTION_DECODE},                                    \
            {"block-bytes", required_argument, NULL, OPTION_BLOCK_BYTES},                          \
            {"requests", required_argument, NULL, OPTION_REQUESTS},                                \
            {"seed", required_argument, NULL, OPTION_SEED},                                        \
            {"order", required_argument, NULL, OPTION_ORDER},                                      \
            {"sweep", required_argument, NULL, OPTION_SWEEP},                                      \
            {"blocks", required_argument, NULL, OPTION_BLOCKS},                                    \
            {"pairs", required_argument, NULL, OPTION_PAIRS},                                      \
            {"restores", required_argument, NULL, OPTION_RESTORES},                                \
            {"warmups", required_argument, NULL, OPTION_WARMUPS},                                  \
            {"help", no_argument, NULL, OPTION_HELP},                                              \
            {"version", no_argument, NULL, OPTION_VERSION}, {NULL, 0, NULL, 0},                    \
    }

static const struct option json_is_switch[] = LONG_OPTIONS(no_argument);
static const struct option json_takes_file[] = LONG_OPTIONS(required_argument);

/* The leading '-': words are handed over in their order, whatever POSIXLY_CORRECT says. ':': errors are ours to say. */
static const char short_options[] = "-:o:h";

struct command_line {
    const struct command *command;
    struct cli_options options;
    unsigned given; /* BITs */
    char **arguments;
    size_t argument_count;
    bool help, version;
    bool is_bench; /* the word `bench` came; the next one says which */
};

/* ---- which command ---- */

static const struct command *find_command(const char *word)
{
    for (size_t i = 0; word != NULL && i < COMMANDS; i++) {
        if (strcmp(commands[i].name, word) == 0)
            return &commands[i];
    }
    return NULL;
}

/* The first word that is neither an option nor an option's value; NULL: there is none. */
static const char *first_word(int argc, char **argv, const struct option *options)
{
    int found;
    optind = 0; /* GNU: begin afresh */
    opterr = 0;
    while ((found = getopt_long(argc, argv, short_options, options, NULL)) != -1) {
        if (found == 1)
            return optarg;
    }
    return optind < argc ? argv[optind] : NULL;
}

/* --json takes a FILE where that reading makes the command `replay`. */
static const struct option *choose_options(int argc, char **argv)
{
    const struct command *command = find_command(first_word(argc, argv, json_is_switch));
    if (command != NULL && command->run != cli_replay)
        return json_is_switch;
    command = find_command(first_word(argc, argv, json_takes_file));
    return command != NULL && command->run == cli_replay ? json_takes_file : json_is_switch;
}

/* ---- reading it ---- */

static enum words_exit take_number(const char *name, const char *text, uint64_t least,
                                   uint64_t most, uint64_t *number)
{
    struct kvf_why why = {""};
    struct kvf_status status = names_number(name, text, least, most, number, &why);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_usage("%s", why.text);
}

static enum words_exit take_order(struct cli_options *options, const char *text)
{
    options->interleaved = strcmp(text, "interleaved") == 0;
    if (options->interleaved || strcmp(text, "phased") == 0)
        return WORDS_EXIT_OK;
    return words_usage("--order '%.60s': give phased or interleaved", text);
}

static enum words_exit take_timeout(struct cli_options *options, const char *text)
{
    uint64_t seconds = 0;
    enum words_exit code = take_number("--timeout-s", text, 1, TIMEOUT_MOST_S, &seconds);
    options->timeout_ms = seconds * 1000;
    options->timeout_given = true;
    return code;
}

static enum words_exit take_option(struct command_line *line, enum option_id id, const char *value)
{
    struct cli_options *options = &line->options;
    switch (id) {
    case OPTION_RUN_DIR:
        options->run_dir = value;
        break;
    case OPTION_JSON:
        options->json = true;
        options->json_path = value;
        break;
    case OPTION_TIMEOUT:
        return take_timeout(options, value);
    case OPTION_OUTPUT:
        options->output = value;
        break;
    case OPTION_SOURCE:
        options->source = value;
        break;
    case OPTION_TLS_CERT:
        options->tls_cert = value;
        break;
    case OPTION_TLS_KEY:
        options->tls_key = value;
        break;
    case OPTION_TLS_CA:
        options->tls_ca = value;
        break;
    case OPTION_DURABLE:
        options->durable = true;
        break;
    case OPTION_DRAM:
        options->dram = true;
        break;
    case OPTION_WAIT:
        options->wait = true;
        break;
    case OPTION_TRACE:
        options->trace = value;
        break;
    case OPTION_PREFILL:
        options->prefill = value;
        break;
    case OPTION_DECODE:
        options->decode = value;
        break;
    case OPTION_BLOCK_BYTES:
        return take_number("--block-bytes", value, 1, KVF_BLOCK_MAX_BYTES, &options->block_bytes);
    case OPTION_REQUESTS:
        return take_number("--requests", value, 1, UINT64_MAX, &options->requests);
    case OPTION_SEED:
        return take_number("--seed", value, 0, UINT64_MAX, &options->seed);
    case OPTION_ORDER:
        return take_order(options, value);
    case OPTION_SWEEP:
        options->sweep = value;
        break;
    case OPTION_BLOCKS:
        options->blocks = value;
        break;
    case OPTION_PAIRS:
        return take_number("--pairs", value, 1, SWEEP_ROUNDS_MOST, &options->pairs);
    case OPTION_RESTORES:
        return take_number("--restores", value, 1, SWEEP_ROUND_MOST, &options->restores);
    case OPTION_WARMUPS:
        options->warmups_given = true;
        return take_number("--warmups", value, 0, SWEEP_ROUND_MOST, &options->warmups);
    case OPTION_HELP:
        line->help = true;
        break;
    case OPTION_VERSION:
        line->version = true;
        break;
    }
    return WORDS_EXIT_OK;
}

/* The first word is the command (with bench: the first two), the others its arguments. */
static enum words_exit take_word(struct command_line *line, char *word)
{
    if (line->command != NULL) {
        line->arguments[line->argument_count++] = word;
        return WORDS_EXIT_OK;
    }
    if (!line->is_bench && strcmp(word, "bench") == 0) {
        line->is_bench = true;
        return WORDS_EXIT_OK;
    }
    char name[32];
    (void)snprintf(name, sizeof(name), "%s%.20s", line->is_bench ? "bench " : "", word);
    line->command = find_command(name);
    if (line->command == NULL && line->is_bench)
        return words_usage("'bench %.60s' is no command: there are bench pull, bench fill and "
                           "bench engine; see kvferry --help",
                           word);
    return line->command != NULL ? WORDS_EXIT_OK
                                 : words_usage("'%.60s' is no command; see kvferry --help", word);
}

static enum words_exit read_line(struct command_line *line, int argc, char **argv)
{
    const struct option *options = choose_options(argc, argv);
    optind = 0;
    for (;;) {
        int at = optind == 0 ? 1 : optind;
        int found = getopt_long(argc, argv, short_options, options, NULL);
        enum words_exit code = WORDS_EXIT_OK;
        if (found == -1)
            break;
        if (found == '?')
            return words_usage("'%.80s' is no option here; see kvferry --help", argv[at]);
        if (found == ':')
            return words_usage("%.80s needs a value; see kvferry --help", argv[at]);
        if (found == 1) {
            code = take_word(line, optarg);
        } else {
            enum option_id id = found == 'o'   ? OPTION_OUTPUT
                                : found == 'h' ? OPTION_HELP
                                               : (enum option_id)found;
            line->given |= BIT(id);
            code = take_option(line, id, optarg);
        }
        if (code != WORDS_EXIT_OK)
            return code;
    }
    for (; optind < argc; optind++) {
        enum words_exit code = take_word(line, argv[optind]);
        if (code != WORDS_EXIT_OK)
            return code;
    }
    return WORDS_EXIT_OK;
}

/* ---- judging it ---- */

static const char *option_name(unsigned bits)
{
    for (const struct option *option = json_is_switch; option->name != NULL; option++) {
        if ((BIT(option->val) & bits) != 0)
            return option->name;
    }
    return "";
}

static enum words_exit judge_line(struct command_line *line)
{
    const struct command *command = line->command;
    unsigned foreign = line->given & ~command->options;
    if (foreign != 0)
        return words_usage("%s takes no --%s; usage: kvferry %s", command->name,
                           option_name(foreign), command->usage);
    if (line->argument_count < command->least || line->argument_count > command->most)
        return words_usage("%s: wrong number of arguments (%zu); usage: kvferry %s", command->name,
                           line->argument_count, command->usage);
    if (line->options.run_dir == NULL)
        line->options.run_dir = getenv("KVFERRY_RUN_DIR");
    bool has_run_dir = line->options.run_dir != NULL && line->options.run_dir[0] != '\0';
    if (command->needs_run_dir && !has_run_dir)
        return words_usage("%s: which daemon? give --run-dir DIR, the same as kvferryd's, or set "
                           "KVFERRY_RUN_DIR",
                           command->name);
    return WORDS_EXIT_OK;
}

static void print_help(void)
{
    (void)printf("usage: kvferry [--run-dir DIR] [--json] [--timeout-s N (%d)] COMMAND\n"
                 "       kvferry --help | --version\n\n",
                 TIMEOUT_DEFAULT_S);
    for (size_t i = 0; i < COMMANDS; i++)
        (void)printf("  %s\n      %s\n", commands[i].usage, commands[i].what);
    (void)printf(
        "\n"
        "NS is TENANT/FINGERPRINT. KEY is its literal bytes, or hex:...; 1 to 64 bytes. FILE - is\n"
        "stdin. --run-dir is the daemon's; without it KVFERRY_RUN_DIR in the environment counts.\n"
        "Words behind -- are arguments even if they begin with a dash.\n\n"
        "Exit: 0 all done, 1 failed (no daemon, busy, denied), 2 usage or too large,\n"
        "4 some blocks are missing.\n");
}

static enum words_exit run_line(struct command_line *line, int argc, char **argv)
{
    enum words_exit code = read_line(line, argc, argv);
    if (code != WORDS_EXIT_OK)
        return code;
    if (line->help) {
        print_help();
        return WORDS_EXIT_OK;
    }
    if (line->version) {
        (void)printf("kvferry %s\n", KVF_VERSION);
        return WORDS_EXIT_OK;
    }
    if (line->command == NULL)
        return words_usage("%s; see kvferry --help",
                           line->is_bench ? "bench what? pull, fill or engine" : "no command");
    code = judge_line(line);
    if (code != WORDS_EXIT_OK)
        return code;
    return line->command->run(&line->options, line->arguments, line->argument_count);
}

int main(int argc, char **argv)
{
    struct command_line line = {.options.timeout_ms = TIMEOUT_DEFAULT_S * UINT64_C(1000),
                                .arguments = calloc((size_t)argc + 1, sizeof(char *))};
    if (line.arguments == NULL)
        return WORDS_EXIT_FAILED;
    (void)signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error like any other */
    enum words_exit code = run_line(&line, argc, argv);
    free(line.arguments);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        words_note("cannot write to stdout: %s", strerror(errno));
        code = words_exit_worse(code, WORDS_EXIT_FAILED);
    }
    return (int)code;
}
