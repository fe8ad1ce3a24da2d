/* NUMA: from which node memory is taken. Plain system calls; a kernel or container that forbids them leaves all as it is. */
#ifndef KVFERRY_BASE_NUMA_H
#define KVFERRY_BASE_NUMA_H

#include "base/status.h"

#define KVF_NUMA_NODES_MAX 64
#define KVF_NUMA_ANY (-1)

/* From now on what this thread takes comes from this node while that has some; KVF_NUMA_ANY: as the kernel likes. False, and
 * nothing has changed: there is no such node, or we are not to choose. */
bool kvf_numa_prefer(int node);
/* Where the page at this address lies, which must be there; KVF_NUMA_ANY: not known. */
int kvf_numa_node_of(void *address);

#endif
