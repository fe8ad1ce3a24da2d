/* Parts: a stream of lines and bytes; memcached; nginx; opening. */
#include "tests/bench/peer.h"

#include "tests/bench/plain.h"
#include "tests/bench/rounds.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LINE_MAX_BYTES 512u
#define SMALL_BYTES                                                                                \
    ((uint64_t)16 << 10) /* shorter blocks come by way of the buffer, several at once */
#define RECEIVE_BYTES ((uint64_t)128 << 10)

/* ---- a stream ---- */

static size_t receive(int fd, uint8_t *to, size_t bytes)
{
    for (;;) {
        ssize_t got = recv(fd, to, bytes, 0);
        if (got > 0)
            return (size_t)got;
        if (got == 0 || errno != EINTR)
            bench_die("the peer closed: %s", got == 0 ? "end of file" : strerror(errno));
    }
}

static void send_text(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(fd, text, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            bench_die("send to the peer: %s", strerror(errno));
        text += sent;
        bytes -= (size_t)sent;
    }
}

/* One line without its end. */
static void take_line(struct peer_stream *stream, char *line)
{
    for (size_t used = 0; used < LINE_MAX_BYTES; used++) {
        if (stream->at == stream->end) {
            stream->at = 0;
            stream->end = receive(stream->fd, stream->buffer, stream->fill_bytes);
        }
        line[used] = (char)stream->buffer[stream->at++];
        if (line[used] == '\n') {
            line[used > 0 && line[used - 1] == '\r' ? used - 1 : used] = '\0';
            return;
        }
    }
    bench_die("the peer sent a long line");
}

static void take_bytes(struct peer_stream *stream, uint8_t *to, uint64_t bytes)
{
    while (bytes > 0) {
        if (stream->at == stream->end && bytes >= SMALL_BYTES) {
            size_t got = receive(stream->fd, to, bytes < RECEIVE_BYTES ? bytes : RECEIVE_BYTES);
            to += got;
            bytes -= got;
            continue;
        }
        if (stream->at == stream->end) {
            stream->at = 0;
            stream->end = receive(stream->fd, stream->buffer, stream->fill_bytes);
        }
        uint64_t here = stream->end - stream->at, take = here < bytes ? here : bytes;
        memcpy(to, stream->buffer + stream->at, take);
        stream->at += take;
        to += take;
        bytes -= take;
    }
}

/* ---- memcached ---- */

static void memcached_set(struct peer *peer, size_t block, const uint8_t *bytes)
{
    char line[LINE_MAX_BYTES + 1];
    struct peer_stream *stream = &peer->streams[0];
    int length = snprintf(line, sizeof(line), "set b%llu-%zu 0 0 %llu\r\n",
                          (unsigned long long)peer->block_bytes, block,
                          (unsigned long long)peer->block_bytes);
    send_text(stream->fd, line, (size_t)length);
    send_text(stream->fd, (const char *)bytes, peer->block_bytes);
    send_text(stream->fd, "\r\n", 2);
    take_line(stream, line);
    if (strcmp(line, "STORED") != 0)
        bench_die("memcached does not store: %s", line);
}

static void memcached_request(struct peer *peer)
{
    size_t room = 16 + peer->count * 40, used;
    peer->request = bench_allocate(room);
    used = (size_t)snprintf(peer->request, room, "get");
    for (size_t i = 0; i < peer->count; i++)
        used += (size_t)snprintf(peer->request + used, room - used, " b%llu-%zu",
                                 (unsigned long long)peer->block_bytes, i);
    (void)snprintf(peer->request + used, room - used, "\r\n");
}

static void memcached_get(struct peer *peer, uint8_t *to)
{
    char line[LINE_MAX_BYTES + 1];
    struct peer_stream *stream = &peer->streams[0];
    send_text(stream->fd, peer->request, strlen(peer->request));
    for (size_t i = 0; i < peer->count; i++) {
        take_line(stream, line);
        if (strncmp(line, "VALUE ", 6) != 0)
            bench_die("memcached lost block %zu: %s", i, line);
        take_bytes(stream, to + i * peer->block_bytes, peer->block_bytes);
        take_line(stream, line);
    }
    take_line(stream, line);
    if (strcmp(line, "END") != 0)
        bench_die("memcached sent more: %s", line);
}

/* ---- nginx ---- */

static void nginx_file(const struct peer *peer, const char *root, size_t block,
                       const uint8_t *bytes)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/b%llu-%zu", root, (unsigned long long)peer->block_bytes,
                   block);
    plain_file_write(path, bytes, peer->block_bytes);
}

static void nginx_take(const struct peer *peer, struct peer_stream *stream, uint8_t *to)
{
    char line[LINE_MAX_BYTES + 1];
    unsigned long long length = 0;
    take_line(stream, line);
    if (strncmp(line, "HTTP/1.1 200", 12) != 0)
        bench_die("nginx: %s", line);
    for (take_line(stream, line); line[0] != '\0'; take_line(stream, line))
        (void)sscanf(line, "Content-Length: %llu", &length);
    if (length != peer->block_bytes)
        bench_die("nginx sends %llu bytes", length);
    take_bytes(stream, to, length);
}

static void nginx_get(struct peer *peer, uint8_t *to)
{
    char text[LINE_MAX_BYTES];
    for (size_t i = 0; i < peer->count; i++) {
        int length = snprintf(text, sizeof(text), "GET /b%llu-%zu HTTP/1.1\r\nHost: x\r\n\r\n",
                              (unsigned long long)peer->block_bytes, i);
        send_text(peer->streams[i % PEER_CONNECTIONS].fd, text, (size_t)length);
    }
    for (size_t i = 0; i < peer->count; i++)
        nginx_take(peer, &peer->streams[i % PEER_CONNECTIONS], to + i * peer->block_bytes);
}

/* ---- both ---- */

static void stream_open(struct peer_stream *stream, uint16_t port, uint64_t block_bytes)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    stream->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (stream->fd < 0 || connect(stream->fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        bench_die("the peer at port %u: %s", port, strerror(errno));
    (void)setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    stream->fill_bytes = block_bytes < SMALL_BYTES ? sizeof(stream->buffer) : 512;
}

void peer_open(struct peer *peer, enum peer_kind kind, uint16_t port, const char *root,
               uint64_t block_bytes, size_t count)
{
    uint8_t *bytes = bench_memory(block_bytes);
    *peer = (struct peer){.kind = kind, .block_bytes = block_bytes, .count = count};
    for (unsigned i = 0; i < (kind == PEER_NGINX ? PEER_CONNECTIONS : 1); i++)
        stream_open(&peer->streams[i], port, block_bytes);
    for (size_t i = 0; i < count; i++) {
        bench_fill(bytes, block_bytes, i);
        if (kind == PEER_NGINX)
            nginx_file(peer, root, i, bytes);
        else
            memcached_set(peer, i, bytes);
    }
    if (kind == PEER_MEMCACHED)
        memcached_request(peer);
}

double peer_get(struct peer *peer, uint8_t *to)
{
    double start = bench_now_s();
    if (peer->kind == PEER_NGINX)
        nginx_get(peer, to);
    else
        memcached_get(peer, to);
    return bench_now_s() - start;
}

void peer_check(const struct peer *peer, const uint8_t *bytes)
{
    uint8_t *expected = bench_allocate(peer->block_bytes);
    for (size_t i = 0; i < peer->count; i++) {
        bench_fill(expected, peer->block_bytes, i);
        if (memcmp(expected, bytes + i * peer->block_bytes, peer->block_bytes) != 0)
            bench_die("the peer's block %zu has other bytes", i);
    }
    free(expected);
}
