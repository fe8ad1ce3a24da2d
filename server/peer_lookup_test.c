#include "server/consumer_fixture.h"

static void lookup__keys_of_every_kind__are_answered_in_order(void **state)
{
    (void)state;
    static ProtobufCBinaryData keys[KVF_PEER_MAX_LOOKUP_KEYS + 1];
    struct kvf_key here = node_key(1), begun = node_key(2);
    uint8_t long_key[65] = {0};
    node_put(&node, 1);
    struct put *put = node_begin(&node, 2);
    keys[0] = (ProtobufCBinaryData){.len = here.length, .data = here.bytes};
    keys[1] = (ProtobufCBinaryData){.len = begun.length, .data = begun.bytes};
    keys[2] = (ProtobufCBinaryData){.len = 65, .data = long_key};
    keys[3] = (ProtobufCBinaryData){.len = 0};
    lookup.answers = 0;
    assert_int_equal(consumer_look_up(NODE_SPACE, keys, 4), KVF_OK);
    assert_int_equal(lookup.codes[0], KVF_OK);
    assert_int_equal(lookup.codes[1], KVF_PENDING);
    assert_int_equal(lookup.codes[2], KVF_NOT_FOUND);
    assert_int_equal(lookup.codes[3], KVF_NOT_FOUND);
    assert_int_equal(consumer_look_up("no namespace", keys, 1), KVF_OK);
    assert_int_equal(lookup.codes[0], KVF_NOT_FOUND);
    for (size_t i = 0; i <= KVF_PEER_MAX_LOOKUP_KEYS; i++)
        keys[i] = keys[0];
    assert_int_equal(consumer_look_up(NODE_SPACE, keys, KVF_PEER_MAX_LOOKUP_KEYS), KVF_OK);
    assert_int_equal(lookup.count, KVF_PEER_MAX_LOOKUP_KEYS);
    assert_int_equal(lookup.answers, 3);
    keys[0].len = 1; /* unknown */
    kvf_awaited_open(&node.awaited);
    assert_int_equal(consumer_look_up(NODE_SPACE, keys, 1), KVF_OK);
    assert_int_equal(lookup.codes[0], KVF_PENDING);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(consumer_look_up(NODE_SPACE, keys, KVF_PEER_MAX_LOOKUP_KEYS + 1), KVF_INVALID);
    put_abort(put);
}

static void lookup__half_a_million_empty_keys__is_invalid(void **state)
{
    (void)state;
    static uint8_t bytes[CONSUMER_EMPTY_BYTES];
    size_t length = consumer_fill_empty(bytes, false);
    assert_int_equal(consumer_ask((struct kvf_bytes){bytes, length}), KVF_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONSUMER_TEST(lookup__keys_of_every_kind__are_answered_in_order),
        CONSUMER_TEST(lookup__half_a_million_empty_keys__is_invalid),
    };
    return cmocka_run_group_tests_name("server/peer_lookup", tests, NULL, NULL);
}
