/* What engines ask, and how they are answered; what is no request of an engine. */
#include "server/engine_fixture.h"

#include "server/engine_context.h"

#include <signal.h>

/* ---- the straight path ---- */

static void engine__puts_gets_and_releases__leaves_nothing(void **state)
{
    (void)state;
    struct raw_engine engine;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 1, 2, NODE_BLOCK_BYTES)),
                     KVF_OK);
    assert_int_equal(raw_dirty_bytes(), 2 * NODE_BLOCK_BYTES);
    Kvferry__EngineReply *reply = raw_reply_to(&engine, raw_send_commit(&engine, 1, 3));
    assert_int_equal(reply->put_committed->blocks[0]->code, KVF_OK);
    assert_int_equal(reply->put_committed->blocks[0]->generation_epoch, 7);
    assert_int_equal(reply->put_committed->blocks[2]->code, KVF_NOT_FOUND);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    uint64_t get = raw_send_get(&engine, 1, 3, NODE_BLOCK_BYTES);
    reply = raw_reply_to(&engine, get);
    assert_int_equal(reply->ready->prefix, 2);
    assert_int_equal(reply->ready->blocks[0]->crc32c, UINT32_MAX);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    (void)raw_send_release(&engine, get);
    (void)raw_send_release(&engine, get); /* harmless */
    raw_settle(&engine);
    assert_int_equal(node.admission.query.used_bytes, 0);
    assert_int_equal(raw_code_of(&engine, raw_send_unregister(&engine)), KVF_OK);
    raw_leave(&engine);
}

/* A verifying engine says that two blocks are bad: the one that is goes, the other stays. */
static void engine__reports_bad_blocks__those_that_are_bad_are_dropped(void **state)
{
    (void)state;
    struct raw_engine engine;
    uint32_t both[] = {0, 1, 77};
    raw_join(&engine);
    node_put(&node, 1);
    node_put(&node, 2);
    assert_int_equal(raw_register(&engine), KVF_OK);
    uint64_t get = raw_send_get(&engine, 1, 2, NODE_BLOCK_BYTES);
    Kvferry__EngineReply *reply = raw_reply_to(&engine, get);
    assert_int_equal(reply->ready->prefix, 2);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    kvf_extent_at(node_find(&node, 2)->extent)[NODE_BLOCK_BYTES - 1] ^= 0x80;
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRelease body = KVFERRY__ENGINE_RELEASE__INIT;
    body.get = get;
    body.n_blocks = 3;
    body.blocks = both;
    body.bad = true;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE;
    request.release = &body;
    (void)raw_send(&engine, &request);
    raw_settle(&engine);
    node_run_until(kvf_loads_open(node.loads) == 0);
    assert_non_null(node_find(&node, 1));
    assert_true(node_find(&node, 1)->verified);
    assert_null(node_find(&node, 2));
    assert_int_equal(node.counters.dropped[KVF_DROP_CORRUPT], 1);
    raw_leave(&engine);
}

static void engine__largest_requests__are_answered_in_one_packet(void **state)
{
    (void)state;
    struct raw_engine engine;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 0, KVF_WIRE_MAX_BLOCKS, 1)),
                     KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_commit(&engine, 1, KVF_WIRE_MAX_BLOCKS)),
                     KVF_OK);
    uint64_t get = raw_send_get(&engine, 0, KVF_WIRE_MAX_BLOCKS, 0);
    Kvferry__EngineReply *reply = raw_reply_to(&engine, get);
    assert_int_equal(reply->ready->prefix, KVF_WIRE_MAX_BLOCKS);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    assert_int_equal(raw_code_of(&engine, raw_send_get(&engine, 0, KVF_WIRE_MAX_BLOCKS + 1, 0)),
                     KVF_INVALID);
    assert_int_equal(raw_code_of(&engine, raw_send_commit(&engine, 1, KVF_WIRE_MAX_BLOCKS + 1)),
                     KVF_INVALID);
    raw_leave(&engine);
}

/* ---- foreign bytes ---- */

static void engine__illegal_bytes__end_its_connection_alone(void **state)
{
    (void)state;
    struct raw_engine other, engine;
    raw_join(&other);
    assert_int_equal(raw_register(&other), KVF_OK);
    raw_join(&engine);
    assert_true(kvf_is_ok(kvf_wire_send(engine.fd, "\xff\xff\xff\xff", 4, NULL, 0)));
    assert_null(raw_next_reply(&engine));
    raw_leave(&engine);
    raw_join(
        &engine); /* a Get of 32 thousand empty names, which would unpack to sixty times its size */
    assert_int_equal(raw_register(&engine), KVF_OK);
    uint8_t names[KVF_WIRE_MAX_BYTES] = {0x08, 0x09, 0x42, 0xf6, 0xff, 0x03};
    for (size_t i = 6; i + 1 < sizeof(names); i += 2)
        names[i] = 0x12;
    assert_true(kvf_is_ok(kvf_wire_send(engine.fd, names, sizeof(names) - 4, NULL, 0)));
    assert_null(raw_next_reply(&engine));
    raw_leave(&engine);
    raw_join(&engine); /* something before Register */
    (void)raw_send_cancel(&engine, 1);
    assert_null(raw_next_reply(&engine));
    raw_leave(&engine);
    raw_join(&engine); /* a request that says nothing */
    assert_int_equal(raw_register(&engine), KVF_OK);
    Kvferry__EngineRequest empty = KVFERRY__ENGINE_REQUEST__INIT;
    raw_send_as(&engine, &empty, 9);
    assert_null(raw_next_reply(&engine));
    raw_leave(&engine);
    (void)raw_send_cancel(&other, 77);
    raw_settle(&other);
    raw_leave(&other);
}

static void engine__request_without_a_number__ends_its_connection(void **state)
{
    (void)state;
    struct raw_engine engine;
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineCancel body = KVFERRY__ENGINE_CANCEL__INIT;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL;
    request.cancel = &body;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    raw_send_as(&engine, &request, 0);
    assert_null(raw_next_reply(&engine));
    raw_leave(&engine);
}

static void engine__names_that_cannot_be__are_invalid(void **state)
{
    (void)state;
    struct raw_engine engine;
    char long_text[400];
    memset(long_text, 'a', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    const char *spaces[] = {"", "t", "t/", "/f", "t/f/g", "t/f\n", long_text};
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineGet body = KVFERRY__ENGINE_GET__INIT;
    uint8_t key[65] = {0};
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request.get = &body;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    body.n_blocks = 1;
    body.blocks = raw_names(1, 1, NODE_BLOCK_BYTES);
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        body.namespace_ = (char *)(uintptr_t)spaces[i];
        assert_int_equal(raw_code_of(&engine, raw_send(&engine, &request)), KVF_INVALID);
    }
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.source = long_text;
    assert_int_equal(raw_code_of(&engine, raw_send(&engine, &request)), KVF_INVALID);
    body.source = (char *)(uintptr_t) "";
    for (size_t length = 0; length <= 65; length += 65) {
        body.blocks[0]->key = (ProtobufCBinaryData){.len = length, .data = key};
        assert_int_equal(raw_code_of(&engine, raw_send(&engine, &request)), KVF_INVALID);
    }
    body.blocks[0]->key.len = 64;
    body.blocks[0]->length = UINT64_MAX;
    body.deadline_us = UINT64_MAX;
    assert_int_equal(raw_code_of(&engine, raw_send(&engine, &request)), KVF_OK); /* a miss */
    raw_leave(&engine);
}

static void engine__asks_and_never_releases__is_busy_in_the_end(void **state)
{
    (void)state;
    struct raw_engine engine;
    struct put *put = node_begin(&node, 0);
    enum kvf_code code = KVF_OK;
    unsigned gets = 0;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    /* They wait for the put; the commit is answered. */
    for (; code == KVF_OK && gets < 1000; gets++) {
        uint64_t get = raw_send_get(&engine, 0, KVF_WIRE_MAX_BLOCKS, NODE_BLOCK_BYTES);
        uint64_t id = raw_send_commit(&engine, UINT32_MAX, 1);
        Kvferry__EngineReply *reply = raw_next_reply(&engine);
        assert_non_null(reply);
        assert_true(reply->id == get || reply->id == id);
        code = (enum kvf_code)reply->code;
        kvferry__engine_reply__free_unpacked(reply, NULL);
    }
    assert_int_equal(code, KVF_BUSY);
    assert_int_equal(gets, (256 << 10) / KVF_WIRE_MAX_BLOCKS + 1);
    raw_leave(&engine);
    node_run_until(kvf_engines_count(engines) == 0);
    put_abort(put);
}

/* ---- answers that cross with a Cancel ---- */

static void cancel__crossed_with_the_answer__gives_everything_back(void **state)
{
    (void)state;
    struct raw_engine engine;
    node_put(&node, 1);
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    uint64_t get = raw_send_get(&engine, 1, 1, NODE_BLOCK_BYTES);
    node_run_until(node.admission.query.used_bytes > 0); /* answered, and nobody reads the answer */
    (void)raw_send_cancel(&engine, get);
    node_run_until(node.admission.query.used_bytes == 0);
    assert_int_equal(raw_code_of(&engine, get), KVF_OK);
    (void)raw_send_release(&engine, get); /* harmless */
    raw_settle(&engine);
    raw_leave(&engine);
}

static void cancel__crossed_with_the_places__gives_those_of_its_put_begin_back(void **state)
{
    (void)state;
    struct raw_engine engine;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 1, 1, NODE_BLOCK_BYTES)),
                     KVF_OK);
    uint64_t begin = raw_send_put_begin(&engine, 2, 3, NODE_BLOCK_BYTES);
    /* Answered, and nobody reads the answer. */
    node_run_until(raw_dirty_bytes() == 4 * NODE_BLOCK_BYTES);
    (void)raw_send_cancel(&engine, begin);
    node_run_until(raw_dirty_bytes() == NODE_BLOCK_BYTES);
    assert_int_equal(raw_code_of(&engine, begin), KVF_OK);
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 3, 1, NODE_BLOCK_BYTES)),
                     KVF_OK);
    (void)raw_send_cancel(&engine, UINT64_MAX); /* of nothing: harmless */
    assert_int_equal(raw_code_of(&engine, raw_send_unregister(&engine)), KVF_OK);
    assert_int_equal(raw_dirty_bytes(), 0);
    raw_leave(&engine);
}

/* ---- states ---- */

static void set_state__every_pair__follows_the_life_of_a_context(void **state)
{
    (void)state;
    for (enum context_state from = CONTEXT_CONNECTED; from <= CONTEXT_LEAVING; from++)
        for (enum context_state to = CONTEXT_CONNECTED; to <= CONTEXT_LEAVING; to++) {
            struct context context = {.state = from};
            if (to > from)
                engine_set_state(&context, to);
            else
                assert_aborts(engine_set_state(&context, to));
        }
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        RAW_ENGINE_TEST(engine__puts_gets_and_releases__leaves_nothing),
        RAW_ENGINE_TEST(engine__reports_bad_blocks__those_that_are_bad_are_dropped),
        RAW_ENGINE_TEST(engine__largest_requests__are_answered_in_one_packet),
        RAW_ENGINE_TEST(engine__illegal_bytes__end_its_connection_alone),
        RAW_ENGINE_TEST(engine__request_without_a_number__ends_its_connection),
        RAW_ENGINE_TEST(engine__names_that_cannot_be__are_invalid),
        RAW_ENGINE_TEST(engine__asks_and_never_releases__is_busy_in_the_end),
        RAW_ENGINE_TEST(cancel__crossed_with_the_answer__gives_everything_back),
        RAW_ENGINE_TEST(cancel__crossed_with_the_places__gives_those_of_its_put_begin_back),
        RAW_ENGINE_TEST(set_state__every_pair__follows_the_life_of_a_context),
    };
    return cmocka_run_group_tests_name("server/engines", tests, NULL, NULL);
}
