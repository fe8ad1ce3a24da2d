#include "client/pull/wire.h"

#include "base/test.h"

#include <stdlib.h>
#include <string.h>

static struct wire wire;

static int set_up(void **state)
{
    (void)state;
    return kvf_is_ok(wire_init(&wire)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    wire_fini(&wire);
    return 0;
}

static struct kvf_bytes pack_longest_read(void)
{
    static char space[KVF_NAMESPACE_MAX_BYTES + 1];
    static struct kvf_key key;
    Kvferry__Read read = KVFERRY__READ__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    memset(space, 'a', KVF_NAMESPACE_MAX_BYTES);
    memset(&key, 0xff, sizeof(key));
    key.length = KVF_KEY_MAX_BYTES;
    assert_true(wire_reserve(&wire, WIRE_MAX_BLOCKS));
    for (uint32_t i = 0; i < WIRE_MAX_BLOCKS; i++)
        wire_set_block(&wire, i, &key, UINT64_MAX, (struct kvf_generation){UINT64_MAX, UINT64_MAX});
    read.id = read.instance = read.deadline_us = UINT64_MAX;
    read.namespace_ = space;
    read.stop_at_first_miss = true;
    read.n_blocks = WIRE_MAX_BLOCKS;
    read.blocks = wire.pointers;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_READ;
    up.read = &read;
    return wire_pack(&wire, &up.base);
}

static void wire_pack__longest_read__keeps_its_stated_size(void **state)
{
    (void)state;
    struct kvf_bytes bytes = pack_longest_read();
    assert_non_null(bytes.data);
    assert_true(bytes.length <=
                WIRE_READ_HEAD_BYTES + (size_t)WIRE_MAX_BLOCKS * WIRE_READ_BLOCK_BYTES);
    assert_true(bytes.length <= KVF_RPC_MAX_MESSAGE_BYTES);
    Kvferry__SessionUp *up = kvferry__session_up__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(up);
    assert_int_equal(up->read->n_blocks, WIRE_MAX_BLOCKS);
    assert_int_equal(up->read->blocks[WIRE_MAX_BLOCKS - 1]->key.len, KVF_KEY_MAX_BYTES);
    kvferry__session_up__free_unpacked(up, NULL);
}

static void wire_set_block__no_pin__sends_none(void **state)
{
    (void)state;
    struct kvf_key key;
    assert_true(kvf_key_set(&key, "k", 1));
    assert_true(wire_reserve(&wire, 2));
    wire_set_block(&wire, 0, &key, 1, (struct kvf_generation){1, 2});
    wire_set_block(&wire, 1, &key, 1, (struct kvf_generation){0});
    assert_int_equal(wire.pointers[0]->generation->counter, 2);
    assert_null(wire.pointers[1]->generation);
    wire_set_block(&wire, 0, &key, 1, (struct kvf_generation){0});
    assert_null(wire.pointers[0]->generation);
}

static size_t pack_grants(uint8_t *bytes, size_t room, size_t count)
{
    Kvferry__GrantBlock *blocks = calloc(count, sizeof(*blocks));
    Kvferry__GrantBlock **pointers = calloc(count, sizeof(*pointers));
    Kvferry__Generation generation = KVFERRY__GENERATION__INIT;
    Kvferry__Grants grants = KVFERRY__GRANTS__INIT;
    Kvferry__SessionDown down = KVFERRY__SESSION_DOWN__INIT;
    generation.epoch = generation.counter = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        kvferry__grant_block__init(&blocks[i]);
        pointers[i] = &blocks[i];
        blocks[i].length = i + 1;
        blocks[i].generation = &generation;
        blocks[i].crc32c = UINT32_MAX;
    }
    grants.n_blocks = count;
    grants.blocks = pointers;
    down.message_case = KVFERRY__SESSION_DOWN__MESSAGE_GRANTS;
    down.grants = &grants;
    assert_true(kvferry__session_down__get_packed_size(&down) <= room);
    size_t length = kvferry__session_down__pack(&down, bytes);
    free(blocks);
    free(pointers);
    return length;
}

static void wire_unpack_down__most_blocks__fits(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    size_t length = pack_grants(bytes, sizeof(bytes), WIRE_MAX_BLOCKS);
    for (int round = 0; round < 3; round++) {
        Kvferry__SessionDown *down =
            wire_unpack_down(&wire, (struct kvf_bytes){.data = bytes, .length = length});
        assert_non_null(down);
        assert_int_equal(down->grants->n_blocks, WIRE_MAX_BLOCKS);
        assert_int_equal(down->grants->blocks[WIRE_MAX_BLOCKS - 1]->length, WIRE_MAX_BLOCKS);
    }
}

/* A megabyte of the shortest possible sub-messages would unpack to sixty times its size. */
static void wire_unpack_down__huge_counts__are_refused(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    size_t body = 900000, at = 0;
    bytes[at++] = 0x12; /* grants */
    for (size_t left = body; at < 4; left >>= 7)
        bytes[at++] = (uint8_t)((left & 0x7f) | (left >> 7 > 0 ? 0x80 : 0));
    for (size_t i = 0; i < body; i += 2)
        bytes[at + i] = 0x12; /* an empty block */
    assert_null(wire_unpack_down(&wire, (struct kvf_bytes){.data = bytes, .length = at + body}));
    assert_null(wire_unpack_down(
        &wire, (struct kvf_bytes){.data = bytes, .length = KVF_RPC_MAX_MESSAGE_BYTES + 1}));
}

/* Every message cut anywhere, and with every byte changed, is unpacked or refused; nothing else happens. */
static void wire_unpack__any_bytes__no_harm(void **state)
{
    (void)state;
    uint8_t bytes[512], copy[512];
    size_t length = pack_grants(bytes, sizeof(bytes), 5);
    for (size_t cut = 0; cut <= length; cut++)
        (void)wire_unpack_down(&wire, (struct kvf_bytes){.data = bytes, .length = cut});
    for (size_t i = 0; i < length; i++) {
        for (unsigned value = 0; value < 256; value++) {
            memcpy(copy, bytes, length);
            copy[i] = (uint8_t)value;
            (void)wire_unpack_down(&wire, (struct kvf_bytes){.data = copy, .length = length});
            (void)wire_unpack_lookup(&wire, (struct kvf_bytes){.data = copy, .length = length});
        }
    }
}

static void wire_status__foreign_codes__become_ours(void **state)
{
    (void)state;
    assert_true(kvf_is_ok(wire_status(KVF_OK)));
    assert_int_equal(wire_status(KVF_BUSY).code, KVF_BUSY);
    assert_int_equal(wire_status(KVF_DENIED).code, KVF_NOT_FOUND);
    assert_int_equal(wire_status(KVF_CODE_COUNT).code, KVF_UNAVAILABLE);
    assert_int_equal(wire_status(UINT32_MAX).code, KVF_UNAVAILABLE);
    assert_int_equal(wire_status(0x10000).code, KVF_UNAVAILABLE);
    assert_int_equal(wire_tier(9), KVF_TIER_NONE);
    assert_int_equal(wire_tier(2), KVF_TIER_SSD);
}

#define WIRE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WIRE_TEST(wire_pack__longest_read__keeps_its_stated_size),
        WIRE_TEST(wire_set_block__no_pin__sends_none),
        WIRE_TEST(wire_unpack_down__most_blocks__fits),
        WIRE_TEST(wire_unpack_down__huge_counts__are_refused),
        WIRE_TEST(wire_unpack__any_bytes__no_harm),
        WIRE_TEST(wire_status__foreign_codes__become_ours),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
