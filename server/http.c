/* Parts: asking (the second thread), visitors and answering (libmicrohttpd's thread), start and
 * stop.
 *
 * A request that needs the Manager is suspended and put on a list; the asking thread takes all that
 * wait for one question, asks once, stores the answer in each and resumes them. */
#include "server/http.h"

#include "base/address.h"
#include "base/list.h"
#include "base/thread.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_S 10U
#define BODY_MOST 4096 /* of a request: nothing here wants one */
#define BACKLOG 128
#define LEAVING_MOST                                                                               \
    16 /* connections that are shut down, but not gone yet; libmicrohttpd accepts ten at a time */

enum question { ASK_READY = 0, ASK_METRICS, ASK_OVERVIEW, ASK_COUNT };

enum page {
    PAGE_METRICS = 0,
    PAGE_HEALTHZ,
    PAGE_READYZ,
    PAGE_OVERVIEW,
    PAGE_STATUS,
    PAGE_NONE, /* 404 */
};

enum request_state {
    REQUEST_NEW = 0,  /* its head is read, its body (if any) is being thrown away */
    REQUEST_WAITING,  /* suspended, on the list of its question */
    REQUEST_ANSWERED, /* resumed; the answer is in it */
};

/* One request, from its head to libmicrohttpd's word that it is over. */
struct request {
    struct request *next; /* on the list of its question; under http->lock */
    struct MHD_Connection *connection;
    enum page page;
    enum request_state state; /* serving thread, but while WAITING the asking thread */
    size_t body_bytes;
    bool ready;
    char *answer; /* malloc'ed or NULL */
};

/* One connection, from the first to the last that libmicrohttpd says of it. */
struct visitor {
    struct kvf_list node; /* oldest first; alone once it has been asked to go */
    int fd;
};

struct kvf_http {
    const struct kvf_http_source *source;
    struct MHD_Daemon *daemon;
    int port;
    struct kvf_list visitors; /* serving thread */
    unsigned visitor_count;
    pthread_t asker;
    pthread_mutex_t lock; /* waiting, stopping */
    pthread_cond_t wake;
    struct request *waiting[ASK_COUNT];
    bool stopping;
};

/* ---- asking ---- */

static void answer_all(struct request *list, bool ready, const char *text)
{
    while (list != NULL) {
        struct request *request = list;
        list = request->next;
        request->ready = ready;
        request->answer = text != NULL ? strdup(text) : NULL;
        request->state = REQUEST_ANSWERED;
        MHD_resume_connection(request->connection); /* request belongs to the other thread now */
    }
}

static void ask(struct kvf_http *http, enum question question, struct request *list)
{
    const struct kvf_http_source *source = http->source;
    char line[512] = "";
    char *text;
    switch (question) {
    case ASK_READY: {
        bool ready = source->ready(source->context, line, sizeof(line));
        answer_all(list, ready, line);
        return;
    }
    case ASK_METRICS:
        text = source->metrics(source->context);
        answer_all(list, text != NULL, text);
        free(text);
        return;
    case ASK_OVERVIEW:
        text = source->overview(source->context);
        answer_all(list, text != NULL, text);
        free(text);
        return;
    case ASK_COUNT:
        return;
    }
}

static void *asking(void *argument)
{
    struct kvf_http *http = argument;
    pthread_mutex_lock(&http->lock);
    for (;;) {
        bool idle = true;
        for (unsigned question = 0; question < ASK_COUNT; question++) {
            struct request *list = http->waiting[question];
            http->waiting[question] = NULL;
            if (list == NULL)
                continue;
            idle = false;
            bool stopping = http->stopping;
            pthread_mutex_unlock(&http->lock);
            if (stopping)
                answer_all(list, false, NULL);
            else
                ask(http, (enum question)question, list);
            pthread_mutex_lock(&http->lock);
        }
        if (idle && http->stopping)
            break;
        if (idle)
            pthread_cond_wait(&http->wake, &http->lock);
    }
    pthread_mutex_unlock(&http->lock);
    return NULL;
}

/* Suspend the request until its question is answered. False: too late, the daemon stops. */
static bool wait_for(struct kvf_http *http, struct request *request, enum question question)
{
    pthread_mutex_lock(&http->lock);
    bool accepted = !http->stopping;
    if (accepted) {
        MHD_suspend_connection(request->connection); /* before the asker can see and resume it */
        request->state = REQUEST_WAITING;
        request->next = http->waiting[question];
        http->waiting[question] = request;
        pthread_cond_signal(&http->wake);
    }
    pthread_mutex_unlock(&http->lock);
    return accepted;
}

/* ---- visitors ---- */

/* One more than there is room for: the one that is here longest goes, so that connections which are kept open and never
 * ask (or never finish asking) cannot keep out those that do. libmicrohttpd closes it at the end of file. */
static void make_room(struct kvf_http *http)
{
    if (http->visitor_count <= KVF_HTTP_CONNECTIONS)
        return;
    struct visitor *oldest =
        kvf_container(kvf_list_pop_front(&http->visitors), struct visitor, node);
    http->visitor_count--;
    (void)shutdown(oldest->fd, SHUT_RDWR);
}

static void come_or_gone(void *context, struct MHD_Connection *connection, void **slot,
                         enum MHD_ConnectionNotificationCode code)
{
    struct kvf_http *http = context;
    struct visitor *visitor = *slot;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        visitor = calloc(1, sizeof(*visitor));
        *slot = visitor;
        if (visitor == NULL)
            return; /* it is served, and never asked to go */
        visitor->fd =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        kvf_list_push_back(&http->visitors, &visitor->node);
        http->visitor_count++;
        make_room(http);
    } else if (visitor != NULL) {
        bool stayed = !kvf_list_is_empty(&visitor->node);
        kvf_list_remove(&visitor->node);
        http->visitor_count -= stayed;
        free(visitor);
    }
}

/* ---- answering ---- */

#define TYPE_TEXT "text/plain; charset=utf-8"
#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"
#define TYPE_HTML "text/html; charset=utf-8"
#define TYPE_JSON "application/json"

/* Takes body (malloc'ed; NULL counts as out of memory). */
static enum MHD_Result respond(struct MHD_Connection *connection, unsigned code, const char *type,
                               char *body)
{
    if (body == NULL)
        return MHD_NO;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(body), body, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(body);
        return MHD_NO;
    }
    enum MHD_Result result = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (result == MHD_YES)
        result = MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    /* No page of another site reads or frames us, and ours fetches from nowhere else. */
    if (result == MHD_YES)
        result = MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (result == MHD_YES)
        result = MHD_add_response_header(
            response, "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'");
    if (result == MHD_YES && code == MHD_HTTP_METHOD_NOT_ALLOWED)
        result = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    if (result == MHD_YES)
        result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result respond_line(struct MHD_Connection *connection, unsigned code,
                                    const char *line)
{
    return respond(connection, code, TYPE_TEXT, strdup(line));
}

static enum MHD_Result respond_answered(struct request *request)
{
    char *body = request->answer;
    if (body == NULL)
        return respond_line(request->connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no answer");
    request->answer = NULL;
    if (request->page == PAGE_READYZ)
        return respond(request->connection,
                       request->ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, TYPE_TEXT,
                       body);
    return respond(request->connection, MHD_HTTP_OK,
                   request->page == PAGE_METRICS ? TYPE_METRICS : TYPE_JSON, body);
}

static enum page page_of(const char *url)
{
    static const char *const paths[PAGE_NONE] = {
        [PAGE_METRICS] = "/metrics",      [PAGE_HEALTHZ] = "/healthz", [PAGE_READYZ] = "/readyz",
        [PAGE_OVERVIEW] = "/status.json", [PAGE_STATUS] = "/",
    };
    int page = 0;
    while (page < PAGE_NONE && strcmp(paths[page], url) != 0)
        page++;
    return (enum page)page;
}

/* The head and the body are in: answer, or wait for the Manager's answer. */
static enum MHD_Result respond_new(struct kvf_http *http, struct request *request,
                                   const char *method)
{
    enum question question = ASK_COUNT;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return respond_line(request->connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                            "this page is read-only: GET or HEAD");
    switch (request->page) {
    case PAGE_NONE:
        return respond_line(request->connection, MHD_HTTP_NOT_FOUND,
                            "nothing here: see /, /metrics, /healthz, /readyz");
    case PAGE_HEALTHZ:
        return respond_line(request->connection, MHD_HTTP_OK, "ok");
    case PAGE_STATUS:
        return respond(request->connection, MHD_HTTP_OK, TYPE_HTML, strdup(http->source->page));
    case PAGE_READYZ:
        question = ASK_READY;
        break;
    case PAGE_METRICS:
        question = ASK_METRICS;
        break;
    case PAGE_OVERVIEW:
        question = ASK_OVERVIEW;
        break;
    }
    if (wait_for(http, request, question))
        return MHD_YES;
    return respond_line(request->connection, MHD_HTTP_SERVICE_UNAVAILABLE, "stopping");
}

/* libmicrohttpd calls it for the head, for each part of the body, at its end, and after a resume.
 */
static enum MHD_Result serve(void *context, struct MHD_Connection *connection, const char *url,
                             const char *method, const char *version, const char *upload,
                             size_t *upload_bytes, void **slot)
{
    struct kvf_http *http = context;
    struct request *request = *slot;
    (void)version;
    (void)upload;
    if (request == NULL) {
        request = calloc(1, sizeof(*request));
        if (request == NULL)
            return MHD_NO;
        request->connection = connection;
        request->page = page_of(url);
        *slot = request;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        request->body_bytes += *upload_bytes;
        *upload_bytes = 0;
        return request->body_bytes <= BODY_MOST ? MHD_YES : MHD_NO; /* NO closes it */
    }
    switch (request->state) {
    case REQUEST_NEW:
        return respond_new(http, request, method);
    case REQUEST_ANSWERED:
        return respond_answered(request);
    case REQUEST_WAITING:
        break; /* a suspended connection is not called */
    }
    return MHD_NO;
}

static void completed(void *context, struct MHD_Connection *connection, void **slot,
                      enum MHD_RequestTerminationCode code)
{
    struct request *request = *slot;
    (void)context;
    (void)connection;
    (void)code;
    if (request != NULL)
        free(request->answer);
    free(request);
    *slot = NULL;
}

/* ---- start and stop ---- */

static struct kvf_status failed(enum kvf_code code, int detail)
{
    return kvf_fail(KVF_MODULE_SERVER, code, detail);
}

static struct kvf_status open_socket(const char *text, int *give, struct kvf_why *why)
{
    struct kvf_address address;
    if (!kvf_address_parse(text, &address))
        return kvf_why_set(why, failed(KVF_INVALID, 0), "--http %.80s is no HOST:PORT", text);
    struct addrinfo *found = NULL;
    int error = kvf_address_resolve(&address, true, &found);
    if (error != 0)
        return kvf_why_set(why, failed(KVF_INVALID, 0),
                           "--http %.80s names no address (%s): give one of this host", text,
                           gai_strerror(error));
    int fd = -1;
    error = 0;
    /* The first that can be had; a taken one ends the search, lest another daemon's port go
     * unnoticed. */
    for (struct addrinfo *at = found; at != NULL && fd < 0 && error != EADDRINUSE;
         at = at->ai_next) {
        fd = kvf_address_listen(at->ai_addr, at->ai_addrlen, BACKLOG);
        error = errno;
    }
    freeaddrinfo(found);
    if (fd < 0 && error == EADDRINUSE)
        return kvf_why_set(why, failed(KVF_UNAVAILABLE, error),
                           "--http %.80s is taken by another process: stop it or choose another "
                           "port",
                           text);
    if (fd < 0)
        return kvf_why_set(why, failed(KVF_UNAVAILABLE, error),
                           "--http %.80s cannot be listened on (%s): give an address of this host",
                           text, strerror(error));
    *give = fd;
    return kvf_ok();
}

/* Both threads, with every signal blocked: signals are the main thread's. Takes fd. */
static bool start_threads(struct kvf_http *http, int fd)
{
    const unsigned flags =
        MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    sigset_t before;
    kvf_thread_deafen(&before);
    bool asker = kvf_thread_start(&http->asker, "kvf-http", asking, http) == 0;
    if (asker)
        http->daemon = MHD_start_daemon(
            flags, 0, NULL, NULL, serve, http, MHD_OPTION_LISTEN_SOCKET, fd,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)KVF_HTTP_CONNECTIONS + LEAVING_MOST,
            MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_NOTIFY_CONNECTION, come_or_gone, http,
            MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
    else
        (void)close(fd);
    kvf_thread_hear_again(&before);
    if (asker && http->daemon == NULL) { /* the socket went with it */
        pthread_mutex_lock(&http->lock);
        http->stopping = true;
        pthread_cond_signal(&http->wake);
        pthread_mutex_unlock(&http->lock);
        (void)pthread_join(http->asker, NULL);
    }
    return http->daemon != NULL;
}

struct kvf_status kvf_http_start(const char *address, const struct kvf_http_source *source,
                                 struct kvf_http **give, struct kvf_why *why)
{
    int fd = -1;
    KVF_TRY(open_socket(address, &fd, why));
    struct kvf_http *http = calloc(1, sizeof(*http));
    if (http == NULL) {
        (void)close(fd);
        return kvf_why_set(why, failed(KVF_NO_MEMORY, ENOMEM), "no memory for --http");
    }
    http->source = source;
    kvf_list_init(&http->visitors);
    http->port = kvf_address_bound_port(fd);
    (void)pthread_mutex_init(&http->lock, NULL);
    (void)pthread_cond_init(&http->wake, NULL);
    if (!start_threads(http, fd)) {
        (void)pthread_cond_destroy(&http->wake);
        (void)pthread_mutex_destroy(&http->lock);
        free(http);
        return kvf_why_set(why, failed(KVF_NO_MEMORY, 0),
                           "--http %.80s: no threads or memory to serve it: raise the limits",
                           address);
    }
    *give = http;
    return kvf_ok();
}

int kvf_http_port(const struct kvf_http *http)
{
    return http->port;
}

void kvf_http_stop(struct kvf_http *http)
{
    if (http == NULL)
        return;
    pthread_mutex_lock(&http->lock);
    http->stopping = true; /* from here on nothing is suspended any more */
    pthread_cond_signal(&http->wake);
    pthread_mutex_unlock(&http->lock);
    (void)pthread_join(http->asker, NULL); /* it has resumed all that were */
    MHD_stop_daemon(http->daemon);
    (void)pthread_cond_destroy(&http->wake);
    (void)pthread_mutex_destroy(&http->lock);
    free(http);
}
