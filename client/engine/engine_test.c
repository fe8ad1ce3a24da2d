/* kvf_engine beside a daemon that this thread plays. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/test.h"
#include "client/engine/fake_daemon.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_MS 10000
#define PUT_BEGIN KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN
#define PUT_COMMIT KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT
#define PUT_ABORT KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT
#define GET KVFERRY__ENGINE_REQUEST__MESSAGE_GET
#define LOOKUP KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP
#define FORGET KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET
#define RELEASE KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE
#define CANCEL KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL
#define UNREGISTER KVFERRY__ENGINE_REQUEST__MESSAGE_UNREGISTER

static struct fake_daemon fake;
static struct kvf_engine *engine;
static char directory[] = "/tmp/kvf-engine-XXXXXX", path[64];
static unsigned mapped_calls, unmapping_calls;
static enum kvf_code mapped_code;

static struct kvf_status on_mapped(void *context, const struct kvf_range *arenas, size_t count)
{
    (void)context;
    (void)arenas;
    __atomic_add_fetch(&mapped_calls, (unsigned)count, __ATOMIC_SEQ_CST);
    return kvf_fail(KVF_MODULE_CLIENT, __atomic_load_n(&mapped_code, __ATOMIC_SEQ_CST), 0);
}

static void on_unmapping(void *context, const struct kvf_range *arenas, size_t count)
{
    (void)context;
    (void)arenas;
    __atomic_add_fetch(&unmapping_calls, (unsigned)count, __ATOMIC_SEQ_CST);
}

static void open_engine(void)
{
    struct kvf_engine_options options = {
        .socket_path = path, .name = "test", .mapped = on_mapped, .unmapping = on_unmapping};
    mapped_calls = unmapping_calls = 0;
    assert_int_equal(kvf_engine_open(&options, &engine, NULL).code, KVF_OK);
}

static int set_up(void **state)
{
    (void)state;
    mapped_code = KVF_OK;
    fake_listen(&fake, path, 1, 8 * KVF_MIB);
    open_engine();
    fake_accept(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, WAIT_MS, NULL).code, KVF_OK);
    return 0;
}

static uint64_t held(void)
{
    struct kvf_stats stats;
    kvf_engine_stats(engine, &stats);
    return stats.held_blocks;
}

/* The daemon dies first: closing must not wait for it. */
static int tear_down(void **state)
{
    (void)state;
    if (fake.fd >= 0)
        fake_hang_up(&fake);
    kvf_engine_close(engine);
    assert_int_equal(mapped_calls, unmapping_calls);
    fake_close(&fake);
    (void)unlink(path);
    return 0;
}

static struct kvf_item *make_items(size_t count, uint64_t length, uint8_t *memory)
{
    struct kvf_item *items = calloc(count, sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        (void)kvf_key_set(&items[i].key, &i, sizeof(i));
        items[i].length = length;
        items[i].memory = memory != NULL ? memory + i * length : NULL;
    }
    return items;
}

static struct kvf_op make_op(enum kvf_op_kind kind, struct kvf_item *items, size_t count)
{
    return (struct kvf_op){
        .kind = kind, .ns = "t/f", .timeout_ms = 30000, .items = items, .count = count};
}

static void submit(struct kvf_op *op)
{
    assert_int_equal(kvf_engine_submit(engine, op).code, KVF_OK);
}

/* It ends; the eventfd says so. */
static void await_end(struct kvf_op *op)
{
    struct pollfd one = {.fd = kvf_engine_event_fd(engine), .events = POLLIN};
    assert_int_equal(poll(&one, 1, WAIT_MS), 1);
    assert_true(kvf_engine_next(engine) == op);
    assert_int_equal(poll(&one, 1, 0), 0);
    assert_null(kvf_engine_next(engine));
}

static void await_state(enum kvf_engine_state state)
{
    for (unsigned i = 0; i < WAIT_MS && kvf_engine_state(engine) != state; i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(kvf_engine_state(engine), state);
}

/* Every checksum of the blocks that the daemon is about to name. */
static void make_checksums(size_t count, uint64_t length)
{
    for (size_t i = 0; i < count; i++)
        fake.blocks[i].crc32c =
            kvf_crc32c(0, fake.arenas[0].base + fake.blocks[i].offset, (size_t)length);
}

/* ---- with memory ---- */

static void put__with_memory__is_copied_sealed_and_committed(void **state)
{
    (void)state;
    uint8_t memory[3 * 5000];
    struct kvf_item *items = make_items(3, 5000, memory);
    struct kvf_op op = make_op(KVF_OP_PUT, items, 3);
    struct kvf_stats stats;
    for (size_t i = 0; i < sizeof(memory); i++)
        memory[i] = (uint8_t)(i * 13);
    fake_fill(&fake, 5000);
    memset(fake.arenas[0].base, 0xee, KVF_MIB);
    fake.places[1].code = KVF_EXISTS;
    submit(&op);
    uint64_t id = fake_await(&fake, PUT_BEGIN)->id;
    assert_int_equal(fake.request->put_begin->n_blocks, 3);
    fake_begun(&fake, id, 3);
    const Kvferry__EngineRequest *commit = fake_await(&fake, PUT_COMMIT);
    assert_int_equal(commit->put_commit->n_commits, 2);
    assert_int_equal(commit->put_commit->commits[1]->put, 1002);
    assert_int_equal(commit->put_commit->commits[1]->crc32c, kvf_crc32c(0, memory + 10000, 5000));
    assert_memory_equal(fake.arenas[0].base + 2 * 8192, memory + 10000, 5000);
    assert_int_equal(fake.arenas[0].base[2 * 8192 + 5000], 0);
    assert_int_equal(fake.arenas[0].base[2 * 8192 + 8191], 0);
    assert_int_equal(fake.arenas[0].base[8192], 0xee);
    fake_committed(&fake, commit->id, 2);
    await_end(&op);
    assert_int_equal(op.status.code, KVF_OK);
    assert_int_equal(op.prefix, 3);
    assert_int_equal(items[0].code, KVF_OK);
    assert_int_equal(items[1].code, KVF_EXISTS);
    assert_int_equal(items[2].generation.counter, 101);
    assert_null(items[0].data);
    kvf_engine_stats(engine, &stats);
    assert_int_equal(stats.put_blocks, 2);
    assert_int_equal(stats.put_exists, 1);
    assert_int_equal(stats.copied_bytes, 10000);
    assert_int_equal(stats.held_blocks, 0);
    free(items);
}

static void get__with_memory__is_copied_checked_and_given_back(void **state)
{
    (void)state;
    uint8_t memory[4 * 5000];
    struct kvf_item *items = make_items(4, 5000, memory);
    struct kvf_op op = make_op(KVF_OP_GET, items, 4);
    struct kvf_stats stats;
    op.flags = KVF_OP_VERIFY;
    op.source = "10.0.0.1:9470";
    fake_fill(&fake, 5000);
    for (size_t i = 0; i < KVF_MIB; i++)
        fake.arenas[0].base[i] = (uint8_t)(i * 7);
    make_checksums(4, 5000);
    fake.blocks[1].crc32c ^= 1;
    fake.blocks[3].code = KVF_NOT_FOUND;
    submit(&op);
    uint64_t id = fake_await(&fake, GET)->id;
    assert_string_equal(fake.request->get->source, "10.0.0.1:9470");
    fake_ready(&fake, id, 4);
    const Kvferry__EngineRequest *bad = fake_await(&fake, RELEASE);
    assert_true(bad->release->bad);
    assert_int_equal(bad->release->blocks[0], 1);
    const Kvferry__EngineRequest *good = fake_await(&fake, RELEASE);
    assert_int_equal(good->release->get, id);
    assert_int_equal(good->release->n_blocks, 2);
    assert_int_equal(good->release->blocks[1], 2);
    await_end(&op);
    assert_int_equal(op.status.code, KVF_OK);
    assert_int_equal(op.prefix, 1);
    assert_memory_equal(memory, fake.arenas[0].base, 5000);
    assert_memory_equal(memory + 10000, fake.arenas[0].base + 2 * 8192, 5000);
    assert_int_equal(items[1].code, KVF_CORRUPT);
    assert_int_equal(items[2].tier, KVF_TIER_SSD);
    assert_int_equal(items[3].code, KVF_NOT_FOUND);
    assert_null(items[2].data);
    kvf_engine_stats(engine, &stats);
    assert_int_equal(stats.get_remote_ssd, 2);
    assert_int_equal(stats.get_corrupt, 1);
    assert_int_equal(stats.get_misses, 1);
    assert_int_equal(stats.held_blocks, 0);
    free(items);
}

/* 40 MiB at a daemon that lets one engine hold 64, so 32 at once; the arena is small, and blocks lie on each other. */
static void get__more_than_the_daemon_lets_us_hold__goes_page_by_page(void **state)
{
    (void)state;
    uint8_t *memory = malloc(40 * KVF_MIB);
    struct kvf_item *items = make_items(40, KVF_MIB, memory);
    struct kvf_op op = make_op(KVF_OP_GET, items, 40);
    fake_fill(&fake, KVF_MIB);
    for (size_t i = 0; i < 40; i++)
        fake.blocks[i].offset = 0;
    submit(&op);
    const Kvferry__EngineRequest *request = fake_await(&fake, GET);
    assert_int_equal(request->get->n_blocks, 32);
    fake_ready(&fake, request->id, 32);
    assert_int_equal(fake_await(&fake, RELEASE)->release->n_blocks, 32);
    request = fake_await(&fake, GET);
    assert_int_equal(request->get->n_blocks, 8);
    fake.blocks[7].code = KVF_BUSY;
    fake_ready(&fake, request->id, 8);
    await_end(&op);
    assert_int_equal(op.prefix, 39);
    assert_int_equal(items[39].code, KVF_BUSY);
    free(items);
    free(memory);
}

static void get__stop_at_first_miss__asks_for_no_further_page(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(600, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_LOOKUP, items, 600);
    op.flags = KVF_OP_STOP_AT_FIRST_MISS;
    fake.blocks[100].code = KVF_NOT_FOUND;
    submit(&op);
    const Kvferry__EngineRequest *request = fake_await(&fake, LOOKUP);
    assert_int_equal(request->lookup->n_keys, 512);
    fake_ready(&fake, request->id, 512);
    await_end(&op);
    assert_int_equal(op.prefix, 100);
    assert_int_equal(items[101].code, KVF_OK);
    assert_int_equal(items[599].code, KVF_NOT_FOUND);
    assert_int_equal(held(), 0);
    free(items);
}

/* ---- in place ---- */

static void get__in_place__stays_pinned_until_released(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(3, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_GET, items, 3);
    fake_fill(&fake, 5000);
    fake.blocks[1].code = KVF_PENDING;
    submit(&op);
    uint64_t id = fake_await(&fake, GET)->id;
    fake_ready(&fake, id, 3);
    await_end(&op);
    assert_int_equal(op.prefix, 1);
    assert_int_equal(items[0].length, 5000);
    assert_non_null(items[2].data);
    assert_null(items[1].data);
    memcpy(fake.arenas[0].base + 2 * 8192, "third", 5);
    assert_memory_equal(items[2].data, "third", 5);
    assert_int_equal(held(), 2);
    kvf_engine_release(engine, items, 3);
    kvf_engine_release(engine, items, 3);
    const Kvferry__EngineRequest *release = fake_await(&fake, RELEASE);
    assert_int_equal(release->release->get, id);
    assert_int_equal(release->release->n_blocks, 2);
    assert_null(items[2].data);
    free(items);
}

static void put__in_place__is_committed_or_aborted_by_its_caller(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(4, 5000, NULL);
    struct kvf_op op = make_op(KVF_OP_PUT, items, 4);
    fake_fill(&fake, 5000);
    fake.places[0].code = KVF_PENDING;
    submit(&op);
    uint64_t id = fake_await(&fake, PUT_BEGIN)->id;
    assert_int_equal(kvf_engine_commit(engine, &op, 1000).code, KVF_INVALID);
    fake_begun(&fake, id, 4);
    struct pollfd ended = {.fd = kvf_engine_event_fd(engine), .events = POLLIN};
    assert_int_equal(poll(&ended, 1, WAIT_MS), 1);
    assert_int_equal(kvf_engine_commit(engine, &op, 1000).code, KVF_INVALID); /* not taken yet */
    await_end(&op);
    assert_int_equal(op.prefix, 0);
    assert_int_equal(items[0].code, KVF_PENDING);
    assert_int_equal(held(), 3);
    kvf_engine_release(engine, &items[2], 1);
    assert_int_equal(fake_await(&fake, PUT_ABORT)->put_abort->puts[0], 1002);
    memset(items[1].data, 0x11, 5000);
    memset(items[3].data, 0x33, 5000);
    assert_int_equal(kvf_engine_commit(engine, &op, 30000).code, KVF_OK);
    const Kvferry__EngineRequest *commit = fake_await(&fake, PUT_COMMIT);
    assert_int_equal(commit->put_commit->n_commits, 2);
    assert_int_equal(commit->put_commit->commits[1]->put, 1003);
    assert_int_equal(commit->put_commit->commits[1]->crc32c,
                     kvf_crc32c(0, fake.arenas[0].base + 3 * 8192, 5000));
    fake_committed(&fake, commit->id, 2);
    await_end(&op);
    assert_int_equal(items[3].code, KVF_OK);
    assert_int_equal(items[3].generation.counter, 101);
    assert_null(items[1].data);
    assert_int_equal(held(), 0);
    assert_int_equal(kvf_engine_commit(engine, &op, 1000).code, KVF_INVALID);
    free(items);
}

static void get__in_place_and_more_than_may_be_held__is_too_large(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(65, KVF_MIB, NULL);
    struct kvf_op op = make_op(KVF_OP_GET, items, 65);
    assert_int_equal(kvf_engine_max_get_bytes(engine), 64 * KVF_MIB);
    assert_int_equal(kvf_engine_run(engine, &op).code, KVF_TOO_LARGE);
    assert_int_equal(items[64].code, KVF_TOO_LARGE);
    free(items);
}

static void forget__any_number__is_ok_when_it_is_gone(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(2, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_FORGET, items, 2);
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineForgotten forgotten = KVFERRY__ENGINE_FORGOTTEN__INIT;
    submit(&op);
    reply.id = fake_await(&fake, FORGET)->id;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_FORGOTTEN;
    reply.forgotten = &forgotten;
    forgotten.blocks = 1;
    fake_say(&fake, &reply, NULL, 0);
    await_end(&op);
    assert_int_equal(items[0].code, KVF_OK);
    assert_int_equal(items[1].code, KVF_OK);
    free(items);
}

static void operations__several_at_once__end_in_any_order(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(2, 0, NULL);
    struct kvf_op first = make_op(KVF_OP_LOOKUP, &items[0], 1);
    struct kvf_op second = make_op(KVF_OP_LOOKUP, &items[1], 1);
    submit(&first);
    submit(&second);
    uint64_t one = fake_await(&fake, LOOKUP)->id, two = fake_await(&fake, LOOKUP)->id;
    fake_ready(&fake, two, 1);
    await_end(&second);
    fake_refuse(&fake, one, KVF_BUSY, "later");
    await_end(&first);
    assert_int_equal(first.status.code, KVF_BUSY);
    assert_int_equal(items[0].code, KVF_BUSY);
    assert_int_equal(items[1].code, KVF_OK);
    free(items);
}

/* ---- what makes no sense, and time ---- */

static void submit__what_makes_no_sense__starts_nothing(void **state)
{
    (void)state;
    uint8_t memory[16];
    struct kvf_item items[2] = {{.key = {1, "a"}, .length = 8}, {.key = {1, "b"}, .length = 8}};
    const struct kvf_op good = make_op(KVF_OP_PUT, items, 2);
    struct kvf_op bad = good;
    bad.kind = KVF_OP_COMMIT;
    assert_int_equal(kvf_engine_submit(engine, &bad).code, KVF_INVALID);
    bad = good, bad.ns = "no namespace";
    assert_int_equal(kvf_engine_submit(engine, &bad).code, KVF_INVALID);
    bad = good, bad.timeout_ms = 0;
    assert_int_equal(kvf_engine_run(engine, &bad).code, KVF_INVALID);
    bad = good, items[1].length = 0;
    assert_int_equal(kvf_engine_submit(engine, &bad).code, KVF_INVALID);
    items[1].length = KVF_BLOCK_MAX_BYTES + 1;
    assert_int_equal(kvf_engine_submit(engine, &bad).code, KVF_INVALID);
    items[1].length = 8, items[1].memory = memory;
    assert_int_equal(kvf_engine_submit(engine, &bad).code, KVF_INVALID);
    items[1].memory = NULL, items[1].key.length = 0;
    assert_int_equal(kvf_engine_submit(engine, &bad).code, KVF_INVALID);
    assert_null(kvf_engine_next(engine));
    bad = make_op(KVF_OP_GET, NULL, 0);
    submit(&bad);
    await_end(&bad);
    assert_int_equal(bad.status.code, KVF_OK);
    struct kvf_engine *none = NULL;
    struct kvf_why why = {.text = ""};
    struct kvf_engine_options options = {.socket_path = ""};
    assert_int_equal(kvf_engine_open(&options, &none, &why).code, KVF_INVALID);
    assert_null(none);
}

static void get__no_answer_by_the_deadline__ends_and_gives_back_what_comes_late(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(2, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_GET, items, 2);
    op.timeout_ms = 20;
    submit(&op);
    uint64_t id = fake_await(&fake, GET)->id;
    await_end(&op);
    assert_int_equal(op.status.code, KVF_DEADLINE);
    assert_int_equal(items[1].code, KVF_DEADLINE);
    assert_int_equal(fake_await(&fake, CANCEL)->cancel->id, id);
    fake_ready(&fake, id, 2);
    assert_int_equal(fake_await(&fake, RELEASE)->release->get, id);
    assert_int_equal(held(), 0);
    free(items);
}

#define MANY (DIALOG_LATE_MAX + 100u)

/* More operations than answers may be outstanding, all taken back at once: what they asked for is owed still, and the session, with all
 * that others hold, goes on. */
static void cancel__more_than_a_daemon_may_owe__the_session_goes_on(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(MANY, 0, NULL);
    struct kvf_op *ops = calloc(MANY, sizeof(*ops));
    uint64_t *ids = calloc(MANY, sizeof(*ids));
    const Kvferry__EngineRequest *request;
    size_t asked = 0, ended = 0;
    for (size_t i = 0; i < MANY; i++) {
        ops[i] = make_op(KVF_OP_GET, &items[i], 1);
        submit(&ops[i]);
    }
    while (asked < DIALOG_LATE_MAX)
        ids[asked++] = fake_await(&fake, GET)->id;
    (void)poll(NULL, 0, 50);
    assert_null(fake_take(&fake)); /* the others wait */
    for (size_t i = 0; i < MANY; i++)
        kvf_engine_cancel(engine, &ops[i]);
    for (unsigned ms = 0; ended < MANY && ms < WAIT_MS; ms++) {
        for (struct kvf_op *op; (op = kvf_engine_next(engine)) != NULL; ended++)
            assert_int_equal(op->status.code, KVF_CANCELLED);
        while ((request = fake_take(&fake)) != NULL)
            assert_int_equal(request->message_case, CANCEL);
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(ended, MANY);
    static struct kvf_op last;
    last = make_op(KVF_OP_GET, items, 1);
    submit(&last);
    for (size_t i = 0; i < asked; i++)
        fake_refuse(&fake, ids[i], KVF_CANCELLED, "as asked");
    uint64_t id = fake_await(&fake, GET)->id;
    fake_ready(&fake, id, 1);
    await_end(&last);
    assert_int_equal(last.status.code, KVF_OK);
    assert_int_equal(mapped_calls, 1); /* registered once */
    kvf_engine_release(engine, items, 1);
    free(ids);
    free(ops);
    free(items);
}

static void cancel__a_get_that_waits__ends_with_cancelled(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(2, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_GET, items, 2);
    submit(&op);
    uint64_t id = fake_await(&fake, GET)->id;
    kvf_engine_cancel(engine, &op);
    await_end(&op);
    assert_int_equal(op.status.code, KVF_CANCELLED);
    assert_int_equal(fake_await(&fake, CANCEL)->cancel->id, id);
    kvf_engine_cancel(engine, &op); /* has ended: nothing happens */
    assert_null(kvf_engine_next(engine));
    free(items);
}

static void put__the_commit_is_not_answered__the_places_go_back(void **state)
{
    (void)state;
    uint8_t memory[10];
    struct kvf_item *items = make_items(1, 10, memory);
    struct kvf_op op = make_op(KVF_OP_PUT, items, 1);
    memset(memory, 1, sizeof(memory));
    op.timeout_ms = 300;
    submit(&op);
    uint64_t id = fake_await(&fake, PUT_BEGIN)->id;
    fake_begun(&fake, id, 1);
    (void)fake_await(&fake, PUT_COMMIT);
    await_end(&op);
    assert_int_equal(items[0].code, KVF_DEADLINE);
    assert_int_equal(fake_await(&fake, PUT_ABORT)->put_abort->puts[0], 1000);
    assert_int_equal(held(), 0);
    free(items);
}

/* ---- daemons that go and come ---- */

static void engine__no_daemon__answers_at_once_and_finds_the_next_one(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(2, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_GET, items, 2);
    struct kvf_why why = {.text = ""};
    (void)unlink(path);
    open_engine();
    assert_int_equal(kvf_engine_wait_up(engine, 30, &why).code, KVF_DEADLINE);
    assert_int_equal(kvf_engine_run(engine, &op).code, KVF_UNAVAILABLE);
    assert_int_equal(items[1].code, KVF_UNAVAILABLE);
    submit(&op);
    await_end(&op);
    fake_listen(&fake, path, 2, KVF_MIB);
    mapped_code = KVF_OK;
    fake_accept(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, WAIT_MS, NULL).code, KVF_OK);
    assert_int_equal(mapped_calls, 2);
    free(items);
}

static void engine__the_daemon_dies__what_runs_ends_and_what_is_held_stays_mapped(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(2, 0, NULL);
    struct kvf_op kept = make_op(KVF_OP_GET, &items[0], 1),
                  lost = make_op(KVF_OP_GET, &items[1], 1);
    struct kvf_stats stats;
    fake_fill(&fake, 5000);
    submit(&kept);
    uint64_t id = fake_await(&fake, GET)->id;
    fake_ready(&fake, id, 1);
    await_end(&kept);
    submit(&lost);
    (void)fake_await(&fake, GET);
    fake_hang_up(&fake);
    await_end(&lost);
    assert_int_equal(lost.status.code, KVF_UNAVAILABLE);
    fake_accept(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, WAIT_MS, NULL).code, KVF_OK);
    fake.arenas[0].base[4999] = 0x77;
    assert_int_equal(((uint8_t *)items[0].data)[4999], 0x77);
    assert_int_equal(unmapping_calls, 0);
    kvf_engine_release(engine, items, 1);
    for (unsigned i = 0; i < WAIT_MS && __atomic_load_n(&unmapping_calls, __ATOMIC_SEQ_CST) == 0;
         i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(unmapping_calls, 1);
    assert_null(fake_take(&fake)); /* nothing of the old one is told to the new one */
    kvf_engine_stats(engine, &stats);
    assert_int_equal(stats.registrations, 2);
    assert_int_equal(stats.held_blocks, 0);
    free(items);
}

static void engine__a_commit_after_the_daemon_died__is_unavailable(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(1, 5000, NULL);
    struct kvf_op op = make_op(KVF_OP_PUT, items, 1);
    submit(&op);
    fake_begun(&fake, fake_await(&fake, PUT_BEGIN)->id, 1);
    await_end(&op);
    fake_hang_up(&fake);
    await_state(KVF_ENGINE_DOWN);
    memset(items[0].data, 1, 5000); /* still mapped */
    assert_int_equal(kvf_engine_commit(engine, &op, 1000).code, KVF_OK);
    await_end(&op);
    assert_int_equal(items[0].code, KVF_UNAVAILABLE);
    assert_int_equal(held(), 1);
    kvf_engine_release(engine, items, 1);
    free(items);
}

static void engine__a_drain_notice__finishes_unregisters_and_registers_again(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(3, 0, NULL);
    struct kvf_op pinned = make_op(KVF_OP_GET, &items[0], 1),
                  running = make_op(KVF_OP_GET, &items[1], 1);
    struct kvf_op late = make_op(KVF_OP_GET, &items[2], 1);
    struct kvf_stats stats;
    submit(&pinned);
    fake_ready(&fake, fake_await(&fake, GET)->id, 1);
    await_end(&pinned);
    submit(&running);
    uint64_t id = fake_await(&fake, GET)->id;
    fake_drain_notice(&fake);
    await_state(KVF_ENGINE_DRAINING);
    assert_int_equal(kvf_engine_run(engine, &late).code, KVF_DRAINING);
    fake.blocks[0].code = KVF_NOT_FOUND;
    fake_ready(&fake, id, 1);
    await_end(&running);
    assert_int_equal(running.status.code, KVF_OK);
    assert_int_equal(kvf_engine_state(engine), KVF_ENGINE_DRAINING);
    assert_null(fake_take(&fake));
    kvf_engine_release(engine, items, 1);
    (void)fake_await(&fake, RELEASE);
    fake_refuse(&fake, fake_await(&fake, UNREGISTER)->id, KVF_OK, "");
    fake_hang_up(&fake);
    fake_accept(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, WAIT_MS, NULL).code, KVF_OK);
    kvf_engine_stats(engine, &stats);
    assert_int_equal(stats.drain_notices, 1);
    assert_int_equal(stats.registrations, 2);
    free(items);
}

static void engine__the_daemon_talks_nonsense__is_left_and_looked_for_again(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(1, 0, NULL);
    struct kvf_op op = make_op(KVF_OP_GET, items, 1);
    submit(&op);
    fake.blocks[0].arena = 99;
    fake_ready(&fake, fake_await(&fake, GET)->id, 1);
    await_end(&op);
    assert_int_equal(op.status.code, KVF_PROTOCOL);
    fake_hang_up(&fake);
    fake_accept(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, WAIT_MS, NULL).code, KVF_OK);
    free(items);
}

static void engine__the_arenas_cannot_be_registered__the_daemon_is_given_up(void **state)
{
    (void)state;
    struct kvf_why why = {.text = ""};
    fake_listen(&fake, path, 1, KVF_MIB);
    mapped_code = KVF_NO_MEMORY;
    open_engine();
    fake_accept(&fake);
    fake_refuse(&fake, fake_await(&fake, UNREGISTER)->id, KVF_OK, "");
    fake_hang_up(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, 1, NULL).code, KVF_DEADLINE);
    for (unsigned i = 0; i < WAIT_MS && strstr(why.text, "NO_MEMORY") == NULL; i++)
        (void)kvf_engine_wait_up(engine, 1, &why).code;
    assert_non_null(strstr(why.text, "NO_MEMORY"));
    mapped_code = KVF_OK;
    fake_accept(&fake);
    assert_int_equal(kvf_engine_wait_up(engine, WAIT_MS, NULL).code, KVF_OK);
    mapped_calls -= 1; /* the refused ones are not unmapped */
}

static void close__with_everything_open__ends_and_gives_back(void **state)
{
    (void)state;
    struct kvf_item *items = make_items(3, 0, NULL);
    struct kvf_op pinned = make_op(KVF_OP_GET, &items[0], 1),
                  running = make_op(KVF_OP_GET, &items[1], 1);
    submit(&pinned);
    fake_ready(&fake, fake_await(&fake, GET)->id, 1);
    await_end(&pinned);
    submit(&running);
    (void)fake_await(&fake, GET);
    fake_hang_up(&fake);
    kvf_engine_close(engine);
    assert_int_equal(running.status.code == KVF_CANCELLED || running.status.code == KVF_UNAVAILABLE,
                     1);
    assert_int_equal(unmapping_calls, 1);
    engine = NULL;
    kvf_engine_close(NULL);
    free(items);
}

#define WITH_ENGINE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ENGINE(put__with_memory__is_copied_sealed_and_committed),
        WITH_ENGINE(get__with_memory__is_copied_checked_and_given_back),
        WITH_ENGINE(get__more_than_the_daemon_lets_us_hold__goes_page_by_page),
        WITH_ENGINE(get__stop_at_first_miss__asks_for_no_further_page),
        WITH_ENGINE(get__in_place__stays_pinned_until_released),
        WITH_ENGINE(put__in_place__is_committed_or_aborted_by_its_caller),
        WITH_ENGINE(get__in_place_and_more_than_may_be_held__is_too_large),
        WITH_ENGINE(forget__any_number__is_ok_when_it_is_gone),
        WITH_ENGINE(operations__several_at_once__end_in_any_order),
        WITH_ENGINE(submit__what_makes_no_sense__starts_nothing),
        WITH_ENGINE(get__no_answer_by_the_deadline__ends_and_gives_back_what_comes_late),
        WITH_ENGINE(cancel__a_get_that_waits__ends_with_cancelled),
        WITH_ENGINE(cancel__more_than_a_daemon_may_owe__the_session_goes_on),
        WITH_ENGINE(put__the_commit_is_not_answered__the_places_go_back),
        cmocka_unit_test_teardown(engine__no_daemon__answers_at_once_and_finds_the_next_one,
                                  tear_down),
        WITH_ENGINE(engine__the_daemon_dies__what_runs_ends_and_what_is_held_stays_mapped),
        WITH_ENGINE(engine__a_commit_after_the_daemon_died__is_unavailable),
        WITH_ENGINE(engine__a_drain_notice__finishes_unregisters_and_registers_again),
        WITH_ENGINE(engine__the_daemon_talks_nonsense__is_left_and_looked_for_again),
        cmocka_unit_test_teardown(engine__the_arenas_cannot_be_registered__the_daemon_is_given_up,
                                  tear_down),
        WITH_ENGINE(close__with_everything_open__ends_and_gives_back),
    };
    if (mkdtemp(directory) == NULL)
        return 2;
    (void)snprintf(path, sizeof(path), "%s/sock", directory);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(directory);
    return failed;
}
