/* lane_read: the bytes of a Read over a lane between two processes, beside a plain socket.
 *
 *   lane_read DEVICE BLOCK_BYTES COUNT PAIRS SOURCE_CORE CONSUMER_CORE
 *
 * Parts: the source (a child with its own transport: for every id on its control socket it offers the Read), the
 * consumer (expects, says the id, waits until every block has ended), the rounds. */
#include "base/block.h"
#include "base/clock.h"
#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"
#include "transport/transport.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* One side. */
struct end {
    struct kvf_loop *loop;
    struct kvf_arena arena;
    struct kvf_transport *transport;
    struct kvf_lane *lane;
    struct kvf_lane_read read;
    struct kvf_watch control;
    uint64_t block_bytes;
    uint32_t count;
    uint32_t ended;
    bool opened;
};

/* What the source says first. */
struct invitation {
    int port;
    struct kvf_lane_nonces nonces;
};

struct bench {
    struct end consumer;
    int control; /* to the source */
    struct plain_source plain;
    uint8_t *plain_to;
};

static void lane_opened(struct kvf_lane *lane, void *user)
{
    struct end *end = user;
    (void)lane;
    end->opened = true;
}

static void lane_closed(struct kvf_lane *lane, void *user, struct kvf_status status)
{
    (void)lane, (void)user;
    bench_check(status, "the lane");
    bench_die("the lane was closed");
}

static const struct kvf_lane_events events = {.opened = lane_opened, .closed = lane_closed};

static void block_ended(struct kvf_lane_read *read, uint32_t block)
{
    struct end *end = kvf_container(read, struct end, read);
    bench_check(read->blocks[block].status, "a block on the lane");
    end->ended++;
}

static void end_open(struct end *end, uint64_t block_bytes, uint32_t count)
{
    struct kvf_why why = {.text = ""};
    uint64_t bytes = block_bytes * count;
    end->block_bytes = block_bytes;
    end->count = end->ended = count;
    bench_check(kvf_loop_create(&end->loop), "loop");
    bench_check(kvf_arena_create(bytes, 0, false, &end->arena, &why), "arena");
    bench_fill(end->arena.base, bytes, bytes);
    const struct kvf_arena *arenas[] = {&end->arena};
    struct kvf_transport_options options = {.loop = end->loop, .arenas = arenas, .arena_count = 1};
    bench_check(kvf_transport_open("tcp", &options, &end->transport, &why), "transport");
    end->read.blocks = bench_allocate(count * sizeof(*end->read.blocks));
}

static void end_prepare(struct end *end, uint64_t id)
{
    struct kvf_lane_block *blocks = end->read.blocks;
    for (uint32_t i = 0; i < end->count; i++)
        blocks[i] = (struct kvf_lane_block){
            .extent = {&end->arena, i * end->block_bytes, end->block_bytes},
            .length = end->block_bytes,
            .landed_bytes = end->block_bytes,
        };
    end->read = (struct kvf_lane_read){
        .id = id, .instance = 1, .blocks = blocks, .block_count = end->count, .ended = block_ended};
    end->ended = 0;
}

static void serve_until_opened(struct end *end)
{
    uint64_t deadline = kvf_clock_now_ns() + 10 * KVF_NS_PER_S;
    while (!end->opened && kvf_clock_now_ns() < deadline)
        kvf_loop_run_once(end->loop, 100);
    if (!end->opened)
        bench_die("the lane did not open within 10 s");
}

/* ---- the source ---- */

static void control_ready(struct kvf_watch *watch, uint32_t ready)
{
    struct end *end = kvf_container(watch, struct end, control);
    uint64_t id;
    (void)ready;
    if (end->ended != end->count)
        return; /* the consumer has it all, our own events are on their way; then again */
    if (read(watch->fd, &id, sizeof(id)) != (ssize_t)sizeof(id))
        _exit(0);
    end_prepare(end, id);
    kvf_lane_offer(end->lane, &end->read);
}

__attribute__((noreturn)) static void source_process(int control, int core, uint64_t block_bytes,
                                                     uint32_t count)
{
    struct end end = {.control = {.fd = control, .events = EPOLLIN, .ready = control_ready}};
    struct invitation invitation;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(core);
    end_open(&end, block_bytes, count);
    bench_check(kvf_transport_listen(end.transport, "127.0.0.1:0", NULL), "listen");
    bench_check(kvf_lane_invite(end.transport, kvf_clock_now_ns() + 10 * KVF_NS_PER_S, &events,
                                &end, &invitation.nonces, &end.lane),
                "invite");
    invitation.port = kvf_transport_port(end.transport);
    if (write(control, &invitation, sizeof(invitation)) != (ssize_t)sizeof(invitation))
        bench_die("control: %s", strerror(errno));
    serve_until_opened(&end);
    bench_check(kvf_watch_start(end.loop, &end.control), "watch");
    kvf_loop_run(end.loop);
    _exit(0);
}

static int source_start(int core, uint64_t block_bytes, uint32_t count, int *control)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        bench_die("socketpair: %s", strerror(errno));
    int pid = fork();
    if (pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (pid == 0) {
        (void)close(pair[0]);
        source_process(pair[1], core, block_bytes, count);
    }
    (void)close(pair[1]);
    *control = pair[0];
    return pid;
}

/* ---- the consumer ---- */

static void consumer_connect(struct bench *bench)
{
    struct invitation invitation;
    char address[32];
    if (read(bench->control, &invitation, sizeof(invitation)) != (ssize_t)sizeof(invitation))
        bench_die("the source ended");
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", invitation.port);
    bench_check(kvf_lane_connect(bench->consumer.transport, address, KVF_ANY_DEVICE,
                                 &invitation.nonces, kvf_clock_now_ns() + 10 * KVF_NS_PER_S,
                                 &events, &bench->consumer, &bench->consumer.lane),
                "connect");
    serve_until_opened(&bench->consumer);
}

static double round_ours(void *context)
{
    struct bench *bench = context;
    struct end *consumer = &bench->consumer;
    uint64_t id = consumer->read.id + 1;
    double start = bench_now_s();
    end_prepare(consumer, id);
    kvf_lane_expect(consumer->lane, &consumer->read);
    if (write(bench->control, &id, sizeof(id)) != (ssize_t)sizeof(id))
        bench_die("control: %s", strerror(errno));
    while (consumer->ended < consumer->count) {
        if (bench_now_s() - start > 60)
            bench_die("a Read took more than 60 s");
        kvf_loop_run_once(consumer->loop, 1000);
    }
    return bench_now_s() - start;
}

static double round_plain(void *context)
{
    struct bench *bench = context;
    return plain_from_memory(&bench->plain, bench->plain_to,
                             bench->consumer.block_bytes * bench->consumer.count);
}

int main(int argc, char **argv)
{
    static struct bench bench;
    static struct rounds rounds = {.name = "lane_read", .unit = ROUNDS_GB_PER_S};
    if (argc != 7)
        bench_die("lane_read DEVICE BLOCK_BYTES COUNT PAIRS SOURCE_CORE CONSUMER_CORE");
    uint32_t count = (uint32_t)bench_number(argv[3]);
    int source_core = (int)bench_number(argv[5]);
    rounds.device = argv[1];
    rounds.block_bytes = bench_number(argv[2]);
    rounds.round_bytes = rounds.block_bytes * count;
    if (rounds.block_bytes % KVF_PAGE != 0 || count == 0)
        bench_die("BLOCK_BYTES: whole pages; COUNT: 1 or more");
    int source = source_start(source_core, rounds.block_bytes, count, &bench.control);
    plain_source_start(&bench.plain, source_core, rounds.round_bytes, NULL);
    bench_pin((int)bench_number(argv[6]));
    bench.plain_to = bench_memory(rounds.round_bytes);
    end_open(&bench.consumer, rounds.block_bytes, count);
    consumer_connect(&bench);
    rounds_run(&rounds, (unsigned)bench_number(argv[4]), round_ours, round_plain, NULL, &bench);
    rounds_print(&rounds);
    plain_source_stop(&bench.plain); /* first: it has inherited our end of the control socket */
    (void)close(bench.control);
    (void)waitpid(source, NULL, 0);
    return 0; /* the lane's memory goes with the process */
}
