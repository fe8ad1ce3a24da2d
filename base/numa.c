#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

bool kvf_numa_prefer(int node)
{
    unsigned long nodes = 0;
    kvf_assert(node < KVF_NUMA_NODES_MAX);
    if (node >= 0)
        nodes = 1UL << node;
    /* The kernel reads one bit less than it is told. */
    long result = node >= 0 ? syscall(SYS_set_mempolicy, MPOL_PREFERRED, &nodes,
                                      (unsigned long)KVF_NUMA_NODES_MAX + 1)
                            : syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL);
    return result == 0;
}

int kvf_numa_node_of(void *address)
{
    int node = KVF_NUMA_ANY;
    long result = syscall(SYS_get_mempolicy, &node, NULL, 0UL, address,
                          (unsigned long)(MPOL_F_NODE | MPOL_F_ADDR));
    return result == 0 ? node : KVF_NUMA_ANY;
}
