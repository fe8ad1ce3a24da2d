/* Stands in for ucx where UCX's headers were not there at build time. */
#include "transport/lane_core.h"

static struct kvf_status cannot_open(const struct kvf_transport_options *options,
                                     struct kvf_transport **give, struct kvf_why *why)
{
    (void)options, (void)give;
    return kvf_why_set(why, lane_fail(KVF_UNSUPPORTED, 0),
                       "this build has no transport ucx (libucx-dev was missing): use tcp");
}

const struct transport_ops kvf_ucx_ops = {.name = "ucx", .open = cannot_open};
