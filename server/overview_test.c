#include "server/overview.h"

#include "base/test.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvf_overview overview;

static int set_up(void **state)
{
    (void)state;
    overview = (struct kvf_overview){
        .stats = {.node_id = "a", .state = "READY", .transport = "tcp", .pull = {.bytes = 7}},
        .uptime_s = 3,
        .drain_timeout_s = 30,
        .engines = 2,
    };
    return 0;
}

static cJSON *parsed(void)
{
    char *text = kvf_overview_json(&overview);
    assert_non_null(text);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

/* The value at "a.b.0.c". */
static const cJSON *value(const cJSON *root, const char *path)
{
    char words[128], *rest = words;
    (void)snprintf(words, sizeof(words), "%s", path);
    for (char *word; root != NULL && (word = strsep(&rest, ".")) != NULL;)
        root = cJSON_IsArray(root) ? cJSON_GetArrayItem(root, atoi(word))
                                   : cJSON_GetObjectItemCaseSensitive(root, word);
    return root;
}

static void has_number(const cJSON *root, const char *path, double number)
{
    assert_true(cJSON_IsNumber(value(root, path)));
    assert_true(value(root, path)->valuedouble == number);
}

static void has_text(const cJSON *root, const char *path, const char *text)
{
    assert_true(cJSON_IsString(value(root, path)));
    assert_string_equal(value(root, path)->valuestring, text);
}

static void json__of_a_daemon__holds_its_stat_and_the_rest(void **state)
{
    (void)state;
    overview.stats.counters.hits[KVF_HIT_REMOTE_SSD] = 4;
    overview.stats.counters.misses[KVF_BUSY] = 5;
    overview.budgets[KVF_OVERVIEW_PULL] =
        (struct kvf_budget){.used_bytes = 10, .peak_bytes = 20, .limit_bytes = 30};
    overview.budgets[KVF_OVERVIEW_IDENTITY] =
        (struct kvf_budget){.peak_bytes = 1, .limit_bytes = 2};
    cJSON *root = parsed();
    has_text(root, "stat.node_id", "a");
    has_number(root, "stat.pull.bytes", 7);
    has_number(root, "uptime_s", 3);
    has_number(root, "engines", 2);
    has_number(root, "found.remote_ssd", 4);
    has_number(root, "found.dram", 0);
    has_number(root, "missed.BUSY", 5);
    assert_int_equal(cJSON_GetArraySize(value(root, "missed")), 1);
    has_text(root, "budgets.1.name", "pull");
    has_number(root, "budgets.1.used_bytes", 10);
    has_number(root, "budgets.1.peak_bytes", 20);
    has_number(root, "budgets.1.limit_bytes", 30);
    has_text(root, "budgets.5.name", "identity");
    assert_null(value(root, "budgets.5.used_bytes"));
    assert_int_equal(cJSON_GetArraySize(value(root, "budgets")), KVF_OVERVIEW_BUDGETS);
    assert_null(value(root, "drain_left_s"));
    cJSON_Delete(root);
}

static void json__while_draining__says_what_is_left(void **state)
{
    (void)state;
    overview.stats.state = "DRAINING";
    overview.stats.waits_for = "1 Get";
    overview.drain_left_s = 29;
    cJSON *root = parsed();
    has_text(root, "stat.waits_for", "1 Get");
    has_number(root, "drain_left_s", 29);
    cJSON_Delete(root);
}

static void json__of_more_peers_than_rows__counts_them_all(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KVF_OVERVIEW_PEERS + 3; i++)
        kvf_overview_add_peer(
            &overview.consumers,
            (struct kvf_overview_peer){
                .who = "spiffe://x/\"b\"", .tenant = "t", .state = "open", .leases = i});
    kvf_overview_add_peer(
        &overview.sources,
        (struct kvf_overview_peer){.who = "10.0.0.1:9470", .tenant = "t", .state = "idle"});
    cJSON *root = parsed();
    has_number(root, "consumers.count", KVF_OVERVIEW_PEERS + 3);
    assert_int_equal(cJSON_GetArraySize(value(root, "consumers.rows")), KVF_OVERVIEW_PEERS);
    has_text(root, "consumers.rows.63.who", "spiffe://x/\"b\"");
    has_number(root, "consumers.rows.63.leases", 63);
    has_text(root, "sources.rows.0.who", "10.0.0.1:9470");
    assert_null(value(root, "sources.rows.0.leases"));
    cJSON_Delete(root);
}

static void json__of_lines_that_are_no_text__is_text(void **state)
{
    (void)state;
    (void)snprintf(overview.recent[0], KVF_LOG_RECENT_BYTES, "error: \xff</script>");
    overview.recent_count = 1;
    cJSON *root = parsed();
    has_text(root, "recent.0", "error: ?</script>");
    cJSON_Delete(root);
}

static void page__as_built__is_whole_and_fetches_nothing_foreign(void **state)
{
    (void)state;
    assert_int_equal(strncmp(kvf_overview_page, "<!doctype html>", 15), 0);
    assert_non_null(strstr(kvf_overview_page, "</html>\n"));
    assert_null(strstr(kvf_overview_page, "https:"));
    assert_null(strstr(kvf_overview_page, "src="));
    assert_null(strstr(kvf_overview_page, "innerHTML"));
    for (const char *at = kvf_overview_page; *at != '\0'; at++)
        assert_true(*at == '\n' || (*at >= ' ' && *at <= '~'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(json__of_a_daemon__holds_its_stat_and_the_rest, set_up),
        cmocka_unit_test_setup(json__while_draining__says_what_is_left, set_up),
        cmocka_unit_test_setup(json__of_more_peers_than_rows__counts_them_all, set_up),
        cmocka_unit_test_setup(json__of_lines_that_are_no_text__is_text, set_up),
        cmocka_unit_test(page__as_built__is_whole_and_fetches_nothing_foreign),
    };
    return cmocka_run_group_tests_name("overview", tests, NULL, NULL);
}
