/* Calls on either side: what is said, and every way in which one ends. */
#include "proto/rpc/rpc.h"
#include "proto/rpc/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the straight path ---- */

static void call__one_message_each_way__answered_ok(void **state)
{
    (void)state;
    script = (struct script){.echo = true, .finish_on_half_close = true, .text = "fine"};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 5000);
    say(&client, "hello");
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1 && served_closed == 1);
    assert_code(client.status, KVF_OK);
    assert_string_equal(client.text, "fine");
    assert_string_equal(client.last, "hello");
    assert_int_equal(client.messages, 1);
    assert_int_equal(client.half_closes, 1);
    assert_int_equal(served[0].half_closes, 1);
    assert_code(served[0].status, KVF_OK);
    assert_memory_equal(served[0].peer, "ipv4:127.0.0.1:", 15);
    assert_string_equal(served[0].identity, "");
}

static void call__thousands_of_messages_both_ways__all_in_order(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    script = (struct script){.numbers = true, .count = COUNT, .finish_on_half_close = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    send_numbers(client.call, COUNT);
    assert_int_equal(kvf_rpc_call_queued_bytes(client.call), COUNT * sizeof(uint32_t));
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1 && served_closed == 1);
    assert_code(client.status, KVF_OK);
    assert_int_equal(client.messages, COUNT);
    assert_true(client.in_order);
    assert_int_equal(served[0].messages, COUNT);
    assert_true(served[0].in_order);
}

static void call__many_at_once__each_answered(void **state)
{
    (void)state;
    enum { CALLS = 200 };
    script = (struct script){.echo = true, .finish_on_half_close = true};
    static struct record clients[CALLS];
    for (int i = 0; i < CALLS; i++) {
        start_call(&clients[i], "/kvferry.Test/Call", 15000);
        char text[16];
        (void)snprintf(text, sizeof(text), "%d", i);
        say(&clients[i], text);
        kvf_rpc_call_half_close(clients[i].call);
    }
    for (int i = 0; i < CALLS; i++) {
        run_until(clients[i].closes == 1);
        assert_code(clients[i].status, KVF_OK);
        assert_int_equal(atoi(clients[i].last), i);
    }
}

static void call__empty_and_long_messages__arrive_whole(void **state)
{
    (void)state;
    script = (struct script){.echo = true, .finish_on_half_close = true};
    struct record client;
    char *text = malloc(KVF_RPC_MAX_MESSAGE_BYTES);
    memset(text, 'x', KVF_RPC_MAX_MESSAGE_BYTES);
    start_call(&client, "/kvferry.Test/Call", 0);
    kvf_rpc_call_send(client.call, bytes_of(text, 0));
    kvf_rpc_call_send(client.call, bytes_of(text, KVF_RPC_MAX_MESSAGE_BYTES));
    kvf_rpc_call_half_close(client.call);
    free(text); /* send has copied */
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
    assert_int_equal(client.messages, 2);
    assert_int_equal(client.last_length, KVF_RPC_MAX_MESSAGE_BYTES);
    assert_int_equal(client.last[62], 'x');
}

static void call__server_talks_first__heard(void **state)
{
    (void)state;
    script = (struct script){.numbers = true, .count = 3};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    run_until(client.messages == 3);
    kvf_rpc_call_cancel(client.call);
    run_until(client.closes == 1 && served_closed == 1);
    assert_code(client.status, KVF_CANCELLED);
}

static void call__unix_address__works(void **state)
{
    (void)state;
    char folder[] = "/tmp/kvf-rpc-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char address[64];
    (void)snprintf(address, sizeof(address), "unix:%s/s", folder);
    listen_at(address, NULL);
    dial(address, NULL);
    assert_int_equal(kvf_rpc_server_port(server), 0);
    script = (struct script){.echo = true, .finish_on_half_close = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 5000);
    say(&client, "over a file");
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
    assert_string_equal(client.last, "over a file");
    struct kvf_rpc_server *second = NULL;
    struct kvf_why why;
    assert_code(kvf_rpc_server_start(rpc, address, NULL, methods, 2, &second, &why),
                KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "already"));
    stop_server(0);
    (void)unlink(address + 5);
    assert_int_equal(rmdir(folder), 0);
}

/* Only the server by name: Debian's c-ares leaks ten bytes for each "localhost" that a client looks
 * up. */
static void call__names_and_ipv6__work(void **state)
{
    (void)state;
    listen_at("[::1]:0", NULL);
    dial_server("[::1]", NULL);
    script = (struct script){.finish_on_call = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 5000);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
    kvf_rpc_channel_close(channel);
    stop_server(0);
    listen_at("localhost:0", NULL);
    dial_server("127.0.0.1", NULL);
    start_call(&client, "/kvferry.Test/Call", 5000);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
}

/* ---- ends ---- */

static void finish__status_and_text__reach_the_client(void **state)
{
    (void)state;
    static const struct {
        enum kvf_code said, heard;
    } cases[] = {
        {KVF_INVALID, KVF_INVALID},
        {KVF_TOO_LARGE, KVF_TOO_LARGE},
        {KVF_NOT_FOUND, KVF_NOT_FOUND},
        {KVF_EXISTS, KVF_EXISTS},
        {KVF_PENDING, KVF_PENDING},
        {KVF_STALE, KVF_STALE},
        {KVF_BUSY, KVF_BUSY},
        {KVF_DRAINING, KVF_UNAVAILABLE},
        {KVF_DENIED, KVF_DENIED},
        {KVF_DEADLINE, KVF_DEADLINE},
        {KVF_CANCELLED, KVF_CANCELLED},
        {KVF_UNAVAILABLE, KVF_UNAVAILABLE},
        {KVF_PROTOCOL, KVF_PROTOCOL},
        {KVF_CORRUPT, KVF_CORRUPT},
        {KVF_IO, KVF_IO},
        {KVF_NO_SPACE, KVF_IO},
        {KVF_NO_MEMORY, KVF_BUSY},
        {KVF_UNSUPPORTED, KVF_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        script = (struct script){.finish_on_call = true,
                                 .status = kvf_fail(KVF_MODULE_SERVER, cases[i].said, 0),
                                 .text = "because \xc3\xa4 100%"};
        struct record client;
        start_call(&client, "/kvferry.Test/Call", 5000);
        run_until(client.closes == 1);
        assert_code(client.status, cases[i].heard);
        assert_string_equal(client.text, "because \xc3\xa4 100%");
    }
    run_until(served_closed == served_count);
    for (int i = 0; i < served_count; i++)
        assert_code(served[i].status, KVF_OK);
}

static void finish__behind_queued_messages__they_arrive_first(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        enum kvf_code code = i % 2 == 0 ? KVF_OK : KVF_BUSY;
        script = (struct script){.numbers = true,
                                 .count = 50,
                                 .finish_on_call = true,
                                 .status = kvf_fail(KVF_MODULE_SERVER, code, 0)};
        struct record client;
        start_call(&client, "/kvferry.Test/Call", 0);
        run_until(client.closes == 1);
        assert_code(client.status, code);
        assert_int_equal(client.messages, 50);
        assert_true(client.in_order);
    }
}

static void finish__very_long_text__cut(void **state)
{
    (void)state;
    char text[20000];
    memset(text, '%', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    script = (struct script){
        .finish_on_call = true, .status = kvf_fail(KVF_MODULE_SERVER, KVF_BUSY, 0), .text = text};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_BUSY);
    assert_memory_equal(client.text, text, sizeof(client.text) - 1);
}

static void finish__inside_called_without_accept__refuses(void **state)
{
    (void)state;
    struct record client;
    start_call(&client, "/kvferry.Test/Refuse", 5000);
    send_numbers(client.call, 100);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_DENIED);
    assert_string_equal(client.text, "not you");
}

static void call__unknown_method__unsupported_without_waiting(void **state)
{
    (void)state;
    struct record client;
    start_call(&client, "/kvferry.Test/Nonsense",
               0); /* without a deadline: nothing else could end it */
    say(&client, "?");
    run_until(client.closes == 1);
    assert_code(client.status, KVF_UNSUPPORTED);
    assert_int_equal(served_count, 0);
}

static void call__deadline__ends_both_sides(void **state)
{
    (void)state;
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 200);
    say(&client, "anybody?");
    run_until(client.closes == 1 && served_closed == 1);
    assert_code(client.status, KVF_DEADLINE);
    assert_code(served[0].status, KVF_CANCELLED);
    assert_int_equal(served[0].messages, 1);
}

static void cancel__by_client__closes_both_cancelled(void **state)
{
    (void)state;
    script = (struct script){.echo = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "begin");
    run_until(client.messages == 1);
    kvf_rpc_call_cancel(client.call);
    kvf_rpc_call_cancel(client.call);
    say(&client, "too late");
    kvf_rpc_call_half_close(client.call);
    assert_int_equal(client.closes, 0); /* never inside the call */
    run_until(client.closes == 1 && served_closed == 1);
    assert_code(client.status, KVF_CANCELLED);
    assert_code(served[0].status, KVF_CANCELLED);
    assert_int_equal(served[0].messages, 1);
}

static void cancel__right_after_start__still_closes(void **state)
{
    (void)state;
    struct record client;
    for (int i = 0; i < 20; i++) {
        start_call(&client, "/kvferry.Test/Call", i % 2 == 0 ? 0 : 5000);
        say(&client, "x");
        kvf_rpc_call_cancel(client.call);
        run_until(client.closes == 1);
        assert_code(client.status, KVF_CANCELLED);
        assert_int_equal(client.messages, 0);
    }
}

static void cancel__by_server__client_hears_cancelled(void **state)
{
    (void)state;
    script = (struct script){.cancel_on_message = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "go");
    run_until(client.closes == 1 && served_closed == 1);
    assert_code(client.status, KVF_CANCELLED);
    assert_code(served[0].status, KVF_CANCELLED);
}

static void send__longer_than_the_limit__ends_only_that_call(void **state)
{
    (void)state;
    script = (struct script){.echo = true, .finish_on_half_close = true};
    struct record other, client;
    start_call(&other, "/kvferry.Test/Call", 0);
    say(&other, "one");
    run_until(other.messages == 1);

    start_call(&client, "/kvferry.Test/Call", 0);
    char *text = calloc(1, KVF_RPC_MAX_MESSAGE_BYTES + 1);
    kvf_rpc_call_send(client.call, bytes_of(text, KVF_RPC_MAX_MESSAGE_BYTES + 1));
    free(text);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_TOO_LARGE);

    say(&other, "two");
    run_until(other.messages == 2);
    kvf_rpc_call_half_close(other.call);
    run_until(other.closes == 1);
    assert_code(other.status, KVF_OK);
}

static void send__by_server_longer_than_the_limit__ends_the_call(void **state)
{
    (void)state;
    script = (struct script){.reply_bytes = KVF_RPC_MAX_MESSAGE_BYTES + 1};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    say(&client, "much, please");
    run_until(client.closes == 1 && served_closed == 1);
    assert_false(kvf_is_ok(client.status));
    assert_int_equal(client.messages, 0);
    assert_code(served[0].status, KVF_CANCELLED);
}

static void channel__nobody_listens__unavailable_soon(void **state)
{
    (void)state;
    listen_at("127.0.0.1:0", NULL);
    dial_server("127.0.0.1", NULL);
    stop_server(0);
    struct record client;
    start_call(&client, "/kvferry.Test/Call",
               0); /* no deadline: only the failed connect can end it */
    say(&client, "hello?");
    run_until(client.closes == 1);
    assert_code(client.status, KVF_UNAVAILABLE);
    assert_true(strlen(client.text) > 0);
}

static void channel__server_comes_back__later_calls_work(void **state)
{
    (void)state;
    char address[64];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", kvf_rpc_server_port(server));
    script = (struct script){.finish_on_call = true};
    struct record client;
    start_call(&client, "/kvferry.Test/Call", 0);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_OK);
    stop_server(0);
    start_call(&client, "/kvferry.Test/Call", 0);
    run_until(client.closes == 1);
    assert_code(client.status, KVF_UNAVAILABLE);
    listen_at(address, NULL);
    uint64_t until = kvf_clock_now_ns() + WAIT_S * KVF_NS_PER_S;
    while (!kvf_is_ok(client.status)) {
        assert_true(kvf_clock_now_ns() < until);
        run_for_ms(50);
        start_call(&client, "/kvferry.Test/Call", 0);
        run_until(client.closes == 1);
    }
}

static void rpc__fifty_lives__clean(void **state)
{
    for (int i = 0; i < 50; i++) {
        assert_int_equal(set_up(state), 0);
        script = (struct script){.echo = true};
        struct record client;
        start_call(&client, "/kvferry.Test/Call", 0);
        say(&client, "x");
        if (i % 3 == 0)
            run_until(client.messages == 1);
        if (i % 3 == 1)
            run_for_ms(1);
        kvf_rpc_call_cancel(client.call);
        if (i % 2 == 0)
            stop_server(0);
        run_until(client.closes == 1);
        assert_int_equal(tear_down(state), 0);
    }
}

static void closing_everything(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                               const char *text)
{
    client_closed(call, user, status, text);
    kvf_rpc_channel_close(channel);
    channel = NULL;
    kvf_rpc_destroy(rpc);
    rpc = NULL;
}

static void closed__may_close_channel_and_rpc__clean(void **state)
{
    (void)state;
    static const struct kvf_rpc_events events = {.closed = closing_everything};
    listen_at("127.0.0.1:0", NULL);
    dial_server("127.0.0.1", NULL);
    stop_server(0);
    struct record client = {0};
    assert_true(kvf_is_ok(
        kvf_rpc_call_start(channel, "/kvferry.Test/Call", 0, &events, &client, &client.call)));
    run_until(client.closes == 1);
    assert_null(rpc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(call__one_message_each_way__answered_ok),
        TEST(call__thousands_of_messages_both_ways__all_in_order),
        TEST(call__many_at_once__each_answered),
        TEST(call__empty_and_long_messages__arrive_whole),
        TEST(call__server_talks_first__heard),
        BARE_TEST(call__unix_address__works),
        BARE_TEST(call__names_and_ipv6__work),
        TEST(finish__status_and_text__reach_the_client),
        TEST(finish__behind_queued_messages__they_arrive_first),
        TEST(finish__very_long_text__cut),
        TEST(finish__inside_called_without_accept__refuses),
        TEST(call__unknown_method__unsupported_without_waiting),
        TEST(call__deadline__ends_both_sides),
        TEST(cancel__by_client__closes_both_cancelled),
        TEST(cancel__right_after_start__still_closes),
        TEST(cancel__by_server__client_hears_cancelled),
        TEST(send__longer_than_the_limit__ends_only_that_call),
        TEST(send__by_server_longer_than_the_limit__ends_the_call),
        BARE_TEST(channel__nobody_listens__unavailable_soon),
        TEST(channel__server_comes_back__later_calls_work),
        cmocka_unit_test(rpc__fifty_lives__clean),
        BARE_TEST(closed__may_close_channel_and_rpc__clean),
    };
    return cmocka_run_group_tests_name("rpc", tests, NULL, NULL);
}
