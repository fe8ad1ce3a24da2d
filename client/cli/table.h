/* A stat as a table for people: whatever keys the daemon sends, in its order. */
#ifndef KVFERRY_CLIENT_CLI_TABLE_H
#define KVFERRY_CLIENT_CLI_TABLE_H

#include <cjson/cJSON.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One line a member: `pull  reads 3, blocks 24, bytes 226492416 (216.0 MiB)`; an array of objects one line each. What
 * is longer than 100 columns goes on below. Control bytes in texts become '?'. */
void table_print(FILE *out, const cJSON *object);

/* "216.0 MiB"; room for it is 24. */
void table_bytes_text(double bytes, char text[24]);

#endif
