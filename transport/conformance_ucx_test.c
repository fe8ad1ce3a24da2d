/* Over TCP, which needs no device and is only for tests. */
#include "transport/conformance.h"

#include "transport/testbed.h"

int main(int argc, char **argv)
{
    testbed.ucx_over_tcp = true;
    return conformance_run("ucx", argc, argv);
}
