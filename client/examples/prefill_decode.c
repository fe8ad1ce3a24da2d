/* A prefill engine puts the KV of a prompt into its kvferryd; a decode engine on another node gets it from its own, which pulls it.
 *
 *   prefill_decode prefill /run/kvferry/engine.sock
 *   prefill_decode decode  /run/kvferry/engine.sock 10.0.0.7:9470     the prefill node's --listen
 *
 *   cc prefill_decode.c -o prefill_decode $(pkg-config --cflags --libs kvferry) */
#include <kvferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 12u /* a prompt of 768 tokens */

static const struct kvf_geometry qwen3_8b = {.model = "Qwen/Qwen3-8B",
                                             .dtype = KVF_DTYPE_BF16,
                                             .layers = 36,
                                             .planes = 2,
                                             .page_tokens = 64,
                                             .token_elements = 1024};

/* An engine hashes a page's tokens and all before them; here the page's number will do. */
static struct kvf_key key_of(uint32_t page)
{
    struct kvf_key key = {.length = sizeof(page)};
    memcpy(key.bytes, &page, sizeof(page));
    return key;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4 || (strcmp(argv[1], "prefill") != 0 && argc == 3))
        return 2;
    const bool decodes = argc == 4;
    const uint64_t page_bytes = kvf_geometry_block_bytes(&qwen3_8b);
    char ns[KVF_NAMESPACE_MAX_BYTES + 1];
    struct kvf_engine_options options = {
        .socket_path = argv[2], .name = argv[1], .geometry = &qwen3_8b};
    struct kvf_engine *engine = NULL;
    struct kvf_why why;
    if (!kvf_is_ok(kvf_geometry_namespace(&qwen3_8b, "acme", ns)) ||
        !kvf_is_ok(kvf_engine_open(&options, &engine, &why)) ||
        !kvf_is_ok(kvf_engine_wait_up(engine, 3000, &why))) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    uint8_t *cache = calloc(PAGES, page_bytes); /* the engine's own KV cache, in host memory */
    if (cache == NULL)
        return 1;
    struct kvf_item items[PAGES] = {0};
    for (uint32_t i = 0; i < PAGES; i++) {
        items[i] = (struct kvf_item){
            .key = key_of(i), .length = page_bytes, .memory = cache + i * page_bytes};
        if (!decodes)
            memset(items[i].memory, (int)i + 1, page_bytes); /* the prefill computes */
    }
    struct kvf_op op = {.kind = decodes ? KVF_OP_GET : KVF_OP_PUT,
                        .flags = decodes ? KVF_OP_VERIFY | KVF_OP_STOP_AT_FIRST_MISS : 0,
                        .ns = ns,
                        .source = decodes ? argv[3] : NULL,
                        .timeout_ms = 10000,
                        .items = items,
                        .count = PAGES};
    struct kvf_status status = kvf_engine_run(engine, &op);
    for (uint32_t i = 0; decodes && i < op.prefix; i++)
        if (cache[i * page_bytes] != i + 1 || cache[(i + 1) * page_bytes - 1] != i + 1)
            return 1;
    /* What is not in the prefix is computed, as if there were no kvferry. */
    printf("%s: %s, %zu of %u pages\n", argv[1], kvf_code_name(status.code), op.prefix, PAGES);
    kvf_engine_close(engine);
    free(cache);
    return op.prefix == PAGES ? 0 : 4;
}
