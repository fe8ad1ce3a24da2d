/* libFuzzer over flags, environment and file. The first byte: how many of the pieces are words of the command line; of
 * the others the first is the --config file, the rest are variables of the environment. What is accepted must say itself
 * again, in the log and by the batch rule. */
#include "server/config.h"
#include "tests/corpus/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WORDS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char file_flag[64];
static int file = -1;

static void start(void)
{
    file = memfd_create("config", MFD_CLOEXEC);
    kvf_assert(file >= 0);
    (void)snprintf(file_flag, sizeof(file_flag), "/proc/self/fd/%d", file);
}

/* A piece as text: it ends at its first zero. */
static char *text_of(const uint8_t *piece, size_t length)
{
    char *text = strndup((const char *)piece, length);
    kvf_assert(text != NULL);
    return text;
}

static void write_file(const uint8_t *piece, size_t length)
{
    kvf_assert(ftruncate(file, 0) == 0);
    kvf_assert(pwrite(file, piece, length, 0) == (ssize_t)length);
}

static void load(int argc, char **argv, char **environment)
{
    struct kvf_config config;
    struct kvf_why why = {.text = ""}, note = {.text = ""};
    uint64_t in_flight;
    struct kvf_status status = kvf_config_load(argc, argv, environment, &config, &why);
    if (!kvf_is_ok(status)) {
        kvf_assert(why.text[0] != '\0' && strchr(why.text, '\n') == NULL);
        return;
    }
    if (config.action <= KVF_CONFIG_VERIFY) {
        kvf_config_log(&config);
        (void)kvf_is_ok(
            kvf_config_batch_rule(&config, config.pool_bytes / 3, &in_flight, &note, &why));
    }
    kvf_config_release(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *argv[WORDS + 4] = {text_of((const uint8_t *)"kvferryd", 8)}, *environment[WORDS + 1];
    int argc = 1, variables = 0;
    const uint8_t *piece;
    size_t length;
    if (file < 0)
        start();
    int words = bytes > 0 ? data[0] % WORDS : 0;
    struct pieces pieces = {data + (bytes > 0), bytes > 0 ? bytes - 1 : 0};
    while (argc <= words && pieces_next(&pieces, &piece, &length))
        argv[argc++] = text_of(piece, length);
    if (pieces_next(&pieces, &piece, &length)) {
        write_file(piece, length);
        argv[argc++] = text_of((const uint8_t *)"--config", 8);
        argv[argc++] = text_of((const uint8_t *)file_flag, strlen(file_flag));
    }
    while (variables < WORDS && pieces_next(&pieces, &piece, &length))
        environment[variables++] = text_of(piece, length);
    argv[argc] = environment[variables] = NULL;
    load(argc, argv, environment);
    while (argc > 0)
        free(argv[--argc]);
    while (variables > 0)
        free(environment[--variables]);
    return 0;
}
