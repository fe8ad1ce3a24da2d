/* A source that follows a script: real server, real lanes, all on the test's loop. And the consumer beside it. */
#ifndef KVFERRY_CLIENT_PULL_SOURCE_FIXTURE_H
#define KVFERRY_CLIENT_PULL_SOURCE_FIXTURE_H

#include "base/clock.h"
#include "base/test.h"
#include "client/pull/pull.h"

#define WAIT_S 20
#define TENANT "t"
#define SPACE "t/f"
#define FIXTURE_BLOCKS 64
#define FIXTURE_ARENA_BYTES (64 * KVF_MIB)
#define LOG_MAX 512

/* What the source says to a Hello. */
enum fixture_welcome {
    WELCOME_GOOD = 0,
    WELCOME_SILENT,
    WELCOME_VERSION,
    WELCOME_TRANSPORT,
    WELCOME_SHORT_NONCE,
    WELCOME_WRONG_NONCE,
    WELCOME_NO_LANE, /* the address leads to nobody */
    WELCOME_NAME,    /* the address is a name */
    WELCOME_GARBAGE,
    WELCOME_DRAIN_NOTICE,
    WELCOME_GRANTS,
    WELCOME_BUSY, /* the call is ended with BUSY */
};

/* What it does with a Read. */
enum fixture_answer {
    ANSWER_GRANT = 0,
    ANSWER_GRANT_LATER, /* bytes go at once, Grants when fixture_grant is called */
    ANSWER_REFUSE,
    ANSWER_SILENT,
    ANSWER_GRANT_TWICE,
    ANSWER_WRONG_COUNT,
    ANSWER_FUTURE_ID,
    ANSWER_ID_ZERO,
    ANSWER_GARBAGE,
    ANSWER_EMPTY, /* a message that says nothing */
    ANSWER_WELCOME_AGAIN,
    ANSWER_NO_GENERATION,
    ANSWER_FAULT_FIRST, /* before Grants */
    ANSWER_FAULT_INDEX,
    ANSWER_FAULT_OK,
    ANSWER_COMMITTED_INDEX,
    ANSWER_REFUSE_OK,
    ANSWER_REFUSE_THEN_GRANT,
    ANSWER_TOKENS,
    ANSWER_DROP_CALL,  /* after granting and sending what the blocks allow */
    ANSWER_CLOSE_LANE, /* likewise */
};

struct fixture_block {
    struct kvf_key key;
    uint64_t length;
    uint64_t offset; /* in the source's arena */
    struct kvf_generation generation;
    uint32_t crc32c;
    enum kvf_tier tier;
    /* The script for this block. */
    uint32_t code;           /* of its grant; 0: it is there */
    uint64_t stall_at;       /* send only so much; 0: all */
    uint64_t granted_length; /* 0: the true one */
    bool corrupt;            /* the grant's CRC is of other bytes */
    uint32_t fault;          /* after Grants, Fault with this code */
};

struct fixture_log {
    unsigned hellos, reads, releases, cancels, raises, half_closes, calls_closed, lookups;
    uint64_t read_id[LOG_MAX];
    uint32_t read_blocks[LOG_MAX];
    uint64_t read_bytes[LOG_MAX], read_deadline_us[LOG_MAX], read_instance[LOG_MAX];
    bool read_stops[LOG_MAX];
    uint8_t read_first_key[LOG_MAX];
    uint64_t release_id[LOG_MAX];
    size_t release_bad_count[LOG_MAX];
    uint32_t release_bad[LOG_MAX];
    uint64_t cancel_id[LOG_MAX], raise_id[LOG_MAX];
    unsigned open_reads_peak;
    char tenant[64];
    uint64_t instance;
    int purpose;
};

struct fixture {
    struct kvf_loop *loop;
    struct kvf_rpc *rpc;
    /* The source. */
    struct kvf_rpc_server *server;
    int port;
    struct kvf_transport *source_transport;
    struct kvf_arena source_arena;
    struct fixture_block blocks[FIXTURE_BLOCKS];
    uint32_t block_count;
    struct kvf_list sessions; /* open calls */
    unsigned open_sessions, open_lanes;
    struct kvf_list reads; /* not released, or not let go by the lane */
    uint64_t open_reads;

    enum fixture_welcome welcome;
    enum fixture_answer answer;
    unsigned answer_after; /* the first so many Reads are granted */
    unsigned answer_times; /* then so many are answered so; 0: all */
    uint32_t refuse_code;
    unsigned refusals; /* that the source's user heard of */
    char refusal_text[120];

    uint64_t max_grant_bytes, boot_epoch;
    uint32_t max_blocks, max_open_reads, max_message_bytes;
    bool lookup_silent, lookup_short, lookup_draining, lookup_garbage;
    struct fixture_log log;

    /* The consumer. */
    struct kvf_transport *transport;
    struct kvf_arena arena;
    uint64_t arena_used;
    struct kvf_pull_stats stats;
    struct kvf_source *source;
    char address[64];
    unsigned draining_calls;
    bool deny; /* the source has no right to serve */
    bool source_closed;
};

extern struct fixture fx;

/* Each test: a source with no blocks, and a consumer that has not connected. At the end all gauges must be zero. */
int fixture_set_up(void **state);
int fixture_tear_down(void **state);

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_set_up, fixture_tear_down)

/* Drives the loop until the condition holds; a test that would wait for ever fails instead. */
#define run_until(condition)                                                                       \
    do {                                                                                           \
        uint64_t until_ = kvf_clock_now_ns() + WAIT_S * KVF_NS_PER_S;                              \
        while (!(condition)) {                                                                     \
            assert_true(kvf_clock_now_ns() < until_);                                              \
            kvf_loop_run_once(fx.loop, 50);                                                        \
        }                                                                                          \
    } while (0)
void run_for_ms(uint64_t ms);

/* ---- the source ---- */

/* Block i gets key {i, 'k'}, generation {7, i + 1}, and bytes that depend on i. */
void fixture_add_blocks(uint32_t count, uint64_t length);
/* Says Grants of all Reads that have none yet. */
void fixture_grant(void);
void fixture_commit(uint32_t block);
/* Pass on the rest of a stalled block, or so much of it. */
void fixture_land(uint32_t block);
void fixture_land_to(uint32_t block, uint64_t bytes);
void fixture_drain_notice(void);
void fixture_drop_calls(void);
void fixture_close_lanes(void);
/* The server goes away and, by start, comes back on the same port. */
void fixture_stop_server(void);
void fixture_start_server(void);

/* ---- the consumer ---- */

struct wanted {
    struct kvf_pull pull;
    struct kvf_pull_block blocks[FIXTURE_BLOCKS];
    unsigned block_calls[FIXTURE_BLOCKS];
    enum kvf_pull_block_state told_state[FIXTURE_BLOCKS];
    unsigned blocks_ended, ended, freed;
    uint64_t ended_ns;
    void (*on_block)(struct wanted *wanted, uint32_t block);
    void (*on_ended)(struct wanted *wanted);
};

void fixture_create_source(bool speculative);
void fixture_close_source(void);
/* Wants the source's blocks first .. first + count - 1, deadline in ms from now, two Reads in flight. */
void want(struct wanted *wanted, uint32_t first, uint32_t count, uint64_t ms);
void want_and_wait(struct wanted *wanted, uint32_t first, uint32_t count);
/* Every byte and the tail are right, and so are generation, CRC and tier. */
void assert_here(const struct wanted *wanted, uint32_t i);
void assert_missed(const struct wanted *wanted, uint32_t i, enum kvf_code code);
void assert_all_here(const struct wanted *wanted);
void assert_all_missed(const struct wanted *wanted, enum kvf_code code);

#endif
