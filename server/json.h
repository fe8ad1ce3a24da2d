/* JSON with cJSON, for stat and the status page. What could not be added shows as `ok` false at the end, so the calls
 * need no check of their own: every parent may be NULL then. */
#ifndef KVFERRY_SERVER_JSON_H
#define KVFERRY_SERVER_JSON_H

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdint.h>

struct json {
    bool ok;
};

/* Members of an object. */
void json_number(struct json *json, cJSON *object, const char *name, uint64_t value);
void json_flag(struct json *json, cJSON *object, const char *name, bool value);
/* Any bytes: see kvf_json_utf8. */
void json_text(struct json *json, cJSON *object, const char *name, const char *text);
cJSON *json_object(struct json *json, cJSON *object, const char *name);
cJSON *json_array(struct json *json, cJSON *object, const char *name);

/* Elements of an array: a new object, a text. */
cJSON *json_element(struct json *json, cJSON *array);
void json_line(struct json *json, cJSON *array, const char *text);

/* A malloc'ed copy that is UTF-8: paths may hold any bytes, JSON and Prometheus may not. Bytes that are no text become
 * '?'. NULL when memory is out. */
char *kvf_json_utf8(const char *text);

#endif
