/* libFuzzer over what `kvferry stat` prints: the JSON that a daemon, perhaps of another version, has sent. Control bytes
 * of it must not reach the terminal. */
#include "client/cli/table.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = NULL;
    size_t printed = 0;
    cJSON *object = cJSON_ParseWithLength((const char *)data, bytes);
    if (!cJSON_IsObject(object)) {
        cJSON_Delete(object);
        return 0;
    }
    FILE *out = open_memstream(&text, &printed);
    if (out == NULL)
        abort();
    table_print(out, object);
    (void)fclose(out);
    for (size_t i = 0; i < printed; i++) {
        if (((unsigned char)text[i] < 0x20 && text[i] != '\n') || text[i] == 0x7f)
            abort();
    }
    free(text);
    cJSON_Delete(object);
    return 0;
}
