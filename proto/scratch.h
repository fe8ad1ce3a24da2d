/* scratch: memory for one unpacked message at a time.
 *
 * Foreign bytes decide how much protobuf-c asks for: a megabyte of empty elements unpacks to sixty times its size. Here
 * everything comes out of one buffer of the caller's, from the front to the back. What does not fit is refused like a
 * message that cannot be read, and nothing is freed piece by piece: the next message begins at the front again.
 *
 * Owner: one thread, the caller's. Unpacked messages are good until the next reset; whatever shall live longer is copied
 * out, so nobody may unpack a second message while the first is in use. */
#ifndef KVFERRY_PROTO_SCRATCH_H
#define KVFERRY_PROTO_SCRATCH_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_scratch {
    uint8_t *memory;
    size_t bytes;
    size_t used;
    ProtobufCAllocator allocator; /* points at this struct: it must not be copied or moved */
};

/* Borrows `memory` for as long as the scratch is used. */
void kvf_scratch_init(struct kvf_scratch *scratch, void *memory, size_t bytes);

/* Forget the message before, and unpack the next one with this:
 *
 *     up = kvferry__session_up__unpack(kvf_scratch_reset(&scratch), length, data);
 *
 * NULL: illegal, or too much. Never to be given to a ..._free_unpacked. */
ProtobufCAllocator *kvf_scratch_reset(struct kvf_scratch *scratch);

#endif
