/* Devices over the fake driver (argv[1]), and the host's. */
#include "client/device/device.h"

#include "base/test.h"
#include "client/device/fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 5u
#define PAGES 7u
#define CHUNK UINT64_C(256) /* 4 tokens of 32 bf16 */
#define BLOCK (2 * LAYERS * CHUNK)
#define WAIT_MS 10000u

static const char *driver_path;
static const struct fake_cuda *fake;

static struct kvf_device *device;
static struct kvf_geometry geometry;
static uint8_t *cache_bytes, *blocks;

static uint8_t content(uint64_t page, uint64_t offset, uint8_t seed)
{
    return (uint8_t)(page * 31 + offset * 7 + offset / 256 + seed);
}

static int open_cuda(void **state)
{
    (void)state;
    struct kvf_device_options options = {.kind = KVF_DEVICE_CUDA, .driver_path = driver_path};
    fake->reset();
    assert_int_equal(kvf_device_open(&options, &device, NULL).code, KVF_OK);
    geometry = (struct kvf_geometry){.model = "m",
                                     .dtype = KVF_DTYPE_BF16,
                                     .layers = LAYERS,
                                     .planes = 2,
                                     .page_tokens = 4,
                                     .token_elements = 32};
    cache_bytes = calloc(PAGES, BLOCK);
    blocks = calloc(PAGES, BLOCK);
    return 0;
}

static int close_cuda(void **state)
{
    (void)state;
    kvf_device_close(device);
    assert_int_equal(fake->objects(), 0);
    assert_int_equal(fake->pinned(), 0);
    assert_int_equal(fake->depth(), 0);
    free(cache_bytes);
    free(blocks);
    return 0;
}

static struct kvf_copy copy_of(enum kvf_copy_direction direction, const struct kvf_copy_pair *pairs,
                               size_t count)
{
    return (struct kvf_copy){
        .direction = direction,
        .cache = {.geometry = &geometry, .pages = PAGES, .base = (uint64_t)(uintptr_t)cache_bytes},
        .pairs = pairs,
        .count = count};
}

static void copy_now(struct kvf_copy *copy)
{
    assert_int_equal(kvf_copy_start(device, copy).code, KVF_OK);
    assert_int_equal(kvf_copy_wait(copy, WAIT_MS).code, KVF_OK);
}

/* ---- open ---- */

static void open__no_driver__is_unsupported_in_words(void **state)
{
    (void)state;
    struct kvf_device_options options = {.kind = KVF_DEVICE_CUDA,
                                         .driver_path = "/nonexistent/libcuda.so"};
    struct kvf_device *none = NULL;
    struct kvf_why why = {.text = ""};
    assert_int_equal(kvf_device_open(&options, &none, &why).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(why.text, "no CUDA driver"));
    assert_null(none);
    options.driver_path = "libc.so.6"; /* a library, but no driver */
    assert_int_equal(kvf_device_open(&options, &none, &why).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(why.text, "cuInit"));
}

static void open__no_such_device__is_unsupported_and_named(void **state)
{
    (void)state;
    struct kvf_device_options options = {
        .kind = KVF_DEVICE_CUDA, .driver_path = driver_path, .ordinal = 3};
    struct kvf_device *none = NULL;
    struct kvf_why why = {.text = ""};
    fake->reset();
    assert_int_equal(kvf_device_open(&options, &none, &why).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(why.text, "device 3"));
    assert_non_null(strstr(why.text, "101"));
    options.kind = (enum kvf_device_kind)9;
    assert_int_equal(kvf_device_open(&options, &none, NULL).code, KVF_INVALID);
}

static void open__each_call_fails_once__leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        enum fake_function function;
        unsigned last; /* its calls */
    } steps[] = {{FAKE_init, 1},          {FAKE_device_get, 1},     {FAKE_device_name, 1},
                 {FAKE_push, 1},          {FAKE_primary_retain, 1}, {FAKE_device_attribute, 1},
                 {FAKE_stream_create, 2}, {FAKE_event_create, 64}};
    struct kvf_device_options options = {.kind = KVF_DEVICE_CUDA, .driver_path = driver_path};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        for (unsigned nth = 1; nth <= steps[i].last; nth++) {
            struct kvf_device *none = NULL;
            struct kvf_why why = {.text = ""};
            fake->reset();
            fake->break_call(steps[i].function, nth, 2);
            struct kvf_status status = kvf_device_open(&options, &none, &why);
            assert_true(status.code == KVF_IO || status.code == KVF_UNSUPPORTED);
            assert_int_equal(status.detail, 2);
            assert_non_null(strstr(why.text, "CUDA_ERROR_OUT_OF_MEMORY"));
            assert_null(none);
            assert_int_equal(fake->objects(), 0);
            assert_int_equal(fake->depth(), 0);
        }
    }
}

static void open__a_context_of_the_callers__is_used_and_not_released(void **state)
{
    (void)state;
    int somewhere;
    struct kvf_device_options options = {
        .kind = KVF_DEVICE_CUDA, .driver_path = driver_path, .context = &somewhere};
    fake->reset();
    assert_int_equal(kvf_device_open(&options, &device, NULL).code, KVF_OK);
    assert_string_equal(kvf_device_name(device), "fake device 0");
    assert_int_equal(fake->calls(FAKE_primary_retain), 0);
    kvf_device_close(device);
    assert_int_equal(fake->calls(FAKE_primary_release), 0);
    assert_int_equal(fake->objects(), 0);
}

/* ---- pin ---- */

static void pin__all_or_nothing(void **state)
{
    (void)state;
    uint8_t memory[4][16];
    struct kvf_range ranges[4];
    for (size_t i = 0; i < 4; i++)
        ranges[i] = (struct kvf_range){memory[i], 16};
    for (unsigned nth = 1; nth <= 4; nth++) {
        fake->reset();
        fake->break_call(FAKE_host_register, nth, 2);
        struct kvf_status status = kvf_device_pin(device, ranges, 4);
        assert_int_equal(status.code, KVF_IO);
        assert_string_equal(kvf_device_error(device, status), "CUDA_ERROR_OUT_OF_MEMORY");
        assert_int_equal(fake->pinned(), 0);
        assert_int_equal(fake->calls(FAKE_host_unregister), nth - 1);
    }
    assert_int_equal(kvf_device_pin(device, ranges, 4).code, KVF_OK);
    assert_int_equal(fake->pinned(), 4);
    /* Again: refused, and what was pinned before stays. */
    struct kvf_range again[2] = {{blocks, BLOCK}, ranges[2]};
    assert_int_equal(kvf_device_pin(device, again, 2).code, KVF_IO);
    assert_int_equal(fake->pinned(), 4);
    kvf_device_unpin(device, ranges, 4);
    assert_int_equal(fake->pinned(), 0);
}

static void pin__the_context_is_gone__is_told_and_unpin_does_nothing(void **state)
{
    (void)state;
    struct kvf_range range = {blocks, BLOCK};
    fake->break_call(FAKE_push, 1, 201);
    assert_int_equal(kvf_device_pin(device, &range, 1).detail, 201);
    assert_int_equal(kvf_device_pin(device, &range, 1).code, KVF_OK);
    fake->break_call(FAKE_push, 1, 201);
    kvf_device_unpin(device, &range, 1);
    assert_int_equal(fake->calls(FAKE_host_unregister), 0);
    kvf_device_unpin(device, &range, 1);
}

/* ---- copies ---- */

static void use_layout(unsigned layout)
{
    if (layout == 0)
        kvf_geometry_page_first(&geometry);
    else
        kvf_geometry_layer_first(&geometry, PAGES);
    if (layout == 2) { /* [plane][layer][page] */
        geometry.layer_stride = PAGES * CHUNK;
        geometry.plane_stride = LAYERS * PAGES * CHUNK;
    }
}

static void check_cache(uint8_t seed)
{
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t layer = 0; layer < LAYERS; layer++)
            for (uint64_t plane = 0; plane < 2; plane++)
                for (uint64_t at = 0; at < CHUNK; at++)
                    assert_int_equal(
                        cache_bytes[page * geometry.page_stride + layer * geometry.layer_stride +
                                    plane * geometry.plane_stride + at],
                        content(page, (layer * 2 + plane) * CHUNK + at, seed));
}

/* Every page to its place and back, each byte checked, in the fewest calls. */
static void round_trip(unsigned layout, uint64_t calls_a_block)
{
    struct kvf_copy_pair pairs[PAGES];
    use_layout(layout);
    for (uint64_t page = 0; page < PAGES; page++) {
        pairs[page] = (struct kvf_copy_pair){blocks + (PAGES - 1 - page) * BLOCK, page};
        for (uint64_t at = 0; at < BLOCK; at++)
            ((uint8_t *)pairs[page].block)[at] = content(page, at, (uint8_t)layout);
    }
    struct kvf_copy in = copy_of(KVF_COPY_TO_CACHE, pairs, PAGES);
    copy_now(&in);
    assert_int_equal(in.calls, PAGES * calls_a_block);
    assert_int_equal(in.bytes, PAGES * BLOCK);
    check_cache((uint8_t)layout);
    memset(blocks, 0xee, PAGES * BLOCK);
    struct kvf_copy out = copy_of(KVF_COPY_FROM_CACHE, pairs, PAGES);
    copy_now(&out);
    assert_int_equal(out.calls, PAGES * calls_a_block);
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t at = 0; at < BLOCK; at++)
            assert_int_equal(((uint8_t *)pairs[page].block)[at],
                             content(page, at, (uint8_t)layout));
}

static void copy__each_layout__every_byte_to_its_place_and_back(void **state)
{
    (void)state;
    round_trip(0, 1);
    round_trip(1, 1);
    round_trip(2, 2);
    assert_int_equal(fake->calls(FAKE_to_device), PAGES);
    assert_int_equal(fake->calls(FAKE_to_host), PAGES);
    assert_int_equal(fake->calls(FAKE_copy_2d), 2 * 3 * PAGES);
}

static void copy__a_2d_copy_is_refused__goes_row_by_row(void **state)
{
    (void)state;
    fake->max_pitch(CHUNK); /* the device said more when it was opened */
    round_trip(1, 2 * LAYERS);
}

static void copy__the_host_device__does_the_same(void **state)
{
    (void)state;
    struct kvf_device *cuda = device;
    struct kvf_device_options options = {.kind = KVF_DEVICE_HOST};
    assert_int_equal(kvf_device_open(&options, &device, NULL).code, KVF_OK);
    assert_string_equal(kvf_device_name(device), "host");
    assert_string_equal(kvf_device_error(device, kvf_fail(KVF_MODULE_CLIENT, KVF_IO, 2)), "");
    struct kvf_range range = {blocks, BLOCK};
    assert_int_equal(kvf_device_pin(device, &range, 1).code, KVF_OK);
    kvf_device_unpin(device, &range, 1);
    round_trip(0, 1);
    round_trip(1, 1);
    round_trip(2, 2);
    kvf_device_close(device);
    device = cuda;
}

static void copy__what_makes_no_sense__starts_nothing(void **state)
{
    (void)state;
    struct kvf_copy_pair pair = {blocks, PAGES};
    struct kvf_copy copy = copy_of(KVF_COPY_TO_CACHE, &pair, 1);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_INVALID);
    pair = (struct kvf_copy_pair){NULL, 0};
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_INVALID);
    pair.block = blocks;
    copy.count = 0;
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_INVALID);
    copy = copy_of((enum kvf_copy_direction)2, &pair, 1);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_INVALID);
    copy = copy_of(KVF_COPY_TO_CACHE, &pair, 1);
    geometry.page_stride = CHUNK;
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_INVALID);
    geometry.page_stride = 0;
    fake->break_call(FAKE_push, 1, 201);
    assert_int_equal(kvf_copy_start(device, &copy).detail, 201);
    assert_int_equal(fake->calls(FAKE_event_record), 0);
    copy_now(&copy);
}

static void copy__owns_both_sides_until_the_device_has_ended(void **state)
{
    (void)state;
    struct kvf_copy_pair pair = {blocks, 2};
    struct kvf_copy copy = copy_of(KVF_COPY_TO_CACHE, &pair, 1);
    memset(blocks, 0x11, BLOCK);
    fake->hold(true);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    assert_non_null(kvf_copy_event(&copy));
    assert_int_equal(kvf_copy_poll(&copy).code, KVF_BUSY);
    assert_int_equal(kvf_copy_wait(&copy, 5).code, KVF_DEADLINE);
    assert_true(copy.running);
    assert_int_equal(cache_bytes[2 * BLOCK], 0);
    fake->hold(false);
    assert_int_equal(kvf_copy_wait(&copy, WAIT_MS).code, KVF_OK);
    assert_int_equal(kvf_copy_poll(&copy).code, KVF_OK);
    assert_null(kvf_copy_event(&copy));
    assert_int_equal(cache_bytes[2 * BLOCK], 0x11);
}

static void copy__a_producers_event__is_waited_for_before_the_first_byte(void **state)
{
    (void)state;
    struct kvf_copy_pair pair = {blocks, 0};
    struct kvf_copy copy = copy_of(KVF_COPY_FROM_CACHE, &pair, 1);
    struct CUevent_st *producer = fake->producer();
    copy.after = producer;
    memset(cache_bytes, 1, BLOCK);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    assert_int_equal(kvf_copy_wait(&copy, 5).code, KVF_DEADLINE);
    assert_int_equal(blocks[0], 0);
    memset(cache_bytes, 2, BLOCK); /* the kernel ends only now */
    fake->signal(producer);
    assert_int_equal(kvf_copy_wait(&copy, WAIT_MS).code, KVF_OK);
    assert_int_equal(blocks[0], 2);
    assert_int_equal(blocks[BLOCK - 1], 2);
    /* The wait itself may fail: nothing starts. */
    fake->break_call(FAKE_stream_wait, 1, 400);
    assert_int_equal(kvf_copy_start(device, &copy).detail, 400);
    fake->forget(producer);
    copy.after = NULL;
    copy_now(&copy);
}

static void copy__a_call_fails_half_way__ends_after_what_was_handed_over(void **state)
{
    (void)state;
    struct kvf_copy_pair pairs[3] = {{blocks, 0}, {blocks + BLOCK, 1}, {blocks + 2 * BLOCK, 2}};
    struct kvf_copy copy = copy_of(KVF_COPY_TO_CACHE, pairs, 3);
    memset(blocks, 0x55, 3 * BLOCK);
    fake->hold(true);
    fake->break_call(FAKE_to_device, 3, 700);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    assert_int_equal(kvf_copy_poll(&copy).code, KVF_BUSY);
    fake->hold(false);
    struct kvf_status status = kvf_copy_wait(&copy, WAIT_MS);
    assert_int_equal(status.code, KVF_IO);
    assert_int_equal(status.detail, 700);
    assert_int_equal(copy.calls, 2);
    assert_int_equal(cache_bytes[BLOCK], 0x55);
    assert_int_equal(cache_bytes[2 * BLOCK], 0);
    copy_now(&copy);
}

static void copy__the_event_cannot_be_recorded__is_waited_for_at_once(void **state)
{
    (void)state;
    struct kvf_copy_pair pair = {blocks, 0};
    struct kvf_copy copy = copy_of(KVF_COPY_TO_CACHE, &pair, 1);
    memset(blocks, 0x66, BLOCK);
    fake->break_call(FAKE_event_record, 1, 700);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    assert_false(copy.running);
    assert_int_equal(fake->calls(FAKE_stream_synchronize), 1);
    assert_int_equal(kvf_copy_poll(&copy).detail, 700);
    assert_int_equal(cache_bytes[BLOCK - 1], 0x66);
}

static void copy__the_device_dies__ends_with_its_error(void **state)
{
    (void)state;
    struct kvf_copy_pair pair = {blocks, 0};
    struct kvf_copy copy = copy_of(KVF_COPY_TO_CACHE, &pair, 1);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    fake->break_call(FAKE_event_query, 1, 719);
    assert_int_equal(kvf_copy_poll(&copy).detail, 719);
    assert_int_equal(fake->calls(FAKE_stream_synchronize), 1);
    assert_int_equal(kvf_copy_poll(&copy).detail, 719);
    copy_now(&copy);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    fake->break_call(FAKE_push, 1, 201);
    assert_int_equal(kvf_copy_wait(&copy, WAIT_MS).detail, 201);
}

static void copy__as_many_as_may_run__then_busy(void **state)
{
    (void)state;
    static struct kvf_copy copies[65];
    struct kvf_copy_pair pair = {blocks, 0};
    fake->hold(true);
    for (size_t i = 0; i < 65; i++)
        copies[i] = copy_of(i % 2 ? KVF_COPY_TO_CACHE : KVF_COPY_FROM_CACHE, &pair, 1);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(kvf_copy_start(device, &copies[i]).code, KVF_OK);
    assert_int_equal(kvf_copy_start(device, &copies[64]).code, KVF_BUSY);
    fake->hold(false);
    assert_int_equal(kvf_copy_wait(&copies[17], WAIT_MS).code, KVF_OK);
    copy_now(&copies[64]);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(kvf_copy_wait(&copies[i], WAIT_MS).code, KVF_OK);
}

static void close__a_copy_runs__is_the_callers_bug(void **state)
{
    (void)state;
    struct kvf_copy_pair pair = {blocks, 0};
    struct kvf_copy copy = copy_of(KVF_COPY_TO_CACHE, &pair, 1);
    fake->hold(true);
    assert_int_equal(kvf_copy_start(device, &copy).code, KVF_OK);
    assert_aborts(kvf_device_close(device));
    fake->hold(false);
    assert_int_equal(kvf_copy_wait(&copy, WAIT_MS).code, KVF_OK);
}

#define WITH_CUDA(test) cmocka_unit_test_setup_teardown(test, open_cuda, close_cuda)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open__no_driver__is_unsupported_in_words),
        cmocka_unit_test(open__no_such_device__is_unsupported_and_named),
        cmocka_unit_test(open__each_call_fails_once__leaves_nothing),
        cmocka_unit_test(open__a_context_of_the_callers__is_used_and_not_released),
        WITH_CUDA(pin__all_or_nothing),
        WITH_CUDA(pin__the_context_is_gone__is_told_and_unpin_does_nothing),
        WITH_CUDA(copy__each_layout__every_byte_to_its_place_and_back),
        WITH_CUDA(copy__a_2d_copy_is_refused__goes_row_by_row),
        WITH_CUDA(copy__the_host_device__does_the_same),
        WITH_CUDA(copy__what_makes_no_sense__starts_nothing),
        WITH_CUDA(copy__owns_both_sides_until_the_device_has_ended),
        WITH_CUDA(copy__a_producers_event__is_waited_for_before_the_first_byte),
        WITH_CUDA(copy__a_call_fails_half_way__ends_after_what_was_handed_over),
        WITH_CUDA(copy__the_event_cannot_be_recorded__is_waited_for_at_once),
        WITH_CUDA(copy__the_device_dies__ends_with_its_error),
        WITH_CUDA(copy__as_many_as_may_run__then_busy),
        WITH_CUDA(close__a_copy_runs__is_the_callers_bug),
    };
    if (argc < 2)
        return 2;
    driver_path = argv[1];
    void *handle = dlopen(driver_path, RTLD_NOW | RTLD_LOCAL);
    const struct fake_cuda *(*control)(void) = NULL;
    void *address = handle != NULL ? dlsym(handle, FAKE_CONTROL) : NULL;
    memcpy(&control, &address, sizeof(control));
    if (control == NULL) {
        (void)fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    fake = control();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
