/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Keys and values as the kernels' products take them: rows of words, [d / PAIR], and panels of MR
 * columns, [d / MR][room / PAIR][MR] words.
 */
#ifndef ATTN_CPU_PACK_H
#define ATTN_CPU_PACK_H

#include "cpu/tmpl.h"

enum { BK = ATTN_TILE_KEYS }; /* keys in a tile */

enum { CHUNK = (int)MR > VEC_N ? (int)MR : VEC_N }; /* value columns packed at a time */

/* Words from one panel to the next; the gap keeps panels off the same cache sets. */
static int64_t panel_words(int64_t room) { return room / PAIR * MR + 64 / (int64_t)sizeof(real); }

/* Words of so many keys of d elements, with what pack_key() writes beyond the last one. */
static int64_t key_words(int64_t keys, int64_t d)
{
    return keys * words(d) + (words(d) % VEC_N != 0 ? VEC_N : 0);
}

/* A key, null for zeros, and what it takes to fill vectors: the following keys come later. */
INLINE void pack_key(real *to, const elem *row, int64_t d)
{
    int64_t c = 0;
    for (; row && (c + VEC_N) * PAIR <= d; c += VEC_N)
        vec_store(to + c, word_load(row + c * PAIR));
    for (; c * PAIR < d; c += VEC_N)
        vec_store(to + c, row ? words_at(row, c, d) : vec_zero());
}

enum { PIECE = (int)(sizeof(vec) / sizeof(elem)) };

/* The first n of CHUNK elements, and 0 in place of the others; writes up to PIECE more. */
INLINE void some_of(elem *to, const elem *from, int64_t n)
{
    for (int64_t c = 0; c < CHUNK; c += PIECE)
        if (n - c >= PIECE)
            memcpy(to + c, from + c, sizeof(vec));
        else if (n > c)
            vec_load_some(to + c, from + c, (n - c) * (int64_t)sizeof(elem));
        else
            memset(to + c, 0, sizeof(vec));
}

/* PAIR values, each null for zeros, to one row of all panels, which lie `panel` words apart.
 * Returns bad, NaN if one is not finite. */
INLINE vec pack_values(real *to, int64_t panel, const elem *const row[PAIR], int64_t dv, vec bad)
{
    for (int64_t c = 0; c < dv; c += CHUNK) {
        elem part[PAIR][CHUNK + PIECE];
        const elem *from[PAIR];
        for (int i = 0; i < PAIR; i++) {
            const int64_t n = row[i] ? min64(CHUNK, dv - c) : 0;
            from[i] = n == CHUNK ? row[i] + c : part[i];
            if (n < CHUNK)
                some_of(part[i], row[i] ? row[i] + c : NULL, n);
        }
        real word[CHUNK];
        for (int n = 0; n < CHUNK; n += VEC_N) {
            const vec w = word_zip(from);
            bad = word_spoil(w, bad);
            vec_store(word + n, w);
            for (int i = 0; i < PAIR; i++)
                from[i] += VEC_N;
        }
        for (int i = 0; i < CHUNK && c + i < dv; i += MR, to += panel)
            memcpy(to, word + i, MR * sizeof(real));
    }
    return bad;
}

/* Asks for a row of n elements that is soon read, or written. */
INLINE void fetch_row(const elem *row, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(elem))
        __builtin_prefetch(row + i);
}

INLINE void fetch_to_write(const elem *row, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(elem))
        __builtin_prefetch(row + i, 1);
}

/* Asks for one that is read later, to the second cache. */
INLINE void fetch_soon(const elem *row, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(elem))
        __builtin_prefetch(row + i, 0, 2);
}

/* How many rows, n elements of each, are asked for ahead: more bytes wait for the cache's own
 * queue, less for memory. */
INLINE int64_t rows_ahead(int64_t n)
{
    enum { FETCH_BYTES = 2048 };
    return 1 + FETCH_BYTES / (n * (int64_t)sizeof(elem));
}

#endif
