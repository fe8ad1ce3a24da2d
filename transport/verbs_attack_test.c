/* What the NICs of a lane's two ends must refuse: peers that read, write and add where they may not, say nonces that are
 * none, or give tokens that open nothing. */
#include "transport/testbed.h"
#include "transport/verbs.h"
#include "transport/verbs_raw.h"

#include <stdlib.h>
#include <string.h>

#define PLACE 8192
#define BYTES 10000

/* ---- a lane whose consumer is a raw one ---- */

static struct verbs_raw raw;
static struct testbed_read *offered;

static bool all_are_told(void *argument)
{
    struct testbed_read *read = argument;
    for (uint32_t i = 0; i < read->read.block_count; i++)
        if (read->tokens[i].length == 0)
            return false;
    return true;
}

static bool connect_raw(const struct kvf_nonce *nonce)
{
    uint8_t greeting[VERBS_GREETING_BYTES];
    verbs_greeting_write(nonce, greeting);
    return verbs_raw_connect(&raw, testbed.host, testbed_port(), greeting, sizeof(greeting));
}

static void open_victim(void)
{
    testbed_invite(TESTBED_WAIT_S * 1000);
    assert_true(connect_raw(&testbed.nonces.connect));
    testbed_wait_opened(&testbed.source);
}

/* Two blocks, the first of which is the one to attack. */
static struct verbs_token offer(void)
{
    offered = testbed_read_make(&testbed.source, 1, 7, 2);
    testbed_read_set(offered, 0, PLACE, BYTES, BYTES);
    testbed_read_set(offered, 1, PLACE + KVF_MIB, BYTES, BYTES);
    testbed_offer(offered);
    testbed_wait(all_are_told, offered);
    return verbs_token_read(offered->tokens[0].bytes);
}

static void close_victim(void)
{
    verbs_raw_close(&raw);
    if (testbed.source.lane != NULL)
        kvf_lane_close(testbed.source.lane);
    testbed_wait_closed(&testbed.source);
    free(offered);
    offered = NULL;
}

static bool is_untouched(const uint8_t *at, uint64_t bytes, uint8_t value)
{
    return at[0] == value && memcmp(at, at + 1, bytes - 1) == 0;
}

/* A READ that must fail and bring nothing; the lane is dead after it. */
static void check_read_refused(uint32_t key, uint64_t address, uint32_t bytes)
{
    assert_int_equal(verbs_raw_read(&raw, key, address, bytes), IBV_WC_REM_ACCESS_ERR);
    assert_true(is_untouched(raw.memory, VERBS_RAW_BYTES, 0xee));
}

static struct ibv_mr *region_of(const struct testbed_end *end)
{
    struct verbs_transport *transport = verbs_transport_of(end->transport);
    return verbs_device_region(&transport->devices[0], &end->arena);
}

/* ---- reading ---- */

static void read__with_the_token__is_answered(void **state)
{
    (void)state;
    open_victim();
    struct verbs_token token = offer();
    assert_int_equal(verbs_raw_read(&raw, token.key, token.address, BYTES), IBV_WC_SUCCESS);
    assert_memory_equal(raw.memory, testbed.pattern + PLACE, BYTES);
    close_victim();
}

static void read__with_a_wrong_key__refused(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 32; bit += bit < 8 ? 1 : 6) {
        open_victim();
        struct verbs_token token = offer();
        check_read_refused(token.key ^ (1u << bit), token.address, BYTES);
        close_victim();
    }
}

/* The region that all windows are cut from has no remote right. */
static void read__with_the_key_of_the_region__refused(void **state)
{
    (void)state;
    struct ibv_mr *mr = region_of(&testbed.source);
    open_victim();
    (void)offer();
    check_read_refused(mr->rkey, (uintptr_t)mr->addr, 16);
    close_victim();
}

static void read__beyond_the_region__refused(void **state)
{
    (void)state;
    static const uint64_t places[] = {TESTBED_ARENA_BYTES - PLACE - 1, TESTBED_ARENA_BYTES,
                                      1ull << 40, UINT64_MAX - BYTES};
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        open_victim();
        struct verbs_token token = offer();
        check_read_refused(token.key, token.address + places[i], 4096);
        close_victim();
    }
}

/* Where the device keeps windows' bounds; where it does not, the transport has said so. */
static void read__past_the_window__refused_or_one_tenant(void **state)
{
    (void)state;
    const struct kvf_transport_traits *traits = kvf_transport_traits(testbed.source.transport);
    open_victim();
    struct verbs_token token = offer();
    int status = verbs_raw_read(&raw, token.key, token.address + 1, BYTES);
    assert_int_equal(traits->single_tenant, status == IBV_WC_SUCCESS);
    assert_int_equal(traits->single_tenant, traits->single_tenant_why[0] != '\0');
    if (!traits->single_tenant)
        assert_int_equal(status, IBV_WC_REM_ACCESS_ERR);
    close_victim();
}

static void read__after_the_release__refused(void **state)
{
    (void)state;
    open_victim();
    struct verbs_token token = offer();
    kvf_lane_release(&offered->read);
    testbed_wait_ended(offered);
    assert_int_equal(offered->ended_ok, 2);
    check_read_refused(token.key, token.address, BYTES);
    close_victim();
}

/* By the time its blocks have ended, the memory is somebody else's. */
static void read__after_the_lane_was_closed__refused(void **state)
{
    (void)state;
    open_victim();
    struct verbs_token token = offer();
    kvf_lane_close(testbed.source.lane);
    testbed_wait_closed(&testbed.source);
    assert_int_not_equal(verbs_raw_read(&raw, token.key, token.address, BYTES), IBV_WC_SUCCESS);
    assert_true(is_untouched(raw.memory, VERBS_RAW_BYTES, 0xee));
    close_victim();
}

/* A window that was used again has another key. */
static void read__with_the_token_of_an_earlier_block__refused(void **state)
{
    (void)state;
    open_victim();
    struct verbs_token old = offer(), now = {0};
    for (unsigned tries = 0; now.key >> 8 != old.key >> 8; tries++) {
        assert_true(tries < 2 * TESTBED_MAX_BLOCKS);
        kvf_lane_release(&offered->read);
        testbed_wait_ended(offered);
        free(offered);
        now = offer();
    }
    assert_int_not_equal(now.key, old.key);
    assert_int_equal(verbs_raw_read(&raw, now.key, now.address, 16), IBV_WC_SUCCESS);
    memset(raw.memory, 0xee, VERBS_RAW_BYTES);
    check_read_refused(old.key, old.address, BYTES);
    close_victim();
}

static void read__with_the_token_of_another_lane__refused(void **state)
{
    (void)state;
    struct testbed_end other = {.transport = testbed.source.transport};
    struct verbs_raw first;
    open_victim();
    struct verbs_token token = offer();
    first = raw;
    struct testbed_end saved = testbed.source;
    struct kvf_lane_nonces nonces;
    testbed_end_invite(&other, &nonces, TESTBED_WAIT_S * 1000);
    assert_true(connect_raw(&nonces.connect));
    check_read_refused(token.key, token.address, BYTES);
    verbs_raw_close(&raw);
    kvf_lane_close(other.lane);
    testbed_wait_closed(&other);
    /* The lane whose token it was is as good as before. */
    assert_ptr_equal(testbed.source.lane, saved.lane);
    raw = first;
    assert_int_equal(verbs_raw_read(&raw, token.key, token.address, BYTES), IBV_WC_SUCCESS);
    close_victim();
}

/* ---- changing ---- */

static void write__to_the_source__refused_and_nothing_is_changed(void **state)
{
    (void)state;
    struct ibv_mr *mr = region_of(&testbed.source);
    for (unsigned way = 0; way < 4; way++) {
        open_victim();
        struct verbs_token token = offer();
        if (way < 2)
            token = (struct verbs_token){.address = (uintptr_t)mr->addr, .key = mr->rkey};
        int status = way % 2 == 0 ? verbs_raw_write(&raw, token.key, token.address, 64)
                                  : verbs_raw_add(&raw, token.key, token.address);
        assert_true(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR);
        close_victim();
        assert_memory_equal(testbed.source.arena.base, testbed.pattern, TESTBED_ARENA_BYTES);
    }
}

/* ---- nonces ---- */

static void connect__bytes_that_are_no_nonce_of_ours__refused_and_counted(void **state)
{
    (void)state;
    uint8_t good[56] = {0}, bytes[56];
    unsigned refused = 0;
    testbed_invite(TESTBED_WAIT_S * 1000);
    verbs_greeting_write(&testbed.nonces.connect, good);
    for (unsigned way = 0; way < 12; way++) {
        uint8_t length = sizeof(bytes);
        memcpy(bytes, good, sizeof(bytes));
        switch (way) {
        case 0:
            memset(bytes, 0, sizeof(bytes));
            break;
        case 1:
            memset(bytes, 0xff, sizeof(bytes));
            break;
        case 2:
            length = 0;
            break;
        case 3:
            length = VERBS_GREETING_BYTES - 1;
            break;
        default:
            bytes[(way - 4) * 5] ^= 1; /* magic, version, nonce */
            break;
        }
        assert_false(verbs_raw_connect(&raw, testbed.host, testbed_port(),
                                       length > 0 ? bytes : NULL, length));
        verbs_raw_close(&raw);
        refused++;
        assert_int_equal(testbed_stats(&testbed.source).protocol_errors, refused);
    }
    assert_int_equal(testbed.source.closed_count, 0);
    assert_true(connect_raw(&testbed.nonces.connect));
    testbed_wait_opened(&testbed.source);
    close_victim();
}

static void connect__nonce_of_a_lane_that_is_open__refused(void **state)
{
    (void)state;
    struct verbs_raw first;
    open_victim();
    struct verbs_token token = offer();
    first = raw;
    assert_false(connect_raw(&testbed.nonces.connect));
    verbs_raw_close(&raw);
    raw = first;
    assert_int_equal(verbs_raw_read(&raw, token.key, token.address, BYTES), IBV_WC_SUCCESS);
    close_victim();
}

/* ---- sources that lie ---- */

static void connect_to_raw(int port)
{
    testbed_end_connect(&testbed.consumer, port, &testbed.nonces, TESTBED_WAIT_S * 1000);
}

static void close_raw_source(void)
{
    verbs_raw_close(&raw);
    if (testbed.consumer.lane != NULL)
        kvf_lane_close(testbed.consumer.lane);
    testbed_wait_closed(&testbed.consumer);
}

static void open_raw_source(void)
{
    uint8_t greeting[VERBS_GREETING_BYTES];
    verbs_greeting_write(&testbed.nonces.accept, greeting);
    connect_to_raw(verbs_raw_listen(&raw, testbed.host));
    assert_true(verbs_raw_accept(&raw, greeting, sizeof(greeting)));
    testbed_wait_opened(&testbed.consumer);
}

static void answer__that_is_no_greeting__protocol_and_never_open(void **state)
{
    (void)state;
    static const uint8_t nonsense[VERBS_GREETING_BYTES] = {1, 2, 3};
    connect_to_raw(verbs_raw_listen(&raw, testbed.host));
    assert_true(verbs_raw_accept(&raw, nonsense, sizeof(nonsense)));
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(testbed.consumer.closed.code, KVF_PROTOCOL);
    assert_int_equal(testbed.consumer.opened_count, 0);
    close_raw_source();
}

/* It knows the true key of the consumer's region, and may not use it. */
static void write__to_the_consumer__refused_and_nothing_is_changed(void **state)
{
    (void)state;
    struct ibv_mr *mr = region_of(&testbed.consumer);
    for (unsigned way = 0; way < 3; way++) {
        open_raw_source();
        int status = way == 0   ? verbs_raw_write(&raw, mr->rkey, (uintptr_t)mr->addr, 64)
                     : way == 1 ? verbs_raw_add(&raw, mr->rkey, (uintptr_t)mr->addr)
                                : verbs_raw_read(&raw, mr->rkey, (uintptr_t)mr->addr, 64);
        assert_true(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR);
        close_raw_source();
        assert_true(testbed_is_untouched(testbed.consumer.arena.base, TESTBED_ARENA_BYTES));
    }
}

/* A token that opens nothing costs the lane, and the destination stays as it was. */
static void token__that_opens_nothing__lane_ends_and_memory_is_untouched(void **state)
{
    (void)state;
    uint8_t bytes[VERBS_TOKEN_BYTES];
    for (unsigned way = 0; way < 4; way++) {
        struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 2);
        struct verbs_token token = {.address = way % 2 == 0 ? 0 : UINT64_MAX,
                                    .key = way < 2 ? 0 : 0xffffffff};
        testbed_read_set(to, 0, 0, 5 * KVF_MIB, 0);
        testbed_read_set(to, 1, 8 * KVF_MIB, 5 * KVF_MIB, 0);
        testbed_lanes_open();
        testbed_expect(to);
        verbs_token_write(&token, bytes);
        assert_true(kvf_is_ok(kvf_lane_take(&to->read, 0, bytes, sizeof(bytes))));
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(testbed.consumer.closed.code, KVF_UNAVAILABLE);
        assert_int_equal(testbed.consumer.closed.detail, IBV_WC_REM_ACCESS_ERR);
        assert_int_equal(to->ended, 2);
        assert_int_equal(to->ended_ok, 0);
        testbed_wait_closed(&testbed.source);
        assert_true(testbed_is_untouched(testbed.consumer.arena.base, TESTBED_ARENA_BYTES));
        free(to);
    }
}

static void token__that_is_none_or_the_second__protocol(void **state)
{
    (void)state;
    uint8_t bytes[KVF_TOKEN_MAX_BYTES] = {0};
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
    testbed_read_set(to, 0, 0, 4096, 0);
    testbed_invite(TESTBED_WAIT_S * 1000);
    testbed_connect(&testbed.nonces, TESTBED_WAIT_S * 1000); /* not open yet: nothing is read */
    testbed_stall(&testbed.consumer);
    testbed_expect(to);
    for (size_t length = 0; length <= sizeof(bytes); length++)
        assert_int_equal(kvf_lane_take(&to->read, 0, bytes, length).code, KVF_PROTOCOL);
    verbs_token_write(&(struct verbs_token){.key = 1}, bytes);
    assert_true(kvf_is_ok(kvf_lane_take(&to->read, 0, bytes, VERBS_TOKEN_BYTES)));
    assert_int_equal(kvf_lane_take(&to->read, 0, bytes, VERBS_TOKEN_BYTES).code, KVF_PROTOCOL);
    kvf_lane_close(testbed.consumer.lane);
    testbed_go_on();
    testbed_wait_closed(&testbed.consumer);
    assert_int_equal(to->ended, 1);
    free(to);
}

#define TEST(function) TESTBED_TEST("verbs", function)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(read__with_the_token__is_answered),
        TEST(read__with_a_wrong_key__refused),
        TEST(read__with_the_key_of_the_region__refused),
        TEST(read__beyond_the_region__refused),
        TEST(read__past_the_window__refused_or_one_tenant),
        TEST(read__after_the_release__refused),
        TEST(read__after_the_lane_was_closed__refused),
        TEST(read__with_the_token_of_an_earlier_block__refused),
        TEST(read__with_the_token_of_another_lane__refused),
        TEST(write__to_the_source__refused_and_nothing_is_changed),
        TEST(connect__bytes_that_are_no_nonce_of_ours__refused_and_counted),
        TEST(connect__nonce_of_a_lane_that_is_open__refused),
        TEST(answer__that_is_no_greeting__protocol_and_never_open),
        TEST(write__to_the_consumer__refused_and_nothing_is_changed),
        TEST(token__that_opens_nothing__lane_ends_and_memory_is_untouched),
        TEST(token__that_is_none_or_the_second__protocol),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    if (!testbed_can_open("verbs"))
        return 0;
    return cmocka_run_group_tests_name("verbs_attack", tests, NULL, NULL);
}
