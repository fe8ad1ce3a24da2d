/* For tests: which engines a suite is to run over on this host, and kernels that lack something.
 *
 * tests/hosts/as tells by KVF_TEST_HOST what it took away; what is not taken away must be there, so that no suite skips
 * an engine by accident. KVF_TEST_LACKS names what the kernel is to lack: the calls of liburing that ask for it are
 * wrapped in test programs (-Wl,--wrap) and say what an older kernel says. */
#ifndef KVFERRY_STORAGE_HOST_H
#define KVFERRY_STORAGE_HOST_H

#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

/* What statx says that direct I/O needs of every file. */
enum { HOST_DIO_AS_IT_IS = -1, HOST_DIO_UNKNOWN = -2 };
extern int64_t host_dio_alignment; /* one of these, 0 (there is none), or bytes */

/* io_uring must work, and does (asserted), or must be denied, and is. */
bool host_runs_uring(void);
/* False where only io_uring is different: the suite has run over pread elsewhere. */
bool host_runs_pread(void);
/* What a suite over io_uring asks for: AUTO where there may be too little lockable memory for its rings. */
enum kvf_store_io host_uring(void);
/* False: too little lockable memory for fixed buffers. */
bool host_fixes_buffers(void);

#endif
