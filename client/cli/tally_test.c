#include "client/cli/tally.h"

#include "base/test.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

static double number(const cJSON *object, const char *section, const char *name)
{
    const cJSON *from =
        section == NULL ? object : cJSON_GetObjectItemCaseSensitive(object, section);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static void hit__tier_and_origin__one_counter_each(void **state)
{
    (void)state;
    struct tally tally = {0};
    tally_hit(&tally, KVF_TIER_DRAM, KVF_ORIGIN_LOCAL);
    for (int i = 0; i < 2; i++)
        tally_hit(&tally, KVF_TIER_SSD, KVF_ORIGIN_LOCAL);
    for (int i = 0; i < 3; i++)
        tally_hit(&tally, KVF_TIER_DRAM, KVF_ORIGIN_REMOTE);
    for (int i = 0; i < 4; i++)
        tally_hit(&tally, KVF_TIER_SSD, KVF_ORIGIN_REMOTE);
    for (int i = 0; i < 5; i++)
        tally_miss(&tally, KVF_NOT_FOUND);
    tally_miss(&tally, KVF_DEADLINE);
    assert_int_equal(tally.dram, 1);
    assert_int_equal(tally.ssd, 2);
    assert_int_equal(tally.remote_dram, 3);
    assert_int_equal(tally.remote_ssd, 4);
    assert_int_equal(tally.missing, 6);
    assert_int_equal(tally.blocks, 16);
    char text[100];
    tally_reasons_text(&tally, text, sizeof(text));
    assert_string_equal(text, "5 NOT_FOUND, 1 DEADLINE");
    tally_reasons_text(&tally, text, 4);
    assert_int_equal(strlen(text), 3);
}

static void quantile__nearest_rank(void **state)
{
    (void)state;
    uint64_t values[100];
    for (uint64_t i = 0; i < 100; i++)
        values[i] = i + 1;
    assert_int_equal(tally_quantile(values, 100, 500), 50);
    assert_int_equal(tally_quantile(values, 100, 990), 99);
    assert_int_equal(tally_quantile(values, 100, 1000), 100);
    assert_int_equal(tally_quantile(values, 100, 0), 1);
    assert_int_equal(tally_quantile(values, 1, 990), 1);
    assert_int_equal(tally_quantile(values, 3, 500), 2);
    assert_int_equal(tally_quantile(values, 0, 500), 0);
}

static void json__names_and_numbers__as_promised(void **state)
{
    (void)state;
    uint64_t latencies[] = {3000000, 1000000, 2000000};
    struct tally tally = {.requests = 3,
                          .blocks = 7,
                          .bytes = UINT64_C(18014398509481985),
                          .mismatches = 1,
                          .missing = 2,
                          .dram = 1,
                          .remote_ssd = 4,
                          .reads = 9,
                          .get_ns = UINT64_C(2000000000),
                          .latencies_ns = latencies};
    char *text = tally_json(&tally);
    assert_non_null(text);
    assert_non_null(strstr(text, "18014398509481985")); /* above 2^53, still every digit */
    assert_int_equal(text[strlen(text) - 1], '\n');
    cJSON *object = cJSON_Parse(text);
    assert_int_equal(number(object, NULL, "requests"), 3);
    assert_int_equal(number(object, NULL, "blocks"), 7);
    assert_int_equal(number(object, NULL, "mismatches"), 1);
    assert_int_equal(number(object, NULL, "missing"), 2);
    assert_int_equal(number(object, NULL, "reads"), 9);
    assert_int_equal(number(object, "hits", "dram"), 1);
    assert_int_equal(number(object, "hits", "ssd"), 0);
    assert_int_equal(number(object, "hits", "remote_dram"), 0);
    assert_int_equal(number(object, "hits", "remote_ssd"), 4);
    assert_int_equal(number(object, "hits", "miss"), 2);
    assert_true(number(object, NULL, "gb_per_s") > 9007000 &&
                number(object, NULL, "gb_per_s") < 9008000);
    assert_int_equal(number(object, "latency_ms", "p50"), 2);
    assert_int_equal(number(object, "latency_ms", "p99"), 3);
    assert_int_equal(number(object, "seconds", "get"), 2);
    cJSON_Delete(object);
    free(text);
}

static void json__nothing_replayed__is_still_numbers(void **state)
{
    (void)state;
    uint64_t none[1];
    struct tally tally = {.latencies_ns = none};
    char *text = tally_json(&tally);
    cJSON *object = cJSON_Parse(text);
    assert_int_equal(number(object, NULL, "gb_per_s"), 0);
    assert_int_equal(number(object, "latency_ms", "p50"), 0);
    cJSON_Delete(object);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hit__tier_and_origin__one_counter_each),
        cmocka_unit_test(quantile__nearest_rank),
        cmocka_unit_test(json__names_and_numbers__as_promised),
        cmocka_unit_test(json__nothing_replayed__is_still_numbers),
    };
    return cmocka_run_group_tests_name("client/cli/tally", tests, NULL, NULL);
}
