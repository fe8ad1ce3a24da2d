/* A peer of a verbs lane that keeps to nothing: it connects with any bytes, reads, writes and adds wherever it likes. For
 * tests of what a lane's NIC must refuse. Every call waits for its outcome, 4 s at most. Test only. */
#ifndef KVFERRY_TRANSPORT_VERBS_RAW_H
#define KVFERRY_TRANSPORT_VERBS_RAW_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

#define VERBS_RAW_BYTES (1u << 20)

struct verbs_raw {
    struct rdma_event_channel *events;
    struct rdma_cm_id *listener, *id;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct ibv_mr *mr;
    uint8_t *memory; /* where READs land and WRITEs come from */
};

/* As a consumer. False: refused, or nobody answered. */
bool verbs_raw_connect(struct verbs_raw *raw, const char *host, int port, const void *greeting,
                       uint8_t bytes);
/* As a source. Returns the port. */
int verbs_raw_listen(struct verbs_raw *raw, const char *host);
bool verbs_raw_accept(struct verbs_raw *raw, const void *greeting, uint8_t bytes);
/* A zeroed or closed one is fine. */
void verbs_raw_close(struct verbs_raw *raw);

/* An enum ibv_wc_status; -1: none came. */
int verbs_raw_read(struct verbs_raw *raw, uint32_t key, uint64_t address, uint32_t bytes);
int verbs_raw_write(struct verbs_raw *raw, uint32_t key, uint64_t address, uint32_t bytes);
int verbs_raw_add(struct verbs_raw *raw, uint32_t key, uint64_t address);

#endif
