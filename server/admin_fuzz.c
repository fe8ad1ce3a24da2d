/* libFuzzer over the Admin service and the health check. The first byte: which method; bit 7: the client half-closes.
 * Then pieces, a message each. */
#include "proto/admin.h"
#include "proto/rpc/direct.h"
#include "server/admin.h"
#include "server/node_fixture.h"
#include "tests/corpus/pieces.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct node node;
static struct kvf_admin *admin;
static struct kvf_rpc_server *server;
static struct kvf_rpc_method methods[KVF_ADMIN_METHODS];

static char *stat_json(void *context)
{
    (void)context;
    return strdup("{}");
}

static struct kvf_status set_read_batch(void *context, uint64_t mib, struct kvf_why *said)
{
    (void)context;
    (void)snprintf(said->text, sizeof(said->text), "%llu", (unsigned long long)mib);
    return mib < 1000 ? kvf_ok() : kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
}

static void evict_dram(void *context, uint64_t *blocks, uint64_t *bytes)
{
    (void)context;
    kvf_index_evict_all(node.index, blocks, bytes);
}

static bool is_draining(void *context)
{
    (void)context;
    return false;
}

static void drain(void *context)
{
    (void)context;
}

static bool is_ready(void *context)
{
    (void)context;
    return true;
}

static void start(void)
{
    struct kvf_admin_actions actions = {.stat_json = stat_json,
                                        .set_read_batch = set_read_batch,
                                        .evict_dram = evict_dram,
                                        .drain = drain,
                                        .is_draining = is_draining,
                                        .is_ready = is_ready,
                                        .puts = &node.puts};
    node_set_up();
    node_start(&node, &(struct node_options){.pool_bytes = 2 * KVF_MIB});
    node_put(&node, 0);
    assert_true(kvf_is_ok(kvf_admin_create(&actions, &admin)));
    kvf_admin_methods(admin, methods);
    assert_true(kvf_is_ok(kvf_rpc_server_start(node_rpc, "unix:/nowhere", NULL, methods,
                                               KVF_ADMIN_METHODS, &server, NULL)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct direct_far far = {0};
    const uint8_t *piece;
    size_t length;
    if (admin == NULL)
        start();
    if (bytes == 0)
        return 0;
    struct pieces pieces = {data + 1, bytes - 1};
    direct_call(&far, methods[(data[0] & 0x7f) % KVF_ADMIN_METHODS].path);
    while (pieces_next(&pieces, &piece, &length)) {
        direct_say(&far, piece, length);
        kvf_loop_run_once(node_loop, 0);
    }
    if (data[0] & 0x80)
        direct_half_close(&far);
    direct_hang_up(&far, kvf_ok());
    node_run_until(far.call == NULL);
    return 0;
}
