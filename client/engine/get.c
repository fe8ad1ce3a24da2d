/* Get: have blocks pinned, check them, give them back. A block is pinned while `data` is not NULL.
 * And Lookup, which is a Get without places. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "client/engine/requests.h"
#include "client/engine/stats.h"

#include <string.h>

static void clear(struct kvf_get_block *block, enum kvf_code code)
{
    block->code = code;
    block->data = NULL;
    block->crc32c = 0;
    block->tier = KVF_TIER_NONE;
    block->origin = KVF_ORIGIN_LOCAL;
    block->generation = (struct kvf_generation){0};
    block->get = 0;
    block->index = 0;
}

/* ---- what Get and Lookup share ---- */

bool get_source_is_valid(const char *source)
{
    return source == NULL || strlen(source) <= DIALOG_SOURCE_MAX_BYTES;
}

static struct kvf_status check_options(const struct kvf_client *client,
                                       const struct kvf_get_options *options,
                                       const struct kvf_get_block *blocks, size_t count)
{
    struct kvf_status invalid = kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    if (options->ns == NULL || !kvf_namespace_is_valid(options->ns) || options->timeout_ms == 0 ||
        !get_source_is_valid(options->source))
        return invalid;
    for (size_t i = 0; i < count; i++) {
        if (!dialog_key_is_valid(&blocks[i].key))
            return invalid;
    }
    return dialog_check(client);
}

static struct kvf_status check_sum(const struct kvf_client *client,
                                   const struct kvf_get_block *blocks, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].length > KVF_BLOCK_MAX_BYTES)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_TOO_LARGE, 0);
        sum += kvf_round_up_page(blocks[i].length);
        if (sum > client->max_get_bytes)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_TOO_LARGE, 0);
    }
    return kvf_ok();
}

static bool block_is_legal(const Kvferry__EngineBlock *answer, uint64_t asked_length)
{
    if (answer->code != KVF_OK)
        return answer->code < KVF_CODE_COUNT;
    return answer->length >= 1 && answer->length <= KVF_BLOCK_MAX_BYTES &&
           (asked_length == 0 || asked_length == answer->length) && answer->tier <= KVF_TIER_SSD &&
           answer->origin <= KVF_ORIGIN_REMOTE;
}

static bool ready_is_legal(const Kvferry__EngineReady *ready, size_t count)
{
    return ready->n_blocks == count && ready->prefix <= count;
}

static void take_block(const Kvferry__EngineBlock *answer, struct kvf_get_block *block)
{
    block->code = (enum kvf_code)answer->code;
    if (answer->code != KVF_OK)
        return;
    block->length = answer->length;
    block->crc32c = answer->crc32c;
    block->tier = (enum kvf_tier)answer->tier;
    block->origin = (enum kvf_origin)answer->origin;
    block->generation = (struct kvf_generation){.epoch = answer->generation_epoch,
                                                .counter = answer->generation_counter};
}

static size_t prefix_of(const struct kvf_get_block *blocks, size_t count)
{
    size_t prefix = 0;
    while (prefix < count && blocks[prefix].code == KVF_OK)
        prefix++;
    return prefix;
}

/* One request's worth of blocks, from asking to the filled-in answers. */
typedef struct kvf_status ask_page(struct kvf_client *client, const struct kvf_get_options *options,
                                   struct kvf_get_block *blocks, size_t count,
                                   uint64_t deadline_ns);

static struct kvf_status ask_pages(struct kvf_client *client, const struct kvf_get_options *options,
                                   struct kvf_get_block *blocks, size_t count, ask_page *ask)
{
    uint64_t deadline_ns = dialog_deadline(options->timeout_ms);
    bool stop_at_gap = (options->flags & KVF_GET_STOP_AT_FIRST_MISS) != 0;
    for (size_t done = 0; done < count;) {
        size_t page = count - done < DIALOG_BLOCKS ? count - done : DIALOG_BLOCKS;
        if (done > 0 && kvf_clock_now_ns() >= deadline_ns)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0);
        KVF_TRY(ask(client, options, blocks + done, page, deadline_ns));
        if (stop_at_gap && prefix_of(blocks + done, page) < page)
            break;
        done += page;
    }
    return kvf_ok();
}

/* ---- get ---- */

void get_fill(struct kvf_client *client, struct request *request,
              const struct kvf_get_options *options, struct kvf_get_block *blocks, size_t count,
              uint64_t deadline_ns)
{
    Kvferry__EngineGet *get = &request->body.get;
    kvferry__engine_request__init(&request->message);
    kvferry__engine_get__init(get);
    for (size_t i = 0; i < count; i++)
        dialog_name(client, i, &blocks[i].key, blocks[i].length);
    get->namespace_ = (char *)(uintptr_t)options->ns;
    get->n_blocks = count;
    get->blocks = client->name_pointers;
    if (options->source != NULL)
        get->source = (char *)(uintptr_t)options->source;
    get->deadline_us = dialog_left_us(deadline_ns);
    get->stop_at_first_miss = (options->flags & KVF_GET_STOP_AT_FIRST_MISS) != 0;
    request->message.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request->message.get = get;
}

struct kvf_status get_take(struct kvf_client *client, const Kvferry__EngineReply *reply,
                           struct kvf_get_block *blocks, size_t count)
{
    if (!ready_is_legal(reply->ready, count))
        return dialog_protocol_error(client);
    for (size_t i = 0; i < count; i++) {
        const Kvferry__EngineBlock *answer = reply->ready->blocks[i];
        if (!block_is_legal(answer, blocks[i].length))
            return dialog_protocol_error(client);
        take_block(answer, &blocks[i]);
        if (answer->code != KVF_OK)
            continue;
        blocks[i].data = dialog_place(client, answer->arena, answer->offset, answer->length);
        blocks[i].get = reply->id;
        blocks[i].index = (uint32_t)i;
        if (blocks[i].data == NULL)
            return dialog_protocol_error(client);
    }
    return kvf_ok();
}

/* A block whose bytes are not what its checksum says is a miss, not pinned any more, and reported. */
static void verify_page(struct kvf_client *client, uint64_t get, struct kvf_get_block *blocks,
                        size_t count)
{
    size_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].data == NULL ||
            kvf_crc32c(0, blocks[i].data, (size_t)blocks[i].length) == blocks[i].crc32c)
            continue;
        client->indexes[bad++] = blocks[i].index;
        clear(&blocks[i], KVF_CORRUPT);
    }
    client->stats.held_blocks -= bad;
    if (bad > 0)
        dialog_release_bad(client, get, bad);
}

static struct kvf_status get_page(struct kvf_client *client, const struct kvf_get_options *options,
                                  struct kvf_get_block *blocks, size_t count, uint64_t deadline_ns)
{
    struct request request;
    const Kvferry__EngineReply *reply;
    get_fill(client, &request, options, blocks, count, deadline_ns);
    KVF_TRY(dialog_ask(client, &request.message, deadline_ns, &reply));
    struct kvf_status status = get_take(client, reply, blocks, count);
    for (size_t i = 0; i < count; i++)
        client->stats.held_blocks += blocks[i].data != NULL;
    if (kvf_is_ok(status) && (options->flags & KVF_GET_VERIFY) != 0)
        verify_page(client, request.message.id, blocks, count);
    return status;
}

struct kvf_status kvf_get(struct kvf_client *client, const struct kvf_get_options *options,
                          struct kvf_get_block *blocks, size_t count, size_t *prefix)
{
    for (size_t i = 0; i < count; i++)
        clear(&blocks[i], KVF_NOT_FOUND);
    struct kvf_status status = check_options(client, options, blocks, count);
    if (kvf_is_ok(status))
        status = check_sum(client, blocks, count);
    if (kvf_is_ok(status))
        status = ask_pages(client, options, blocks, count, get_page);
    if (!kvf_is_ok(status)) {
        kvf_get_release(client, blocks, count); /* what earlier pages pinned */
        for (size_t i = 0; i < count; i++)
            clear(&blocks[i], (enum kvf_code)status.code);
    }
    for (size_t i = 0; i < count; i++)
        stats_get(&client->stats, blocks[i].code, blocks[i].tier, blocks[i].origin,
                  blocks[i].length);
    if (prefix != NULL)
        *prefix = prefix_of(blocks, count);
    return status;
}

void kvf_get_release(struct kvf_client *client, struct kvf_get_block *blocks, size_t count)
{
    size_t found = 0;
    uint64_t get = 0;
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].data == NULL)
            continue;
        if (found > 0 && (blocks[i].get != get || found == DIALOG_BLOCKS)) {
            dialog_release(client, get, found);
            found = 0;
        }
        get = blocks[i].get;
        client->indexes[found++] = blocks[i].index;
        blocks[i].data = NULL;
        blocks[i].get = 0;
        client->stats.held_blocks--;
    }
    if (found > 0)
        dialog_release(client, get, found);
}

/* ---- lookup ---- */

void lookup_fill(struct kvf_client *client, struct request *request,
                 const struct kvf_get_options *options, struct kvf_get_block *blocks, size_t count,
                 uint64_t deadline_ns)
{
    Kvferry__EngineLookup *lookup = &request->body.lookup;
    kvferry__engine_request__init(&request->message);
    kvferry__engine_lookup__init(lookup);
    for (size_t i = 0; i < count; i++)
        client->keys[i] =
            (ProtobufCBinaryData){.len = blocks[i].key.length, .data = blocks[i].key.bytes};
    lookup->namespace_ = (char *)(uintptr_t)options->ns;
    lookup->n_keys = count;
    lookup->keys = client->keys;
    if (options->source != NULL)
        lookup->source = (char *)(uintptr_t)options->source;
    lookup->deadline_us = dialog_left_us(deadline_ns);
    request->message.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP;
    request->message.lookup = lookup;
}

struct kvf_status lookup_take(struct kvf_client *client, const Kvferry__EngineReply *reply,
                              struct kvf_get_block *blocks, size_t count)
{
    if (!ready_is_legal(reply->ready, count))
        return dialog_protocol_error(client);
    for (size_t i = 0; i < count; i++) {
        if (!block_is_legal(reply->ready->blocks[i], 0))
            return dialog_protocol_error(client);
        take_block(reply->ready->blocks[i], &blocks[i]);
    }
    return kvf_ok();
}

static struct kvf_status lookup_page(struct kvf_client *client,
                                     const struct kvf_get_options *options,
                                     struct kvf_get_block *blocks, size_t count,
                                     uint64_t deadline_ns)
{
    struct request request;
    const Kvferry__EngineReply *reply;
    lookup_fill(client, &request, options, blocks, count, deadline_ns);
    KVF_TRY(dialog_ask(client, &request.message, deadline_ns, &reply));
    return lookup_take(client, reply, blocks, count);
}

struct kvf_status kvf_lookup(struct kvf_client *client, const struct kvf_get_options *options,
                             struct kvf_get_block *blocks, size_t count, size_t *prefix)
{
    for (size_t i = 0; i < count; i++)
        clear(&blocks[i], KVF_NOT_FOUND);
    struct kvf_status status = check_options(client, options, blocks, count);
    if (kvf_is_ok(status))
        status = ask_pages(client, options, blocks, count, lookup_page);
    if (!kvf_is_ok(status)) {
        for (size_t i = 0; i < count; i++)
            clear(&blocks[i], (enum kvf_code)status.code);
    }
    if (prefix != NULL)
        *prefix = prefix_of(blocks, count);
    return status;
}
