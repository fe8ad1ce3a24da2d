/* How much memory this process may still take. */
#ifndef KVFERRY_BASE_MEMORY_H
#define KVFERRY_BASE_MEMORY_H

#include <stdint.h>

/* What the kernel says is available, or what the container's limit leaves where that is less (cgroup v2 memory.max, v1
 * memory.limit_in_bytes). UINT64_MAX when neither can be read. A moment's view: others take memory too. */
uint64_t kvf_memory_available_bytes(void);

#endif
