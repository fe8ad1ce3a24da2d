/* libFuzzer over what a consumer may say to the peer service of a living node, with blocks resident, pending and absent.
 * The first byte: how (bit 0: Lookup instead of Session; bit 1: a valid Hello goes first; bit 2: the consumer half-closes
 * at the end; bit 3: the pending block is committed before that). Then pieces, a message each. Afterwards nothing may be
 * held. */
#include "proto/peer.h"
#include "proto/peer.pb-c.h"
#include "proto/rpc/direct.h"
#include "server/node_fixture.h"
#include "tests/corpus/pieces.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct node node;
static struct put *pending;

static void start(void)
{
    node_set_up();
    node_start(&node, &(struct node_options){.pool_bytes = 8 * KVF_MIB});
    node_put(&node, 0);
    node_put(&node, 1);
    pending = node_begin(&node, 2);
}

static void commit_and_begin_again(void)
{
    node_commit(pending, 2);
    kvf_loop_run_once(node_loop, 0);
    node_forget(&node, 2);
    pending = node_begin(&node, 2);
}

static void say_hello(struct direct_far *far)
{
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    Kvferry__Hello hello = KVFERRY__HELLO__INIT;
    uint8_t bytes[64];
    hello.version = KVF_PEER_VERSION;
    hello.tenant = (char *)(uintptr_t) "t";
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_HELLO;
    up.hello = &hello;
    direct_say(far, bytes, kvferry__session_up__pack(&up, bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct direct_far far = {0};
    const uint8_t *piece;
    size_t length;
    if (node_loop == NULL)
        start();
    if (bytes == 0)
        return 0;
    struct pieces pieces = {data + 1, bytes - 1};
    direct_call(&far, data[0] & 1 ? KVF_PEER_LOOKUP : KVF_PEER_SESSION);
    if ((data[0] & 3) == 2)
        say_hello(&far);
    while (pieces_next(&pieces, &piece, &length)) {
        direct_say(&far, piece, length);
        kvf_loop_run_once(node_loop, 0);
    }
    if (data[0] & 8)
        commit_and_begin_again();
    if (data[0] & 4)
        direct_half_close(&far);
    direct_hang_up(&far, kvf_fail(KVF_MODULE_PROTO, KVF_CANCELLED, 0));
    node_run_until(far.call == NULL && kvf_peers_sessions(node.peers) == 0 &&
                   node.leases.open == 0);
    kvf_assert(node.admission.classes[KVF_CLASS_SERVE].used_bytes == 0);
    return 0;
}
