/* libFuzzer over replay's trace file. What is kept must hang together. */
#include "client/cli/trace.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    static char path[64];
    struct trace trace;
    struct kvf_why why = {.text = ""};
    if (file < 0) {
        file = memfd_create("trace", MFD_CLOEXEC);
        kvf_assert(file >= 0);
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    }
    kvf_assert(ftruncate(file, 0) == 0 && pwrite(file, data, bytes, 0) == (ssize_t)bytes);
    uint64_t most = bytes % 3 == 0 ? 2 : UINT64_MAX;
    if (!kvf_is_ok(trace_load(path, most, &trace, &why))) {
        kvf_assert(why.text[0] != '\0');
        return 0;
    }
    kvf_assert(trace.request_count >= 1 && trace.request_count <= most && trace.first[0] == 0);
    for (size_t i = 0; i < trace.request_count; i++)
        kvf_assert(trace.first[i] <= trace.first[i + 1]);
    kvf_assert(trace.first[trace.request_count] == trace.reference_count);
    for (size_t i = 0; i < trace.reference_count; i++)
        kvf_assert(trace.references[i] < trace.distinct_count);
    trace_free(&trace);
    return 0;
}
