/* Admission: who may hold how many bytes of the pool, and who waits in which order.
 *
 * A request asks for all its bytes at once and gets all or none: its class's budget, its
 * instance's, for queries the query budget, and then the memory itself, which its `admit` takes in
 * the same step. While it cannot have them it waits in its class's queue, first in, first out;
 * nothing is held while it waits, and nothing waits for memory afterwards. Classes wait apart: a
 * Read never stands behind a Get or a put. A request that its own instance's limit holds back lets
 * other instances pass, but not its own.
 *
 * A charge counts whole pages and belongs to whoever holds the bytes until kvf_admission_return.
 * Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_ADMISSION_H
#define KVFERRY_SERVER_ADMISSION_H

#include "base/budget.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/status.h"

enum kvf_class {
    KVF_CLASS_DIRTY = 0, /* puts that are not on SSD yet */
    KVF_CLASS_PULL,      /* what Gets hold: destinations of pulls, loads, hits */
    KVF_CLASS_SERVE,     /* what Reads of peers hold */
    KVF_CLASS_COUNT
};

struct kvf_admission {
    struct kvf_loop *loop;
    struct kvf_budget classes[KVF_CLASS_COUNT];
    struct kvf_budget query;           /* Gets and Reads together */
    uint64_t per_instance_limit_bytes; /* of one engine's Gets */
    uint64_t per_identity_limit_bytes; /* of one peer's Reads */
    uint64_t peak_instance_bytes;      /* the largest that one instance ever held */
    uint64_t waited;                   /* queries that were not admitted at once */
    struct kvf_list queues[KVF_CLASS_COUNT];
    struct kvf_post retry;
    bool retry_posted;
    unsigned admitting; /* admits that run, one inside another */
    bool retry_wanted;  /* by them: memory or budget became free meanwhile */
};

enum kvf_request_state {
    KVF_REQUEST_IDLE = 0, /* not submitted, or withdrawn */
    KVF_REQUEST_QUEUED,   /* waits; only withdraw and its turn are legal */
    KVF_REQUEST_ADMITTED, /* its charges are the owner's */
};

/* Embedded by the query or put that asks. The owner sets the first part. */
struct kvf_request {
    enum kvf_class class;
    uint64_t bytes;              /* whole pages */
    struct kvf_budget *instance; /* NULL: none. Its limit is the owner's */
    /* The charges are taken: now take the memory, all of it, and start. False: there is not enough
     * contiguous memory now; nothing was taken and nobody was called, the request goes on waiting.
     * May run inside kvf_admission_submit. */
    bool (*admit)(struct kvf_request *request);

    enum kvf_request_state state;
    uint64_t since_ns;
    struct kvf_list node;
};

/* The owner has set loop and limits. */
void kvf_admission_init(struct kvf_admission *admission);

/* True when it could be admitted if nobody else held anything. */
bool kvf_admission_can_ever_fit(const struct kvf_admission *admission,
                                const struct kvf_request *request);
/* Ask. When nobody waits before it and it fits, admit runs at once. */
void kvf_admission_submit(struct kvf_admission *admission, struct kvf_request *request);
/* Charge without asking: for bytes that are in memory already. May exceed the limits. */
void kvf_admission_take(struct kvf_admission *admission, struct kvf_request *request);
/* Stop waiting. Fine in every state. */
void kvf_admission_withdraw(struct kvf_admission *admission, struct kvf_request *request);
/* Give back a part, or all, of what an admitted request was charged. */
void kvf_admission_return(struct kvf_admission *admission, const struct kvf_request *request,
                          uint64_t bytes);
/* Memory may be free: let the queues try again, soon, from the loop. */
void kvf_admission_retry(struct kvf_admission *admission);

#endif
