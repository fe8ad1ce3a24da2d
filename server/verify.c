#include "server/verify.h"

#include "base/block.h"
#include "storage/storage.h"

#include <inttypes.h>

#define NAMED_MAX 20 /* damages; a broken drive would fill the screen */

enum exit_code {
    EXIT_CLEAN = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_DAMAGED = 5,
};

struct verify {
    FILE *progress;
    unsigned named;
};

static unsigned percent(const struct kvf_verify_result *result)
{
    return result->total_bytes > 0 ? (unsigned)(result->done_bytes * 100 / result->total_bytes)
                                   : 100;
}

static void say_progress(void *context, const struct kvf_verify_result *result)
{
    const struct verify *verify = context;
    (void)fprintf(verify->progress,
                  "kvferryd: verify: %u %% of %" PRIu64 " MiB, %" PRIu64 " records, %" PRIu64
                  " damaged\n",
                  percent(result), result->total_bytes / KVF_MIB, result->records, result->damaged);
    (void)fflush(verify->progress);
}

static void say_damage(void *context, const struct kvf_verify_damage *damage)
{
    struct verify *verify = context;
    if (verify->named++ >= NAMED_MAX)
        return;
    (void)fprintf(verify->progress, "kvferryd: verify: %s/%s, offset %" PRIu64 ": %s", damage->path,
                  damage->file, damage->offset, damage->what);
    if (damage->record != NULL) {
        char key[KVF_KEY_TEXT_ROOM];
        kvf_key_text(&damage->record->key, key);
        (void)fprintf(verify->progress, ": %s %s", damage->record->namespace, key);
    }
    (void)fputc('\n', verify->progress);
    if (verify->named == NAMED_MAX)
        (void)fputs("kvferryd: verify: more are counted, not named\n", verify->progress);
}

static void say_result(FILE *report, const struct kvf_verify_result *result)
{
    (void)fprintf(report,
                  "kvferryd: verify: %" PRIu64 " records of %" PRIu64 " bytes in %" PRIu64
                  " segments: %" PRIu64 " damaged, %" PRIu64 " unfinished writes, %" PRIu64
                  " unreadable segments\n",
                  result->records, result->bytes, result->segments, result->damaged,
                  result->unfinished, result->unreadable);
    if (result->damaged > 0)
        (void)fputs(
            "kvferryd: verify: the daemon may be started as it is: damaged blocks are misses and "
            "their segments are overwritten in time. To be rid of them at once empty the directory "
            "named above. Damage that comes again means a failing drive: replace it\n",
            report);
}

static int fail(FILE *progress, struct kvf_status status, const struct kvf_why *why)
{
    (void)fprintf(progress, "kvferryd: verify: %s\n",
                  why->text[0] != '\0' ? why->text : kvf_code_name(status.code));
    if (status.code == KVF_CORRUPT)
        return EXIT_DAMAGED;
    return status.code == KVF_INVALID ? EXIT_USAGE : EXIT_FAILED;
}

int kvf_verify_run(const struct kvf_config_list *paths, FILE *report, FILE *progress)
{
    struct verify verify = {.progress = progress};
    struct kvf_verify_options options = {
        .paths = paths->items,
        .path_count = paths->count,
        .progress = say_progress,
        .damaged = say_damage,
        .context = &verify,
    };
    struct kvf_verify_result result;
    struct kvf_why why = {.text = ""};
    struct kvf_status status = kvf_store_verify(&options, &result, &why);
    if (kvf_is_ok(status) || result.unreadable > 0)
        say_result(report, &result);
    (void)fflush(report);
    if (!kvf_is_ok(status))
        return fail(progress, status, &why);
    return result.damaged > 0 ? EXIT_DAMAGED : EXIT_CLEAN;
}
