/* Pinning the pool for the kernel: the reader rings' fixed buffers, registered once and cloned to all rings where the
 * kernel can, else ring by ring; and not at all where RLIMIT_MEMLOCK says beforehand that it cannot work. */
#ifndef KVFERRY_STORAGE_PIN_H
#define KVFERRY_STORAGE_PIN_H

#include "storage/engine.h"

#include <stddef.h>

struct kvf_arena;

struct kvf_pin {
    struct iovec *buffers; /* the arenas */
    unsigned buffer_count;
    uint64_t bytes;          /* of all arenas */
    struct kvf_ring *holder; /* NULL: every ring registers for itself */
    bool off;                /* nothing is to be registered: see error */
    int error;               /* the first refusal, -errno */
    uint64_t needed_bytes;   /* of lockable memory */
    uint64_t limit_bytes;    /* UINT64_MAX: none */
    uint64_t took_ns;        /* all registrations and clones */
    unsigned registrations, clones;
};

/* Decides how, and registers the holder. locked_bytes: of others in this process, below the same limit. False: no
 * memory; fini is due all the same. */
bool kvf_pin_init(struct kvf_pin *pin, const struct kvf_engine *engine,
                  const struct kvf_arena *const *arenas, size_t arena_count, uint64_t locked_bytes,
                  unsigned rings);
/* Every ring that cloned from it is closed. */
void kvf_pin_fini(struct kvf_pin *pin, const struct kvf_engine *engine);

/* The ring, of this thread, gets its fixed buffers: KVF_FIX_* or -errno. Changes nothing in *pin. */
int kvf_pin_ring(const struct kvf_pin *pin, struct kvf_ring *ring);
/* Take note of what kvf_pin_ring said and how long it took. */
void kvf_pin_count(struct kvf_pin *pin, int result, uint64_t took_ns);

/* "fixed buffers (...)" or "plain buffers: <remedy>". */
void kvf_pin_text(const struct kvf_pin *pin, char *text, size_t bytes);

#endif
