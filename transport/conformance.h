/* What every transport must do, as a test program: one suite, run by conformance_NAME_test.c for
 * each NAME. Test only. */
#ifndef KVFERRY_TRANSPORT_CONFORMANCE_H
#define KVFERRY_TRANSPORT_CONFORMANCE_H

/* Runs the suite on the transport of this name, or the cases whose names match the argument ("*close*"); on a host that
 * lacks it, says so and runs nothing. A program that calls it from main with its own arguments also
 * serves as the other process that some tests start, stop and kill. Returns what main returns. */
int conformance_run(const char *transport, int argc, char **argv);

#endif
