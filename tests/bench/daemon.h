/* daemon: what the rows over a real kvferryd share: its engine's door and its command. Dies when anything fails. */
#ifndef KVFERRY_TESTS_BENCH_DAEMON_H
#define KVFERRY_TESTS_BENCH_DAEMON_H

#include "client/kvferry.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#define DAEMON_TIMEOUT_MS 30000u

/* The environment's word; dies without one. */
const char *bench_setting(const char *name);
/* Run $KVFERRY --run-dir DIR COMMAND OPTION (may be NULL). */
void daemon_command(const char *run_dir, const char *command, const char *option);
/* What `stat --json` says of this member of its first drive. */
uint64_t daemon_drive_stat(const char *run_dir, const char *member);
/* False: there is no daemon yet. */
bool daemon_try_client(const char *run_dir, struct kvf_client **give);
void daemon_client(const char *run_dir, struct kvf_client **give);
/* Put one block of bench_fill(its number), key = its number; what is there already stays. */
void daemon_put(struct kvf_client *client, const char *ns, uint64_t number, uint64_t bytes);
void daemon_key(struct kvf_key *key, uint64_t number);

#endif
