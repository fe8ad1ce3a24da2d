#include "client/pull/wire.h"

#include <stdlib.h>

/* Grants of WIRE_MAX_BLOCKS blocks take about 0.9 MB of structs and protobuf-c's book-keeping. */
#define IN_BYTES ((size_t)3 << 19)

struct kvf_status wire_init(struct wire *wire)
{
    *wire = (struct wire){.in = malloc(IN_BYTES)};
    if (wire->in == NULL)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    kvf_scratch_init(&wire->scratch, wire->in, IN_BYTES);
    return kvf_ok();
}

void wire_fini(struct wire *wire)
{
    free(wire->out);
    free(wire->blocks);
    free(wire->generations);
    free(wire->pointers);
    free(wire->indexes);
    free(wire->in);
}

static bool reserve_arrays(struct wire *wire, size_t count)
{
    Kvferry__ReadBlock *blocks = realloc(wire->blocks, count * sizeof(*blocks));
    if (blocks == NULL)
        return false;
    wire->blocks = blocks;
    Kvferry__Generation *generations = realloc(wire->generations, count * sizeof(*generations));
    if (generations == NULL)
        return false;
    wire->generations = generations;
    Kvferry__ReadBlock **pointers = realloc(wire->pointers, count * sizeof(Kvferry__ReadBlock *));
    if (pointers == NULL)
        return false;
    wire->pointers = pointers;
    uint32_t *indexes = realloc(wire->indexes, count * sizeof(*indexes));
    if (indexes == NULL)
        return false;
    wire->indexes = indexes;
    return true;
}

bool wire_reserve(struct wire *wire, uint32_t blocks)
{
    if (blocks <= wire->block_capacity)
        return true;
    uint32_t capacity = wire->block_capacity > 0 ? wire->block_capacity : 64;
    while (capacity < blocks)
        capacity *= 2;
    bool ok = reserve_arrays(wire, capacity);
    /* Some may have moved even when a later one could not grow. */
    uint32_t valid = ok ? capacity : wire->block_capacity;
    for (uint32_t i = 0; i < valid; i++)
        wire->pointers[i] = &wire->blocks[i];
    wire->block_capacity = valid;
    return ok;
}

void wire_set_block(struct wire *wire, uint32_t i, const struct kvf_key *key, uint64_t length,
                    struct kvf_generation pin)
{
    Kvferry__ReadBlock *block = &wire->blocks[i];
    kvferry__read_block__init(block);
    block->key.data = (uint8_t *)(uintptr_t)key->bytes;
    block->key.len = key->length;
    block->length = length;
    if (!kvf_generation_is_none(pin)) {
        kvferry__generation__init(&wire->generations[i]);
        wire->generations[i].epoch = pin.epoch;
        wire->generations[i].counter = pin.counter;
        block->generation = &wire->generations[i];
    }
}

struct kvf_bytes wire_pack(struct wire *wire, const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > wire->out_capacity || wire->out == NULL) { /* an empty message is one, too */
        size_t capacity = bytes < 2048 ? 4096 : 2 * bytes;
        uint8_t *out = realloc(wire->out, capacity);
        if (out == NULL)
            return (struct kvf_bytes){0};
        wire->out = out;
        wire->out_capacity = capacity;
    }
    (void)protobuf_c_message_pack(message, wire->out);
    return (struct kvf_bytes){.data = wire->out, .length = bytes};
}

Kvferry__SessionDown *wire_unpack_down(struct wire *wire, struct kvf_bytes bytes)
{
    if (bytes.length > KVF_RPC_MAX_MESSAGE_BYTES)
        return NULL;
    return kvferry__session_down__unpack(kvf_scratch_reset(&wire->scratch), bytes.length,
                                         bytes.data);
}

Kvferry__LookupReply *wire_unpack_lookup(struct wire *wire, struct kvf_bytes bytes)
{
    if (bytes.length > KVF_RPC_MAX_MESSAGE_BYTES)
        return NULL;
    return kvferry__lookup_reply__unpack(kvf_scratch_reset(&wire->scratch), bytes.length,
                                         bytes.data);
}

struct kvf_status wire_status(uint32_t code)
{
    if (code == KVF_OK)
        return kvf_ok();
    if (code == KVF_DENIED)
        code = KVF_NOT_FOUND;
    if (code >= KVF_CODE_COUNT)
        code = KVF_UNAVAILABLE;
    return kvf_fail(KVF_MODULE_CLIENT, (enum kvf_code)code, 0);
}

struct kvf_generation wire_generation(const Kvferry__Generation *generation)
{
    if (generation == NULL)
        return (struct kvf_generation){0};
    return (struct kvf_generation){.epoch = generation->epoch, .counter = generation->counter};
}

enum kvf_tier wire_tier(uint32_t tier)
{
    return tier == KVF_TIER_DRAM || tier == KVF_TIER_SSD ? (enum kvf_tier)tier : KVF_TIER_NONE;
}
