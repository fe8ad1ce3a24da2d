/* For tests of what happens when memory is out: every malloc, calloc, realloc and aligned_alloc of the program that links this is
 * counted, and fails where a test says so. */
#ifndef KVFERRY_BASE_FAULTY_MEMORY_H
#define KVFERRY_BASE_FAULTY_MEMORY_H

#include <stdbool.h>

/* The nth allocation from now on fails, once; 0: none does. */
void faulty_memory_fail_at(unsigned nth);
/* All fail until it is taken back. */
void faulty_memory_fail_all(bool fail);
/* One has failed since fail_at was called. */
bool faulty_memory_failed(void);

#endif
