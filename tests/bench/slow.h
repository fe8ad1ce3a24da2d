/* slow: io_uring, but one read in so many comes back late, as from a drive that collects garbage. Only that one: what
 * else lies in its ring comes back as always. Threads: `slow` may be changed while no read is under way. */
#ifndef KVFERRY_TESTS_BENCH_SLOW_H
#define KVFERRY_TESTS_BENCH_SLOW_H

#include "storage/engine.h"

struct slow {
    unsigned one_in; /* 0: none */
    unsigned late_ms;
};

extern struct slow slow;
extern const struct kvf_engine slow_engine;

#endif
