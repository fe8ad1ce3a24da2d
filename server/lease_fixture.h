/* Leases over a node of node_fixture.h, and what each tells. One node, one lane, one party at a time. Test only. */
#ifndef KVFERRY_SERVER_LEASE_FIXTURE_H
#define KVFERRY_SERVER_LEASE_FIXTURE_H

#include "server/node_fixture.h"

extern struct node node;
/* A session's part of a lease: a lane that nobody has joined. */
extern struct kvf_lane *lane; /* NULL: closed */
extern struct kvf_lease_lane shared;
extern struct kvf_party party;

struct lease_read {
    struct kvf_lease *lease; /* NULL once freed */
    unsigned granted, refused, faults, committed, overdue, freed;
    struct kvf_refusal refusal;
    enum kvf_code codes[NODE_MAX_ITEMS];
    bool release_when_granted;
};

void lease_start(bool ssd);
void lease_start_with(const struct node_options *options);
void lease_close_lane(void);
/* The lane, then the node; every lease must have gone by then. */
void lease_stop(void);

/* A Read of `count` blocks by their numbers, not started yet. */
void lease_prepare(struct lease_read *read, const unsigned *blocks, uint32_t count,
                   uint64_t timeout_ms);
/* The same, started. */
void lease_ask(struct lease_read *read, const unsigned *blocks, uint32_t count,
               uint64_t timeout_ms);
/* The same of a speculative session. */
void lease_guess(struct lease_read *read, const unsigned *blocks, uint32_t count);
uint64_t lease_served_bytes(void);

#endif
