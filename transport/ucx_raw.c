#include "transport/ucx_raw.h"

#include "base/clock.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- over UCX ---- */

static ucs_status_t announced(void *argument, const void *header, size_t header_bytes, void *data,
                              size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_raw *raw = argument;
    (void)header, (void)header_bytes, (void)data, (void)bytes, (void)param;
    raw->announced++;
    return raw->refuses ? UCS_ERR_CANCELED : UCS_INPROGRESS;
}

static void failed(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)argument, (void)endpoint, (void)status;
}

static struct ucx_raw *make(void)
{
    struct ucx_raw *raw = calloc(1, sizeof(*raw));
    assert_non_null(raw);
    raw->listener = raw->fd = -1;
    struct kvf_transport_options options = {.ucx_over_tcp = testbed.ucx_over_tcp};
    assert_true(kvf_is_ok(ucx_context_create(&options, &raw->context, NULL)));
    ucp_worker_params_t params = {0};
    assert_int_equal(ucx.ucp_worker_create(raw->context, &params, &raw->worker), UCS_OK);
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_PIECE_ID,
        .cb = announced,
        .arg = raw,
    };
    assert_int_equal(ucx.ucp_worker_set_am_recv_handler(raw->worker, &handler), UCS_OK);
    return raw;
}

static void connect_to(struct ucx_raw *raw, const void *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = failed, .arg = raw},
    };
    assert_int_equal(ucx.ucp_ep_create(raw->worker, &params, &raw->endpoint), UCS_OK);
}

static void sent(void *request, ucs_status_t status, void *user)
{
    struct ucx_raw *raw = user;
    raw->statuses[raw->ended++ % UCX_RAW_SENDS] = status;
    ucx.ucp_request_free(request);
}

void ucx_raw_send(struct ucx_raw *raw, unsigned id, const void *header, size_t header_bytes,
                  const void *data, size_t bytes, uint32_t flags)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .flags = flags,
        .cb.send = sent,
        .user_data = raw,
    };
    ucs_status_ptr_t request =
        ucx.ucp_am_send_nbx(raw->endpoint, id, header, header_bytes, data, bytes, &param);
    assert_true(UCS_PTR_IS_PTR(request));
    raw->begun++;
}

void ucx_raw_piece(struct ucx_raw *raw, const struct lane_header *header, const void *data)
{
    static uint8_t bytes[UCX_RAW_SENDS][LANE_HEADER_BYTES]; /* UCX reads them when it likes */
    uint8_t *at = bytes[raw->begun % UCX_RAW_SENDS];
    lane_header_write(UCX_MARK, header, at);
    ucx_raw_send(raw, UCX_PIECE_ID, at, LANE_HEADER_BYTES, data, header->length,
                 UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY);
}

void ucx_raw_serve_ms(struct ucx_raw *raw, unsigned ms)
{
    uint64_t end = kvf_clock_now_ns() + ms * KVF_NS_PER_MS;
    do {
        while (ucx.ucp_worker_progress(raw->worker) > 0)
            ;
        kvf_loop_run_once(testbed.loop, 1);
    } while (kvf_clock_now_ns() < end);
}

void ucx_raw_wait_ended(struct ucx_raw *raw, unsigned count)
{
    for (unsigned i = 0; raw->ended < count; i++) {
        if (i > 1000)
            fail_msg("%u of %u sends ended", raw->ended, count);
        ucx_raw_serve_ms(raw, 10);
    }
}

/* ---- on the link ---- */

static void hear_hello(struct ucx_raw *raw)
{
    size_t got = 0, all = UCX_HELLO_HEAD_BYTES;
    for (unsigned i = 0; got < all; i++) {
        struct pollfd wait = {.fd = raw->fd, .events = POLLIN};
        if (i > 1000)
            fail_msg("no hello came");
        kvf_loop_run_once(testbed.loop, 1);
        if (poll(&wait, 1, 10) == 0)
            continue;
        ssize_t now = recv(raw->fd, raw->heard + got, all - got, 0);
        assert_true(now > 0);
        got += (size_t)now;
        if (got == UCX_HELLO_HEAD_BYTES)
            all += ucx_hello_address_bytes(raw->heard);
    }
}

void ucx_raw_say(struct ucx_raw *raw, const struct kvf_nonce *nonce, uint32_t address_bytes,
                 size_t sent_bytes)
{
    uint8_t hello[UCX_HELLO_MAX_BYTES] = {0};
    ucp_address_t *address;
    size_t bytes;
    assert_int_equal(ucx.ucp_worker_get_address(raw->worker, &address, &bytes), UCS_OK);
    bytes = ucx_hello_write(nonce, address, (uint32_t)bytes, hello);
    ucx.ucp_worker_release_address(raw->worker, address);
    if (address_bytes != UINT32_MAX)
        memcpy(hello + LANE_GREETING_BYTES, &address_bytes, sizeof(address_bytes));
    bytes = sent_bytes != SIZE_MAX ? sent_bytes : bytes;
    assert_int_equal(send(raw->fd, hello, bytes, MSG_NOSIGNAL), bytes);
}

static void serve_until_opened(struct ucx_raw *raw, struct testbed_end *end)
{
    for (unsigned i = 0; i < 1000 && !end->opened && end->lane != NULL; i++)
        ucx_raw_serve_ms(raw, 5);
    testbed_wait_opened(end);
}

struct ucx_raw *ucx_raw_source_half(uint64_t timeout_ms)
{
    int port;
    struct ucx_raw *raw = make();
    raw->listener = testbed_socket_listening(&port);
    memset(&testbed.nonces, 0x5a, sizeof(testbed.nonces));
    testbed_end_connect(&testbed.consumer, port, &testbed.nonces, timeout_ms);
    raw->fd = accept(raw->listener, NULL, NULL);
    assert_true(raw->fd >= 0);
    hear_hello(raw);
    return raw;
}

struct ucx_raw *ucx_raw_source(void)
{
    struct ucx_raw *raw = ucx_raw_source_half(TESTBED_WAIT_S * 1000);
    connect_to(raw, raw->heard + UCX_HELLO_HEAD_BYTES);
    ucx_raw_say(raw, &testbed.nonces.accept, UINT32_MAX, SIZE_MAX);
    serve_until_opened(raw, &testbed.consumer);
    return raw;
}

struct ucx_raw *ucx_raw_consumer_half(uint64_t timeout_ms)
{
    struct ucx_raw *raw = make();
    testbed_invite(timeout_ms);
    raw->fd = testbed_socket_connected();
    return raw;
}

struct ucx_raw *ucx_raw_consumer_connecting(void)
{
    struct ucx_raw *raw = ucx_raw_consumer_half(TESTBED_WAIT_S * 1000);
    ucx_raw_say(raw, &testbed.nonces.connect, UINT32_MAX, SIZE_MAX);
    hear_hello(raw);
    connect_to(raw, raw->heard + UCX_HELLO_HEAD_BYTES);
    return raw;
}

struct ucx_raw *ucx_raw_consumer(void)
{
    static const uint8_t byte = UCX_CONNECTED;
    struct ucx_raw *raw = ucx_raw_consumer_connecting();
    assert_int_equal(send(raw->fd, &byte, sizeof(byte), MSG_NOSIGNAL), sizeof(byte));
    serve_until_opened(raw, &testbed.source);
    return raw;
}

struct ucx_raw *ucx_raw_stranger(const uint8_t *hello)
{
    struct ucx_raw *raw = make();
    connect_to(raw, hello + UCX_HELLO_HEAD_BYTES);
    return raw;
}

void ucx_raw_end(struct ucx_raw *raw)
{
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t closing =
        raw->endpoint != NULL ? ucx.ucp_ep_close_nbx(raw->endpoint, &force) : NULL;
    for (unsigned i = 0; i < 200 && raw->ended < raw->begun; i++)
        ucx_raw_serve_ms(raw, 5);
    if (UCS_PTR_IS_PTR(closing)) {
        while (ucx.ucp_request_check_status(closing) == UCS_INPROGRESS)
            (void)ucx.ucp_worker_progress(raw->worker);
        ucx.ucp_request_free(closing);
    }
    ucx.ucp_worker_destroy(raw->worker);
    ucx.ucp_cleanup(raw->context);
    if (raw->fd >= 0)
        (void)close(raw->fd);
    if (raw->listener >= 0)
        (void)close(raw->listener);
    free(raw);
}
