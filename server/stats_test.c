#include "server/stats.h"

#include "base/test.h"

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvf_stats empty(void)
{
    return (struct kvf_stats){.node_id = "n1",
                              .state = "READY",
                              .transport = "tcp",
                              .lanes = {{"tcp", {31, 32, 33, 34}}},
                              .lane_count = 1};
}

static const struct kvf_drive_stats two_drives[2] = {
    {.path = "/mnt/a",
     .capacity_bytes = 11,
     .used_bytes = 12,
     .read_sets = 13,
     .read_sqes = 14,
     .read_payload_bytes = 15,
     .read_device_bytes = 16,
     .write_payload_bytes = 17,
     .write_device_bytes = 18,
     .write_syncs = 21,
     .carried_blocks = 22,
     .carried_bytes = 23,
     .carries_failed = 24,
     .read_errors = 25,
     .registrations = 19,
     .dropped = 20,
     .recovering = true},
    {.path = "/mnt/b",
     .read_sets = 100,
     .read_sqes = 100,
     .read_payload_bytes = 100,
     .read_device_bytes = 100,
     .write_payload_bytes = 100,
     .write_device_bytes = 100,
     .registrations = 100,
     .read_only = true},
};

/* The names of an object in their order, separated by blanks. */
static void keys_are(const cJSON *object, const char *expected)
{
    char names[512] = "";
    const cJSON *member;
    assert_true(cJSON_IsObject(object));
    cJSON_ArrayForEach(member, object)
    {
        if (names[0] != '\0')
            strcat(names, " ");
        assert_true(strlen(names) + strlen(member->string) + 2 < sizeof(names));
        strcat(names, member->string);
    }
    assert_string_equal(names, expected);
}

static cJSON *json_of(const struct kvf_stats *stats)
{
    char *text = kvf_stats_json(stats);
    assert_non_null(text);
    assert_null(strchr(text, '\n'));
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

static const cJSON *at(const cJSON *object, const char *name)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, name);
    assert_non_null(member);
    return member;
}

static void json__with_drives__has_exactly_the_documented_names(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.drives = two_drives;
    stats.drive_count = 2;
    cJSON *root = json_of(&stats);
    keys_are(
        root,
        "node_id state boot_epoch transport read_batch_mib pull serve puts lanes pool index query "
        "coalesced_loads ssd drain");
    keys_are(at(root, "pull"), "reads blocks bytes misses");
    keys_are(at(root, "serve"), "reads blocks bytes busy");
    keys_are(cJSON_GetArrayItem(at(root, "lanes"), 0),
             "transport sent_bytes received_bytes discarded_bytes protocol_errors");
    keys_are(at(root, "puts"), "blocks exists busy");
    keys_are(at(root, "pool"), "bytes dirty pull serve clean");
    keys_are(at(root, "index"), "blocks bytes ssd_evicted_blocks");
    keys_are(at(root, "query"), "bytes peak_bytes peak_instance_bytes peak_identity_bytes waited");
    keys_are(at(root, "drain"), "query_bytes leases pinned_bytes ssd_reads ssd_writes dirty_bytes "
                                "quarantine_bytes");
    const cJSON *ssd = at(root, "ssd");
    assert_int_equal(cJSON_GetArraySize(ssd), 2);
    const cJSON *drive = cJSON_GetArrayItem(ssd, 0);
    keys_are(drive, "path capacity_bytes used_bytes read_sets read_sqes read_payload_bytes "
                    "read_device_bytes read_errors write_payload_bytes write_device_bytes "
                    "write_syncs carried_blocks "
                    "carried_bytes carries_failed registrations dropped read_only recovering");
    assert_string_equal(at(drive, "path")->valuestring, "/mnt/a");
    static const char *const numbers[] = {
        "capacity_bytes",     "used_bytes",        "read_sets",           "read_sqes",
        "read_payload_bytes", "read_device_bytes", "write_payload_bytes", "write_device_bytes",
        "registrations",      "dropped",           "write_syncs",         "carried_blocks",
        "carried_bytes",      "carries_failed",    "read_errors"};
    for (int number = 0; number < 15; number++)
        assert_int_equal(at(drive, numbers[number])->valueint, 11 + number);
    assert_true(cJSON_IsFalse(at(drive, "read_only")));
    assert_true(cJSON_IsTrue(at(cJSON_GetArrayItem(ssd, 1), "read_only")));
    assert_true(cJSON_IsTrue(at(drive, "recovering")));
    assert_true(cJSON_IsFalse(at(cJSON_GetArrayItem(ssd, 1), "recovering")));
    cJSON_Delete(root);
}

static void json__without_drives__has_no_key_for_what_does_not_run(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.drain.ssd_reads = 7; /* means nothing */
    cJSON *root = json_of(&stats);
    assert_false(cJSON_HasObjectItem(root, "ssd"));
    keys_are(at(root, "drain"), "query_bytes leases pinned_bytes dirty_bytes quarantine_bytes");
    cJSON_Delete(root);
}

static void json__each_number__comes_from_its_field(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.boot_epoch = 1;
    stats.read_batch_mib = 2;
    stats.pull.reads = 3;
    stats.pull.misses = 4;
    stats.counters.serve.bytes = 5;
    stats.counters.serve.busy = 6;
    stats.counters.puts.exists = 7;
    stats.pool.clean = 8;
    stats.query.peak_instance_bytes = 9;
    stats.query.peak_identity_bytes = 10;
    stats.query.waited = 10;
    stats.counters.coalesced_loads = 11;
    stats.drain.quarantine_bytes = 12;
    stats.drain.leases = 13;
    stats.index.blocks = 14;
    stats.index.bytes = 15;
    stats.index.evicted_blocks = 16;
    stats.degraded = "a drive is read-only";
    cJSON *root = json_of(&stats);
    assert_string_equal(at(root, "node_id")->valuestring, "n1");
    assert_string_equal(at(root, "state")->valuestring, "READY");
    assert_string_equal(at(root, "transport")->valuestring, "tcp");
    assert_string_equal(at(root, "degraded")->valuestring, "a drive is read-only");
    assert_int_equal(at(root, "boot_epoch")->valueint, 1);
    assert_int_equal(at(root, "read_batch_mib")->valueint, 2);
    assert_int_equal(at(at(root, "pull"), "reads")->valueint, 3);
    assert_int_equal(at(at(root, "pull"), "misses")->valueint, 4);
    assert_int_equal(at(at(root, "serve"), "bytes")->valueint, 5);
    assert_int_equal(at(at(root, "serve"), "busy")->valueint, 6);
    assert_int_equal(at(at(root, "puts"), "exists")->valueint, 7);
    assert_int_equal(at(at(root, "pool"), "clean")->valueint, 8);
    assert_int_equal(at(at(root, "query"), "peak_instance_bytes")->valueint, 9);
    assert_int_equal(at(at(root, "query"), "peak_identity_bytes")->valueint, 10);
    assert_int_equal(at(at(root, "query"), "waited")->valueint, 10);
    assert_int_equal(at(root, "coalesced_loads")->valueint, 11);
    assert_int_equal(at(at(root, "drain"), "quarantine_bytes")->valueint, 12);
    assert_int_equal(at(at(root, "drain"), "leases")->valueint, 13);
    assert_int_equal(at(at(root, "index"), "blocks")->valueint, 14);
    assert_int_equal(at(at(root, "index"), "bytes")->valueint, 15);
    assert_int_equal(at(at(root, "index"), "ssd_evicted_blocks")->valueint, 16);
    cJSON_Delete(root);
}

static struct kvf_tenants tenants;
static struct kvf_acl *acl;

/* "a" has shares and blocks, "b" blocks alone, "c" a share alone. */
static const struct kvf_tenants *some_tenants(void)
{
    static const char text[] = "{\"tenants\": {\"a\": {\"dram\": 0.5, \"ssd\": 0.25}, "
                               "\"c\": {\"ssd\": 0.5}}, \"identities\": {}}";
    assert_true(kvf_is_ok(kvf_acl_parse("acl", text, strlen(text), &acl, NULL)));
    tenants = (struct kvf_tenants){
        .acl = acl, .all_bytes = {1 << 20, 2 << 20}, .safe_bytes = {1 << 20, 1 << 20}};
    assert_true(kvf_is_ok(kvf_tenants_init(&tenants, 1)));
    struct kvf_tenant *a = kvf_tenants_enter(&tenants, "a/f"),
                      *b = kvf_tenants_enter(&tenants, "b/f");
    kvf_tenants_take(&tenants, a, KVF_SHARE_DRAM, 11);
    kvf_tenants_take(&tenants, a, KVF_SHARE_SSD, 12);
    a->shed_blocks = 13;
    kvf_tenants_take(&tenants, b, KVF_SHARE_SSD, 14);
    return &tenants;
}

static void no_tenants(void)
{
    kvf_tenants_fini(&tenants);
    kvf_acl_close(acl);
}

static void json__tenants_with_shares__are_there_with_what_they_have(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    cJSON *root = json_of(&stats);
    assert_false(cJSON_HasObjectItem(root, "tenants"));
    cJSON_Delete(root);
    stats.tenants = some_tenants();
    root = json_of(&stats);
    keys_are(at(at(root, "tenants"), "a"), "dram_bytes dram_limit_bytes"); /* no drive */
    cJSON_Delete(root);
    stats.drives = two_drives;
    stats.drive_count = 2;
    root = json_of(&stats);
    const cJSON *a = at(at(root, "tenants"), "a");
    keys_are(a, "dram_bytes dram_limit_bytes ssd_bytes ssd_limit_bytes ssd_shed_blocks");
    assert_int_equal(at(a, "dram_bytes")->valueint, 11);
    assert_int_equal(at(a, "dram_limit_bytes")->valueint, 1 << 19);
    assert_int_equal(at(a, "ssd_bytes")->valueint, 12);
    assert_int_equal(at(a, "ssd_limit_bytes")->valueint, 1 << 19);
    assert_int_equal(at(a, "ssd_shed_blocks")->valueint, 13);
    keys_are(at(at(root, "tenants"), "b"), "dram_bytes ssd_bytes ssd_shed_blocks");
    keys_are(at(at(root, "tenants"), "c"), "dram_bytes ssd_bytes ssd_limit_bytes ssd_shed_blocks");
    assert_int_equal(cJSON_GetArraySize(at(root, "tenants")), 3);
    cJSON_Delete(root);
    no_tenants();
}

static void json__numbers_beyond_doubles__stay_exact(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.boot_epoch = UINT64_MAX;
    stats.pull.bytes = (UINT64_C(1) << 53) + 1;
    char *text = kvf_stats_json(&stats);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"boot_epoch\":18446744073709551615,"));
    assert_non_null(strstr(text, "\"bytes\":9007199254740993,"));
    free(text);
}

static const char odd_path[] = "/m\"n\\t\n\x01 \xc3\xa4 \xff\xc3(\xed\xa0\x80\xf4\x90\x80\x80";
static const char odd_path_text[] = "/m\"n\\t\n\x01 \xc3\xa4 ?"
                                    "?("
                                    "?"
                                    "?"
                                    "?"
                                    "?"
                                    "?"
                                    "?"
                                    "?";

static void json__odd_bytes__are_escaped_or_replaced(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    const struct kvf_drive_stats drive = {.path = odd_path};
    stats.drives = &drive;
    stats.drive_count = 1;
    cJSON *root = json_of(&stats);
    const cJSON *path = at(cJSON_GetArrayItem(at(root, "ssd"), 0), "path");
    assert_string_equal(path->valuestring, odd_path_text);
    cJSON_Delete(root);
}

static char *metrics_of(const struct kvf_stats *stats)
{
    char *text = kvf_stats_metrics(stats);
    assert_non_null(text);
    return text;
}

/* The text has this whole line. */
static bool has_line(const char *text, const char *line)
{
    size_t length = strlen(line);
    for (const char *found = strstr(text, line); found != NULL; found = strstr(found + 1, line))
        if ((found == text || found[-1] == '\n') && found[length] == '\n')
            return true;
    return false;
}

static void lines_are_there(const char *text, const char *const *lines, size_t count)
{
    for (size_t line = 0; line < count; line++)
        if (!has_line(text, lines[line]))
            fail_msg("no line \"%s\"", lines[line]);
}

static void metrics__at_start__has_every_documented_name_at_0(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "kvferry_pull_reads_total 0",
        "kvferry_pull_bytes_total 0",
        "kvferry_serve_reads_total 0",
        "kvferry_serve_bytes_total 0",
        "kvferry_ssd_read_sets_total 0",
        "kvferry_ssd_read_sqes_total 0",
        "kvferry_ssd_registrations_total 0",
        "kvferry_ssd_write_syncs_total 0",
        "kvferry_ssd_read_errors_total 0",
        "kvferry_ssd_evicted_blocks_total 0",
        "kvferry_ssd_carried_blocks_total 0",
        "kvferry_ssd_carried_bytes_total 0",
        "kvferry_ssd_carries_failed_total 0",
        "kvferry_queries_waited_total 0",
        "kvferry_coalesced_loads_total 0",
        "kvferry_index_blocks 0",
        "kvferry_index_bytes 0",
        "kvferry_query_peak_bytes 0",
        "kvferry_query_peak_instance_bytes 0",
        "kvferry_query_peak_identity_bytes 0",
        "kvferry_drain_query_bytes 0",
        "kvferry_drain_leases 0",
        "kvferry_drain_pinned_bytes 0",
        "kvferry_drain_dirty_bytes 0",
        "kvferry_drain_quarantine_bytes 0",
        "kvferry_blocks_total{tier=\"dram\"} 0",
        "kvferry_blocks_total{tier=\"ssd\"} 0",
        "kvferry_blocks_total{tier=\"remote_dram\"} 0",
        "kvferry_blocks_total{tier=\"remote_ssd\"} 0",
        "kvferry_misses_total{reason=\"not_found\"} 0",
        "kvferry_misses_total{reason=\"busy\"} 0",
        "kvferry_misses_total{reason=\"unsupported\"} 0",
        "kvferry_ssd_payload_bytes_total{op=\"read\"} 0",
        "kvferry_ssd_payload_bytes_total{op=\"write\"} 0",
        "kvferry_ssd_device_bytes_total{op=\"read\"} 0",
        "kvferry_ssd_device_bytes_total{op=\"write\"} 0",
        "kvferry_dropped_blocks_total{reason=\"no_ssd\"} 0",
        "kvferry_dropped_blocks_total{reason=\"ssd_share\"} 0",
        "kvferry_dropped_blocks_total{reason=\"write_error\"} 0",
        "kvferry_dropped_blocks_total{reason=\"read_error\"} 0",
        "kvferry_dropped_blocks_total{reason=\"corrupt\"} 0",
        "kvferry_stage_seconds_count{stage=\"admission\"} 0",
        "kvferry_stage_seconds_count{stage=\"load\"} 0",
        "kvferry_stage_seconds_count{stage=\"read\"} 0",
        "kvferry_stage_seconds_count{stage=\"verify\"} 0",
        "kvferry_stage_seconds_count{stage=\"h2d\"} 0",
        "kvferry_stage_seconds_bucket{stage=\"load\",le=\"+Inf\"} 0",
        "kvferry_stage_seconds_sum{stage=\"load\"} 0.000000000",
        "# TYPE kvferry_stage_seconds histogram",
        "# TYPE kvferry_blocks_total counter",
        "# TYPE kvferry_drain_leases gauge",
    };
    struct kvf_stats stats = empty();
    char *text = metrics_of(&stats);
    lines_are_there(text, lines, sizeof(lines) / sizeof(lines[0]));
    assert_null(strstr(text, "reason=\"ok\""));
    assert_null(strstr(text, "UNKNOWN"));
    assert_null(strstr(text, "\nkvferry_drain_ssd_reads "));
    assert_null(strstr(text, "\nkvferry_drain_ssd_writes "));
    free(text);
}

static void metrics__tenants_with_shares__have_a_line_for_what_they_have(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "kvferry_tenant_dram_bytes{tenant=\"a\"} 11",
        "kvferry_tenant_dram_limit_bytes{tenant=\"a\"} 524288",
        "kvferry_tenant_ssd_bytes{tenant=\"a\"} 12",
        "kvferry_tenant_ssd_limit_bytes{tenant=\"a\"} 524288",
        "kvferry_tenant_ssd_shed_blocks_total{tenant=\"a\"} 13",
        "kvferry_tenant_ssd_bytes{tenant=\"b\"} 14",
        "kvferry_tenant_ssd_bytes{tenant=\"c\"} 0",
        "kvferry_tenant_ssd_limit_bytes{tenant=\"c\"} 1048576",
    };
    struct kvf_stats stats = empty();
    char *text = metrics_of(&stats);
    assert_null(strstr(text, "tenant=\""));
    free(text);
    stats.tenants = some_tenants();
    text = metrics_of(&stats);
    lines_are_there(text, lines, sizeof(lines) / sizeof(lines[0]));
    assert_null(strstr(text, "kvferry_tenant_ssd_limit_bytes{tenant=\"b\"}"));
    assert_null(strstr(text, "kvferry_tenant_dram_limit_bytes{tenant=\"c\"}"));
    free(text);
    no_tenants();
}

static void metrics__with_drives__sums_them_and_has_all_seven_gauges(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "kvferry_ssd_read_sets_total 113",
        "kvferry_ssd_read_sqes_total 114",
        "kvferry_ssd_registrations_total 119",
        "kvferry_ssd_write_syncs_total 21",
        "kvferry_ssd_read_errors_total 25",
        "kvferry_ssd_carried_blocks_total 22",
        "kvferry_ssd_carried_bytes_total 23",
        "kvferry_ssd_carries_failed_total 24",
        "kvferry_ssd_payload_bytes_total{op=\"read\"} 115",
        "kvferry_ssd_payload_bytes_total{op=\"write\"} 117",
        "kvferry_ssd_device_bytes_total{op=\"read\"} 116",
        "kvferry_ssd_device_bytes_total{op=\"write\"} 118",
        "kvferry_ssd_capacity_bytes{path=\"/mnt/a\"} 11",
        "kvferry_ssd_used_bytes{path=\"/mnt/a\"} 12",
        "kvferry_ssd_read_only{path=\"/mnt/a\"} 0",
        "kvferry_ssd_read_only{path=\"/mnt/b\"} 1",
        "kvferry_ssd_recovering{path=\"/mnt/a\"} 1",
        "kvferry_ssd_recovering{path=\"/mnt/b\"} 0",
        "kvferry_drain_ssd_reads 5",
        "kvferry_drain_ssd_writes 6",
        "kvferry_blocks_total{tier=\"remote_ssd\"} 18446744073709551615",
        "kvferry_misses_total{reason=\"deadline\"} 8",
        "kvferry_dropped_blocks_total{reason=\"write_error\"} 9",
        "kvferry_dropped_blocks_total{reason=\"corrupt\"} 11",
        "kvferry_state{state=\"DRAINING\"} 1",
        "kvferry_state{state=\"READY\"} 0",
    };
    struct kvf_stats stats = empty();
    stats.state = "DRAINING";
    stats.drives = two_drives;
    stats.drive_count = 2;
    stats.drain.ssd_reads = 5;
    stats.drain.ssd_writes = 6;
    stats.counters.hits[KVF_HIT_REMOTE_SSD] = UINT64_MAX;
    stats.counters.misses[KVF_DEADLINE] = 8;
    stats.counters.dropped[KVF_DROP_WRITE_ERROR] = 9;
    stats.counters.dropped[KVF_DROP_CORRUPT] = 11;
    char *text = metrics_of(&stats);
    lines_are_there(text, lines, sizeof(lines) / sizeof(lines[0]));
    free(text);
}

static void metrics__every_sample__has_one_help_and_one_type_before_it(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.drives = two_drives;
    stats.drive_count = 2;
    char *text = metrics_of(&stats);
    char type[128] = "";
    size_t samples = 0;
    for (char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        char name[96];
        if (sscanf(line, "# TYPE %95s", name) == 1) {
            char again[128];
            (void)snprintf(type, sizeof(type), "%s", name);
            (void)snprintf(again, sizeof(again), "# TYPE %s ", name);
            assert_null(strstr(line + 1, again));
        } else if (line[0] != '#') {
            assert_int_equal(sscanf(line, "%95[a-z0-9_]", name), 1);
            assert_int_equal(strncmp(name, type, strlen(type)), 0);
            assert_true(name[strlen(type)] == '\0' || strcmp(type, "kvferry_stage_seconds") == 0);
            samples++;
        }
    }
    assert_true(samples > 100);
    free(text);
}

static void metrics__odd_bytes_in_a_label__are_escaped(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    const struct kvf_drive_stats drive = {.path = "/m\"n\\t\nx\xff"};
    stats.drives = &drive;
    stats.drive_count = 1;
    char *text = metrics_of(&stats);
    assert_true(has_line(text, "kvferry_ssd_used_bytes{path=\"/m\\\"n\\\\t\\nx?\"} 0"));
    free(text);
}

static void histogram_add__each_bound__is_inclusive(void **state)
{
    (void)state;
    struct kvf_histogram histogram = {0};
    kvf_histogram_add(&histogram, 0);
    kvf_histogram_add(&histogram, 16000);
    assert_int_equal(histogram.counts[0], 2);
    kvf_histogram_add(&histogram, 16001);
    kvf_histogram_add(&histogram, 32000);
    assert_int_equal(histogram.counts[1], 2);
    kvf_histogram_add(&histogram, UINT64_C(16000) << 18);
    assert_int_equal(histogram.counts[18], 1);
    kvf_histogram_add(&histogram, (UINT64_C(16000) << 18) + 1);
    kvf_histogram_add(&histogram, UINT64_C(1) << 62);
    assert_int_equal(histogram.counts[KVF_STAGE_BUCKETS - 1], 2);
    assert_int_equal(histogram.count, 7);
}

static void metrics__histograms__are_cumulative_in_seconds(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "kvferry_stage_seconds_bucket{stage=\"read\",le=\"0.000016\"} 1",
        "kvferry_stage_seconds_bucket{stage=\"read\",le=\"0.000032\"} 1",
        "kvferry_stage_seconds_bucket{stage=\"read\",le=\"2.097152\"} 2",
        "kvferry_stage_seconds_bucket{stage=\"read\",le=\"4.194304\"} 2",
        "kvferry_stage_seconds_bucket{stage=\"read\",le=\"+Inf\"} 3",
        "kvferry_stage_seconds_sum{stage=\"read\"} 101.500000001",
        "kvferry_stage_seconds_count{stage=\"read\"} 3",
    };
    struct kvf_stats stats = empty();
    struct kvf_histogram *read = &stats.counters.stages[KVF_STAGE_READ];
    kvf_histogram_add(read, 1);
    kvf_histogram_add(read, UINT64_C(1500000000));
    kvf_histogram_add(read, UINT64_C(100000000000));
    char *text = metrics_of(&stats);
    lines_are_there(text, lines, sizeof(lines) / sizeof(lines[0]));
    free(text);
}

static void drain_gauges_text__with_and_without_drives__names_what_runs(void **state)
{
    (void)state;
    char text[256];
    struct kvf_stats stats = empty();
    stats.drain = (struct kvf_drain_gauges){1, 2, 3, 4, 5, 6, 7};
    kvf_drain_gauges_text(&stats, text, sizeof(text));
    assert_string_equal(text,
                        "query_bytes=1 leases=2 pinned_bytes=3 dirty_bytes=6 quarantine_bytes=7");
    stats.drives = two_drives;
    stats.drive_count = 2;
    kvf_drain_gauges_text(&stats, text, sizeof(text));
    assert_string_equal(text, "query_bytes=1 leases=2 pinned_bytes=3 ssd_reads=4 ssd_writes=5 "
                              "dirty_bytes=6 quarantine_bytes=7");
}

static void drain_gauges_text__little_room__is_cut_and_terminated(void **state)
{
    (void)state;
    const struct kvf_stats stats = empty();
    for (size_t room = 0; room < 80; room++) {
        char text[100];
        memset(text, 'x', sizeof(text));
        kvf_drain_gauges_text(&stats, text, room);
        assert_int_equal(text[room], 'x');
        if (room > 0)
            assert_true(memchr(text, '\0', room) != NULL);
    }
}

/* ---- docs/stat.md: both lists, neither short of a name nor with one too many ---- */

static char page[32768];

static void read_page(void)
{
    FILE *file = fopen("docs/stat.md", "r");
    assert_non_null(file);
    size_t length = fread(page, 1, sizeof(page) - 1, file);
    assert_true(length < sizeof(page) - 1 && fclose(file) == 0);
    page[length] = '\0';
}

static unsigned rows_of(const char *name)
{
    char row[192];
    unsigned count = 0;
    (void)snprintf(row, sizeof(row), "\n| `%s` | ", name);
    for (const char *found = strstr(page, row); found != NULL; found = strstr(found + 1, row))
        count++;
    return count;
}

static unsigned rows_that_start_with(const char *start)
{
    unsigned count = 0;
    for (const char *found = strstr(page, start); found != NULL; found = strstr(found + 1, start))
        count++;
    return count;
}

static void is_listed(const char *name, unsigned *count)
{
    if (rows_of(name) != 1)
        fail_msg("docs/stat.md has %u rows of %s", rows_of(name), name);
    (*count)++;
}

/* Members of members by `path.member`, those of an array's first element by `path[].member`. */
static void keys_are_listed(const cJSON *object, const char *path, unsigned *count)
{
    const cJSON *member;
    cJSON_ArrayForEach(member, object)
    {
        char name[128];
        (void)snprintf(name, sizeof(name), "%s%s%s", path, member->string,
                       cJSON_IsArray(member) ? "[]" : "");
        if (!cJSON_IsObject(member) && !cJSON_IsArray(member)) {
            is_listed(name, count);
            continue;
        }
        if (strcmp(name, "tenants") == 0) { /* one for all of them */
            keys_are_listed(at(member, "a"), "tenants.T.", count);
            continue;
        }
        strcat(name, ".");
        keys_are_listed(cJSON_IsArray(member) ? cJSON_GetArrayItem(member, 0) : member, name,
                        count);
    }
}

static void page__of_what_stat_tells__has_every_key_and_no_other(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.degraded = stats.waits_for = "something";
    stats.drives = two_drives;
    stats.drive_count = 2;
    stats.tenants = some_tenants();
    cJSON *root = json_of(&stats);
    unsigned count = 0;
    read_page();
    keys_are_listed(root, "", &count);
    assert_int_equal(rows_that_start_with("\n| `"), count + rows_that_start_with("\n| `kvferry_"));
    cJSON_Delete(root);
    no_tenants();
}

static void page__of_what_stat_tells__has_every_metric_and_no_other(void **state)
{
    (void)state;
    struct kvf_stats stats = empty();
    stats.drives = two_drives;
    stats.drive_count = 2;
    char *text = kvf_stats_metrics(&stats), *rest = text;
    unsigned count = 0;
    assert_non_null(text);
    read_page();
    for (const char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char name[128], type[32], typed[192];
        if (sscanf(line, "# TYPE %127s %31s", name, type) != 2)
            continue;
        is_listed(name, &count);
        (void)snprintf(typed, sizeof(typed), "\n| `%s` | %s |", name, type);
        assert_non_null(strstr(page, typed));
    }
    assert_int_equal(rows_that_start_with("\n| `kvferry_"), count);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json__with_drives__has_exactly_the_documented_names),
        cmocka_unit_test(json__without_drives__has_no_key_for_what_does_not_run),
        cmocka_unit_test(json__each_number__comes_from_its_field),
        cmocka_unit_test(json__tenants_with_shares__are_there_with_what_they_have),
        cmocka_unit_test(metrics__tenants_with_shares__have_a_line_for_what_they_have),
        cmocka_unit_test(json__numbers_beyond_doubles__stay_exact),
        cmocka_unit_test(json__odd_bytes__are_escaped_or_replaced),
        cmocka_unit_test(metrics__at_start__has_every_documented_name_at_0),
        cmocka_unit_test(metrics__with_drives__sums_them_and_has_all_seven_gauges),
        cmocka_unit_test(metrics__every_sample__has_one_help_and_one_type_before_it),
        cmocka_unit_test(metrics__odd_bytes_in_a_label__are_escaped),
        cmocka_unit_test(histogram_add__each_bound__is_inclusive),
        cmocka_unit_test(metrics__histograms__are_cumulative_in_seconds),
        cmocka_unit_test(drain_gauges_text__with_and_without_drives__names_what_runs),
        cmocka_unit_test(drain_gauges_text__little_room__is_cut_and_terminated),
        cmocka_unit_test(page__of_what_stat_tells__has_every_key_and_no_other),
        cmocka_unit_test(page__of_what_stat_tells__has_every_metric_and_no_other),
    };
    return cmocka_run_group_tests_name("server/stats", tests, NULL, NULL);
}
