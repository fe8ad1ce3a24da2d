#include "client/cli/delivery.h"

#include "client/cli/files.h"
#include "client/cli/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

static const char *tier_name(enum kvf_tier tier)
{
    return tier == KVF_TIER_SSD ? "ssd" : tier == KVF_TIER_DRAM ? "dram" : "none";
}

static const char *origin_name(enum kvf_origin origin)
{
    return origin == KVF_ORIGIN_REMOTE ? "remote" : "local";
}

static cJSON *add_object(struct delivery *delivery, const char *key, unsigned code)
{
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "key", key);
    (void)cJSON_AddStringToObject(object, "status", kvf_code_name(code));
    (void)cJSON_AddItemToArray(delivery->list, object);
    return object;
}

static bool is_stdout(const char *output)
{
    return strcmp(output, "-") == 0;
}

static void report_found(struct delivery *delivery, const struct delivered *block, const char *key,
                         const char *path)
{
    delivery->found++;
    delivery->bytes += block->length;
    if (delivery->list == NULL) {
        (void)fprintf(is_stdout(delivery->directory) ? stderr : stdout,
                      "%s %" PRIu64 " bytes %s %s\n", key, block->length, tier_name(block->tier),
                      origin_name(block->origin));
        return;
    }
    cJSON *object = add_object(delivery, key, KVF_OK);
    json_add_number(object, "bytes", block->length);
    (void)cJSON_AddStringToObject(object, "tier", tier_name(block->tier));
    (void)cJSON_AddStringToObject(object, "origin", origin_name(block->origin));
    (void)cJSON_AddStringToObject(object, "file", path);
}

/* Nobody answers at the source. That is one thing, however many blocks were asked for: what to do is said once. */
static void report_unreachable(struct delivery *delivery, const char *key)
{
    if (delivery->unreachable++ > 0)
        words_note("%s: %s: %s (UNAVAILABLE)", delivery->what, key, words_meaning(KVF_UNAVAILABLE));
    else if (delivery->source != NULL)
        words_note("%s: %s: no kvferryd answers at %s (UNAVAILABLE); %s", delivery->what, key,
                   delivery->source, words_remedy(KVF_UNAVAILABLE));
    else
        words_note("%s: %s: no --peer of this daemon answers (UNAVAILABLE); name a --source, or "
                   "see the daemon's log",
                   delivery->what, key);
}

static void report_missing(struct delivery *delivery, const struct delivered *block,
                           const char *key)
{
    delivery->missing++;
    delivery->code = words_exit_worse(delivery->code, words_exit_of_block(block->code));
    if (block->code == KVF_UNAVAILABLE)
        report_unreachable(delivery, key);
    else if (block->code == KVF_TOO_LARGE && block->limit != NULL)
        words_note("%s: %s: larger than one caller may hold here: this daemon has %s, or a smaller "
                   "share for this tenant (%s)",
                   delivery->what, key, block->limit, kvf_code_name(block->code));
    else
        words_note("%s: %s: %s (%s); %s", delivery->what, key, words_meaning(block->code),
                   kvf_code_name(block->code), words_remedy(block->code));
    if (delivery->list != NULL)
        (void)add_object(delivery, key, block->code);
}

enum words_exit delivery_judge(const char *what, const char *output, bool json, size_t blocks)
{
    if (output == NULL || output[0] == '\0')
        return words_usage("%s: -o DIR is missing: name the directory for the blocks", what);
    if (!is_stdout(output))
        return WORDS_EXIT_OK;
    if (blocks != 1)
        return words_usage("%s: -o - writes one block to stdout, and %zu are asked for: name a "
                           "directory (./- if it is to be called so)",
                           what, blocks);
    if (json)
        return words_usage("%s: -o - and --json both want stdout: name a directory", what);
    return WORDS_EXIT_OK;
}

enum words_exit delivery_begin(struct delivery *delivery, const char *what, const char *directory,
                               const char *source, bool json)
{
    struct kvf_why why = {""};
    struct kvf_status status =
        is_stdout(directory) ? kvf_ok() : files_make_directory(directory, &why);
    if (!kvf_is_ok(status))
        return words_say(what, status, why.text);
    *delivery = (struct delivery){.what = what,
                                  .directory = directory,
                                  .source = source,
                                  .list = json ? cJSON_CreateArray() : NULL,
                                  .code = WORDS_EXIT_OK};
    return WORDS_EXIT_OK;
}

static struct kvf_status write_block(const struct delivery *delivery, const struct delivered *block,
                                     char path[PATH_MAX], struct kvf_why *why)
{
    char name[FILES_NAME_ROOM];
    files_name(&block->key, name);
    if (is_stdout(delivery->directory))
        return files_write_to(STDOUT_FILENO, "stdout", block->data, (size_t)block->length, why);
    if (snprintf(path, PATH_MAX, "%s/%s", delivery->directory, name) >= PATH_MAX)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_IO, ENAMETOOLONG);
    return files_write(path, block->data, (size_t)block->length, why);
}

void delivery_take(struct delivery *delivery, const struct delivered *block)
{
    char key[KVF_KEY_TEXT_ROOM], path[PATH_MAX];
    kvf_key_text(&block->key, key);
    if (block->code != KVF_OK) {
        report_missing(delivery, block, key);
        return;
    }
    struct kvf_why why = {""};
    struct kvf_status status = write_block(delivery, block, path, &why);
    if (kvf_is_ok(status)) {
        report_found(delivery, block, key, path);
        return;
    }
    delivery->missing++;
    (void)words_say(delivery->what, status, why.text);
    delivery->code = words_exit_worse(delivery->code, WORDS_EXIT_FAILED);
}

enum words_exit delivery_finish(struct delivery *delivery, const char *ns)
{
    if (delivery->list == NULL)
        return delivery->code;
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "namespace", ns);
    json_add_number(object, "found", delivery->found);
    json_add_number(object, "missing", delivery->missing);
    json_add_number(object, "bytes", delivery->bytes);
    (void)cJSON_AddItemToObject(object, "blocks", delivery->list);
    delivery->list = NULL;
    return words_exit_worse(delivery->code, json_print(object));
}

enum words_exit delivery_abandon(struct delivery *delivery)
{
    cJSON_Delete(delivery->list);
    delivery->list = NULL;
    return delivery->code;
}
