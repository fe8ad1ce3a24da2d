/* The read-only port of a daemon: /metrics, /healthz, /readyz, and a status page at / that shows /status.json, over plain
 * HTTP.
 *
 * Threads: one of libmicrohttpd serves all connections and answers /healthz and / by itself; what the
 * Manager must say is asked on a second thread, so that a Manager that is slow or stuck costs
 * nobody but those who wait for it, and never makes the daemon look dead. Requests that wait for
 * the same answer share it. Idle, both threads sleep.
 *
 * Bounds: KVF_HTTP_CONNECTIONS at a time, when one more comes the oldest goes; a connection that is
 * silent for 10 s is closed. */
#ifndef KVFERRY_SERVER_HTTP_H
#define KVFERRY_SERVER_HTTP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct kvf_http;

#define KVF_HTTP_CONNECTIONS 64

/* Where the answers come from. `ready`, `metrics` and `overview` run on the asking thread, one at a time; they
 * may wait for the Manager, but must come back within a bound of their own (about a second): it is
 * also how long a stop may take. */
struct kvf_http_source {
    void *context;
    /* True: /readyz is 200, else 503. Writes one line of text, terminated, at most `room` bytes. */
    bool (*ready)(void *context, char *body, size_t room);
    /* Prometheus text, malloc'ed, taken. NULL, when the Manager does not answer or memory is out:
     * 503. */
    char *(*metrics)(void *context);
    /* JSON for the page, likewise. */
    char *(*overview)(void *context);
    const char *page; /* HTML */
};

/* Listen on "HOST:PORT" (port 0: any) and serve. source is borrowed until the stop. Both threads
 * run with every signal blocked. INVALID: no such address; UNAVAILABLE: taken, or not an address of
 * this host; *why says what to do. */
KVF_MUST_USE struct kvf_status kvf_http_start(const char *address,
                                              const struct kvf_http_source *source,
                                              struct kvf_http **give, struct kvf_why *why);
int kvf_http_port(const struct kvf_http *http);
/* Close every connection and join both threads. Waits for a source callback that is running. NULL
 * is fine. */
void kvf_http_stop(struct kvf_http *http);

#endif
