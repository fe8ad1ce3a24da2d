/* Opening ucx: what it does to the process, and its constructor failing at each step. Over TCP. */
#include "transport/testbed.h"

#include "base/clock.h"
#include "transport/ucx_library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int watched_signals[] = {SIGSEGV, SIGBUS, SIGILL,  SIGFPE,  SIGABRT, SIGTERM,
                                      SIGHUP,  SIGINT, SIGALRM, SIGUSR1, SIGUSR2, SIGIO};
#define SIGNALS (sizeof(watched_signals) / sizeof(watched_signals[0]))

static struct ucx_calls real;

static struct kvf_status open_one(struct kvf_transport **transport, struct kvf_why *why)
{
    const struct kvf_arena *arenas[] = {&testbed.source.arena};
    struct kvf_transport_options options = {.loop = testbed.loop,
                                            .arenas = arenas,
                                            .arena_count = 1,
                                            .ucx_over_tcp = testbed.ucx_over_tcp};
    return kvf_transport_open("ucx", &options, transport, why);
}

/* ---- the process ---- */

static bool is_loaded(void)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        found = found || strstr(line, "libucp") != NULL || strstr(line, "libucs") != NULL;
    (void)fclose(maps);
    return found;
}

/* The first bytes of functions that UCX likes to replace. */
static void note_code(uint8_t (*code)[16])
{
    static const char *const names[] = {"mmap", "munmap", "madvise", "brk"};
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(libc);
    for (size_t i = 0; i < 4; i++) {
        void *function = dlsym(libc, names[i]);
        assert_non_null(function);
        memcpy(code[i], function, 16);
    }
    (void)dlclose(libc);
}

/* Runs first: then the settings of the environment meet a UCX that is not there yet. */
static void open__in_an_environment_full_of_settings__ours_count(void **state)
{
    (void)state;
    struct sigaction before[SIGNALS], after;
    uint8_t code_before[4][16], code_after[4][16];
    assert_false(is_loaded());
    note_code(code_before);
    for (size_t i = 0; i < SIGNALS; i++)
        assert_int_equal(sigaction(watched_signals[i], NULL, &before[i]), 0);
    assert_int_equal(setenv("UCX_TLS", "self", 1), 0);
    assert_int_equal(setenv("UCX_NET_DEVICES", "nonsense", 1), 0);
    assert_int_equal(setenv("UCX_HANDLE_ERRORS", "bt,freeze", 1), 0);
    assert_int_equal(setenv("UCX_DEBUG_SIGNO", "SIGHUP", 1), 0);
    assert_int_equal(setenv("UCX_MEM_MMAP_HOOK_MODE", "bistro", 1), 0);
    assert_int_equal(setenv("UCX_LOG_LEVEL", "data", 1), 0);
    testbed_open("ucx");
    testbed_lanes_open();
    assert_true(is_loaded());
    note_code(code_after);
    assert_memory_equal(code_before, code_after, sizeof(code_before));
    for (size_t i = 0; i < SIGNALS; i++) {
        assert_int_equal(sigaction(watched_signals[i], NULL, &after), 0);
        assert_memory_equal(&before[i].sa_handler, &after.sa_handler, sizeof(after.sa_handler));
        assert_int_equal(before[i].sa_flags, after.sa_flags);
    }
    assert_string_equal(getenv("UCX_TLS"), "self");
    testbed_close();
}

static bool hears_signals(const char *task)
{
    char path[300], line[256];
    unsigned long long blocked = ~0ull;
    (void)snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        (void)sscanf(line, "SigBlk: %llx", &blocked);
    if (file != NULL)
        (void)fclose(file);
    return (blocked & 1ull << (SIGTERM - 1)) == 0;
}

static void open__threads_that_it_starts__are_deaf_to_signals(void **state)
{
    (void)state;
    unsigned hearing = 0, all = 0;
    testbed_lanes_open();
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.')
            continue;
        all++;
        hearing += hears_signals(task->d_name);
    }
    (void)closedir(tasks);
    assert_true(all > 6); /* two transports, each with a control and two lane threads */
    assert_int_equal(hearing, 1);
}

static uint64_t resident_kib(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &pages, &resident), 2);
    (void)fclose(file);
    return resident * 4;
}

static void close__1000_lanes_that_moved_something__no_memory_is_left(void **state)
{
    (void)state;
    uint64_t before = 0;
    for (uint64_t i = 0; i < 1100; i++) {
        testbed_lanes_open();
        testbed_check_transfer(100000);
        testbed_lanes_close();
        if (i == 100)
            before = resident_kib();
    }
    assert_true(resident_kib() <
                before + 16384); /* 16 KiB a lane; a worker has a hundred times that */
}

/* ---- calls that fail ---- */

static _Atomic int countdown; /* calls until one fails; the failing one is 0 */

static bool fails(void)
{
    return countdown-- == 0;
}

static ucs_status_t config_read(const char *prefix, const char *file, ucp_config_t **config)
{
    return fails() ? UCS_ERR_NO_MEMORY : real.ucp_config_read(prefix, file, config);
}

static ucs_status_t config_modify(ucp_config_t *config, const char *name, const char *value)
{
    return fails() ? UCS_ERR_INVALID_PARAM : real.ucp_config_modify(config, name, value);
}

static ucs_status_t init(unsigned major, unsigned minor, const ucp_params_t *params,
                         const ucp_config_t *config, ucp_context_h *context)
{
    assert_int_equal(params->features & UCP_FEATURE_RMA, 0);
    return fails() ? UCS_ERR_NO_DEVICE
                   : real.ucp_init_version(major, minor, params, config, context);
}

static ucs_status_t mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                            ucp_mem_h *region)
{
    return fails() ? UCS_ERR_IO_ERROR : real.ucp_mem_map(context, params, region);
}

static void open__failing_at_each_step__says_why_and_leaves_nothing(void **state)
{
    (void)state;
    struct kvf_transport *transport = NULL;
    bool has_opened = false;
    real = ucx;
    ucx.ucp_config_read = config_read;
    ucx.ucp_config_modify = config_modify;
    ucx.ucp_init_version = init;
    ucx.ucp_mem_map = mem_map;
    for (int step = 0; !has_opened; step++) {
        struct kvf_why why = {0};
        countdown = step;
        struct kvf_status status = open_one(&transport, &why);
        has_opened = kvf_is_ok(status);
        if (has_opened)
            break;
        assert_int_equal(status.code, KVF_UNSUPPORTED);
        assert_non_null(strstr(why.text, "UCX"));
        assert_null(transport);
        assert_true(step < 50);
    }
    ucx = real;
    kvf_transport_close(transport);
}

static ucs_status_t worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                                  ucp_worker_h *worker)
{
    return fails() ? UCS_ERR_NO_MEMORY : real.ucp_worker_create(context, params, worker);
}

static ucs_status_t set_handler(ucp_worker_h worker, const ucp_am_handler_param_t *param)
{
    return fails() ? UCS_ERR_NO_MEMORY : real.ucp_worker_set_am_recv_handler(worker, param);
}

static ucs_status_t get_address(ucp_worker_h worker, ucp_address_t **address, size_t *bytes)
{
    return fails() ? UCS_ERR_NO_MEMORY : real.ucp_worker_get_address(worker, address, bytes);
}

static ucs_status_t ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep)
{
    assert_int_equal(params->err_mode, UCP_ERR_HANDLING_MODE_PEER);
    return fails() ? UCS_ERR_UNREACHABLE : real.ucp_ep_create(worker, params, ep);
}

static bool both_are_over_or_open(void *argument)
{
    (void)argument;
    return (testbed.source.lane == NULL || testbed.source.opened) &&
           (testbed.consumer.lane == NULL || testbed.consumer.opened);
}

/* Each end's calls are counted together: whichever fails, neither lane hangs. */
static void lane__a_call_fails_while_it_opens__both_ends_come_to_an_end(void **state)
{
    (void)state;
    bool has_opened = false;
    real = ucx;
    ucx.ucp_worker_create = worker_create;
    ucx.ucp_worker_set_am_recv_handler = set_handler;
    ucx.ucp_worker_get_address = get_address;
    ucx.ucp_ep_create = ep_create;
    for (int step = 0; step < 8; step++) {
        countdown = step;
        testbed_invite(2000);
        testbed_connect(&testbed.nonces, 2000);
        testbed_wait(both_are_over_or_open, NULL);
        testbed_serve_ms(20);
        has_opened = testbed.source.opened && testbed.consumer.opened;
        testbed_lanes_close();
        assert_false(has_opened);
    }
    countdown = 8;
    testbed_lanes_open();
    testbed_lanes_close();
    ucx = real;
}

static ucs_status_ptr_t send_fails(ucp_ep_h ep, unsigned id, const void *header,
                                   size_t header_bytes, const void *data, size_t bytes,
                                   const ucp_request_param_t *param)
{
    return fails() ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
                   : real.ucp_am_send_nbx(ep, id, header, header_bytes, data, bytes, param);
}

static ucs_status_ptr_t receive_fails(ucp_worker_h worker, void *data, void *buffer, size_t bytes,
                                      const ucp_request_param_t *param)
{
    return fails() ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
                   : real.ucp_am_recv_data_nbx(worker, data, buffer, bytes, param);
}

static ucs_status_t arm_fails(ucp_worker_h worker)
{
    return fails() ? UCS_ERR_IO_ERROR : real.ucp_worker_arm(worker);
}

static void transfer_until_it_fails(void)
{
    for (int step = 0; step < 6; step++) {
        struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, 1);
        struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, 1);
        testbed_read_set(to, 0, 0, 8 * KVF_MIB, 0);
        testbed_read_set(from, 0, 0, 8 * KVF_MIB, 8 * KVF_MIB);
        countdown = 1000;
        testbed_lanes_open();
        countdown = step;
        testbed_expect(to);
        testbed_offer(from);
        testbed_wait_closed(&testbed.source);
        testbed_wait_closed(&testbed.consumer);
        assert_int_equal(to->ended, 1);
        assert_int_equal(from->ended, 1);
        free(to);
        free(from);
    }
}

static void lane__a_send_fails__both_ends_end(void **state)
{
    (void)state;
    real = ucx;
    ucx.ucp_am_send_nbx = send_fails;
    transfer_until_it_fails();
    ucx = real;
}

static void lane__a_receive_fails__both_ends_end(void **state)
{
    (void)state;
    real = ucx;
    ucx.ucp_am_recv_data_nbx = receive_fails;
    transfer_until_it_fails();
    ucx = real;
}

static void lane__arming_fails__both_ends_end(void **state)
{
    (void)state;
    real = ucx;
    ucx.ucp_worker_arm = arm_fails;
    transfer_until_it_fails();
    ucx = real;
}

/* ---- closes that hang ---- */

static _Atomic bool closes_hang;
static char never; /* a request that does not end */

static ucs_status_ptr_t close_hangs(ucp_ep_h ep, const ucp_request_param_t *param)
{
    ucs_status_ptr_t request = real.ucp_ep_close_nbx(ep, param);
    if (!closes_hang)
        return request;
    if (UCS_PTR_IS_PTR(request))
        real.ucp_request_free(request);
    return &never;
}

static ucs_status_t check_status(void *request)
{
    return request == &never ? UCS_INPROGRESS : real.ucp_request_check_status(request);
}

static void free_request(void *request)
{
    if (request != &never)
        real.ucp_request_free(request);
}

/* Each is given up after a second, and none of them holds up what opens meanwhile. */
static void close__many_hang__a_new_lane_opens_meanwhile(void **state)
{
    enum { LANES = 8 };
    (void)state;
    struct testbed_end sources[LANES], consumers[LANES];
    struct kvf_lane_nonces nonces;
    real = ucx;
    ucx.ucp_ep_close_nbx = close_hangs;
    ucx.ucp_request_check_status = check_status;
    ucx.ucp_request_free = free_request;
    for (unsigned i = 0; i < LANES; i++) {
        sources[i] = (struct testbed_end){.transport = testbed.source.transport};
        consumers[i] = (struct testbed_end){.transport = testbed.consumer.transport};
        testbed_end_invite(&sources[i], &nonces, TESTBED_WAIT_S * 1000);
        testbed_end_connect(&consumers[i], testbed_port(), &nonces, TESTBED_WAIT_S * 1000);
        testbed_wait_opened(&sources[i]);
        testbed_wait_opened(&consumers[i]);
    }
    closes_hang = true;
    for (unsigned i = 0; i < LANES; i++) {
        kvf_lane_close(sources[i].lane);
        kvf_lane_close(consumers[i].lane);
    }
    testbed_serve_ms(100);
    uint64_t start = kvf_clock_now_ns();
    testbed_lanes_open();
    assert_true(kvf_clock_now_ns() - start < 4 * KVF_NS_PER_S); /* one by one they take 8 */
    for (unsigned i = 0; i < LANES; i++) {
        testbed_wait_closed(&sources[i]);
        testbed_wait_closed(&consumers[i]);
    }
    closes_hang = false;
    testbed_check_transfer(100000);
    testbed_lanes_close();
    ucx = real;
}

static void open__device_that_is_not_there__unsupported_and_says_so(void **state)
{
    (void)state;
    static const char *const nics[] = {"no_such_nic0"};
    struct kvf_transport_options options = {.loop = testbed.loop, .nics = nics, .nic_count = 1};
    struct kvf_transport *transport = NULL;
    struct kvf_why why = {0};
    assert_int_equal(kvf_transport_open("ucx", &options, &transport, &why).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(why.text, "--nics"));
    assert_null(transport);
}

static void traits__of_ucx__one_tenant_and_why(void **state)
{
    (void)state;
    const struct kvf_transport_traits *traits = kvf_transport_traits(testbed.source.transport);
    assert_true(traits->single_tenant);
    assert_true(strlen(traits->single_tenant_why) > 0);
    assert_false(traits->needs_tokens);
    assert_int_equal(traits->lane_blocks, 0);
}

#define TEST(function) TESTBED_TEST("ucx", function)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open__in_an_environment_full_of_settings__ours_count),
        TEST(open__threads_that_it_starts__are_deaf_to_signals),
        TEST(close__1000_lanes_that_moved_something__no_memory_is_left),
        TEST(open__failing_at_each_step__says_why_and_leaves_nothing),
        TEST(lane__a_call_fails_while_it_opens__both_ends_come_to_an_end),
        TEST(lane__a_send_fails__both_ends_end),
        TEST(lane__a_receive_fails__both_ends_end),
        TEST(lane__arming_fails__both_ends_end),
        TEST(close__many_hang__a_new_lane_opens_meanwhile),
        TEST(open__device_that_is_not_there__unsupported_and_says_so),
        TEST(traits__of_ucx__one_tenant_and_why),
    };
    testbed.ucx_over_tcp = true;
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("ucx", tests, NULL, NULL);
}
