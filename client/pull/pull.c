/* pull: the calls of the user, and the deadline. */
#include "client/pull/pull.h"

#include "base/clock.h"
#include "client/pull/read.h"
#include "client/pull/results.h"
#include "client/pull/session.h"
#include "client/pull/source.h"
#include "proto/peer.h"

#include <inttypes.h>
#include <stdio.h>

static void expire(struct kvf_pull *pull)
{
    struct session *session = pull->source->session;
    if (session != NULL)
        kvf_list_for_each_safe (node, &session->reads) {
            struct pull_read *read = kvf_container(node, struct pull_read, node);
            if (read->pull == pull)
                read_expire(read);
        }
    for (uint32_t i = 0; i < pull->block_count; i++)
        if (pull->blocks[i].postponed)
            results_end(pull, i, pull_fail(KVF_PENDING));
    results_end_waiting(pull, pull_fail(KVF_DEADLINE));
}

static void pull_timer(struct kvf_timer *timer)
{
    struct kvf_pull *pull = kvf_container(timer, struct kvf_pull, timer);
    struct kvf_source *source = pull->source;
    if (timer->deadline_ns >= pull->deadline_ns) {
        expire(pull);
    } else {
        results_resume(pull);
        source_place_pull(pull);
        kvf_timer_start(source->options.loop, &pull->timer, pull->deadline_ns);
    }
    source_settle(source);
}

void kvf_pull_start(struct kvf_source *source, struct kvf_pull *pull)
{
    kvf_assert(pull->batches_in_flight > 0 && (pull->block_count == 0 || pull->blocks != NULL));
    results_init(pull, source);
    source->pull_count++;
    kvf_list_push_back(&source->others, &pull->node);
    pull->timer.fire = pull_timer;
    kvf_timer_start(source->options.loop, &pull->timer, pull->deadline_ns);

    struct session *session = source->session;
    struct kvf_status may = session == NULL || source->closing ? source_may_try(source) : kvf_ok();
    if (session != NULL && session->draining)
        may = pull_fail(KVF_DRAINING);
    if (!kvf_is_ok(may) || pull->block_count == 0) {
        results_end_waiting(pull, may);
    } else {
        source_place_pull(pull);
        if (session == NULL)
            source_connect(source);
        else
            session_pump(session);
    }
    if (!kvf_list_is_empty(&source->delivering))
        source_settle_soon(source);
}

void pull_take_back(struct kvf_pull *pull)
{
    struct session *session = pull->source->session;
    if (pull->cancelled)
        return;
    pull->cancelled = true;
    if (session != NULL)
        kvf_list_for_each_safe (node, &session->reads) {
            struct pull_read *read = kvf_container(node, struct pull_read, node);
            if (read->pull == pull)
                read_give_up(read, pull_fail(KVF_CANCELLED));
        }
    results_end_waiting(pull, pull_fail(KVF_CANCELLED));
}

void kvf_pull_cancel(struct kvf_pull *pull)
{
    pull_take_back(pull);
    source_place_pull(pull);
    source_settle_soon(pull->source);
}

void kvf_pull_refusal_text(const struct kvf_pull_refusal *refusal, char *text, size_t room)
{
    int length = snprintf(text, room, "%s after %.1f s", kvf_code_name(refusal->status.code),
                          (double)refusal->waited_ns / KVF_NS_PER_S);
    if (refusal->short_of == KVF_SHORT_OF_NOTHING || length < 0 || (size_t)length >= room)
        return;
    text += length;
    room -= (size_t)length;
    if (refusal->short_bytes > 0)
        (void)snprintf(text, room, ", %" PRIu64 " bytes short of %s", refusal->short_bytes,
                       kvf_shortage_text(refusal->short_of));
    else
        (void)snprintf(text, room, ", short of %s", kvf_shortage_text(refusal->short_of));
}

void kvf_pull_raise(struct kvf_pull *pull)
{
    struct session *session = pull->source->session;
    if (pull->raised || !pull->source->options.speculative)
        return;
    pull->raised = true;
    if (session == NULL)
        return;
    kvf_list_for_each (node, &session->reads) {
        struct pull_read *read = kvf_container(node, struct pull_read, node);
        if (read->pull == pull)
            read_raise(read);
    }
}
