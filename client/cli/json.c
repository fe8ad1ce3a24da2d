#include "client/cli/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_add_number(cJSON *object, const char *name, uint64_t value)
{
    char digits[24];
    (void)snprintf(digits, sizeof(digits), "%" PRIu64, value);
    (void)cJSON_AddRawToObject(object, name, digits);
}

void json_add_decimal(cJSON *object, const char *name, double value)
{
    char digits[40];
    (void)snprintf(digits, sizeof(digits), "%.6g", value);
    (void)cJSON_AddRawToObject(object, name, digits);
}

char *json_text(cJSON *object)
{
    char *text = cJSON_Print(object);
    cJSON_Delete(object);
    size_t length = text == NULL ? 0 : strlen(text);
    char *line = text == NULL ? NULL : realloc(text, length + 2);
    if (line == NULL) {
        free(text);
        return NULL;
    }
    memcpy(line + length, "\n", 2);
    return line;
}

enum words_exit json_print(cJSON *object)
{
    char *text = json_text(object);
    if (text == NULL)
        return words_say("json", kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0), NULL);
    bool printed = fputs(text, stdout) >= 0;
    free(text);
    return printed ? WORDS_EXIT_OK : WORDS_EXIT_FAILED;
}
