/* read: one Read, from its message to its Release. Each block of it is a slot:
 *
 *   ASKED        no grant yet; its bytes may have come already
 *   GRANTED      the source has it; waiting for the lane
 *   PENDING      somebody is putting it at the source; waiting for Committed
 *   RETURNING    goes back to the pull as soon as the lane has let go
 *   DOOMED       will not come; the result is told when the lane has let go
 *   QUARANTINED  the result is told, the lane has not let go yet
 *   SETTLED      nothing more to do
 *
 * A Read is over when all slots are settled; then it is released at the source, unless that has
 * refused it: not before its results are told, for nobody waits for the Release. */
#ifndef KVFERRY_CLIENT_PULL_READ_H
#define KVFERRY_CLIENT_PULL_READ_H

#include "client/pull/session.h"

enum slot_state {
    SLOT_ASKED = 0,
    SLOT_GRANTED,
    SLOT_PENDING,
    SLOT_RETURNING,
    SLOT_DOOMED,
    SLOT_QUARANTINED,
    SLOT_SETTLED,
};

struct pull_slot {
    struct kvf_status verdict; /* of DOOMED */
    uint32_t block;            /* index in the pull */
    uint8_t state;             /* enum slot_state */
    bool lane_ended;
    bool bad; /* bytes did not match the granted CRC */
};

struct pull_read {
    struct kvf_lane_read lane; /* id and blocks */
    struct session *session;
    struct kvf_pull *pull; /* NULL: it is over */
    struct kvf_list node;  /* in the session's reads or finished_reads, or in source->free_reads */
    struct kvf_timer force;
    uint32_t capacity;
    uint32_t count;
    uint32_t lane_open; /* slots that the lane still has */
    uint32_t unsettled;
    uint32_t pending; /* slots in PENDING */
    uint32_t bad_count;
    bool granted;  /* Grants came */
    bool refused;  /* or Refused */
    bool holds;    /* the source pins memory for it */
    bool given_up; /* Cancel was sent, or its time is up */
    bool parked;
    struct pull_slot *slots;
};

/* Ask the source for the pull's next blocks. */
void read_ask(struct session *session, struct kvf_pull *pull);

/* Messages of the source about an open Read. False: it said something illegal. */
KVF_MUST_USE bool read_granted(struct pull_read *read, const Kvferry__Grants *grants);
KVF_MUST_USE bool read_refused(struct pull_read *read, const Kvferry__Refused *refused);
KVF_MUST_USE bool read_tokens(struct pull_read *read, const Kvferry__Tokens *tokens);
KVF_MUST_USE bool read_fault(struct pull_read *read, const Kvferry__Fault *fault);
KVF_MUST_USE bool read_committed(struct pull_read *read, const Kvferry__Committed *committed);

/* Its pull does not want it any more: its blocks end with `why` when the lane has let go. May free
 * the Read. */
void read_give_up(struct pull_read *read, struct kvf_status why);
/* The deadline: what the lane still has is quarantined. May free the Read. */
void read_expire(struct pull_read *read);
/* The source drains: nothing that is pending now will come. May free the Read. */
void read_drain(struct pull_read *read);
void read_raise(struct pull_read *read);

/* The session is gone: what was not finished goes back to the pull, or ends if that has seen
 * enough. Frees the Read. */
void read_sweep(struct pull_read *read);

/* Send the Releases that are due. Of a session that is not open: forget them. */
void reads_release(struct session *session);
/* Whatever called about finished Reads has returned: their memory may be used again. */
void reads_rested(struct kvf_source *source);
/* Free that memory. */
void reads_free(struct kvf_source *source);

#endif
