/* What an engine asks of Gets and look-ups. */
#include "server/engine_context.h"

#include <stdlib.h>

static void fill_block(const struct get_item *item, Kvferry__EngineBlock *block)
{
    kvferry__engine_block__init(block);
    block->code = (uint32_t)item->code;
    if (item->code != KVF_OK)
        return;
    block->length = item->length;
    block->tier = (uint32_t)item->tier;
    block->origin = (uint32_t)item->origin;
    if (item->entry == NULL)
        return;
    block->arena = item->entry->extent.arena->id;
    block->offset = item->entry->extent.offset;
    block->crc32c = item->entry->crc32c;
    block->generation_epoch = item->entry->generation.epoch;
    block->generation_counter = item->entry->generation.counter;
}

static void get_answered(struct get *get)
{
    struct engine_get *mine = get->user;
    engine_log_refusal(mine->context, "Get", &get->refusal);
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineReady ready = KVFERRY__ENGINE_READY__INIT;
    Kvferry__EngineBlock blocks[KVF_WIRE_MAX_BLOCKS], *pointers[KVF_WIRE_MAX_BLOCKS];
    for (uint32_t i = 0; i < get->item_count; i++) {
        pointers[i] = &blocks[i];
        fill_block(&get->items[i], &blocks[i]);
    }
    ready.n_blocks = get->item_count;
    ready.blocks = pointers;
    ready.prefix = get_prefix(get);
    reply.id = mine->id;
    reply.code = get->status.code;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_READY;
    reply.ready = &ready;
    engine_send_reply(mine->context, &reply);
}

static void get_freed(void *user)
{
    struct engine_get *mine = user;
    struct context *context = mine->context;
    context->open_blocks -= mine->blocks;
    kvf_list_remove(&mine->node);
    free(mine);
    engine_free_if_over(context);
}

/* What is denied is answered as if it were nowhere, here or at any source. */
static void answer_missing(struct context *context, uint64_t id, size_t count)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineReady ready = KVFERRY__ENGINE_READY__INIT;
    Kvferry__EngineBlock blocks[KVF_WIRE_MAX_BLOCKS], *pointers[KVF_WIRE_MAX_BLOCKS];
    for (size_t i = 0; i < count; i++) {
        pointers[i] = &blocks[i];
        kvferry__engine_block__init(&blocks[i]);
        blocks[i].code = KVF_NOT_FOUND;
    }
    ready.n_blocks = count;
    ready.blocks = pointers;
    reply.id = id;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_READY;
    reply.ready = &ready;
    engine_send_reply(context, &reply);
}

static struct get *make_get(struct context *context, uint64_t id, size_t count, const char *ns,
                            const char *source, uint64_t deadline_us)
{
    if (!engine_may_open(context, id, count))
        return NULL;
    struct engine_get *mine = calloc(1, sizeof(*mine));
    struct get *get = get_create(context->engines->options.gets, (uint32_t)count);
    if (mine == NULL || get == NULL) {
        engine_send_code(context, id, KVF_BUSY, "out of memory");
        free(mine);
        if (get != NULL) {
            get->freed = free; /* of user, which is NULL */
            get_drop(get);
        }
        return NULL;
    }
    *mine =
        (struct engine_get){.context = context, .id = id, .get = get, .blocks = (uint32_t)count};
    context->open_blocks += count;
    kvf_list_push_back(&context->gets, &mine->node);
    strcpy(get->ns, ns);
    strcpy(get->hint, source);
    get->instance = context->instance;
    get->party = &context->party;
    get->deadline_ns = engine_deadline(context, deadline_us);
    get->answered = get_answered;
    get->freed = get_freed;
    get->user = mine;
    return get;
}

static bool source_fits(const char *source)
{
    return strlen(source) < sizeof(((struct get *)NULL)->hint);
}

void engine_take_get(struct context *context, uint64_t id, const Kvferry__EngineGet *request)
{
    if (!engine_names_are_valid(request->namespace_, request->n_blocks, request->blocks) ||
        !source_fits(request->source)) {
        engine_send_code(context, id, KVF_INVALID, "Get names 1 to 512 keys of 1 to 64 bytes");
        return;
    }
    if (context->engines->draining) {
        engine_send_code(context, id, KVF_DRAINING, "the daemon is draining");
        return;
    }
    if (!engine_may(context, request->namespace_, KVF_RIGHT_READ, "get")) {
        answer_missing(context, id, request->n_blocks);
        return;
    }
    struct get *get = make_get(context, id, request->n_blocks, request->namespace_, request->source,
                               request->deadline_us);
    if (get == NULL)
        return;
    get->stop_at_first_miss = request->stop_at_first_miss;
    for (size_t i = 0; i < request->n_blocks; i++) {
        (void)kvf_key_set(&get->items[i].key, request->blocks[i]->key.data,
                          request->blocks[i]->key.len);
        get->items[i].length = request->blocks[i]->length;
    }
    get_start(get);
}

void engine_take_lookup(struct context *context, uint64_t id, const Kvferry__EngineLookup *request)
{
    if (!engine_keys_are_valid(request->namespace_, request->n_keys, request->keys) ||
        !source_fits(request->source)) {
        engine_send_code(context, id, KVF_INVALID, "Lookup names 1 to 512 keys of 1 to 64 bytes");
        return;
    }
    if (!engine_may(context, request->namespace_, KVF_RIGHT_READ, "lookup")) {
        answer_missing(context, id, request->n_keys);
        return;
    }
    struct get *get = make_get(context, id, request->n_keys, request->namespace_, request->source,
                               request->deadline_us);
    if (get == NULL)
        return;
    get->lookup_only = true;
    for (size_t i = 0; i < request->n_keys; i++)
        (void)kvf_key_set(&get->items[i].key, request->keys[i].data, request->keys[i].len);
    get_start(get);
}

static struct engine_get *find_get(struct context *context, uint64_t id)
{
    kvf_list_for_each (node, &context->gets) {
        struct engine_get *mine = kvf_container(node, struct engine_get, node);
        if (mine->id == id && mine->get != NULL)
            return mine;
    }
    return NULL;
}

void engine_take_release(struct context *context, const Kvferry__EngineRelease *request)
{
    if (context->state == CONTEXT_LEAVING)
        return; /* its Gets are dropped already */
    struct engine_get *mine = find_get(context, request->get);
    if (mine == NULL || !mine->get->answered_done)
        return;
    if (request->n_blocks == 0) {
        engine_drop_get(mine);
        return;
    }
    for (size_t i = 0; i < request->n_blocks; i++) {
        mine = find_get(context, request->get); /* its last release frees it */
        if (mine == NULL)
            break;
        if (request->bad)
            get_report_bad(mine->get, request->blocks[i]);
        get_release(mine->get, request->blocks[i]);
    }
}

/* It waits for its places still. False: there is none with this id. */
static bool cancel_begin(struct context *context, uint64_t id)
{
    kvf_list_for_each_safe (node, &context->begins) {
        struct engine_begin *mine = kvf_container(node, struct engine_begin, node);
        if (mine->id != id)
            continue;
        kvf_list_remove(&mine->node);
        context->open_blocks -= mine->begin->item_count;
        put_begin_drop(mine->begin);
        engine_send_code(context, id, KVF_CANCELLED, "");
        free(mine);
        return true;
    }
    return false;
}

/* Where it crosses with the answer, which nobody may ever read, what was answered goes back: nobody wants the blocks,
 * and nobody writes to the places. */
void engine_take_cancel(struct context *context, const Kvferry__EngineCancel *request)
{
    if (context->state == CONTEXT_LEAVING)
        return; /* its Gets are dropped already */
    struct engine_get *get = find_get(context, request->id);
    if (get != NULL && !get->get->answered_done)
        get_cancel(get->get);
    else if (get != NULL)
        engine_drop_get(get);
    else if (!cancel_begin(context, request->id))
        engine_abort_begun(context, request->id);
}

void engine_drop_get(struct engine_get *mine)
{
    struct get *get = mine->get;
    mine->get = NULL;
    if (get != NULL)
        get_drop(get);
}
