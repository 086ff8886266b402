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

/* A key; null: zeros. */
INLINE void pack_key(real *to, const elem *row, int64_t d)
{
    int64_t c = 0;
    for (; row && (c + VEC_N) * PAIR <= d; c += VEC_N)
        vec_store(to + c, word_load(row + c * PAIR));
    for (; c * PAIR < d; c++)
        to[c] = row ? word_get(row + c * PAIR, d - c * PAIR) : 0;
}

/* PAIR values, each null for zeros, to one row of all panels, which lie `panel` words apart.
 * Returns bad, NaN if one is not finite. */
INLINE vec pack_values(real *to, int64_t panel, const elem *const row[PAIR], int64_t dv, vec bad)
{
    for (int64_t c = 0; c < dv; c += CHUNK) {
        elem part[PAIR][CHUNK];
        const elem *from[PAIR];
        for (int i = 0; i < PAIR; i++) {
            const int64_t n = row[i] ? min64(CHUNK, dv - c) : 0;
            from[i] = n == CHUNK ? row[i] + c : part[i];
            if (n < CHUNK)
                memset(part[i], 0, sizeof part[i]);
            if (n > 0 && n < CHUNK)
                memcpy(part[i], row[i] + c, (size_t)n * sizeof(elem));
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

/* How many rows, n elements of each, are asked for ahead: more bytes wait for the cache's own
 * queue, less for memory. */
INLINE int64_t rows_ahead(int64_t n)
{
    enum { FETCH_BYTES = 2048 };
    return 1 + FETCH_BYTES / (n * (int64_t)sizeof(elem));
}

#endif
