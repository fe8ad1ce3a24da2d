/* One fuzz input as several messages: a piece is its length (two bytes, the lower first) and so many bytes, or what is
 * left of the input. */
#ifndef KVFERRY_TESTS_CORPUS_PIECES_H
#define KVFERRY_TESTS_CORPUS_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pieces {
    const uint8_t *at;
    size_t left;
};

/* False: there is no more. */
static inline bool pieces_next(struct pieces *pieces, const uint8_t **piece, size_t *length)
{
    if (pieces->left < 2)
        return false;
    *length = (size_t)pieces->at[0] | (size_t)pieces->at[1] << 8;
    *piece = pieces->at + 2;
    if (*length > pieces->left - 2)
        *length = pieces->left - 2;
    pieces->at += 2 + *length;
    pieces->left -= 2 + *length;
    return true;
}

#endif
