/* kvferry replay: put a trace's blocks at one daemon, get them at another one, compare every byte.
 *
 * Parts: progress, puts, gets, the two orders, the command. A block's key and content come from (seed, id) alone
 * (pattern.h), so nothing is kept between put and get. A request's latency is the time of its kvf_get calls, the check of
 * the CRC32C included; comparing with the pattern comes on top of it and counts into gb_per_s. */
#include "base/clock.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/pattern.h"
#include "client/cli/tally.h"
#include "client/cli/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SYNC_TIMEOUT_MS UINT64_C(600000) /* a sync writes all that is dirty, however much that is */
#define MISMATCHES_SHOWN 10

struct replay {
    const struct cli_options *options;
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    struct trace trace;
    struct kvf_client *prefill, *decode;
    struct admin *prefill_admin, *decode_admin;
    struct tally tally;
    size_t put_count; /* blocks [0, put_count) of the trace are put */
    size_t puts_most; /* blocks of one PutBegin */
    size_t gets_most; /* blocks of one Get */
    struct kvf_put puts[CLI_CALL_BLOCKS];
    struct kvf_get_block blocks[CLI_CALL_BLOCKS];
    size_t *asked_in; /* per distinct block: the last Get that names it; a Get names a block once */
    size_t get_number;
    uint64_t progress_every_ns, progress_at_ns;
};

static struct kvf_status fail(enum kvf_code code)
{
    return kvf_fail(KVF_MODULE_CLIENT, code, 0);
}

/* ---- progress ---- */

static void show_progress(struct replay *replay, const char *phase, size_t done, size_t all,
                          uint64_t bytes, uint64_t since_ns)
{
    uint64_t now = kvf_clock_now_ns();
    if (now < replay->progress_at_ns)
        return;
    replay->progress_at_ns = now + replay->progress_every_ns;
    double seconds = (double)(now - since_ns) / 1e9;
    words_note("replay: %s %zu of %zu, %.2f GB/s", phase, done, all,
               seconds > 0 ? (double)bytes / 1e9 / seconds : 0);
}

static void begin_progress(struct replay *replay)
{
    replay->progress_at_ns = kvf_clock_now_ns() + replay->progress_every_ns;
}

/* ---- puts ---- */

static void fill_places(struct replay *replay, struct kvf_put *puts, const uint64_t *ids,
                        size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (puts[i].code == KVF_OK)
            pattern_fill(pattern_of(replay->options->seed, ids[i]), puts[i].data,
                         (size_t)puts[i].length);
    }
}

/* One PutBegin and its commit. *left: what was refused for now, moved to the front of ids. */
static struct kvf_status put_once(struct replay *replay, uint64_t *ids, size_t count, size_t *left)
{
    struct kvf_put *puts = replay->puts;
    for (size_t i = 0; i < count; i++)
        puts[i] = (struct kvf_put){.key = pattern_key(replay->options->seed, ids[i]),
                                   .length = replay->options->block_bytes};
    KVF_TRY(kvf_put_begin(replay->prefill, replay->ns, puts, count, replay->options->timeout_ms));
    fill_places(replay, puts, ids, count);
    KVF_TRY(kvf_put_commit(replay->prefill, puts, count));
    *left = 0;
    enum kvf_code refusal = KVF_OK;
    for (size_t i = 0; i < count; i++) {
        if (puts[i].code == KVF_OK || puts[i].code == KVF_EXISTS)
            continue;
        refusal = puts[i].code;
        if (refusal != KVF_BUSY && refusal != KVF_PENDING)
            return fail(refusal);
        ids[(*left)++] = ids[i];
    }
    return *left == count ? fail(refusal) : kvf_ok();
}

/* Put the trace's blocks up to number `end`, each once. BUSY after a whole timeout without any progress. */
static struct kvf_status put_until(struct replay *replay, size_t end, uint64_t since_ns)
{
    uint64_t ids[CLI_CALL_BLOCKS];
    while (replay->put_count < end) {
        size_t count = end - replay->put_count;
        count = count < replay->puts_most ? count : replay->puts_most;
        memcpy(ids, replay->trace.ids + replay->put_count, count * sizeof(ids[0]));
        for (size_t left = count; left > 0;)
            KVF_TRY(put_once(replay, ids, left, &left));
        replay->put_count += count;
        show_progress(replay, "put blocks", replay->put_count, replay->trace.distinct_count,
                      replay->put_count * replay->options->block_bytes, since_ns);
    }
    return kvf_ok();
}

/* ---- gets ---- */

static void compare(struct replay *replay, size_t request, const struct kvf_get_block *block,
                    uint64_t id)
{
    struct tally *tally = &replay->tally;
    if (block->code != KVF_OK) {
        tally_miss(tally, block->code);
        return;
    }
    tally_hit(tally, block->tier, block->origin);
    uint64_t wanted = replay->options->block_bytes;
    size_t same = wanted == block->length ? pattern_compare(pattern_of(replay->options->seed, id),
                                                            block->data, (size_t)wanted)
                                          : 0;
    if (same == wanted) {
        tally->bytes += wanted;
        return;
    }
    if (++tally->mismatches <= MISMATCHES_SHOWN)
        words_note("replay: request %zu, hash id %" PRIu64 ": %" PRIu64
                   " bytes came, wrong from byte %zu on",
                   request + 1, id, block->length, same);
}

/* How many of the references from `at` on go into one Get. */
static size_t cut(struct replay *replay, size_t at, size_t end)
{
    size_t count = 0;
    replay->get_number++;
    for (; at + count < end && count < replay->gets_most; count++) {
        size_t *asked_in = &replay->asked_in[replay->trace.references[at + count]];
        if (*asked_in == replay->get_number)
            break;
        *asked_in = replay->get_number;
    }
    return count;
}

static bool is_about_blocks(enum kvf_code code)
{
    return code == KVF_DEADLINE || code == KVF_BUSY || code == KVF_NOT_FOUND;
}

/* Get and compare references [at, at + count); *latency_ns grows by the Get's time. */
static struct kvf_status get_some(struct replay *replay, size_t request, size_t at, size_t count,
                                  uint64_t *latency_ns)
{
    const struct trace *trace = &replay->trace;
    struct kvf_get_options options = {.ns = replay->ns,
                                      .source = replay->options->source,
                                      .timeout_ms = replay->options->timeout_ms,
                                      .flags = KVF_GET_VERIFY};
    for (size_t i = 0; i < count; i++) {
        uint64_t id = trace->ids[trace->references[at + i]];
        replay->blocks[i] = (struct kvf_get_block){.key = pattern_key(replay->options->seed, id),
                                                   .length = replay->options->block_bytes};
    }
    uint64_t start = kvf_clock_now_ns();
    struct kvf_status status = kvf_get(replay->decode, &options, replay->blocks, count, NULL);
    *latency_ns += kvf_clock_now_ns() - start;
    if (!kvf_is_ok(status) && !is_about_blocks((enum kvf_code)status.code))
        return status;
    for (size_t i = 0; i < count; i++)
        compare(replay, request, &replay->blocks[i], trace->ids[trace->references[at + i]]);
    kvf_get_release(replay->decode, replay->blocks, count);
    return kvf_ok();
}

static struct kvf_status get_request(struct replay *replay, size_t request)
{
    const struct trace *trace = &replay->trace;
    uint64_t *latency_ns = &replay->tally.latencies_ns[request];
    uint64_t start = kvf_clock_now_ns();
    for (size_t at = trace->first[request]; at < trace->first[request + 1];) {
        size_t count = cut(replay, at, trace->first[request + 1]);
        KVF_TRY(get_some(replay, request, at, count, latency_ns));
        at += count;
    }
    replay->tally.requests++;
    replay->tally.get_ns += kvf_clock_now_ns() - start;
    show_progress(replay, "got requests", request + 1, trace->request_count, replay->tally.bytes,
                  kvf_clock_now_ns() - replay->tally.get_ns);
    return kvf_ok();
}

/* ---- the daemons ---- */

/* pull.reads of the decode daemon; 0 where no part of it pulls. */
static enum words_exit count_reads(struct replay *replay, uint64_t *reads)
{
    char *text = NULL;
    struct kvf_why why = {""};
    struct kvf_status status =
        admin_stat(replay->decode_admin, replay->options->timeout_ms, &text, &why);
    if (!kvf_is_ok(status))
        return words_say("replay: stat of --decode", status, why.text);
    cJSON *object = cJSON_Parse(text);
    const cJSON *pull = cJSON_GetObjectItemCaseSensitive(object, "pull");
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(pull, "reads");
    bool good = cJSON_IsObject(object) && (pull == NULL || cJSON_IsNumber(item));
    *reads = good && pull != NULL ? (uint64_t)item->valuedouble : 0;
    cJSON_Delete(object);
    free(text);
    return good ? WORDS_EXIT_OK : words_say("replay: stat of --decode", fail(KVF_PROTOCOL), NULL);
}

/* Make every block durable and drop it from the source's DRAM, so that gets begin at its SSD. */
static enum words_exit settle_source(struct replay *replay)
{
    struct admin_reply reply;
    struct kvf_why why = {""};
    uint64_t start = kvf_clock_now_ns(), timeout_ms = replay->options->timeout_ms;
    struct kvf_status status =
        admin_sync(replay->prefill_admin, true, SYNC_TIMEOUT_MS, &reply, &why);
    if (!kvf_is_ok(status))
        return words_say("replay: sync of --prefill", status, why.text);
    status = admin_evict(replay->prefill_admin, true, timeout_ms, &reply, &why);
    replay->tally.sync_ns = kvf_clock_now_ns() - start;
    return kvf_is_ok(status) ? WORDS_EXIT_OK
                             : words_say("replay: evict of --prefill", status, why.text);
}

/* ---- the two orders ---- */

static enum words_exit run_phased(struct replay *replay)
{
    uint64_t start = kvf_clock_now_ns();
    struct kvf_status status = put_until(replay, replay->trace.distinct_count, start);
    replay->tally.put_ns = kvf_clock_now_ns() - start;
    if (!kvf_is_ok(status))
        return words_say("replay: put at --prefill", status, NULL);
    enum words_exit code = settle_source(replay);
    if (code != WORDS_EXIT_OK)
        return code;
    begin_progress(replay);
    for (size_t request = 0; request < replay->trace.request_count; request++) {
        status = get_request(replay, request);
        if (!kvf_is_ok(status))
            return words_say("replay: get at --decode", status, NULL);
    }
    return WORDS_EXIT_OK;
}

/* Blocks are numbered by first appearance: those that a request adds end at its highest number + 1. */
static size_t end_of_blocks(const struct trace *trace, size_t request)
{
    size_t end = 0;
    for (size_t at = trace->first[request]; at < trace->first[request + 1]; at++)
        end = trace->references[at] >= end ? trace->references[at] + (size_t)1 : end;
    return end;
}

static enum words_exit run_interleaved(struct replay *replay)
{
    for (size_t request = 0; request < replay->trace.request_count; request++) {
        uint64_t start = kvf_clock_now_ns();
        struct kvf_status status =
            put_until(replay, end_of_blocks(&replay->trace, request), start - replay->tally.put_ns);
        replay->tally.put_ns += kvf_clock_now_ns() - start;
        if (!kvf_is_ok(status))
            return words_say("replay: put at --prefill", status, NULL);
        status = get_request(replay, request);
        if (!kvf_is_ok(status))
            return words_say("replay: get at --decode", status, NULL);
    }
    return WORDS_EXIT_OK;
}

/* ---- the command ---- */

static enum words_exit judge_options(struct cli_options *options)
{
    struct kvf_why why = {""};
    const struct {
        const char *name, *value;
    } needed[] = {{"--trace FILE", options->trace},
                  {"--prefill DIR_A", options->prefill},
                  {"--decode DIR_B", options->decode},
                  {"--source HOST:PORT", options->source}};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (needed[i].value == NULL || needed[i].value[0] == '\0')
            return words_usage(
                "replay: %s is missing; it needs --trace, --prefill, --decode and --source",
                needed[i].name);
    }
    if (!kvf_is_ok(names_address("--source", options->source, &why)))
        return words_usage("replay: %s", why.text);
    if (options->block_bytes == 0)
        options->block_bytes = KVF_MIB;
    if (options->requests == 0)
        options->requests = UINT64_MAX;
    return WORDS_EXIT_OK;
}

static enum words_exit open_daemons(struct replay *replay)
{
    const struct cli_options *options = replay->options;
    struct kvf_why why = {""};
    struct kvf_status status = admin_open(options->prefill, &replay->prefill_admin, &why);
    if (kvf_is_ok(status))
        status = admin_open(options->decode, &replay->decode_admin, &why);
    if (!kvf_is_ok(status))
        return words_say("replay", status, why.text);
    enum words_exit code =
        cli_open("replay: --prefill", options->prefill, options->timeout_ms, &replay->prefill);
    if (code == WORDS_EXIT_OK)
        code = cli_open("replay: --decode", options->decode, options->timeout_ms, &replay->decode);
    return code;
}

/* Half of what a PutBegin may hold, so that the next one is filled while the drive writes this one. */
static enum words_exit plan_calls(struct replay *replay)
{
    uint64_t pages = kvf_round_up_page(replay->options->block_bytes);
    uint64_t put_most = kvf_client_max_put_bytes(replay->prefill);
    uint64_t get_most = kvf_client_max_get_bytes(replay->decode);
    if (pages > put_most || pages > get_most)
        return words_usage(
            "replay: --block-bytes %" PRIu64 " is too large: --prefill takes %" PRIu64
            " bytes at a time and --decode gives %" PRIu64 "; use smaller blocks or larger pools",
            replay->options->block_bytes, put_most, get_most);
    uint64_t puts = put_most / 2 / pages, gets = get_most / pages;
    replay->puts_most = puts == 0 ? 1 : puts < CLI_CALL_BLOCKS ? (size_t)puts : CLI_CALL_BLOCKS;
    replay->gets_most = gets < CLI_CALL_BLOCKS ? (size_t)gets : CLI_CALL_BLOCKS;
    return WORDS_EXIT_OK;
}

static enum words_exit run(struct replay *replay)
{
    uint64_t before = 0, after = 0;
    enum words_exit code = open_daemons(replay);
    if (code == WORDS_EXIT_OK)
        code = plan_calls(replay);
    if (code == WORDS_EXIT_OK)
        code = count_reads(replay, &before);
    if (code != WORDS_EXIT_OK)
        return code;
    begin_progress(replay);
    code = replay->options->interleaved ? run_interleaved(replay) : run_phased(replay);
    if (code == WORDS_EXIT_OK)
        code = count_reads(replay, &after);
    replay->tally.reads = after - before;
    return code;
}

static enum words_exit report(struct replay *replay)
{
    struct tally *tally = &replay->tally;
    const char *path = replay->options->json_path;
    char *text = tally_json(tally);
    if (text == NULL)
        return words_say("replay", fail(KVF_NO_MEMORY), NULL);
    struct kvf_why why = {""};
    struct kvf_status status = kvf_ok();
    if (path == NULL || strcmp(path, "-") == 0)
        (void)fputs(text, stdout);
    else
        status = files_write(path, text, strlen(text), &why);
    free(text);
    if (!kvf_is_ok(status))
        return words_say("replay", status, why.text);
    char reasons[400];
    tally_reasons_text(tally, reasons, sizeof(reasons));
    if (tally->missing > 0)
        words_note("replay: %" PRIu64 " blocks are missing: %s", tally->missing, reasons);
    if (tally->mismatches > 0)
        words_note("replay: %" PRIu64
                   " blocks came with wrong bytes: do not trust this path; keep both "
                   "daemons' logs",
                   tally->mismatches);
    return tally->mismatches > 0 ? WORDS_EXIT_FAILED
           : tally->missing > 0  ? WORDS_EXIT_MISSING
                                 : WORDS_EXIT_OK;
}

static void close_all(struct replay *replay)
{
    (void)kvf_client_close(replay->decode);
    (void)kvf_client_close(replay->prefill);
    admin_close(replay->decode_admin);
    admin_close(replay->prefill_admin);
}

static enum words_exit replay_trace(struct replay *replay)
{
    replay->asked_in = calloc(replay->trace.distinct_count + 1, sizeof(*replay->asked_in));
    replay->tally.latencies_ns = calloc(replay->trace.request_count, sizeof(uint64_t));
    enum words_exit code = WORDS_EXIT_FAILED;
    if (replay->asked_in == NULL || replay->tally.latencies_ns == NULL)
        code = words_say("replay", fail(KVF_NO_MEMORY), NULL);
    else
        code = run(replay);
    close_all(replay);
    if (code == WORDS_EXIT_OK)
        code = report(replay);
    free(replay->asked_in);
    free(replay->tally.latencies_ns);
    return code;
}

enum words_exit cli_replay(const struct cli_options *given, char **arguments, size_t count)
{
    (void)arguments;
    (void)count;
    struct cli_options options = *given;
    struct kvf_why why = {""};
    enum words_exit code = judge_options(&options);
    if (code != WORDS_EXIT_OK)
        return code;
    struct replay *replay = calloc(1, sizeof(*replay));
    if (replay == NULL)
        return words_say("replay", fail(KVF_NO_MEMORY), NULL);
    replay->options = &options;
    replay->progress_every_ns = (isatty(STDERR_FILENO) ? 1 : 5) * KVF_NS_PER_S;
    (void)snprintf(replay->ns, sizeof(replay->ns), "replay/b%" PRIu64 "-s%" PRIu64,
                   options.block_bytes, options.seed);
    struct kvf_status status = trace_load(options.trace, options.requests, &replay->trace, &why);
    if (kvf_is_ok(status)) {
        code = replay_trace(replay);
        trace_free(&replay->trace);
    } else {
        code = words_say("replay", status, why.text);
    }
    free(replay);
    return code;
}

/* ---- kvferry trace ---- */

enum words_exit cli_trace(const struct cli_options *options, char **arguments, size_t count)
{
    (void)arguments;
    (void)count;
    struct kvf_why why = {""};
    char *text = NULL;
    size_t bytes = 0;
    if (options->output == NULL || options->output[0] == '\0' || options->requests == 0)
        return words_usage("trace: needs --requests N and -o FILE");
    if (options->requests > TRACE_MOST_REQUESTS)
        return words_usage("trace: --requests %" PRIu64 " is more than %" PRIu64, options->requests,
                           TRACE_MOST_REQUESTS);
    struct kvf_status status = trace_make(options->requests, options->seed, &text, &bytes);
    if (kvf_is_ok(status))
        status = files_write(options->output, text, bytes, &why);
    free(text);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say("trace", status, why.text);
}
