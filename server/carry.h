/* Carrying over: when a drive wants a segment back, the blocks in it that were asked for since they
 * were written (or carried) are written again before it is freed; the others are evicted.
 *
 * At most a quarter of the segment's bytes are kept, so that a store full of hot blocks still takes
 * what is put: of every four bytes that are written at least three are new.
 *
 * Where tenants have shares of the SSD, what is safe for them (server/tenants.h) is carried as well,
 * hot or not: who writes much turns segments over that others have blocks in. Then the segment is
 * given back that costs the fewest such bytes, the oldest of equals; the writer's own old segments
 * are mostly those, for what it has lost to newer blocks costs nothing. No more is kept in all than
 * finds room (kvf_store_carry_bytes), and what tenants are promised fits into that.
 *
 * The bytes go from drive
 * to drive through storage's own buffers; they take nothing of the pool and wait for nothing. A
 * block stays where it is found until its new record is durable, with its generation and checksum;
 * one that finds no room is evicted. Segments are carried one after another, in batches.
 *
 * Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_CARRY_H
#define KVFERRY_SERVER_CARRY_H

#include "server/index.h"
#include "storage/storage.h"

struct kvf_carries;

/* Borrows loop, index and store. */
KVF_MUST_USE struct kvf_status kvf_carries_create(struct kvf_loop *loop, struct kvf_index *index,
                                                  struct kvf_store *store,
                                                  struct kvf_carries **give);
/* None may be open. NULL is fine. */
void kvf_carries_destroy(struct kvf_carries *carries);

/* The store wants this segment (kvf_store_options.reclaim). */
void kvf_carries_reclaim(struct kvf_carries *carries, uint32_t drive, uint32_t segment,
                         uint64_t sequence);
/* Blocks that are being carried now, and segments that are gone through. NULL: none. */
uint64_t kvf_carries_open(const struct kvf_carries *carries);

#endif
