#include "base/numa.h"

#include "base/test.h"

#include <stdlib.h>

static void prefer__node_0_which_every_host_has__memory_comes_from_there(void **state)
{
    (void)state;
    if (!kvf_numa_prefer(0))
        skip(); /* a container may forbid it */
    char *memory = malloc(4096);
    assert_non_null(memory);
    memory[0] = 1;
    assert_int_equal(kvf_numa_node_of(memory), 0);
    free(memory);
    assert_true(kvf_numa_prefer(KVF_NUMA_ANY));
}

static void prefer__node_that_is_not_there__false(void **state)
{
    (void)state;
    assert_false(kvf_numa_prefer(KVF_NUMA_NODES_MAX - 1));
}

static void node_of__no_memory_there__any(void **state)
{
    (void)state;
    assert_int_equal(kvf_numa_node_of(NULL), KVF_NUMA_ANY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefer__node_0_which_every_host_has__memory_comes_from_there),
        cmocka_unit_test(prefer__node_that_is_not_there__false),
        cmocka_unit_test(node_of__no_memory_there__any),
    };
    return cmocka_run_group_tests_name("numa", tests, NULL, NULL);
}
