#include "base/crc32c.h"

#include <isa-l/crc.h>

uint32_t kvf_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    const size_t step = 1u << 30; /* ISA-L takes an int */
    unsigned char *at = (unsigned char *)(uintptr_t)data;
    uint32_t state = ~crc;
    while (bytes > 0) {
        size_t now = bytes < step ? bytes : step;
        state = crc32_iscsi(at, (int)now, state);
        at += now;
        bytes -= now;
    }
    return ~state;
}
