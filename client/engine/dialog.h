/* The conversation with the daemon beneath kvferry.h: numbered requests, their answers, notices,
 * and the end.
 *
 * Owner: the caller's thread, one at a time. One request is asked at a time; answers to requests
 * that were given up (late ones) are taken whenever they come, and what they pin is given back at
 * once.
 *
 *   OPEN  --DrainNotice-->  draining (new requests are not sent any more, the rest goes on)
 *   any   --end of file, a send that fails, an illegal message-->  ENDED (UNAVAILABLE to all)
 *
 * The socket stays open (shut down) until the client is closed, so that its number is not used
 * again meanwhile. */
#ifndef KVFERRY_CLIENT_ENGINE_DIALOG_H
#define KVFERRY_CLIENT_ENGINE_DIALOG_H

#include "base/arena.h"
#include "client/engine/wire.h"
#include "client/kvferry.h"
#include "proto/engine.pb-c.h"
#include "proto/scratch.h"

#define DIALOG_BLOCKS KVF_WIRE_MAX_BLOCKS /* of one request */
#define DIALOG_LATE_MAX 512u              /* requests given up whose answers are still to come */
/* The daemon answers at the deadline; this long we wait for it to arrive. */
#define DIALOG_GRACE_MS 2000u
#define DIALOG_TELL_TIMEOUT_MS 5000u
/* For the unpacked form of any message; touched only where used. */
#define DIALOG_UNPACKED_BYTES (8u << 20)
#define DIALOG_TIMEOUT_MAX_MS (24u * 3600u * 1000u)
#define DIALOG_SOURCE_MAX_BYTES 320u /* HOST:PORT */

struct dialog_late {
    uint64_t id;
    Kvferry__EngineRequest__MessageCase kind;
};

struct kvf_client {
    int fd;
    bool ended;
    bool draining;
    uint64_t last_id; /* of the last request sent, counted from 1 */
    uint64_t grace_ms;
    uint64_t tell_timeout_ms; /* how long what has no answer may wait for room in the socket */
    struct dialog_late late[DIALOG_LATE_MAX];
    size_t late_count;

    struct kvf_arena *arenas; /* the daemon's, by its numbers */
    size_t arena_count;
    uint64_t max_get_bytes;
    uint64_t max_put_bytes;
    uint64_t boot_epoch;
    uint64_t instance;
    struct kvf_stats stats;

    int fds[KVF_WIRE_MAX_FDS]; /* came with the last message; -1: taken */
    size_t fd_count;
    uint8_t in[KVF_WIRE_MAX_BYTES];
    uint8_t out[KVF_WIRE_MAX_BYTES];
    void *unpacked; /* the last message's memory */
    struct kvf_scratch scratch;
    /* The parts of a request while it is packed. */
    Kvferry__EngineName names[DIALOG_BLOCKS];
    Kvferry__EngineName *name_pointers[DIALOG_BLOCKS];
    Kvferry__EngineCommit commits[DIALOG_BLOCKS];
    Kvferry__EngineCommit *commit_pointers[DIALOG_BLOCKS];
    ProtobufCBinaryData keys[DIALOG_BLOCKS];
    uint64_t handles[DIALOG_BLOCKS];
    uint32_t indexes[DIALOG_BLOCKS];
};

/* Takes fd. */
KVF_MUST_USE struct kvf_status dialog_create(int fd, struct kvf_client **give);
/* Closes the socket and unmaps; NULL is fine. */
void dialog_destroy(struct kvf_client *client);

/* The point in time `timeout_ms` from now. */
uint64_t dialog_deadline(uint64_t timeout_ms);
/* Microseconds until the deadline, at least 1: what travels. */
uint64_t dialog_left_us(uint64_t deadline_ns);

/* Number the request, send it, wait for its answer until the deadline and the grace. OK: *reply is
 * an answer whose code is OK and whose body is the one that belongs to the request; borrowed from
 * the client until its next call. Otherwise the daemon's code, DEADLINE, UNAVAILABLE or PROTOCOL;
 * *reply is NULL or (for its text) the answer that refused. */
KVF_MUST_USE struct kvf_status dialog_ask(struct kvf_client *client,
                                          Kvferry__EngineRequest *request, uint64_t deadline_ns,
                                          const Kvferry__EngineReply **reply);
/* Wait for a further packet of the answer to the last request. */
KVF_MUST_USE struct kvf_status dialog_more(struct kvf_client *client, uint64_t deadline_ns,
                                           const Kvferry__EngineReply **reply);
/* The parts of dialog_ask, for those who have several requests on the way. Send without waiting (it is numbered then): BUSY: the socket is
 * full, nothing was sent. */
KVF_MUST_USE struct kvf_status dialog_send(struct kvf_client *client,
                                           Kvferry__EngineRequest *request);
/* One more request may be sent while so many are awaited. */
static inline bool dialog_has_room(const struct kvf_client *client, size_t awaited)
{
    return awaited + client->late_count < DIALOG_LATE_MAX;
}
/* Take one message without waiting. OK: *reply is an answer to a request that `is_awaited` knows, not judged yet, and borrowed until the next
 * call; or NULL: it was something else, and is dealt with. BUSY: nothing is there. Otherwise the session has ended. */
typedef bool dialog_is_awaited(void *context, uint64_t id);
KVF_MUST_USE struct kvf_status dialog_receive(struct kvf_client *client,
                                              dialog_is_awaited *is_awaited, void *context,
                                              const Kvferry__EngineReply **reply);
/* OK: the answer's code is OK and its body is the one that belongs to a request of this kind. Otherwise what it pins goes back. */
KVF_MUST_USE struct kvf_status dialog_judge(struct kvf_client *client,
                                            Kvferry__EngineRequest__MessageCase kind,
                                            const Kvferry__EngineReply *reply);
/* Nobody waits for this answer any more: it is cancelled, and what it brings goes back when it comes. With DIALOG_LATE_MAX of them the session
 * ends: who has several requests on the way keeps these and the late ones together below that (dialog_has_room). */
void dialog_give_up(struct kvf_client *client, uint64_t id,
                    Kvferry__EngineRequest__MessageCase kind);

/* Take what is there without waiting, within reason. */
void dialog_drain_socket(struct kvf_client *client);

/* The daemon said something illegal: end the session. Returns PROTOCOL. */
struct kvf_status dialog_protocol_error(struct kvf_client *client);
/* OK, or why no new request may be sent: UNAVAILABLE, DRAINING. */
KVF_MUST_USE struct kvf_status dialog_check(const struct kvf_client *client);

/* The address of a block's place, which the daemon named; NULL when it is not within an arena. */
void *dialog_place(const struct kvf_client *client, uint32_t arena, uint64_t offset,
                   uint64_t length);

/* Release what a Get pinned: the `count` blocks of client->indexes, or all when count is 0. If this
 * or the next cannot be sent the session ends, for the daemon must not keep pinned what we have
 * given back. */
void dialog_release(struct kvf_client *client, uint64_t get, size_t count);
/* The same for blocks whose bytes are not those of their checksum. */
void dialog_release_bad(struct kvf_client *client, uint64_t get, size_t count);
/* Abort the `count` puts of client->handles. */
void dialog_abort(struct kvf_client *client, size_t count);

bool dialog_key_is_valid(const struct kvf_key *key);
/* Put a block's name at client->names[index]; borrows the key until the request is sent. */
void dialog_name(struct kvf_client *client, size_t index, struct kvf_key *key, uint64_t length);

#endif
