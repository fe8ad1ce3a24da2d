/* Over RDMA's reliable connections: where there is a device. */
#include "transport/conformance.h"

int main(int argc, char **argv)
{
    return conformance_run("ucx", argc, argv);
}
