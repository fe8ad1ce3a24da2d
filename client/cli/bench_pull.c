/* kvferry bench pull: what a setting of this daemon does to restores from a source.
 *
 * For each number of blocks: a warm-up with each value, then rounds. A round takes every value in turn, forward in even
 * rounds and backward in odd ones, so that a drive that drifts favours none. The first value is the baseline of the ratios.
 *
 * Parts: the plan, the daemons, one cell (one value in one round), the table, the command. */
#include "base/clock.h"
#include "client/cli/admin.h"
#include "client/cli/bench.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/sweep.h"
#include "client/cli/tally.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define WHAT "bench pull"
#define SWEEP_DEFAULT "read-batch-mib=0,8,32,128"
#define BLOCKS_DEFAULT "8,16"
#define PAIRS_DEFAULT 3
#define RESTORES_DEFAULT 10
#define WARMUPS_DEFAULT 2

/* What was measured with one value and one number of blocks. */
struct cell {
    uint64_t *times_ns; /* round by round */
    uint64_t reads;     /* in all rounds */
    uint64_t total_ns, bytes;
    size_t remote_ssd, remote_dram;
};

struct pull {
    struct bench bench;
    struct sweep values, blocks;
    size_t pairs, restores, warmups;
    struct admin *local, *prefill; /* prefill: NULL without --prefill */
    uint64_t batch_before_mib;
    struct cell cells[SWEEP_MOST][SWEEP_MOST]; /* [blocks][value] */
};

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- the plan ---- */

static size_t number_or(uint64_t given, size_t otherwise)
{
    return given == 0 ? otherwise : (size_t)given;
}

static size_t most_blocks(const struct pull *pull)
{
    uint64_t most = 0;
    for (size_t i = 0; i < pull->blocks.count; i++)
        most = pull->blocks.values[i] > most ? pull->blocks.values[i] : most;
    return (size_t)most;
}

static enum words_exit plan(struct pull *pull, const struct cli_options *options)
{
    struct kvf_why why = {""};
    if (options->source == NULL)
        return words_usage(WHAT ": --source HOST:PORT is missing: the node that has the blocks");
    struct kvf_status status =
        sweep_parse(options->sweep != NULL ? options->sweep : SWEEP_DEFAULT, &pull->values, &why);
    if (kvf_is_ok(status))
        status = sweep_list("--blocks", options->blocks != NULL ? options->blocks : BLOCKS_DEFAULT,
                            1, CLI_CALL_BLOCKS, &pull->blocks, &why);
    if (!kvf_is_ok(status))
        return words_usage(WHAT ": %s", why.text);
    pull->pairs = number_or(options->pairs, PAIRS_DEFAULT);
    pull->restores = number_or(options->restores, RESTORES_DEFAULT);
    pull->warmups = options->warmups_given ? (size_t)options->warmups : WARMUPS_DEFAULT;
    for (size_t i = 0; i < pull->blocks.count; i++)
        for (size_t j = 0; j < pull->values.count; j++) {
            pull->cells[i][j].times_ns = calloc(pull->pairs * pull->restores, sizeof(uint64_t));
            if (pull->cells[i][j].times_ns == NULL)
                return words_say(WHAT, kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
        }
    return WORDS_EXIT_OK;
}

/* ---- the daemons ---- */

static bool take_number(const cJSON *object, const char *name, uint64_t *number)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    *number = cJSON_IsNumber(item) ? (uint64_t)item->valuedouble : 0;
    return cJSON_IsNumber(item);
}

/* pull.reads and read_batch_mib of our daemon. */
static enum words_exit look(struct pull *pull, uint64_t *reads, uint64_t *batch_mib)
{
    char *text = NULL;
    struct kvf_why why = {""};
    struct kvf_status status =
        admin_stat(pull->local, pull->bench.options->timeout_ms, &text, &why);
    if (!kvf_is_ok(status))
        return words_say(WHAT ": stat", status, why.text);
    cJSON *object = cJSON_Parse(text);
    bool good = take_number(cJSON_GetObjectItemCaseSensitive(object, "pull"), "reads", reads);
    good = take_number(object, "read_batch_mib", batch_mib) && good;
    cJSON_Delete(object);
    free(text);
    return good ? WORDS_EXIT_OK
                : words_say(WHAT ": stat", kvf_fail(KVF_MODULE_CLIENT, KVF_PROTOCOL, 0),
                            "this daemon does not count Reads");
}

static enum words_exit set_batch(struct pull *pull, uint64_t mib)
{
    struct admin_reply reply;
    struct kvf_why why = {""};
    struct kvf_status status =
        admin_set_read_batch(pull->local, mib, pull->bench.options->timeout_ms, &reply, &why);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say(WHAT ": set", status, why.text);
}

/* With --prefill each restore begins at the source's SSD; without, wherever the source has the blocks. */
static enum words_exit evict_source(struct pull *pull)
{
    struct admin_reply reply;
    struct kvf_why why = {""};
    if (pull->prefill == NULL)
        return WORDS_EXIT_OK;
    struct kvf_status status =
        admin_evict(pull->prefill, true, pull->bench.options->timeout_ms, &reply, &why);
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say(WHAT ": evict", status, why.text);
}

static enum words_exit open_all(struct pull *pull)
{
    const struct cli_options *options = pull->bench.options;
    struct kvf_why why = {""};
    uint64_t reads;
    enum words_exit code = bench_open(&pull->bench, WHAT, most_blocks(pull));
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = admin_open(options->run_dir, &pull->local, &why);
    if (kvf_is_ok(status) && options->prefill != NULL)
        status = admin_open(options->prefill, &pull->prefill, &why);
    if (!kvf_is_ok(status))
        return words_say(WHAT, status, why.text);
    code = look(pull, &reads, &pull->batch_before_mib);
    if (code == WORDS_EXIT_OK && options->prefill != NULL)
        code = bench_fill(&pull->bench, WHAT ": --prefill", options->prefill, most_blocks(pull));
    if (code != WORDS_EXIT_OK)
        return code;
    status = bench_forget(&pull->bench, most_blocks(pull));
    return kvf_is_ok(status) ? WORDS_EXIT_OK : words_say(WHAT, status, NULL);
}

/* The daemon's setting is what it was, however we end. */
static enum words_exit close_all(struct pull *pull, bool restore_batch)
{
    enum words_exit code = WORDS_EXIT_OK;
    if (restore_batch)
        code = set_batch(pull, pull->batch_before_mib);
    admin_close(pull->local);
    admin_close(pull->prefill);
    (void)bench_close(&pull->bench);
    for (size_t i = 0; i < pull->blocks.count; i++)
        for (size_t j = 0; j < pull->values.count; j++)
            free(pull->cells[i][j].times_ns);
    return code;
}

/* ---- one cell ---- */

static enum words_exit judge(const struct pull *pull, const struct bench_restore *restore)
{
    const char *source = pull->bench.options->source;
    if (restore->mismatches > 0) {
        words_note(WHAT ": %zu blocks came with wrong bytes: do not trust this path; keep both "
                        "daemons' logs",
                   restore->mismatches);
        return WORDS_EXIT_FAILED;
    }
    if (restore->missing == 0 && restore->dram + restore->ssd == 0)
        return WORDS_EXIT_OK;
    if (restore->missing == 0) {
        words_note(WHAT ": blocks came from this node's own tiers, not from %s: somebody else "
                        "uses %s here",
                   source, pull->bench.ns);
        return WORDS_EXIT_FAILED;
    }
    words_note(WHAT ": %zu blocks did not come from %s: %s (%s); %s", restore->missing, source,
               words_meaning(restore->reason), kvf_code_name(restore->reason),
               restore->reason == KVF_NOT_FOUND
                   ? "put them there first: kvferry bench fill with the same --block-bytes on that "
                     "host, or --prefill DIR if it is this one"
                   : words_remedy(restore->reason));
    return words_exit_worse(WORDS_EXIT_MISSING, words_exit_of_block(restore->reason));
}

/* A restore that counts where `cell` is given. */
static enum words_exit restore_once(struct pull *pull, size_t blocks, struct cell *cell,
                                    uint64_t *time_ns)
{
    struct bench_restore restore;
    if (interrupted != 0) {
        words_note(WHAT ": interrupted");
        return WORDS_EXIT_FAILED;
    }
    enum words_exit code = evict_source(pull);
    if (code != WORDS_EXIT_OK)
        return code;
    struct kvf_status status = bench_restore(&pull->bench, blocks, &restore);
    if (!kvf_is_ok(status))
        return words_say(WHAT, status, NULL);
    code = judge(pull, &restore);
    if (code != WORDS_EXIT_OK || cell == NULL)
        return code;
    *time_ns = restore.get_ns + restore.copy_ns;
    cell->total_ns += *time_ns;
    cell->bytes += restore.bytes;
    cell->remote_ssd += restore.remote_ssd;
    cell->remote_dram += restore.remote_dram;
    return WORDS_EXIT_OK;
}

static enum words_exit warm_up(struct pull *pull, size_t at)
{
    enum words_exit code = WORDS_EXIT_OK;
    for (size_t j = 0; j < pull->values.count && code == WORDS_EXIT_OK; j++) {
        code = set_batch(
            pull,
            pull->values.values[j]); /* an impossible value is refused before any time is spent */
        for (size_t i = 0; i < pull->warmups && code == WORDS_EXIT_OK; i++)
            code = restore_once(pull, (size_t)pull->blocks.values[at], NULL, NULL);
    }
    return code;
}

static enum words_exit run_cell(struct pull *pull, size_t at, size_t value, size_t round)
{
    struct cell *cell = &pull->cells[at][value];
    uint64_t before, after, mib;
    enum words_exit code = set_batch(pull, pull->values.values[value]);
    if (code == WORDS_EXIT_OK)
        code = look(pull, &before, &mib);
    for (size_t i = 0; i < pull->restores && code == WORDS_EXIT_OK; i++)
        code = restore_once(pull, (size_t)pull->blocks.values[at], cell,
                            &cell->times_ns[round * pull->restores + i]);
    if (code == WORDS_EXIT_OK)
        code = look(pull, &after, &mib);
    if (code == WORDS_EXIT_OK)
        cell->reads += after - before;
    return code;
}

static enum words_exit run_round(struct pull *pull, size_t at, size_t round)
{
    size_t count = pull->values.count;
    words_note(WHAT ": %" PRIu64 " blocks, round %zu of %zu", pull->blocks.values[at], round + 1,
               pull->pairs);
    for (size_t j = 0; j < count; j++) {
        enum words_exit code = run_cell(pull, at, round % 2 == 0 ? j : count - 1 - j, round);
        if (code != WORDS_EXIT_OK)
            return code;
    }
    return WORDS_EXIT_OK;
}

static enum words_exit measure(struct pull *pull)
{
    for (size_t at = 0; at < pull->blocks.count; at++) {
        words_note(WHAT ": %" PRIu64 " blocks, warm-up", pull->blocks.values[at]);
        enum words_exit code = warm_up(pull, at);
        for (size_t round = 0; round < pull->pairs && code == WORDS_EXIT_OK; round++)
            code = run_round(pull, at, round);
        if (code != WORDS_EXIT_OK)
            return code;
    }
    return WORDS_EXIT_OK;
}

/* ---- the table ---- */

struct row {
    uint64_t value, blocks;
    size_t count; /* restores */
    double p50_ms, p99_ms, gb_per_s, reads;
    struct sweep_ratio ratio;
    const char *from;
};

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Ratios first, for them the times lie round by round; the quantiles sort them. */
static void compare(struct pull *pull, size_t at, struct row *rows)
{
    for (size_t j = 0; j < pull->values.count; j++)
        rows[j].ratio = sweep_compare(pull->cells[at][0].times_ns, pull->cells[at][j].times_ns,
                                      pull->pairs, pull->restores);
}

static void fill_row(struct pull *pull, size_t at, size_t value, struct row *row)
{
    struct cell *cell = &pull->cells[at][value];
    row->count = pull->pairs * pull->restores;
    row->value = pull->values.values[value];
    row->blocks = pull->blocks.values[at];
    qsort(cell->times_ns, row->count, sizeof(uint64_t), ascending);
    row->p50_ms = (double)tally_quantile(cell->times_ns, row->count, 500) / 1e6;
    row->p99_ms = (double)tally_quantile(cell->times_ns, row->count, 990) / 1e6;
    row->gb_per_s = (double)cell->bytes / (double)cell->total_ns;
    row->reads = (double)cell->reads / (double)row->count;
    row->from = cell->remote_dram == 0 ? "ssd" : cell->remote_ssd == 0 ? "dram" : "both";
}

static void print_row(const struct row *row, bool is_baseline)
{
    (void)printf("%14" PRIu64 " %7" PRIu64 " %7.4g %5s %9.3f %9.3f %7.2f   ", row->value,
                 row->blocks, row->reads, row->from, row->p50_ms, row->p99_ms, row->gb_per_s);
    if (is_baseline)
        (void)printf("baseline\n");
    else
        (void)printf("%.3f (%.3f to %.3f)\n", row->ratio.ratio, row->ratio.low, row->ratio.high);
}

static void add_row(cJSON *rows, const struct row *row)
{
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddItemToArray(rows, object);
    json_add_number(object, "read_batch_mib", row->value);
    json_add_number(object, "blocks", row->blocks);
    json_add_number(object, "restores", row->count);
    json_add_decimal(object, "reads_per_restore", row->reads);
    (void)cJSON_AddStringToObject(object, "source_tier", row->from);
    json_add_decimal(object, "p50_ms", row->p50_ms);
    json_add_decimal(object, "p99_ms", row->p99_ms);
    json_add_decimal(object, "gb_per_s", row->gb_per_s);
    json_add_decimal(object, "ratio", row->ratio.ratio);
    json_add_decimal(object, "ratio_low", row->ratio.low);
    json_add_decimal(object, "ratio_high", row->ratio.high);
}

static enum words_exit report(struct pull *pull)
{
    bool json = pull->bench.options->json;
    cJSON *object = cJSON_CreateObject(), *rows = cJSON_AddArrayToObject(object, "rows");
    json_add_number(object, "block_bytes", pull->bench.block_bytes);
    (void)cJSON_AddStringToObject(object, "namespace", pull->bench.ns);
    if (!json)
        (void)printf("read-batch-mib  blocks   Reads  from    p50 ms    p99 ms    GB/s   ratio of "
                     "medians to the first value (95 %% interval)\n");
    for (size_t at = 0; at < pull->blocks.count; at++) {
        struct row row[SWEEP_MOST];
        compare(pull, at, row);
        for (size_t j = 0; j < pull->values.count; j++) {
            fill_row(pull, at, j, &row[j]);
            if (json)
                add_row(rows, &row[j]);
            else
                print_row(&row[j], j == 0);
        }
    }
    if (json)
        return json_print(object);
    cJSON_Delete(object);
    if (pull->pairs * pull->restores < 1000)
        (void)printf("p99 of fewer than 1000 restores is descriptive.\n");
    return WORDS_EXIT_OK;
}

/* ---- the command ---- */

enum words_exit cli_bench_pull(const struct cli_options *options, char **arguments, size_t count)
{
    struct pull *pull = calloc(1, sizeof(*pull));
    if (pull == NULL)
        return words_say(WHAT, kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
    enum words_exit code = bench_begin(&pull->bench, WHAT, options, arguments, count);
    if (code == WORDS_EXIT_OK)
        code = plan(pull, options);
    if (code == WORDS_EXIT_OK)
        code = open_all(pull);
    bool is_open = code == WORDS_EXIT_OK;
    if (is_open) {
        (void)signal(SIGINT, note_interrupt);
        (void)signal(SIGTERM, note_interrupt);
        code = measure(pull);
    }
    if (code == WORDS_EXIT_OK)
        code = report(pull);
    code = words_exit_worse(code, close_all(pull, is_open));
    free(pull);
    return code;
}
