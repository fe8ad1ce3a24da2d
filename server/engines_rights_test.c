/* What the ACL lets an engine do, and what it is told it can hold. */
#include "server/engine_fixture.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void assert_put(struct raw_engine *engine, unsigned block)
{
    assert_int_equal(raw_code_of(engine, raw_send_put_begin(engine, block, 1, NODE_BLOCK_BYTES)),
                     KVF_OK);
    Kvferry__EngineReply *reply = raw_reply_to(engine, raw_send_commit(engine, 1, 1));
    assert_int_equal(reply->put_committed->blocks[0]->code, KVF_OK);
    kvferry__engine_reply__free_unpacked(reply, NULL);
}

/* The packed answer to a Get of one block, its id aside. */
static size_t answer_of_get(struct raw_engine *engine, unsigned block, uint8_t *bytes)
{
    uint64_t get = raw_send_get(engine, block, 1, NODE_BLOCK_BYTES);
    Kvferry__EngineReply *reply = raw_reply_to(engine, get);
    reply->id = 1;
    size_t length = kvferry__engine_reply__pack(reply, bytes);
    kvferry__engine_reply__free_unpacked(reply, NULL);
    (void)raw_send_release(engine, get);
    return length;
}

static void rights__read_taken_away__a_block_looks_like_one_that_is_not_there(void **state)
{
    (void)state;
    struct raw_engine engine;
    static uint8_t missing[KVF_WIRE_MAX_BYTES], denied[KVF_WIRE_MAX_BYTES];
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_put(&engine, 1);
    size_t length = answer_of_get(&engine, 9, missing);
    assert_int_not_equal(answer_of_get(&engine, 1, denied), length);
    raw_change_rights("\"write\"");
    assert_int_equal(answer_of_get(&engine, 1, denied), length);
    assert_memory_equal(denied, missing, length);
    raw_leave(&engine);
}

static void rights__write_taken_away__puts_and_forget_are_denied(void **state)
{
    (void)state;
    struct raw_engine engine;
    static uint8_t bytes[KVF_WIRE_MAX_BYTES];
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    assert_put(&engine, 1);
    raw_change_rights("\"read\"");
    assert_int_equal(raw_code_of(&engine, raw_send_put_begin(&engine, 2, 1, NODE_BLOCK_BYTES)),
                     KVF_DENIED);
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineForget body = KVFERRY__ENGINE_FORGET__INIT;
    struct kvf_key key = node_key(1);
    ProtobufCBinaryData keys[] = {{.len = key.length, .data = key.bytes}};
    body.namespace_ = (char *)(uintptr_t)NODE_SPACE;
    body.n_keys = 1;
    body.keys = keys;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET;
    request.forget = &body;
    assert_int_equal(raw_code_of(&engine, raw_send(&engine, &request)), KVF_DENIED);
    assert_non_null(node_find(&node, 1));
    assert_true(answer_of_get(&engine, 1, bytes) > 0);
    raw_leave(&engine);
}

static void rights__user_not_named_any_more__ended_and_cannot_come_back(void **state)
{
    (void)state;
    struct raw_engine engine, again;
    raw_join(&engine);
    assert_int_equal(raw_register(&engine), KVF_OK);
    raw_change_rights(NULL);
    assert_null(raw_next_reply(&engine));
    raw_leave(&engine);
    raw_join(&again);
    assert_int_equal(raw_register(&again), KVF_DENIED);
    raw_leave(&again);
}

/* Of the tenants that it may read, or write, the largest share. */
static void register__tenants_have_shares__is_told_what_they_can_hold(void **state)
{
    (void)state;
    struct raw_engine engine;
    const struct {
        const char *tenants, *rights;
        uint64_t get_mib, put_mib;
    } cases[] = {
        {"", "\"t\": [\"read\", \"write\"]", 16, 16},
        {"\"t\": {\"dram\": 0.25}", "\"t\": [\"read\", \"write\"]", 4, 4},
        {"\"t\": {\"dram\": 0.25}, \"u\": {\"dram\": 0.5}",
         "\"t\": [\"read\", \"write\"], \"u\": [\"read\"]", 8, 4},
        {"\"t\": {\"dram\": 0.25}", "\"t\": [\"read\"], \"u\": [\"read\"]", 16, 0},
    };
    for (size_t i = 0; i < 4; i++) {
        FILE *file = fopen(raw_acl_path, "w");
        assert_non_null(file);
        (void)fprintf(file, "{\"tenants\": {%s}, \"identities\": {\"uid:%u\": {%s}}}",
                      cases[i].tenants, getuid(), cases[i].rights);
        assert_int_equal(fclose(file), 0);
        assert_true(kvf_is_ok(kvf_acl_reload(raw_acl, NULL)));
        raw_join(&engine);
        assert_int_equal(raw_register(&engine), KVF_OK);
        assert_int_equal(raw_max_get_bytes / KVF_MIB, cases[i].get_mib);
        assert_int_equal(raw_max_put_bytes / KVF_MIB, cases[i].put_mib);
        raw_leave(&engine);
        node_run_until(kvf_engines_count(engines) == 0);
    }
    assert_int_equal(raw_max_put_bytes, KVF_PAGE); /* 0 would say that there is no limit */
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        RAW_ENGINE_TEST_ACL(rights__read_taken_away__a_block_looks_like_one_that_is_not_there),
        RAW_ENGINE_TEST_ACL(rights__write_taken_away__puts_and_forget_are_denied),
        RAW_ENGINE_TEST_ACL(rights__user_not_named_any_more__ended_and_cannot_come_back),
        RAW_ENGINE_TEST_ACL(register__tenants_have_shares__is_told_what_they_can_hold),
    };
    return cmocka_run_group_tests_name("server/engines: rights", tests, NULL, NULL);
}
