#include "server/http.h"

#include "base/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS 20000 /* how long a test waits for what must come */

/* A Manager that answers at once, or only when it is let go. */
struct manager {
    atomic_bool ready;
    const char *line;
    atomic_bool silent; /* metrics: no answer */
    atomic_int asked;   /* calls of metrics that have begun */
    pthread_mutex_t gate;
};

static bool ready_of(void *context, char *body, size_t room)
{
    struct manager *manager = context;
    (void)snprintf(body, room, "%s", manager->line);
    return manager->ready;
}

static char *metrics_of(void *context)
{
    struct manager *manager = context;
    manager->asked++;
    pthread_mutex_lock(&manager->gate);
    pthread_mutex_unlock(&manager->gate);
    return manager->silent ? NULL : strdup("kvferry_pull_reads_total 0\n");
}

static char *overview_of(void *context)
{
    const struct manager *manager = context;
    return manager->silent ? NULL : strdup("{\"stat\":{}}");
}

static struct manager manager;
static struct kvf_http_source source;
static struct kvf_http *http;

static int start(void **state)
{
    struct kvf_why why;
    (void)state;
    manager = (struct manager){
        .ready = true, .line = "ok", .gate = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER};
    source = (struct kvf_http_source){.context = &manager,
                                      .ready = ready_of,
                                      .metrics = metrics_of,
                                      .overview = overview_of,
                                      .page = "<!doctype html><title>the page</title>"};
    return kvf_is_ok(kvf_http_start("127.0.0.1:0", &source, &http, &why)) ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    kvf_http_stop(http);
    http = NULL;
    return 0;
}

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)kvf_http_port(http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void say(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t wrote = send(fd, text, length, MSG_NOSIGNAL);
        assert_true(wrote > 0);
        text += wrote;
        length -= (size_t)wrote;
    }
}

struct reply {
    int code; /* -1: closed without an answer */
    char text[16384];
    const char *body;
};

/* Read until the other side closes, which every request here asks for. */
static void hear(int fd, struct reply *reply)
{
    size_t used = 0;
    for (;;) {
        struct pollfd watch = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&watch, 1, PATIENCE_MS), 1);
        ssize_t got = recv(fd, reply->text + used, sizeof(reply->text) - 1 - used, 0);
        if (got <= 0)
            break;
        used += (size_t)got;
        assert_true(used < sizeof(reply->text) - 1);
    }
    reply->text[used] = '\0';
    if (sscanf(reply->text, "HTTP/1.%*c %d", &reply->code) != 1)
        reply->code = -1;
    const char *end = strstr(reply->text, "\r\n\r\n");
    reply->body = end != NULL ? end + 4 : "";
}

static void ask_on(int fd, const char *method, const char *path, const char *more)
{
    char text[512];
    int length =
        snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s", method,
                 path, more);
    say(fd, text, (size_t)length);
}

static struct reply reply;

static const struct reply *request(const char *method, const char *path)
{
    int fd = dial();
    ask_on(fd, method, path, "\r\n");
    hear(fd, &reply);
    (void)close(fd);
    return &reply;
}

static void answers(const char *path, int code, const char *body)
{
    const struct reply *got = request("GET", path);
    assert_int_equal(got->code, code);
    assert_string_equal(got->body, body);
}

static void paths__each__has_its_answer(void **state)
{
    (void)state;
    answers("/healthz", 200, "ok");
    answers("/readyz", 200, "ok");
    answers("/metrics", 200, "kvferry_pull_reads_total 0\n");
    assert_non_null(strstr(reply.text, "Content-Type: text/plain; version=0.0.4"));
    answers("/metrics?name=x", 200, "kvferry_pull_reads_total 0\n");
    answers("/status.json", 200, "{\"stat\":{}}");
    assert_non_null(strstr(reply.text, "Content-Type: application/json"));
    answers("/", 200, source.page);
    assert_non_null(strstr(reply.text, "Content-Type: text/html"));
    assert_non_null(strstr(reply.text, "Content-Security-Policy: default-src 'none';"));
    static const char *const others[] = {"/x", "/metrics/",      "/healthz2",
                                         "//", "/../etc/passwd", "/metricS"};
    for (size_t at = 0; at < sizeof(others) / sizeof(others[0]); at++)
        assert_int_equal(request("GET", others[at])->code, 404);
}

static void readyz__what_the_source_says__is_code_and_body(void **state)
{
    (void)state;
    manager.line = "degraded: /mnt/<b> is read-only";
    answers("/readyz", 200, "degraded: /mnt/<b> is read-only");
    manager.ready = false;
    manager.line = "DRAINING";
    answers("/readyz", 503, "DRAINING");
    answers("/healthz", 200, "ok");
    answers("/", 200, source.page);
}

static void metrics__no_answer__is_503(void **state)
{
    (void)state;
    manager.silent = true;
    answers("/metrics", 503, "no answer");
    answers("/status.json", 503, "no answer");
    answers("/", 200, source.page);
    manager.silent = false;
    answers("/metrics", 200, "kvferry_pull_reads_total 0\n");
}

static void methods__other_than_get_and_head__are_405(void **state)
{
    (void)state;
    static const char *const methods[] = {"POST",  "PUT",   "DELETE", "OPTIONS",
                                          "PATCH", "TRACE", "BREW"};
    for (size_t at = 0; at < sizeof(methods) / sizeof(methods[0]); at++) {
        assert_int_equal(request(methods[at], "/metrics")->code, 405);
        assert_non_null(strstr(reply.text, "Allow: GET, HEAD"));
    }
    assert_int_equal(manager.asked, 0);
    assert_int_equal(request("HEAD", "/metrics")->code, 200);
    assert_string_equal(reply.body, "");
    assert_int_equal(request("HEAD", "/x")->code, 404);
}

static void bodies__of_requests__are_thrown_away(void **state)
{
    (void)state;
    int fd = dial();
    ask_on(fd, "POST", "/metrics", "Content-Length: 5\r\n\r\nhello");
    hear(fd, &reply);
    assert_int_equal(reply.code, 405);
    (void)close(fd);
    fd = dial();
    ask_on(fd, "GET", "/healthz", "Content-Length: 5\r\n\r\nhello");
    hear(fd, &reply);
    assert_int_equal(reply.code, 200);
    (void)close(fd);

    fd = dial(); /* a long one ends the connection */
    ask_on(fd, "POST", "/metrics", "Content-Length: 1000000000\r\n\r\n");
    char waste[4096] = "";
    ssize_t wrote = 1;
    for (int round = 0; round < 1 << 14 && wrote > 0; round++) /* 64 MiB */
        wrote = send(fd, waste, sizeof(waste), MSG_NOSIGNAL);
    assert_true(wrote < 0);
    (void)close(fd);
    answers("/healthz", 200, "ok");
}

static void garbage__on_a_connection__ends_only_that_one(void **state)
{
    (void)state;
    uint32_t random = 7;
    for (int round = 0; round < 200; round++) {
        char bytes[512];
        size_t length = 1 + (size_t)round * 2;
        for (size_t at = 0; at < length; at++) {
            random = random * 1664525 + 1013904223;
            bytes[at] = (char)(random >> 24);
        }
        int fd = dial();
        (void)send(fd, bytes, length, MSG_NOSIGNAL);
        (void)send(fd, "\r\n\r\n", 4, MSG_NOSIGNAL);
        (void)shutdown(fd, SHUT_WR);
        hear(fd, &reply);
        assert_true(reply.code == -1 || reply.code >= 400);
        (void)close(fd);
    }
    static const char *const odd[] = {
        "GET\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "GET /healthz HTTP/9.9\r\n\r\n",
        "GET /%00%ff HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"};
    for (size_t at = 0; at < sizeof(odd) / sizeof(odd[0]); at++) {
        int fd = dial();
        say(fd, odd[at], strlen(odd[at]));
        (void)shutdown(fd, SHUT_WR);
        hear(fd, &reply);
        (void)close(fd);
    }
    int fd = dial(); /* a head that never ends */
    ssize_t wrote = send(fd, "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
    for (int round = 0; round < 1 << 20 && wrote > 0; round++)
        wrote = send(fd, "X-Filler: 0123456789\r\n", 22, MSG_NOSIGNAL);
    assert_true(wrote < 0);
    (void)close(fd);
    answers("/healthz", 200, "ok");
}

static void start__taken_port__is_unavailable_and_says_so(void **state)
{
    (void)state;
    char address[32];
    struct kvf_why why;
    struct kvf_http *other = NULL;
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", kvf_http_port(http));
    assert_int_equal(kvf_http_start(address, &source, &other, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, address));
    assert_non_null(strstr(why.text, "taken"));
    assert_null(other);
    assert_int_equal(kvf_http_start("203.0.113.7:0", &source, &other, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "203.0.113.7:0"));
    assert_int_equal(kvf_http_start("nonsense", &source, &other, &why).code, KVF_INVALID);
    assert_null(other);
    kvf_http_stop(NULL);
}

static void start__again_on_the_same_port__works_at_once(void **state)
{
    (void)state;
    char address[32];
    struct kvf_why why;
    answers("/healthz", 200, "ok");
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", kvf_http_port(http));
    for (int round = 0; round < 5; round++) {
        kvf_http_stop(http);
        http = NULL;
        assert_true(kvf_is_ok(kvf_http_start(address, &source, &http, &why)));
        answers("/healthz", 200, "ok");
    }
}

static void start__ipv6__serves(void **state)
{
    (void)state;
    struct kvf_why why;
    struct kvf_http *other = NULL;
    struct kvf_status status = kvf_http_start("[::1]:0", &source, &other, &why);
    if (status.detail == EADDRNOTAVAIL || status.detail == EAFNOSUPPORT)
        skip(); /* a host without IPv6 */
    assert_true(kvf_is_ok(status));
    assert_true(kvf_http_port(other) > 0);
    kvf_http_stop(other);
}

static void connections__that_never_ask__make_room_for_those_that_do(void **state)
{
    (void)state;
    int idle[3 * KVF_HTTP_CONNECTIONS];
    const size_t count = sizeof(idle) / sizeof(idle[0]);
    for (size_t at = 0; at < count; at++) {
        idle[at] = dial();
        say(idle[at], "GET /met", at % 9);
    }
    answers("/healthz", 200, "ok");
    answers("/readyz", 200, "ok");
    /* The first has been asked to go, the last is still there. */
    char byte;
    assert_true(recv(idle[0], &byte, 1, 0) <= 0);
    assert_int_equal(recv(idle[count - 1], &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    for (size_t at = 0; at < count; at++)
        (void)close(idle[at]);
    for (int round = 0; round < 300; round++)
        answers("/readyz", 200, "ok");
}

static void clients__that_are_slow__do_not_keep_others_waiting(void **state)
{
    (void)state;
    int slow[20];
    for (size_t at = 0; at < 20; at++) {
        slow[at] = dial();
        say(slow[at], "GET /met", at % 9);
    }
    answers("/healthz", 200, "ok");
    answers("/metrics", 200, "kvferry_pull_reads_total 0\n");
    ask_on(slow[0], "GET", "/readyz", "\r\n"); /* at % 9 was 0: nothing sent so far */
    hear(slow[0], &reply);
    assert_int_equal(reply.code, 200);
    for (size_t at = 0; at < 20; at++)
        (void)close(slow[at]);
}

static void wait_until_asked(int times)
{
    for (int ms = 0; ms < PATIENCE_MS && manager.asked < times; ms++)
        (void)usleep(1000);
    assert_true(manager.asked >= times);
}

static void healthz__while_the_manager_is_stuck__answers(void **state)
{
    (void)state;
    int stuck[10];
    pthread_mutex_lock(&manager.gate);
    for (size_t at = 0; at < 10; at++) {
        stuck[at] = dial();
        ask_on(stuck[at], "GET", "/metrics", "\r\n");
        if (at == 0)
            wait_until_asked(1);
    }
    for (int round = 0; round < 10; round++)
        answers("/healthz", 200, "ok");
    assert_int_equal(request("GET", "/none")->code, 404);
    (void)close(stuck[9]); /* one gives up meanwhile */
    pthread_mutex_unlock(&manager.gate);
    for (size_t at = 0; at < 9; at++) {
        hear(stuck[at], &reply);
        assert_int_equal(reply.code, 200);
        assert_string_equal(reply.body, "kvferry_pull_reads_total 0\n");
        (void)close(stuck[at]);
    }
    answers("/metrics", 200, "kvferry_pull_reads_total 0\n");
}

static void metrics__many_at_once__share_an_answer(void **state)
{
    (void)state;
    int waiting[20];
    pthread_mutex_lock(&manager.gate);
    for (size_t at = 0; at < 20; at++) {
        waiting[at] = dial();
        ask_on(waiting[at], "GET", "/metrics", "\r\n");
        if (at == 0)
            wait_until_asked(1);
    }
    answers("/healthz", 200, "ok"); /* accepted after them, so they are suspended by now */
    pthread_mutex_unlock(&manager.gate);
    for (size_t at = 0; at < 20; at++) {
        hear(waiting[at], &reply);
        assert_int_equal(reply.code, 200);
        (void)close(waiting[at]);
    }
    assert_true(manager.asked < 20);
}

static void *stopper(void *argument)
{
    kvf_http_stop(argument);
    return NULL;
}

static void stop__with_requests_waiting__ends_all(void **state)
{
    (void)state;
    int waiting[8];
    pthread_t stopping;
    pthread_mutex_lock(&manager.gate);
    for (size_t at = 0; at < 8; at++) {
        waiting[at] = dial();
        ask_on(waiting[at], "GET", at % 2 == 0 ? "/metrics" : "/readyz", "\r\n");
        if (at == 0)
            wait_until_asked(1);
    }
    assert_int_equal(pthread_create(&stopping, NULL, stopper, http), 0);
    (void)usleep(
        20000); /* most often the stop begins while the Manager is asked; either order is legal */
    pthread_mutex_unlock(&manager.gate);
    assert_int_equal(pthread_join(stopping, NULL), 0);
    http = NULL;
    for (size_t at = 0; at < 8; at++) {
        hear(waiting[at], &reply); /* an answer or the end, but no wait */
        (void)close(waiting[at]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(paths__each__has_its_answer, start, stop),
        cmocka_unit_test_setup_teardown(readyz__what_the_source_says__is_code_and_body, start,
                                        stop),
        cmocka_unit_test_setup_teardown(metrics__no_answer__is_503, start, stop),
        cmocka_unit_test_setup_teardown(methods__other_than_get_and_head__are_405, start, stop),
        cmocka_unit_test_setup_teardown(bodies__of_requests__are_thrown_away, start, stop),
        cmocka_unit_test_setup_teardown(garbage__on_a_connection__ends_only_that_one, start, stop),
        cmocka_unit_test_setup_teardown(start__taken_port__is_unavailable_and_says_so, start, stop),
        cmocka_unit_test_setup_teardown(start__again_on_the_same_port__works_at_once, start, stop),
        cmocka_unit_test_setup_teardown(start__ipv6__serves, start, stop),
        cmocka_unit_test_setup_teardown(connections__that_never_ask__make_room_for_those_that_do,
                                        start, stop),
        cmocka_unit_test_setup_teardown(clients__that_are_slow__do_not_keep_others_waiting, start,
                                        stop),
        cmocka_unit_test_setup_teardown(healthz__while_the_manager_is_stuck__answers, start, stop),
        cmocka_unit_test_setup_teardown(metrics__many_at_once__share_an_answer, start, stop),
        cmocka_unit_test_setup_teardown(stop__with_requests_waiting__ends_all, start, stop),
    };
    return cmocka_run_group_tests_name("server/http", tests, NULL, NULL);
}
