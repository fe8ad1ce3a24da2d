#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static size_t cut(int written, size_t room)
{
    if (written < 0)
        return 0;
    return (size_t)written < room ? (size_t)written : room - 1;
}

void kvf_log(enum kvf_log_level level, const char *who, const char *format, ...)
{
    static const char *const names[] = {"info", "warning", "error"};

    char line[1024];
    const size_t room = sizeof(line) - 1; /* one byte stays for the newline */
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, room, "%Y-%m-%dT%H:%M:%S", &utc);
    used += cut(snprintf(line + used, room - used, ".%03ldZ %s %s: ", now.tv_nsec / 1000000,
                         names[level], who),
                room - used);
    size_t text = used;
    va_list arguments;
    va_start(arguments, format);
    used += cut(vsnprintf(line + used, room - used, format, arguments), room - used);
    va_end(arguments);
    for (; text < used; text++)
        if ((unsigned char)line[text] < 0x20 || line[text] == 0x7f)
            line[text] = '?';
    if (level != KVF_LOG_INFO)
        kvf_log_keep(line, used);
    line[used++] = '\n';
    (void)!write(STDERR_FILENO, line, used);
}
