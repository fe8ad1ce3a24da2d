/* A peer that says over a link and over UCX whatever a test wants. Test only. */
#ifndef KVFERRY_TRANSPORT_UCX_RAW_H
#define KVFERRY_TRANSPORT_UCX_RAW_H

#include "transport/testbed.h"

#include "transport/ucx_library.h"
#include "transport/ucx_wire.h"

#define UCX_RAW_SENDS 16

struct ucx_raw {
    int listener, fd;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint; /* NULL: none */
    uint8_t heard[UCX_HELLO_MAX_BYTES];
    unsigned begun, ended; /* sends */
    ucs_status_t statuses[UCX_RAW_SENDS];
    bool refuses; /* what is announced to it; else it never answers */
    unsigned announced;
};

/* A source at a port of its own, for the testbed's consumer lane, which is open when this returns. */
struct ucx_raw *ucx_raw_source(void);
/* A consumer on the testbed's source lane, which is open when this returns. */
struct ucx_raw *ucx_raw_consumer(void);
/* The halves of these: it has the connection, and has heard the consumer's hello. */
struct ucx_raw *ucx_raw_source_half(uint64_t timeout_ms);
struct ucx_raw *ucx_raw_consumer_half(uint64_t timeout_ms);
/* It has an endpoint, and does not say so: the lane is not open. */
struct ucx_raw *ucx_raw_consumer_connecting(void);
/* On the link: this nonce, an address of so many bytes, that many of which are sent. */
void ucx_raw_say(struct ucx_raw *raw, const struct kvf_nonce *nonce, uint32_t address_bytes,
                 size_t sent_bytes);
/* A third one, who found out a lane's address somehow. */
struct ucx_raw *ucx_raw_stranger(const uint8_t *hello);
void ucx_raw_end(struct ucx_raw *raw);

void ucx_raw_send(struct ucx_raw *raw, unsigned id, const void *header, size_t header_bytes,
                  const void *data, size_t bytes, uint32_t flags);
/* A piece of Read, as a source sends it. */
void ucx_raw_piece(struct ucx_raw *raw, const struct lane_header *header, const void *data);
/* Serves both until this many sends have ended, a few seconds at most. */
void ucx_raw_wait_ended(struct ucx_raw *raw, unsigned count);
void ucx_raw_serve_ms(struct ucx_raw *raw, unsigned ms);

#endif
