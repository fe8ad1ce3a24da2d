/* How much memory this process may still take. */
#ifndef KVFERRY_BASE_MEMORY_H
#define KVFERRY_BASE_MEMORY_H

#include <stdint.h>

/* What the kernel says is available, or what the limits of the process's control groups leave where that is less.
 * UINT64_MAX when neither can be read. A moment's view: others take memory too.
 *
 * The groups are those of /proc/self/cgroup and all above them that can be seen (v2 memory.max, v1
 * memory.limit_in_bytes); the page cache that is charged to a group counts as free, for the kernel takes it back. */
uint64_t kvf_memory_available_bytes(void);

/* The same with `root` in front of /proc and /sys, for tests. */
uint64_t kvf_memory_available_bytes_at(const char *root);

#endif
