#include "proto/scratch.h"

#include "base/test.h"
#include "proto/peer.pb-c.h"

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

static size_t put_varint(uint8_t *at, size_t value)
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
    };
    return cmocka_run_group_tests_name("proto/scratch", tests, NULL, NULL);
}
