#include "client/engine/copy.h"

#include "base/crc32c.h"

#include <string.h>

#define PIECE_BYTES ((size_t)4 << 10)

#ifdef __SSE2__
#include <emmintrin.h>

#define LINE_BYTES ((size_t)64)

/* A line of the destination, whole and aligned, past the cache. */
static void stream_line(uint8_t *to, const uint8_t *from)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

static void copy_piece(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t head = -(uintptr_t)to % LINE_BYTES;
    if (bytes < head + LINE_BYTES)
        head = bytes;
    memcpy(to, from, head);
    for (; bytes - head >= LINE_BYTES; head += LINE_BYTES)
        stream_line(to + head, from + head);
    memcpy(to + head, from + head, bytes - head);
}

/* Streamed bytes are in no order with what comes after them. */
static void copy_end(void)
{
    _mm_sfence();
}
#else
static void copy_piece(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void copy_end(void)
{
}
#endif

uint32_t copy_with_crc32c(void *to, const void *from, size_t bytes)
{
    uint32_t crc = 0;
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        copy_piece((uint8_t *)to + at, (const uint8_t *)from + at, piece);
        crc = kvf_crc32c(crc, (const uint8_t *)from + at, piece);
    }
    copy_end();
    return crc;
}
