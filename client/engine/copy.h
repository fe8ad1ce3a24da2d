/* Copies blocks between the caller's memory and an arena, and computes CRC32C on the way. No state; any thread.
 *
 * Bytes go past the cache, for nobody here reads them again: a drive, a NIC or a GPU does. Each piece is copied, and then its source,
 * in the first cache still, is read once more for the checksum. In this order: when somebody writes into the source meanwhile, the
 * checksum is of bytes as new as those that were copied, or newer, and does not fit (unless the change was undone between the two).
 * The destination is not read. */
#ifndef KVFERRY_CLIENT_ENGINE_COPY_H
#define KVFERRY_CLIENT_ENGINE_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Copy `bytes` bytes, any number and alignment, between ranges that do not overlap; returns the CRC32C of the source. Other processes
 * and devices may be told of the bytes at once. */
uint32_t copy_with_crc32c(void *to, const void *from, size_t bytes);

#endif
