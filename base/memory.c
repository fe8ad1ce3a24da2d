/* Parts: files of numbers; one control group; all groups of the process; the host. */
#include "base/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* How a version of control groups calls its things. */
struct version {
    const char *mount;
    const char *limit, *used;      /* files */
    const char *active, *inactive; /* lines of memory.stat: page cache, of groups below as well */
};

static const struct version v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_active_file",
                                  "total_inactive_file"};
static const struct version v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "active_file",
                                  "inactive_file"};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- files of numbers ---- */

/* The number in a file that holds only that; UINT64_MAX when there is none ("max" means no limit). */
static uint64_t number_in(const char *directory, const char *name)
{
    char path[PATH_MAX + 64];
    uint64_t number;
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &number) != 1)
        number = UINT64_MAX;
    (void)fclose(file);
    return number;
}

/* ---- one control group ---- */

/* 0 where nothing says. */
static uint64_t page_cache_of(const char *group, const struct version *version)
{
    char path[PATH_MAX + 64], line[128], name[64];
    uint64_t number, sum = 0;
    (void)snprintf(path, sizeof(path), "%s/memory.stat", group);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "%63s %" SCNu64, name, &number) == 2 &&
            (strcmp(name, version->active) == 0 || strcmp(name, version->inactive) == 0))
            sum += number;
    (void)fclose(file);
    return sum;
}

static uint64_t left_of(const char *group, const struct version *version)
{
    uint64_t limit = number_in(group, version->limit), used = number_in(group, version->used);
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    used -= least(used, page_cache_of(group, version));
    return limit > used ? limit - used : 0;
}

/* ---- all groups of the process ---- */

/* The least that a group or one above it leaves, up to the mount. A container that does not see its group by its path
 * sees it as the mount itself. */
static uint64_t left_up_from(const char *root, const struct version *version, const char *path)
{
    char group[PATH_MAX];
    const size_t mount = strlen(root) + strlen(version->mount);
    int length = snprintf(group, sizeof(group), "%s%s%s", root, version->mount,
                          strstr(path, "/..") == NULL ? path : "");
    if (length < 0 || (size_t)length >= sizeof(group))
        return UINT64_MAX;
    uint64_t left = left_of(group, version);
    for (char *slash; strlen(group) > mount && (slash = strrchr(group, '/')) != NULL;) {
        *slash = '\0';
        left = least(left, left_of(group, version));
    }
    return left;
}

/* One of the names between commas. */
static bool names_memory(const char *controllers)
{
    const size_t length = strlen("memory");
    for (const char *at = controllers; (at = strstr(at, "memory")) != NULL; at += length)
        if ((at == controllers || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

/* Lines are ID:CONTROLLERS:PATH; that of v2 names none. */
static uint64_t left_by_groups(const char *root)
{
    char line[PATH_MAX];
    uint64_t left = UINT64_MAX;
    (void)snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (file == NULL)
        return UINT64_MAX;
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *path++ = '\0';
        controllers++;
        if (controllers[0] == '\0')
            left = least(left, left_up_from(root, &v2, path));
        else if (names_memory(controllers))
            left = least(left, left_up_from(root, &v1, path));
    }
    (void)fclose(file);
    return left;
}

/* ---- the host ---- */

static uint64_t available_of_host(const char *root)
{
    char line[PATH_MAX];
    uint64_t kib = UINT64_MAX / 1024;
    (void)snprintf(line, sizeof(line), "%s/proc/meminfo", root);
    FILE *file = fopen(line, "re");
    if (file == NULL)
        return UINT64_MAX;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    (void)fclose(file);
    return kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

uint64_t kvf_memory_available_bytes_at(const char *root)
{
    return least(available_of_host(root), left_by_groups(root));
}

uint64_t kvf_memory_available_bytes(void)
{
    return kvf_memory_available_bytes_at("");
}
