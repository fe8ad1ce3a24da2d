/* Put: ask for places, seal what was written, make it visible. A put holds its place while `data`
 * is not NULL. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "client/engine/requests.h"
#include "client/engine/stats.h"

#include <string.h>

#define COMMIT_TIMEOUT_MS 10000u /* a commit waits for nothing but the daemon's thread */

static void clear(struct kvf_put *put, enum kvf_code code)
{
    put->code = code;
    put->data = NULL;
    put->handle = 0;
    put->sealed = 0;
    put->generation = (struct kvf_generation){0};
}

/* ---- abort ---- */

/* Gives up every place that is still held and says why; how many. */
static size_t abort_held(struct kvf_client *client, struct kvf_put *puts, size_t count,
                         enum kvf_code code)
{
    size_t found = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        if (puts[i].code != KVF_OK || puts[i].data == NULL)
            continue;
        client->handles[found++] = puts[i].handle;
        clear(&puts[i], code);
        all++;
        if (found == DIALOG_BLOCKS) {
            dialog_abort(client, found);
            found = 0;
        }
    }
    dialog_abort(client, found);
    client->stats.held_blocks -= all;
    return all;
}

void kvf_put_abort(struct kvf_client *client, struct kvf_put *puts, size_t count)
{
    client->stats.put_failed += abort_held(client, puts, count, KVF_CANCELLED);
}

/* ---- begin ---- */

static struct kvf_status invalid(void)
{
    return kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
}

static struct kvf_status check_begin(const struct kvf_client *client, const char *ns,
                                     const struct kvf_put *puts, size_t count, uint64_t timeout_ms)
{
    uint64_t sum = 0;
    if (ns == NULL || !kvf_namespace_is_valid(ns) || timeout_ms == 0)
        return invalid();
    for (size_t i = 0; i < count; i++) {
        if (!dialog_key_is_valid(&puts[i].key) || puts[i].length == 0)
            return invalid();
        if (puts[i].length > KVF_BLOCK_MAX_BYTES)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_TOO_LARGE, 0);
        sum += kvf_round_up_page(puts[i].length);
        if (sum > client->max_put_bytes)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_TOO_LARGE, 0);
    }
    return dialog_check(client);
}

void put_begin_fill(struct kvf_client *client, struct request *request, const char *ns,
                    struct kvf_put *puts, size_t count, uint64_t deadline_ns)
{
    Kvferry__EnginePutBegin *begin = &request->body.put_begin;
    kvferry__engine_request__init(&request->message);
    kvferry__engine_put_begin__init(begin);
    for (size_t i = 0; i < count; i++)
        dialog_name(client, i, &puts[i].key, puts[i].length);
    begin->namespace_ = (char *)(uintptr_t)ns;
    begin->n_blocks = count;
    begin->blocks = client->name_pointers;
    begin->deadline_us = dialog_left_us(deadline_ns);
    request->message.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN;
    request->message.put_begin = begin;
}

struct kvf_status put_begin_take(struct kvf_client *client, const Kvferry__EngineReply *reply,
                                 struct kvf_put *puts, size_t count)
{
    const Kvferry__EnginePutBegun *begun = reply->put_begun;
    if (begun->n_places != count)
        return dialog_protocol_error(client);
    for (size_t i = 0; i < count; i++) {
        const Kvferry__EnginePlace *place = begun->places[i];
        if (place->code >= KVF_CODE_COUNT)
            return dialog_protocol_error(client);
        puts[i].code = (enum kvf_code)place->code;
        if (place->code != KVF_OK)
            continue;
        puts[i].data = dialog_place(client, place->arena, place->offset, puts[i].length);
        puts[i].handle = place->put;
        if (puts[i].data == NULL)
            return dialog_protocol_error(client);
    }
    return kvf_ok();
}

static struct kvf_status begin_page(struct kvf_client *client, const char *ns, struct kvf_put *puts,
                                    size_t count, uint64_t deadline_ns)
{
    struct request request;
    const Kvferry__EngineReply *reply;
    put_begin_fill(client, &request, ns, puts, count, deadline_ns);
    KVF_TRY(dialog_ask(client, &request.message, deadline_ns, &reply));
    struct kvf_status status = put_begin_take(client, reply, puts, count);
    for (size_t i = 0; i < count; i++)
        client->stats.held_blocks += puts[i].data != NULL;
    return status;
}

struct kvf_status kvf_put_begin(struct kvf_client *client, const char *ns, struct kvf_put *puts,
                                size_t count, uint64_t timeout_ms)
{
    uint64_t deadline_ns = dialog_deadline(timeout_ms);
    for (size_t i = 0; i < count; i++)
        clear(&puts[i], KVF_OK);
    struct kvf_status status = check_begin(client, ns, puts, count, timeout_ms);
    for (size_t done = 0; kvf_is_ok(status) && done < count;) {
        size_t page = count - done < DIALOG_BLOCKS ? count - done : DIALOG_BLOCKS;
        if (done > 0 && kvf_clock_now_ns() >= deadline_ns)
            status = kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0);
        else
            status = begin_page(client, ns, puts + done, page, deadline_ns);
        done += page;
    }
    if (!kvf_is_ok(status)) {
        (void)abort_held(client, puts, count, KVF_CANCELLED); /* the places of earlier pages */
        for (size_t i = 0; i < count; i++)
            clear(&puts[i], (enum kvf_code)status.code);
    }
    for (size_t i = 0; i < count; i++)
        if (puts[i].data == NULL)
            stats_put(&client->stats, puts[i].code, 0);
    return status;
}

/* ---- commit ---- */

void put_seal(struct kvf_put *put)
{
    uint8_t *data = put->data;
    memset(data + put->length, 0, (size_t)(kvf_round_up_page(put->length) - put->length));
    if (put->sealed == 0)
        put->crc32c = kvf_crc32c(0, data, (size_t)put->length);
    put->sealed = 1;
}

void put_commit_fill(struct kvf_client *client, struct request *request, const struct kvf_put *puts,
                     const size_t *positions, size_t count)
{
    Kvferry__EnginePutCommit *commit = &request->body.put_commit;
    kvferry__engine_request__init(&request->message);
    kvferry__engine_put_commit__init(commit);
    for (size_t i = 0; i < count; i++) {
        client->commits[i].put = puts[positions[i]].handle;
        client->commits[i].crc32c = puts[positions[i]].crc32c;
    }
    commit->n_commits = count;
    commit->commits = client->commit_pointers;
    request->message.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT;
    request->message.put_commit = commit;
}

struct kvf_status put_commit_take(struct kvf_client *client, const Kvferry__EngineReply *reply,
                                  struct kvf_put *puts, const size_t *positions, size_t count)
{
    const Kvferry__EnginePutCommitted *committed = reply->put_committed;
    if (committed->n_blocks != count)
        return dialog_protocol_error(client);
    for (size_t i = 0; i < count; i++) {
        if (committed->blocks[i]->code >= KVF_CODE_COUNT)
            return dialog_protocol_error(client);
    }
    for (size_t i = 0; i < count; i++) {
        const Kvferry__EngineCommitted *block = committed->blocks[i];
        struct kvf_put *put = &puts[positions[i]];
        clear(put, (enum kvf_code)block->code);
        if (block->code == KVF_OK)
            put->generation = (struct kvf_generation){.epoch = block->generation_epoch,
                                                      .counter = block->generation_counter};
    }
    return kvf_ok();
}

static struct kvf_status commit_page(struct kvf_client *client, struct kvf_put *puts,
                                     const size_t *positions, size_t count)
{
    struct request request;
    const Kvferry__EngineReply *reply;
    for (size_t i = 0; i < count; i++)
        put_seal(&puts[positions[i]]);
    put_commit_fill(client, &request, puts, positions, count);
    KVF_TRY(dialog_ask(client, &request.message, dialog_deadline(COMMIT_TIMEOUT_MS), &reply));
    KVF_TRY(put_commit_take(client, reply, puts, positions, count));
    for (size_t i = 0; i < count; i++)
        stats_put(&client->stats, puts[positions[i]].code, puts[positions[i]].length);
    client->stats.held_blocks -= count;
    return kvf_ok();
}

struct kvf_status kvf_put_commit(struct kvf_client *client, struct kvf_put *puts, size_t count)
{
    size_t positions[DIALOG_BLOCKS];
    struct kvf_status status = kvf_ok();
    for (size_t i = 0; kvf_is_ok(status) && i < count;) {
        size_t found = 0;
        for (; i < count && found < DIALOG_BLOCKS; i++) {
            if (puts[i].code == KVF_OK && puts[i].data != NULL)
                positions[found++] = i;
        }
        if (found > 0)
            status = commit_page(client, puts, positions, found);
    }
    if (!kvf_is_ok(status))
        client->stats.put_failed += abort_held(client, puts, count, (enum kvf_code)status.code);
    return status;
}
