/* The world of this folder's tests: a server that follows a script and a client that writes down
 * what it hears, both in one process and on one loop. */
#ifndef KVFERRY_PROTO_RPC_TESTING_H
#define KVFERRY_PROTO_RPC_TESTING_H

#include "base/clock.h"
#include "base/test.h"
#include "proto/rpc/rpc.h"

#include <sys/types.h>

#define WAIT_S 20

extern struct kvf_loop *loop;
extern struct kvf_rpc *rpc;
extern struct kvf_rpc_server *server;
extern struct kvf_rpc_channel *channel;

/* What a call said, on either side. */
struct record {
    struct kvf_rpc_call *call; /* NULL when closed */
    int messages, half_closes, closes;
    struct kvf_status status;
    char text[512], last[64], peer[64], identity[64];
    size_t last_length, bytes;
    uint32_t next; /* the number that the next message must carry */
    bool in_order;
    const struct script *script;
};

/* What the server does with a call. */
struct script {
    bool echo;
    bool numbers; /* send `count` of them at once */
    uint32_t count;
    bool finish_on_half_close;
    bool finish_on_call;
    struct kvf_status status;
    const char *text;
    bool cancel_on_message;
    size_t reply_bytes; /* one message of this length on the first message */
};

enum { SERVED_MAX = 256 };
extern struct record served[SERVED_MAX];
extern int served_count, served_closed;
extern struct script script; /* for calls to come */
extern bool stopped;

struct kvf_bytes bytes_of(const void *data, size_t length);
void send_numbers(struct kvf_rpc_call *call, uint32_t count);
void assert_code(struct kvf_status status, enum kvf_code code);

/* The server: offers /kvferry.Test/Call (follows the script) and /kvferry.Test/Refuse. */
extern const struct kvf_rpc_method methods[2];
void called(struct kvf_rpc_call *call, void *context); /* context: the script */
void note_stopped(void *flag);
void listen_at(const char *address, struct kvf_rpc_tls *tls);
void stop_server(uint64_t grace_ms);

/* The client. */
void client_closed(struct kvf_rpc_call *call, void *user, struct kvf_status status,
                   const char *text);
void dial(const char *address, struct kvf_rpc_tls *tls);
void dial_server(const char *host, struct kvf_rpc_tls *tls);
void start_call(struct record *record, const char *path, uint64_t timeout_ms);
void say(struct record *record, const char *text);

/* Drives the loop until the condition holds; a test that would wait for ever fails instead. */
#define run_until(condition)                                                                       \
    do {                                                                                           \
        uint64_t until_ = kvf_clock_now_ns() + WAIT_S * KVF_NS_PER_S;                              \
        while (!(condition)) {                                                                     \
            assert_true(kvf_clock_now_ns() < until_);                                              \
            kvf_loop_run_once(loop, 100);                                                          \
        }                                                                                          \
    } while (0)
void run_for_ms(uint64_t ms);

/* Only the loop and gRPC; with a server and a channel to it; and back. */
int set_up_bare(void **state);
int set_up(void **state);
int tear_down(void **state);

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define BARE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_bare, tear_down)

#endif
