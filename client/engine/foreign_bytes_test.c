/* Whatever a daemon says, libkvferry answers with a status: noise, and legal answers with a few
 * bytes changed. The seed is fixed. What is said to be in an arena is read to its end, so that a
 * sanitizer sees a place that is none. */
#include "client/engine/client.h"
#include "client/engine/fake_daemon.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <stdlib.h>

#define ROUNDS 3000u
#define BLOCKS 5u

static struct fake_daemon fake;
static uint64_t seed = 20261130;

static uint64_t draw(uint64_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (seed >> 33) % below;
}

static size_t noise(uint8_t *bytes)
{
    size_t length = 1 + (size_t)draw(draw(8) == 0 ? KVF_WIRE_MAX_BYTES : 64);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)draw(256);
    if (length > 4 && draw(2) == 0) {
        bytes[0] = 0x08; /* the id that is waited for, then a body of some kind */
        bytes[1] = 2;
        bytes[2] = (uint8_t)((4 + draw(6)) << 3 | 2);
    }
    return length;
}

/* Very many of the shortest elements: the most memory that a message can make of itself. */
static size_t many_empty(uint8_t *bytes)
{
    size_t count = (KVF_WIRE_MAX_BYTES - 6) / 2;
    size_t body = count * 2;
    uint8_t head[6] = {0x08,
                       2,
                       (uint8_t)((5 + draw(3)) << 3 | 2),
                       (uint8_t)(body | 0x80),
                       (uint8_t)(body >> 7 | 0x80),
                       (uint8_t)(body >> 14)};
    memcpy(bytes, head, sizeof(head));
    for (size_t i = 0; i < count; i++) {
        bytes[6 + 2 * i] = 0x0a;
        bytes[7 + 2 * i] = 0;
    }
    return 6 + body;
}

/* A legal answer of some kind, then bytes changed. */
static size_t nearly_legal(uint8_t *bytes)
{
    size_t length, fd_count;
    switch (draw(3)) {
    case 0:
        fake_begun(&fake, 2, BLOCKS);
        break;
    case 1:
        fake_committed(&fake, 2, BLOCKS);
        break;
    default:
        fake_ready(&fake, 2, BLOCKS);
        break;
    }
    assert_int_equal(kvf_wire_receive(fake.client->fd, bytes, &length, NULL, 0, &fd_count).code,
                     KVF_OK);
    for (uint64_t changes = draw(4); changes > 0; changes--)
        bytes[draw(length)] = (uint8_t)draw(256);
    return draw(8) == 0 ? 1 + (size_t)draw(length) : length;
}

static void try_put(void)
{
    struct kvf_put puts[BLOCKS] = {0};
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_true(kvf_key_set(&puts[i].key, &i, 8));
        puts[i].length = 5000;
    }
    (void)kvf_put_begin(fake.client, "t/f", puts, BLOCKS, 1).code;
    for (size_t i = 0; i < BLOCKS; i++) {
        if (puts[i].data != NULL)
            memset(puts[i].data, 1, 8192);
    }
    if (draw(2) == 0)
        kvf_put_abort(fake.client, puts, BLOCKS);
}

static void try_get(unsigned flags)
{
    struct kvf_get_options options = {.ns = "t/f", .timeout_ms = 1, .flags = flags};
    struct kvf_get_block blocks[BLOCKS] = {0};
    size_t prefix;
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_true(kvf_key_set(&blocks[i].key, &i, 8));
        blocks[i].length = draw(2) == 0 ? 5000 : 0;
    }
    (void)kvf_get(fake.client, &options, blocks, BLOCKS, &prefix).code;
    assert_true(prefix <= BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].data != NULL)
            (void)kvf_crc32c(0, blocks[i].data, (size_t)blocks[i].length);
        assert_true((unsigned)blocks[i].code < KVF_CODE_COUNT);
    }
    kvf_get_release(fake.client, blocks, BLOCKS);
}

static void try_rest(void)
{
    struct kvf_get_options options = {.ns = "t/f", .timeout_ms = 1};
    struct kvf_get_block block = {0};
    assert_true(kvf_key_set(&block.key, "k", 1));
    switch (draw(3)) {
    case 0:
        (void)kvf_lookup(fake.client, &options, &block, 1, NULL).code;
        break;
    case 1:
        (void)kvf_client_poll(fake.client).code;
        break;
    default:
        (void)client_register(fake.client, "again", NULL, "", dialog_deadline(1), NULL).code;
        break;
    }
}

static void answers__of_any_bytes__never_crash_and_always_end(void **state)
{
    (void)state;
    static uint8_t bytes[KVF_WIRE_MAX_BYTES];
    for (unsigned round = 0; round < ROUNDS; round++) {
        fake_open_registered(&fake, 1, 64 * 1024);
        fake.client->grace_ms = 0;
        fake_fill(&fake, 5000);
        size_t length = draw(3) == 0    ? nearly_legal(bytes)
                        : draw(64) == 0 ? many_empty(bytes)
                                        : noise(bytes);
        fake_say_bytes(&fake, bytes, length);
        switch (draw(4)) {
        case 0:
            try_put();
            break;
        case 1:
            try_get(KVF_GET_VERIFY);
            break;
        case 2:
            try_get(KVF_GET_STOP_AT_FIRST_MISS);
            break;
        default:
            try_rest();
            break;
        }
        fake_close(&fake);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers__of_any_bytes__never_crash_and_always_end),
    };
    return cmocka_run_group_tests_name("client/engine/foreign_bytes", tests, NULL, NULL);
}
