/* source, in four parts: settling, what is known of the other side, connecting, life. */
#include "client/pull/source.h"

#include "base/clock.h"
#include "client/pull/read.h"
#include "client/pull/results.h"
#include "client/pull/session.h"

#include <stdlib.h>
#include <string.h>

#define BACKOFF_MIN_NS (100 * KVF_NS_PER_MS)
#define BACKOFF_MAX_NS (2 * KVF_NS_PER_S)

/* ---- settling ---- */

static void end_all_waiting(struct kvf_source *source, struct kvf_status status)
{
    while (!kvf_list_is_empty(&source->ready)) {
        struct kvf_pull *pull = kvf_container(source->ready.next, struct kvf_pull, node);
        kvf_list_remove(&pull->node);
        kvf_list_push_back(&source->others, &pull->node);
        results_end_waiting(pull, status);
    }
}

static bool is_over(const struct kvf_source *source)
{
    return source->closing && source->session == NULL && kvf_source_is_idle(source);
}

/* Blocks that were postponed outlived their session. */
static void reconnect(struct kvf_source *source)
{
    struct kvf_status may = source_may_try(source);
    if (kvf_is_ok(may))
        source_connect(source);
    else
        end_all_waiting(source, may);
}

static void work(struct kvf_source *source)
{
    struct session *session = source->session;
    if (session != NULL && session->draining) {
        session_drain(session);
        end_all_waiting(source, pull_fail(KVF_DRAINING));
    }
    if (session != NULL && (session->draining || source->closing) && session->open_reads == 0)
        session_leave(session);
    if (session != NULL)
        session_pump(session);
    else if (!kvf_list_is_empty(&source->ready))
        reconnect(source);
    results_deliver(source);
    if (source->session != NULL)
        reads_release(source->session);
    if (source->tell_draining) {
        source->tell_draining = false;
        if (source->options.draining != NULL)
            source->options.draining(source->options.context, source);
    }
}

void source_settle(struct kvf_source *source)
{
    work(source);
    if (is_over(source))
        source_settle_soon(source);
}

void source_settle_soon(struct kvf_source *source)
{
    if (source->posted)
        return;
    source->posted = true;
    kvf_loop_post(source->options.loop, &source->post);
}

static void destroy(struct kvf_source *source)
{
    reads_free(source);
    kvf_rpc_channel_close(source->lookup_channel);
    wire_fini(&source->wire);
    free(source->address);
    free(source->tenant);
    free(source);
}

static void run_post(struct kvf_post *post)
{
    struct kvf_source *source = kvf_container(post, struct kvf_source, post);
    source->posted = false;
    lookups_tell_failed(source);
    work(source);
    if (!is_over(source) || source->posted)
        return;
    void (*closed)(void *context) = source->closed;
    void *context = source->closed_context;
    destroy(source);
    if (closed != NULL)
        closed(context);
}

void source_place_pull(struct kvf_pull *pull)
{
    struct kvf_source *source = pull->source;
    bool ready =
        pull->askable_blocks > 0 && pull->reads_open < pull->batches_in_flight && !pull->cancelled;
    kvf_list_remove(&pull->node);
    kvf_list_push_back(ready ? &source->ready : &source->others, &pull->node);
}

void source_forget_pull(struct kvf_pull *pull)
{
    kvf_list_remove(&pull->node);
    kvf_list_remove(&pull->deliver_node);
    pull->source->pull_count--;
}

/* ---- what is known of the other side ---- */

void source_back_off(struct kvf_source *source, struct kvf_status why)
{
    uint64_t backoff_ns = 2 * source->backoff_ns;
    if (backoff_ns < BACKOFF_MIN_NS)
        backoff_ns = BACKOFF_MIN_NS;
    if (backoff_ns > BACKOFF_MAX_NS)
        backoff_ns = BACKOFF_MAX_NS;
    source->backoff_ns = backoff_ns;
    source->next_attempt_ns = kvf_clock_now_ns() + backoff_ns;
    bool telling = why.code == KVF_BUSY || why.code == KVF_DRAINING || why.code == KVF_DENIED;
    source->backoff_why = telling ? why : pull_fail(KVF_UNAVAILABLE);
}

void source_answered(struct kvf_source *source)
{
    if (source->draining)
        return;
    source->backoff_ns = 0;
    source->next_attempt_ns = 0;
}

struct kvf_status source_may_try(const struct kvf_source *source)
{
    if (source->closing)
        return pull_fail(KVF_CANCELLED);
    if (source->next_attempt_ns > kvf_clock_now_ns())
        return source->backoff_why;
    return kvf_ok();
}

bool source_may_serve(const struct kvf_source *source, const struct kvf_rpc_call *call)
{
    return source->options.may_serve == NULL ||
           source->options.may_serve(source->options.context, source->tenant,
                                     kvf_rpc_call_identity(call));
}

void kvf_source_rights_changed(struct kvf_source *source)
{
    struct session *session = source->session;
    source->lookup_known = false;
    if (session == NULL || session->call == NULL ||
        (session->state != SESSION_JOINING && session->state != SESSION_OPEN) ||
        source_may_serve(source, session->call))
        return;
    session_end(session, pull_fail(KVF_DENIED));
    source_settle_soon(source);
}

void source_drains(struct kvf_source *source)
{
    if (source->session != NULL && !source->session->draining) {
        source->session->draining = true;
        source_back_off(source, pull_fail(KVF_DRAINING));
    }
    if (source->draining)
        return;
    source->draining = true;
    source->tell_draining = true;
}

void source_is_open(struct kvf_source *source, uint64_t boot_epoch)
{
    source->draining = false;
    if (source->boot_epoch != 0 && source->boot_epoch != boot_epoch)
        source->tell_draining = true;
    source->boot_epoch = boot_epoch;
}

/* ---- connecting ---- */

void source_connect(struct kvf_source *source)
{
    struct kvf_status status = session_start(source);
    if (kvf_is_ok(status))
        return;
    source_back_off(source, status);
    end_all_waiting(source, source->backoff_why);
}

void source_session_gone(struct kvf_source *source, bool again, struct kvf_status why)
{
    if (kvf_list_is_empty(&source->ready))
        return;
    if (source->closing)
        end_all_waiting(source, pull_fail(KVF_CANCELLED));
    else if (!again)
        end_all_waiting(source, kvf_is_ok(why) ? pull_fail(KVF_UNAVAILABLE) : source->backoff_why);
    else
        source_connect(source); /* once more for what it did not finish */
}

/* ---- life ---- */

struct kvf_status kvf_source_create(const struct kvf_source_options *options,
                                    struct kvf_source **give)
{
    struct kvf_source *source = calloc(1, sizeof(*source));
    if (source == NULL)
        return pull_fail(KVF_NO_MEMORY);
    source->options = *options;
    kvf_list_init(&source->ready);
    kvf_list_init(&source->others);
    kvf_list_init(&source->delivering);
    kvf_list_init(&source->free_reads);
    kvf_list_init(&source->resting_reads);
    kvf_list_init(&source->lookups);
    kvf_list_init(&source->failed_lookups);
    source->post.run = run_post;
    source->address = strdup(options->address);
    source->tenant = strdup(options->tenant);
    if (source->address == NULL || source->tenant == NULL)
        goto free_strings;
    if (!kvf_is_ok(wire_init(&source->wire)))
        goto free_strings;
    source->options.address = source->address;
    source->options.tenant = source->tenant;
    *give = source;
    return kvf_ok();

free_strings:
    free(source->address);
    free(source->tenant);
    free(source);
    return pull_fail(KVF_NO_MEMORY);
}

static void cancel_list(struct kvf_list *pulls)
{
    kvf_list_for_each_safe (node, pulls)
        pull_take_back(kvf_container(node, struct kvf_pull, node));
}

void kvf_source_close(struct kvf_source *source, void (*closed)(void *context), void *context)
{
    kvf_assert(!source->closing);
    source->closing = true;
    source->closed = closed;
    source->closed_context = context;
    cancel_list(&source->ready);
    cancel_list(&source->others);
    lookups_cancel(source);
    source_settle_soon(source);
}

bool kvf_source_is_idle(const struct kvf_source *source)
{
    return source->pull_count == 0 && kvf_list_is_empty(&source->lookups) &&
           kvf_list_is_empty(&source->failed_lookups);
}

uint32_t kvf_source_pulls(const struct kvf_source *source)
{
    return source->pull_count;
}

bool kvf_source_uses_device(const struct kvf_source *source)
{
    return source->last_transport == NULL ||
           kvf_transport_traits(source->last_transport)->device_count > 0;
}

bool kvf_source_is_draining(const struct kvf_source *source)
{
    return source->draining;
}
