/* Which counter an end of a put or a get belongs to. */
#ifndef KVFERRY_CLIENT_ENGINE_STATS_H
#define KVFERRY_CLIENT_ENGINE_STATS_H

#include "client/kvferry.h"

static inline void stats_put(struct kvf_stats *stats, enum kvf_code code, uint64_t length)
{
    bool committed = code == KVF_OK;
    stats->put_blocks += committed;
    stats->put_bytes += committed ? length : 0;
    stats->put_exists += code == KVF_EXISTS;
    stats->put_failed += !committed && code != KVF_EXISTS;
}

static inline void stats_get(struct kvf_stats *stats, enum kvf_code code, enum kvf_tier tier,
                             enum kvf_origin origin, uint64_t length)
{
    bool ssd = tier == KVF_TIER_SSD, remote = origin == KVF_ORIGIN_REMOTE;
    if (code == KVF_OK) {
        uint64_t *hits = remote ? (ssd ? &stats->get_remote_ssd : &stats->get_remote_dram)
                                : (ssd ? &stats->get_ssd : &stats->get_dram);
        *hits += 1;
        stats->get_bytes += length;
    } else if (code == KVF_CORRUPT) {
        stats->get_corrupt++;
    } else if (code == KVF_BUSY) {
        stats->get_busy++;
    } else if (code == KVF_DEADLINE) {
        stats->get_deadline++;
    } else if (code == KVF_UNAVAILABLE || code == KVF_DRAINING) {
        stats->get_unavailable++;
    } else {
        stats->get_misses++;
    }
}

#endif
