/* The part of a Get that asks its sources (the hint, then the peers) how long blocks are. Private to
 * get.c and get_sources.c. */
#ifndef KVFERRY_SERVER_GET_SOURCES_H
#define KVFERRY_SERVER_GET_SOURCES_H

#include "server/get.h"

/* ---- get_sources.c ---- */

/* The k-th source's address; NULL: no more. */
const char *get_source_address(const struct get *get, uint32_t k);
/* Start what is to be asked next, if anything. True: it is on its way (and counted in `waits`) or
 * there is nothing to ask. False: a source could not be asked; its items are NEW again, plan them. */
KVF_MUST_USE bool get_ask_sources(struct get *get);
/* What a source has called PENDING is not waited for any longer. */
void get_hurry_sources(struct get *get);

/* ---- get.c ---- */

void get_item_set_state(struct get_item *item, enum get_item_state to);
/* What was waited for has come: go on. The Get may be gone after it. */
void get_step(struct get *get);

#endif
