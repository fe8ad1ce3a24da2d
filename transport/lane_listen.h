/* A TCP port for lanes: connections that have not said a nonce yet, and the lanes that wait for one.
 *
 * A connection that says the nonce of an invitation in a greeting of the listener's kind is handed to the lane that was
 * invited with it, once. All others are strangers: at most LANE_HALF_OPEN of them, a second each, no memory of their own;
 * when one more comes the oldest goes.
 *
 * All on the thread of the listener's loop, but for inviting and revoking, which any thread may do. */
#ifndef KVFERRY_TRANSPORT_LANE_LISTEN_H
#define KVFERRY_TRANSPORT_LANE_LISTEN_H

#include "transport/lane_wire.h"

#include <pthread.h>

#define LANE_HALF_OPEN 64

struct lane_listener;

/* A lane that waits for its connection; embedded in it. */
struct lane_invite {
    const struct kvf_nonce *nonce;
    struct kvf_loop *loop; /* where `claimed` runs */
    struct kvf_post claimed_post;
    int fd; /* from the claim on: the connection, the lane's to close */

    /* under the listener's lock */
    struct kvf_list node;
    bool is_claimed; /* claimed_post is on its way or has run */
};

/* A connection that has not said a valid nonce yet. */
struct lane_half_open {
    struct lane_listener *listener;
    struct kvf_watch watch;
    struct kvf_timer timer;
    struct kvf_list node; /* in idle, or in waiting with the oldest first */
    uint8_t greeting[LANE_GREETING_BYTES];
    size_t got;
};

struct lane_listener {
    struct kvf_loop *loop;
    const struct lane_greeting *greeting;
    _Atomic uint64_t *refused; /* counts strangers */
    int port;                  /* -1: does not listen */
    struct kvf_watch watch;
    struct kvf_timer retry; /* after accept ran out of descriptors */
    struct kvf_post start;
    struct kvf_list idle, waiting;
    struct lane_half_open slots[LANE_HALF_OPEN];
    pthread_mutex_t lock; /* any thread: protects invites and what they say is under it */
    struct kvf_list invites;
};

/* Borrows all three. */
void lane_listener_init(struct lane_listener *listener, struct kvf_loop *loop,
                        const struct lane_greeting *greeting, _Atomic uint64_t *refused);
/* Any thread, once: listen on HOST:PORT. */
KVF_MUST_USE struct kvf_status lane_listener_open(struct lane_listener *listener,
                                                  const char *address, struct kvf_why *why);
/* When the loop's thread has been joined. Also one that was never opened. */
void lane_listener_close(struct lane_listener *listener);

void lane_invite_init(struct lane_invite *invite, const struct kvf_nonce *nonce,
                      struct kvf_loop *loop, void (*claimed)(struct kvf_post *post));
void lane_invite_add(struct lane_listener *listener, struct lane_invite *invite);
/* True: nobody has claimed it and nobody can any more. */
bool lane_invite_revoke(struct lane_listener *listener, struct lane_invite *invite);

#endif
