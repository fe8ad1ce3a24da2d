#include "proto/scratch.h"

#include "base/test.h"
#include "proto/admin.pb-c.h"
#include "proto/engine.pb-c.h"
#include "proto/health.pb-c.h"
#include "proto/peer.pb-c.h"

#include <malloc.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES 4096u
#define GUARD 0xa5

/* Behind the memory lies what nobody may touch. */
static struct {
    alignas(max_align_t) uint8_t memory[MEMORY_BYTES];
    uint8_t guard[64];
} room;
static struct kvf_scratch scratch;

static int set_up(void **state)
{
    (void)state;
    memset(&room, GUARD, sizeof(room));
    kvf_scratch_init(&scratch, room.memory, MEMORY_BYTES);
    return 0;
}

static int look_at_guard(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(room.guard); i++)
        assert_int_equal(room.guard[i], GUARD);
    return 0;
}

static uint8_t *take(ProtobufCAllocator *allocator, size_t bytes)
{
    return allocator->alloc(allocator->allocator_data, bytes);
}

static void alloc__until_all_is_used__then_nothing(void **state)
{
    (void)state;
    ProtobufCAllocator *allocator = kvf_scratch_reset(&scratch);
    for (size_t i = 0; i < MEMORY_BYTES / 64; i++) {
        uint8_t *at = take(allocator, 64);
        assert_ptr_equal(at, room.memory + 64 * i);
        memset(at, 0, 64);
    }
    assert_null(take(allocator, 1));
    allocator->free(allocator->allocator_data, room.memory); /* gives nothing back */
    assert_null(take(allocator, 1));
}

static void alloc__more_than_there_is__takes_nothing(void **state)
{
    (void)state;
    ProtobufCAllocator *allocator = kvf_scratch_reset(&scratch);
    const size_t too_many[] = {MEMORY_BYTES + 1, SIZE_MAX, SIZE_MAX - 15, SIZE_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof(too_many) / sizeof(too_many[0]); i++)
        assert_null(take(allocator, too_many[i]));
    assert_non_null(take(allocator, MEMORY_BYTES));
    (void)kvf_scratch_reset(&scratch);
    assert_non_null(take(allocator, 1));
    for (size_t i = 0; i < sizeof(too_many) / sizeof(too_many[0]); i++)
        assert_null(take(allocator, too_many[i]));
    assert_null(take(allocator, MEMORY_BYTES));
    assert_non_null(take(allocator, MEMORY_BYTES - alignof(max_align_t)));
}

static void alloc__odd_sizes_in_odd_memory__are_aligned_and_apart(void **state)
{
    (void)state;
    for (size_t offset = 0; offset < alignof(max_align_t); offset++) {
        kvf_scratch_init(&scratch, room.memory + offset, MEMORY_BYTES - offset);
        ProtobufCAllocator *allocator = kvf_scratch_reset(&scratch);
        const uint8_t *end = room.memory + offset;
        unsigned taken = 0;
        for (size_t bytes = 1;; bytes = bytes % 37 + 1) {
            uint8_t *at = take(allocator, bytes);
            if (at == NULL)
                break;
            assert_int_equal((uintptr_t)at % alignof(max_align_t), 0);
            assert_true(at >= end);
            end = at + bytes;
            assert_true(end <= room.memory + MEMORY_BYTES);
            memset(at, 0, bytes);
            taken++;
        }
        assert_true(taken > 100);
    }
}

static void alloc__less_memory_than_its_alignment__takes_nothing(void **state)
{
    (void)state;
    kvf_scratch_init(&scratch, room.memory + 1, 3);
    assert_null(take(kvf_scratch_reset(&scratch), 1));
    kvf_scratch_init(&scratch, NULL, 0);
    assert_null(take(kvf_scratch_reset(&scratch), 1));
}

static size_t pack_lookup(uint8_t *bytes, size_t room_bytes, size_t count)
{
    Kvferry__LookupRequest request = KVFERRY__LOOKUP_REQUEST__INIT;
    ProtobufCBinaryData keys[64];
    uint8_t key[64];
    memset(key, 'k', sizeof(key));
    assert_true(count <= 64);
    for (size_t i = 0; i < count; i++)
        keys[i] = (ProtobufCBinaryData){.len = sizeof(key), .data = key};
    request.namespace_ = (char *)(uintptr_t) "t/f";
    request.n_keys = count;
    request.keys = keys;
    assert_true(kvferry__lookup_request__get_packed_size(&request) <= room_bytes);
    return kvferry__lookup_request__pack(&request, bytes);
}

static void reset__message_after_message__each_has_all_the_memory(void **state)
{
    (void)state;
    uint8_t bytes[MEMORY_BYTES];
    size_t length = pack_lookup(bytes, sizeof(bytes), 20);
    for (unsigned round = 0; round < 1000; round++) {
        Kvferry__LookupRequest *request =
            kvferry__lookup_request__unpack(kvf_scratch_reset(&scratch), length, bytes);
        assert_non_null(request);
        assert_ptr_equal(request, room.memory);
        assert_int_equal(request->n_keys, 20);
        assert_string_equal(request->namespace_, "t/f");
        assert_int_equal(request->keys[19].len, 64);
    }
}

static void reset__after_a_refused_message__the_next_is_taken(void **state)
{
    (void)state;
    uint8_t many[2 * MEMORY_BYTES], few[MEMORY_BYTES];
    size_t many_length = pack_lookup(many, sizeof(many), 64);
    size_t few_length = pack_lookup(few, sizeof(few), 1);
    assert_null(kvferry__lookup_request__unpack(kvf_scratch_reset(&scratch), many_length, many));
    assert_non_null(kvferry__lookup_request__unpack(kvf_scratch_reset(&scratch), few_length, few));
}

/* ---- hostile messages: a megabyte each, all of it elements of two bytes ---- */

#define HOSTILE_BYTES (1u << 20)

static size_t put_varint(uint8_t *at, uint64_t value)
{
    size_t bytes = 0;
    for (; value > 0x7f; value >>= 7)
        at[bytes++] = (uint8_t)(value | 0x80);
    at[bytes++] = (uint8_t)value;
    return bytes;
}

/* One part of field `outer`, full of empty elements of field `inner`; with outer 0 the elements are the message. */
static size_t fill(uint8_t *bytes, unsigned outer, unsigned inner)
{
    size_t at = 0, body = HOSTILE_BYTES - 8;
    if (outer > 0) {
        bytes[at++] = (uint8_t)(outer << 3 | 2);
        at += put_varint(bytes + at, body);
    }
    for (size_t i = 0; i < body; i += 2) {
        bytes[at++] = (uint8_t)(inner << 3 | 2);
        bytes[at++] = 0;
    }
    return at;
}

static void unpack__half_a_million_empty_elements__are_refused_within_the_memory(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(HOSTILE_BYTES);
    const size_t memory_bytes = 4u << 20;
    uint8_t *memory = malloc(memory_bytes);
    assert_non_null(bytes);
    assert_non_null(memory);
    kvf_scratch_init(&scratch, memory, memory_bytes);
    size_t length = fill(bytes, 0, 2); /* keys */
    assert_null(kvferry__lookup_request__unpack(kvf_scratch_reset(&scratch), length, bytes));
    assert_true(scratch.used <= memory_bytes);
    length = fill(bytes, 3, 5); /* blocks of a Read */
    assert_null(kvferry__session_up__unpack(kvf_scratch_reset(&scratch), length, bytes));
    length = fill(bytes, 0, 3); /* the same Read of no blocks, over and over */
    assert_null(kvferry__session_up__unpack(kvf_scratch_reset(&scratch), length, bytes));
    length = fill(bytes, 0, 15); /* a field that nobody knows */
    assert_null(kvferry__session_up__unpack(kvf_scratch_reset(&scratch), length, bytes));
    free(memory);
    free(bytes);
}

/* Whatever the memory, a legal message is unpacked whole or refused: each step of protobuf-c meets the end once. */
static void unpack__memory_that_ends_anywhere__whole_or_refused(void **state)
{
    (void)state;
    uint8_t bytes[MEMORY_BYTES];
    size_t length = pack_lookup(bytes, sizeof(bytes), 20);
    bool was_taken = false;
    for (size_t memory_bytes = 0; memory_bytes <= MEMORY_BYTES; memory_bytes++) {
        kvf_scratch_init(&scratch, room.guard - memory_bytes, memory_bytes);
        const Kvferry__LookupRequest *request =
            kvferry__lookup_request__unpack(kvf_scratch_reset(&scratch), length, bytes);
        assert_true(request == NULL || request->n_keys == 20);
        was_taken = was_taken || request != NULL;
    }
    assert_true(was_taken);
}

/* ---- the same for every message that a daemon, an engine or the command unpacks ---- */

#define UNPACK_BYTES ((size_t)4 << 20) /* the largest buffer of any service */

static const ProtobufCMessageDescriptor *const foreign[] = {
    &kvferry__session_up__descriptor,
    &kvferry__session_down__descriptor,
    &kvferry__lookup_request__descriptor,
    &kvferry__lookup_reply__descriptor,
    &kvferry__engine_request__descriptor,
    &kvferry__engine_reply__descriptor,
    &kvferry__set_read_batch_request__descriptor,
    &kvferry__stat_reply__descriptor,
    &kvferry__admin_reply__descriptor,
    &grpc__health__v1__health_check_request__descriptor,
};

/* Unpacks into `memory` and nowhere else: what lies behind it stays, and nothing is left of malloc's. False: refused. */
static bool unpack_within(const ProtobufCMessageDescriptor *descriptor, uint8_t *memory,
                          const uint8_t *bytes, size_t length)
{
    memset(memory + UNPACK_BYTES, GUARD, 64);
    size_t before = mallinfo2().uordblks;
    kvf_scratch_init(&scratch, memory, UNPACK_BYTES);
    bool taken =
        protobuf_c_message_unpack(descriptor, kvf_scratch_reset(&scratch), length, bytes) != NULL;
    assert_true(scratch.used <= UNPACK_BYTES);
    assert_int_equal(mallinfo2().uordblks, before);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(memory[UNPACK_BYTES + i], GUARD);
    return taken;
}

struct bomb {
    uint8_t *memory, *bytes;
    size_t room;
};

static struct bomb bomb_open(size_t bytes)
{
    struct bomb bomb = {.memory = malloc(UNPACK_BYTES + 64), .bytes = malloc(bytes), .room = bytes};
    assert_non_null(bomb.memory);
    assert_non_null(bomb.bytes);
    return bomb;
}

static void bomb_close(struct bomb *bomb)
{
    free(bomb->bytes);
    free(bomb->memory);
}

#define for_each_foreign_field(descriptor, number)                                                 \
    for (size_t d_ = 0; d_ < sizeof(foreign) / sizeof(foreign[0]); d_++)                           \
        for (const ProtobufCMessageDescriptor *descriptor = foreign[d_]; descriptor != NULL;       \
             descriptor = NULL)                                                                    \
            for (unsigned number = 1; number <= descriptor->n_fields + 1; number++)

static void unpack__ten_million_elements__are_refused_within_the_memory(void **state)
{
    (void)state;
    const size_t count = 10000000;
    struct bomb bomb = bomb_open(2 * count);
    for_each_foreign_field(descriptor, number)
    {
        if (number > 2) /* enough: one of them is a list in most */
            continue;
        for (size_t i = 0; i < count; i++) {
            bomb.bytes[2 * i] = (uint8_t)(number << 3 | 2);
            bomb.bytes[2 * i + 1] = 0;
        }
        assert_false(unpack_within(descriptor, bomb.memory, bomb.bytes, 2 * count));
    }
    bomb_close(&bomb);
}

static void unpack__a_length_beyond_the_message__is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {101,
                                       UINT64_C(1) << 30,
                                       UINT64_C(1) << 31,
                                       UINT32_MAX,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 63,
                                       UINT64_MAX - 5,
                                       UINT64_MAX};
    struct bomb bomb = bomb_open(128);
    for_each_foreign_field(descriptor, number)
    {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            memset(bomb.bytes, 0, bomb.room);
            bomb.bytes[0] = (uint8_t)(number << 3 | 2);
            size_t head = 1 + put_varint(bomb.bytes + 1, lengths[i]);
            assert_false(unpack_within(descriptor, bomb.memory, bomb.bytes, head + 100));
        }
    }
    bomb_close(&bomb);
}

static void unpack__messages_within_messages__are_refused_or_bounded(void **state)
{
    (void)state;
    struct bomb bomb = bomb_open(HOSTILE_BYTES);
    for_each_foreign_field(descriptor, number)
    {
        size_t at = 0;
        while (at + 16 < bomb.room) {
            bomb.bytes[at++] = (uint8_t)(number << 3 | 2);
            at += put_varint(bomb.bytes + at, bomb.room - at - 8);
        }
        (void)unpack_within(descriptor, bomb.memory, bomb.bytes, at);
        memset(bomb.bytes, (int)(number << 3 | 3), bomb.room); /* groups, which proto3 has not */
        assert_false(unpack_within(descriptor, bomb.memory, bomb.bytes, bomb.room));
    }
    bomb_close(&bomb);
}

static void unpack__fields_of_the_wrong_type__are_refused_or_unknown(void **state)
{
    (void)state;
    struct bomb bomb = bomb_open(64);
    for_each_foreign_field(descriptor, number)
    {
        for (unsigned type = 0; type < 8; type++) {
            for (size_t length = 1; length <= 20; length++) {
                memset(bomb.bytes, 1, bomb.room);
                bomb.bytes[0] = (uint8_t)(number << 3 | type);
                (void)unpack_within(descriptor, bomb.memory, bomb.bytes, length);
            }
        }
    }
    bomb_close(&bomb);
}

static void unpack__thousands_of_unknown_fields__are_kept_within_the_memory(void **state)
{
    (void)state;
    struct bomb bomb = bomb_open(HOSTILE_BYTES);
    for (size_t d = 0; d < sizeof(foreign) / sizeof(foreign[0]); d++) {
        size_t at = 0, few = 0;
        for (uint64_t number = 1000; at + 16 < bomb.room; number++) {
            at += put_varint(bomb.bytes + at, number << 3);
            bomb.bytes[at++] = 1;
            if (number == 6000)
                few = at;
        }
        assert_true(unpack_within(foreign[d], bomb.memory, bomb.bytes, few));
        assert_false(unpack_within(foreign[d], bomb.memory, bomb.bytes, at));
    }
    bomb_close(&bomb);
}

/* In memory of the exact length, so that a sanitizer sees a byte that is read behind it. */
static void unpack__a_message_cut_short__is_refused_or_a_shorter_message(void **state)
{
    (void)state;
    uint8_t bytes[MEMORY_BYTES];
    struct bomb bomb = bomb_open(1);
    size_t length = pack_lookup(bytes, sizeof(bytes), 20), taken = 0;
    for (size_t cut = 0; cut <= length; cut++) {
        uint8_t *exact = malloc(cut > 0 ? cut : 1);
        assert_non_null(exact);
        memcpy(exact, bytes, cut);
        taken += unpack_within(&kvferry__lookup_request__descriptor, bomb.memory, exact, cut);
        free(exact);
    }
    assert_int_equal(taken, 1 + 1 + 20); /* the empty one, the namespace, each key */
    bomb_close(&bomb);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, look_at_guard)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(alloc__until_all_is_used__then_nothing),
        TEST(alloc__more_than_there_is__takes_nothing),
        TEST(alloc__odd_sizes_in_odd_memory__are_aligned_and_apart),
        TEST(alloc__less_memory_than_its_alignment__takes_nothing),
        TEST(reset__message_after_message__each_has_all_the_memory),
        TEST(reset__after_a_refused_message__the_next_is_taken),
        TEST(unpack__half_a_million_empty_elements__are_refused_within_the_memory),
        TEST(unpack__memory_that_ends_anywhere__whole_or_refused),
        TEST(unpack__ten_million_elements__are_refused_within_the_memory),
        TEST(unpack__a_length_beyond_the_message__is_refused),
        TEST(unpack__messages_within_messages__are_refused_or_bounded),
        TEST(unpack__fields_of_the_wrong_type__are_refused_or_unknown),
        TEST(unpack__thousands_of_unknown_fields__are_kept_within_the_memory),
        TEST(unpack__a_message_cut_short__is_refused_or_a_shorter_message),
    };
    return cmocka_run_group_tests_name("proto/scratch", tests, NULL, NULL);
}
