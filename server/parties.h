/* Who sends Reads, for admission: a party per identity and one below it per engine instance on whose
 * behalf a Read comes. Each exists as long as somebody has joined it. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_PARTIES_H
#define KVFERRY_SERVER_PARTIES_H

#include "server/admission.h"

struct kvf_parties {
    struct kvf_list identities;
    uint64_t per_identity_limit_bytes;
};

void kvf_parties_init(struct kvf_parties *parties, uint64_t per_identity_limit_bytes);
/* The party of this name, made when it is not there. NULL: out of memory. */
struct kvf_party *kvf_parties_join(struct kvf_parties *parties, const char *identity);
/* The party of one instance of a process of this identity, likewise. Joins the identity as well. */
struct kvf_party *kvf_parties_join_instance(struct kvf_party *identity, uint64_t process,
                                            uint64_t instance);
/* Once for each join. */
void kvf_parties_leave(struct kvf_party *party);

#endif
