/* base/log.h for fuzz targets: the line is made, so that a sanitizer sees what goes into it, and thrown away. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void kvf_log(enum kvf_log_level level, const char *who, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    (void)level, (void)who;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
}
