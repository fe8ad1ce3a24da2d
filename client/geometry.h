/* Geometry: what the KV cache of one engine rank is made of, how long a block of it is, and what stands in its
 * namespace so that only interchangeable bytes share a name.
 *
 * A block is one page of tokens: for each layer of this rank, for each plane, page_tokens tokens. A plane is K or V
 * where the two lie apart (split: planes = 2), or one array where they do not (joint K/V, or MLA's latent: planes = 1).
 *
 *   token_bytes = token_elements x size of dtype         one token in one plane of one layer
 *   chunk_bytes = page_tokens x token_bytes              one page in one plane of one layer, contiguous in the cache
 *   block_bytes = layers x planes x chunk_bytes
 *
 * Qwen3-8B in bf16 (36 layers, 8 KV heads x 128, K and V apart, 64 tokens): token_elements 1024, chunk 131,072 B,
 * block 9,437,184 B (9 MiB). DeepSeek-V3 (61 layers, latent 512 + 64, 64 tokens): planes 1, token_elements 576,
 * block 4,497,408 B.
 *
 * Pure functions; free to use from every thread. Units are bytes unless a name says otherwise. */
#ifndef KVFERRY_CLIENT_GEOMETRY_H
#define KVFERRY_CLIENT_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/block.h"
#include "base/status.h"

/* The numbers travel. */
enum kvf_dtype {
    KVF_DTYPE_F32 = 1,     /* 4 bytes */
    KVF_DTYPE_F16 = 2,     /* 2 */
    KVF_DTYPE_BF16 = 3,    /* 2 */
    KVF_DTYPE_F8_E4M3 = 4, /* 1 */
    KVF_DTYPE_F8_E5M2 = 5, /* 1 */
    KVF_DTYPE_I8 = 6,      /* 1 */
    KVF_DTYPE_U8 = 7,      /* 1; also for bytes that libkvferry need not understand */
};

struct kvf_geometry {
    /* What the bytes mean. All of it is in the fingerprint. */
    const char *model; /* which weights: name and revision; any text, not empty */
    /* Order of the bytes within a block; NULL: [layer][plane][token][element], which client/device reads and writes.
     * Adapters that put host pages as they are name theirs */
    const char *layout;
    /* Whatever else tells blocks apart (hash seed, adapter weights); NULL: nothing */
    const char *salt;
    enum kvf_dtype dtype;
    uint32_t layers;           /* of this rank: 1 to 65536 */
    uint32_t planes;           /* 2: K and V apart (split); 1: joint */
    uint32_t page_tokens;      /* tokens of a block */
    uint32_t token_elements;   /* KV heads of this rank x head size; joint: of K and V together */
    uint32_t tp_rank, tp_size; /* rank < size; sizes of 0 count as 1 */
    uint32_t pp_rank, pp_size;
    /* Every TP rank has the same KV (MLA): the rank is then not in the fingerprint */
    bool replicated;

    /* Where this process's cache has its chunks: chunk (page, layer, plane) begins at base + page x page_stride + layer x
     * layer_stride + plane x plane_stride. All 0: page-first, without gaps. Layer or plane 0 alone: they lie unevenly
     * (client/device takes a list then). Not in the fingerprint, for blocks are the same whatever the cache looks like. */
    uint64_t page_stride, layer_stride, plane_stride;
};

/* INVALID with a line that names the field in *why (may be NULL); TOO_LARGE when a block would be longer than
 * KVF_BLOCK_MAX_BYTES. */
KVF_MUST_USE struct kvf_status kvf_geometry_check(const struct kvf_geometry *geometry,
                                                  struct kvf_why *why);

/* Of a checked geometry. */
uint64_t kvf_geometry_chunk_bytes(const struct kvf_geometry *geometry);
uint64_t kvf_geometry_block_bytes(const struct kvf_geometry *geometry);

/* The strides of the two usual caches: [page][layer][plane] and [layer][plane][page], each chunk beside the next. */
void kvf_geometry_page_first(struct kvf_geometry *geometry);
void kvf_geometry_layer_first(struct kvf_geometry *geometry, uint64_t pages);

/* "bf16", "f8e4m3", ...; "unknown". */
const char *kvf_dtype_name(unsigned dtype);
/* 0 for a number that is no dtype. */
uint32_t kvf_dtype_bytes(unsigned dtype);

/* TENANT/FINGERPRINT of a checked geometry. The fingerprint is what people read (model, dtype, shape, rank) and 32 hex
 * digits over all of it, the model's and the salt's own bytes included: other geometry is another namespace. INVALID:
 * `tenant` is no tenant's name, or too long. */
KVF_MUST_USE struct kvf_status kvf_geometry_namespace(const struct kvf_geometry *geometry,
                                                      const char *tenant,
                                                      char text[KVF_NAMESPACE_MAX_BYTES + 1]);

#ifdef __cplusplus
}
#endif

#endif
