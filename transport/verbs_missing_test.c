/* Stands in for the tests of verbs where libibverbs and librdmacm were not there at build time. */
#include "transport/testbed.h"

int main(void)
{
    assert_false(testbed_can_open("verbs"));
    return 0;
}
