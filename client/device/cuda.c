/* The driver, loaded at run time. */
#include "client/device/cuda.h"

#include <dlfcn.h>
#include <string.h>

struct kvf_status cuda_status(unsigned result)
{
    return result == CUDA_SUCCESS_ ? kvf_ok() : kvf_fail(KVF_MODULE_CLIENT, KVF_IO, (int)result);
}

const char *cuda_error(const struct cuda_driver *driver, unsigned result)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS_ || driver->error_name(result, &name) != CUDA_SUCCESS_ ||
        name == NULL)
        return "";
    return name;
}

static struct kvf_status unsupported(struct kvf_why *why, const char *format, const char *text)
{
    struct kvf_status status = kvf_fail(KVF_MODULE_CLIENT, KVF_UNSUPPORTED, 0);
    return kvf_why_set(why, status, "%s: %s", format, text != NULL ? text : "no reason is told");
}

/* ISO C has no cast from an object's address to a function's. */
static bool find(void *handle, const char *symbol, void *function, size_t size)
{
    void *address = dlsym(handle, symbol);
    memcpy(function, &address, size);
    return address != NULL;
}

static const char *find_all(struct cuda_driver *driver)
{
#define CUDA_FIND(member, symbol, name, parameters)                                                \
    if (!find(driver->handle, symbol, &driver->member, sizeof(driver->member)))                    \
        return symbol;
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    return NULL;
}

/* NODELETE: the real driver has threads that outlive a dlclose. */
struct kvf_status cuda_load(const char *driver_path, struct cuda_driver *driver,
                            struct kvf_why *why)
{
    if (driver_path == NULL)
        driver_path = "libcuda.so.1";
    *driver =
        (struct cuda_driver){.handle = dlopen(driver_path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    if (driver->handle == NULL)
        return unsupported(why, "no CUDA driver", dlerror());
    const char *missing = find_all(driver);
    if (missing != NULL) {
        cuda_unload(driver);
        return unsupported(why, "the CUDA driver is too old, it lacks", missing);
    }
    unsigned result = driver->init(0);
    struct kvf_status status = cuda_status(result);
    if (!kvf_is_ok(status)) {
        (void)kvf_why_set(why, status, "the CUDA driver does not start: %s (%u)",
                          cuda_error(driver, result), result);
        cuda_unload(driver);
    }
    return status;
}

void cuda_unload(struct cuda_driver *driver)
{
    if (driver->handle != NULL)
        (void)dlclose(driver->handle);
    driver->handle = NULL;
}
