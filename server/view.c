#include "server/view.h"

#include "base/list.h"
#include "server/http.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ANSWER_TIMEOUT_S 1
#define BODY_BYTES 256

/* A question on its way. Both sides may outlive the other's interest: the last one frees it. */
struct question {
    struct kvf_post post;
    struct kvf_view *view;
    char *(*text_of)(void *context); /* NULL: it is about readiness */
    bool answered;                   /* under the view's mutex */
    bool abandoned;                  /* likewise: the asker waits no more */
    bool ready;
    char body[BODY_BYTES];
    char *text;
};

struct kvf_view {
    struct kvf_view_source source;
    struct kvf_http_source http_source;
    struct kvf_http *http;
    pthread_mutex_t mutex; /* answered and abandoned of every question; open */
    pthread_cond_t answered;
    unsigned open; /* questions that are posted */
};

static void free_question(struct question *question)
{
    free(question->text);
    free(question);
}

/* On the loop's thread. */
static void answer(struct kvf_post *post)
{
    struct question *question = kvf_container(post, struct question, post);
    struct kvf_view *view = question->view;
    if (question->text_of != NULL)
        question->text = question->text_of(view->source.context);
    else
        question->ready =
            view->source.ready(view->source.context, question->body, sizeof(question->body));
    pthread_mutex_lock(&view->mutex);
    bool abandoned = question->abandoned;
    question->answered = true;
    view->open--;
    pthread_cond_broadcast(&view->answered);
    pthread_mutex_unlock(&view->mutex);
    if (abandoned)
        free_question(question);
}

/* On the asking thread. NULL: no answer in time. */
static struct question *ask(struct kvf_view *view, char *(*text_of)(void *context))
{
    struct question *question = calloc(1, sizeof(*question));
    struct timespec until;
    if (question == NULL)
        return NULL;
    question->post.run = answer;
    question->view = view;
    question->text_of = text_of;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ANSWER_TIMEOUT_S;
    pthread_mutex_lock(&view->mutex);
    view->open++;
    kvf_loop_post(view->source.loop, &question->post);
    int error = 0;
    while (!question->answered && error == 0)
        error = pthread_cond_timedwait(&view->answered, &view->mutex, &until);
    bool answered = question->answered;
    question->abandoned = !answered;
    pthread_mutex_unlock(&view->mutex);
    return answered ? question : NULL;
}

static bool ask_ready(void *context, char *body, size_t room)
{
    struct question *question = ask(context, NULL);
    if (question == NULL) {
        (void)snprintf(body, room, "the Manager does not answer");
        return false;
    }
    bool ready = question->ready;
    (void)snprintf(body, room, "%s", question->body);
    free_question(question);
    return ready;
}

static char *ask_text(struct kvf_view *view, char *(*text_of)(void *context))
{
    struct question *question = ask(view, text_of);
    if (question == NULL)
        return NULL;
    char *text = question->text;
    question->text = NULL;
    free_question(question);
    return text;
}

static char *ask_metrics(void *context)
{
    struct kvf_view *view = context;
    return ask_text(view, view->source.metrics);
}

static char *ask_overview(void *context)
{
    struct kvf_view *view = context;
    return ask_text(view, view->source.overview);
}

struct kvf_status kvf_view_start(const char *address, const struct kvf_view_source *source,
                                 struct kvf_view **give, struct kvf_why *why)
{
    struct kvf_view *view = calloc(1, sizeof(*view));
    if (view == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    view->source = *source;
    view->http_source = (struct kvf_http_source){.context = view,
                                                 .ready = ask_ready,
                                                 .metrics = ask_metrics,
                                                 .overview = ask_overview,
                                                 .page = source->page};
    (void)pthread_mutex_init(&view->mutex, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&view->answered, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    struct kvf_status status = kvf_http_start(address, &view->http_source, &view->http, why);
    if (!kvf_is_ok(status)) {
        kvf_view_stop(view);
        return status;
    }
    *give = view;
    return kvf_ok();
}

int kvf_view_port(const struct kvf_view *view)
{
    return kvf_http_port(view->http);
}

void kvf_view_stop(struct kvf_view *view)
{
    if (view == NULL)
        return;
    kvf_http_stop(view->http); /* a question that waits now gives up after its second */
    while (view->open > 0)     /* what was posted is answered here, on the loop's thread */
        kvf_loop_run_once(view->source.loop, 100);
    (void)pthread_cond_destroy(&view->answered);
    (void)pthread_mutex_destroy(&view->mutex);
    free(view);
}
