#include "transport/transport.h"

#include "base/test.h"

#include <stdio.h>
#include <string.h>

static struct kvf_loop *loop;

static int set_up(void **state)
{
    (void)state;
    return kvf_is_ok(kvf_loop_create(&loop)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_loop_destroy(loop);
    return 0;
}

static void open__name_that_is_not_built_in__unsupported_and_says_why(void **state)
{
    (void)state;
    static const char *const names[] = {"", "TCP", "tcp ", "UCX"};
    struct kvf_transport_options options = {.loop = loop};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct kvf_transport *transport = NULL;
        struct kvf_why why = {0};
        struct kvf_status status = kvf_transport_open(names[i], &options, &transport, &why);
        assert_int_equal(status.code, KVF_UNSUPPORTED);
        assert_false(kvf_transport_is_built_in(names[i]));
        assert_non_null(strstr(why.text, "tcp"));
        assert_null(transport);
    }
}

static void open__verbs_with_a_nic_that_is_not_there__unsupported_and_names_it(void **state)
{
    (void)state;
    static const char *const nics[] = {"no_such_nic0"};
    struct kvf_transport_options options = {.loop = loop, .nics = nics, .nic_count = 1};
    struct kvf_transport *transport = NULL;
    struct kvf_why why = {0};
    struct kvf_status status = kvf_transport_open("verbs", &options, &transport, &why);
    assert_int_equal(status.code, KVF_UNSUPPORTED);
    assert_true(strstr(why.text, nics[0]) != NULL || strstr(why.text, "this build") != NULL);
    assert_null(transport);
}

static void nics__of_a_transport_that_chooses_none__none(void **state)
{
    (void)state;
    struct kvf_nic nic;
    assert_int_equal(kvf_transport_nics("tcp", &nic, 1), 0);
    assert_int_equal(kvf_transport_nics("nonsense", &nic, 1), 0);
}

static void traits__of_tcp__ask_nothing(void **state)
{
    (void)state;
    struct kvf_transport_options options = {.loop = loop};
    struct kvf_transport *transport = NULL;
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, &transport, NULL)));
    const struct kvf_transport_traits *traits = kvf_transport_traits(transport);
    assert_false(traits->needs_tokens || traits->single_tenant);
    assert_int_equal(traits->lane_blocks, 0);
    kvf_transport_close(transport);
}

static void close__null__is_fine(void **state)
{
    (void)state;
    kvf_transport_close(NULL);
}

static void close__never_used__ends(void **state)
{
    (void)state;
    for (unsigned threads = 0; threads < 5; threads++) {
        struct kvf_transport_options options = {.loop = loop, .lane_threads = threads};
        struct kvf_transport *transport = NULL;
        assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, &transport, NULL)));
        assert_string_equal(kvf_transport_name(transport), "tcp");
        assert_true(kvf_transport_is_built_in("tcp"));
        kvf_transport_close(transport);
    }
}

static void listen__then_again_on_the_same_port__unavailable(void **state)
{
    (void)state;
    struct kvf_transport_options options = {.loop = loop};
    struct kvf_transport *first = NULL, *second = NULL;
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, &first, NULL)));
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, &second, NULL)));
    assert_true(kvf_is_ok(kvf_transport_listen(first, "127.0.0.1:0", NULL)));
    int port = kvf_transport_port(first);
    assert_in_range(port, 1, 65535);
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    struct kvf_why why = {0};
    assert_int_equal(kvf_transport_listen(second, address, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, address));
    assert_true(kvf_is_ok(kvf_transport_listen(second, "[::1]:0", NULL)) ||
                kvf_is_ok(kvf_transport_listen(second, "127.0.0.1:0", NULL)));
    kvf_transport_close(second);
    kvf_transport_close(first);
}

static void listen__no_address__invalid(void **state)
{
    (void)state;
    static const char *const addresses[] = {
        "", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:65536", "127.0.0.1:http", ":0"};
    struct kvf_transport_options options = {.loop = loop};
    struct kvf_transport *transport = NULL;
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &options, &transport, NULL)));
    for (unsigned i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        struct kvf_why why = {0};
        assert_int_equal(kvf_transport_listen(transport, addresses[i], &why).code, KVF_INVALID);
        assert_true(why.text[0] != '\0');
    }
    kvf_transport_close(transport);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(open__name_that_is_not_built_in__unsupported_and_says_why,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            open__verbs_with_a_nic_that_is_not_there__unsupported_and_names_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nics__of_a_transport_that_chooses_none__none, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(traits__of_tcp__ask_nothing, set_up, tear_down),
        cmocka_unit_test(close__null__is_fine),
        cmocka_unit_test_setup_teardown(close__never_used__ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(listen__then_again_on_the_same_port__unavailable, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(listen__no_address__invalid, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
