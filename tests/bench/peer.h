/* peer: other systems that serve the same blocks, each over its own protocol and as its clients do it best: memcached
 * by one `get` of all keys on one connection, nginx by pipelined HTTP/1.1 requests on four. Blocking, one thread; bytes
 * are received where they belong. Dies when anything else than the blocks comes. */
#ifndef KVFERRY_TESTS_BENCH_PEER_H
#define KVFERRY_TESTS_BENCH_PEER_H

#include <stddef.h>
#include <stdint.h>

#define PEER_CONNECTIONS 4u

enum peer_kind {
    PEER_MEMCACHED,
    PEER_NGINX,
};

struct peer_stream {
    int fd;
    size_t at, end, fill_bytes; /* of buffer; how much to receive there at once */
    uint8_t buffer[1 << 16];
};

struct peer {
    enum peer_kind kind;
    uint64_t block_bytes;
    size_t count;
    char *request; /* of all blocks, memcached */
    struct peer_stream streams[PEER_CONNECTIONS];
};

/* Connect to 127.0.0.1:port and bring `count` blocks of bench_fill(block, its number) there: into the cache, or for
 * nginx into files of `root`, written through. */
void peer_open(struct peer *peer, enum peer_kind kind, uint16_t port, const char *root,
               uint64_t block_bytes, size_t count);
/* Seconds to get all of them, one after the other at `to`. */
double peer_get(struct peer *peer, uint8_t *to);
/* Is what peer_get brought what peer_open gave? */
void peer_check(const struct peer *peer, const uint8_t *bytes);

#endif
