/* What only verbs has: windows as credits, keys that come round again, memory that is reused under READs, RDMA resources
 * that must all come back. */
#include "transport/testbed.h"
#include "transport/verbs.h"

#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* ---- windows ---- */

static struct testbed_read *make_small(struct testbed_end *end, uint64_t id, uint32_t count,
                                       uint64_t landed)
{
    struct testbed_read *read = testbed_read_make(end, id, 7, count);
    for (uint32_t i = 0; i < count; i++)
        testbed_read_set(read, i, ((id * 31 + i) % 4096) * 8192, 5000 + i,
                         landed > 0 ? 5000 + i : 0);
    return read;
}

static void transfer_small(uint64_t id, uint32_t count)
{
    struct testbed_read *to = make_small(&testbed.consumer, id, count, 0);
    struct testbed_read *from = make_small(&testbed.source, id, count, 1);
    testbed_expect(to);
    testbed_offer(from);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    for (uint32_t i = 0; i < count; i++)
        testbed_check_ok(to, from, i);
    free(to);
    free(from);
}

static void room__runs_out_and_comes_back_with_each_block(void **state)
{
    (void)state;
    testbed.lane_blocks = 8;
    testbed_reopen(0);
    assert_int_equal(kvf_transport_traits(testbed.source.transport)->lane_blocks, 8);
    testbed_lanes_open();
    struct testbed_read *to = make_small(&testbed.consumer, 1, 8, 0);
    struct testbed_read *from = make_small(&testbed.source, 1, 8, 0);
    assert_int_equal(kvf_lane_room(testbed.source.lane), 8);
    testbed_expect(to);
    testbed_offer(from);
    assert_int_equal(kvf_lane_room(testbed.source.lane), 0);
    kvf_lane_withdraw(&from->read, 3);
    kvf_lane_withdraw(&to->read, 3);
    for (uint32_t i = 0; i < 8; i++)
        kvf_lane_landed(&from->read, i, from->blocks[i].length);
    testbed_wait_ended(to);
    testbed_wait_ended(from);
    assert_int_equal(from->ended_ok, 7);
    assert_int_equal(kvf_lane_room(testbed.source.lane), 8);
    transfer_small(2, 8);
    free(to);
    free(from);
}

static void room__more_is_offered__asserts(void **state)
{
    (void)state;
    testbed.lane_blocks = 2;
    testbed_reopen(0);
    testbed_lanes_open();
    struct testbed_read *from = make_small(&testbed.source, 1, 3, 0);
    assert_aborts(kvf_lane_offer(testbed.source.lane, &from->read));
    free(from);
}

/* A key has 8 bits that change from bind to bind. */
static void windows__bound_more_often_than_they_have_keys__right_bytes(void **state)
{
    (void)state;
    testbed.lane_blocks = 2;
    testbed_reopen(0);
    testbed_lanes_open();
    for (uint64_t id = 1; id <= 600; id++)
        transfer_small(id, 2);
}

/* Cancelled before it landed, while its window is being bound, and with its token out. */
static void withdraw__at_every_stage_of_a_window__cancelled_and_room_comes_back(void **state)
{
    (void)state;
    testbed.lane_blocks = 4;
    testbed_reopen(0);
    testbed_lanes_open();
    for (uint64_t id = 1; id <= 200; id++) {
        struct testbed_read *from = make_small(&testbed.source, id, 4, id % 2);
        testbed_offer(from);
        for (uint64_t rounds = testbed_random(5); rounds > 0; rounds--)
            kvf_loop_run_once(testbed.loop, 1);
        kvf_lane_withdraw(&from->read, KVF_LANE_ALL_BLOCKS);
        testbed_wait_ended(from);
        assert_int_equal(from->ended_ok, 0);
        assert_int_equal(kvf_lane_room(testbed.source.lane), 4);
        free(from);
    }
    transfer_small(1000, 4);
}

/* ---- memory that is reused ---- */

#define MARK 0x5a /* at the consumer before anything comes */
#define ROUND_BLOCKS 8
#define ROUND_BYTES (128u << 10)

/* Each byte is the block's own or was there before: never what the source's memory held next. */
static bool is_old_or_right(const struct testbed_read *to, const struct testbed_read *from,
                            uint32_t block)
{
    const uint8_t *is = kvf_extent_at(to->blocks[block].extent);
    const uint8_t *should = testbed.pattern + from->blocks[block].extent.offset;
    for (uint64_t page = 0; page < ROUND_BYTES; page += KVF_PAGE)
        for (uint64_t i = page; i < page + KVF_PAGE; i++)
            if (i == page && memcmp(is + page, should + page, KVF_PAGE) == 0)
                break;
            else if (is[i] != should[i] && is[i] != MARK)
                return false;
    return true;
}

/* The source closes the lane under READs and reuses each block's memory as soon as it has ended. True: some blocks had
 * arrived, others not yet. */
static bool reuse_round(void)
{
    struct testbed_read *to = testbed_read_make(&testbed.consumer, 1, 7, ROUND_BLOCKS);
    struct testbed_read *from = testbed_read_make(&testbed.source, 1, 7, ROUND_BLOCKS);
    for (uint32_t i = 0; i < ROUND_BLOCKS; i++) {
        testbed_read_set(to, i, i * ROUND_BYTES, ROUND_BYTES, 0);
        testbed_read_set(from, i, i * ROUND_BYTES, ROUND_BYTES, ROUND_BYTES);
    }
    memset(testbed.consumer.arena.base, MARK, ROUND_BLOCKS * ROUND_BYTES);
    memcpy(testbed.source.arena.base, testbed.pattern, ROUND_BLOCKS * ROUND_BYTES);
    from->scribble = true;
    testbed_lanes_open();
    testbed_expect(to);
    testbed_offer(from);
    for (uint64_t rounds = testbed_random(8); rounds > 0; rounds--)
        kvf_loop_run_once(testbed.loop, 1);
    kvf_lane_close(testbed.source.lane);
    testbed_wait_closed(&testbed.source);
    testbed_wait_closed(&testbed.consumer);
    for (uint32_t i = 0; i < ROUND_BLOCKS; i++) {
        if (kvf_is_ok(to->blocks[i].status))
            testbed_check_ok(to, from, i);
        assert_true(is_old_or_right(to, from, i));
    }
    bool was_half_way = to->ended_ok > 0 && to->ended_ok < ROUND_BLOCKS;
    free(to);
    free(from);
    return was_half_way;
}

static void reuse__of_memory_under_reads_when_the_lane_closes__nothing_new_leaves(void **state)
{
    (void)state;
    testbed.lane_blocks = ROUND_BLOCKS;
    testbed_reopen(0);
    unsigned half_way = 0;
    for (unsigned round = 0; round < 500; round++)
        half_way += reuse_round();
    assert_true(half_way > 0);
}

/* ---- what must come back ---- */

/* "rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ..." for all devices; empty: this host has no tool that tells. */
static void count_resources(char text[static 512])
{
    text[0] = '\0';
    FILE *said = popen("rdma resource show 2>/dev/null", "re");
    if (said == NULL)
        return;
    size_t got = fread(text, 1, 511, said);
    text[got] = '\0';
    (void)pclose(said);
}

static void lanes__opened_and_closed_100_times_under_reads__every_resource_comes_back(void **state)
{
    (void)state;
    char before[512], after[512];
    testbed.lane_blocks = ROUND_BLOCKS;
    testbed_reopen(0);
    testbed_serve_ms(100); /* what the case before has left is gone */
    count_resources(before);
    assert_non_null(strstr(before, "qp"));
    for (unsigned round = 0; round < 100; round++)
        (void)reuse_round();
    testbed_serve_ms(100);
    count_resources(after);
    assert_string_equal(after, before);
}

static void nics__of_this_host__one_is_active_and_has_an_address(void **state)
{
    (void)state;
    struct kvf_nic nics[64];
    size_t count = kvf_transport_nics("verbs", nics, 64), active = 0;
    assert_true(count > 0);
    assert_int_equal(kvf_transport_nics("verbs", NULL, 0), count);
    for (size_t i = 0; i < count && i < 64; i++) {
        assert_true(nics[i].device[0] != '\0' && nics[i].kind[0] != '\0' && nics[i].port > 0);
        active += nics[i].is_active && nics[i].address[0] != '\0';
    }
    assert_true(active > 0);
}

static void open__with_the_nics_of_this_host_named__opens_them(void **state)
{
    (void)state;
    struct kvf_nic nic;
    struct kvf_transport *transport = NULL;
    assert_true(kvf_transport_nics("verbs", &nic, 1) > 0);
    const char *names[] = {nic.device, nic.device};
    struct kvf_transport_options options = {.loop = testbed.loop, .nics = names, .nic_count = 2};
    assert_true(kvf_is_ok(kvf_transport_open("verbs", &options, &transport, NULL)));
    assert_int_equal(verbs_transport_of(transport)->device_count, 1);
    kvf_transport_close(transport);
    names[1] = "no_such_nic0";
    struct kvf_why why = {0};
    assert_int_equal(kvf_transport_open("verbs", &options, &transport, &why).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(why.text, "no_such_nic0"));
    assert_non_null(strstr(why.text, nic.device));
}

/* Bound to all, it can be reached at each address; bound to one, there. */
static void addresses__of_a_listener__where_it_can_be_reached(void **state)
{
    (void)state;
    const char *hosts[] = {"0.0.0.0", testbed.host};
    struct kvf_transport_options options = {.loop = testbed.loop};
    for (int i = 0; i < 2; i++) {
        struct kvf_transport *transport = NULL;
        char listen[80], wanted[80], addresses[8][KVF_TRANSPORT_ADDRESS_BYTES];
        bool found = false;
        assert_true(kvf_is_ok(kvf_transport_open("verbs", &options, &transport, NULL)));
        assert_int_equal(kvf_transport_addresses(transport, addresses, 8), 0);
        (void)snprintf(listen, sizeof(listen), "%s:0", hosts[i]);
        assert_true(kvf_is_ok(kvf_transport_listen(transport, listen, NULL)));
        size_t count = kvf_transport_addresses(transport, addresses, 8);
        (void)snprintf(wanted, sizeof(wanted), "%s:%d", testbed.host,
                       kvf_transport_port(transport));
        for (size_t k = 0; k < count; k++)
            found = found || strcmp(addresses[k], wanted) == 0;
        assert_true(found);
        kvf_transport_close(transport);
    }
}

static void nearness__own_address_and_others__by_what_they_share(void **state)
{
    (void)state;
    const struct kvf_transport *transport = testbed.source.transport;
    char own[80];
    (void)snprintf(own, sizeof(own), "%s:1", testbed.host);
    unsigned itself = kvf_transport_nearness(transport, 0, own);
    assert_int_equal(itself, 128);
    assert_true(kvf_transport_nearness(transport, 0, "203.0.113.9:1") < itself);
    assert_int_equal(kvf_transport_nearness(transport, 0, "no address"), 0);
}

/* ---- a process that forks ---- */

/* Pages that a child shares are copied when they are written: the NIC must not go on with the copy that is not ours. */
static void fork__child_that_lives_while_blocks_come__right_bytes(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 5; round++) {
        testbed_lanes_open();
        pid_t child = fork();
        if (child == 0) {
            (void)pause();
            _exit(0);
        }
        memset(testbed.source.arena.base, (int)round, KVF_MIB);
        memcpy(testbed.source.arena.base, testbed.pattern, KVF_MIB);
        memset(testbed.consumer.arena.base, TESTBED_SENTINEL, KVF_MIB);
        testbed_check_transfer(KVF_MIB);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        testbed_lanes_close();
    }
}

/* ---- a process that may not ---- */

/* What main does in such a process: says why it cannot open the transport. */
static int try_to_open(void)
{
    struct kvf_arena arena;
    struct kvf_transport *transport = NULL;
    struct kvf_why why = {0};
    const struct kvf_arena *arenas[] = {&arena};
    struct kvf_transport_options options = {.arenas = arenas, .arena_count = 1};
    if (!kvf_is_ok(kvf_loop_create(&options.loop)) ||
        !kvf_is_ok(kvf_arena_create(4 * KVF_MIB, 0, false, &arena, NULL)))
        return 0;
    struct kvf_status status = kvf_transport_open("verbs", &options, &transport, &why);
    (void)printf("%s", why.text);
    return status.code;
}

/* As in a container that was not given the device's files. */
static void hide_devices(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/dev/infiniband", "tmpfs", 0, NULL) != 0)
        _exit(100);
}

static void lock_little(void)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    (void)setrlimit(RLIMIT_MEMLOCK, &limit);
    if (syscall(SYS_capget, &header, data) != 0)
        _exit(100);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    data[0].permitted &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, data) != 0 ||
        prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0)
        _exit(100);
}

/* The exit status of a process that is less than we are, and its words. */
static int open_elsewhere(void (*lessen)(void), char text[static 512])
{
    int out[2], status = 0;
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(out[1], 1);
        lessen();
        (void)execl("/proc/self/exe", "verbs_test", "try to open", NULL);
        _exit(101);
    }
    (void)close(out[1]);
    ssize_t got = read(out[0], text, 511);
    text[got > 0 ? got : 0] = '\0';
    (void)close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void open__without_the_devices_files__unsupported_and_says_where(void **state)
{
    (void)state;
    char text[512];
    assert_int_equal(open_elsewhere(hide_devices, text), KVF_UNSUPPORTED);
    assert_non_null(strstr(text, "/dev/infiniband"));
}

static void open__with_little_lockable_memory__unsupported_and_says_the_remedy(void **state)
{
    (void)state;
    char text[512];
    assert_int_equal(open_elsewhere(lock_little, text), KVF_UNSUPPORTED);
    assert_non_null(strstr(text, "ulimit -l"));
    assert_non_null(strstr(text, "1024 KiB"));
}

static void listen__on_an_address_that_no_device_has__unavailable_and_says_so(void **state)
{
    (void)state;
    struct kvf_transport_options options = {.loop = testbed.loop};
    struct kvf_transport *transport = NULL;
    struct kvf_why why = {0};
    assert_true(kvf_is_ok(kvf_transport_open("verbs", &options, &transport, NULL)));
    assert_int_equal(kvf_transport_listen(transport, "203.0.113.9:0", &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "203.0.113.9"));
    kvf_transport_close(transport);
}

static void connect__where_nobody_listens__unavailable(void **state)
{
    (void)state;
    struct testbed_end end = {.transport = testbed.consumer.transport};
    testbed_end_connect(&end, 1, &testbed.nonces, TESTBED_WAIT_S * 1000);
    testbed_wait_closed(&end);
    assert_int_equal(end.closed.code, KVF_UNAVAILABLE);
}

#define TEST(function) TESTBED_TEST("verbs", function)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(room__runs_out_and_comes_back_with_each_block),
        TEST(room__more_is_offered__asserts),
        TEST(windows__bound_more_often_than_they_have_keys__right_bytes),
        TEST(withdraw__at_every_stage_of_a_window__cancelled_and_room_comes_back),
        TEST(reuse__of_memory_under_reads_when_the_lane_closes__nothing_new_leaves),
        TEST(lanes__opened_and_closed_100_times_under_reads__every_resource_comes_back),
        TEST(nics__of_this_host__one_is_active_and_has_an_address),
        TEST(open__with_the_nics_of_this_host_named__opens_them),
        TEST(addresses__of_a_listener__where_it_can_be_reached),
        TEST(nearness__own_address_and_others__by_what_they_share),
        TEST(fork__child_that_lives_while_blocks_come__right_bytes),
        TEST(open__without_the_devices_files__unsupported_and_says_where),
        TEST(open__with_little_lockable_memory__unsupported_and_says_the_remedy),
        TEST(listen__on_an_address_that_no_device_has__unavailable_and_says_so),
        TEST(connect__where_nobody_listens__unavailable),
    };
    if (argc == 2 && strcmp(argv[1], "try to open") == 0)
        return try_to_open();
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return testbed_can_open("verbs") ? cmocka_run_group_tests_name("verbs", tests, NULL, NULL) : 0;
}
