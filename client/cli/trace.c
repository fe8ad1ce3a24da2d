/* Reading a trace: lines to JSON to numbers. The other half, trace_make, is in trace_make.c. */
#include "client/cli/trace.h"

#include "base/table.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECTED                                                                                   \
    "expected an object like {\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, "     \
    "\"hash_ids\": [0, 1]}"

/* Above it a JSON number, a double, no longer names one integer. */
#define ID_MOST 9007199254740991.0

struct number_node {
    struct kvf_table_node node; /* first: the table gives it back */
    struct number_node *before; /* made before this one, to free them all */
    uint64_t id;
    uint32_t number;
};

struct loader {
    const char *path;
    size_t line;
    struct kvf_why *why;
    struct trace trace;
    size_t first_room, reference_room, id_room;
    struct kvf_table numbers; /* id -> number */
    struct number_node *last_made;
};

static struct kvf_status no_memory(struct loader *loader)
{
    return kvf_why_set(loader->why, kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0),
                       "%.120s:%zu: no memory left for this trace; give a smaller --requests",
                       loader->path, loader->line);
}

static struct kvf_status bad_line(struct loader *loader, const char *what)
{
    return kvf_why_set(loader->why, kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0),
                       "%.120s:%zu: %s; %s", loader->path, loader->line, what, EXPECTED);
}

/* Make room for element `index` of an array of elements of `size` bytes. */
static bool make_room(void **array, size_t *room, size_t index, size_t size)
{
    if (index < *room)
        return true;
    size_t more = *room == 0 ? 1024 : *room * 2;
    void *bigger = reallocarray(*array, more, size);
    if (bigger == NULL)
        return false;
    *array = bigger;
    *room = more;
    return true;
}

static bool same_id(const struct kvf_table_node *node, const void *key)
{
    return ((const struct number_node *)node)->id == *(const uint64_t *)key;
}

static struct kvf_status number_of(struct loader *loader, uint64_t id, uint32_t *number)
{
    struct trace *trace = &loader->trace;
    uint64_t hash = kvf_hash(0, &id, sizeof(id));
    struct kvf_table_node *found = kvf_table_find(&loader->numbers, hash, same_id, &id);
    if (found != NULL) {
        *number = ((struct number_node *)found)->number;
        return kvf_ok();
    }
    size_t next = trace->distinct_count;
    void *ids = trace->ids;
    bool room = next < UINT32_MAX && make_room(&ids, &loader->id_room, next, sizeof(*trace->ids));
    trace->ids = ids;
    struct number_node *node = room ? malloc(sizeof(*node)) : NULL;
    if (node == NULL)
        return no_memory(loader);
    *node = (struct number_node){.before = loader->last_made, .id = id, .number = (uint32_t)next};
    loader->last_made = node;
    kvf_table_insert(&loader->numbers, &node->node, hash);
    trace->ids[trace->distinct_count++] = id;
    *number = node->number;
    return kvf_ok();
}

static struct kvf_status add_reference(struct loader *loader, uint64_t id)
{
    struct trace *trace = &loader->trace;
    uint32_t number = 0;
    KVF_TRY(number_of(loader, id, &number));
    void *references = trace->references;
    bool room = make_room(&references, &loader->reference_room, trace->reference_count,
                          sizeof(*trace->references));
    trace->references = references;
    if (!room)
        return no_memory(loader);
    trace->references[trace->reference_count++] = number;
    return kvf_ok();
}

/* first[request_count] = where the next request begins. */
static struct kvf_status mark_end(struct loader *loader)
{
    struct trace *trace = &loader->trace;
    void *first = trace->first;
    bool room = make_room(&first, &loader->first_room, trace->request_count, sizeof(*trace->first));
    trace->first = first;
    if (!room)
        return no_memory(loader);
    trace->first[trace->request_count] = trace->reference_count;
    return kvf_ok();
}

static bool is_id(const cJSON *item)
{
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return value >= 0 && value <= ID_MOST && value == floor(value);
}

static struct kvf_status judge(struct loader *loader, const cJSON *object)
{
    static const char *const counts[] = {"timestamp", "input_length", "output_length"};
    if (!cJSON_IsObject(object))
        return bad_line(loader, "this is no JSON object");
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(object, counts[i]);
        if (!cJSON_IsNumber(count) || !(count->valuedouble >= 0)) {
            char what[64];
            (void)snprintf(what, sizeof(what), "%s is no number from 0 on", counts[i]);
            return bad_line(loader, what);
        }
    }
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(object, "hash_ids");
    if (!cJSON_IsArray(ids))
        return bad_line(loader, "hash_ids is no array");
    const cJSON *item;
    cJSON_ArrayForEach(item, ids)
    {
        if (!is_id(item))
            return bad_line(loader, "a hash id is no whole number from 0 to 2^53 - 1");
    }
    return kvf_ok();
}

static struct kvf_status keep(struct loader *loader, const cJSON *object)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(object, "hash_ids"))
    {
        KVF_TRY(add_reference(loader, (uint64_t)item->valuedouble));
    }
    loader->trace.request_count++;
    return mark_end(loader);
}

static struct kvf_status take_line(struct loader *loader, const char *text, size_t bytes,
                                   bool wanted)
{
    const char *end = NULL;
    /* The terminating zero counts, so that text behind the object, or a zero inside the line, is an error. */
    cJSON *object = cJSON_ParseWithLengthOpts(text, bytes + 1, &end, true);
    bool whole = object != NULL && end == text + bytes;
    struct kvf_status status =
        whole ? judge(loader, object) : bad_line(loader, "this is no JSON object");
    if (kvf_is_ok(status) && wanted)
        status = keep(loader, object);
    cJSON_Delete(object);
    return status;
}

static struct kvf_status take_file(struct loader *loader, FILE *file, uint64_t most)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    struct kvf_status status = mark_end(loader);
    while (kvf_is_ok(status) && (bytes = getline(&text, &room, file)) >= 0) {
        loader->line++;
        if (bytes > 0 && text[bytes - 1] == '\n')
            text[--bytes] = '\0';
        status = take_line(loader, text, (size_t)bytes, loader->trace.request_count < most);
    }
    if (kvf_is_ok(status) && ferror(file))
        status = kvf_why_set(loader->why, kvf_fail(KVF_MODULE_CLIENT, KVF_IO, errno),
                             "cannot read %.160s: %s", loader->path, strerror(errno));
    free(text);
    loader->line += loader->line == 0;
    if (kvf_is_ok(status) && loader->trace.request_count == 0)
        status = bad_line(loader, "the file holds no request");
    return status;
}

static void free_numbers(struct loader *loader)
{
    kvf_table_fini(&loader->numbers);
    while (loader->last_made != NULL) {
        struct number_node *node = loader->last_made;
        loader->last_made = node->before;
        free(node);
    }
}

struct kvf_status trace_load(const char *path, uint64_t most, struct trace *trace,
                             struct kvf_why *why)
{
    struct loader loader = {.path = path, .why = why};
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, errno),
                           "cannot read the trace %.160s: %s", path, strerror(errno));
    struct kvf_status status = kvf_table_init(&loader.numbers);
    if (kvf_is_ok(status)) {
        status = take_file(&loader, file, most);
        free_numbers(&loader);
    }
    (void)fclose(file);
    if (kvf_is_ok(status))
        *trace = loader.trace;
    else
        trace_free(&loader.trace);
    return status;
}

void trace_free(struct trace *trace)
{
    free(trace->first);
    free(trace->references);
    free(trace->ids);
    *trace = (struct trace){0};
}
