/* What the header's structs look like to this compiler, for kvferry_test: "struct.field offset size" a line. */
#include "client/kvferry.h"

#include <stdio.h>

#define STRUCT(name) (void)printf("%s 0 %zu\n", #name, sizeof(struct kvf_##name))
#define FIELD(name, field)                                                                         \
    (void)printf("%s.%s %zu %zu\n", #name, #field, offsetof(struct kvf_##name, field),             \
                 sizeof(((struct kvf_##name *)NULL)->field))

static void print_geometry(void)
{
    STRUCT(geometry);
    FIELD(geometry, model);
    FIELD(geometry, layout);
    FIELD(geometry, salt);
    FIELD(geometry, dtype);
    FIELD(geometry, layers);
    FIELD(geometry, planes);
    FIELD(geometry, page_tokens);
    FIELD(geometry, token_elements);
    FIELD(geometry, tp_rank);
    FIELD(geometry, tp_size);
    FIELD(geometry, pp_rank);
    FIELD(geometry, pp_size);
    FIELD(geometry, replicated);
    FIELD(geometry, page_stride);
    FIELD(geometry, layer_stride);
    FIELD(geometry, plane_stride);
}

static void print_stats(void)
{
    STRUCT(stats);
    FIELD(stats, put_blocks);
    FIELD(stats, put_failed);
    FIELD(stats, get_dram);
    FIELD(stats, get_bytes);
    FIELD(stats, get_misses);
    FIELD(stats, get_unavailable);
    FIELD(stats, copied_bytes);
    FIELD(stats, registrations);
    FIELD(stats, drain_notices);
    FIELD(stats, held_blocks);
}

static void print_item(void)
{
    STRUCT(key);
    FIELD(key, bytes);
    STRUCT(generation);
    STRUCT(item);
    FIELD(item, key);
    FIELD(item, length);
    FIELD(item, memory);
    FIELD(item, data);
    FIELD(item, code);
    FIELD(item, tier);
    FIELD(item, origin);
    FIELD(item, crc32c);
    FIELD(item, generation);
    FIELD(item, session);
    FIELD(item, handle);
    FIELD(item, index);
    FIELD(item, held);
}

static void print_op(void)
{
    STRUCT(op);
    FIELD(op, kind);
    FIELD(op, flags);
    FIELD(op, ns);
    FIELD(op, source);
    FIELD(op, timeout_ms);
    FIELD(op, items);
    FIELD(op, count);
    FIELD(op, user);
    FIELD(op, status);
    FIELD(op, prefix);
    FIELD(op, own);
}

static void print_options(void)
{
    STRUCT(status);
    FIELD(status, detail);
    STRUCT(why);
    STRUCT(engine_options);
    FIELD(engine_options, socket_path);
    FIELD(engine_options, name);
    FIELD(engine_options, geometry);
    FIELD(engine_options, mapped);
    FIELD(engine_options, unmapping);
    FIELD(engine_options, context);
}

static void print_codes(void)
{
    for (unsigned code = 0; code < KVF_CODE_COUNT; code++)
        (void)printf("code.%s %u 0\n", kvf_code_name(code), code);
}

int main(void)
{
    print_geometry();
    print_stats();
    print_item();
    print_op();
    print_options();
    print_codes();
    return 0;
}
