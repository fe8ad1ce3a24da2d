/* kvferryd --verify: every record of the SSD paths against its checksum, without a daemon. Says on
 * `report` what was found and on `progress` how far it is and what is damaged. */
#ifndef KVFERRY_SERVER_VERIFY_H
#define KVFERRY_SERVER_VERIFY_H

#include "server/config.h"

#include <stdio.h>

/* The exit status: 0 clean, 1 it could not be checked, 2 there is nothing to check, 5 damaged. */
int kvf_verify_run(const struct kvf_config_list *paths, FILE *report, FILE *progress);

#endif
