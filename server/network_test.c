#include "server/network.h"

#include "base/test.h"

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

static struct kvf_acl *acl; /* NULL: none */

static struct kvf_status open_network(const struct kvf_config *config, struct kvf_network *network,
                                      struct kvf_why *why)
{
    struct kvf_transport_options options = {.loop = loop, .ucx_over_tcp = true};
    return kvf_network_open(config, acl, &options, network, why);
}

/* Whether this host has verbs or not: tcp is there, and what is missing is explained. */
static void open__auto__has_tcp_last_and_says_why_it_is_alone(void **state)
{
    (void)state;
    struct kvf_config config = {.data_listen = "127.0.0.1:0"};
    struct kvf_network network;
    assert_true(kvf_is_ok(open_network(&config, &network, NULL)));
    size_t count = network.transports.count;
    assert_in_range(count, 1, 2);
    assert_string_equal(kvf_transport_name(network.transports.list[count - 1]), "tcp");
    assert_int_equal(count == 1, network.without.text[0] != '\0');
    assert_true(kvf_transport_port(network.transports.list[count - 1]) > 0);
    kvf_network_log(&network, &config, NULL);
    kvf_network_close(&network);
    assert_int_equal(network.transports.count, 0);
}

static void open__tcp__is_alone_and_looks_for_nothing_else(void **state)
{
    (void)state;
    struct kvf_config config = {.transport = KVF_CONFIG_TRANSPORT_TCP};
    struct kvf_network network;
    assert_true(kvf_is_ok(open_network(&config, &network, NULL)));
    assert_int_equal(network.transports.count, 1);
    assert_string_equal(network.without.text, "");
    assert_int_equal(kvf_transport_port(network.transports.list[0]), -1);
    kvf_network_close(&network);
}

static void open__verbs_with_a_nic_that_is_not_there__fails_and_leaves_nothing(void **state)
{
    (void)state;
    const char *names[] = {"no_such_nic0"};
    struct kvf_config config = {.transport = KVF_CONFIG_TRANSPORT_VERBS, .nics = {names, 1}};
    struct kvf_network network;
    struct kvf_why why = {0};
    assert_int_equal(open_network(&config, &network, &why).code, KVF_UNSUPPORTED);
    assert_true(why.text[0] != '\0');
    assert_int_equal(network.transports.count, 0);
    kvf_network_close(&network);
}

static void open__auto_with_a_nic_that_is_not_there__is_tcp_and_names_it(void **state)
{
    (void)state;
    const char *names[] = {"no_such_nic0"};
    struct kvf_config config = {.nics = {names, 1}};
    struct kvf_network network;
    assert_true(kvf_is_ok(open_network(&config, &network, NULL)));
    assert_int_equal(network.transports.count, 1);
    assert_true(strstr(network.without.text, names[0]) != NULL ||
                strstr(network.without.text, "this build") != NULL);
    kvf_network_close(&network);
}

static void open__address_that_cannot_be__fails_and_leaves_nothing(void **state)
{
    (void)state;
    struct kvf_config config = {.data_listen = "203.0.113.9:0"};
    struct kvf_network network;
    struct kvf_why why = {0};
    assert_int_equal(open_network(&config, &network, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "203.0.113.9"));
    assert_int_equal(network.transports.count, 0);
}

static void name_two_tenants(void)
{
    static const char text[] =
        "{\"identities\": {\"uid:1\": {\"t\": [\"read\"], \"u\": [\"read\"]}}}";
    assert_true(kvf_is_ok(kvf_acl_parse("two", text, strlen(text), &acl, NULL)));
}

/* UCX bares the memory of whoever consumes as well. */
static void open__ucx_beside_two_tenants__is_refused_listening_or_not(void **state)
{
    (void)state;
    static const char *const listens[] = {"127.0.0.1:0", NULL};
    for (size_t i = 0; i < 2; i++) {
        struct kvf_config config = {.transport = KVF_CONFIG_TRANSPORT_UCX,
                                    .data_listen = listens[i]};
        struct kvf_network network;
        struct kvf_why why = {0};
        if (!kvf_transport_is_built_in("ucx"))
            skip();
        assert_true(kvf_is_ok(open_network(&config, &network, &why)));
        assert_int_equal(network.transports.count, 1);
        kvf_network_close(&network);
        name_two_tenants();
        assert_int_equal(open_network(&config, &network, &why).code, KVF_INVALID);
        assert_non_null(strstr(why.text, "--transport ucx: UCX lets every peer"));
        assert_int_equal(network.transports.count, 0);
        kvf_acl_close(acl);
        acl = NULL;
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(open__auto__has_tcp_last_and_says_why_it_is_alone),
        TEST(open__tcp__is_alone_and_looks_for_nothing_else),
        TEST(open__verbs_with_a_nic_that_is_not_there__fails_and_leaves_nothing),
        TEST(open__auto_with_a_nic_that_is_not_there__is_tcp_and_names_it),
        TEST(open__ucx_beside_two_tenants__is_refused_listening_or_not),
        TEST(open__address_that_cannot_be__fails_and_leaves_nothing),
    };
    return cmocka_run_group_tests_name("network", tests, NULL, NULL);
}
