/* libFuzzer over what an engine may say on engine.sock of a living node. The first byte: bit 0: it registers first.
 * Then pieces, a packet each. At the end everything is dropped, as at a forced end of the daemon, and nothing may be
 * held. */
#include "client/engine/wire.h"
#include "proto/engine.pb-c.h"
#include "proto/rpc/direct.h"
#include "server/engines.h"
#include "server/node_fixture.h"
#include "tests/corpus/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct node node;
static struct kvf_engines *engines;
static char path[64];
static unsigned contexts_left;

static void left(void *context)
{
    (void)context;
    contexts_left++;
}

static void remove_socket(void)
{
    (void)unlink(path);
}

static void start(void)
{
    struct kvf_engines_options options = {.path = path,
                                          .boot_epoch = 7,
                                          .per_instance_limit_bytes = 6 * KVF_MIB,
                                          .query_timeout_ns = 10 * KVF_NS_PER_MS,
                                          .left = left};
    struct kvf_why why = {.text = ""};
    node_set_up();
    node_start(&node, &(struct node_options){.pool_bytes = 8 * KVF_MIB});
    node_put(&node, 0);
    options.loop = node_loop;
    options.pool = node.pool;
    options.index = node.index;
    options.gets = &node.gets;
    options.puts = &node.puts;
    (void)snprintf(path, sizeof(path), "/tmp/engines_fuzz.%d.sock", (int)getpid());
    if (!kvf_is_ok(kvf_engines_create(&options, &engines, &why)))
        fail_msg("%s", why.text);
    (void)atexit(remove_socket);
}

static void register_at(int fd)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRegister message = KVFERRY__ENGINE_REGISTER__INIT;
    uint8_t bytes[32];
    message.version = KVF_WIRE_VERSION;
    request.id = 1;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER;
    request.register_ = &message;
    (void)kvf_is_ok(
        kvf_wire_send(fd, bytes, kvferry__engine_request__pack(&request, bytes), NULL, 0));
}

/* A full socket: the daemon reads first. */
static void send_packet(int fd, const uint8_t *piece, size_t length)
{
    for (int i = 0; i < 4 && length > 0; i++) {
        if (kvf_wire_send(fd, piece, length, NULL, 0).code != KVF_BUSY)
            return;
        kvf_loop_run_once(node_loop, 0);
    }
}

static void hear(int fd)
{
    static uint8_t answer[KVF_WIRE_MAX_BYTES];
    int fds[KVF_WIRE_MAX_FDS];
    size_t length, count;
    while (kvf_is_ok(kvf_wire_receive(fd, answer, &length, fds, KVF_WIRE_MAX_FDS, &count)))
        while (count > 0)
            (void)close(fds[--count]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *piece;
    size_t length;
    int fd;
    if (engines == NULL)
        start();
    if (bytes == 0)
        return 0;
    struct pieces pieces = {data + 1, bytes - 1};
    unsigned before = contexts_left;
    if (!kvf_is_ok(kvf_wire_connect(path, &fd)))
        fail_msg("nobody listens on %s any more", path);
    if (data[0] & 1)
        register_at(fd);
    kvf_loop_run_once(node_loop, 0);
    while (pieces_next(&pieces, &piece, &length)) {
        send_packet(fd, piece, length);
        kvf_loop_run_once(node_loop, 0);
        direct_refuse_all(); /* a Get names its source; nobody answers there */
        hear(fd);
    }
    kvf_loop_run_once(node_loop, 0);
    (void)close(fd);
    node_run_until((kvf_engines_force(engines), direct_refuse_all(), contexts_left > before));
    node_run_until(node.gets.open == 0 && kvf_list_is_empty(&node.puts.writing));
    for (int class = 0; class < KVF_CLASS_COUNT; class ++)
        kvf_assert(node.admission.classes[class].used_bytes == 0);
    kvf_assert(node.puts.quarantine_bytes == 0);
    return 0;
}
