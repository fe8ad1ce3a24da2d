/* kvferry transports: what lanes could run on from this host, and why not. Each transport is opened, without memory for
 * blocks, and closed again. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "transport/transport.h"

#include <stdio.h>

#define MAX_NICS 64

struct row {
    const char *name;
    bool usable;
    struct kvf_why why; /* not usable: why not; else what is to be known, or empty */
    struct kvf_nic nics[MAX_NICS];
    size_t nic_count;
};

static void look(struct row *row, struct kvf_loop *loop)
{
    struct kvf_transport_options options = {.loop = loop, .lane_threads = 1};
    struct kvf_transport *transport = NULL;
    struct kvf_status status = kvf_transport_open(row->name, &options, &transport, &row->why);
    row->usable = kvf_is_ok(status);
    if (!row->usable && row->why.text[0] == '\0')
        (void)kvf_why_set(&row->why, status, "%s", kvf_code_name(status.code));
    if (row->usable) {
        const struct kvf_transport_traits *traits = kvf_transport_traits(transport);
        row->why.text[0] = '\0'; /* of a device that is left out beside one that is not */
        if (traits->single_tenant)
            (void)kvf_why_set(&row->why, status, "%s: a node with it serves one tenant",
                              traits->single_tenant_why);
    }
    kvf_transport_close(transport);
    row->nic_count = kvf_transport_nics(row->name, row->nics, MAX_NICS);
    if (row->nic_count > MAX_NICS)
        row->nic_count = MAX_NICS;
}

/* ---- for people ---- */

static void print_nic(const struct kvf_nic *nic)
{
    (void)printf("    %s port %u gid %u  %s %s%s", nic->device, nic->port, nic->gid_index,
                 nic->kind, nic->address, nic->is_active ? "" : " (down)");
    if (nic->numa_node >= 0)
        (void)printf("  NUMA node %d", nic->numa_node);
    (void)printf("\n");
}

static void print_row(const struct row *row)
{
    (void)printf("%-6s %-3s%s%s\n", row->name, row->usable ? "yes" : "no",
                 row->why.text[0] != '\0' ? "  " : "", row->why.text);
    for (size_t i = 0; i < row->nic_count; i++)
        print_nic(&row->nics[i]);
}

/* ---- for programs ---- */

static void add_nic(cJSON *nics, const struct kvf_nic *nic)
{
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "device", nic->device);
    json_add_number(object, "port", nic->port);
    json_add_number(object, "gid", nic->gid_index);
    (void)cJSON_AddStringToObject(object, "kind", nic->kind);
    (void)cJSON_AddStringToObject(object, "address", nic->address);
    (void)cJSON_AddBoolToObject(object, "active", nic->is_active);
    if (nic->numa_node >= 0)
        json_add_number(object, "numa_node", (uint64_t)nic->numa_node);
    (void)cJSON_AddItemToArray(nics, object);
}

static void add_row(cJSON *transports, const struct row *row)
{
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "name", row->name);
    (void)cJSON_AddBoolToObject(object, "usable", row->usable);
    if (row->why.text[0] != '\0')
        (void)cJSON_AddStringToObject(object, "why", row->why.text);
    cJSON *nics = cJSON_AddArrayToObject(object, "nics");
    for (size_t i = 0; i < row->nic_count; i++)
        add_nic(nics, &row->nics[i]);
    (void)cJSON_AddItemToArray(transports, object);
}

/* ---- the command ---- */

enum words_exit cli_transports(const struct cli_options *options, char **arguments, size_t count)
{
    struct kvf_loop *loop = NULL;
    struct kvf_status status = kvf_loop_create(&loop);
    if (!kvf_is_ok(status))
        return words_say("transports", status, NULL);
    cJSON *root = options->json ? cJSON_CreateObject() : NULL;
    cJSON *transports = options->json ? cJSON_AddArrayToObject(root, "transports") : NULL;
    const char *name;
    (void)arguments, (void)count;
    for (size_t i = 0; (name = kvf_transport_nth(i)) != NULL; i++) {
        struct row row = {.name = name};
        look(&row, loop);
        if (options->json)
            add_row(transports, &row);
        else
            print_row(&row);
    }
    kvf_loop_destroy(loop);
    return options->json ? json_print(root) : WORDS_EXIT_OK;
}
