#include "client/cli/pattern.h"

#include <endian.h>

#if __BYTE_ORDER != __LITTLE_ENDIAN
#error "words are made in the host's order; the pattern is defined as little-endian"
#endif

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio, odd: i * GOLDEN never repeats */

/* One step makes LANES words; a chunk is compared as a whole before anybody looks where it differs. */
#define LANES 4
#define CHUNK_BYTES ((size_t)4096)

typedef uint64_t words __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

uint64_t pattern_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t pattern_random(uint64_t *state)
{
    *state += GOLDEN;
    return pattern_mix(*state);
}

struct pattern pattern_of(uint64_t seed, uint64_t id)
{
    return (struct pattern){pattern_mix(pattern_mix(seed + 1) + id * GOLDEN)};
}

struct kvf_key pattern_key(uint64_t seed, uint64_t id)
{
    struct kvf_key key = {.length = 32};
    uint64_t state = pattern_of(seed, id).base ^ UINT64_C(0x6B65792D6F662D69);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = pattern_random(&state);
        memcpy(key.bytes + 8 * i, &word, 8);
    }
    return key;
}

static const words step = {0, GOLDEN, 2 * GOLDEN, 3 * GOLDEN};

/* Each line is one-to-one, so words of different counters differ. The same for a vector and for one word. */
#define MIX(x)                                                                                     \
    do {                                                                                           \
        (x) ^= (x) >> 31;                                                                          \
        (x) += (x) << 21;                                                                          \
        (x) ^= (x) >> 24;                                                                          \
    } while (0)

static uint64_t word_at(struct pattern pattern, size_t position)
{
    uint64_t x = pattern.base + (position / 8) * GOLDEN;
    MIX(x);
    return x;
}

void pattern_fill(struct pattern pattern, void *data, size_t bytes)
{
    size_t at = 0;
    words counter = pattern.base + step;
    for (; at + sizeof(words) <= bytes; at += sizeof(words)) {
        words x = counter;
        MIX(x);
        *(words *)((char *)data + at) = x;
        counter += LANES * GOLDEN;
    }
    for (; at < bytes; at += 8) {
        uint64_t x = word_at(pattern, at);
        memcpy((char *)data + at, &x, bytes - at < 8 ? bytes - at : 8);
    }
}

/* First difference in [at, end), word by word. */
static size_t find_difference(struct pattern pattern, const char *data, size_t at, size_t end)
{
    for (; at < end; at += 8) {
        uint64_t x = word_at(pattern, at);
        const uint8_t *expected = (const uint8_t *)&x;
        for (size_t i = 0; i < 8 && at + i < end; i++) {
            if ((uint8_t)data[at + i] != expected[i])
                return at + i;
        }
    }
    return end;
}

static bool chunk_equal(struct pattern pattern, const char *data, size_t at)
{
    words counter = pattern.base + (at / 8) * GOLDEN + step;
    words difference = {0};
    for (size_t i = 0; i < CHUNK_BYTES; i += sizeof(words)) {
        words x = counter;
        MIX(x);
        difference |= x ^ *(const words *)(data + at + i);
        counter += LANES * GOLDEN;
    }
    uint64_t any = 0;
    for (unsigned i = 0; i < LANES; i++)
        any |= difference[i];
    return any == 0;
}

size_t pattern_compare(struct pattern pattern, const void *data, size_t bytes)
{
    size_t at = 0;
    for (; at + CHUNK_BYTES <= bytes; at += CHUNK_BYTES) {
        if (!chunk_equal(pattern, data, at))
            return find_difference(pattern, data, at, at + CHUNK_BYTES);
    }
    return find_difference(pattern, data, at, bytes);
}
