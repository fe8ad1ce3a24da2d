#include "server/overview.h"

#include "base/version.h"
#include "server/json.h"

#include <stdlib.h>

void kvf_overview_add_peer(struct kvf_overview_peers *peers, struct kvf_overview_peer peer)
{
    if (peers->count < KVF_OVERVIEW_PEERS)
        peers->rows[peers->count] = peer;
    peers->count++;
}

static void add_budgets(struct json *json, cJSON *root, const struct kvf_overview *overview)
{
    static const char *const names[KVF_OVERVIEW_BUDGETS] = {
        [KVF_OVERVIEW_DIRTY] = "dirty",       [KVF_OVERVIEW_PULL] = "pull",
        [KVF_OVERVIEW_SERVE] = "serve",       [KVF_OVERVIEW_QUERY] = "query",
        [KVF_OVERVIEW_INSTANCE] = "instance", [KVF_OVERVIEW_IDENTITY] = "identity",
    };
    cJSON *array = json_array(json, root, "budgets");
    for (size_t at = 0; at < KVF_OVERVIEW_BUDGETS; at++) {
        cJSON *object = json_element(json, array);
        json_text(json, object, "name", names[at]);
        if (at < KVF_OVERVIEW_INSTANCE)
            json_number(json, object, "used_bytes", overview->budgets[at].used_bytes);
        json_number(json, object, "peak_bytes", overview->budgets[at].peak_bytes);
        json_number(json, object, "limit_bytes", overview->budgets[at].limit_bytes);
    }
}

static void add_finds(struct json *json, cJSON *root, const struct kvf_counters *counters)
{
    cJSON *found = json_object(json, root, "found");
    cJSON *missed = json_object(json, root, "missed");
    for (size_t at = 0; at < KVF_HIT_COUNT; at++)
        json_number(json, found, kvf_hit_name((enum kvf_hit)at), counters->hits[at]);
    for (unsigned code = KVF_OK + 1; code < KVF_CODE_COUNT; code++)
        if (counters->misses[code] > 0)
            json_number(json, missed, kvf_code_name(code), counters->misses[code]);
}

static void add_peers(struct json *json, cJSON *root, const char *name,
                      const struct kvf_overview_peers *peers, bool have_leases)
{
    cJSON *object = json_object(json, root, name);
    json_number(json, object, "count", peers->count);
    cJSON *array = json_array(json, object, "rows");
    for (size_t at = 0; at < peers->count && at < KVF_OVERVIEW_PEERS; at++) {
        cJSON *row = json_element(json, array);
        json_text(json, row, "who", peers->rows[at].who);
        json_text(json, row, "tenant", peers->rows[at].tenant);
        json_text(json, row, "state", peers->rows[at].state);
        if (have_leases)
            json_number(json, row, "leases", peers->rows[at].leases);
    }
}

static void add_recent(struct json *json, cJSON *root, const struct kvf_overview *overview)
{
    cJSON *array = json_array(json, root, "recent");
    for (size_t at = 0; at < overview->recent_count; at++)
        json_line(json, array, overview->recent[at]);
}

char *kvf_overview_json(const struct kvf_overview *overview)
{
    struct json json = {.ok = true};
    cJSON *root = cJSON_CreateObject();
    char *stat = kvf_stats_json(&overview->stats);
    json.ok = stat != NULL && cJSON_AddRawToObject(root, "stat", stat) != NULL;
    free(stat);
    json_text(&json, root, "version", KVF_VERSION);
    json_number(&json, root, "uptime_s", overview->uptime_s);
    json_number(&json, root, "drain_timeout_s", overview->drain_timeout_s);
    if (overview->stats.waits_for != NULL)
        json_number(&json, root, "drain_left_s", overview->drain_left_s);
    json_number(&json, root, "engines", overview->engines);
    add_budgets(&json, root, overview);
    add_finds(&json, root, &overview->stats.counters);
    add_peers(&json, root, "consumers", &overview->consumers, true);
    add_peers(&json, root, "sources", &overview->sources, false);
    add_recent(&json, root, overview);
    char *text = json.ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}
