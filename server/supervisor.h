/* What the daemon tells whoever started it, when that is systemd (Type=notify) or speaks its protocol: a line of text to
 * the socket that $NOTIFY_SOCKET names. Without that variable nothing is said. What cannot be told is lost: a supervisor
 * that does not listen must not hold up the daemon.
 *
 * Any thread. */
#ifndef KVFERRY_SERVER_SUPERVISOR_H
#define KVFERRY_SERVER_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

/* Everything is served. status: one line for people. True: somebody was told. */
bool kvf_supervisor_ready(const char *status);
/* We end by ourselves, within most_s seconds: wait as long, whatever was configured there. */
bool kvf_supervisor_stopping(const char *reason, uint64_t most_s);

#endif
