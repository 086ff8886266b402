/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Products by instructions that multiply matrices, see word.h: scores are keys times queries, and
 * sums of values are their columns times weights. Rows lie in the lanes as everywhere, so that what
 * comes before, between and behind the products is the same. Values are packed column by column,
 * [dv / MATRIX][room / STEP][MATRIX columns][MATRIX words]. Included in block.h.
 */
#ifndef ATTN_CPU_MATRIX_H
#define ATTN_CPU_MATRIX_H

_Static_assert((int)VEC_N == (int)MATRIX && (int)BQ == 2 * MATRIX && (int)STEP == PAIR * MATRIX,
               "a block is two matrices wide, and a row of one has the words of STEP keys");

/* Sums are those of two times MATRIX rows and BQ lanes, or of half as many of either: `rows` and nv,
 * constants. Matrices 0 to 3 hold them, the second ones those of the other rows. */
INLINE void matrix_clear_sums(int rows, int nv)
{
    matrix_zero(0);
    if (rows > 1)
        matrix_zero(1);
    if (nv == NV)
        matrix_zero(2);
    if (rows > 1 && nv == NV)
        matrix_zero(3);
}

INLINE void matrix_load_sums(const real *p, int rows, int nv)
{
    matrix_load(0, p, BQ);
    if (rows > 1)
        matrix_load(1, p + MATRIX * BQ, BQ);
    if (nv == NV)
        matrix_load(2, p + MATRIX, BQ);
    if (rows > 1 && nv == NV)
        matrix_load(3, p + MATRIX * BQ + MATRIX, BQ);
}

INLINE void matrix_store_sums(real *p, int rows, int nv)
{
    matrix_store(0, p, BQ);
    if (rows > 1)
        matrix_store(1, p + MATRIX * BQ, BQ);
    if (nv == NV)
        matrix_store(2, p + MATRIX, BQ);
    if (rows > 1 && nv == NV)
        matrix_store(3, p + MATRIX * BQ + MATRIX, BQ);
}

/* Adds MATRIX words of the rows from a on, `step` apart, and of those from `second` on, times
 * b[MATRIX][BQ]. */
INLINE void matrix_add(const real *a, const real *second, int64_t step, const real *b, int rows,
                       int nv)
{
    matrix_load(4, a, step);
    matrix_load(6, b, BQ);
    matrix_mac(0, 4, 6);
    if (rows > 1) {
        matrix_load(5, second, step);
        matrix_mac(1, 5, 6);
    }
    if (nv < NV)
        return;
    matrix_load(7, b + MATRIX, BQ);
    matrix_mac(2, 4, 7);
    if (rows > 1)
        matrix_mac(3, 5, 7);
}

/* Products of rows j0 .. j1 - 1 of a tile, n words each, with columns qt[n][BQ] to `to`; both
 * multiples of STEP. */
INLINE void matrix_products(real *to, const real *qt, const real *keys, int64_t j0, int64_t j1,
                            int64_t step, int64_t n, int nv)
{
    for (int64_t j = j0; j < j1; j += STEP) {
        const real *const a = keys + j * step, *const second = a + MATRIX * step;
        matrix_clear_sums(2, nv);
        for (int64_t c = 0; c < n; c += MATRIX)
            matrix_add(a + c, second + c, step, qt + c * BQ, 2, nv);
        matrix_store_sums(to + j * BQ, 2, nv);
    }
}

/* Word j of column r of a panel that may begin with any column. */
INLINE const real *matrix_word(const real *panel, int64_t j, int64_t r)
{
    return panel + j / MATRIX * (MATRIX * MATRIX) + r * MATRIX + j % MATRIX;
}

/* The same as matrix_mix() of one or two times MATRIX columns. */
INLINE void matrix_mix_columns(real *o, bool add, const real *columns, int64_t panel,
                               const real *p, int64_t j0, int64_t j1, int rows, int nv)
{
    if (add)
        matrix_load_sums(o, rows, nv);
    else
        matrix_clear_sums(rows, nv);
    for (int64_t j = j0 / PAIR; j < j1 / PAIR; j += MATRIX)
        matrix_add(columns + j * MATRIX, columns + panel + j * MATRIX, MATRIX, p + j * BQ, rows,
                   nv);
    matrix_store_sums(o, rows, nv);
}

/* o[n][BQ] becomes columns^T p over keys j0 .. j1 - 1 of the tile, multiples of STEP, or with `add`
 * that and what was there. n is a multiple of MATRIX; as many columns lie `panel` from the next. */
INLINE void matrix_mix(real *o, int64_t n, bool add, const real *columns, int64_t panel,
                       const real *p, int64_t j0, int64_t j1, int nv)
{
    int64_t c = 0;
    for (; c + 2 * MATRIX <= n; c += 2 * MATRIX, columns += 2 * panel)
        matrix_mix_columns(o + c * BQ, add, columns, panel, p, j0, j1, 2, nv);
    if (c < n)
        matrix_mix_columns(o + c * BQ, add, columns, panel, p, j0, j1, 1, nv);
}

/* Columns of STEP values, each null for zeros, to the rows of panels. Returns bad, NaN if one is not
 * finite. */
INLINE vec matrix_pack_values(real *to, int64_t panel, const elem *const row[STEP], int64_t dv,
                              vec bad)
{
    for (int64_t c = 0; c < dv; c += MATRIX, to += panel) {
        vec w[MATRIX];
        for (int i = 0; i < MATRIX; i++) {
            w[i] = value_words(row + i * PAIR, c, min64(dv - c, MATRIX));
            bad = word_spoil(w[i], bad);
        }
        vec_transpose(w);
        UNROLL for (int i = 0; i < MATRIX; i++)
            vec_store(to + i * MATRIX, w[i]);
    }
    return bad;
}

#endif
