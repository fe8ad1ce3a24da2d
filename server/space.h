/* Interned namespaces: every block of one shares its text, and a record on the SSD side of the index names it by a
 * number. A namespace is there as long as it has blocks. Owner thread: the Manager's. */
#ifndef KVFERRY_SERVER_SPACE_H
#define KVFERRY_SERVER_SPACE_H

#include "base/block.h"
#include "base/slab.h"
#include "base/status.h"
#include "base/table.h"
#include "server/tenants.h"

struct kvf_space {
    struct kvf_table_node node;
    struct kvf_tenant *tenant; /* entered */
    uint64_t blocks;
    uint32_t number; /* another one's when the last block is gone */
    char text[KVF_NAMESPACE_MAX_BYTES + 1];
};

struct kvf_spaces {
    struct kvf_table names;
    struct kvf_slabs memory;     /* by number */
    struct kvf_tenants *tenants; /* borrowed */
    uint64_t seed;
};

KVF_MUST_USE struct kvf_status kvf_spaces_init(struct kvf_spaces *spaces,
                                               struct kvf_tenants *tenants, uint64_t seed);
/* Fine when init failed, or all bytes are 0. */
void kvf_spaces_fini(struct kvf_spaces *spaces);

/* NULL: it has no blocks. */
struct kvf_space *kvf_spaces_find(const struct kvf_spaces *spaces, const char *text);
struct kvf_space *kvf_spaces_at(const struct kvf_spaces *spaces, uint32_t number);
/* It has one block more, which may be its first; the text is a valid namespace. NULL: no memory. */
struct kvf_space *kvf_spaces_enter(struct kvf_spaces *spaces, const char *text);
/* It has one block less; it is gone with the last. */
void kvf_spaces_leave(struct kvf_spaces *spaces, struct kvf_space *space);
uint64_t kvf_spaces_bytes(const struct kvf_spaces *spaces);

#endif
