#include "client/engine/fake_daemon.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct fake_daemon fake;

/* Puts of distinct keys, all of the same length. */
static struct kvf_put *make_puts(size_t count, uint64_t length)
{
    struct kvf_put *puts = calloc(count + 1, sizeof(*puts));
    for (size_t i = 0; i < count; i++) {
        memset(puts[i].key.bytes, 'k', KVF_KEY_MAX_BYTES);
        memcpy(puts[i].key.bytes, &i, sizeof(i));
        puts[i].key.length = KVF_KEY_MAX_BYTES;
        puts[i].length = length;
    }
    return puts;
}

static void assert_all(const struct kvf_put *puts, size_t count, enum kvf_code code)
{
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(puts[i].code, code);
        assert_null(puts[i].data);
    }
}

/* ---- the straight path ---- */

static void put__begin_and_commit__places_tails_and_checksums_are_right(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(3, 5000);
    uint8_t zeroes[3192] = {0};
    fake_open_registered(&fake, 2, KVF_MIB);
    memset(fake.arenas[0].base, 0xee, KVF_MIB);
    memset(fake.arenas[1].base, 0xee, KVF_MIB);
    fake_fill(&fake, 5000);
    fake.places[1].code = KVF_EXISTS;
    fake.places[2].arena = 1;
    fake.places[2].offset = KVF_MIB - 8192;
    fake_begun(&fake, 2, 3);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 3, 30000).code, KVF_OK);
    const Kvferry__EnginePutBegin *begin =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN)->put_begin;
    assert_string_equal(begin->namespace_, "t/f");
    assert_int_equal(begin->n_blocks, 3);
    assert_int_equal(begin->blocks[2]->length, 5000);
    assert_memory_equal(begin->blocks[2]->key.data, puts[2].key.bytes, 64);
    assert_true(begin->deadline_us > 0 && begin->deadline_us <= 30000000);
    assert_int_equal(puts[0].code, KVF_OK);
    assert_int_equal(puts[1].code, KVF_EXISTS);
    assert_null(puts[1].data);

    memset(puts[0].data, 0x11, 5000);
    memset(puts[2].data, 0x22, 5000);
    fake_committed(&fake, 3, 2);
    assert_int_equal(kvf_put_commit(fake.client, puts, 3).code, KVF_OK);
    const Kvferry__EnginePutCommit *commit =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT)->put_commit;
    assert_int_equal(commit->n_commits, 2);
    assert_int_equal(commit->commits[0]->put, 1000);
    assert_int_equal(commit->commits[1]->put, 1002);
    const uint8_t *first = fake.arenas[0].base, *last = fake.arenas[1].base + KVF_MIB - 8192;
    assert_int_equal(first[4999], 0x11);
    assert_memory_equal(first + 5000, zeroes, 3192);
    assert_int_equal(first[8192], 0xee);
    assert_int_equal(last[4999], 0x22);
    assert_memory_equal(last + 5000, zeroes, 3192);
    assert_int_equal(last[-1], 0xee);
    assert_int_equal(commit->commits[0]->crc32c, kvf_crc32c(0, first, 5000));
    assert_int_equal(commit->commits[1]->crc32c, kvf_crc32c(0, last, 5000));
    assert_int_equal(puts[0].code, KVF_OK);
    assert_int_equal(puts[1].code, KVF_EXISTS);
    assert_int_equal(puts[2].code, KVF_OK);
    assert_int_equal(puts[2].generation.epoch, 7);
    assert_int_equal(puts[2].generation.counter, 101);

    /* Nothing is held any more. */
    kvf_put_abort(fake.client, puts, 3);
    assert_int_equal(kvf_put_commit(fake.client, puts, 3).code, KVF_OK);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(puts);
}

static void put_commit__the_daemon_refuses_one__the_others_are_visible(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(2, KVF_PAGE);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_fill(&fake, KVF_PAGE);
    fake_begun(&fake, 2, 2);
    fake.committed[0].code = KVF_EXISTS;
    fake_committed(&fake, 3, 2);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 2, 30000).code, KVF_OK);
    assert_int_equal(kvf_put_commit(fake.client, puts, 2).code, KVF_OK);
    assert_int_equal(puts[0].code, KVF_EXISTS);
    assert_true(kvf_generation_is_none(puts[0].generation));
    assert_int_equal(puts[1].code, KVF_OK);
    fake_close(&fake);
    free(puts);
}

static void put_abort__held_places__are_named_once(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(3, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.places[1].code = KVF_PENDING;
    fake_begun(&fake, 2, 3);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 3, 30000).code, KVF_OK);
    (void)fake_take(&fake);
    kvf_put_abort(fake.client, puts, 3);
    const Kvferry__EnginePutAbort *aborted =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT)->put_abort;
    assert_int_equal(aborted->n_puts, 2);
    assert_int_equal(aborted->puts[0], 1000);
    assert_int_equal(aborted->puts[1], 1002);
    assert_int_equal(puts[0].code, KVF_CANCELLED);
    assert_int_equal(puts[1].code, KVF_PENDING);
    kvf_put_abort(fake.client, puts, 3);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(puts);
}

/* ---- paging ---- */

static void put__around_a_messages_worth_of_blocks__is_cut_and_joined(void **state)
{
    (void)state;
    const size_t counts[] = {DIALOG_BLOCKS - 1, DIALOG_BLOCKS, DIALOG_BLOCKS + 1,
                             2 * DIALOG_BLOCKS};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        size_t count = counts[c];
        size_t pages = (count + DIALOG_BLOCKS - 1) / DIALOG_BLOCKS;
        struct kvf_put *puts = make_puts(count, 100);
        fake_open_registered(&fake, 1, 4 * KVF_MIB);
        fake_fill(&fake, 100);
        for (size_t page = 0; page < pages; page++)
            fake_begun(&fake, 2 + page,
                       page + 1 < pages ? DIALOG_BLOCKS : count - page * DIALOG_BLOCKS);
        assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, count, 30000).code, KVF_OK);
        for (size_t page = 0; page < pages; page++)
            fake_committed(&fake, 2 + pages + page,
                           page + 1 < pages ? DIALOG_BLOCKS : count - page * DIALOG_BLOCKS);
        assert_int_equal(kvf_put_commit(fake.client, puts, count).code, KVF_OK);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(puts[i].code, KVF_OK);
            assert_int_equal(puts[i].generation.counter, 100 + i % DIALOG_BLOCKS);
        }
        for (size_t i = 0; i < pages; i++)
            (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN);
        for (size_t i = 0; i < pages; i++)
            (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT);
        assert_null(fake_take(&fake));
        fake_close(&fake);
        free(puts);
    }
}

static void put_begin__second_page_refused__gives_the_first_back(void **state)
{
    (void)state;
    size_t count = DIALOG_BLOCKS + 2;
    struct kvf_put *puts = make_puts(count, 100);
    fake_open_registered(&fake, 1, 4 * KVF_MIB);
    fake_fill(&fake, 100);
    fake_begun(&fake, 2, DIALOG_BLOCKS);
    fake_refuse(&fake, 3, KVF_BUSY, "dirty");
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, count, 30000).code, KVF_BUSY);
    assert_all(puts, count, KVF_BUSY);
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN);
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN);
    const Kvferry__EnginePutAbort *aborted =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT)->put_abort;
    assert_int_equal(aborted->n_puts, DIALOG_BLOCKS);
    assert_int_equal(aborted->puts[DIALOG_BLOCKS - 1], 1000 + DIALOG_BLOCKS - 1);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(puts);
}

static void put_commit__second_page_refused__keeps_the_first_and_gives_the_rest_back(void **state)
{
    (void)state;
    size_t count = 2 * DIALOG_BLOCKS;
    struct kvf_put *puts = make_puts(count, 100);
    fake_open_registered(&fake, 1, 4 * KVF_MIB);
    fake_fill(&fake, 100);
    fake_begun(&fake, 2, DIALOG_BLOCKS);
    fake_begun(&fake, 3, DIALOG_BLOCKS);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, count, 30000).code, KVF_OK);
    fake_committed(&fake, 4, DIALOG_BLOCKS);
    fake_refuse(&fake, 5, KVF_IO, "");
    assert_int_equal(kvf_put_commit(fake.client, puts, count).code, KVF_IO);
    assert_all(puts, DIALOG_BLOCKS, KVF_OK);
    assert_all(puts + DIALOG_BLOCKS, DIALOG_BLOCKS, KVF_IO);
    for (size_t i = 0; i < 4; i++)
        assert_non_null(fake_take(&fake));
    assert_int_equal(
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT)->put_abort->n_puts,
        DIALOG_BLOCKS);
    fake_close(&fake);
    free(puts);
}

/* ---- refusals on this side ---- */

static void put_begin__nonsense_or_too_much__is_refused_and_not_sent(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(2, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    struct kvf_client *client = fake.client;
    assert_int_equal(kvf_put_begin(client, "t/f", puts, 2, 0).code, KVF_INVALID);
    assert_all(puts, 2, KVF_INVALID);
    assert_int_equal(kvf_put_begin(client, "t/", puts, 2, 1).code, KVF_INVALID);
    assert_int_equal(kvf_put_begin(client, NULL, puts, 2, 1).code, KVF_INVALID);
    puts[1].length = 0;
    assert_int_equal(kvf_put_begin(client, "t/f", puts, 2, 1).code, KVF_INVALID);
    puts[1].length = KVF_BLOCK_MAX_BYTES + 1;
    assert_int_equal(kvf_put_begin(client, "t/f", puts, 2, 1).code, KVF_TOO_LARGE);
    puts[1].length = UINT64_MAX;
    assert_int_equal(kvf_put_begin(client, "t/f", puts, 2, 1).code, KVF_TOO_LARGE);
    puts[1].length = 64 * KVF_MIB; /* with the other one's page above the limit */
    assert_int_equal(kvf_put_begin(client, "t/f", puts, 2, 1).code, KVF_TOO_LARGE);
    assert_all(puts, 2, KVF_TOO_LARGE);
    puts[1].length = 1;
    puts[1].key.length = 0;
    assert_int_equal(kvf_put_begin(client, "t/f", puts, 2, 1).code, KVF_INVALID);
    assert_int_equal(kvf_put_begin(client, "t/f", NULL, 0, 1).code, KVF_OK);
    assert_null(fake_take(&fake));
    fake_close(&fake);
    free(puts);
}

static void put__draining__begins_nothing_but_commits_what_is_held(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(1, 1), *more = make_puts(1, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_drain_notice(&fake); /* between the request and its answer */
    fake_begun(&fake, 2, 1);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 1, 30000).code, KVF_OK);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", more, 1, 30000).code, KVF_DRAINING);
    fake_committed(&fake, 3, 1);
    assert_int_equal(kvf_put_commit(fake.client, puts, 1).code, KVF_OK);
    assert_int_equal(puts[0].generation.counter, 100);
    fake_close(&fake);
    free(puts);
    free(more);
}

/* ---- illegal answers ---- */

enum bad_place {
    BAD_ARENA = 0,
    BAD_OFFSET_BEHIND,
    BAD_OFFSET_HUGE,
    BAD_OFFSET_STRADDLES,
    BAD_OFFSET_UNALIGNED,
    BAD_CODE,
    BAD_FEWER,
    BAD_MORE,
    BAD_NONE,
    BAD_BODY,
    BAD_WHOLE_CODE,
    BAD_END,
    BAD_COUNT
};

static void say_bad_places(enum bad_place bad)
{
    size_t count = 2;
    switch (bad) {
    case BAD_ARENA:
        fake.places[1].arena = 1;
        break;
    case BAD_OFFSET_BEHIND:
        fake.places[1].offset = KVF_MIB;
        break;
    case BAD_OFFSET_HUGE:
        fake.places[1].offset = UINT64_MAX - KVF_PAGE + 1;
        break;
    case BAD_OFFSET_STRADDLES:
        fake.places[1].offset = KVF_MIB - KVF_PAGE;
        break;
    case BAD_OFFSET_UNALIGNED:
        fake.places[1].offset = 512;
        break;
    case BAD_CODE:
        fake.places[1].code = KVF_CODE_COUNT;
        break;
    case BAD_FEWER:
        count = 1;
        break;
    case BAD_MORE:
        count = 3;
        break;
    case BAD_NONE:
        count = 0;
        break;
    case BAD_BODY:
        fake_ready(&fake, 2, 2);
        return;
    case BAD_WHOLE_CODE:
        fake_refuse(&fake, 2, KVF_CODE_COUNT, "");
        return;
    case BAD_END:
        assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
        return;
    case BAD_COUNT:
        break;
    }
    fake_begun(&fake, 2, count);
}

static void put_begin__illegal_answers__are_protocol_and_end_the_session(void **state)
{
    (void)state;
    for (enum bad_place bad = 0; bad < BAD_COUNT; bad++) {
        enum kvf_code expected = bad == BAD_END ? KVF_UNAVAILABLE : KVF_PROTOCOL;
        struct kvf_put *puts = make_puts(2, KVF_PAGE + 1);
        fake_open_registered(&fake, 1, KVF_MIB);
        fake_fill(&fake, KVF_PAGE + 1);
        say_bad_places(bad);
        assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 2, 30000).code, expected);
        assert_all(puts, 2, expected);
        assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 2, 30000).code, KVF_UNAVAILABLE);
        (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN);
        assert_null(fake_take(&fake));
        fake_close(&fake);
        free(puts);
    }
}

static void put_commit__illegal_answers__are_protocol(void **state)
{
    (void)state;
    for (int bad = 0; bad < 4; bad++) {
        struct kvf_put *puts = make_puts(2, 1);
        fake_open_registered(&fake, 1, KVF_MIB);
        fake_begun(&fake, 2, 2);
        assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 2, 30000).code, KVF_OK);
        fake.committed[1].code = bad == 0 ? KVF_CODE_COUNT : KVF_OK;
        if (bad == 3)
            assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
        else
            fake_committed(&fake, 3, bad == 0 ? 2 : bad == 1 ? 1 : 3);
        enum kvf_code expected = bad == 3 ? KVF_UNAVAILABLE : KVF_PROTOCOL;
        assert_int_equal(kvf_put_commit(fake.client, puts, 2).code, expected);
        assert_all(puts, 2, expected);
        fake_close(&fake);
        free(puts);
    }
}

static void put__daemon_dead_with_places_held__memory_stays_and_all_is_unavailable(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(1, 10);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_begun(&fake, 2, 1);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 1, 30000).code, KVF_OK);
    assert_int_equal(close(fake.fd), 0);
    fake.fd = -1;
    memset(puts[0].data, 1, 10);
    assert_int_equal(kvf_put_commit(fake.client, puts, 1).code, KVF_UNAVAILABLE);
    assert_all(puts, 1, KVF_UNAVAILABLE);
    kvf_put_abort(fake.client, puts, 1);
    fake_close(&fake);
    free(puts);
}

/* ---- late answers ---- */

static void put_begin__answer_after_the_deadline__is_aborted_when_it_comes(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(3, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 3, 5).code, KVF_DEADLINE);
    assert_all(puts, 3, KVF_DEADLINE);
    assert_int_equal(fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN)->id, 2);
    assert_int_equal(fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL)->cancel->id, 2);
    fake.places[1].code = KVF_EXISTS;
    fake_begun(&fake, 2, 3);
    fake.places[1].code = KVF_OK;
    fake_begun(&fake, 4, 3);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 3, 30000).code, KVF_OK);
    assert_int_equal(fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN)->id, 4);
    const Kvferry__EnginePutAbort *aborted =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT)->put_abort;
    assert_int_equal(aborted->n_puts, 2);
    assert_int_equal(aborted->puts[1], 1002);
    assert_null(fake_take(&fake));
    /* It came; a second time it is illegal. */
    fake_begun(&fake, 2, 3);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    fake_close(&fake);
    free(puts);
}

static void put_begin__refused_as_a_whole_with_places__gives_them_back(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(2, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.code = KVF_DEADLINE;
    fake.places[0].code = KVF_BUSY;
    fake_begun(&fake, 2, 2);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 2, 30000).code, KVF_DEADLINE);
    assert_all(puts, 2, KVF_DEADLINE);
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN);
    const Kvferry__EnginePutAbort *aborted =
        fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT)->put_abort;
    assert_int_equal(aborted->n_puts, 1);
    assert_int_equal(aborted->puts[0], 1001);
    fake_close(&fake);
    free(puts);
}

static void put_begin__a_daemon_that_never_answers__is_given_up_after_a_while(void **state)
{
    (void)state;
    struct kvf_put *puts = make_puts(1, 1);
    fake_open_registered(&fake, 1, KVF_MIB);
    fake.client->grace_ms = 0;
    for (size_t i = 0; i < DIALOG_LATE_MAX; i++) {
        assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 1, 1).code, KVF_DEADLINE);
        while (fake_take(&fake) != NULL)
            ;
    }
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 1, 1).code, KVF_DEADLINE);
    assert_int_equal(kvf_put_begin(fake.client, "t/f", puts, 1, 1).code, KVF_UNAVAILABLE);
    fake_close(&fake);
    free(puts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put__begin_and_commit__places_tails_and_checksums_are_right),
        cmocka_unit_test(put_commit__the_daemon_refuses_one__the_others_are_visible),
        cmocka_unit_test(put_abort__held_places__are_named_once),
        cmocka_unit_test(put__around_a_messages_worth_of_blocks__is_cut_and_joined),
        cmocka_unit_test(put_begin__second_page_refused__gives_the_first_back),
        cmocka_unit_test(put_commit__second_page_refused__keeps_the_first_and_gives_the_rest_back),
        cmocka_unit_test(put_begin__nonsense_or_too_much__is_refused_and_not_sent),
        cmocka_unit_test(put__draining__begins_nothing_but_commits_what_is_held),
        cmocka_unit_test(put_begin__illegal_answers__are_protocol_and_end_the_session),
        cmocka_unit_test(put_commit__illegal_answers__are_protocol),
        cmocka_unit_test(put__daemon_dead_with_places_held__memory_stays_and_all_is_unavailable),
        cmocka_unit_test(put_begin__answer_after_the_deadline__is_aborted_when_it_comes),
        cmocka_unit_test(put_begin__refused_as_a_whole_with_places__gives_them_back),
        cmocka_unit_test(put_begin__a_daemon_that_never_answers__is_given_up_after_a_while),
    };
    return cmocka_run_group_tests_name("client/engine/put", tests, NULL, NULL);
}
