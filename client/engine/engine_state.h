/* What the parts of kvf_engine share. Private to them.
 *
 *   engine.c          the calls of kvferry.h, on the callers' threads
 *   engine_thread.c   our thread: what callers left for it, connections that come and go, when to sleep
 *   engine_ops.c      operations, step by step
 *
 * An operation goes page by page: at most DIALOG_BLOCKS items, and where they have memory at most half of what the daemon lets us hold.
 *
 *   READY     the next page is to be asked for; without one: the end
 *   ASKED     its answer is awaited
 *   COPYING   blocks are copied (a commit: sealed), one a turn, so that others have theirs
 *   SEALED    a put's page is to be committed
 *   COMMITTING  that answer is awaited */
#ifndef KVFERRY_CLIENT_ENGINE_ENGINE_STATE_H
#define KVFERRY_CLIENT_ENGINE_ENGINE_STATE_H

#include "base/list.h"
#include "client/engine/requests.h"

#include <pthread.h>

/* After its deadline an operation waits so long for the daemon to say so itself. */
#define ENGINE_GRACE_NS (100 * KVF_NS_PER_MS)

enum op_stage {
    OP_READY = 0,
    OP_ASKED,
    OP_COPYING,
    OP_SEALED,
    OP_COMMITTING,
};

/* kvf_item.held */
#define ITEM_PIN 1u     /* a Get's block: handle is the Get, index its place there */
#define ITEM_PLACE 2u   /* a put's place: handle is the put */
#define ITEM_SETTLED 4u /* its code is final */

/* kvf_op.own. Whose: the lock's while the operation is in the inbox or has ended, our thread's meanwhile; `cancelled` always the lock's. */
struct op_own {
    struct kvf_list node; /* of inbox, active, ended; none: of nobody */
    uint64_t deadline_ns;
    uint64_t request; /* whose answer is awaited */
    uint32_t next;    /* first item of the page */
    uint32_t page;    /* its length */
    uint32_t at;      /* within the page: the next one to copy */
    uint8_t stage;
    bool cancelled;
    bool quiet; /* kvf_engine_run waits for it */
    bool ended;
};

_Static_assert(sizeof(struct op_own) <= sizeof(((struct kvf_op *)NULL)->own), "own is too small");

static inline struct op_own *op_own(struct kvf_op *op)
{
    return (struct op_own *)(void *)op->own;
}

static inline struct kvf_op *op_of(struct kvf_list *node)
{
    return kvf_container(kvf_container(node, struct op_own, node), struct kvf_op, own);
}

/* One registration with one daemon. It is current from then on until it ends, or has drained; what is held keeps it. */
struct session {
    struct kvf_list node; /* of retired */
    struct kvf_client *client;
    uint64_t number; /* kvf_item.session */
    uint64_t held;   /* items */
    struct kvf_range *ranges;
    size_t range_count;
};

/* What a caller gave back. */
struct release {
    uint64_t session, handle;
    uint32_t index, held;
};

struct kvf_engine {
    /* Never changes. */
    char *path, *name;
    struct kvf_geometry *geometry;     /* NULL: none */
    struct kvf_engine_options options; /* the callbacks of it */
    int wake_fd, event_fd;
    pthread_t thread;

    pthread_mutex_t lock;   /* what follows; never held across I/O or a copy */
    pthread_cond_t changed; /* state, and the end of quiet operations */
    enum kvf_engine_state state;
    bool closing, cancels;
    struct kvf_list inbox, ended;
    struct release *
        releases; /* room for every item that may be held in place, so that giving back needs none */
    size_t release_count, release_room, reserved;
    struct kvf_stats stats;
    uint64_t max_get_bytes, max_put_bytes, boot_epoch, instance;
    struct kvf_why why; /* of the last attempt to register */

    /* Our thread's. */
    struct kvf_list active, retired;
    struct session *current; /* NULL: DOWN */
    uint64_t sessions;       /* made so far */
    uint64_t retry_ns, pause_ns;
    struct kvf_stats counted;            /* of running operations: not in stats yet */
    struct release taken[DIALOG_BLOCKS]; /* releases that are being told to the daemon */
    size_t awaited;                      /* operations whose answer is to come */
    bool socket_full;
    struct kvf_put puts[DIALOG_BLOCKS]; /* a page while it is asked for or answered */
    struct kvf_get_block blocks[DIALOG_BLOCKS];
    size_t positions[DIALOG_BLOCKS];
};

/* ---- engine.c ---- */

/* The operation has ended; with the lock. Items that are not settled get the status' code. */
void engine_end_locked(struct kvf_engine *engine, struct kvf_op *op, struct kvf_status status);

/* ---- engine_thread.c ---- */

void *engine_run(void *engine);
/* NULL: it is over, and nothing of it is held. */
struct session *engine_session(struct kvf_engine *engine, uint64_t number);
void engine_hold(struct kvf_engine *engine, struct session *session, int64_t change);

/* ---- engine_ops.c; on our thread ---- */

/* Do one thing. True: there is more to do at once. The operation may have ended. */
bool op_step(struct kvf_engine *engine, struct kvf_op *op);
/* Its answer came. */
void op_take(struct kvf_engine *engine, struct kvf_op *op, const Kvferry__EngineReply *reply);
/* End it before its time: what it asks for is cancelled, and what it copies from or to goes back. */
void op_stop(struct kvf_engine *engine, struct kvf_op *op, struct kvf_status status);
static inline bool op_is_in_place(const struct kvf_op *op)
{
    return (op->kind == KVF_OP_GET || op->kind == KVF_OP_PUT || op->kind == KVF_OP_COMMIT) &&
           op->count > 0 && op->items[0].memory == NULL;
}
/* An item's code is final, and counted. */
void op_settle(struct kvf_stats *stats, const struct kvf_op *op, struct kvf_item *item,
               enum kvf_code code);

#endif
