/* Parts: life, time, sending, receiving and sorting, asking, what the other
 * files share. */
#include "client/engine/dialog.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_MESSAGES 1024u

/* ---- life ---- */

struct kvf_status dialog_create(int fd, struct kvf_client **give)
{
    struct kvf_client *client = calloc(1, sizeof(*client));
    void *unpacked = mmap(NULL, DIALOG_UNPACKED_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (client == NULL || unpacked == MAP_FAILED) {
        if (unpacked != MAP_FAILED)
            (void)munmap(unpacked, DIALOG_UNPACKED_BYTES);
        free(client);
        (void)close(fd);
        return kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, 0);
    }
    client->fd = fd;
    client->unpacked = unpacked;
    kvf_scratch_init(&client->scratch, unpacked, DIALOG_UNPACKED_BYTES);
    client->grace_ms = DIALOG_GRACE_MS;
    client->tell_timeout_ms = DIALOG_TELL_TIMEOUT_MS;
    for (size_t i = 0; i < DIALOG_BLOCKS; i++) {
        kvferry__engine_name__init(&client->names[i]);
        client->name_pointers[i] = &client->names[i];
        kvferry__engine_commit__init(&client->commits[i]);
        client->commit_pointers[i] = &client->commits[i];
    }
    *give = client;
    return kvf_ok();
}

static void close_descriptors(struct kvf_client *client)
{
    for (size_t i = 0; i < client->fd_count; i++) {
        if (client->fds[i] >= 0)
            (void)close(client->fds[i]);
    }
    client->fd_count = 0;
}

void dialog_destroy(struct kvf_client *client)
{
    if (client == NULL)
        return;
    close_descriptors(client);
    (void)close(client->fd);
    for (size_t i = 0; i < client->arena_count; i++)
        kvf_arena_close(&client->arenas[i]);
    free(client->arenas);
    (void)munmap(client->unpacked, DIALOG_UNPACKED_BYTES);
    free(client);
}

static void end(struct kvf_client *client)
{
    client->ended = true;
    client->late_count = 0;
    (void)shutdown(client->fd, SHUT_RDWR);
}

static struct kvf_status unavailable(void)
{
    return kvf_fail(KVF_MODULE_CLIENT, KVF_UNAVAILABLE, 0);
}

struct kvf_status dialog_protocol_error(struct kvf_client *client)
{
    end(client);
    return kvf_fail(KVF_MODULE_CLIENT, KVF_PROTOCOL, 0);
}

struct kvf_status dialog_check(const struct kvf_client *client)
{
    if (client->ended)
        return unavailable();
    if (client->draining)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_DRAINING, 0);
    return kvf_ok();
}

/* ---- time ---- */

uint64_t dialog_deadline(uint64_t timeout_ms)
{
    if (timeout_ms > DIALOG_TIMEOUT_MAX_MS)
        timeout_ms = DIALOG_TIMEOUT_MAX_MS;
    return kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
}

uint64_t dialog_left_us(uint64_t deadline_ns)
{
    uint64_t left = kvf_clock_left_ns(deadline_ns, kvf_clock_now_ns()) / KVF_NS_PER_US;
    return left > 0 ? left : 1;
}

/* False when the time is up. */
static bool wait_for(const struct kvf_client *client, short events, uint64_t until_ns)
{
    uint64_t left = kvf_clock_left_ns(until_ns, kvf_clock_now_ns());
    if (left == 0)
        return false;
    struct pollfd one = {.fd = client->fd, .events = events};
    struct timespec timeout = {.tv_sec = (time_t)(left / KVF_NS_PER_S),
                               .tv_nsec = (long)(left % KVF_NS_PER_S)};
    (void)ppoll(&one, 1, &timeout, NULL); /* an interruption or an error: the caller tries again */
    return true;
}

/* ---- sending ---- */

struct kvf_status dialog_send(struct kvf_client *client, Kvferry__EngineRequest *request)
{
    if (client->ended)
        return unavailable();
    request->id = client->last_id + 1;
    size_t length = kvferry__engine_request__get_packed_size(request);
    kvf_assert(length <= sizeof(client->out));
    (void)kvferry__engine_request__pack(request, client->out);
    struct kvf_status status = kvf_wire_send(client->fd, client->out, length, NULL, 0);
    if (kvf_is_ok(status)) {
        client->last_id++;
    } else if (status.code != KVF_BUSY) {
        end(client);
        status = kvf_fail(KVF_MODULE_CLIENT, KVF_UNAVAILABLE, status.detail);
    }
    return status;
}

static struct kvf_status send_request(struct kvf_client *client, Kvferry__EngineRequest *request,
                                      uint64_t until_ns)
{
    for (;;) {
        struct kvf_status status = dialog_send(client, request);
        if (status.code != KVF_BUSY)
            return status;
        if (!wait_for(client, POLLOUT, until_ns))
            return kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0);
    }
}

/* Send what has no answer; if it cannot be sent the session ends. */
static void tell(struct kvf_client *client, Kvferry__EngineRequest *request)
{
    if (client->ended)
        return;
    if (!kvf_is_ok(send_request(client, request, dialog_deadline(client->tell_timeout_ms))))
        end(client);
}

static void tell_release(struct kvf_client *client, uint64_t get, size_t count, bool bad)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRelease release = KVFERRY__ENGINE_RELEASE__INIT;
    release.get = get;
    release.n_blocks = count;
    release.blocks = client->indexes;
    release.bad = bad;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE;
    request.release = &release;
    tell(client, &request);
}

void dialog_release(struct kvf_client *client, uint64_t get, size_t count)
{
    tell_release(client, get, count, false);
}

void dialog_release_bad(struct kvf_client *client, uint64_t get, size_t count)
{
    tell_release(client, get, count, true);
}

void dialog_abort(struct kvf_client *client, size_t count)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EnginePutAbort abort_puts = KVFERRY__ENGINE_PUT_ABORT__INIT;
    if (count == 0)
        return;
    abort_puts.n_puts = count;
    abort_puts.puts = client->handles;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_ABORT;
    request.put_abort = &abort_puts;
    tell(client, &request);
}

/* Spares the daemon the work for an answer that nobody waits for. Not sent if the socket is full:
 * it is optional. */
static void cancel(struct kvf_client *client, uint64_t id)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineCancel message = KVFERRY__ENGINE_CANCEL__INIT;
    message.id = id;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_CANCEL;
    request.cancel = &message;
    struct kvf_status ignored = send_request(client, &request, 0);
    (void)ignored;
}

/* ---- receiving and sorting ---- */

/* Next message, unpacked, with its descriptors in client->fds. BUSY: nothing there. */
static struct kvf_status receive(struct kvf_client *client, Kvferry__EngineReply **reply)
{
    size_t length;
    close_descriptors(client);
    if (client->ended)
        return unavailable();
    struct kvf_status status = kvf_wire_receive(client->fd, client->in, &length, client->fds,
                                                KVF_WIRE_MAX_FDS, &client->fd_count);
    if (status.code == KVF_BUSY)
        return status;
    if (!kvf_is_ok(status)) {
        end(client);
        return status;
    }
    *reply = kvferry__engine_reply__unpack(kvf_scratch_reset(&client->scratch), length, client->in);
    return *reply != NULL ? kvf_ok() : dialog_protocol_error(client);
}

static bool late_take(struct kvf_client *client, uint64_t id, struct dialog_late *taken)
{
    for (size_t i = 0; i < client->late_count; i++) {
        if (client->late[i].id != id)
            continue;
        *taken = client->late[i];
        client->late[i] = client->late[--client->late_count];
        return true;
    }
    return false;
}

/* Nobody waits for this answer any more: what it pins or holds goes back. */
static struct kvf_status give_back(struct kvf_client *client, const struct dialog_late *late,
                                   const Kvferry__EngineReply *reply)
{
    if (reply->body_case == KVFERRY__ENGINE_REPLY__BODY_READY &&
        late->kind == KVFERRY__ENGINE_REQUEST__MESSAGE_GET) {
        for (size_t i = 0; i < reply->ready->n_blocks; i++) {
            if (reply->ready->blocks[i]->code != KVF_OK)
                continue;
            dialog_release(client, late->id, 0);
            break;
        }
    } else if (reply->body_case == KVFERRY__ENGINE_REPLY__BODY_PUT_BEGUN &&
               late->kind == KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN) {
        size_t count = 0;
        if (reply->put_begun->n_places > DIALOG_BLOCKS)
            return dialog_protocol_error(client);
        for (size_t i = 0; i < reply->put_begun->n_places; i++) {
            if (reply->put_begun->places[i]->code == KVF_OK)
                client->handles[count++] = reply->put_begun->places[i]->put;
        }
        dialog_abort(client, count);
    }
    return client->ended ? unavailable() : kvf_ok();
}

static void notice_drain(struct kvf_client *client)
{
    client->stats.drain_notices += !client->draining;
    client->draining = true;
}

/* What to do with a message: *mine says that it is an answer that is awaited. */
static struct kvf_status sort(struct kvf_client *client, const Kvferry__EngineReply *reply,
                              dialog_is_awaited *is_awaited, void *context, bool *mine)
{
    struct dialog_late late;
    *mine = false;
    if (reply->code >= KVF_CODE_COUNT || reply->id > client->last_id)
        return dialog_protocol_error(client);
    if (client->fd_count > 0 && reply->body_case != KVFERRY__ENGINE_REPLY__BODY_REGISTERED)
        return dialog_protocol_error(client);
    if (reply->id == 0) {
        if (reply->body_case == KVFERRY__ENGINE_REPLY__BODY_DRAIN_NOTICE)
            notice_drain(client);
        else if (reply->body_case != KVFERRY__ENGINE_REPLY__BODY__NOT_SET)
            return dialog_protocol_error(client);
        return kvf_ok(); /* a notice without a body that we know is a later version's */
    }
    if (is_awaited(context, reply->id)) {
        *mine = true;
        return kvf_ok();
    }
    if (late_take(client, reply->id, &late))
        return give_back(client, &late, reply);
    /* An answer to what needs none is harmless; one that carries something was never asked for. */
    if (reply->body_case != KVFERRY__ENGINE_REPLY__BODY__NOT_SET)
        return dialog_protocol_error(client);
    return kvf_ok();
}

struct kvf_status dialog_receive(struct kvf_client *client, dialog_is_awaited *is_awaited,
                                 void *context, const Kvferry__EngineReply **reply)
{
    Kvferry__EngineReply *message;
    bool mine;
    KVF_TRY(receive(client, &message));
    KVF_TRY(sort(client, message, is_awaited, context, &mine));
    *reply = mine ? message : NULL;
    return kvf_ok();
}

static bool is_the_one(void *context, uint64_t id)
{
    return *(const uint64_t *)context == id;
}

static struct kvf_status wait_answer(struct kvf_client *client, uint64_t id, uint64_t until_ns,
                                     const Kvferry__EngineReply **reply)
{
    for (;;) {
        struct kvf_status status = dialog_receive(client, is_the_one, &id, reply);
        if (kvf_is_ok(status) && *reply != NULL)
            return status;
        if (!kvf_is_ok(status) && status.code != KVF_BUSY)
            return status;
        /* Also after a message, for others could come for ever. */
        if (!wait_for(client, POLLIN, until_ns))
            return kvf_fail(KVF_MODULE_CLIENT, KVF_DEADLINE, 0);
    }
}

void dialog_drain_socket(struct kvf_client *client)
{
    const Kvferry__EngineReply *reply;
    uint64_t none = 0;
    for (unsigned i = 0; i < DRAIN_MESSAGES; i++) {
        if (!kvf_is_ok(dialog_receive(client, is_the_one, &none, &reply)))
            return;
    }
}

/* ---- asking ---- */

static Kvferry__EngineReply__BodyCase body_of(Kvferry__EngineRequest__MessageCase kind)
{
    static const Kvferry__EngineReply__BodyCase bodies[] = {
        [KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER] = KVFERRY__ENGINE_REPLY__BODY_REGISTERED,
        [KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN] = KVFERRY__ENGINE_REPLY__BODY_PUT_BEGUN,
        [KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_COMMIT] = KVFERRY__ENGINE_REPLY__BODY_PUT_COMMITTED,
        [KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP] = KVFERRY__ENGINE_REPLY__BODY_READY,
        [KVFERRY__ENGINE_REQUEST__MESSAGE_GET] = KVFERRY__ENGINE_REPLY__BODY_READY,
        [KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET] = KVFERRY__ENGINE_REPLY__BODY_FORGOTTEN,
    };
    return (size_t)kind < sizeof(bodies) / sizeof(bodies[0]) ? bodies[kind]
                                                             : KVFERRY__ENGINE_REPLY__BODY__NOT_SET;
}

/* The answer to `id` did not come in time. It may still come, so that it is remembered. */
void dialog_give_up(struct kvf_client *client, uint64_t id,
                    Kvferry__EngineRequest__MessageCase kind)
{
    if (client->late_count == DIALOG_LATE_MAX) {
        end(client); /* a daemon that owes this many answers is not there */
        return;
    }
    client->late[client->late_count++] = (struct dialog_late){.id = id, .kind = kind};
    if (kind == KVFERRY__ENGINE_REQUEST__MESSAGE_PUT_BEGIN ||
        kind == KVFERRY__ENGINE_REQUEST__MESSAGE_GET ||
        kind == KVFERRY__ENGINE_REQUEST__MESSAGE_LOOKUP)
        cancel(client, id);
}

struct kvf_status dialog_judge(struct kvf_client *client, Kvferry__EngineRequest__MessageCase kind,
                               const Kvferry__EngineReply *reply)
{
    if (reply->code != KVF_OK) {
        /* What it pins none the less goes back, for the caller hears of a refusal only. */
        struct dialog_late refused = {.id = reply->id, .kind = kind};
        KVF_TRY(give_back(client, &refused, reply));
        return kvf_fail(KVF_MODULE_SERVER, (enum kvf_code)reply->code, 0);
    }
    return reply->body_case == body_of(kind) ? kvf_ok() : dialog_protocol_error(client);
}

struct kvf_status dialog_ask(struct kvf_client *client, Kvferry__EngineRequest *request,
                             uint64_t deadline_ns, const Kvferry__EngineReply **reply)
{
    *reply = NULL;
    KVF_TRY(send_request(client, request, deadline_ns));
    struct kvf_status status =
        wait_answer(client, request->id, deadline_ns + client->grace_ms * KVF_NS_PER_MS, reply);
    if (status.code == KVF_DEADLINE)
        dialog_give_up(client, request->id, request->message_case);
    if (kvf_is_ok(status))
        status = dialog_judge(client, request->message_case, *reply);
    /* Of what is refused only the text is of use, and only from the daemon. */
    if (!kvf_is_ok(status) && status.module != KVF_MODULE_SERVER)
        *reply = NULL;
    return status;
}

struct kvf_status dialog_more(struct kvf_client *client, uint64_t deadline_ns,
                              const Kvferry__EngineReply **reply)
{
    const Kvferry__EngineReply *answer = NULL;
    *reply = NULL;
    KVF_TRY(wait_answer(client, client->last_id, deadline_ns + client->grace_ms * KVF_NS_PER_MS,
                        &answer));
    if (answer->code != KVF_OK)
        return kvf_fail(KVF_MODULE_SERVER, (enum kvf_code)answer->code, 0);
    if (answer->body_case != KVFERRY__ENGINE_REPLY__BODY_REGISTERED)
        return dialog_protocol_error(client);
    *reply = answer;
    return kvf_ok();
}

/* ---- what the other files share ---- */

void *dialog_place(const struct kvf_client *client, uint32_t arena, uint64_t offset,
                   uint64_t length)
{
    if (arena >= client->arena_count || length < 1 || length > KVF_BLOCK_MAX_BYTES)
        return NULL;
    const struct kvf_arena *in = &client->arenas[arena];
    uint64_t pages = kvf_round_up_page(length);
    if (offset % KVF_PAGE != 0 || offset > in->bytes || pages > in->bytes - offset)
        return NULL;
    return in->base + offset;
}

bool dialog_key_is_valid(const struct kvf_key *key)
{
    return key->length >= 1 && key->length <= KVF_KEY_MAX_BYTES;
}

void dialog_name(struct kvf_client *client, size_t index, struct kvf_key *key, uint64_t length)
{
    client->names[index].key = (ProtobufCBinaryData){.len = key->length, .data = key->bytes};
    client->names[index].length = length;
}
