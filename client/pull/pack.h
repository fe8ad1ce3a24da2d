/* pack: which blocks go into one Read together. Pure arithmetic. */
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
