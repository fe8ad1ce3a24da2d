#include "transport/ucx_library.h"

#include "base/thread.h"
#include "transport/lane_core.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libucp.so.0"

struct ucx_calls ucx;

/* ---- loading ---- */

/* What UCX may know of the environment while it starts: no handlers, no hooks for GPUs' memory, no monitoring, silence. It
 * wants to hear of memory that is unmapped, for its cache of registrations: but not by rewriting libc's code under the
 * feet of other threads. (What is registered here, arenas, outlives it anyway.) */
static char *environment[] = {(char[]){"UCX_HANDLE_ERRORS=none"},
                              (char[]){"UCX_ERROR_SIGNALS="},
                              (char[]){"UCX_DEBUG_SIGNO="},
                              (char[]){"UCX_MEMTYPE_CACHE=n"},
                              (char[]){"UCX_MEM_MMAP_HOOK_MODE=reloc"},
                              (char[]){"UCX_MEM_MALLOC_HOOKS=n"},
                              (char[]){"UCX_MEM_MALLOC_RELOC=n"},
                              (char[]){"UCX_MEM_CUDA_HOOK_MODE=none"},
                              (char[]){"UCX_VFS_ENABLE=n"},
                              (char[]){"UCX_LOG_LEVEL=fatal"},
                              NULL, /* which GID, where UCX chooses badly; the operator's */
                              NULL};

#define GID_INDEX "UCX_IB_GID_INDEX="
#define GID_INDEX_SLOT 10

struct shelter {
    char **environ;
    sigset_t signals;
};

/* Another thread that asks the environment meanwhile finds less in it, and no harm. */
static void enter(struct shelter *shelter)
{
    kvf_thread_deafen(&shelter->signals); /* UCX has a thread of its own */
    shelter->environ = environ;
    environment[GID_INDEX_SLOT] = NULL;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, GID_INDEX, strlen(GID_INDEX)) == 0)
            environment[GID_INDEX_SLOT] = *entry;
    environ = environment;
}

static void leave(const struct shelter *shelter)
{
    environ = shelter->environ;
    kvf_thread_hear_again(&shelter->signals);
}

static bool find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof(found));
    return found != NULL;
}

static bool find_all(void *library)
{
    return find(library, "ucs_status_string", &ucx.ucs_status_string)
#define UCX_FIND(name) &&find(library, #name, &ucx.name)
        UCX_CALLS(UCX_FIND)
#undef UCX_FIND
            ;
}

struct kvf_status ucx_library_open(struct kvf_why *why)
{
    static void *library;
    struct shelter shelter;
    if (library != NULL)
        return kvf_ok();
    enter(&shelter);
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    leave(&shelter);
    if (library == NULL)
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, 0),
                           "UCX cannot be loaded (%.200s): install libucx0, or use tcp", dlerror());
    if (!find_all(library)) {
        library = NULL; /* it stays in memory: what has run its threads is not unloaded */
        return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, 0),
                           "this " LIBRARY " lacks what UCX 1.13 has: use tcp");
    }
    return kvf_ok();
}

/* ---- a context ---- */

struct setting {
    const char *name, *value;
};

static const struct setting settings[] = {
    {"KEEPALIVE_INTERVAL",
     "inf"}, /* a lane's link says who is gone; a timer would wake us for ever */
    /* Nobody writes to the other one: the consumer reads what was announced to it, or, over TCP, is sent messages. */
    {"RNDV_SCHEME", "get_zcopy"},
    {"MAX_EAGER_RAILS", "1"},
    {"MAX_RNDV_RAILS", "1"}, /* a lane is one connection */
    /* A lane has a worker of its own and a handful of messages under way: no buffers for thousands. */
    {"RC_RX_QUEUE_LEN", "128"},
    {"RC_TX_BUFS_GROW", "64"},
    {"UD_RX_QUEUE_LEN", "128"},
    {"UD_TX_BUFS_GROW", "64"},
};

static bool set(ucp_config_t *config, const char *name, const char *value)
{
    ucs_status_t status = ucx.ucp_config_modify(config, name, value);
    return status == UCS_OK || status == UCS_ERR_NO_ELEM;
}

/* "mlx5_0" is all its ports, as far as UCX takes names: its first. */
static bool list_devices(const struct kvf_transport_options *options, char *text, size_t room)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < options->nic_count; i++) {
        const char *nic = options->nics[i];
        int wrote = snprintf(text + used, room - used, "%s%s%s", i > 0 ? "," : "", nic,
                             strchr(nic, ':') != NULL ? "" : ":1");
        if (wrote < 0 || (size_t)wrote >= room - used)
            return false;
        used += (size_t)wrote;
    }
    return true;
}

static bool configure(ucp_config_t *config, const struct kvf_transport_options *options)
{
    char devices[1024] = "lo";
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        if (!set(config, settings[i].name, settings[i].value))
            return false;
    if (!options->ucx_over_tcp && !list_devices(options, devices, sizeof(devices)))
        return false;
    /* UCX 1.13 ends a copy-less send over TCP twice when the other end goes away, and dies of it. */
    if (options->ucx_over_tcp && !set(config, "ZCOPY_THRESH", "inf"))
        return false;
    if (!set(config, "TLS", options->ucx_over_tcp ? "tcp" : "rc"))
        return false;
    return set(config, "NET_DEVICES", devices[0] != '\0' ? devices : "all");
}

static struct kvf_status create(const struct kvf_transport_options *options, ucp_context_h *give)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, /* never UCP_FEATURE_RMA */
        .mt_workers_shared = 1, /* each worker is one thread's, but they are several */
    };
    ucp_config_t *config;
    ucs_status_t status = ucx.ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return lane_fail(KVF_UNSUPPORTED, status);
    status = UCS_ERR_INVALID_PARAM;
    if (configure(config, options))
        status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, give);
    ucx.ucp_config_release(config);
    return status == UCS_OK ? kvf_ok() : lane_fail(KVF_UNSUPPORTED, status);
}

struct kvf_status ucx_context_create(const struct kvf_transport_options *options,
                                     ucp_context_h *give, struct kvf_why *why)
{
    struct shelter shelter;
    KVF_TRY(ucx_library_open(why));
    enter(&shelter);
    struct kvf_status status = create(options, give);
    leave(&shelter);
    if (kvf_is_ok(status))
        return status;
    return kvf_why_set(why, status, "UCX cannot use %s here (%s): use verbs or tcp",
                       options->ucx_over_tcp     ? "TCP"
                       : options->nic_count == 0 ? "any RDMA device"
                                                 : "the RDMA devices of --nics",
                       ucx.ucs_status_string((ucs_status_t)status.detail));
}
