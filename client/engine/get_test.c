#include "client/engine/fake_daemon.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct fake_daemon fake;

static const struct kvf_get_options plain = {.ns = "t/f", .timeout_ms = 30000};
static const struct kvf_get_options verified = {
    .ns = "t/f", .timeout_ms = 30000, .flags = KVF_GET_VERIFY};
static const struct kvf_get_options prefix_only = {
    .ns = "t/f", .timeout_ms = 30000, .flags = KVF_GET_STOP_AT_FIRST_MISS};
static const struct kvf_get_options short_time = {.ns = "t/f", .timeout_ms = 5};

static struct kvf_get_block *make_blocks(size_t count, uint64_t length)
{
    struct kvf_get_block *blocks = calloc(count + 1, sizeof(*blocks));
    for (size_t i = 0; i < count; i++) {
        memset(blocks[i].key.bytes, 'k', KVF_KEY_MAX_BYTES);
        memcpy(blocks[i].key.bytes, &i, sizeof(i));
        blocks[i].key.length = KVF_KEY_MAX_BYTES;
        blocks[i].length = length;
    }
    return blocks;
}

static void assert_all(const struct kvf_get_block *blocks, size_t count, enum kvf_code code)
{
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(blocks[i].code, code);
        assert_null(blocks[i].data);
    }
}

static const Kvferry__EngineRelease *expect_release(uint64_t get, size_t count)
{
    const Kvferry__EngineRelease *release =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE)->release;
    assert_int_equal(release->get, get);
    assert_int_equal(release->n_blocks, count);
    return release;
}

/* ---- the straight path ---- */

static void get__hits_and_a_miss__are_told_apart_and_released_by_block(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(3, 0);
    struct kvf_get_options options = plain;
    size_t prefix = 99;
    options.source = "10.0.0.1:9470";
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_fill(&fake, 5000);
    fake.blocks[1] = (Kvferry__EngineBlock)KVFERRY__ENGINE_BLOCK__INIT;
    fake.blocks[1].code = KVF_NOT_FOUND;
    fake_ready(&fake, 2, 3);
    assert_int_equal(kvf_get(fake.client, &options, blocks, 3, &prefix).code, KVF_OK);
    const Kvferry__EngineGet *get = fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET)->get;
    assert_string_equal(get->namespace_, "t/f");
    assert_string_equal(get->source, "10.0.0.1:9470");
    assert_int_equal(get->n_blocks, 3);
    assert_int_equal(get->blocks[1]->length, 0);
    assert_memory_equal(get->blocks[1]->key.data, blocks[1].key.bytes, 64);
    assert_false(get->stop_at_first_miss);
    assert_true(get->deadline_us > 0 && get->deadline_us <= 30000000);

    assert_int_equal(prefix, 1);
    assert_int_equal(blocks[0].code, KVF_OK);
    assert_int_equal(blocks[0].length, 5000);
    assert_int_equal(blocks[0].crc32c, UINT32_MAX);
    assert_int_equal(blocks[0].tier, KVF_TIER_SSD);
    assert_int_equal(blocks[0].origin, KVF_ORIGIN_REMOTE);
    assert_true(blocks[0].generation.counter == UINT64_MAX);
    assert_int_equal(blocks[1].code, KVF_NOT_FOUND);
    assert_null(blocks[1].data);
    assert_int_equal(blocks[1].length, 0);
    memcpy(fake.arenas[0].base + 2 * 8192, "third", 5);
    assert_memory_equal(blocks[2].data, "third", 5);

    kvf_get_release(fake.client, &blocks[2], 1);
    assert_int_equal(expect_release(2, 1)->blocks[0], 2);
    kvf_get_release(fake.client, blocks, 3);
    assert_int_equal(expect_release(2, 1)->blocks[0], 0);
    kvf_get_release(fake.client, blocks, 3);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(blocks);
}

static void get__all_missing__releases_nothing(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(2, 10);
    size_t prefix = 99;
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.blocks[0].code = KVF_BUSY;
    fake.blocks[1].code = KVF_PENDING;
    fake_ready(&fake, 2, 2);
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 2, &prefix).code, KVF_OK);
    assert_int_equal(prefix, 0);
    assert_int_equal(blocks[0].code, KVF_BUSY);
    assert_int_equal(blocks[1].code, KVF_PENDING);
    kvf_get_release(fake.client, blocks, 2);
    (void)fake_take(&fake);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(blocks);
}

/* ---- verify ---- */

static void get__a_flipped_byte__is_corrupt_only_where_verified(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(3, 5000);
    size_t prefix = 99;
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_fill(&fake, 5000);
    memset(fake.arenas[0].base, 0x77, KVF_MIB);
    for (size_t i = 0; i < 3; i++)
        fake.blocks[i].crc32c = kvf_crc32c(0, fake.arenas[0].base, 5000);
    fake_ready(&fake, 2, 3);
    assert_int_equal(kvf_get(fake.client, &verified, blocks, 3, &prefix).code, KVF_OK);
    assert_int_equal(prefix, 3);
    kvf_get_release(fake.client, blocks, 3);
    (void)fake_take(&fake);
    (void)expect_release(2, 3);

    fake.arenas[0].base[8192 + 4999] ^= 1;
    fake_ready(&fake, 4, 3);
    assert_int_equal(kvf_get(fake.client, &verified, blocks, 3, &prefix).code, KVF_OK);
    assert_int_equal(prefix, 1);
    assert_int_equal(blocks[1].code, KVF_CORRUPT);
    assert_null(blocks[1].data);
    assert_int_equal(blocks[2].code, KVF_OK);
    (void)fake_take(&fake);
    const Kvferry__EngineRelease *bad = expect_release(4, 1);
    assert_int_equal(bad->blocks[0], 1);
    assert_true(bad->bad);
    kvf_get_release(fake.client, blocks, 3);
    const Kvferry__EngineRelease *good = expect_release(4, 2);
    assert_int_equal(good->blocks[1], 2);
    assert_false(good->bad);

    fake_ready(&fake, 7, 3);
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 3, &prefix).code, KVF_OK);
    assert_int_equal(prefix, 3);
    fake_close(&fake);
    free(blocks);
}

/* ---- paging ---- */

static void get__around_a_messages_worth_of_blocks__is_cut_joined_and_released(void **state)
{
    (void)state;
    const size_t counts[] = {DIALOG_BLOCKS - 1, DIALOG_BLOCKS, DIALOG_BLOCKS + 1,
                             2 * DIALOG_BLOCKS};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        size_t count = counts[c], prefix = 0;
        size_t pages = (count + DIALOG_BLOCKS - 1) / DIALOG_BLOCKS;
        size_t last = count - (pages - 1) * DIALOG_BLOCKS;
        struct kvf_get_block *blocks = make_blocks(count, 100);
        fake_open_registered(&fake, 1, 4 * KVF_MIB);
        fake_fill(&fake, 100);
        for (size_t page = 0; page < pages; page++)
            fake_ready(&fake, 2 + page, page + 1 < pages ? DIALOG_BLOCKS : last);
        assert_int_equal(kvf_get(fake.client, &plain, blocks, count, &prefix).code, KVF_OK);
        assert_int_equal(prefix, count);
        assert_true(blocks[count - 1].data ==
                    (uint8_t *)kvf_client_arena(fake.client, 0, &(uint64_t){0}) +
                        (last - 1) * KVF_PAGE);
        kvf_get_release(fake.client, blocks, count);
        for (size_t page = 0; page < pages; page++)
            (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET);
        for (size_t page = 0; page < pages; page++)
            (void)expect_release(2 + page, page + 1 < pages ? DIALOG_BLOCKS : last);
        assert_null(fake_take(&fake));
        fake_close(&fake);
        free(blocks);
    }
}

static void get__longest_names_and_source__fit_into_a_message(void **state)
{
    (void)state;
    char ns[KVF_NAMESPACE_MAX_BYTES + 1], source[DIALOG_SOURCE_MAX_BYTES + 2];
    struct kvf_get_options options = {
        .ns = ns, .source = source, .timeout_ms = UINT64_MAX, .flags = KVF_GET_STOP_AT_FIRST_MISS};
    struct kvf_get_block *blocks = make_blocks(DIALOG_BLOCKS, KVF_BLOCK_MAX_BYTES);
    memset(ns, 'n', sizeof(ns));
    memset(source, 's', sizeof(source));
    ns[1] = '/';
    ns[sizeof(ns) - 1] = source[DIALOG_SOURCE_MAX_BYTES] = '\0';
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.client->max_get_bytes = UINT64_MAX;
    fake_refuse(&fake, 2, KVF_TOO_LARGE, "");
    assert_int_equal(kvf_get(fake.client, &options, blocks, DIALOG_BLOCKS, NULL).code,
                     KVF_TOO_LARGE);
    assert_all(blocks, DIALOG_BLOCKS, KVF_TOO_LARGE);
    const Kvferry__EngineGet *get = fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET)->get;
    assert_int_equal(get->n_blocks, DIALOG_BLOCKS);
    assert_true(get->stop_at_first_miss);
    source[DIALOG_SOURCE_MAX_BYTES] = 's';
    source[DIALOG_SOURCE_MAX_BYTES + 1] = '\0';
    assert_int_equal(kvf_get(fake.client, &options, blocks, 1, NULL).code, KVF_INVALID);
    fake_close(&fake);
    free(blocks);
}

static void get__second_page_refused__gives_the_first_back(void **state)
{
    (void)state;
    size_t count = 2 * DIALOG_BLOCKS, prefix = 99;
    struct kvf_get_block *blocks = make_blocks(count, 100);
    fake_open_registered(&fake, 1, 4 * KVF_MIB);
    fake_fill(&fake, 100);
    fake_ready(&fake, 2, DIALOG_BLOCKS);
    fake_refuse(&fake, 3, KVF_BUSY, "");
    assert_int_equal(kvf_get(fake.client, &plain, blocks, count, &prefix).code, KVF_BUSY);
    assert_all(blocks, count, KVF_BUSY);
    assert_int_equal(prefix, 0);
    (void)fake_take(&fake);
    (void)fake_take(&fake);
    (void)expect_release(2, DIALOG_BLOCKS);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(blocks);
}

static void get__stop_at_first_miss__asks_no_further_page_after_a_gap(void **state)
{
    (void)state;
    size_t count = 2 * DIALOG_BLOCKS, prefix = 99;
    struct kvf_get_block *blocks = make_blocks(count, 100);
    fake_open_registered(&fake, 1, 4 * KVF_MIB);
    fake_fill(&fake, 100);
    fake.blocks[DIALOG_BLOCKS - 1].code = KVF_NOT_FOUND;
    fake_ready(&fake, 2, DIALOG_BLOCKS);
    assert_int_equal(kvf_get(fake.client, &prefix_only, blocks, count, &prefix).code, KVF_OK);
    assert_int_equal(prefix, DIALOG_BLOCKS - 1);
    assert_all(blocks + DIALOG_BLOCKS, DIALOG_BLOCKS, KVF_NOT_FOUND);
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET);
    assert_null(fake_take(&fake));
    kvf_get_release(fake.client, blocks, count);
    (void)expect_release(2, DIALOG_BLOCKS - 1);
    fake_close(&fake);
    free(blocks);
}

/* ---- refusals on this side ---- */

static void get__nonsense_or_too_much__is_refused_and_not_sent(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(2, 1);
    struct kvf_get_options options = plain;
    fake_open_registered(&fake, 1, KVF_MIB);
    options.timeout_ms = 0;
    assert_int_equal(kvf_get(fake.client, &options, blocks, 2, NULL).code, KVF_INVALID);
    assert_int_equal(kvf_lookup(fake.client, &options, blocks, 2, NULL).code, KVF_INVALID);
    assert_all(blocks, 2, KVF_INVALID);
    options = plain;
    options.ns = "no-slash";
    assert_int_equal(kvf_get(fake.client, &options, blocks, 2, NULL).code, KVF_INVALID);
    options.ns = NULL;
    assert_int_equal(kvf_get(fake.client, &options, blocks, 2, NULL).code, KVF_INVALID);
    blocks[0].length = 64 * KVF_MIB;
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 2, NULL).code, KVF_TOO_LARGE);
    blocks[0].length = UINT64_MAX;
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 2, NULL).code, KVF_TOO_LARGE);
    blocks[0].length = 1;
    blocks[1].key.length = 0;
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 2, NULL).code, KVF_INVALID);
    assert_int_equal(kvf_lookup(fake.client, &plain, blocks, 2, NULL).code, KVF_INVALID);
    assert_int_equal(kvf_get(fake.client, &plain, NULL, 0, NULL).code, KVF_OK);
    fake_drain_notice(&fake);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_DRAINING);
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 1, NULL).code, KVF_DRAINING);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(blocks);
}

static void get__drain_notice_before_the_answer__what_is_pinned_can_be_released(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(1, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_drain_notice(&fake);
    fake_ready(&fake, 2, 1);
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 1, NULL).code, KVF_OK);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_DRAINING);
    (void)fake_take(&fake);
    kvf_get_release(fake.client, blocks, 1);
    (void)expect_release(2, 1);
    fake_close(&fake);
    free(blocks);
}

/* ---- illegal answers ---- */

enum bad_block {
    BAD_ARENA = 0,
    BAD_OFFSET_BEHIND,
    BAD_OFFSET_HUGE,
    BAD_OFFSET_UNALIGNED,
    BAD_LENGTH_ZERO,
    BAD_LENGTH_OTHER,
    BAD_LENGTH_HUGE,
    BAD_CODE,
    BAD_TIER,
    BAD_ORIGIN,
    BAD_FEWER,
    BAD_MORE,
    BAD_PREFIX,
    BAD_BODY,
    BAD_DESCRIPTOR,
    BAD_END,
    BAD_COUNT
};

static void say_ready_with(uint32_t prefix, const int *fds, size_t fd_count)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineReady ready = KVFERRY__ENGINE_READY__INIT;
    Kvferry__EngineBlock *pointers[2] = {&fake.blocks[0], &fake.blocks[1]};
    ready.n_blocks = 2;
    ready.blocks = pointers;
    ready.prefix = prefix;
    reply.id = 2;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_READY;
    reply.ready = &ready;
    fake_say(&fake, &reply, fds, fd_count);
}

static void say_bad_blocks(enum bad_block bad)
{
    Kvferry__EngineBlock *block = &fake.blocks[1];
    size_t count = 2;
    switch (bad) {
    case BAD_ARENA:
        block->arena = UINT32_MAX;
        break;
    case BAD_OFFSET_BEHIND:
        block->offset = KVF_MIB;
        break;
    case BAD_OFFSET_HUGE:
        block->offset = UINT64_MAX - KVF_PAGE + 1;
        break;
    case BAD_OFFSET_UNALIGNED:
        block->offset = 1;
        break;
    case BAD_LENGTH_ZERO:
        block->length = 0;
        break;
    case BAD_LENGTH_OTHER:
        block->length = 4999;
        break;
    case BAD_LENGTH_HUGE:
        block->length = UINT64_MAX;
        break;
    case BAD_CODE:
        block->code = KVF_CODE_COUNT;
        break;
    case BAD_TIER:
        block->tier = KVF_TIER_SSD + 1;
        break;
    case BAD_ORIGIN:
        block->origin = KVF_ORIGIN_REMOTE + 1;
        break;
    case BAD_FEWER:
        count = 1;
        break;
    case BAD_MORE:
        count = 3;
        break;
    case BAD_PREFIX:
        say_ready_with(3, NULL, 0);
        return;
    case BAD_BODY:
        fake_begun(&fake, 2, 2);
        return;
    case BAD_DESCRIPTOR:
        say_ready_with(2, &fake.fd, 1);
        return;
    case BAD_END:
        assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
        return;
    case BAD_COUNT:
        break;
    }
    fake_ready(&fake, 2, count);
}

static void get__illegal_answers__are_protocol_and_end_the_session(void **state)
{
    (void)state;
    for (enum bad_block bad = 0; bad < BAD_COUNT; bad++) {
        enum kvf_code expected = bad == BAD_END ? KVF_UNAVAILABLE : KVF_PROTOCOL;
        struct kvf_get_block *blocks = make_blocks(2, 5000);
        size_t prefix = 99;
        fake_open_registered(&fake, 1, KVF_MIB);
        fake_fill(&fake, 5000);
        say_bad_blocks(bad);
        assert_int_equal(kvf_get(fake.client, &verified, blocks, 2, &prefix).code, expected);
        assert_all(blocks, 2, expected);
        assert_int_equal(prefix, 0);
        assert_int_equal(kvf_get(fake.client, &plain, blocks, 2, NULL).code, KVF_UNAVAILABLE);
        (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET);
        assert_null(fake_take(&fake));
        fake_close(&fake);
        free(blocks);
    }
}

static void get__length_any_beyond_the_arena__is_protocol(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(1, 0);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.blocks[0].length = KVF_MIB + 1;
    fake_ready(&fake, 2, 1);
    assert_int_equal(kvf_get(fake.client, &verified, blocks, 1, NULL).code, KVF_PROTOCOL);
    fake_close(&fake);
    free(blocks);
}

static void get__daemon_dead_with_pins_held__memory_stays_until_close(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(1, 5);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.blocks[0].length = 5;
    memcpy(fake.arenas[0].base, "bytes", 5);
    fake_ready(&fake, 2, 1);
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 1, NULL).code, KVF_OK);
    assert_int_equal(close(fake.fd), 0);
    fake.fd = -1;
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    assert_memory_equal(blocks[0].data, "bytes", 5);
    kvf_get_release(fake.client, blocks, 1);
    assert_null(blocks[0].data);
    fake_close(&fake);
    free(blocks);
}

/* ---- late answers ---- */

static void get__answer_after_the_deadline__is_released_when_it_comes(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(2, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(kvf_get(fake.client, &short_time, blocks, 2, NULL).code, KVF_DEADLINE);
    assert_all(blocks, 2, KVF_DEADLINE);
    assert_int_equal(fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET)->id, 2);
    assert_int_equal(fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL)->cancel->id, 2);
    fake_ready(&fake, 2, 2);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_OK);
    (void)expect_release(2, 0); /* all of it */
    fake_ready(&fake, 2, 2);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    fake_close(&fake);
    free(blocks);
}

static void get__late_answer_pins_nothing__is_just_dropped(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(1, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(kvf_get(fake.client, &short_time, blocks, 1, NULL).code, KVF_DEADLINE);
    assert_int_equal(kvf_get(fake.client, &short_time, blocks, 1, NULL).code, KVF_DEADLINE);
    assert_int_equal(kvf_lookup(fake.client, &short_time, blocks, 1, NULL).code, KVF_DEADLINE);
    for (size_t i = 0; i < 6; i++)
        assert_non_null(fake_take(&fake));
    fake_refuse(&fake, 4, KVF_CANCELLED, "");
    fake_ready(&fake, 6, 1); /* of the Lookup: names no places */
    fake.blocks[0].code = KVF_NOT_FOUND;
    fake_ready(&fake, 2, 1);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_OK);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(blocks);
}

static void get__refused_as_a_whole_with_blocks_pinned__gives_them_back(void **state)
{
    (void)state;
    struct kvf_get_block *blocks = make_blocks(2, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.code = KVF_BUSY;
    fake_ready(&fake, 2, 2);
    assert_int_equal(kvf_get(fake.client, &plain, blocks, 2, NULL).code, KVF_BUSY);
    assert_all(blocks, 2, KVF_BUSY);
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_GET);
    (void)expect_release(2, 0);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(blocks);
}

/* ---- lookup ---- */

static void lookup__several_pages__pins_nothing(void **state)
{
    (void)state;
    size_t count = DIALOG_BLOCKS + 1, prefix = 99;
    struct kvf_get_block *blocks = make_blocks(count, 0);
    fake_open_registered(&fake, 1, KVF_PAGE);
    fake_fill(&fake, 9 * KVF_MIB); /* longer than any arena here: there are no places */
    fake_ready(&fake, 2, DIALOG_BLOCKS);
    fake.blocks[0].code = KVF_NOT_FOUND;
    fake_ready(&fake, 3, 1);
    assert_int_equal(kvf_lookup(fake.client, &plain, blocks, count, &prefix).code, KVF_OK);
    assert_int_equal(prefix, DIALOG_BLOCKS);
    assert_all(blocks, DIALOG_BLOCKS, KVF_OK);
    assert_int_equal(blocks[7].length, 9 * KVF_MIB);
    assert_int_equal(blocks[7].tier, KVF_TIER_SSD);
    assert_int_equal(blocks[7].origin, KVF_ORIGIN_REMOTE);
    assert_int_equal(blocks[DIALOG_BLOCKS].code, KVF_NOT_FOUND);
    const Kvferry__EngineLookup *lookup =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP)->lookup;
    assert_int_equal(lookup->n_keys, DIALOG_BLOCKS);
    assert_string_equal(lookup->source, "");
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP);
    kvf_get_release(fake.client, blocks, count);
    assert_null(fake_take(&fake));
    fake.blocks[0].code = KVF_CODE_COUNT;
    fake_ready(&fake, 4, 1);
    assert_int_equal(kvf_lookup(fake.client, &plain, blocks, 1, &prefix).code, KVF_PROTOCOL);
    fake_close(&fake);
    free(blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(get__hits_and_a_miss__are_told_apart_and_released_by_block),
        cmocka_unit_test(get__all_missing__releases_nothing),
        cmocka_unit_test(get__a_flipped_byte__is_corrupt_only_where_verified),
        cmocka_unit_test(get__around_a_messages_worth_of_blocks__is_cut_joined_and_released),
        cmocka_unit_test(get__longest_names_and_source__fit_into_a_message),
        cmocka_unit_test(get__second_page_refused__gives_the_first_back),
        cmocka_unit_test(get__stop_at_first_miss__asks_no_further_page_after_a_gap),
        cmocka_unit_test(get__nonsense_or_too_much__is_refused_and_not_sent),
        cmocka_unit_test(get__drain_notice_before_the_answer__what_is_pinned_can_be_released),
        cmocka_unit_test(get__illegal_answers__are_protocol_and_end_the_session),
        cmocka_unit_test(get__length_any_beyond_the_arena__is_protocol),
        cmocka_unit_test(get__daemon_dead_with_pins_held__memory_stays_until_close),
        cmocka_unit_test(get__answer_after_the_deadline__is_released_when_it_comes),
        cmocka_unit_test(get__late_answer_pins_nothing__is_just_dropped),
        cmocka_unit_test(get__refused_as_a_whole_with_blocks_pinned__gives_them_back),
        cmocka_unit_test(lookup__several_pages__pins_nothing),
    };
    return cmocka_run_group_tests_name("client/engine/get", tests, NULL, NULL);
}
