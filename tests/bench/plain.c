#include "tests/bench/plain.h"

#include "tests/bench/rounds.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of 128 KiB to 4 MiB, with and without MSG_WAITALL, this makes the fastest limit. */
#define RECEIVE_BYTES ((uint64_t)128 << 10)

enum plain_what {
    PLAIN_MEMORY,
    PLAIN_PIPE,
    PLAIN_READS,
};

struct plain_request {
    uint64_t what;
    uint64_t bytes;
};

/* The source's own. */
struct server {
    int fd;
    int file;
    uint8_t *memory;
    uint8_t *window; /* PLAIN_DEPTH pieces */
    struct io_uring ring;
    uint64_t submitted; /* pieces */
    bool is_here[PLAIN_DEPTH];
};

static void send_all(int fd, const uint8_t *from, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t sent =
            send(fd, from, bytes < PLAIN_PIECE_BYTES ? bytes : PLAIN_PIECE_BYTES, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            bench_die("plain send: %s", strerror(errno));
        from += sent;
        bytes -= (uint64_t)sent;
    }
}

/* False at the end of the stream. */
static bool receive_all(int fd, void *to, uint64_t bytes)
{
    uint8_t *at = to;
    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes < RECEIVE_BYTES ? bytes : RECEIVE_BYTES, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            bench_die("plain recv: %s", strerror(errno));
        if (got == 0)
            return false;
        at += got;
        bytes -= (uint64_t)got;
    }
    return true;
}

/* ---- the source: reads ---- */

static uint64_t piece_length(uint64_t piece, uint64_t bytes)
{
    uint64_t left = bytes - piece * PLAIN_PIECE_BYTES;
    return left < PLAIN_PIECE_BYTES ? left : PLAIN_PIECE_BYTES;
}

static void submit_piece(struct server *server, uint64_t bytes)
{
    uint64_t piece = server->submitted++;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&server->ring);
    io_uring_prep_read(sqe, server->file, server->window + piece % PLAIN_DEPTH * PLAIN_PIECE_BYTES,
                       (unsigned)piece_length(piece, bytes), piece * PLAIN_PIECE_BYTES);
    io_uring_sqe_set_data64(sqe, piece);
}

static void wait_for_piece(struct server *server, uint64_t piece, uint64_t bytes)
{
    while (!server->is_here[piece % PLAIN_DEPTH]) {
        struct io_uring_cqe *cqe;
        if (io_uring_wait_cqe(&server->ring, &cqe) != 0)
            continue;
        uint64_t landed = io_uring_cqe_get_data64(cqe);
        if (cqe->res < 0 || (uint64_t)cqe->res != piece_length(landed, bytes))
            bench_die("plain read: %s", cqe->res < 0 ? strerror(-cqe->res) : "the file is short");
        server->is_here[landed % PLAIN_DEPTH] = true;
        io_uring_cqe_seen(&server->ring, cqe);
    }
    server->is_here[piece % PLAIN_DEPTH] = false;
}

static void serve_file(struct server *server, uint64_t bytes, bool and_send)
{
    uint64_t pieces = (bytes + PLAIN_PIECE_BYTES - 1) / PLAIN_PIECE_BYTES;
    server->submitted = 0;
    while (server->submitted < pieces && server->submitted < PLAIN_DEPTH)
        submit_piece(server, bytes);
    (void)io_uring_submit(&server->ring);
    for (uint64_t piece = 0; piece < pieces; piece++) {
        wait_for_piece(server, piece, bytes);
        if (and_send)
            send_all(server->fd, server->window + piece % PLAIN_DEPTH * PLAIN_PIECE_BYTES,
                     piece_length(piece, bytes));
        if (server->submitted < pieces) {
            submit_piece(server, bytes);
            (void)io_uring_submit(&server->ring);
        }
    }
    if (!and_send)
        send_all(server->fd, server->window, 1);
}

/* ---- the source: its process ---- */

static void serve(struct server *server)
{
    struct plain_request request;
    while (receive_all(server->fd, &request, sizeof(request))) {
        if (request.what == PLAIN_MEMORY)
            send_all(server->fd, server->memory, request.bytes);
        else
            serve_file(server, request.bytes, request.what == PLAIN_PIPE);
    }
}

/* On loopback BBR, where it is the host's default, would make the limit a third slower. */
static void tune(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", strlen("cubic"));
}

__attribute__((noreturn)) static void source_process(int listener, int core, uint64_t bytes,
                                                     const char *path)
{
    struct server server = {.file = -1};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(core);
    server.memory = bench_memory(bytes);
    server.window = bench_memory(PLAIN_DEPTH * PLAIN_PIECE_BYTES);
    if (path != NULL) {
        server.file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (server.file < 0)
            bench_die("%s: %s", path, strerror(errno));
        int error = io_uring_queue_init(PLAIN_DEPTH, &server.ring, 0);
        if (error != 0)
            bench_die("io_uring: %s", strerror(-error));
    }
    server.fd = accept(listener, NULL, NULL);
    if (server.fd < 0)
        bench_die("plain accept: %s", strerror(errno));
    tune(server.fd);
    serve(&server);
    _exit(0);
}

void plain_source_start(struct plain_source *source, int core, uint64_t bytes, const char *path)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        bench_die("plain listen: %s", strerror(errno));
    source->pid = fork();
    if (source->pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (source->pid == 0)
        source_process(listener, core, bytes, path);
    source->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (source->fd < 0 || connect(source->fd, (struct sockaddr *)&address, length) != 0)
        bench_die("plain connect: %s", strerror(errno));
    tune(source->fd);
    (void)close(listener);
}

void plain_source_stop(struct plain_source *source)
{
    (void)close(source->fd);
    (void)waitpid(source->pid, NULL, 0);
}

/* ---- the consumer ---- */

static double ask(struct plain_source *source, enum plain_what what, uint8_t *to, uint64_t bytes,
                  uint64_t expected)
{
    struct plain_request request = {.what = what, .bytes = bytes};
    double start = bench_now_s();
    send_all(source->fd, (const uint8_t *)&request, sizeof(request));
    if (!receive_all(source->fd, to, expected))
        bench_die("the plain source ended");
    return bench_now_s() - start;
}

double plain_from_memory(struct plain_source *source, uint8_t *to, uint64_t bytes)
{
    return ask(source, PLAIN_MEMORY, to, bytes, bytes);
}

double plain_from_file(struct plain_source *source, uint8_t *to, uint64_t bytes)
{
    return ask(source, PLAIN_PIPE, to, bytes, bytes);
}

double plain_reads_only(struct plain_source *source, uint64_t bytes)
{
    uint8_t done;
    return ask(source, PLAIN_READS, &done, bytes, sizeof(done));
}

void plain_file_make(const char *path, uint64_t bytes)
{
    struct stat file;
    if (stat(path, &file) == 0 && (uint64_t)file.st_size >= bytes)
        return;
    uint8_t *memory = bench_memory(PLAIN_PIECE_BYTES);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0)
        bench_die("%s: %s", path, strerror(errno));
    for (uint64_t done = 0; done < bytes; done += PLAIN_PIECE_BYTES)
        if (write(fd, memory, PLAIN_PIECE_BYTES) != (ssize_t)PLAIN_PIECE_BYTES)
            bench_die("%s: cannot write %llu bytes: %s", path, (unsigned long long)bytes,
                      strerror(errno));
    if (fsync(fd) != 0)
        bench_die("%s: %s", path, strerror(errno));
    (void)close(fd);
    (void)munmap(memory, PLAIN_PIECE_BYTES);
}

void plain_file_write(const char *path, const uint8_t *from, uint64_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, from, bytes) != (ssize_t)bytes || fsync(fd) != 0)
        bench_die("%s: cannot write %llu bytes: %s", path, (unsigned long long)bytes,
                  strerror(errno));
    (void)close(fd);
}
