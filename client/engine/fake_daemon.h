/* The daemon's end of the line, for tests: says what a real daemon never would, or at another time.
 * No thread: answers are put on the line before the call that waits for them. */
#ifndef KVFERRY_CLIENT_ENGINE_FAKE_DAEMON_H
#define KVFERRY_CLIENT_ENGINE_FAKE_DAEMON_H

#include "client/engine/dialog.h"

#define FAKE_BLOCKS 1024u

struct fake_daemon {
    int fd;       /* -1: none */
    int listener; /* of fake_listen; -1: none */
    struct kvf_client *client;
    struct kvf_arena *arenas;
    size_t arena_count;
    Kvferry__EngineRequest *request; /* the last one taken */
    enum kvf_code code;              /* of the next answers as a whole */
    /* What the next answer says; fake_begun, fake_committed and fake_ready send the first `count`
     * of them. */
    Kvferry__EnginePlace places[FAKE_BLOCKS];
    Kvferry__EngineCommitted committed[FAKE_BLOCKS];
    Kvferry__EngineBlock blocks[FAKE_BLOCKS];
};

/* Arenas, a connected pair of sockets, and a client that is not registered yet. */
void fake_open(struct fake_daemon *fake, size_t arena_count, uint64_t arena_bytes);
/* A daemon at a path, for clients that connect by themselves: arenas, and no client. */
void fake_listen(struct fake_daemon *fake, const char *path, size_t arena_count,
                 uint64_t arena_bytes);
/* Take the next connection and answer its Register (waits 10 s at most, as fake_await does). */
void fake_accept(struct fake_daemon *fake);
/* The connection ends, as when the daemon dies; the listener stays. */
void fake_hang_up(struct fake_daemon *fake);
/* The next request, which must come and be of this kind. */
const Kvferry__EngineRequest *fake_await(struct fake_daemon *fake,
                                         Kvferry__EngineRequest__MessageCase kind);
/* fake_open, and registered (request 1). */
void fake_open_registered(struct fake_daemon *fake, size_t arena_count, uint64_t arena_bytes);
/* Also closes the client, if it is still there. */
void fake_close(struct fake_daemon *fake);

/* Put one answer on the line. */
void fake_say(struct fake_daemon *fake, Kvferry__EngineReply *reply, const int *fds,
              size_t fd_count);
void fake_say_bytes(struct fake_daemon *fake, const void *bytes, size_t length);
void fake_refuse(struct fake_daemon *fake, uint64_t id, enum kvf_code code, const char *message);
void fake_drain_notice(struct fake_daemon *fake);
/* Registered with the arenas first to first + count - 1. */
void fake_registered(struct fake_daemon *fake, size_t first, size_t count, bool more);
void fake_begun(struct fake_daemon *fake, uint64_t id, size_t count);
void fake_committed(struct fake_daemon *fake, uint64_t id, size_t count);
void fake_ready(struct fake_daemon *fake, uint64_t id, size_t count);

/* Make every place, block and generation legal and OK: page i of arena 0, blocks of `length` bytes.
 */
void fake_fill(struct fake_daemon *fake, uint64_t length);

/* Take the next request: NULL when there is none. Valid until the next one. */
const Kvferry__EngineRequest *fake_take(struct fake_daemon *fake);
/* The next request, which must be of this kind. */
const Kvferry__EngineRequest *fake_expect(struct fake_daemon *fake,
                                          Kvferry__EngineRequest__MessageCase kind);

#endif
