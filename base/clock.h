/* Time as this process sees it: monotonic nanoseconds. Deadlines are points on this clock and never leave the process;
 * what travels is a duration. */
#ifndef KVFERRY_BASE_CLOCK_H
#define KVFERRY_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KVF_NS_PER_US UINT64_C(1000)
#define KVF_NS_PER_MS UINT64_C(1000000)
#define KVF_NS_PER_S UINT64_C(1000000000)

static inline uint64_t kvf_clock_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Nanoseconds left until the deadline, 0 when it has passed. */
static inline uint64_t kvf_clock_left_ns(uint64_t deadline_ns, uint64_t now_ns)
{
    return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

#endif
