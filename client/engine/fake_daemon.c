#include "client/engine/fake_daemon.h"

#include "base/test.h"
#include "client/engine/client.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define AWAIT_MS 10000

static void create(struct fake_daemon *fake, size_t arena_count, uint64_t arena_bytes)
{
    memset(fake, 0, sizeof(*fake));
    fake->fd = fake->listener = -1;
    fake->arena_count = arena_count;
    fake->arenas = calloc(arena_count, sizeof(*fake->arenas));
    for (size_t i = 0; i < arena_count; i++)
        assert_int_equal(
            kvf_arena_create(arena_bytes, (uint32_t)i, false, &fake->arenas[i], NULL).code, KVF_OK);
}

static bool is_readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, AWAIT_MS) == 1;
}

void fake_listen(struct fake_daemon *fake, const char *path, size_t arena_count,
                 uint64_t arena_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    create(fake, arena_count, arena_bytes);
    fake_fill(fake, 1);
    assert_true(strlen(path) < sizeof(address.sun_path));
    strcpy(address.sun_path, path);
    (void)unlink(path);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fake->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fake->listener, 16), 0);
}

void fake_accept(struct fake_daemon *fake)
{
    assert_true(is_readable(fake->listener));
    fake->fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fake->fd >= 0);
    (void)fake_await(fake, KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER);
    fake_registered(fake, 0, fake->arena_count, false);
}

void fake_hang_up(struct fake_daemon *fake)
{
    assert_int_equal(close(fake->fd), 0);
    fake->fd = -1;
}

const Kvferry__EngineRequest *fake_await(struct fake_daemon *fake,
                                         Kvferry__EngineRequest__MessageCase kind)
{
    assert_true(is_readable(fake->fd));
    return fake_expect(fake, kind);
}

void fake_open(struct fake_daemon *fake, size_t arena_count, uint64_t arena_bytes)
{
    int pair[2];
    create(fake, arena_count, arena_bytes);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    fake->fd = pair[0];
    assert_int_equal(dialog_create(pair[1], &fake->client).code, KVF_OK);
    fake->client->grace_ms = 20;
    fake_fill(fake, 1);
}

void fake_open_registered(struct fake_daemon *fake, size_t arena_count, uint64_t arena_bytes)
{
    fake_open(fake, arena_count, arena_bytes);
    fake_registered(fake, 0, arena_count, false);
    assert_int_equal(
        client_register(fake->client, "test", NULL, "socket", dialog_deadline(5000), NULL).code,
        KVF_OK);
    (void)fake_expect(fake, KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER);
}

void fake_close(struct fake_daemon *fake)
{
    if (fake->request != NULL)
        kvferry__engine_request__free_unpacked(fake->request, NULL);
    if (fake->fd >= 0)
        assert_int_equal(close(fake->fd), 0);
    if (fake->listener >= 0)
        assert_int_equal(close(fake->listener), 0);
    assert_int_equal(kvf_client_close(fake->client).code, KVF_OK);
    for (size_t i = 0; i < fake->arena_count; i++)
        kvf_arena_close(&fake->arenas[i]);
    free(fake->arenas);
}

void fake_say_bytes(struct fake_daemon *fake, const void *bytes, size_t length)
{
    assert_int_equal(kvf_wire_send(fake->fd, bytes, length, NULL, 0).code, KVF_OK);
}

void fake_say(struct fake_daemon *fake, Kvferry__EngineReply *reply, const int *fds,
              size_t fd_count)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    size_t length = kvferry__engine_reply__get_packed_size(reply);
    assert_true(length <= sizeof(bytes));
    (void)kvferry__engine_reply__pack(reply, bytes);
    struct kvf_status status;
    for (unsigned ms = 0; ms < 10000; ms++) { /* full: who reads it is a thread of its own */
        status = kvf_wire_send(fake->fd, bytes, length, fds, fd_count);
        if (status.code != KVF_BUSY)
            break;
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(status.code, KVF_OK);
}

void fake_refuse(struct fake_daemon *fake, uint64_t id, enum kvf_code code, const char *message)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    reply.id = id;
    reply.code = code;
    reply.message = (char *)(uintptr_t)message;
    fake_say(fake, &reply, NULL, 0);
}

void fake_drain_notice(struct fake_daemon *fake)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineDrainNotice notice = KVFERRY__ENGINE_DRAIN_NOTICE__INIT;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_DRAIN_NOTICE;
    reply.drain_notice = &notice;
    fake_say(fake, &reply, NULL, 0);
}

void fake_registered(struct fake_daemon *fake, size_t first, size_t count, bool more)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineRegistered registered = KVFERRY__ENGINE_REGISTERED__INIT;
    int fds[KVF_WIRE_MAX_FDS];
    uint64_t bytes[KVF_WIRE_MAX_FDS];
    for (size_t i = 0; i < count; i++) {
        fds[i] = fake->arenas[first + i].fd;
        bytes[i] = fake->arenas[first + i].bytes;
    }
    registered.n_arena_bytes = count;
    registered.arena_bytes = bytes;
    registered.first_arena = (uint32_t)first;
    registered.more = more;
    registered.max_get_bytes = 64 * KVF_MIB;
    registered.max_put_bytes = 64 * KVF_MIB;
    reply.id = 1;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_REGISTERED;
    reply.registered = &registered;
    fake_say(fake, &reply, fds, count);
}

void fake_begun(struct fake_daemon *fake, uint64_t id, size_t count)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EnginePutBegun begun = KVFERRY__ENGINE_PUT_BEGUN__INIT;
    Kvferry__EnginePlace *pointers[FAKE_BLOCKS];
    for (size_t i = 0; i < count; i++)
        pointers[i] = &fake->places[i];
    begun.n_places = count;
    begun.places = pointers;
    reply.id = id;
    reply.code = fake->code;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_PUT_BEGUN;
    reply.put_begun = &begun;
    fake_say(fake, &reply, NULL, 0);
}

void fake_committed(struct fake_daemon *fake, uint64_t id, size_t count)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EnginePutCommitted committed = KVFERRY__ENGINE_PUT_COMMITTED__INIT;
    Kvferry__EngineCommitted *pointers[FAKE_BLOCKS];
    for (size_t i = 0; i < count; i++)
        pointers[i] = &fake->committed[i];
    committed.n_blocks = count;
    committed.blocks = pointers;
    reply.id = id;
    reply.code = fake->code;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_PUT_COMMITTED;
    reply.put_committed = &committed;
    fake_say(fake, &reply, NULL, 0);
}

void fake_ready(struct fake_daemon *fake, uint64_t id, size_t count)
{
    Kvferry__EngineReply reply = KVFERRY__ENGINE_REPLY__INIT;
    Kvferry__EngineReady ready = KVFERRY__ENGINE_READY__INIT;
    Kvferry__EngineBlock *pointers[FAKE_BLOCKS];
    for (size_t i = 0; i < count; i++)
        pointers[i] = &fake->blocks[i];
    while (ready.prefix < count && fake->blocks[ready.prefix].code == KVF_OK)
        ready.prefix++;
    ready.n_blocks = count;
    ready.blocks = pointers;
    reply.id = id;
    reply.code = fake->code;
    reply.body_case = KVFERRY__ENGINE_REPLY__BODY_READY;
    reply.ready = &ready;
    fake_say(fake, &reply, NULL, 0);
}

void fake_fill(struct fake_daemon *fake, uint64_t length)
{
    for (size_t i = 0; i < FAKE_BLOCKS; i++) {
        uint64_t offset = i * kvf_round_up_page(length);
        kvferry__engine_place__init(&fake->places[i]);
        fake->places[i].offset = offset;
        fake->places[i].put = 1000 + i;
        kvferry__engine_committed__init(&fake->committed[i]);
        fake->committed[i].generation_epoch = 7;
        fake->committed[i].generation_counter = 100 + i;
        kvferry__engine_block__init(&fake->blocks[i]);
        fake->blocks[i].offset = offset;
        fake->blocks[i].length = length;
        fake->blocks[i].tier = KVF_TIER_SSD;
        fake->blocks[i].origin = KVF_ORIGIN_REMOTE;
        fake->blocks[i].generation_epoch = UINT64_MAX;
        fake->blocks[i].generation_counter = UINT64_MAX - i;
        fake->blocks[i].crc32c = UINT32_MAX;
    }
}

const Kvferry__EngineRequest *fake_take(struct fake_daemon *fake)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    size_t length, fd_count;
    if (!kvf_is_ok(kvf_wire_receive(fake->fd, bytes, &length, NULL, 0, &fd_count)))
        return NULL;
    if (fake->request != NULL)
        kvferry__engine_request__free_unpacked(fake->request, NULL);
    fake->request = kvferry__engine_request__unpack(NULL, length, bytes);
    assert_non_null(fake->request);
    return fake->request;
}

const Kvferry__EngineRequest *fake_expect(struct fake_daemon *fake,
                                          Kvferry__EngineRequest__MessageCase kind)
{
    const Kvferry__EngineRequest *request = fake_take(fake);
    assert_non_null(request);
    assert_int_equal(request->message_case, kind);
    return request;
}
