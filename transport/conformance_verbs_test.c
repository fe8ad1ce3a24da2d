#include "transport/conformance.h"

int main(int argc, char **argv)
{
    return conformance_run("verbs", argc, argv);
}
