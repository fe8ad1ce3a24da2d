/* An operation's steps. Parts: codes, pages, asking, answers, copying, stopping. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "client/engine/copy.h"
#include "client/engine/engine_state.h"
#include "client/engine/stats.h"

#define COPY_TURN_BYTES ((uint64_t)1 << 20) /* then others have their turn; a block is not cut */

static bool is_get(const struct kvf_op *op)
{
    return op->kind == KVF_OP_GET;
}

/* ---- codes ---- */

void op_settle(struct kvf_stats *stats, const struct kvf_op *op, struct kvf_item *item,
               enum kvf_code code)
{
    item->code = code;
    item->held |= ITEM_SETTLED;
    if (op->kind == KVF_OP_GET)
        stats_get(stats, code, item->tier, item->origin, item->length);
    else if (op->kind == KVF_OP_COMMIT ||
             (op->kind == KVF_OP_PUT && (item->held & ITEM_PLACE) == 0))
        stats_put(stats, code, item->length);
}

static void settle(struct kvf_engine *engine, const struct kvf_op *op, struct kvf_item *item,
                   enum kvf_code code)
{
    op_settle(&engine->counted, op, item, code);
}

/* Counters only; what is held is counted elsewhere. */
static void publish(struct kvf_engine *engine)
{
    uint64_t *to = (uint64_t *)&engine->stats, *from = (uint64_t *)&engine->counted;
    for (size_t i = 0; i < sizeof(engine->stats) / sizeof(*to); i++)
        to[i] += from[i];
    engine->counted = (struct kvf_stats){0};
}

static void end(struct kvf_engine *engine, struct kvf_op *op, struct kvf_status status)
{
    kvf_list_remove(&op_own(op)->node);
    (void)pthread_mutex_lock(&engine->lock);
    publish(engine);
    engine_end_locked(engine, op, status);
    (void)pthread_mutex_unlock(&engine->lock);
}

static void fail(struct kvf_engine *engine, struct kvf_op *op, enum kvf_code code)
{
    op_stop(engine, op, kvf_fail(KVF_MODULE_CLIENT, code, 0));
}

/* ---- pages ---- */

static uint64_t limit_of(const struct kvf_engine *engine, const struct kvf_op *op)
{
    const struct kvf_client *client = engine->current->client;
    uint64_t limit = is_get(op) ? client->max_get_bytes : client->max_put_bytes;
    return op_is_in_place(op) ? limit : limit / 2;
}

static bool has_bytes(const struct kvf_op *op)
{
    return op->kind == KVF_OP_GET || op->kind == KVF_OP_PUT;
}

/* An in-place operation is held as a whole. */
static bool fits_as_a_whole(const struct kvf_engine *engine, const struct kvf_op *op)
{
    uint64_t sum = 0, limit = limit_of(engine, op);
    if (!op_is_in_place(op) || !has_bytes(op))
        return true;
    for (size_t i = 0; i < op->count && sum <= limit; i++)
        sum += kvf_round_up_page(op->items[i].length);
    return sum <= limit;
}

/* With memory: the items from `next` on that are asked for together; one at least, which the daemon then judges. */
static void choose_page(const struct kvf_engine *engine, struct kvf_op *op)
{
    struct op_own *own = op_own(op);
    uint64_t sum = 0, limit = limit_of(engine, op);
    for (own->page = 0; own->page < DIALOG_BLOCKS && own->next + own->page < op->count;
         own->page++) {
        sum += has_bytes(op) ? kvf_round_up_page(op->items[own->next + own->page].length) : 0;
        if (sum > limit && own->page > 0)
            break;
    }
}

static struct kvf_item *page_of(struct kvf_op *op)
{
    return op->items + op_own(op)->next;
}

/* Found blocks are looked at before the operation goes on: copied, or checked. */
static bool has_work_with_found(const struct kvf_op *op)
{
    return !op_is_in_place(op) || (op->flags & KVF_OP_VERIFY) != 0;
}

/* A commit's page may hold items that have no place: they are passed over. */
static size_t choose_positions(struct kvf_engine *engine, struct kvf_op *op)
{
    size_t count = 0;
    for (uint32_t i = 0; i < op_own(op)->page; i++)
        if ((page_of(op)[i].held & ITEM_PLACE) != 0)
            engine->positions[count++] = i;
    return count;
}

static void fill_puts(struct kvf_engine *engine, struct kvf_op *op)
{
    const struct kvf_item *items = page_of(op);
    for (uint32_t i = 0; i < op_own(op)->page; i++)
        engine->puts[i] = (struct kvf_put){.key = items[i].key,
                                           .length = items[i].length,
                                           .data = items[i].data,
                                           .handle = items[i].handle,
                                           .crc32c = items[i].crc32c};
}

static void fill_blocks(struct kvf_engine *engine, struct kvf_op *op)
{
    const struct kvf_item *items = page_of(op);
    for (uint32_t i = 0; i < op_own(op)->page; i++)
        engine->blocks[i] = (struct kvf_get_block){
            .key = items[i].key, .length = is_get(op) ? items[i].length : 0, .code = KVF_NOT_FOUND};
}

static bool page_has_gap(struct kvf_op *op)
{
    for (uint32_t i = 0; i < op_own(op)->page; i++)
        if (page_of(op)[i].code != KVF_OK)
            return true;
    return false;
}

static void next_page(struct kvf_engine *engine, struct kvf_op *op)
{
    struct op_own *own = op_own(op);
    bool stops = (op->kind == KVF_OP_GET || op->kind == KVF_OP_LOOKUP) &&
                 (op->flags & KVF_OP_STOP_AT_FIRST_MISS) != 0 && page_has_gap(op);
    own->next += own->page;
    own->page = own->at = 0;
    own->stage = OP_READY;
    if (stops || own->next >= op->count)
        end(engine, op, kvf_ok());
}

/* ---- asking ---- */

static void fill_request(struct kvf_engine *engine, struct kvf_op *op, struct request *request)
{
    struct op_own *own = op_own(op);
    struct kvf_client *client = engine->current->client;
    struct kvf_get_options options = {.ns = op->ns, .source = op->source, .flags = op->flags};
    if (own->stage == OP_SEALED) {
        fill_puts(engine, op);
        put_commit_fill(client, request, engine->puts, engine->positions,
                        choose_positions(engine, op));
    } else if (op->kind == KVF_OP_PUT) {
        fill_puts(engine, op);
        put_begin_fill(client, request, op->ns, engine->puts, own->page, own->deadline_ns);
    } else if (op->kind == KVF_OP_GET) {
        fill_blocks(engine, op);
        get_fill(client, request, &options, engine->blocks, own->page, own->deadline_ns);
    } else if (op->kind == KVF_OP_LOOKUP) {
        fill_blocks(engine, op);
        lookup_fill(client, request, &options, engine->blocks, own->page, own->deadline_ns);
    } else {
        for (uint32_t i = 0; i < own->page; i++)
            client->keys[i] = (ProtobufCBinaryData){.len = page_of(op)[i].key.length,
                                                    .data = page_of(op)[i].key.bytes};
        forget_fill(client, request, op->ns, own->page);
    }
}

static bool ask(struct kvf_engine *engine, struct kvf_op *op)
{
    struct op_own *own = op_own(op);
    struct request request;
    if (!dialog_has_room(engine->current->client, engine->awaited))
        return false; /* until an answer comes */
    fill_request(engine, op, &request);
    struct kvf_status status = dialog_send(engine->current->client, &request.message);
    if (status.code == KVF_BUSY) {
        engine->socket_full = true;
    } else if (!kvf_is_ok(status)) {
        op_stop(engine, op, status);
    } else {
        own->request = request.message.id;
        engine->awaited++;
        own->stage = own->stage == OP_SEALED ? OP_COMMITTING : OP_ASKED;
    }
    return false;
}

/* The session of a commit's places, if it can still take them. */
static bool can_commit(struct kvf_engine *engine, const struct kvf_op *op)
{
    for (size_t i = 0; i < op->count; i++)
        if ((op->items[i].held & ITEM_PLACE) != 0)
            return engine->current != NULL && engine->current->number == op->items[i].session;
    return engine->current != NULL;
}

static bool start_page(struct kvf_engine *engine, struct kvf_op *op)
{
    struct op_own *own = op_own(op);
    if (engine->current == NULL || (op->kind == KVF_OP_COMMIT && !can_commit(engine, op))) {
        fail(engine, op, KVF_UNAVAILABLE);
        return false;
    }
    if (op->kind != KVF_OP_COMMIT && engine->current->client->draining) {
        fail(engine, op, KVF_DRAINING);
        return false;
    }
    if (own->next > 0 && kvf_clock_now_ns() >= own->deadline_ns) {
        fail(engine, op, KVF_DEADLINE);
        return false;
    }
    if (own->next == 0 && !fits_as_a_whole(engine, op)) {
        fail(engine, op, KVF_TOO_LARGE);
        return false;
    }
    choose_page(engine, op);
    if (op->kind != KVF_OP_COMMIT)
        return ask(engine, op);
    own->stage = OP_COPYING;
    return true;
}

/* ---- answers ---- */

static Kvferry__EngineRequest__MessageCase kind_of(const struct kvf_op *op, uint8_t stage)
{
    if (stage == OP_COMMITTING)
        return KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT;
    if (op->kind == KVF_OP_PUT)
        return KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN;
    if (op->kind == KVF_OP_GET)
        return KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    return op->kind == KVF_OP_LOOKUP ? KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP
                                     : KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET;
}

static void hold(struct kvf_engine *engine, struct kvf_item *item, uint32_t how)
{
    item->held |= how;
    item->session = engine->current->number;
    engine_hold(engine, engine->current, 1);
}

static struct kvf_status take_places(struct kvf_engine *engine, struct kvf_op *op,
                                     const Kvferry__EngineReply *reply)
{
    struct kvf_item *items = page_of(op);
    fill_puts(engine, op);
    KVF_TRY(put_begin_take(engine->current->client, reply, engine->puts, op_own(op)->page));
    for (uint32_t i = 0; i < op_own(op)->page; i++) {
        if (engine->puts[i].code == KVF_OK) {
            items[i].data = engine->puts[i].data;
            items[i].handle = engine->puts[i].handle;
            hold(engine, &items[i], ITEM_PLACE);
        }
        if (engine->puts[i].code != KVF_OK || op_is_in_place(op))
            settle(engine, op, &items[i], engine->puts[i].code);
    }
    return kvf_ok();
}

static void take_found(const struct kvf_get_block *block, struct kvf_item *item)
{
    item->length = block->length;
    item->tier = block->tier;
    item->origin = block->origin;
    item->crc32c = block->crc32c;
    item->generation = block->generation;
}

static struct kvf_status take_pins(struct kvf_engine *engine, struct kvf_op *op,
                                   const Kvferry__EngineReply *reply)
{
    struct kvf_item *items = page_of(op);
    fill_blocks(engine, op);
    KVF_TRY(get_take(engine->current->client, reply, engine->blocks, op_own(op)->page));
    for (uint32_t i = 0; i < op_own(op)->page; i++) {
        const struct kvf_get_block *block = &engine->blocks[i];
        if (block->code != KVF_OK) {
            settle(engine, op, &items[i], block->code);
            continue;
        }
        take_found(block, &items[i]);
        items[i].data = (void *)(uintptr_t)block->data;
        items[i].handle = block->get;
        items[i].index = block->index;
        hold(engine, &items[i], ITEM_PIN);
        if (!has_work_with_found(op))
            settle(engine, op, &items[i], KVF_OK);
    }
    return kvf_ok();
}

static struct kvf_status take_looked_up(struct kvf_engine *engine, struct kvf_op *op,
                                        const Kvferry__EngineReply *reply)
{
    fill_blocks(engine, op);
    KVF_TRY(lookup_take(engine->current->client, reply, engine->blocks, op_own(op)->page));
    for (uint32_t i = 0; i < op_own(op)->page; i++) {
        if (engine->blocks[i].code == KVF_OK)
            take_found(&engine->blocks[i], &page_of(op)[i]);
        settle(engine, op, &page_of(op)[i], engine->blocks[i].code);
    }
    return kvf_ok();
}

static struct kvf_status take_forgotten(struct kvf_engine *engine, struct kvf_op *op,
                                        const Kvferry__EngineReply *reply)
{
    size_t forgotten = 0;
    KVF_TRY(forget_take(engine->current->client, reply, op_own(op)->page, &forgotten));
    for (uint32_t i = 0; i < op_own(op)->page; i++)
        settle(engine, op, &page_of(op)[i], KVF_OK);
    return kvf_ok();
}

/* The places are the daemon's again, whatever it says of the blocks. */
static struct kvf_status take_committed(struct kvf_engine *engine, struct kvf_op *op,
                                        const Kvferry__EngineReply *reply)
{
    size_t count = choose_positions(engine, op);
    fill_puts(engine, op);
    KVF_TRY(
        put_commit_take(engine->current->client, reply, engine->puts, engine->positions, count));
    for (size_t i = 0; i < count; i++) {
        struct kvf_item *item = &page_of(op)[engine->positions[i]];
        const struct kvf_put *put = &engine->puts[engine->positions[i]];
        item->held = 0;
        item->data = NULL;
        item->generation = put->generation;
        settle(engine, op, item, put->code);
    }
    engine_hold(engine, engine->current, -(int64_t)count);
    if (op->kind == KVF_OP_COMMIT) {
        (void)pthread_mutex_lock(&engine->lock);
        engine->reserved -= count;
        (void)pthread_mutex_unlock(&engine->lock);
    }
    return kvf_ok();
}

void op_take(struct kvf_engine *engine, struct kvf_op *op, const Kvferry__EngineReply *reply)
{
    struct op_own *own = op_own(op);
    uint8_t stage = own->stage;
    own->request = 0;
    engine->awaited--;
    struct kvf_status status = dialog_judge(engine->current->client, kind_of(op, stage), reply);
    if (kvf_is_ok(status) && stage == OP_COMMITTING)
        status = take_committed(engine, op, reply);
    else if (kvf_is_ok(status) && op->kind == KVF_OP_PUT)
        status = take_places(engine, op, reply);
    else if (kvf_is_ok(status) && op->kind == KVF_OP_GET)
        status = take_pins(engine, op, reply);
    else if (kvf_is_ok(status) && op->kind == KVF_OP_LOOKUP)
        status = take_looked_up(engine, op, reply);
    else if (kvf_is_ok(status))
        status = take_forgotten(engine, op, reply);
    if (!kvf_is_ok(status))
        op_stop(engine, op, status);
    else if (stage == OP_ASKED && has_bytes(op) &&
             (is_get(op) ? has_work_with_found(op) : !op_is_in_place(op)))
        own->stage = OP_COPYING;
    else
        next_page(engine, op);
}

/* ---- copying ---- */

static void seal(struct kvf_engine *engine, struct kvf_item *item)
{
    struct kvf_put put = {.data = item->data, .length = item->length};
    if (item->memory != NULL) {
        put.crc32c = copy_with_crc32c(item->data, item->memory, (size_t)item->length);
        put.sealed = 1;
        engine->counted.copied_bytes += item->length;
    }
    put_seal(&put);
    item->crc32c = put.crc32c;
}

static void report_bad(struct kvf_engine *engine, struct kvf_item *item)
{
    struct kvf_client *client = engine->current->client;
    client->indexes[0] = item->index;
    dialog_release_bad(client, item->handle, 1);
    item->held &= ITEM_SETTLED;
    item->data = NULL;
    engine_hold(engine, engine->current, -1);
}

static void deliver(struct kvf_engine *engine, struct kvf_op *op, struct kvf_item *item)
{
    bool verify = (op->flags & KVF_OP_VERIFY) != 0, good = true;
    if (item->memory != NULL && verify)
        good = copy_with_crc32c(item->memory, item->data, (size_t)item->length) == item->crc32c;
    else if (item->memory != NULL)
        memcpy(item->memory, item->data, (size_t)item->length);
    else
        good = kvf_crc32c(0, item->data, (size_t)item->length) == item->crc32c;
    engine->counted.copied_bytes += item->memory != NULL ? item->length : 0;
    settle(engine, op, item, good ? KVF_OK : KVF_CORRUPT);
    if (!good)
        report_bad(engine, item);
}

/* With memory nothing stays held: what the page has goes back. In place it is the caller's to give back. */
static void give_back_page(struct kvf_engine *engine, struct kvf_op *op)
{
    struct kvf_client *client = engine->current->client;
    size_t pins = 0, places = 0;
    uint64_t get = 0;
    for (uint32_t i = 0; i < op_own(op)->page; i++) {
        struct kvf_item *item = &page_of(op)[i];
        if ((item->held & ITEM_PIN) != 0) {
            client->indexes[pins++] = item->index;
            get = item->handle;
        } else if ((item->held & ITEM_PLACE) != 0) {
            client->handles[places++] = item->handle;
        }
        item->held &= ITEM_SETTLED;
        item->data = NULL;
    }
    if (pins > 0)
        dialog_release(client, get, pins);
    dialog_abort(client, places);
    if (pins + places > 0)
        engine_hold(engine, engine->current, -(int64_t)(pins + places));
}

/* Blocks of the page that wait for it, until this turn's share is done; false: there are none. */
static bool copy_some(struct kvf_engine *engine, struct kvf_op *op)
{
    struct op_own *own = op_own(op);
    uint64_t copied = 0;
    while (own->at < own->page && copied < COPY_TURN_BYTES) {
        struct kvf_item *item = &page_of(op)[own->at++];
        if ((item->held & (ITEM_PIN | ITEM_PLACE)) == 0)
            continue;
        if (is_get(op))
            deliver(engine, op, item);
        else
            seal(engine, item);
        copied += item->length;
    }
    return copied > 0;
}

static bool copy_step(struct kvf_engine *engine, struct kvf_op *op)
{
    if (copy_some(engine, op))
        return true;
    if (is_get(op) && !op_is_in_place(op))
        give_back_page(engine, op);
    if (is_get(op) || choose_positions(engine, op) == 0)
        next_page(engine, op);
    else
        op_own(op)->stage = OP_SEALED;
    return true;
}

bool op_step(struct kvf_engine *engine, struct kvf_op *op)
{
    switch ((enum op_stage)op_own(op)->stage) {
    case OP_READY:
        return start_page(engine, op);
    case OP_COPYING:
        return copy_step(engine, op);
    case OP_SEALED:
        return ask(engine, op);
    case OP_ASKED:
    case OP_COMMITTING:
        break;
    }
    return false;
}

/* ---- stopping ---- */

void op_stop(struct kvf_engine *engine, struct kvf_op *op, struct kvf_status status)
{
    struct op_own *own = op_own(op);
    if (own->request != 0) {
        engine->awaited--;
        if (engine->current != NULL && !engine->current->client->ended)
            dialog_give_up(engine->current->client, own->request, kind_of(op, own->stage));
        own->request = 0;
    }
    if (engine->current != NULL && !op_is_in_place(op))
        give_back_page(engine, op);
    end(engine, op, status);
}
