/* A stretch of memory that is mapped here, as arenas are handed to those who register them with a device. */
#ifndef KVFERRY_CLIENT_RANGE_H
#define KVFERRY_CLIENT_RANGE_H

#include <stdint.h>

struct kvf_range {
    void *base; /* page-aligned */
    uint64_t bytes;
};

#endif
