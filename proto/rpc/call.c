/* A call on either side.
 *
 * Three tags at most are with gRPC at a time: `send` (whatever leaves), `receive` (one message) and
 * `end` (the client's status, the server's close). `pending` counts them; when the end has come and
 * all are back, the call closes. No callback runs inside a function that the user calls, so nothing
 * is freed under the user's feet. */
#include "proto/rpc/rpc_internal.h"

#include "base/clock.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/impl/codegen/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPS_MAX 3
/* A status text travels as metadata, of which all together may have 8 KiB, escaped. */
#define TEXT_MAX_BYTES 1024
/* Lines about callers without an identity. */
#define REFUSALS_PER_SECOND 5

/* The events of a call that was never accepted. */
static const struct kvf_rpc_events nobody = {0};

/* True: the tag is back already, and its `ok` set; `done` has still to run. */
static bool start_batch(struct kvf_rpc_call *call, const grpc_op *ops, size_t count,
                        struct rpc_tag *tag)
{
    call->pending++;
    rpc_early_begin(call->rpc);
    grpc_call_error error = grpc_call_start_batch(call->call, ops, count, rpc_tag_lend(tag), NULL);
    struct rpc_tag *early = rpc_early_end(call->rpc);
    kvf_assert(error == GRPC_CALL_OK); /* anything else is a wrong sequence of ours */
    if (early == tag)
        return true;
    if (early != NULL)
        kvf_loop_post(call->rpc->loop, &early->post);
    return false;
}

/* For those whose `done` calls the user: that happens in the loop's next round, never inside the
 * user's own call. */
static void start_batch_and_post(struct kvf_rpc_call *call, const grpc_op *ops, size_t count,
                                 struct rpc_tag *tag)
{
    if (start_batch(call, ops, count, tag))
        kvf_loop_post(call->rpc->loop, &tag->post);
}

/* ---- what leaves ---- */

static void message_free(struct kvf_rpc_call *call, struct rpc_message *message)
{
    if (message == NULL)
        return;
    call->queued_bytes -= message->length;
    grpc_byte_buffer_destroy(message->buffer);
    free(message);
}

/* Nothing leaves any more. What is with gRPC stays there until its tag is back. */
static void out_over(struct kvf_rpc_call *call)
{
    call->out = RPC_OUT_OVER;
    while (call->first != NULL) {
        struct rpc_message *message = call->first;
        call->first = message->next;
        message_free(call, message);
    }
}

static grpc_op end_op(struct kvf_rpc_call *call)
{
    if (call->channel != NULL)
        return (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    return (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
                     .data.send_status_from_server = {.status = call->finish_code,
                                                      .status_details = &call->finish_text}};
}

/* Hand over as much as fits in one batch: it is one write to the socket then. True when gRPC is
 * done with it already. */
static bool hand_over(struct kvf_rpc_call *call)
{
    /* A client's call begins even if it was cancelled before: gRPC wants it so. */
    bool must_begin = call->channel != NULL && !call->initial_sent;
    if (call->sending || (call->out == RPC_OUT_OVER && !must_begin))
        return false;
    grpc_op ops[OPS_MAX];
    size_t count = 0;
    if (must_begin ||
        (!call->initial_sent && (call->first != NULL || call->out == RPC_OUT_ENDING))) {
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
        call->initial_sent = true;
    }
    if (call->first != NULL) {
        call->current = call->first;
        call->first = call->current->next;
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE,
                                 .data.send_message.send_message = call->current->buffer};
    }
    if (call->first == NULL && call->out == RPC_OUT_ENDING) {
        ops[count++] = end_op(call);
        call->out = RPC_OUT_OVER;
    }
    if (count == 0)
        return false;
    call->sending = true;
    return start_batch(call, ops, count, &call->send);
}

static void handed_over(struct kvf_rpc_call *call, bool ok)
{
    call->pending--;
    call->sending = false;
    message_free(call, call->current);
    call->current = NULL;
    if (!ok)
        out_over(call); /* the call is broken: `end` says how */
}

static void pump(struct kvf_rpc_call *call)
{
    while (hand_over(call))
        handed_over(call, call->send.ok);
}

void kvf_rpc_call_send(struct kvf_rpc_call *call, struct kvf_bytes bytes)
{
    if (call->out != RPC_OUT_OPEN)
        return;
    if (bytes.length > KVF_RPC_MAX_MESSAGE_BYTES) {
        out_over(call);
        (void)grpc_call_cancel_with_status(call->call, rpc_code_to_grpc(KVF_TOO_LARGE),
                                           "a message is longer than the limit", NULL);
        return;
    }
    struct rpc_message *message = malloc(sizeof(*message));
    if (message == NULL) {
        kvf_rpc_call_cancel(call);
        return;
    }
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes.data, bytes.length);
    *message = (struct rpc_message){.buffer = grpc_raw_byte_buffer_create(&slice, 1),
                                    .length = bytes.length};
    grpc_slice_unref(slice);
    call->queued_bytes += bytes.length;
    if (call->first == NULL)
        call->first = message;
    else
        call->last->next = message;
    call->last = message;
    pump(call);
}

size_t kvf_rpc_call_queued_bytes(const struct kvf_rpc_call *call)
{
    return call->queued_bytes;
}

void kvf_rpc_call_half_close(struct kvf_rpc_call *call)
{
    kvf_assert(call->channel != NULL);
    if (call->out != RPC_OUT_OPEN)
        return;
    call->out = RPC_OUT_ENDING;
    pump(call);
}

static void finish(struct kvf_rpc_call *call, grpc_status_code code, const char *text)
{
    if (call->out != RPC_OUT_OPEN)
        return;
    call->deaf = true;
    call->out = RPC_OUT_ENDING;
    call->finish_code = code;
    if (text != NULL)
        call->finish_text = grpc_slice_from_copied_buffer(text, strnlen(text, TEXT_MAX_BYTES));
    pump(call);
}

void kvf_rpc_call_finish(struct kvf_rpc_call *call, struct kvf_status status, const char *text)
{
    kvf_assert(call->server != NULL);
    finish(call, rpc_code_to_grpc((enum kvf_code)status.code), text);
}

void kvf_rpc_call_cancel(struct kvf_rpc_call *call)
{
    call->deaf = true;
    out_over(call);
    (void)grpc_call_cancel(call->call, NULL);
}

/* ---- the end ---- */

static char *text_of(grpc_slice slice)
{
    size_t length = GRPC_SLICE_LENGTH(slice);
    char *text = malloc(length + 1);
    if (text == NULL)
        return NULL;
    memcpy(text, GRPC_SLICE_START_PTR(slice), length);
    text[length] = '\0';
    return text;
}

static void call_free(struct kvf_rpc_call *call)
{
    gpr_free(call->peer); /* plain memory: gRPC need not be there any more */
    free(call->identity);
    free(call);
}

/* gRPC's text, or what it means where that is about TLS. */
static const char *in_words(const struct kvf_rpc_call *call, struct kvf_status status,
                            const char *text)
{
    const char *words = NULL;
    if (status.code == KVF_UNAVAILABLE)
        words = rpc_credentials_explain(text, call->channel->tls, call->heard);
    return words != NULL ? words : text;
}

/* Everything of gRPC goes before `closed` runs: its callback may close the channel, even destroy
 * the rpc. */
static void close_call(struct kvf_rpc_call *call)
{
    char *text = call->channel != NULL ? text_of(call->details) : NULL;
    const char *shown = text != NULL ? text : "";
    struct kvf_status status = kvf_ok();
    if (call->fault != NULL) {
        status = rpc_fail(KVF_DENIED, GRPC_STATUS_UNAUTHENTICATED);
        shown = call->fault;
    } else if (call->channel != NULL) {
        status = rpc_code_from_grpc(call->code, shown);
        shown = in_words(call, status, shown);
    } else if (call->cancelled != 0) {
        status = rpc_fail(KVF_CANCELLED, GRPC_STATUS_CANCELLED);
    }
    out_over(call);
    grpc_slice_unref(call->details);
    grpc_slice_unref(call->finish_text);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_call_unref(call->call);
    struct kvf_rpc_server *server = call->server;
    if (call->channel != NULL)
        call->channel->calls--;
    if (call->events->closed != NULL)
        call->events->closed(call, call->user, status, shown);
    free(text);
    call_free(call);
    if (server != NULL)
        rpc_server_call_gone(server);
}

/* Last in each tag's `done`: the call may be gone afterwards. */
static void settle(struct kvf_rpc_call *call)
{
    if (call->over && call->pending == 0)
        close_call(call);
}

static void send_done(struct rpc_tag *tag, bool ok)
{
    struct kvf_rpc_call *call = kvf_container(tag, struct kvf_rpc_call, send);
    handed_over(call, ok);
    pump(call);
    settle(call);
}

static void end_done(struct rpc_tag *tag, bool ok)
{
    struct kvf_rpc_call *call = kvf_container(tag, struct kvf_rpc_call, end);
    (void)ok; /* this one always succeeds */
    call->pending--;
    call->over = true;
    out_over(call);
    settle(call);
}

/* ---- what comes ---- */

static void receive(struct kvf_rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->received};
    start_batch_and_post(call, &op, 1, &call->receive);
}

/* Learned once, when it is surely known: a client knows its server only when that has answered. NULL: all is well; else
 * why this call cannot be: with TLS nobody is spoken to who has no identity. */
static const char *learn_peer(struct kvf_rpc_call *call)
{
    const char *fault = NULL;
    if (call->peer != NULL)
        return NULL;
    call->peer = grpc_call_get_peer(call->call);
    if (call->channel != NULL ? call->channel->tls : call->server->tls)
        call->identity = rpc_credentials_identity(call->call, &fault);
    return fault;
}

/* Client side: an answer has come, from a server that may have no identity. Its status may be here already: ours wins. */
static void hear(struct kvf_rpc_call *call)
{
    call->heard = true;
    call->fault = learn_peer(call);
    if (call->fault != NULL)
        kvf_rpc_call_cancel(call);
}

static void deliver(struct kvf_rpc_call *call, grpc_byte_buffer *buffer)
{
    if (call->deaf || call->events->message == NULL)
        return;
    grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    if (slices->count == 1) {
        struct kvf_bytes bytes = {.data = GRPC_SLICE_START_PTR(slices->slices[0]),
                                  .length = GRPC_SLICE_LENGTH(slices->slices[0])};
        call->events->message(call, call->user, bytes);
        return;
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return;
    grpc_slice whole = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    struct kvf_bytes bytes = {.data = GRPC_SLICE_START_PTR(whole),
                              .length = GRPC_SLICE_LENGTH(whole)};
    call->events->message(call, call->user, bytes);
    grpc_slice_unref(whole);
}

static void receive_done(struct rpc_tag *tag, bool ok)
{
    struct kvf_rpc_call *call = kvf_container(tag, struct kvf_rpc_call, receive);
    call->pending--;
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL;
    if (buffer == NULL)
        (void)learn_peer(call);
    else if (call->channel != NULL)
        hear(call);
    if (buffer != NULL) {
        if (ok)
            deliver(call, buffer);
        grpc_byte_buffer_destroy(buffer);
        receive(call);
    } else if (!call->deaf && call->events->half_closed != NULL) {
        call->events->half_closed(call, call->user);
    }
    settle(call);
}

/* ---- the beginning ---- */

static struct kvf_rpc_call *call_new(struct kvf_rpc *rpc)
{
    struct kvf_rpc_call *call = calloc(1, sizeof(*call));
    if (call == NULL)
        return NULL;
    call->rpc = rpc;
    rpc_tag_init(&call->send, send_done);
    rpc_tag_init(&call->receive, receive_done);
    rpc_tag_init(&call->end, end_done);
    call->events = &nobody;
    call->details = grpc_empty_slice();
    call->finish_text = grpc_empty_slice();
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    return call;
}

static void receive_status(struct kvf_rpc_call *call)
{
    grpc_op ops[] = {
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &call->initial},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &call->trailing,
                                        .status = &call->code,
                                        .status_details = &call->details}},
    };
    start_batch_and_post(call, ops, 2, &call->end);
}

/* Runs in the loop's next round: a first message and a half-close that were asked for meanwhile
 * leave with the start. */
static void begin(struct kvf_post *post)
{
    struct kvf_rpc_call *call = kvf_container(post, struct kvf_rpc_call, begin);
    call->pending--;
    call->sending = false;
    pump(call);
    receive_status(call);
    receive(call);
}

struct kvf_status kvf_rpc_call_start(struct kvf_rpc_channel *channel, const char *path,
                                     uint64_t timeout_ms, const struct kvf_rpc_events *events,
                                     void *user, struct kvf_rpc_call **give)
{
    struct kvf_rpc_call *call = call_new(channel->rpc);
    if (call == NULL)
        return rpc_fail(KVF_NO_MEMORY, 0);
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (timeout_ms > 0 && timeout_ms <= INT64_MAX / 1000)
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis((int64_t)timeout_ms, GPR_TIMESPAN));
    grpc_slice method = grpc_slice_from_copied_string(path);
    call->channel = channel;
    call->events = events;
    call->user = user;
    call->call = grpc_channel_create_call(channel->channel, NULL, 0, channel->rpc->queue, method,
                                          NULL, deadline, NULL);
    grpc_slice_unref(method);
    channel->calls++;
    call->begin.run = begin;
    call->sending = true;
    call->pending = 1;
    kvf_loop_post(call->rpc->loop, &call->begin);
    *give = call;
    return kvf_ok();
}

static void refuse(struct kvf_rpc_call *call, const char *fault)
{
    uint64_t suppressed;
    char text[TEXT_MAX_BYTES];
    (void)snprintf(text, sizeof(text), "the caller was refused: %s", fault);
    if (kvf_log_may(&call->server->refusals, REFUSALS_PER_SECOND, kvf_clock_now_ns(), &suppressed))
        kvf_log_warning("tls", "a call from %s was refused: %s (%llu more since the last line)",
                        kvf_rpc_call_peer(call), fault, (unsigned long long)suppressed);
    finish(call, GRPC_STATUS_UNAUTHENTICATED, text);
}

void rpc_call_serve(struct kvf_rpc_server *server, grpc_call *incoming,
                    const struct kvf_rpc_method *method)
{
    struct kvf_rpc_call *call = call_new(server->rpc);
    if (call == NULL) {
        (void)grpc_call_cancel(incoming, NULL);
        grpc_call_unref(incoming);
        return;
    }
    call->server = server;
    call->call = incoming;
    server->calls++;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                  .data.recv_close_on_server.cancelled = &call->cancelled};
    start_batch_and_post(call, &op, 1, &call->end);
    const char *fault = learn_peer(call);
    if (fault != NULL)
        refuse(call, fault);
    else if (server->state != RPC_SERVER_SERVING)
        kvf_rpc_call_finish(call, rpc_fail(KVF_DRAINING, 0), "this server is going away");
    else if (method == NULL)
        kvf_rpc_call_finish(call, rpc_fail(KVF_UNSUPPORTED, 0), "no such method");
    else
        method->called(call, method->context);
    kvf_assert(call->events != &nobody || call->out != RPC_OUT_OPEN);
    receive(call);
}

void kvf_rpc_call_accept(struct kvf_rpc_call *call, const struct kvf_rpc_events *events, void *user)
{
    kvf_assert(call->server != NULL && call->events == &nobody);
    call->events = events;
    call->user = user;
}

const char *kvf_rpc_call_peer(const struct kvf_rpc_call *call)
{
    return call->peer != NULL ? call->peer : "";
}

const char *kvf_rpc_call_identity(const struct kvf_rpc_call *call)
{
    return call->identity != NULL ? call->identity : "";
}
