/* libFuzzer over a tcp lane's bytes. The first byte: bit 0: which side is ours.
 *
 * Source: the input is what a stranger says at the port; with bit 1 the right greeting goes first.
 * Consumer: the input is what the source says to a lane that expects a Read of four blocks; with bit 1 the right greeting
 * goes first. Bytes may land in these blocks only, and what ended well has the CRC that the lane computed. */
#include "transport/tcp_wire.h"
#include "transport/testbed.h"

#include "base/crc32c.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCKS 4u
#define STRIDE_BYTES ((uint64_t)1 << 20)
#define AREA_BYTES (BLOCKS * STRIDE_BYTES)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const uint64_t lengths[BLOCKS] = {1, 4096, 9000, 100000};

static void say(int fd, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    while (count > 0) {
        ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* it has heard enough */
        at += sent;
        count -= (size_t)sent;
    }
}

static void say_greeting(int fd, const struct kvf_nonce *nonce)
{
    uint8_t greeting[LANE_GREETING_BYTES];
    lane_greeting_write(&tcp_greeting, nonce, greeting);
    say(fd, greeting, sizeof(greeting));
}

/* ---- our side is the source ---- */

static bool source_is_open(void *argument)
{
    (void)argument;
    return testbed.source.opened || testbed.source.lane == NULL;
}

static void run_source(const uint8_t *data, size_t bytes, bool greet)
{
    testbed_invite(TESTBED_WAIT_S * 1000);
    int fd = testbed_socket_connected();
    if (greet) {
        say_greeting(fd, &testbed.nonces.connect);
        testbed_wait(source_is_open, NULL);
    }
    say(fd, data, bytes);
    (void)close(fd);
    testbed_lanes_close();
}

/* ---- our side is the consumer ---- */

static int listener = -1, listener_port;

static struct testbed_read *expect_blocks(void)
{
    struct testbed_read *read = testbed_read_make(&testbed.consumer, 1, 1, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        testbed_read_set(read, i, i * STRIDE_BYTES, lengths[i], 0);
    memset(testbed.consumer.arena.base, TESTBED_SENTINEL, AREA_BYTES);
    testbed_expect(read);
    return read;
}

static void check_blocks(const struct testbed_read *read)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint8_t *at = kvf_extent_at(read->blocks[i].extent);
        uint64_t used = read->blocks[i].extent.bytes;
        if (kvf_is_ok(read->blocks[i].status))
            assert_int_equal(read->blocks[i].crc32c, kvf_crc32c(0, at, lengths[i]));
        assert_true(testbed_is_untouched(at + used, STRIDE_BYTES - used));
    }
}

static void run_consumer(const uint8_t *data, size_t bytes, bool greet)
{
    memset(&testbed.nonces, 0x5c, sizeof(testbed.nonces));
    testbed_end_connect(&testbed.consumer, listener_port, &testbed.nonces, TESTBED_WAIT_S * 1000);
    struct testbed_read *read = expect_blocks();
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    if (greet)
        say_greeting(fd, &testbed.nonces.accept);
    say(fd, data, bytes);
    (void)shutdown(fd, SHUT_WR);
    testbed_wait_closed(&testbed.consumer); /* at an error, or at the end of what we said */
    testbed_wait_ended(read);
    check_blocks(read);
    (void)close(fd);
    free(read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (listener < 0) {
        testbed_open("tcp");
        listener = testbed_socket_listening(&listener_port);
    }
    if (bytes == 0)
        return 0;
    bool greet = (data[0] & 2) != 0;
    if (data[0] & 1)
        run_source(data + 1, bytes - 1, greet);
    else
        run_consumer(data + 1, bytes - 1, greet);
    return 0;
}
