/* Parts: dtypes, checking, sizes and strides, the namespace. */
#include "client/geometry.h"

#include <stdio.h>

#define LAYERS_MAX 65536u
#define PAGE_TOKENS_MAX (1u << 20)
#define TOKEN_ELEMENTS_MAX (1u << 24)
#define TEXT_MAX_BYTES 1000u
#define MODEL_SHOWN_BYTES 40

/* ---- dtypes ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [KVF_DTYPE_F32] = {"f32", 4},        [KVF_DTYPE_F16] = {"f16", 2},
    [KVF_DTYPE_BF16] = {"bf16", 2},      [KVF_DTYPE_F8_E4M3] = {"f8e4m3", 1},
    [KVF_DTYPE_F8_E5M2] = {"f8e5m2", 1}, [KVF_DTYPE_I8] = {"i8", 1},
    [KVF_DTYPE_U8] = {"u8", 1},
};

static bool is_dtype(unsigned dtype)
{
    return dtype < sizeof(dtypes) / sizeof(dtypes[0]) && dtypes[dtype].bytes > 0;
}

const char *kvf_dtype_name(unsigned dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "unknown";
}

uint32_t kvf_dtype_bytes(unsigned dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

/* ---- checking ---- */

static uint32_t at_least_one(uint32_t size)
{
    return size > 0 ? size : 1;
}

static const char *text_of(const char *text)
{
    return text != NULL ? text : "";
}

static bool ranks_are_valid(const struct kvf_geometry *geometry)
{
    return geometry->tp_rank < at_least_one(geometry->tp_size) &&
           geometry->pp_rank < at_least_one(geometry->pp_size);
}

static bool has_strides(const struct kvf_geometry *geometry)
{
    return (geometry->page_stride | geometry->layer_stride | geometry->plane_stride) != 0;
}

/* A stride that is said is a chunk at least; where chunks lie unevenly it is 0. */
static bool strides_are_valid(const struct kvf_geometry *geometry)
{
    uint64_t chunk = kvf_geometry_chunk_bytes(geometry);
    return !has_strides(geometry) ||
           (geometry->page_stride >= chunk &&
            (geometry->layer_stride == 0 || geometry->layer_stride >= chunk) &&
            (geometry->plane_stride == 0 || geometry->plane_stride >= chunk));
}

static const char *what_is_wrong(const struct kvf_geometry *geometry)
{
    if (text_of(geometry->model)[0] == '\0')
        return "model is empty: name the weights and their revision";
    if (strlen(geometry->model) > TEXT_MAX_BYTES ||
        strlen(text_of(geometry->layout)) > TEXT_MAX_BYTES ||
        strlen(text_of(geometry->salt)) > TEXT_MAX_BYTES)
        return "model, layout and salt have at most 1000 bytes each";
    if (!is_dtype((unsigned)geometry->dtype))
        return "dtype is none of enum kvf_dtype";
    if (geometry->layers < 1 || geometry->layers > LAYERS_MAX)
        return "layers: 1 to 65536";
    if (geometry->planes < 1 || geometry->planes > 2)
        return "planes: 2 where K and V lie apart, else 1";
    if (geometry->page_tokens < 1 || geometry->page_tokens > PAGE_TOKENS_MAX)
        return "page_tokens: 1 to 1048576";
    if (geometry->token_elements < 1 || geometry->token_elements > TOKEN_ELEMENTS_MAX)
        return "token_elements: 1 to 16777216";
    if (!ranks_are_valid(geometry))
        return "a rank is not below its size";
    if (!strides_are_valid(geometry))
        return "a stride is shorter than a chunk";
    return NULL;
}

struct kvf_status kvf_geometry_check(const struct kvf_geometry *geometry, struct kvf_why *why)
{
    const char *wrong = what_is_wrong(geometry);
    if (wrong != NULL)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0), "geometry: %s", wrong);
    uint64_t bytes = kvf_geometry_block_bytes(geometry);
    if (bytes > KVF_BLOCK_MAX_BYTES)
        return kvf_why_set(
            why, kvf_fail(KVF_MODULE_CLIENT, KVF_TOO_LARGE, 0),
            "geometry: a block of %llu bytes is longer than %llu: take fewer tokens a page",
            (unsigned long long)bytes, (unsigned long long)KVF_BLOCK_MAX_BYTES);
    return kvf_ok();
}

/* ---- sizes and strides ---- */

/* The limits above keep every product below 2^64: 2^20 x 2^24 x 4, and 2^46 x 2^17. */
uint64_t kvf_geometry_chunk_bytes(const struct kvf_geometry *geometry)
{
    return (uint64_t)geometry->page_tokens * geometry->token_elements *
           kvf_dtype_bytes((unsigned)geometry->dtype);
}

uint64_t kvf_geometry_block_bytes(const struct kvf_geometry *geometry)
{
    return (uint64_t)geometry->layers * geometry->planes * kvf_geometry_chunk_bytes(geometry);
}

void kvf_geometry_page_first(struct kvf_geometry *geometry)
{
    geometry->plane_stride = kvf_geometry_chunk_bytes(geometry);
    geometry->layer_stride = geometry->planes * geometry->plane_stride;
    geometry->page_stride = geometry->layers * geometry->layer_stride;
}

void kvf_geometry_layer_first(struct kvf_geometry *geometry, uint64_t pages)
{
    geometry->page_stride = kvf_geometry_chunk_bytes(geometry);
    geometry->plane_stride = pages * geometry->page_stride;
    geometry->layer_stride = geometry->planes * geometry->plane_stride;
}

/* ---- the namespace ---- */

/* FNV-1a, 128 bits: against chance, not against malice, for whoever names the geometry may write the namespace anyway. */
struct digest {
    unsigned __int128 value;
};

static void digest_bytes(struct digest *digest, const void *bytes, size_t count)
{
    const unsigned __int128 prime = ((unsigned __int128)1 << 88) + 0x13b;
    const uint8_t *at = bytes;
    for (size_t i = 0; i < count; i++)
        digest->value = (digest->value ^ at[i]) * prime;
}

static void digest_text(struct digest *digest, const char *text)
{
    text = text_of(text);
    digest_bytes(digest, text,
                 strlen(text) + 1); /* with its end, so that texts do not run together */
}

static struct digest digest_geometry(const struct kvf_geometry *geometry, const char *shown)
{
    struct digest digest = {((unsigned __int128)UINT64_C(0x6c62272e07bb0142) << 64) |
                            UINT64_C(0x62b821756295c58d)};
    digest_text(&digest, "kvferry geometry 1");
    digest_text(&digest, geometry->model);
    digest_text(&digest, geometry->layout);
    digest_text(&digest, geometry->salt);
    digest_text(&digest, shown);
    return digest;
}

/* The model's name as far as a namespace takes its bytes. */
static void shorten(const char *model, char shown[MODEL_SHOWN_BYTES + 1])
{
    size_t length = strlen(model);
    if (length > MODEL_SHOWN_BYTES)
        length = MODEL_SHOWN_BYTES;
    for (size_t i = 0; i < length; i++) {
        char c = model[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '.' || c == '_';
        shown[i] = plain ? c : '-';
    }
    shown[length] = '\0';
}

struct kvf_status kvf_geometry_namespace(const struct kvf_geometry *geometry, const char *tenant,
                                         char text[KVF_NAMESPACE_MAX_BYTES + 1])
{
    char model[MODEL_SHOWN_BYTES + 1], tp[32] = "", shape[160];
    shorten(geometry->model, model);
    if (!geometry->replicated)
        (void)snprintf(tp, sizeof(tp), ".tp%uof%u", geometry->tp_rank,
                       at_least_one(geometry->tp_size));
    (void)snprintf(shape, sizeof(shape), "%s.l%ux%u.t%u.e%u%s.pp%uof%u",
                   kvf_dtype_name((unsigned)geometry->dtype), geometry->layers, geometry->planes,
                   geometry->page_tokens, geometry->token_elements, tp, geometry->pp_rank,
                   at_least_one(geometry->pp_size));
    struct digest digest = digest_geometry(geometry, shape);
    int length =
        snprintf(text, KVF_NAMESPACE_MAX_BYTES + 1, "%s/%s.%s.%016llx%016llx", tenant, model, shape,
                 (unsigned long long)(digest.value >> 64), (unsigned long long)digest.value);
    if (length > (int)KVF_NAMESPACE_MAX_BYTES || !kvf_namespace_is_valid(text))
        return kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    return kvf_ok();
}
