#include "server/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length of the whole UTF-8 sequence at text, 0 when there is none. Overlong ones, surrogates and
 * what lies above U+10FFFF are none. */
static size_t utf8_length(const unsigned char *text)
{
    const unsigned char first = text[0];
    size_t length = first < 0x80   ? 1
                    : first < 0xc2 ? 0
                    : first < 0xe0 ? 2
                    : first < 0xf0 ? 3
                    : first < 0xf5 ? 4
                                   : 0;
    for (size_t at = 1; at < length; at++)
        if ((text[at] & 0xc0) != 0x80)
            return 0;
    if ((first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] > 0x9f) ||
        (first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f))
        return 0;
    return length;
}

char *kvf_json_utf8(const char *text)
{
    char *copy = strdup(text);
    for (char *at = copy; at != NULL && *at != '\0';) {
        size_t length = utf8_length((const unsigned char *)at);
        if (length == 0)
            *at = '?';
        at += length > 0 ? length : 1;
    }
    return copy;
}

/* cJSON keeps numbers as doubles, exact only to 2^53: hand it the digits. */
void json_number(struct json *json, cJSON *object, const char *name, uint64_t value)
{
    char digits[24];
    (void)snprintf(digits, sizeof(digits), "%" PRIu64, value);
    json->ok = cJSON_AddRawToObject(object, name, digits) != NULL && json->ok;
}

void json_flag(struct json *json, cJSON *object, const char *name, bool value)
{
    json->ok = cJSON_AddBoolToObject(object, name, value) != NULL && json->ok;
}

void json_text(struct json *json, cJSON *object, const char *name, const char *text)
{
    char *copy = kvf_json_utf8(text);
    json->ok = copy != NULL && cJSON_AddStringToObject(object, name, copy) != NULL && json->ok;
    free(copy);
}

cJSON *json_object(struct json *json, cJSON *object, const char *name)
{
    cJSON *child = cJSON_AddObjectToObject(object, name);
    json->ok = child != NULL && json->ok;
    return child;
}

cJSON *json_array(struct json *json, cJSON *object, const char *name)
{
    cJSON *child = cJSON_AddArrayToObject(object, name);
    json->ok = child != NULL && json->ok;
    return child;
}

/* Takes the item, NULL as well. */
static cJSON *append(struct json *json, cJSON *array, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToArray(array, item))
        return item;
    cJSON_Delete(item);
    json->ok = false;
    return NULL;
}

cJSON *json_element(struct json *json, cJSON *array)
{
    return append(json, array, cJSON_CreateObject());
}

void json_line(struct json *json, cJSON *array, const char *text)
{
    char *copy = kvf_json_utf8(text);
    (void)append(json, array, copy != NULL ? cJSON_CreateString(copy) : NULL);
    free(copy);
}
