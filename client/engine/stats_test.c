/* What a client counts, and what it tells at Register. */
#include "base/test.h"
#include "client/engine/client.h"
#include "client/engine/fake_daemon.h"

static struct fake_daemon fake;
static const struct kvf_get_options options = {.ns = "t/f", .timeout_ms = 30000};

static struct kvf_stats stats(void)
{
    struct kvf_stats now;
    kvf_client_stats(fake.client, &now);
    return now;
}

static void stats__ends_of_puts__are_told_apart(void **state)
{
    (void)state;
    struct kvf_put puts[5] = {0};
    for (uint8_t i = 0; i < 5; i++)
        puts[i] = (struct kvf_put){.key = {1, {i}}, .length = 5000};
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(stats().registrations, 1);
    fake_fill(&fake, 5000);
    fake.places[0].code = KVF_EXISTS;
    fake.places[1].code = KVF_BUSY;
    fake_begun(&fake, 2, 5);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 5, 30000).code, KVF_OK);
    assert_int_equal(stats().held_blocks, 3);
    assert_int_equal(stats().put_exists, 1);
    assert_int_equal(stats().put_failed, 1);
    kvf_put_abort(fake.client, &puts[4], 1);
    assert_int_equal(stats().held_blocks, 2);
    assert_int_equal(stats().put_failed, 2);
    fake.committed[1].code = KVF_STALE;
    fake_committed(&fake, 4, 2);
    assert_int_equal(kvf_put_commit(fake.client, puts, 5).code, KVF_OK);
    assert_int_equal(puts[2].crc32c != 0, 1);
    struct kvf_stats now = stats();
    assert_int_equal(now.put_blocks, 1);
    assert_int_equal(now.put_bytes, 5000);
    assert_int_equal(now.put_failed, 3);
    assert_int_equal(now.held_blocks, 0);
    fake_close(&fake);
}

static void stats__ends_of_gets__are_told_apart(void **state)
{
    (void)state;
    static const uint32_t codes[] = {KVF_OK,   KVF_OK,    KVF_OK,       KVF_OK,
                                     KVF_BUSY, KVF_STALE, KVF_DEADLINE, KVF_NOT_FOUND};
    struct kvf_get_block blocks[8] = {0};
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_fill(&fake, 5000);
    for (uint8_t i = 0; i < 8; i++) {
        blocks[i].key = (struct kvf_key){1, {i}};
        fake.blocks[i].code = codes[i];
        fake.blocks[i].tier = i % 2 ? KVF_TIER_SSD : KVF_TIER_DRAM;
        fake.blocks[i].origin = i / 2 % 2 ? KVF_ORIGIN_REMOTE : KVF_ORIGIN_LOCAL;
    }
    fake_ready(&fake, 2, 8);
    assert_int_equal(kvf_get(fake.client, &options, blocks, 8, NULL).code, KVF_OK);
    struct kvf_stats now = stats();
    assert_int_equal(now.get_dram, 1);
    assert_int_equal(now.get_ssd, 1);
    assert_int_equal(now.get_remote_dram, 1);
    assert_int_equal(now.get_remote_ssd, 1);
    assert_int_equal(now.get_bytes, 4 * 5000);
    assert_int_equal(now.get_busy, 1);
    assert_int_equal(now.get_deadline, 1);
    assert_int_equal(now.get_misses, 2);
    assert_int_equal(now.held_blocks, 4);
    kvf_get_release(fake.client, blocks, 8);
    assert_int_equal(stats().held_blocks, 0);
    fake_drain_notice(&fake);
    fake_drain_notice(&fake);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_DRAINING);
    assert_int_equal(kvf_get(fake.client, &options, blocks, 8, NULL).code, KVF_DRAINING);
    assert_int_equal(stats().get_unavailable, 8);
    assert_int_equal(stats().drain_notices, 1);
    fake_close(&fake);
}

static void register__geometry__is_told_and_checked(void **state)
{
    (void)state;
    struct kvf_geometry geometry = {.model = "m",
                                    .dtype = KVF_DTYPE_BF16,
                                    .layers = 36,
                                    .planes = 2,
                                    .page_tokens = 64,
                                    .token_elements = 1024,
                                    .tp_rank = 3,
                                    .tp_size = 8};
    fake_open(&fake, 1, KVF_PAGE);
    fake_registered(&fake, 0, 1, false);
    assert_int_equal(
        client_register(fake.client, "n", &geometry, "", dialog_deadline(30000), NULL).code,
        KVF_OK);
    const Kvferry__EngineGeometry *told =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER)->register_->geometry;
    assert_non_null(told);
    assert_int_equal(told->block_bytes, 9 * KVF_MIB);
    assert_int_equal(told->tp_rank, 3);
    assert_int_equal(told->planes, 2);
    fake_close(&fake);
    geometry.layers = 0;
    struct kvf_client_options bad = {.socket_path = "/nonexistent/sock", .geometry = &geometry};
    struct kvf_client *none = NULL;
    struct kvf_why why = {.text = ""};
    assert_int_equal(kvf_client_open(&bad, &none, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "layers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats__ends_of_puts__are_told_apart),
        cmocka_unit_test(stats__ends_of_gets__are_told_apart),
        cmocka_unit_test(register__geometry__is_told_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
