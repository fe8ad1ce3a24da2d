/* Admission: who may hold how many bytes of the pool, and who waits in which order.
 *
 * A request asks for all its bytes at once and gets all or none: its class's budget, those of its
 * party (an instance, and the identity above it), for queries the query budget, for what nobody
 * waits for yet the speculative one, and then the memory itself, which its `admit` takes in the
 * same step. While it cannot have them it waits in its class's queue; nothing is held while it
 * waits, and nothing waits for memory afterwards. Classes wait apart: a Read never stands behind a
 * Get or a put.
 *
 * Whose turn it is: demand before speculative; among those the identity that had the fewest bytes,
 * in it the instance that had the fewest, of it the request that came first. (Fewest since it began
 * to wait: whoever joins does not bring a claim along, see struct kvf_turns.) What a party's own
 * budget holds back lets others pass, but not those of that party; likewise what its tenant's share
 * of DRAM holds back, for blocks that nobody may evict now. Beside the one whose turn it is and who
 * waits for the class nobody passes: what becomes free is collected for it.
 *
 * A charge counts whole pages and belongs to whoever holds the bytes until kvf_admission_return.
 * Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_ADMISSION_H
#define KVFERRY_SERVER_ADMISSION_H

#include "base/budget.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/status.h"
#include "proto/peer.h"
#include "server/tenants.h"

enum kvf_class {
    KVF_CLASS_DIRTY = 0, /* puts that are not on SSD yet */
    KVF_CLASS_PULL,      /* what Gets hold: destinations of pulls, loads, hits */
    KVF_CLASS_SERVE,     /* what Reads of peers hold */
    KVF_CLASS_COUNT
};

/* The order among parties that wait side by side. Each has a mark, the bytes it was given; the
 * smallest is next. The clock follows the marks of those whose turn it was, and runs on with what
 * they get, so that nobody waits for ever behind newcomers; a mark is never behind it when a party
 * begins to wait: having been idle is no claim. */
struct kvf_turns {
    uint64_t clock_bytes;
    uint64_t waiting; /* parties */
};

/* Somebody who asks, and what it may hold. The owner sets parent and the budget's limit, all else 0,
 * and keeps it as long as one of its requests waits or holds bytes. A party asks in one class. */
struct kvf_party {
    struct kvf_party *parent; /* the identity of this instance; NULL: nobody is above it */
    struct kvf_budget budget;

    /* admission's own */
    struct kvf_turns turns; /* of those whose parent it is */
    uint64_t waiting;       /* requests of it, and of those below it */
    uint64_t mark_bytes;
    uint64_t passed_in; /* the round in which it is passed over */
};

struct kvf_admission {
    struct kvf_loop *loop;
    struct kvf_budget classes[KVF_CLASS_COUNT];
    struct kvf_budget query;                   /* Gets and Reads together */
    struct kvf_budget speculative;             /* a quarter of what Reads may hold */
    uint64_t peak_instance_bytes;              /* the largest that one instance ever held */
    uint64_t peak_identity_bytes;              /* likewise one identity that has instances */
    uint64_t waited;                           /* queries that were not admitted at once */
    struct kvf_list queues[KVF_CLASS_COUNT];   /* in the order of arrival */
    struct kvf_turns turns[KVF_CLASS_COUNT];   /* of those without a parent */
    struct kvf_party anybody[KVF_CLASS_COUNT]; /* for requests without a party: no limit */
    uint64_t round;
    struct kvf_post retry;
    bool retry_posted;
    unsigned admitting; /* admits that run, one inside another */
    bool retry_wanted;  /* by them: memory or budget became free meanwhile */
};

enum kvf_request_state {
    KVF_REQUEST_IDLE = 0, /* not submitted, or withdrawn */
    KVF_REQUEST_QUEUED,   /* waits; only withdraw, raise and its turn are legal */
    KVF_REQUEST_ADMITTED, /* its charges are the owner's */
};

/* Embedded by the query or put that asks. The owner sets the first part. */
struct kvf_request {
    enum kvf_class class;
    uint64_t bytes;          /* whole pages */
    struct kvf_party *party; /* NULL: nobody in particular */
    /* Whose blocks they are; NULL: nobody's. Entered by the owner as long as it may wait. */
    struct kvf_tenant *tenant;
    bool speculative; /* nobody waits for it yet */
    /* The charges are taken: now take the memory, all of it, and start. False: there is not enough
     * contiguous memory now; nothing was taken and nobody was called, the request goes on waiting.
     * May run inside kvf_admission_submit. */
    bool (*admit)(struct kvf_request *request);

    enum kvf_request_state state;
    uint64_t since_ns;
    struct kvf_list node;
};

/* Why a request was not admitted. */
struct kvf_refusal {
    enum kvf_code code; /* BUSY, TOO_LARGE, or another reason that has nothing to do with memory */
    enum kvf_shortage shortage;
    uint64_t waited_ns;
    uint64_t short_bytes; /* what would have to become free first */
};

/* The owner has set loop and limits. */
void kvf_admission_init(struct kvf_admission *admission);

/* True when it could be admitted if nobody else held anything. */
bool kvf_admission_can_ever_fit(struct kvf_admission *admission, struct kvf_request *request);
/* Ask. When it is its turn and it fits, admit runs at once. */
void kvf_admission_submit(struct kvf_admission *admission, struct kvf_request *request);
/* Charge without asking: for bytes that are in memory already. May exceed the limits. */
void kvf_admission_take(struct kvf_admission *admission, struct kvf_request *request);
/* Stop waiting. Fine in every state. */
void kvf_admission_withdraw(struct kvf_admission *admission, struct kvf_request *request);
/* Somebody waits for it now: from here on it is demand. held_bytes: what it is still charged, 0 while
 * it waits. Fine in every state. */
void kvf_admission_raise(struct kvf_admission *admission, struct kvf_request *request,
                         uint64_t held_bytes);
/* What a request that waits, or can never fit, lacks now. */
struct kvf_refusal kvf_admission_explain(struct kvf_admission *admission,
                                         struct kvf_request *request, enum kvf_code code);
/* Give back a part, or all, of what an admitted request was charged. */
void kvf_admission_return(struct kvf_admission *admission, struct kvf_request *request,
                          uint64_t bytes);
/* Memory may be free: let the queues try again, soon, from the loop. */
void kvf_admission_retry(struct kvf_admission *admission);

#endif
