/* Loads: how the bytes of an entry come into its extent. One load per entry, shared by all who wait
 * for it.
 *
 *   from SSD       a read set of storage. Whoever only passes the bytes on (a Read) has them as they
 *                  land; whoever believes them (a Get) after the worker thread checked their CRC32C
 *   from a source  a pull; the CRC is checked on the way
 *   check          the bytes are resident but were never checked here
 *
 * A waiter hears `ended` once, with the result, and `gone` once, when the load no longer touches
 * anything of the entry: right after `ended`, or later, when a broken session has to let go first.
 * Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_LOAD_H
#define KVFERRY_SERVER_LOAD_H

#include "base/list.h"
#include "base/worker.h"
#include "client/pull/pull.h"
#include "server/awaited.h"
#include "server/index.h"
#include "server/stats.h"
#include "storage/storage.h"

struct kvf_loads;

struct kvf_load_waiter {
    bool verified;    /* wants checked bytes */
    bool speculative; /* nobody needs it yet; see kvf_load_raise */
    /* The front that is in memory; only for waiters that do not want checked bytes. May be NULL. */
    void (*landed)(struct kvf_load_waiter *waiter, uint64_t landed_bytes);
    void (*ended)(struct kvf_load_waiter *waiter, struct kvf_status status);
    void (*gone)(struct kvf_load_waiter *waiter);

    struct kvf_list node;
    struct kvf_load *load; /* NULL once gone */
    bool told;             /* `ended` has run, or the waiter does not want to hear it */
};

struct kvf_loads_options {
    struct kvf_index *index;
    struct kvf_store *store; /* NULL: no SSD tier */
    struct kvf_worker *worker;
    struct kvf_counters *counters;
    struct kvf_awaited *awaited; /* what was pulled is known now; NULL: nobody waits */
};

KVF_MUST_USE struct kvf_status kvf_loads_create(const struct kvf_loads_options *options,
                                                struct kvf_loads **give);
/* No load may be in flight. */
void kvf_loads_destroy(struct kvf_loads *loads);

/* Wait for the load that the entry has. A speculative read from SSD is raised by a waiter that is not. */
void kvf_load_join(struct kvf_loads *loads, struct kvf_entry *entry,
                   struct kvf_load_waiter *waiter);
/* Somebody needs it now: the waiter is no longer speculative, nor is its read from SSD. */
void kvf_load_raise(struct kvf_load_waiter *waiter);
/* Do not hear `ended` any more; `gone` still comes, perhaps inside the call. A pull that nobody listens to is
 * cancelled; a read from SSD goes on, for it is soon over and its bytes are good. */
void kvf_load_leave(struct kvf_load_waiter *waiter);
/* Bytes of a load's front that are in memory now; for whoever joins late. */
uint64_t kvf_load_landed_bytes(const struct kvf_entry *entry);

/* Read these entries from SSD in one set, in this order; a speculative one goes out behind all others. Each is READY, on SSD, not resident, has
 * its extent and no load. The array is the caller's again on return; waiters join afterwards
 * (nothing ends inside the call). False: out of memory, nothing was started. */
bool kvf_load_from_ssd(struct kvf_loads *loads, struct kvf_entry *const *entries, size_t count,
                       bool speculative);

struct kvf_load_pull {
    struct kvf_source *source;
    uint64_t instance;
    uint64_t deadline_ns;
    uint64_t batch_bytes;
    unsigned batches_in_flight;
    bool stop_at_first_miss;
};

/* Pull these entries from a source, in this order. Each is PULLING, has its extent and no load. As
 * above. */
bool kvf_load_from_source(struct kvf_loads *loads, const struct kvf_load_pull *pull,
                          struct kvf_entry *const *entries, size_t count);
/* Where a pulled entry was found at its source; NONE before it is there. */
enum kvf_tier kvf_load_source_tier(const struct kvf_entry *entry);

/* Check the resident bytes of an entry that has no load. */
bool kvf_load_check(struct kvf_loads *loads, struct kvf_entry *entry);
/* Somebody else says that the bytes of this block are bad. Looked at later, one block at a time, behind all other
 * checks; until then nothing is pinned or charged for it. */
void kvf_load_doubt(struct kvf_loads *loads, const struct kvf_entry *entry);

/* Loads that have not ended, for the drain. */
uint64_t kvf_loads_open(const struct kvf_loads *loads);

#endif
