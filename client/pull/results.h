/* results: how a pull's blocks change state, and how the caller hears of it.
 *
 * A change never calls back at once: it queues the block, and results_deliver, the last thing that
 * every event handler does, tells. So a callback may start, cancel and close whatever it likes. */
#ifndef KVFERRY_CLIENT_PULL_RESULTS_H
#define KVFERRY_CLIENT_PULL_RESULTS_H

#include "client/pull/pull.h"

/* Set all of pull's own fields. The pull is in no list yet. */
void results_init(struct kvf_pull *pull, struct kvf_source *source);

/* WAITING -> ASKED */
void results_asked(struct kvf_pull *pull, uint32_t block);
/* ASKED -> WAITING: to be asked for once more. Where nobody wants it any more it ends instead. */
void results_wait(struct kvf_pull *pull, uint32_t block);
/* ASKED -> WAITING, but not before results_resume. */
void results_postpone(struct kvf_pull *pull, uint32_t block);
/* Postponed blocks may be asked for now. */
void results_resume(struct kvf_pull *pull);
/* WAITING or ASKED -> ENDED; the lane does not touch the extent. */
void results_end(struct kvf_pull *pull, uint32_t block, struct kvf_status status);
/* ASKED -> QUARANTINED; the lane may still touch the extent. */
void results_quarantine(struct kvf_pull *pull, uint32_t block, struct kvf_status status);
/* QUARANTINED -> ENDED: the lane has let go. */
void results_free(struct kvf_pull *pull, uint32_t block);

/* This block will not come. With stop_at_first_miss those after it are not asked for any more. */
void results_miss(struct kvf_pull *pull, uint32_t block);
bool results_is_behind_miss(const struct kvf_pull *pull, uint32_t block);
/* End every WAITING block. */
void results_end_waiting(struct kvf_pull *pull, struct kvf_status status);

/* Tell all that is queued. Ended pulls leave the source's lists. */
void results_deliver(struct kvf_source *source);

#endif
