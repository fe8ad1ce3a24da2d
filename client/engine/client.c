/* A client's life: connect, register, notices, unregister. */
#include "client/engine/client.h"

#include "base/clock.h"
#include "base/version.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REGISTER_TIMEOUT_MS 5000u
#define UNREGISTER_TIMEOUT_MS 2000u
#define CONNECT_RETRY_NS 10000000L
#define NAME_MAX_BYTES 100u
#define ARENAS_MAX 16384u /* 16 TiB */

/* ---- connect ---- */

/* The daemon's run directory, as far as the socket's path tells. */
static int directory_bytes(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return 0;
    return slash == path ? 1 : (int)(slash - path);
}

static struct kvf_status explain_connect(struct kvf_status status, const char *path,
                                         struct kvf_why *why)
{
    int directory = directory_bytes(path);
    if (status.code == KVF_INVALID)
        return kvf_why_set(why, status,
                           "%.100s... is no path for a unix socket (1 to 107 bytes): use a shorter "
                           "run directory",
                           path);
    if (status.code == KVF_DENIED)
        return kvf_why_set(why, status,
                           "%s: permission denied: the run directory must be open to this user",
                           path);
    if (status.code == KVF_UNAVAILABLE)
        return kvf_why_set(why, status, "no kvferryd answers at %s: start it with --run-dir %.*s",
                           path, directory > 0 ? directory : 1, directory > 0 ? path : ".");
    return kvf_why_set(why, status, "cannot connect to %s: errno %d", path, status.detail);
}

/* When many engines start at once the daemon's backlog may be full for a moment. */
static struct kvf_status connect_until(const char *path, uint64_t deadline_ns, int *fd)
{
    for (;;) {
        struct kvf_status status = kvf_wire_connect(path, fd);
        if (status.code != KVF_UNAVAILABLE || status.detail != EAGAIN ||
            kvf_clock_now_ns() >= deadline_ns)
            return status;
        struct timespec pause = {.tv_nsec = CONNECT_RETRY_NS};
        (void)nanosleep(&pause, NULL);
    }
}

/* ---- register ---- */

/* The daemon's own words, as printable text. */
static void quote(const char *message, char *text, size_t room)
{
    size_t length = 0;
    if (message[0] != '\0') {
        length = (size_t)snprintf(text, room, ": %s", message);
        length = length < room ? length : room - 1;
    }
    text[length] = '\0';
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            text[i] = '?';
    }
}

static struct kvf_status explain_register(struct kvf_status status,
                                          const Kvferry__EngineReply *reply, const char *path,
                                          struct kvf_why *why)
{
    char said[128];
    quote(reply != NULL ? reply->message : "", said, sizeof(said));
    if (status.code == KVF_DRAINING)
        return kvf_why_set(why, status, "kvferryd at %s is draining, it takes nobody new%s", path,
                           said);
    if (status.code == KVF_DEADLINE)
        return kvf_why_set(why, status, "kvferryd at %s does not answer: is it stopped?", path);
    if (status.code == KVF_PROTOCOL)
        return kvf_why_set(why, status, "what answers at %s is no kvferryd of this version", path);
    if (status.code == KVF_NO_MEMORY)
        return kvf_why_set(
            why, status,
            "cannot map the arenas of kvferryd at %s: raise this process's limits on "
            "address space and open files",
            path);
    if (status.code == KVF_UNAVAILABLE)
        return kvf_why_set(why, status, "kvferryd at %s went away while registering%s", path, said);
    return kvf_why_set(why, status, "kvferryd at %s refused: %s%s", path,
                       kvf_code_name(status.code), said);
}

static struct kvf_status map_one(struct kvf_client *client, uint64_t bytes, int *fd)
{
    struct kvf_arena *arena = &client->arenas[client->arena_count];
    if (bytes == 0 || bytes % KVF_PAGE != 0 || bytes > KVF_ARENA_MAX_BYTES)
        return dialog_protocol_error(client);
    int taken = *fd;
    *fd = -1;
    struct kvf_status status = kvf_arena_map(taken, bytes, (uint32_t)client->arena_count, arena);
    if (status.code == KVF_INVALID)
        return dialog_protocol_error(client);
    KVF_TRY(status);
    /* The mapping is enough; engines have few descriptors to spare. */
    (void)close(arena->fd);
    arena->fd = -1;
    client->arena_count++;
    return kvf_ok();
}

static struct kvf_status take_arenas(struct kvf_client *client,
                                     const Kvferry__EngineRegistered *registered)
{
    size_t count = registered->n_arena_bytes;
    if (count != client->fd_count || registered->first_arena != client->arena_count ||
        (count == 0 && registered->more) || client->arena_count + count > ARENAS_MAX ||
        client->arena_count + count == 0)
        return dialog_protocol_error(client);
    struct kvf_arena *grown =
        realloc(client->arenas, (client->arena_count + count) * sizeof(*grown));
    if (grown == NULL)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    client->arenas = grown;
    for (size_t i = 0; i < count; i++)
        KVF_TRY(map_one(client, registered->arena_bytes[i], &client->fds[i]));
    if (registered->max_get_bytes != 0)
        client->max_get_bytes = registered->max_get_bytes;
    if (registered->max_put_bytes != 0)
        client->max_put_bytes = registered->max_put_bytes;
    if (registered->boot_epoch != 0)
        client->boot_epoch = registered->boot_epoch;
    if (registered->instance != 0)
        client->instance = registered->instance;
    return kvf_ok();
}

static void fill_geometry(const struct kvf_geometry *geometry, Kvferry__EngineGeometry *message)
{
    kvferry__engine_geometry__init(message);
    message->dtype = (uint32_t)geometry->dtype;
    message->layers = geometry->layers;
    message->planes = geometry->planes;
    message->page_tokens = geometry->page_tokens;
    message->block_bytes = kvf_geometry_block_bytes(geometry);
    message->tp_rank = geometry->tp_rank;
    message->tp_size = geometry->tp_size > 0 ? geometry->tp_size : 1;
    message->pp_rank = geometry->pp_rank;
    message->pp_size = geometry->pp_size > 0 ? geometry->pp_size : 1;
}

/* The first answer, and as many packets more as there are arenas. */
static struct kvf_status ask_for_arenas(struct kvf_client *client, Kvferry__EngineRequest *request,
                                        uint64_t deadline_ns, const Kvferry__EngineReply **reply)
{
    KVF_TRY(dialog_ask(client, request, deadline_ns, reply));
    KVF_TRY(take_arenas(client, (*reply)->registered));
    while ((*reply)->registered->more) {
        KVF_TRY(dialog_more(client, deadline_ns, reply));
        KVF_TRY(take_arenas(client, (*reply)->registered));
    }
    return kvf_ok();
}

struct kvf_status client_register(struct kvf_client *client, const char *name,
                                  const struct kvf_geometry *geometry, const char *path,
                                  uint64_t deadline_ns, struct kvf_why *why)
{
    Kvferry__EngineGeometry shape;
    char short_name[NAME_MAX_BYTES + 1];
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRegister message = KVFERRY__ENGINE_REGISTER__INIT;
    const Kvferry__EngineReply *reply = NULL;
    const uint64_t grace_ms = client->grace_ms;

    (void)snprintf(short_name, sizeof(short_name), "%s", name != NULL ? name : "");
    message.version = KVF_WIRE_VERSION;
    message.name = short_name;
    if (geometry != NULL) {
        fill_geometry(geometry, &shape);
        message.geometry = &shape;
    }
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER;
    request.register_ = &message;
    client->grace_ms = 0; /* it answers at once, or not at all */
    struct kvf_status status = ask_for_arenas(client, &request, deadline_ns, &reply);
    client->grace_ms = grace_ms;
    if (!kvf_is_ok(status))
        return explain_register(status, reply, path, why);
    /* A daemon that names no limit judges by itself. */
    if (client->max_get_bytes == 0)
        client->max_get_bytes = UINT64_MAX;
    if (client->max_put_bytes == 0)
        client->max_put_bytes = UINT64_MAX;
    client->stats.registrations++;
    return status;
}

struct kvf_status kvf_client_open(const struct kvf_client_options *options,
                                  struct kvf_client **give, struct kvf_why *why)
{
    uint64_t timeout_ms = options->timeout_ms != 0 ? options->timeout_ms : REGISTER_TIMEOUT_MS;
    const char *path = options->socket_path != NULL ? options->socket_path : "";
    struct kvf_client *client = NULL;
    int fd = -1;
    if (options->geometry != NULL)
        KVF_TRY(kvf_geometry_check(options->geometry, why));
    const uint64_t deadline_ns = dialog_deadline(timeout_ms);
    struct kvf_status status = connect_until(path, deadline_ns, &fd);
    if (!kvf_is_ok(status))
        return explain_connect(status, path, why);
    status = dialog_create(fd, &client);
    if (!kvf_is_ok(status))
        return kvf_why_set(why, status, "no memory for a client of kvferryd");
    status = client_register(client, options->name, options->geometry, path, deadline_ns, why);
    if (!kvf_is_ok(status)) {
        dialog_destroy(client);
        return status;
    }
    *give = client;
    return kvf_ok();
}

/* ---- notices, limits ---- */

int kvf_client_fd(const struct kvf_client *client)
{
    return client->fd;
}

struct kvf_status kvf_client_poll(struct kvf_client *client)
{
    dialog_drain_socket(client);
    return dialog_check(client);
}

uint64_t kvf_client_max_get_bytes(const struct kvf_client *client)
{
    return client->max_get_bytes;
}

uint64_t kvf_client_max_put_bytes(const struct kvf_client *client)
{
    return client->max_put_bytes;
}

uint64_t kvf_client_boot_epoch(const struct kvf_client *client)
{
    return client->boot_epoch;
}

uint64_t kvf_client_instance(const struct kvf_client *client)
{
    return client->instance;
}

void kvf_client_stats(const struct kvf_client *client, struct kvf_stats *stats)
{
    *stats = client->stats;
}

const char *kvf_library_version(void)
{
    return KVF_VERSION;
}

size_t kvf_client_arena_count(const struct kvf_client *client)
{
    return client->arena_count;
}

void *kvf_client_arena(const struct kvf_client *client, size_t index, uint64_t *bytes)
{
    kvf_assert(index < client->arena_count);
    *bytes = client->arenas[index].bytes;
    return client->arenas[index].base;
}

/* ---- close ---- */

/* True when the daemon was there to hear it. Its answer, or that it closes the connection, means
 * that all is released; waiting for either is bounded, for our own clean-up depends on nobody. */
static bool unregister(struct kvf_client *client)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineUnregister message = KVFERRY__ENGINE_UNREGISTER__INIT;
    const Kvferry__EngineReply *reply;
    if (client->ended)
        return false;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_UNREGISTER;
    request.unregister = &message;
    client->grace_ms = 0;
    struct kvf_status status =
        dialog_ask(client, &request, dialog_deadline(UNREGISTER_TIMEOUT_MS), &reply);
    /* EPIPE: gone before it was sent; ECONNRESET: gone before it was read. */
    return status.code != KVF_UNAVAILABLE || status.detail == 0;
}

struct kvf_status kvf_client_close(struct kvf_client *client)
{
    if (client == NULL)
        return kvf_ok();
    bool heard = unregister(client);
    dialog_destroy(client);
    return (struct kvf_status){
        .code = KVF_OK, .module = KVF_MODULE_CLIENT, .detail = heard ? 0 : 1};
}
