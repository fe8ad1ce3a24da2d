/* kvferry put NS KEY FILE: a file's bytes straight into the place that the daemon gives. */
#include "client/cli/cli.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/names.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the block's bytes come from. */
struct input {
    const char *name;
    int fd;
    uint64_t bytes;
    void *data; /* what came from a pipe, which cannot say its length beforehand; NULL: read fd */
};

static enum words_exit judge_length(const struct input *input)
{
    if (input->bytes == 0)
        return words_usage("put: %s is empty; a block has 1 byte to 128 MiB", input->name);
    if (input->bytes > KVF_BLOCK_MAX_BYTES)
        return words_usage("put: %s is larger than 128 MiB (%" PRIu64
                           " bytes); cut it into smaller blocks",
                           input->name, KVF_BLOCK_MAX_BYTES);
    return WORDS_EXIT_OK;
}

static enum words_exit slurp(struct input *input)
{
    size_t bytes = 0;
    input->data = malloc(KVF_BLOCK_MAX_BYTES + 1);
    struct kvf_status status = kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    if (input->data != NULL)
        status = files_read(input->fd, input->data, KVF_BLOCK_MAX_BYTES + 1, &bytes);
    if (!kvf_is_ok(status))
        return words_say(input->name, status, NULL);
    input->bytes = bytes;
    return judge_length(input);
}

static enum words_exit open_input(struct input *input)
{
    bool is_stdin = strcmp(input->name, "-") == 0;
    struct stat file;
    input->fd = is_stdin ? STDIN_FILENO : open(input->name, O_RDONLY | O_CLOEXEC);
    if (input->fd < 0 || fstat(input->fd, &file) != 0)
        return words_usage("put: cannot read %s: %s", input->name, strerror(errno));
    if (S_ISDIR(file.st_mode))
        return words_usage("put: %s is a directory; name a file, or - for stdin", input->name);
    if (is_stdin || !S_ISREG(file.st_mode))
        return slurp(input);
    input->bytes = (uint64_t)file.st_size;
    return judge_length(input);
}

static void close_input(struct input *input)
{
    if (input->fd > STDIN_FILENO)
        (void)close(input->fd);
    free(input->data);
}

/* Fill the place and commit. */
static enum words_exit write_block(struct kvf_client *client, struct kvf_put *put,
                                   const struct input *input)
{
    size_t bytes = (size_t)put->length;
    struct kvf_status status = kvf_ok();
    if (input->data != NULL)
        memcpy(put->data, input->data, bytes);
    else
        status = files_read(input->fd, put->data, (size_t)put->length, &bytes);
    if (!kvf_is_ok(status) || bytes != put->length) {
        kvf_put_abort(client, put, 1);
        words_note("put: %s: %s; nothing was put, try again when nobody writes to it", input->name,
                   kvf_is_ok(status) ? "became shorter while it was read"
                                     : strerror(status.detail));
        return WORDS_EXIT_FAILED;
    }
    status = kvf_put_commit(client, put, 1);
    if (kvf_is_ok(status) && put->code != KVF_OK)
        status = kvf_fail(KVF_MODULE_SERVER, put->code, 0);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say("put", status, NULL);
}

static enum words_exit print_result(const struct cli_options *options, const char *ns,
                                    const struct kvf_put *put, const char *name, const char *result)
{
    char key[KVF_KEY_TEXT_ROOM];
    kvf_key_text(&put->key, key);
    if (!options->json) {
        if (put->code == KVF_EXISTS) {
            words_note("put: %s has content already, and the first content stays: %s was not "
                       "written",
                       key, name);
            return puts(result) < 0 ? WORDS_EXIT_FAILED : WORDS_EXIT_OK;
        }
        return printf("put %s %" PRIu64 " bytes\n", key, put->length) < 0 ? WORDS_EXIT_FAILED
                                                                          : WORDS_EXIT_OK;
    }
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "namespace", ns);
    (void)cJSON_AddStringToObject(object, "key", key);
    (void)cJSON_AddStringToObject(object, "result", result);
    json_add_number(object, "bytes", put->length);
    return json_print(object);
}

static enum words_exit put_input(const struct cli_options *options, const char *ns,
                                 struct kvf_put *put, const struct input *input)
{
    struct kvf_client *client = NULL;
    enum words_exit code = cli_open("put", options->run_dir, options->timeout_ms, &client);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = kvf_put_begin(client, ns, put, 1, options->timeout_ms);
    char limit[WORDS_LIMIT_ROOM];
    words_limit(limit, "--dirty-limit-mib", kvf_client_max_put_bytes(client));
    if (kvf_is_ok(status) && put->code != KVF_OK && put->code != KVF_EXISTS)
        status = kvf_fail(KVF_MODULE_SERVER, put->code, 0);
    if (status.code == KVF_TOO_LARGE)
        code = words_usage("put: %s has %" PRIu64 " bytes, and this daemon has %s, or a smaller "
                           "share for this tenant (%s): put less at once, or raise it",
                           input->name, input->bytes, limit, kvf_code_name(status.code));
    else if (!kvf_is_ok(status))
        code = words_say("put", status, NULL);
    else if (put->code == KVF_OK)
        code = write_block(client, put, input);
    (void)kvf_client_close(client);
    if (code != WORDS_EXIT_OK)
        return code;
    return print_result(options, ns, put, input->name, put->code == KVF_EXISTS ? "exists" : "put");
}

enum words_exit cli_put(const struct cli_options *options, char **arguments, size_t count)
{
    (void)count;
    struct kvf_put put = {0};
    struct kvf_why why = {""};
    struct input input = {.name = arguments[2], .fd = -1};
    if (!kvf_is_ok(names_namespace(arguments[0], &why)) ||
        !kvf_is_ok(names_key(arguments[1], &put.key, &why)))
        return words_usage("put: %s", why.text);
    enum words_exit code = open_input(&input);
    if (code == WORDS_EXIT_OK) {
        put.length = input.bytes;
        code = put_input(options, arguments[0], &put, &input);
    }
    close_input(&input);
    return code;
}
