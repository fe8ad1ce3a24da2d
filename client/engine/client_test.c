#include "client/engine/client.h"
#include "client/engine/fake_daemon.h"

#include "base/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct fake_daemon fake;

static struct kvf_status register_within(uint64_t timeout_ms, struct kvf_why *why)
{
    return client_register(fake.client, "test", NULL, "/run/kv/engine.sock",
                           dialog_deadline(timeout_ms), why);
}

static struct kvf_status register_client(struct kvf_why *why)
{
    return register_within(30000, why);
}

static int lowest_free_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    return fd;
}

/* ---- register ---- */

static void register__one_arena__is_the_daemons_memory(void **state)
{
    (void)state;
    uint64_t bytes;
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(kvf_client_arena_count(fake.client), 1);
    uint8_t *base = kvf_client_arena(fake.client, 0, &bytes);
    assert_int_equal(bytes, KVF_MIB);
    memcpy(fake.arenas[0].base + KVF_MIB - 5, "ferry", 5);
    assert_memory_equal(base + KVF_MIB - 5, "ferry", 5);
    assert_int_equal(kvf_client_max_get_bytes(fake.client), 64 * KVF_MIB);
    assert_int_equal(kvf_client_max_put_bytes(fake.client), 64 * KVF_MIB);
    assert_string_equal(fake.request->register_->name, "test");
    assert_int_equal(fake.request->register_->version, KVF_WIRE_VERSION);
    assert_int_equal(fake.request->id, 1);
    fake_close(&fake);
}

static void register__300_arenas_in_several_packets__are_mapped_in_order(void **state)
{
    (void)state;
    uint64_t bytes;
    int lowest = lowest_free_descriptor();
    fake_open(&fake, 300, KVF_PAGE);
    for (size_t i = 0; i < 300; i++)
        memcpy(fake.arenas[i].base, &i, sizeof(i));
    fake_registered(&fake, 0, 253, true);
    fake_drain_notice(&fake);
    fake_registered(&fake, 253, 40, true);
    fake_registered(&fake, 293, 7, false);
    assert_int_equal(register_client(NULL).code, KVF_OK);
    assert_int_equal(kvf_client_arena_count(fake.client), 300);
    for (size_t i = 0; i < 300; i++)
        assert_memory_equal(kvf_client_arena(fake.client, i, &bytes), &i, sizeof(i));
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_DRAINING);
    fake_close(&fake);
    assert_int_equal(lowest_free_descriptor(), lowest);
}

static void register__a_name_of_any_length__is_cut(void **state)
{
    (void)state;
    char name[5000];
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    fake_open(&fake, 1, KVF_PAGE);
    fake_registered(&fake, 0, 1, false);
    assert_int_equal(
        client_register(fake.client, name, NULL, "", dialog_deadline(30000), NULL).code, KVF_OK);
    assert_int_equal(
        strlen(fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER)->register_->name),
        100);
    fake_close(&fake);
}

/* One Registered that is wrong in one way. */
struct bad_registration {
    uint64_t id;
    uint64_t bytes;
    uint32_t first_arena;
    size_t arenas;
    size_t fds;
    bool more;
    bool unsealed;
};

static void say_bad_registration(const struct bad_registration *bad)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineRegistered registered = KVFERRY__ENGINE_REGISTERED__INIT;
    uint64_t bytes[2] = {bad->bytes, bad->bytes};
    int plain = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fds[2] = {bad->unsealed ? plain : fake.arenas[0].fd, fake.arenas[0].fd};
    registered.n_arena_bytes = bad->arenas;
    registered.arena_bytes = bytes;
    registered.first_arena = bad->first_arena;
    registered.more = bad->more;
    reply.id = bad->id;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_REGISTERED;
    reply.registered = &registered;
    fake_say(&fake, &reply, fds, bad->fds);
    (void)close(plain);
}

static void register__illegal_answers__are_protocol_and_leave_nothing_open(void **state)
{
    (void)state;
    const struct bad_registration bads[] = {
        {.id = 1, .bytes = KVF_MIB, .arenas = 1, .fds = 0},
        {.id = 1, .bytes = KVF_MIB, .arenas = 1, .fds = 2},
        {.id = 1, .bytes = KVF_MIB, .arenas = 2, .fds = 1},
        {.id = 1, .bytes = KVF_MIB, .arenas = 0, .fds = 1},
        {.id = 1, .bytes = KVF_MIB, .arenas = 0, .fds = 0},
        {.id = 1, .bytes = KVF_MIB, .arenas = 0, .fds = 0, .more = true},
        {.id = 1, .bytes = KVF_MIB, .arenas = 1, .fds = 1, .first_arena = 1},
        {.id = 1, .bytes = KVF_MIB, .arenas = 1, .fds = 1, .first_arena = UINT32_MAX},
        {.id = 1, .bytes = 0, .arenas = 1, .fds = 1},
        {.id = 1, .bytes = KVF_MIB + KVF_PAGE, .arenas = 1, .fds = 1},
        {.id = 1, .bytes = KVF_MIB - 1, .arenas = 1, .fds = 1},
        {.id = 1, .bytes = UINT64_MAX, .arenas = 1, .fds = 1},
        {.id = 1, .bytes = 2 * KVF_ARENA_MAX_BYTES, .arenas = 1, .fds = 1},
        {.id = 1, .bytes = KVF_MIB, .arenas = 1, .fds = 1, .unsealed = true},
        {.id = 0, .bytes = KVF_MIB, .arenas = 1, .fds = 1},
        {.id = 2, .bytes = KVF_MIB, .arenas = 1, .fds = 1},
    };
    for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        int lowest = lowest_free_descriptor();
        struct kvf_why why = {{0}};
        fake_open(&fake, 1, KVF_MIB);
        say_bad_registration(&bads[i]);
        assert_int_equal(register_client(&why).code, KVF_PROTOCOL);
        assert_non_null(strstr(why.text, "/run/kv/engine.sock"));
        fake_close(&fake);
        assert_int_equal(lowest_free_descriptor(), lowest);
    }
}

static void register__bad_second_packet__is_protocol(void **state)
{
    (void)state;
    fake_open(&fake, 2, KVF_MIB);
    fake_registered(&fake, 0, 1, true);
    fake_registered(&fake, 0, 1, false);
    assert_int_equal(register_client(NULL).code, KVF_PROTOCOL);
    fake_close(&fake);

    fake_open(&fake, 2, KVF_MIB);
    fake_registered(&fake, 0, 1, true);
    fake_ready(&fake, 1, 1);
    assert_int_equal(register_client(NULL).code, KVF_PROTOCOL);
    fake_close(&fake);

    struct kvf_why why = {{0}};
    fake_open(&fake, 2, KVF_MIB);
    fake_registered(&fake, 0, 1, true);
    fake_refuse(&fake, 1, KVF_NO_MEMORY, "sorry");
    assert_int_equal(register_client(&why).code, KVF_NO_MEMORY);
    assert_true(why.text[0] != '\0');
    fake_close(&fake);
}

static void register__refused__says_what_the_daemon_said_without_control_bytes(void **state)
{
    (void)state;
    struct kvf_why why = {{0}};
    fake_open(&fake, 1, KVF_MIB);
    fake_refuse(&fake, 1, KVF_DRAINING, "");
    assert_int_equal(register_client(&why).code, KVF_DRAINING);
    assert_non_null(strstr(why.text, "draining"));
    fake_close(&fake);

    fake_open(&fake, 1, KVF_MIB);
    fake_refuse(&fake, 1, KVF_UNSUPPORTED, "version\n2\x1b[0m");
    assert_int_equal(register_client(&why).code, KVF_UNSUPPORTED);
    assert_non_null(strstr(why.text, "UNSUPPORTED: version?2?[0m"));
    fake_close(&fake);

    fake_open(&fake, 1, KVF_MIB);
    fake_refuse(&fake, 1, (enum kvf_code)200, "");
    assert_int_equal(register_client(&why).code, KVF_PROTOCOL);
    fake_close(&fake);
}

static void register__silence_or_end__is_deadline_or_unavailable(void **state)
{
    (void)state;
    struct kvf_why why = {{0}};
    fake_open(&fake, 1, KVF_MIB);
    assert_int_equal(register_within(10, &why).code, KVF_DEADLINE);
    assert_non_null(strstr(why.text, "does not answer"));
    fake_close(&fake);

    fake_open(&fake, 2, KVF_MIB);
    fake_registered(&fake, 0, 1, true);
    assert_int_equal(register_within(10, &why).code, KVF_DEADLINE);
    fake_close(&fake);

    fake_open(&fake, 1, KVF_MIB);
    assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
    assert_int_equal(register_client(&why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "went away"));
    fake_close(&fake);

    fake_open(&fake, 2, KVF_MIB);
    fake_registered(&fake, 0, 1, true);
    assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
    assert_int_equal(register_client(&why).code, KVF_UNAVAILABLE);
    fake_close(&fake);

    fake_open(&fake, 1, KVF_MIB);
    assert_int_equal(close(fake.fd), 0);
    fake.fd = -1;
    assert_int_equal(register_client(&why).code, KVF_UNAVAILABLE);
    fake_close(&fake);
}

/* ---- open ---- */

static void client_open__nobody_there__says_how_to_start_one(void **state)
{
    (void)state;
    char directory[] = "/tmp/kvf.XXXXXX", path[64];
    struct kvf_client *client = NULL;
    struct kvf_why why = {{0}};
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof(path), "%s/engine.sock", directory);
    struct kvf_client_options options = {.socket_path = path};
    assert_int_equal(kvf_client_open(&options, &client, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "no kvferryd answers at /tmp/kvf."));
    assert_non_null(strstr(why.text, "start it with --run-dir /tmp/kvf."));
    options.socket_path = "engine.sock.not.there";
    assert_int_equal(kvf_client_open(&options, &client, &why).code, KVF_UNAVAILABLE);
    assert_non_null(strstr(why.text, "--run-dir ."));
    options.socket_path = NULL;
    assert_int_equal(kvf_client_open(&options, &client, NULL).code, KVF_INVALID);
    assert_null(client);
    assert_int_equal(rmdir(directory), 0);
}

/* A daemon's accept loop for one engine: registers it, hears Unregister, closes. */
static void *serve_one(void *argument)
{
    int listener = *(int *)argument;
    int fd = accept(listener, NULL, NULL);
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    fake.fd = fd;
    assert_true(recv(fd, bytes, sizeof(bytes), 0) > 0);
    fake_registered(&fake, 0, 1, false);
    assert_true(recv(fd, bytes, sizeof(bytes), 0) > 0);
    (void)close(fd);
    return NULL;
}

static void client_open__over_a_real_socket__registers_and_unregisters(void **state)
{
    (void)state;
    char directory[] = "/tmp/kvf.XXXXXX";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct kvf_client *client = NULL;
    pthread_t thread;
    assert_non_null(mkdtemp(directory));
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/engine.sock", directory);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 1), 0);

    fake_open(&fake, 1, KVF_MIB);
    int unused = fake.fd;
    assert_int_equal(pthread_create(&thread, NULL, serve_one, &listener), 0);
    struct kvf_client_options options = {.socket_path = address.sun_path, .name = "rank 0"};
    assert_int_equal(kvf_client_open(&options, &client, NULL).code, KVF_OK);
    assert_int_equal(kvf_client_poll(client).code, KVF_OK);
    struct kvf_status closed = kvf_client_close(client);
    assert_int_equal(closed.code, KVF_OK);
    assert_int_equal(closed.detail, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);

    fake.fd = unused;
    fake_close(&fake);
    (void)close(listener);
    assert_int_equal(unlink(address.sun_path), 0);
    assert_int_equal(rmdir(directory), 0);
}

/* ---- notices ---- */

static void client_poll__drain_notice__is_draining_until_the_daemon_is_gone(void **state)
{
    (void)state;
    struct kvf_key key;
    assert_true(kvf_key_set(&key, "k", 1));
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_OK);
    fake_drain_notice(&fake);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_DRAINING);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_DRAINING);
    assert_int_equal(kvf_forget(fake.client, "t/f", &key, 1, NULL).code, KVF_DRAINING);
    assert_null(fake_take(&fake));
    assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    assert_int_equal(kvf_forget(fake.client, "t/f", &key, 1, NULL).code, KVF_UNAVAILABLE);
    assert_true(kvf_client_fd(fake.client) >= 0); /* not anybody else's number meanwhile */
    fake_close(&fake);
}

static void client_poll__unasked_answers__are_protocol_where_they_carry_something(void **state)
{
    (void)state;
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_refuse(&fake, 0, KVF_OK, "a notice of a later version");
    fake_refuse(&fake, 1, KVF_OK, "");
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_OK);
    fake_ready(&fake, 1, 1);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    fake_close(&fake);

    fake_open_registered(&fake, 1, KVF_MIB);
    fake_refuse(&fake, 2, KVF_OK, "from the future");
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    fake_close(&fake);

    fake_open_registered(&fake, 1, KVF_MIB);
    fake_ready(&fake, 0, 1);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    fake_close(&fake);

    fake_open_registered(&fake, 1, KVF_MIB);
    fake_say_bytes(&fake, "\xff\xff\xff", 3);
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    fake_close(&fake);
}

/* ---- forget ---- */

static void forget__more_keys_than_a_message_takes__is_cut_and_added_up(void **state)
{
    (void)state;
    size_t count = 2 * DIALOG_BLOCKS + 1, forgotten = 0;
    struct kvf_key *keys = calloc(count, sizeof(*keys));
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineForgotten body = KVFERRY__ENGINE_FORGOTTEN__INIT;
    for (size_t i = 0; i < count; i++) {
        memset(keys[i].bytes, (int)i, KVF_KEY_MAX_BYTES);
        keys[i].length = KVF_KEY_MAX_BYTES;
    }
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_FORGOTTEN;
    reply.forgotten = &body;
    fake_open_registered(&fake, 1, KVF_MIB);
    for (uint64_t id = 2; id <= 4; id++) {
        reply.id = id;
        body.blocks = id == 4 ? 1 : 300;
        fake_say(&fake, &reply, NULL, 0);
    }
    assert_int_equal(kvf_forget(fake.client, "t/f", keys, count, &forgotten).code, KVF_OK);
    assert_int_equal(forgotten, 601);
    for (size_t page = 0; page < 3; page++) {
        const Kvferry__EngineForget *forget =
            fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET)->forget;
        assert_int_equal(forget->n_keys, page < 2 ? DIALOG_BLOCKS : 1);
        assert_memory_equal(forget->keys[0].data, keys[page * DIALOG_BLOCKS].bytes, 64);
    }
    reply.id = 5;
    body.blocks = 2;
    fake_say(&fake, &reply, NULL, 0);
    assert_int_equal(kvf_forget(fake.client, "t/f", keys, 1, &forgotten).code, KVF_PROTOCOL);
    assert_int_equal(forgotten, 0);
    fake_close(&fake);
    free(keys);
}

static void forget__nonsense__is_invalid_and_not_sent(void **state)
{
    (void)state;
    struct kvf_key key = {.length = 0};
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(kvf_forget(fake.client, "t/f", &key, 1, NULL).code, KVF_INVALID);
    key.length = KVF_KEY_MAX_BYTES + 1;
    assert_int_equal(kvf_forget(fake.client, "t/f", &key, 1, NULL).code, KVF_INVALID);
    key.length = 1;
    assert_int_equal(kvf_forget(fake.client, "tf", &key, 1, NULL).code, KVF_INVALID);
    assert_int_equal(kvf_forget(fake.client, NULL, &key, 1, NULL).code, KVF_INVALID);
    assert_int_equal(kvf_forget(fake.client, "t/f", NULL, 0, NULL).code, KVF_OK);
    assert_null(fake_take(&fake));
    fake_close(&fake);
}

/* ---- close ---- */

static void close_fake_after_its_client(void)
{
    fake.client = NULL;
    fake_close(&fake);
}

static void client_close__answered_or_closed_by_the_daemon__has_no_note(void **state)
{
    (void)state;
    fake_open_registered(&fake, 1, KVF_MIB);
    fake_refuse(&fake, 2, KVF_OK, "");
    struct kvf_status status = kvf_client_close(fake.client);
    assert_int_equal(status.code, KVF_OK);
    assert_int_equal(status.detail, 0);
    (void)fake_expect(&fake, KVFERRY__ENGINE_REQUEST__MESSAGE_UNREGISTER);
    close_fake_after_its_client();

    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(shutdown(fake.fd, SHUT_WR), 0);
    status = kvf_client_close(fake.client);
    assert_int_equal(status.code, KVF_OK);
    assert_int_equal(status.detail, 0);
    close_fake_after_its_client();
    assert_int_equal(kvf_client_close(NULL).code, KVF_OK);
}

static void client_close__daemon_gone_before__is_ok_with_a_note(void **state)
{
    (void)state;
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(close(fake.fd), 0);
    fake.fd = -1;
    struct kvf_status status = kvf_client_close(fake.client);
    assert_int_equal(status.code, KVF_OK);
    assert_int_equal(status.detail, 1);
    close_fake_after_its_client();

    /* It was noticed earlier. */
    fake_open_registered(&fake, 1, KVF_MIB);
    assert_int_equal(close(fake.fd), 0);
    fake.fd = -1;
    assert_int_equal(kvf_client_poll(fake.client).code, KVF_UNAVAILABLE);
    status = kvf_client_close(fake.client);
    assert_int_equal(status.code, KVF_OK);
    assert_int_equal(status.detail, 1);
    close_fake_after_its_client();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(register__one_arena__is_the_daemons_memory),
        cmocka_unit_test(register__300_arenas_in_several_packets__are_mapped_in_order),
        cmocka_unit_test(register__a_name_of_any_length__is_cut),
        cmocka_unit_test(register__illegal_answers__are_protocol_and_leave_nothing_open),
        cmocka_unit_test(register__bad_second_packet__is_protocol),
        cmocka_unit_test(register__refused__says_what_the_daemon_said_without_control_bytes),
        cmocka_unit_test(register__silence_or_end__is_deadline_or_unavailable),
        cmocka_unit_test(client_open__nobody_there__says_how_to_start_one),
        cmocka_unit_test(client_open__over_a_real_socket__registers_and_unregisters),
        cmocka_unit_test(client_poll__drain_notice__is_draining_until_the_daemon_is_gone),
        cmocka_unit_test(client_poll__unasked_answers__are_protocol_where_they_carry_something),
        cmocka_unit_test(forget__more_keys_than_a_message_takes__is_cut_and_added_up),
        cmocka_unit_test(forget__nonsense__is_invalid_and_not_sent),
        cmocka_unit_test(client_close__answered_or_closed_by_the_daemon__has_no_note),
        cmocka_unit_test(client_close__daemon_gone_before__is_ok_with_a_note),
    };
    return cmocka_run_group_tests_name("client/engine/client", tests, NULL, NULL);
}
