/* What every cmocka test includes: cmocka and the headers that it forgets to include itself. */
#ifndef KVFERRY_BASE_TEST_H
#define KVFERRY_BASE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
