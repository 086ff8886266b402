/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Narrow heads, of so few numbers that vectors along the head would be mostly empty. The keys and
 * values of a run are turned once for all rows, and lanes are keys: a step takes one row and VEC_N
 * keys. Sums of values, too, stay spread over the lanes until the end. The softmax and what hides
 * keys is that of decode_run.h, with one row in a group.
 */
#ifndef ATTN_CPU_DECODE_NARROW_H
#define ATTN_CPU_DECODE_NARROW_H

#include "cpu/decode.h"

enum { TURNED = 1024 / (int)sizeof(real) }; /* keys of a run of narrow heads */
_Static_assert((int)TURNED <= (int)RUN, "a run has room for fewer rows");

struct turned {
    real keys[NARROW][TURNED]; /* [words] */
    real values[NARROW][TURNED];
};

/* Rows that follow each other: a compiler makes loads and permutations of them. */
INLINE void turn_dense(real (*to)[TURNED], const elem *from, int64_t n, int width)
{
    for (int c = 0; c < width; c++)
        for (int64_t j = 0; j < n; j++)
            to[c][j] = elem_get(from[j * width + c]);
}

/* The n rows of a run to to[width], or, if they are keys, to to[words]; past the last one it is
 * repeated up to the end of a vector. */
INLINE void turn(const struct item *t, real (*to)[TURNED], const struct rows *rows, int64_t n,
                 int64_t width, bool keys)
{
    const int64_t count = keys ? words(width) : width;
    const bool numbers = !keys || PAIR == 1;
    const int64_t bytes = width * (int64_t)sizeof(elem);
    int64_t j = 0;
    if (rows->next && rows->apart == width)
        fetch(t, rows->next, n * bytes);
    else
        for (int64_t i = 0; rows->next && i < n; i++)
            fetch(t, rows->next + i * rows->apart, bytes);
    if (numbers && rows->dense && width <= 4) {
        j = n / VEC_N * VEC_N;
        switch (width) {
        case 1: turn_dense(to, rows->at[0], j, 1); break;
        case 2: turn_dense(to, rows->at[0], j, 2); break;
        case 3: turn_dense(to, rows->at[0], j, 3); break;
        default: turn_dense(to, rows->at[0], j, 4); break;
        }
    }
    for (; j < n; j += VEC_N) {
        if (numbers && count <= 2) { /* most of a vector would be turned for nothing */
            for (int64_t c = 0; c < count; c++)
                for (int64_t i = j; i < j + VEC_N; i++)
                    to[c][i] = elem_get(rows->at[i][c]);
            continue;
        }
        for (int64_t c = 0; c < count; c += VEC_N) {
            vec r[VEC_N];
            UNROLL for (int i = 0; i < VEC_N; i++)
                r[i] = keys ? words_at(rows->at[j + i], c, width)
                            : values_at(rows->at[j + i], c, width);
            vec_transpose(r);
            UNROLL for (int i = 0; i < VEC_N; i++)
                if (c + i < count)
                    vec_store(to[c + i] + j, r[i]);
        }
    }
}

/* Products of the row q with `vectors` times VEC_N keys from j on. */
INLINE void dot_turned(const struct turned *turned, const real *q, int64_t n, int64_t j,
                       int vectors, real *score)
{
    vec s[4];
    UNROLL for (int i = 0; i < vectors; i++)
        s[i] = vec_zero();
    for (int64_t c = 0; c < n; c++) {
        vec w = vec_set(q[c]);
        vec_keep(&w);
        UNROLL for (int i = 0; i < vectors; i++)
            s[i] = vec_mac(w, vec_load(turned->keys[c] + j + i * VEC_N), s[i]);
    }
    UNROLL for (int i = 0; i < vectors; i++)
        vec_store(score + j + i * VEC_N, s[i]);
}

/* Products of the row q of n words with the keys of a run. */
static NOINLINE void dots_turned(const struct turned *turned, const real *q, int64_t n,
                                 int64_t keys, real *score)
{
    int64_t j = 0;
    for (; j + 4 * VEC_N <= keys; j += 4 * VEC_N)
        dot_turned(turned, q, n, j, 4, score);
    for (; j < keys; j += VEC_N)
        dot_turned(turned, q, n, j, 1, score);
}

/* o += p v for some columns, of keys `from` to `to`, from one step to another: those of the last
 * step that are not there have the weight 0, and the value of the last one. */
INLINE void mix_turned_columns(real *o, const real *p, const real (*v)[TURNED], int64_t from,
                               int64_t to, int columns)
{
    vec sum[8];
    UNROLL for (int c = 0; c < columns; c++)
        sum[c] = vec_load(o + c * VEC_N);
    for (int64_t j = from; j < to; j += VEC_N) {
        vec w = vec_load(p + j);
        vec_keep(&w);
        UNROLL for (int c = 0; c < columns; c++)
            sum[c] = vec_fma(w, vec_load(v[c] + j), sum[c]);
    }
    UNROLL for (int c = 0; c < columns; c++)
        vec_store(o + c * VEC_N, sum[c]);
}

/* The same for all dv columns. */
static NOINLINE void mix_turned(const struct turned *turned, real *o, int64_t dv, const real *p,
                                int64_t from, int64_t to)
{
    int64_t c = 0;
    for (; c + 8 <= dv; c += 8)
        mix_turned_columns(o + c * VEC_N, p, turned->values + c, from, to, 8);
    if (c + 4 <= dv) {
        mix_turned_columns(o + c * VEC_N, p, turned->values + c, from, to, 4);
        c += 4;
    }
    if (c + 2 <= dv) {
        mix_turned_columns(o + c * VEC_N, p, turned->values + c, from, to, 2);
        c += 2;
    }
    if (c < dv)
        mix_turned_columns(o + c * VEC_N, p, turned->values + c, from, to, 1);
}

/* The same for the keys of the step at j that are seen. */
static void mix_turned_seen(const struct turned *turned, real *o, int64_t dv, const real *weight,
                            int64_t j, uint32_t seen)
{
    for (int64_t c = 0; c < dv; c++, o += VEC_N) {
        const vec sum = vec_fma(vec_load(weight), vec_load(turned->values[c] + j), vec_load(o));
        vec_store(o, vec_select(vmask_of(seen), sum, vec_load(o)));
    }
}

/* The lanes of each of dv columns added up: to the first dv numbers, and 0 up to a vector's end. */
static void add_lanes(real *o, int64_t dv)
{
    for (int64_t c = 0; c < dv; c += VEC_N) {
        vec sum[VEC_N];
        UNROLL for (int i = 0; i < VEC_N; i++)
            sum[i] = c + i < dv ? vec_load(o + (c + i) * VEC_N) : vec_zero();
        vec_store(o + c, vec_sums(sum));
    }
}

#endif
