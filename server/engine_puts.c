/* What an engine asks of puts. */
#include "server/engine_context.h"

#include <stdlib.h>

static void put_begun(struct put_begin *begin)
{
    struct engine_begin *mine = begin->user;
    struct context *context = mine->context;
    engine_log_refusal(context, "PutBegin", &begin->refusal);
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EnginePutBegun begun = KVFERRY__ENGINE_PUT_BEGUN__INIT;
    Kvferry__EnginePlace places[KVF_WIRE_MAX_BLOCKS], *pointers[KVF_WIRE_MAX_BLOCKS];
    for (uint32_t i = 0; i < begin->item_count; i++) {
        struct put_item *item = &begin->items[i];
        pointers[i] = &places[i];
        kvferry__engine_place__init(&places[i]);
        places[i].code = (uint32_t)item->code;
        if (item->code != KVF_OK)
            continue;
        item->put->id = ++context->next_put;
        item->put->begin_id = mine->id;
        kvf_list_push_back(&context->puts, &item->put->node);
        places[i].put = item->put->id;
        places[i].arena = item->put->entry->extent.arena->id;
        places[i].offset = item->put->entry->extent.offset;
    }
    begun.n_places = begin->item_count;
    begun.places = pointers;
    reply.id = mine->id;
    reply.code = begin->status.code;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_PUT_BEGUN;
    reply.put_begun = &begun;
    context->open_blocks -= begin->item_count;
    kvf_list_remove(&mine->node);
    free(mine);
    engine_send_reply(context, &reply);
}

void engine_take_put_begin(struct context *context, uint64_t id,
                           const Kvferry__EnginePutBegin *request)
{
    if (!engine_names_are_valid(request->namespace_, request->n_blocks, request->blocks)) {
        engine_send_code(context, id, KVF_INVALID, "PutBegin names 1 to 512 keys of 1 to 64 bytes");
        return;
    }
    if (!engine_may(context, request->namespace_, KVF_RIGHT_WRITE, "put")) {
        engine_send_code(context, id, KVF_DENIED, "this user may not write this tenant");
        return;
    }
    if (context->engines->draining) {
        engine_send_code(context, id, KVF_DRAINING, "the daemon is draining");
        return;
    }
    if (!engine_may_open(context, id, request->n_blocks))
        return;
    struct engine_begin *mine = calloc(1, sizeof(*mine));
    struct put_begin *begin =
        put_begin_create(context->engines->options.puts, (uint32_t)request->n_blocks);
    if (mine == NULL || begin == NULL) {
        free(mine);
        if (begin != NULL)
            put_begin_drop(begin);
        engine_send_code(context, id, KVF_BUSY, "out of memory");
        return;
    }
    *mine = (struct engine_begin){.context = context, .id = id, .begin = begin};
    kvf_list_push_back(&context->begins, &mine->node);
    context->open_blocks += begin->item_count;
    strcpy(begin->ns, request->namespace_);
    begin->deadline_ns = engine_deadline(context, request->deadline_us);
    begin->answered = put_begun;
    begin->user = mine;
    for (size_t i = 0; i < request->n_blocks; i++) {
        struct put_item *item = &begin->items[i];
        (void)kvf_key_set(&item->key, request->blocks[i]->key.data, request->blocks[i]->key.len);
        item->length = request->blocks[i]->length;
    }
    put_begin_start(begin);
}

/* Commits and aborts mostly come in the order of the places. */
static struct put *find_put(struct context *context, uint64_t id)
{
    kvf_list_for_each (node, &context->puts) {
        struct put *put = kvf_container(node, struct put, node);
        if (put->id >= id)
            return put->id == id ? put : NULL;
    }
    return NULL;
}

void engine_take_put_commit(struct context *context, uint64_t id,
                            const Kvferry__EnginePutCommit *request)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EnginePutCommitted committed = KVFERRY__ENGINE_PUT_COMMITTED__INIT;
    Kvferry__EngineCommitted blocks[KVF_WIRE_MAX_BLOCKS], *pointers[KVF_WIRE_MAX_BLOCKS];
    if (request->n_commits > KVF_WIRE_MAX_BLOCKS) {
        engine_send_code(context, id, KVF_INVALID, "PutCommit names at most 512 puts");
        return;
    }
    for (size_t i = 0; i < request->n_commits; i++) {
        /* A commit is news for Gets, and an answer that does not go out ends this context: its places
         * are quarantined then. */
        struct put *put = context->state == CONTEXT_REGISTERED
                              ? find_put(context, request->commits[i]->put)
                              : NULL;
        pointers[i] = &blocks[i];
        kvferry__engine_committed__init(&blocks[i]);
        blocks[i].code = put != NULL ? KVF_OK : KVF_NOT_FOUND;
        if (put == NULL)
            continue;
        struct kvf_generation generation = put_finish(put, request->commits[i]->crc32c);
        blocks[i].generation_epoch = generation.epoch;
        blocks[i].generation_counter = generation.counter;
    }
    committed.n_blocks = request->n_commits;
    committed.blocks = pointers;
    reply.id = id;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_PUT_COMMITTED;
    reply.put_committed = &committed;
    engine_send_reply(context, &reply);
}

void engine_take_put_abort(struct context *context, const Kvferry__EnginePutAbort *request)
{
    for (size_t i = 0; i < request->n_puts; i++) {
        struct put *put = find_put(context, request->puts[i]);
        if (put != NULL)
            put_abort(put);
    }
}

static struct put *find_begun(struct context *context, uint64_t id)
{
    kvf_list_for_each (node, &context->puts) {
        struct put *put = kvf_container(node, struct put, node);
        if (put->begin_id == id)
            return put;
    }
    return NULL;
}

void engine_abort_begun(struct context *context, uint64_t id)
{
    struct put *put;
    /* An abort is news for others, and an answer that does not go out ends this context. */
    while (context->state == CONTEXT_REGISTERED && (put = find_begun(context, id)) != NULL)
        put_abort(put);
}
