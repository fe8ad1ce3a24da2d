/* pack: which blocks go into one Read together: in order, while the sum of lengths, of whole pages,
 * and the count stay within bounds. Pure arithmetic. Equal blocks give ceil(blocks / max(1,
 * floor(batch / block))) Reads: of 9 MiB blocks 72 MiB take 3 at 32 MiB, 1 at 128. */
#ifndef KVFERRY_CLIENT_PULL_PACK_H
#define KVFERRY_CLIENT_PULL_PACK_H

#include <stdbool.h>
#include <stdint.h>

/* A Read while it is being filled. The caller sets the bounds and zeroes the rest. */
struct pull_pack {
    uint64_t batch_bytes; /* sum of lengths; 0: no such bound */
    uint64_t max_bytes;   /* sum of whole pages, as the source counts it */
    uint32_t max_blocks;

    uint64_t bytes;
    uint64_t page_bytes;
    uint32_t blocks;
};

/* Add a block of this length; false when the Read is full. The first one always fits. */
bool pull_pack_add(struct pull_pack *pack, uint64_t length);

#endif
