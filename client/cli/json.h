/* JSON out: what cJSON does not do. */
#ifndef KVFERRY_CLIENT_CLI_JSON_H
#define KVFERRY_CLIENT_CLI_JSON_H

#include "client/cli/words.h"

#include <cjson/cJSON.h>

#include <stdint.h>

/* A whole number with every digit: cJSON's own are doubles, exact only to 2^53. */
void json_add_number(cJSON *object, const char *name, uint64_t value);
/* A measured value with the six digits that mean something. Finite values only. */
void json_add_decimal(cJSON *object, const char *name, double value);
/* The object as malloc'ed text with a newline at its end; deletes it. NULL: no memory. */
char *json_text(cJSON *object);
/* Print it on stdout; deletes it. FAILED when memory or stdout is out. */
enum words_exit json_print(cJSON *object);

#endif
