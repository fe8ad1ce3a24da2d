/* For tests: which engines a suite is to run over on this host, and kernels that lack something.
 *
 * tests/hosts/as tells by KVF_TEST_HOST what it took away; what is not taken away must be there, so that no suite skips
 * an engine by accident. KVF_TEST_LACKS names what the kernel is to lack: the calls of liburing that ask for it are
 * wrapped in test programs (-Wl,--wrap) and say what an older kernel says. */
#ifndef KVFERRY_STORAGE_HOST_H
#define KVFERRY_STORAGE_HOST_H

#include "base/test.h"
#include "storage/engine.h"

#include <stdbool.h>
#include <stdint.h>

/* What statx says that direct I/O needs of every file. */
enum { HOST_DIO_AS_IT_IS = -1, HOST_DIO_UNKNOWN = -2 };
extern int64_t host_dio_alignment; /* one of these, 0 (there is none), or bytes */

/* io_uring must work, and does (asserted), or must be denied, and is. */
bool host_runs_uring(void);
/* False where only io_uring is different: the suite has run over pread elsewhere. */
bool host_runs_pread(void);
/* False: too little lockable memory for fixed buffers. */
bool host_fixes_buffers(void);

/* Set-up of a group of tests: *state points to a pointer to the engine that they run on. */
int host_use_uring(void **state);
int host_use_twin(void **state);
const struct kvf_engine *host_engine(void *const *state);

/* An array of tests, on each engine that this host is to have. The number of those that failed. */
#define HOST_RUN_TESTS(name, tests)                                                                \
    ((host_runs_pread()                                                                            \
          ? cmocka_run_group_tests_name(name " over pread", tests, host_use_twin, NULL)            \
          : 0) +                                                                                   \
     (host_runs_uring()                                                                            \
          ? cmocka_run_group_tests_name(name " over io_uring", tests, host_use_uring, NULL)        \
          : 0))

#endif
