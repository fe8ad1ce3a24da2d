#include "base/clock.h"
#include "base/log.h"

bool kvf_log_may(struct kvf_log_limit *limit, unsigned per_second, uint64_t now_ns,
                 uint64_t *suppressed)
{
    uint64_t second = now_ns / KVF_NS_PER_S;
    if (second != limit->second)
        limit->lines = 0;
    limit->second = second;
    if (limit->lines >= per_second) {
        limit->suppressed++;
        return false;
    }
    limit->lines++;
    *suppressed = limit->suppressed;
    limit->suppressed = 0;
    return true;
}
