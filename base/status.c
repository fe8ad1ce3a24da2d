#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const code_names[KVF_CODE_COUNT] = {
    [KVF_OK] = "OK",
    [KVF_INVALID] = "INVALID",
    [KVF_TOO_LARGE] = "TOO_LARGE",
    [KVF_NOT_FOUND] = "NOT_FOUND",
    [KVF_EXISTS] = "EXISTS",
    [KVF_PENDING] = "PENDING",
    [KVF_STALE] = "STALE",
    [KVF_BUSY] = "BUSY",
    [KVF_DRAINING] = "DRAINING",
    [KVF_DENIED] = "DENIED",
    [KVF_DEADLINE] = "DEADLINE",
    [KVF_CANCELLED] = "CANCELLED",
    [KVF_UNAVAILABLE] = "UNAVAILABLE",
    [KVF_PROTOCOL] = "PROTOCOL",
    [KVF_CORRUPT] = "CORRUPT",
    [KVF_IO] = "IO",
    [KVF_NO_SPACE] = "NO_SPACE",
    [KVF_NO_MEMORY] = "NO_MEMORY",
    [KVF_UNSUPPORTED] = "UNSUPPORTED",
};

static const char *const module_names[KVF_MODULE_COUNT] = {
    [KVF_MODULE_BASE] = "base",       [KVF_MODULE_PROTO] = "proto",
    [KVF_MODULE_STORAGE] = "storage", [KVF_MODULE_TRANSPORT] = "transport",
    [KVF_MODULE_CLIENT] = "client",   [KVF_MODULE_SERVER] = "server",
};

const char *kvf_code_name(unsigned code)
{
    return code < KVF_CODE_COUNT ? code_names[code] : "UNKNOWN";
}

const char *kvf_module_name(unsigned module)
{
    return module < KVF_MODULE_COUNT ? module_names[module] : "unknown";
}

struct kvf_status kvf_why_set(struct kvf_why *why, struct kvf_status status, const char *format,
                              ...)
{
    if (why != NULL) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(why->text, sizeof(why->text), format, arguments);
        va_end(arguments);
    }
    return status;
}

void kvf_assert_failed(const char *condition, const char *file, int line)
{
    (void)fprintf(stderr, "kvferry: assertion failed: %s (%s:%d)\n", condition, file, line);
    abort();
}
