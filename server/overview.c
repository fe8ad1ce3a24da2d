#include "server/overview.h"

#include "base/version.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvf_overview_add_peer(struct kvf_overview_peers *peers, struct kvf_overview_peer peer)
{
    if (peers->count < KVF_OVERVIEW_PEERS)
        peers->rows[peers->count] = peer;
    peers->count++;
}

/* As in stats.c: what could not be added shows at the end. */
struct json {
    bool ok;
};

static void add_number(struct json *json, cJSON *object, const char *name, uint64_t value)
{
    char digits[24];
    (void)snprintf(digits, sizeof(digits), "%" PRIu64, value);
    json->ok = cJSON_AddRawToObject(object, name, digits) != NULL && json->ok;
}

static void add_text(struct json *json, cJSON *object, const char *name, const char *text)
{
    char *copy = kvf_stats_utf8(text);
    json->ok = copy != NULL && cJSON_AddStringToObject(object, name, copy) != NULL && json->ok;
    free(copy);
}

/* The new element of an array; NULL, which every add_* takes, when memory is out. */
static cJSON *add_element(struct json *json, cJSON *array)
{
    cJSON *object = cJSON_CreateObject();
    if (object != NULL && cJSON_AddItemToArray(array, object))
        return object;
    cJSON_Delete(object);
    json->ok = false;
    return NULL;
}

static cJSON *add_array(struct json *json, cJSON *object, const char *name)
{
    cJSON *array = cJSON_AddArrayToObject(object, name);
    json->ok = array != NULL && json->ok;
    return array;
}

static void add_budgets(struct json *json, cJSON *root, const struct kvf_overview *overview)
{
    static const char *const names[KVF_OVERVIEW_BUDGETS] = {
        [KVF_OVERVIEW_DIRTY] = "dirty",       [KVF_OVERVIEW_PULL] = "pull",
        [KVF_OVERVIEW_SERVE] = "serve",       [KVF_OVERVIEW_QUERY] = "query",
        [KVF_OVERVIEW_INSTANCE] = "instance", [KVF_OVERVIEW_IDENTITY] = "identity",
    };
    cJSON *array = add_array(json, root, "budgets");
    for (size_t at = 0; at < KVF_OVERVIEW_BUDGETS; at++) {
        cJSON *object = add_element(json, array);
        add_text(json, object, "name", names[at]);
        if (at < KVF_OVERVIEW_INSTANCE)
            add_number(json, object, "used_bytes", overview->budgets[at].used_bytes);
        add_number(json, object, "peak_bytes", overview->budgets[at].peak_bytes);
        add_number(json, object, "limit_bytes", overview->budgets[at].limit_bytes);
    }
}

static void add_finds(struct json *json, cJSON *root, const struct kvf_counters *counters)
{
    cJSON *found = cJSON_AddObjectToObject(root, "found");
    cJSON *missed = cJSON_AddObjectToObject(root, "missed");
    json->ok = found != NULL && missed != NULL && json->ok;
    for (size_t at = 0; at < KVF_HIT_COUNT; at++)
        add_number(json, found, kvf_hit_name((enum kvf_hit)at), counters->hits[at]);
    for (unsigned code = KVF_OK + 1; code < KVF_CODE_COUNT; code++)
        if (counters->misses[code] > 0)
            add_number(json, missed, kvf_code_name(code), counters->misses[code]);
}

static void add_peers(struct json *json, cJSON *root, const char *name,
                      const struct kvf_overview_peers *peers, bool have_leases)
{
    cJSON *object = cJSON_AddObjectToObject(root, name);
    json->ok = object != NULL && json->ok;
    add_number(json, object, "count", peers->count);
    cJSON *array = add_array(json, object, "rows");
    for (size_t at = 0; at < peers->count && at < KVF_OVERVIEW_PEERS; at++) {
        cJSON *row = add_element(json, array);
        add_text(json, row, "who", peers->rows[at].who);
        add_text(json, row, "tenant", peers->rows[at].tenant);
        add_text(json, row, "state", peers->rows[at].state);
        if (have_leases)
            add_number(json, row, "leases", peers->rows[at].leases);
    }
}

static void add_recent(struct json *json, cJSON *root, const struct kvf_overview *overview)
{
    cJSON *array = add_array(json, root, "recent");
    for (size_t at = 0; at < overview->recent_count; at++) {
        char *copy = kvf_stats_utf8(overview->recent[at]);
        cJSON *line = copy != NULL ? cJSON_CreateString(copy) : NULL;
        free(copy);
        if (line != NULL && cJSON_AddItemToArray(array, line))
            continue;
        cJSON_Delete(line);
        json->ok = false;
    }
}

char *kvf_overview_json(const struct kvf_overview *overview)
{
    struct json json = {.ok = true};
    cJSON *root = cJSON_CreateObject();
    char *stat = kvf_stats_json(&overview->stats);
    json.ok = stat != NULL && cJSON_AddRawToObject(root, "stat", stat) != NULL;
    free(stat);
    add_text(&json, root, "version", KVF_VERSION);
    add_number(&json, root, "uptime_s", overview->uptime_s);
    add_number(&json, root, "drain_timeout_s", overview->drain_timeout_s);
    if (overview->stats.waits_for != NULL)
        add_number(&json, root, "drain_left_s", overview->drain_left_s);
    add_number(&json, root, "engines", overview->engines);
    add_budgets(&json, root, overview);
    add_finds(&json, root, &overview->stats.counters);
    add_peers(&json, root, "consumers", &overview->consumers, true);
    add_peers(&json, root, "sources", &overview->sources, false);
    add_recent(&json, root, overview);
    char *text = json.ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}
