#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>

/* The number in a file that holds only that; UINT64_MAX when there is none ("max" means no limit). */
static uint64_t number_in(const char *path)
{
    uint64_t number;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &number) != 1)
        number = UINT64_MAX;
    (void)fclose(file);
    return number;
}

static uint64_t left_of(const char *limit_path, const char *used_path)
{
    uint64_t limit = number_in(limit_path), used = number_in(used_path);
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    return limit > used ? limit - used : 0;
}

static uint64_t available_of_host(void)
{
    char line[128];
    uint64_t kib = UINT64_MAX / 1024;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return UINT64_MAX;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    (void)fclose(file);
    return kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

uint64_t kvf_memory_available_bytes(void)
{
    uint64_t least = available_of_host();
    uint64_t v2 = left_of("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    uint64_t v1 = left_of("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                          "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    least = v2 < least ? v2 : least;
    return v1 < least ? v1 : least;
}
