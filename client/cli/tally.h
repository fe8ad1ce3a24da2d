/* What a replay found, and its JSON. */
#ifndef KVFERRY_CLIENT_CLI_TALLY_H
#define KVFERRY_CLIENT_CLI_TALLY_H

#include "base/block.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct tally {
    uint64_t requests;
    uint64_t blocks;     /* references */
    uint64_t bytes;      /* compared and found equal */
    uint64_t mismatches; /* blocks that came with other bytes */
    uint64_t missing;
    uint64_t dram, ssd, remote_dram, remote_ssd; /* hits; with missing they add up to blocks */
    uint64_t reasons[KVF_CODE_COUNT];            /* of the missing ones */
    uint64_t reads;                              /* how many the decode daemon made meanwhile */
    uint64_t put_ns, sync_ns, get_ns;            /* wall time of the phases */
    uint64_t *latencies_ns; /* one a request, in order until tally_json sorts them */
};

void tally_hit(struct tally *tally, enum kvf_tier tier, enum kvf_origin origin);
void tally_miss(struct tally *tally, enum kvf_code code);

/* The value that `per_mille` of the sorted ones do not exceed (nearest rank); 0 of none. */
uint64_t tally_quantile(const uint64_t *sorted, size_t count, unsigned per_mille);

/* Sorts the latencies. malloc'ed text with a newline at its end; NULL: no memory. */
char *tally_json(struct tally *tally);
/* "10 NOT_FOUND, 2 DEADLINE" */
void tally_reasons_text(const struct tally *tally, char *text, size_t room);

#endif
