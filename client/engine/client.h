/* Registration, apart from how the connection came to be. */
#ifndef KVFERRY_CLIENT_ENGINE_CLIENT_H
#define KVFERRY_CLIENT_ENGINE_CLIENT_H

#include "client/engine/dialog.h"

/* Ask to be registered and map the arenas. On an error the client is to be destroyed. `path` is for
 * *why only; geometry may be NULL. */
KVF_MUST_USE struct kvf_status client_register(struct kvf_client *client, const char *name,
                                               const struct kvf_geometry *geometry,
                                               const char *path, uint64_t deadline_ns,
                                               struct kvf_why *why);

#endif
