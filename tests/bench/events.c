/* events: how many requests a second the Manager answers on one core: engines that get a block of 4 KiB from its DRAM and
 * release it, as fast as they can, beside a plain server on epoll that answers messages of the same sizes.
 *
 *   events DEVICE ENGINES PAIRS
 *
 * and from the environment, as `run` sets it: PREFILL_DIR, PREFILL_PID, SOURCE_CORE, CONSUMER_CORE.
 *
 * Parts: the plain server (a child on the daemon's core), the engines (one thread on the other core; each has one Get
 * open, and sends the Release of the last one with it), the rounds. */
#include "client/engine/wire.h"
#include "proto/engine.pb-c.h"
#include "tests/bench/daemon.h"
#include "tests/bench/rounds.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define ENGINES_MAX 256u
#define REQUESTS 20000u /* of a round */
#define NS "bench/events"
#define BLOCK_BYTES 4096u
#define RELEASE_MAX_BYTES 32u /* a Get is longer; a Release has no answer */

struct engine {
    int fd;
    uint64_t last_id; /* of the Get that is open */
};

/* All engines at one server. */
struct load {
    struct engine engines[ENGINES_MAX];
    unsigned count;
    int epoll;
    int server_pid;
    double server_cpu_s, seconds; /* of all counted rounds */
    bool is_ours;
};

struct bench {
    struct load ours, limit;
    size_t answer_bytes; /* of the first Get: later ones are as long, or name a longer id */
    unsigned rounds;
    struct rounds *row;
};

/* ---- the plain server ---- */

static void serve_one(int fd, const uint8_t *answer, size_t answer_bytes)
{
    uint8_t message[KVF_WIRE_MAX_BYTES];
    ssize_t got;
    while ((got = recv(fd, message, sizeof(message), MSG_DONTWAIT)) > 0) {
        if (got > (ssize_t)RELEASE_MAX_BYTES &&
            send(fd, answer, answer_bytes, MSG_NOSIGNAL) != (ssize_t)answer_bytes)
            bench_die("plain send: %s", strerror(errno));
    }
    if (got == 0)
        _exit(0);
}

__attribute__((noreturn)) static void serve(const int *fds, unsigned count, size_t answer_bytes,
                                            int core)
{
    static uint8_t answer[KVF_WIRE_MAX_BYTES];
    struct epoll_event events[ENGINES_MAX];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(core);
    for (unsigned i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) != 0)
            bench_die("plain epoll: %s", strerror(errno));
    }
    for (;;) {
        int ready = epoll_wait(epoll, events, ENGINES_MAX, -1);
        for (int i = 0; i < ready; i++)
            serve_one(events[i].data.fd, answer, answer_bytes);
    }
}

static void plain_start(struct load *load, size_t answer_bytes, int core)
{
    int theirs[ENGINES_MAX];
    for (unsigned i = 0; i < load->count; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            bench_die("socketpair: %s", strerror(errno));
        load->engines[i].fd = pair[0];
        theirs[i] = pair[1];
    }
    load->server_pid = fork();
    if (load->server_pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (load->server_pid == 0)
        serve(theirs, load->count, answer_bytes, core);
    for (unsigned i = 0; i < load->count; i++)
        (void)close(theirs[i]);
}

/* ---- the engines ---- */

static void send_request(const struct engine *engine, const Kvferry__EngineRequest *request)
{
    uint8_t bytes[512];
    if (kvferry__engine_request__get_packed_size(request) > sizeof(bytes))
        bench_die("a request is too long");
    size_t length = kvferry__engine_request__pack(request, bytes);
    bench_check(kvf_wire_send(engine->fd, bytes, length, NULL, 0), "a request");
}

static void send_get(struct engine *engine)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineGet get = KVFERRY__ENGINE_GET__INIT;
    Kvferry__EngineName name = KVFERRY__ENGINE_NAME__INIT, *names[] = {&name};
    char ns[] = NS;
    struct kvf_key key;
    daemon_key(&key, 0);
    name.key = (ProtobufCBinaryData){key.length, key.bytes};
    name.length = BLOCK_BYTES;
    get.namespace_ = ns;
    get.n_blocks = 1;
    get.blocks = names;
    get.deadline_us = DAEMON_TIMEOUT_MS * 1000ull;
    request.id = ++engine->last_id;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_GET;
    request.get = &get;
    send_request(engine, &request);
}

static void send_release(struct engine *engine)
{
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRelease release = KVFERRY__ENGINE_RELEASE__INIT;
    release.get = engine->last_id;
    request.id = ++engine->last_id;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_RELEASE;
    request.release = &release;
    send_request(engine, &request);
}

/* Waits; passed descriptors are dropped. */
static size_t receive(const struct engine *engine, uint8_t *bytes)
{
    ssize_t got = recv(engine->fd, bytes, KVF_WIRE_MAX_BYTES, 0);
    if (got <= 0)
        bench_die("the server is gone");
    return (size_t)got;
}

static void check_answer(const uint8_t *bytes, size_t length, uint64_t id)
{
    Kvferry__EngineReply *reply = kvferry__engine_reply__unpack(NULL, length, bytes);
    if (reply == NULL || reply->id != id || reply->code != KVF_OK ||
        reply->body_case != KVFERRY__ENGINE_REPLY__BODY_READY || reply->ready->n_blocks != 1 ||
        reply->ready->blocks[0]->code != KVF_OK || reply->ready->blocks[0]->tier != KVF_TIER_DRAM)
        bench_die("a Get was not answered with its block");
    kvferry__engine_reply__free_unpacked(reply, NULL);
}

static void register_engine(struct engine *engine, const char *run_dir)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    char path[512], engine_name[] = "events";
    Kvferry__EngineRequest request = KVFERRY__ENGINE_REQUEST__INIT;
    Kvferry__EngineRegister registers = KVFERRY__ENGINE_REGISTER__INIT;
    (void)snprintf(path, sizeof(path), "%s/engine.sock", run_dir);
    bench_check(kvf_wire_connect(path, &engine->fd), "engine.sock");
    registers.version = KVF_WIRE_VERSION;
    registers.name = engine_name;
    request.id = ++engine->last_id;
    request.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_REGISTER;
    request.register_ = &registers;
    send_request(engine, &request);
    struct pollfd answer = {.fd = engine->fd, .events = POLLIN};
    if (poll(&answer, 1, (int)DAEMON_TIMEOUT_MS) != 1)
        bench_die("an engine was not registered");
    (void)receive(engine, bytes);
}

static void watch_engines(struct load *load)
{
    load->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < load->count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &load->engines[i]};
        if (epoll_ctl(load->epoll, EPOLL_CTL_ADD, load->engines[i].fd, &event) != 0)
            bench_die("epoll: %s", strerror(errno));
    }
}

/* ---- the rounds ---- */

static void take_answer(struct bench *bench, const struct load *load, struct engine *engine,
                        bool ask_again)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    size_t length = receive(engine, bytes);
    if (load->is_ours && bench->rounds < ROUNDS_WARM_UP)
        check_answer(bytes, length, engine->last_id);
    send_release(engine);
    if (ask_again)
        send_get(engine);
}

static double run_load(struct bench *bench, struct load *load)
{
    struct epoll_event events[ENGINES_MAX];
    unsigned asked = load->count, answered = 0;
    if (bench->row->n == 0)
        load->server_cpu_s = load->seconds = 0;
    double cpu = bench_cpu_s(load->server_pid), start = bench_now_s();
    for (unsigned i = 0; i < load->count; i++)
        send_get(&load->engines[i]);
    while (answered < REQUESTS) {
        int ready = epoll_wait(load->epoll, events, ENGINES_MAX, (int)DAEMON_TIMEOUT_MS);
        if (ready <= 0)
            bench_die("no answer came");
        for (int i = 0; i < ready; i++) {
            bool more = asked < REQUESTS;
            take_answer(bench, load, events[i].data.ptr, more);
            answered++;
            asked += more;
        }
    }
    double took = bench_now_s() - start;
    load->server_cpu_s += bench_cpu_s(load->server_pid) - cpu;
    load->seconds += took;
    return took;
}

static double round_ours(void *context)
{
    struct bench *bench = context;
    double took = run_load(bench, &bench->ours);
    bench->rounds++;
    return took;
}

static double round_plain(void *context)
{
    struct bench *bench = context;
    return run_load(bench, &bench->limit);
}

static void bench_open(struct bench *bench)
{
    uint8_t bytes[KVF_WIRE_MAX_BYTES];
    const char *run_dir = bench_setting("PREFILL_DIR");
    struct kvf_client *client;
    struct engine *first = &bench->ours.engines[0];
    daemon_client(run_dir, &client);
    daemon_put(client, NS, 0, BLOCK_BYTES);
    (void)kvf_client_close(client);
    bench->ours.is_ours = true;
    bench->ours.server_pid = (int)bench_number(bench_setting("PREFILL_PID"));
    for (unsigned i = 0; i < bench->ours.count; i++)
        register_engine(&bench->ours.engines[i], run_dir);
    send_get(first);
    struct pollfd answer = {.fd = first->fd, .events = POLLIN};
    (void)poll(&answer, 1, (int)DAEMON_TIMEOUT_MS);
    bench->answer_bytes = receive(first, bytes);
    send_release(first);
    plain_start(&bench->limit, bench->answer_bytes,
                (int)bench_number(bench_setting("SOURCE_CORE")));
    watch_engines(&bench->ours);
    watch_engines(&bench->limit);
    bench_pin((int)bench_number(bench_setting("CONSUMER_CORE")));
}

int main(int argc, char **argv)
{
    static struct rounds rounds = {.name = "events",
                                   .unit = ROUNDS_PER_S,
                                   .block_bytes = BLOCK_BYTES,
                                   .round_bytes = (uint64_t)REQUESTS * BLOCK_BYTES,
                                   .round_requests = REQUESTS};
    static struct bench bench = {.row = &rounds};
    if (argc != 4)
        bench_die("events DEVICE ENGINES PAIRS");
    rounds.device = argv[1];
    bench.ours.count = bench.limit.count = (unsigned)bench_number(argv[2]);
    if (bench.ours.count < 1 || bench.ours.count > ENGINES_MAX)
        bench_die("ENGINES: 1 to %u", ENGINES_MAX);
    bench_open(&bench);
    rounds_run(&rounds, (unsigned)bench_number(argv[3]), round_ours, round_plain, NULL, &bench);
    rounds_more(&rounds, "\"engines\": %u, \"busy\": %.2f, \"limit_busy\": %.2f", bench.ours.count,
                bench.ours.server_cpu_s / bench.ours.seconds,
                bench.limit.server_cpu_s / bench.limit.seconds);
    rounds_print(&rounds);
    return 0;
}
