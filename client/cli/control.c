/* What is asked of the daemon itself: stat, sync, evict, set, drain. */
#include "base/clock.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DRAIN_TIMEOUT_MS UINT64_C(600000) /* drain --wait without --timeout-s */
/* This long a socket without a listener may be a daemon's last moment. */
#define DESERTED_MS UINT64_C(5000)

static enum words_exit open_admin(const char *what, const struct cli_options *options,
                                  struct admin **give)
{
    struct kvf_why why = {""};
    struct kvf_status status = admin_open(options->run_dir, give, &why);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say(what, status, why.text);
}

/* Print what the daemon did, or say why not; closes admin. */
static enum words_exit conclude(const char *what, const char *done,
                                const struct cli_options *options, struct admin *admin,
                                struct kvf_status status, const struct admin_reply *reply,
                                const struct kvf_why *why)
{
    admin_close(admin);
    if (!kvf_is_ok(status))
        return words_say(what, status, why->text);
    if (options->json) {
        cJSON *object = cJSON_CreateObject();
        json_add_number(object, "blocks", reply->blocks);
        json_add_number(object, "bytes", reply->bytes);
        return json_print(object);
    }
    char size[24], message[sizeof(reply->message)];
    table_bytes_text((double)reply->bytes, size);
    memcpy(message, reply->message, sizeof(message));
    words_clean(message);
    (void)printf("%s %" PRIu64 " blocks, %" PRIu64 " bytes (%s)%s%s\n", done, reply->blocks,
                 reply->bytes, size, message[0] != '\0' ? ": " : "", message);
    return WORDS_EXIT_OK;
}

enum words_exit cli_sync(const struct cli_options *options, char **arguments, size_t count)
{
    (void)arguments;
    (void)count;
    struct admin *admin;
    struct admin_reply reply = {0};
    struct kvf_why why = {""};
    enum words_exit code = open_admin("sync", options, &admin);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status =
        admin_sync(admin, options->durable, options->timeout_ms, &reply, &why);
    return conclude("sync", "wrote", options, admin, status, &reply, &why);
}

enum words_exit cli_evict(const struct cli_options *options, char **arguments, size_t count)
{
    (void)arguments;
    (void)count;
    struct admin *admin;
    struct admin_reply reply = {0};
    struct kvf_why why = {""};
    if (!options->dram)
        return words_usage(
            "evict: --dram is missing: say which tier to empty; it is the only one there is");
    enum words_exit code = open_admin("evict", options, &admin);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = admin_evict(admin, true, options->timeout_ms, &reply, &why);
    return conclude("evict", "evicted", options, admin, status, &reply, &why);
}

enum words_exit cli_set(const struct cli_options *options, char **arguments, size_t count)
{
    (void)count;
    struct admin *admin;
    struct admin_reply reply = {0};
    struct kvf_why why = {""};
    uint64_t mib;
    if (strcmp(arguments[0], "read-batch-mib") != 0)
        return words_usage("set: '%.60s' cannot be set while the daemon runs; read-batch-mib can",
                           arguments[0]);
    if (!kvf_is_ok(
            names_number("read-batch-mib", arguments[1], 0, UINT64_MAX / KVF_MIB, &mib, &why)))
        return words_usage("set: %s", why.text);
    enum words_exit code = open_admin("set", options, &admin);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = admin_set_read_batch(admin, mib, options->timeout_ms, &reply, &why);
    admin_close(admin);
    if (!kvf_is_ok(status))
        return words_say("set", status, why.text);
    if (options->json) {
        cJSON *object = cJSON_CreateObject();
        json_add_number(object, "read_batch_mib", mib);
        return json_print(object);
    }
    words_clean(reply.message);
    (void)printf("read-batch-mib %" PRIu64 "%s%s\n", mib, reply.message[0] != '\0' ? ": " : "",
                 reply.message);
    return WORDS_EXIT_OK;
}

enum words_exit cli_stat(const struct cli_options *options, char **arguments, size_t count)
{
    (void)arguments;
    (void)count;
    struct admin *admin;
    char *text = NULL;
    struct kvf_why why = {""};
    enum words_exit code = open_admin("stat", options, &admin);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = admin_stat(admin, options->timeout_ms, &text, &why);
    admin_close(admin);
    if (!kvf_is_ok(status))
        return words_say("stat", status, why.text);
    cJSON *object = cJSON_Parse(text);
    if (!cJSON_IsObject(object))
        code = words_say("stat", kvf_fail(KVF_MODULE_CLIENT, KVF_PROTOCOL, 0), NULL);
    else if (options->json)
        (void)puts(text);
    else
        table_print(stdout, object);
    cJSON_Delete(object);
    free(text);
    return code;
}

/* ---- drain ---- */

static void sleep_ms(uint64_t ms)
{
    struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* What the drain waits for, each second, as long as the daemon says so: in words, and the gauges that are not 0. */
static void show_progress(struct admin *admin, bool quiet)
{
    char *text = NULL;
    struct kvf_why why;
    if (!kvf_is_ok(admin_stat(admin, 1000, &text, &why)))
        return;
    cJSON *object = cJSON_Parse(text);
    const cJSON *waits_for = cJSON_GetObjectItemCaseSensitive(object, "waits_for");
    const cJSON *gauge;
    char line[400] = "";
    size_t at = 0;
    cJSON_ArrayForEach(gauge, cJSON_GetObjectItemCaseSensitive(object, "drain"))
    {
        if (at < sizeof(line) && cJSON_IsNumber(gauge) && gauge->valuedouble > 0)
            at += (size_t)snprintf(line + at, sizeof(line) - at, " %s=%.15g", gauge->string,
                                   gauge->valuedouble);
    }
    if (!quiet && cJSON_IsString(waits_for))
        words_note("drain: waits for %.200s%s%s", waits_for->valuestring, at > 0 ? ";" : "", line);
    cJSON_Delete(object);
    free(text);
}

/* True when the daemon has been gone for a while without removing its socket. Asked once a second. */
static bool is_deserted(const struct admin *admin, uint64_t now, uint64_t *since)
{
    if (admin_presence(admin) != ADMIN_DESERTED)
        *since = 0;
    else if (*since == 0)
        *since = now;
    return *since != 0 && now - *since > DESERTED_MS * KVF_NS_PER_MS;
}

static enum words_exit wait_for_end(struct admin *admin, const struct cli_options *options)
{
    uint64_t limit_ms = options->timeout_given ? options->timeout_ms : DRAIN_TIMEOUT_MS;
    uint64_t deadline = kvf_clock_now_ns() + limit_ms * KVF_NS_PER_MS;
    uint64_t shown = 0, deserted_since = 0;
    while (admin_socket_exists(admin)) {
        uint64_t now = kvf_clock_now_ns();
        if (now >= deadline) {
            words_note(
                "drain: still draining when time was up; wait on with drain --wait, or see the "
                "daemon's log");
            return WORDS_EXIT_FAILED;
        }
        if (now - shown >= KVF_NS_PER_S) {
            if (is_deserted(admin, now, &deserted_since)) {
                words_note(
                    "drain: the daemon ended without removing its admin.sock: it was killed; see "
                    "its log");
                return WORDS_EXIT_FAILED;
            }
            show_progress(admin, options->json);
            shown = now;
        }
        sleep_ms(50);
    }
    return WORDS_EXIT_OK;
}

enum words_exit cli_drain(const struct cli_options *options, char **arguments, size_t count)
{
    (void)arguments;
    (void)count;
    struct admin *admin;
    struct admin_reply reply = {0};
    struct kvf_why why = {""};
    enum words_exit code = open_admin("drain", options, &admin);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = admin_drain(admin, options->timeout_ms, &reply, &why);
    if (!kvf_is_ok(status))
        code = words_say("drain", status, why.text);
    else if (options->wait && strcmp(reply.message, "draining") != 0 && !options->json)
        words_note("drain: %.100s", reply.message);
    if (code == WORDS_EXIT_OK && options->wait)
        code = wait_for_end(admin, options);
    admin_close(admin);
    words_clean(reply.message);
    if (code == WORDS_EXIT_OK && options->json)
        (void)printf("{\"drained\": %s}\n", options->wait ? "true" : "false");
    else if (code == WORDS_EXIT_OK)
        (void)puts(options->wait ? "drained" : reply.message);
    return code;
}
