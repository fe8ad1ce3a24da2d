/* libFuzzer over what a daemon may say to libkvferry. The first byte: what is asked (bits 0 to 2), and bit 3: the first
 * packet carries the arena's descriptor, and bit 4: the daemon says that it has said all. Then pieces, a packet each, all on the line before the call that waits for them.
 * What is said to be in an arena is read to its end. */
#include "base/crc32c.h"
#include "base/test.h"
#include "client/engine/client.h"
#include "client/engine/fake_daemon.h"
#include "tests/corpus/pieces.h"

#include <sys/socket.h>

#define BLOCKS 5u
#define ARENA_BYTES (64u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct fake_daemon fake;

static void try_put(bool commit)
{
    struct kvf_put puts[BLOCKS] = {0};
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_true(kvf_key_set(&puts[i].key, &i, 8));
        puts[i].length = 5000;
    }
    (void)kvf_put_begin(fake.client, "t/f", puts, BLOCKS, 1).code;
    for (size_t i = 0; i < BLOCKS; i++) {
        if (puts[i].data != NULL)
            memset(puts[i].data, 1, 8192);
    }
    if (commit)
        (void)kvf_put_commit(fake.client, puts, BLOCKS).code;
    else
        kvf_put_abort(fake.client, puts, BLOCKS);
}

static void try_get(unsigned flags, uint64_t length)
{
    struct kvf_get_options options = {.ns = "t/f", .timeout_ms = 1, .flags = flags};
    struct kvf_get_block blocks[BLOCKS] = {0};
    size_t prefix;
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_true(kvf_key_set(&blocks[i].key, &i, 8));
        blocks[i].length = length;
    }
    (void)kvf_get(fake.client, &options, blocks, BLOCKS, &prefix).code;
    assert_true(prefix <= BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].data != NULL)
            (void)kvf_crc32c(0, blocks[i].data, (size_t)blocks[i].length);
        assert_true((unsigned)blocks[i].code < KVF_CODE_COUNT);
    }
    kvf_get_release(fake.client, blocks, BLOCKS);
}

static void try_lookup(void)
{
    struct kvf_get_options options = {.ns = "t/f", .timeout_ms = 1};
    struct kvf_get_block block = {0};
    assert_true(kvf_key_set(&block.key, "k", 1));
    (void)kvf_lookup(fake.client, &options, &block, 1, NULL).code;
}

static void ask(unsigned what)
{
    switch (what) {
    case 0:
        (void)client_register(fake.client, "fuzz", NULL, "", dialog_deadline(1), NULL).code;
        break;
    case 1:
    case 2:
        try_put(what == 2);
        break;
    case 3:
        try_get(KVF_GET_VERIFY, 5000);
        break;
    case 4:
        try_get(KVF_GET_STOP_AT_FIRST_MISS, 0);
        break;
    case 5:
        try_lookup();
        break;
    default:
        (void)kvf_client_poll(fake.client).code;
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *piece;
    size_t length;
    if (bytes == 0)
        return 0;
    unsigned what = data[0] & 7;
    struct pieces pieces = {data + 1, bytes - 1};
    if (what == 0)
        fake_open(&fake, 1, ARENA_BYTES);
    else
        fake_open_registered(&fake, 1, ARENA_BYTES);
    fake.client->grace_ms = 0;
    size_t fds = (data[0] & 8) != 0;
    for (int i = 0; i < 16 && pieces_next(&pieces, &piece, &length); i++, fds = 0)
        if (length > 0)
            (void)kvf_is_ok(kvf_wire_send(fake.fd, piece, length, &fake.arenas[0].fd, fds));
    if (what == 2 || (data[0] & 16)) /* a commit waits long */
        (void)shutdown(fake.fd, SHUT_WR);
    ask(what);
    fake_close(&fake);
    return 0;
}
