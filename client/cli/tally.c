#include "client/cli/tally.h"

#include "client/cli/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tally_hit(struct tally *tally, enum kvf_tier tier, enum kvf_origin origin)
{
    bool is_remote = origin == KVF_ORIGIN_REMOTE, is_ssd = tier == KVF_TIER_SSD;
    uint64_t *hits = is_remote ? (is_ssd ? &tally->remote_ssd : &tally->remote_dram)
                               : (is_ssd ? &tally->ssd : &tally->dram);
    tally->blocks++;
    ++*hits;
}

void tally_miss(struct tally *tally, enum kvf_code code)
{
    tally->blocks++;
    tally->missing++;
    tally->reasons[code < KVF_CODE_COUNT ? code : KVF_PROTOCOL]++;
}

uint64_t tally_quantile(const uint64_t *sorted, size_t count, unsigned per_mille)
{
    if (count == 0)
        return 0;
    size_t rank = (count * per_mille + 999) / 1000;
    return sorted[rank == 0 ? 0 : rank - 1];
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void add_hits(cJSON *object, const struct tally *tally)
{
    cJSON *hits = cJSON_AddObjectToObject(object, "hits");
    json_add_number(hits, "dram", tally->dram);
    json_add_number(hits, "ssd", tally->ssd);
    json_add_number(hits, "remote_dram", tally->remote_dram);
    json_add_number(hits, "remote_ssd", tally->remote_ssd);
    json_add_number(hits, "miss", tally->missing);
}

static void add_latencies(cJSON *object, const struct tally *tally)
{
    cJSON *latency = cJSON_AddObjectToObject(object, "latency_ms");
    size_t count = (size_t)tally->requests;
    qsort(tally->latencies_ns, count, sizeof(*tally->latencies_ns), ascending);
    json_add_decimal(latency, "p50", (double)tally_quantile(tally->latencies_ns, count, 500) / 1e6);
    json_add_decimal(latency, "p90", (double)tally_quantile(tally->latencies_ns, count, 900) / 1e6);
    json_add_decimal(latency, "p99", (double)tally_quantile(tally->latencies_ns, count, 990) / 1e6);
}

char *tally_json(struct tally *tally)
{
    cJSON *object = cJSON_CreateObject();
    json_add_number(object, "requests", tally->requests);
    json_add_number(object, "blocks", tally->blocks);
    json_add_number(object, "bytes", tally->bytes);
    json_add_number(object, "mismatches", tally->mismatches);
    json_add_number(object, "missing", tally->missing);
    add_hits(object, tally);
    json_add_number(object, "reads", tally->reads);
    json_add_decimal(object, "gb_per_s",
                     tally->get_ns == 0 ? 0 : (double)tally->bytes / (double)tally->get_ns);
    add_latencies(object, tally);
    cJSON *seconds = cJSON_AddObjectToObject(object, "seconds");
    json_add_decimal(seconds, "put", (double)tally->put_ns / 1e9);
    json_add_decimal(seconds, "sync", (double)tally->sync_ns / 1e9);
    json_add_decimal(seconds, "get", (double)tally->get_ns / 1e9);
    return json_text(object);
}

void tally_reasons_text(const struct tally *tally, char *text, size_t room)
{
    size_t at = 0;
    text[0] = '\0';
    for (unsigned code = 0; code < KVF_CODE_COUNT && at < room; code++) {
        if (tally->reasons[code] > 0)
            at += (size_t)snprintf(text + at, room - at, "%s%" PRIu64 " %s", at == 0 ? "" : ", ",
                                   tally->reasons[code], kvf_code_name(code));
    }
}
