/* wire: messages to and from a source, in memory that is used again for every message. What comes
 * in is unpacked into a fixed piece of memory, so that a hostile message costs at most that. Owner:
 * the thread of the source. */
#ifndef KVFERRY_CLIENT_PULL_WIRE_H
#define KVFERRY_CLIENT_PULL_WIRE_H

#include "base/block.h"
#include "base/status.h"
#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "proto/rpc/rpc.h"
#include "proto/scratch.h"

#include <stddef.h>
#include <stdint.h>

/* Most blocks of one Read or look-up, whatever the source would take. */
#define WIRE_MAX_BLOCKS 4096u
/* An upper bound of what one block adds to a Read. */
#define WIRE_READ_BLOCK_BYTES 128u
/* ... and all else that is in it. */
#define WIRE_READ_HEAD_BYTES 512u

struct wire {
    uint8_t *out;
    size_t out_capacity;
    /* The blocks of one outgoing Read, and indexes of one Release. */
    Kvferry__ReadBlock *blocks;
    Kvferry__Generation *generations;
    Kvferry__ReadBlock **pointers;
    uint32_t *indexes;
    uint32_t block_capacity;
    /* Where an incoming message is unpacked. */
    void *in;
    struct kvf_scratch scratch;
};

/* It must not be moved afterwards. */
KVF_MUST_USE struct kvf_status wire_init(struct wire *wire);
void wire_fini(struct wire *wire);

/* Make room for this many outgoing blocks. False: no memory. */
KVF_MUST_USE bool wire_reserve(struct wire *wire, uint32_t blocks);
/* Set outgoing block i. Borrows the key until it is packed. */
void wire_set_block(struct wire *wire, uint32_t i, const struct kvf_key *key, uint64_t length,
                    struct kvf_generation pin);

/* The message's bytes, good until the next one is packed. data is NULL when there is no memory. */
struct kvf_bytes wire_pack(struct wire *wire, const ProtobufCMessage *message);

/* Good until the next one is unpacked; not to be freed. NULL: illegal, or too much. */
Kvferry__SessionDown *wire_unpack_down(struct wire *wire, struct kvf_bytes bytes);
Kvferry__LookupReply *wire_unpack_lookup(struct wire *wire, struct kvf_bytes bytes);

/* What a source may say about a block, as our codes: OK only for OK, DENIED looks like missing,
 * numbers that we do not know (from a later version) are UNAVAILABLE. */
struct kvf_status wire_status(uint32_t code);
struct kvf_generation wire_generation(const Kvferry__Generation *generation);
enum kvf_tier wire_tier(uint32_t tier);

#endif
