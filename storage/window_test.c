#include "storage/window.h"

#include "base/crc32c.h"
#include "base/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY (4 * KVF_PAGE)
#define PAGES 16

/* A file of PAGES pages, each full of its number. */
static int make_file(void)
{
    char path[] = "/tmp/kvf-window-XXXXXX";
    uint8_t page[KVF_PAGE];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    for (int i = 0; i < PAGES; i++) {
        memset(page, i + 1, sizeof(page));
        assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
    }
    return fd;
}

static void start(struct kvf_window *window, int fd)
{
    assert_true(kvf_window_init(window));
    kvf_window_aim(window, fd, PAGES * KVF_PAGE);
}

static void stop(struct kvf_window *window)
{
    (void)close(window->fd);
    kvf_window_fini(window);
}

static void look__any_page_in_any_order__is_that_page(void **state)
{
    const unsigned pages[] = {0, 1, 3, 4, 2, 15, 14, 7, 0};
    struct kvf_window window = {.capacity_bytes = CAPACITY};
    (void)state;
    start(&window, make_file());
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        const uint8_t *at = kvf_window_look(&window, pages[i] * KVF_PAGE, KVF_PAGE);
        assert_non_null(at);
        assert_int_equal(at[0], pages[i] + 1);
        assert_int_equal(at[KVF_PAGE - 1], pages[i] + 1);
    }
    stop(&window);
}

/* The window cannot be filled whole there, and need not be. */
static void look__last_page_before_the_file_is_cut__is_read(void **state)
{
    struct kvf_window window = {.capacity_bytes = CAPACITY};
    (void)state;
    start(&window, make_file());
    assert_int_equal(ftruncate(window.fd, 2 * KVF_PAGE), 0);
    const uint8_t *at = kvf_window_look(&window, KVF_PAGE, KVF_PAGE);
    assert_non_null(at);
    assert_int_equal(at[0], 2);
    assert_null(kvf_window_look(&window, 2 * KVF_PAGE, KVF_PAGE));
    assert_int_equal(window.error, EIO);
    assert_null(kvf_window_look(&window, 0, KVF_PAGE)); /* it is over */
    stop(&window);
}

static void look__cut_is_zeros__reads_zeros_there(void **state)
{
    struct kvf_window window = {.capacity_bytes = CAPACITY, .cut_is_zeros = true};
    (void)state;
    start(&window, make_file());
    assert_int_equal(ftruncate(window.fd, 2 * KVF_PAGE), 0);
    const uint8_t *at = kvf_window_look(&window, KVF_PAGE, 2 * KVF_PAGE);
    assert_non_null(at);
    assert_int_equal(at[0], 2);
    assert_int_equal(at[KVF_PAGE], 0);
    assert_int_equal(window.error, 0);
    stop(&window);
}

static void look__somebody_stops_it__reads_nothing_more(void **state)
{
    atomic_bool wanted = false;
    struct kvf_window window = {.capacity_bytes = CAPACITY, .stop = &wanted};
    (void)state;
    start(&window, make_file());
    assert_non_null(kvf_window_look(&window, 0, KVF_PAGE));
    atomic_store(&wanted, true);
    assert_true(kvf_window_is_over(&window));
    assert_null(kvf_window_look(&window, 0, KVF_PAGE));
    assert_int_equal(window.error, 0);
    stop(&window);
}

static void holds__payload_of_any_length__by_its_checksum(void **state)
{
    const uint64_t lengths[] = {1, KVF_PAGE, 3 * KVF_PAGE + 5};
    static uint8_t payload[4 * KVF_PAGE];
    struct kvf_window window = {.capacity_bytes = CAPACITY};
    (void)state;
    start(&window, make_file());
    for (size_t i = 0; i < 3; i++) {
        struct kvf_record_head head = {.offset = 2 * KVF_PAGE, .record.length = lengths[i]};
        assert_true(kvf_window_read(&window, payload, kvf_round_up_page(lengths[i]), head.offset));
        head.record.crc32c = kvf_crc32c(0, payload, lengths[i]);
        assert_true(kvf_window_holds(&window, &head));
        head.record.crc32c ^= 1;
        assert_false(kvf_window_holds(&window, &head));
    }
    stop(&window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(look__any_page_in_any_order__is_that_page),
        cmocka_unit_test(look__last_page_before_the_file_is_cut__is_read),
        cmocka_unit_test(look__cut_is_zeros__reads_zeros_there),
        cmocka_unit_test(look__somebody_stops_it__reads_nothing_more),
        cmocka_unit_test(holds__payload_of_any_length__by_its_checksum),
    };
    return cmocka_run_group_tests_name("storage/window", tests, NULL, NULL);
}
