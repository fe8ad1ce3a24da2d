#include "client/pull/pack.h"

#include "base/block.h"

bool pull_pack_add(struct pull_pack *pack, uint64_t length)
{
    uint64_t pages = kvf_round_up_page(length);
    if (pack->blocks > 0) {
        if (pack->blocks >= pack->max_blocks)
            return false;
        if (pack->batch_bytes > 0 &&
            (pack->bytes > pack->batch_bytes || length > pack->batch_bytes - pack->bytes))
            return false;
        if (pack->page_bytes > pack->max_bytes || pages > pack->max_bytes - pack->page_bytes)
            return false;
    }
    pack->bytes += length;
    pack->page_bytes += pages;
    pack->blocks++;
    return true;
}
