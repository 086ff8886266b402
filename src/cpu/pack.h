/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Keys and values as the kernels' products take them: rows of words, [d / PAIR], and panels of MR
 * columns, [d / MR][room / PAIR][MR] words; for matrices of MATRIX columns, whose words lie side by
 * side for STEP values, [d / MATRIX][room / STEP][MATRIX][MATRIX].
 */
#ifndef ATTN_CPU_PACK_H
#define ATTN_CPU_PACK_H

#include "cpu/tmpl.h"

enum { BK = ATTN_TILE_KEYS }; /* keys in a tile */

/* Words from one panel to the next; the gap keeps panels off the same cache sets. */
static int64_t panel_words(int64_t room)
{
    return round_up(room, STEP) / PAIR * COLUMNS + LINE / (int64_t)sizeof(real);
}

/* Words of so many keys of d elements, with what pack_keys() writes beyond the last one. */
static int64_t key_words(int64_t keys, int64_t d)
{
    return round_up(keys, STEP) * words(d) + (words(d) % VEC_N != 0 ? VEC_N : 0);
}

/* STEP keys, each null for zeros. Ends of keys come first: they are whole vectors, whose rest the
 * key after them overwrites. */
INLINE void pack_keys(real *to, const elem *const row[STEP], int64_t d)
{
    const int64_t n = words(d), whole = d / (PAIR * VEC_N) * VEC_N;
    for (int i = 0; whole < n && i < STEP; i++)
        vec_store(to + i * n + whole, row[i] ? words_at(row[i], whole, d) : vec_zero());
    for (int i = 0; i < STEP; i++)
        for (int64_t c = 0; c < whole; c += VEC_N)
            vec_store(to + i * n + c, row[i] ? word_load(row[i] + c * PAIR) : vec_zero());
}

/* Words of n <= VEC_N columns of PAIR values, each null for zeros, and 0 after them. */
INLINE vec value_words(const elem *const row[PAIR], int64_t c, int64_t n)
{
    if (PAIR == 1)
        return row[0] ? values_at(row[0] + c, 0, n) : vec_zero();
    elem part[PAIR][sizeof(vec) / sizeof(elem)];
    const elem *from[PAIR];
    bool whole = n == VEC_N;
    for (int i = 0; i < PAIR; i++)
        whole = whole && row[i];
    for (int i = 0; i < PAIR; i++) {
        from[i] = whole ? row[i] + c : part[i];
        if (!row[i])
            memset(part[i], 0, sizeof(vec));
        else if (!whole)
            vec_load_some(part[i], row[i] + c, n * (int64_t)sizeof(elem));
    }
    return word_zip(from);
}

#if MATRIX
/* 0 in place of numbers that are not finite. */
static NOINLINE void clear_nonfinite(vec w[MATRIX])
{
    elem part[MATRIX * MATRIX * PAIR];
    memcpy(part, w, sizeof part);
    for (int64_t i = 0; i < MATRIX * MATRIX * PAIR; i++)
        if (!isfinite(elem_get(part[i])))
            part[i] = 0;
    memcpy(w, part, sizeof part);
}

/* STEP values, each null for zeros, to rows of as many words as panels have columns, which lie
 * `panel` words apart: a column's words lie side by side. Returns bad, NaN if one is not finite. */
INLINE vec pack_values(real *to, int64_t panel, const elem *const row[STEP], int64_t dv, vec bad)
{
    for (int64_t c = 0; c < dv; c += MATRIX, to += panel) {
        vec w[MATRIX], sizes = vec_zero();
        for (int i = 0; i < MATRIX; i++) {
            w[i] = value_words(row + i * PAIR, c, min64(dv - c, MATRIX));
            sizes = word_largest(sizes, w[i]);
        }
        if (__builtin_expect(!word_all_finite(sizes), 0)) {
            clear_nonfinite(w);
            bad = vec_set(NAN);
        }
        vec_transpose(w);
        UNROLL for (int i = 0; i < MATRIX; i++)
            vec_store(to + i * MATRIX, w[i]);
    }
    return bad;
}
#else
/* n columns from c on of MR values, each null for zeros, to the rows of panels, which lie `panel`
 * words apart. Returns bad, NaN if one is not finite. */
INLINE vec pack_columns(real *to, int64_t panel, const elem *const row[MR], int64_t c, int64_t n,
                        vec bad)
{
    _Static_assert(VEC_N <= 2 * (int)MR, "a vector goes to two panels at most");
    for (int i = 0; i < MR; i += PAIR) {
        const vec w = value_words(row + i, c, n);
        real *const at = to + c / MR * panel + i / PAIR * MR + c % MR;
        bad = word_spoil(w, bad);
        if (VEC_N <= (int)MR) {
            vec_store(at, w);
        } else {
            vec_store_low(at, w);
            if (n > MR)
                vec_store_high(at + panel, w);
        }
    }
    return bad;
}

INLINE vec pack_values(real *to, int64_t panel, const elem *const row[MR], int64_t dv, vec bad)
{
    int64_t c = 0;
    for (; c + VEC_N <= dv; c += VEC_N)
        bad = pack_columns(to, panel, row, c, VEC_N, bad);
    for (; c < round_up(dv, MR); c += VEC_N)
        bad = pack_columns(to, panel, row, c, dv > c ? dv - c : 0, bad);
    return bad;
}
#endif

/* Asks for a row of n elements that is soon read, or written. */
INLINE void fetch_row(const elem *row, int64_t n)
{
    for (uintptr_t at = line_of(row); at < (uintptr_t)(row + n); at += LINE)
        __builtin_prefetch((const void *)at);
}

/* Asks for some rows, `step` apart; those that follow each other are one stretch. */
INLINE void fetch_rows(const elem *row, int64_t step, int64_t rows, int64_t n)
{
    if (step == n && rows > 0)
        fetch_row(row, rows * n);
    else
        for (int64_t i = 0; i < rows; i++)
            fetch_row(row + i * step, n);
}

INLINE void fetch_to_write(const elem *row, int64_t n)
{
    for (uintptr_t at = line_of(row); at < (uintptr_t)(row + n); at += LINE)
        __builtin_prefetch((const void *)at, 1);
}

/* Asks for one that is read later, to the second cache. */
INLINE void fetch_soon(const elem *row, int64_t n)
{
    for (uintptr_t at = line_of(row); at < (uintptr_t)(row + n); at += LINE)
        __builtin_prefetch((const void *)at, 0, 2);
}

/* How many rows, n elements of each, are asked for ahead: more bytes wait for the cache's own
 * queue, less for memory. */
INLINE int64_t rows_ahead(int64_t n)
{
    enum { FETCH_BYTES = 2048 };
    return 1 + FETCH_BYTES / (n * (int64_t)sizeof(elem));
}

#endif
