/* Writes into a process as UCX over TCP lets anybody who reaches its port: a UCT PUT, which needs no key.
 *
 *   ucx_probe PORT
 *
 * Puts into itself first, by a UCX port of its own: where that fails (exit 1) the rest would prove nothing. Then into
 * whoever has PORT on 127.0.0.1, and says "written" (who it was has acknowledged it) or "not written".
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uct/api/uct.h>
#include <unistd.h>

#define WAIT_S 1

static ucs_async_context_t *async;
static uct_worker_h worker;
static uct_md_h md;
static char from[] = "from outside", to[sizeof(from)];
static ucs_status_t
    outcome; /* of the PUT under way: UCS_INPROGRESS until it is acknowledged or has failed */

static void must(ucs_status_t status, const char *what)
{
    if (status == UCS_OK)
        return;
    fprintf(stderr, "ucx_probe: %s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static ucs_status_t failed(void *argument, uct_ep_h ep, ucs_status_t status)
{
    (void)argument, (void)ep;
    outcome = status;
    return UCS_OK;
}

static void acknowledged(uct_completion_t *flush)
{
    outcome = flush->status;
}

static void open_md(void)
{
    uct_component_h *components;
    unsigned count;
    must(uct_query_components(&components, &count), "uct_query_components");
    for (unsigned i = 0; i < count && md == NULL; i++) {
        uct_component_attr_t about = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
        uct_md_config_t *config;
        must(uct_component_query(components[i], &about), "uct_component_query");
        if (strcmp(about.name, "tcp") != 0)
            continue;
        must(uct_md_config_read(components[i], NULL, NULL, &config), "uct_md_config_read");
        must(uct_md_open(components[i], "tcp", config, &md), "uct_md_open");
        uct_config_release(config);
    }
    uct_release_component_list(components);
}

static uct_iface_h open_iface(void)
{
    uct_iface_params_t params = {
        .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
                      UCT_IFACE_PARAM_FIELD_ERR_HANDLER | UCT_IFACE_PARAM_FIELD_ERR_HANDLER_FLAGS,
        .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
        .mode.device = {.tl_name = "tcp", .dev_name = "lo"},
        .err_handler = failed,
    };
    uct_iface_config_t *config;
    uct_iface_h iface;
    must(uct_md_iface_config_read(md, "tcp", NULL, NULL, &config), "uct_md_iface_config_read");
    must(uct_iface_open(md, worker, &params, config, &iface), "uct_iface_open");
    uct_config_release(config);
    uct_iface_progress_enable(iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    return iface;
}

/* Writes `from` where `to` is in the process behind the address; OK when that one has acknowledged it. */
static ucs_status_t put(uct_iface_h iface, const void *device, const void *address)
{
    uct_ep_params_t params = {
        .field_mask =
            UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR,
        .iface = iface,
        .dev_addr = device,
        .iface_addr = address,
    };
    uct_iov_t piece = {.buffer = from, .length = sizeof(from), .count = 1};
    uct_completion_t flush = {.func = acknowledged, .count = 1, .status = UCS_OK};
    time_t end = time(NULL) + WAIT_S;
    uct_ep_h ep;
    ucs_status_t status = uct_ep_create(&params, &ep);
    if (status != UCS_OK)
        return status;
    outcome = UCS_INPROGRESS;
    do {
        uct_worker_progress(worker);
        status = uct_ep_put_zcopy(ep, &piece, 1, (uintptr_t)to, UCT_INVALID_RKEY, NULL);
    } while (status == UCS_ERR_NO_RESOURCE && outcome == UCS_INPROGRESS && time(NULL) < end);
    if (status >= 0 && uct_ep_flush(ep, 0, &flush) != UCS_INPROGRESS)
        outcome = UCS_OK;
    while (outcome == UCS_INPROGRESS && time(NULL) < end)
        uct_worker_progress(worker);
    uct_ep_destroy(ep);
    return outcome;
}

/* UCX dies of what is no UCX: of HTTP/2's first bytes, for one. */
static void died(int number)
{
    (void)number;
    (void)!write(STDOUT_FILENO, "not written\n", sizeof("not written\n") - 1);
    _exit(0);
}

int main(int argc, char **argv)
{
    char device[64];
    uint16_t port; /* what an interface of UCX's tcp has for its address */
    uct_iface_attr_t about;
    if (argc != 2)
        return 2;
    must(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async),
         "ucs_async_context_create");
    must(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "uct_worker_create");
    open_md();
    uct_iface_h asking = open_iface(), asked = open_iface();
    must(uct_iface_query(asked, &about), "uct_iface_query");
    if (about.iface_addr_len != sizeof(port) || about.device_addr_len > sizeof(device))
        must(UCS_ERR_UNSUPPORTED, "this UCX has other addresses");
    must(uct_iface_get_device_address(asked, (uct_device_addr_t *)device),
         "uct_iface_get_device_address");
    must(uct_iface_get_address(asked, (uct_iface_addr_t *)&port), "uct_iface_get_address");
    must(put(asking, device, &port), "a PUT to a UCX port of its own");
    if (strcmp(to, from) != 0)
        must(UCS_ERR_NO_MESSAGE, "a PUT to a UCX port of its own");
    signal(SIGABRT, died);
    port = htons((uint16_t)atoi(argv[1]));
    puts(put(asking, device, &port) == UCS_OK ? "written" : "not written");
    return 0;
}
