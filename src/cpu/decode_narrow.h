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

enum { TURNED = 1024 / (int)sizeof(real) }; /* keys of a run of narrow heads, at most */
_Static_assert((int)TURNED <= (int)RUN, "a run has room for fewer rows");
_Static_assert((int)NARROW <= 2 * (int)ALWAYS_NARROW, "turned keys have no room for more");

/* Number c of key or value j is at [c * step + j]. */
struct turned {
    real keys[ALWAYS_NARROW * TURNED], values[ALWAYS_NARROW * TURNED];
    int64_t step;
};

/* Keys of a run, so that the first cache holds them turned. */
static int64_t turned_keys(const struct item *t)
{
    return t->d > ALWAYS_NARROW || t->dv > ALWAYS_NARROW ? TURNED / 2 : TURNED;
}

/* Rows that lie `apart`, their width or little more: a compiler makes loads and permutations of
 * them. */
INLINE void turn_dense(real *to, int64_t step, const elem *from, int64_t n, int width, int apart)
{
    for (int c = 0; c < width; c++)
        for (int64_t j = 0; j < n; j++)
            to[c * step + j] = elem_get(from[j * apart + c]);
}

/* The first n rows, if it can; else none. Returns how many. */
INLINE int64_t turn_near(real *to, int64_t step, const struct rows *rows, int64_t n, int64_t width)
{
    const elem *const from = rows->at[0];
    if (rows->step < 1 || rows->step > 4)
        return 0;
    switch (rows->step * 4 + width) {
    case 1 * 4 + 1: turn_dense(to, step, from, n, 1, 1); break;
    case 2 * 4 + 2: turn_dense(to, step, from, n, 2, 2); break;
    case 3 * 4 + 3: turn_dense(to, step, from, n, 3, 3); break;
    case 4 * 4 + 4: turn_dense(to, step, from, n, 4, 4); break;
    case 2 * 4 + 1: turn_dense(to, step, from, n, 1, 2); break;
    default: return 0;
    }
    return n;
}

#ifdef VEC_FOURS
/* Rows of fewer than 4 reals, `behind` which are so many of other heads: with some of these, or of
 * those before them, they are 4. */
INLINE void turn_few(real *to, int64_t step, const struct rows *rows, int64_t n, int64_t count,
                     int64_t behind)
{
    const int64_t skip = behind < 4 - count ? count + behind - 4 : 0;
    for (int64_t j = 0; j < n; j += VEC_N) {
        vec r[4];
        vec_fours(r, (const void *const *)(rows->at + j), skip * (int64_t)sizeof(real));
        for (int64_t i = 0; i < count; i++)
            vec_store(to + i * step + j, r[i - skip]);
    }
}

/* Rows of `count` reals, 4 or more: four columns at a time, the last of which may be some of those
 * before again. */
INLINE void turn_fours(real *to, int64_t step, const elem *const *at, int64_t n, int64_t count)
{
    for (int64_t j = 0; j < n; j += VEC_N)
        for (int64_t end = 4; end < count + 4; end += 4) {
            const int64_t c = min64(end, count) - 4;
            vec r[4];
            vec_fours(r, (const void *const *)(at + j), c * (int64_t)sizeof(real));
            UNROLL for (int i = 0; i < 4; i++)
                vec_store(to + (c + i) * step + j, r[i]);
        }
}
#endif

/* The n rows of a run, of `width` numbers or, if they are keys, so many in words; past the last one
 * it is repeated up to the end of a vector. */
INLINE void turn(const struct item *t, real *to, int64_t step, const struct rows *rows, int64_t n,
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
#ifdef VEC_FOURS
    if (count >= 4 && bytes == count * (int64_t)sizeof(real)) {
        turn_fours(to, step, rows->at, n, count);
        return;
    }
    const int64_t part = (int64_t)(sizeof(real) / sizeof(elem)); /* elements in a real's bytes */
    const int64_t before = rows->before / part, behind = rows->behind / part;
    if (count + before + behind >= 4 && bytes == count * (int64_t)sizeof(real)) {
        turn_few(to, step, rows, n, count, behind);
        return;
    }
#endif
    if (numbers && width <= 4)
        j = turn_near(to, step, rows, n / VEC_N * VEC_N, width);
    for (; j < n; j += VEC_N) {
        if (numbers && count <= 2) { /* most of a vector would be turned for nothing */
            for (int64_t c = 0; c < count; c++)
                for (int64_t i = j; i < j + VEC_N; i++)
                    to[c * step + i] = elem_get(rows->at[i][c]);
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
                    vec_store(to + (c + i) * step + j, r[i]);
        }
    }
}

/* Products of one or two rows, n words each and `room` apart, with `vectors` times VEC_N keys from
 * j on: [rows][TURNED]. Here and below step, that of turned, is a constant where that matters. */
INLINE void dot_turned(const struct turned *turned, int64_t step, const real *q, int64_t room,
                       int64_t n, int64_t j, int rows, int vectors, real *score)
{
    vec s[2][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            s[r][i] = vec_zero();
    for (int64_t c = 0; c < n; c++) {
        vec w[2];
        UNROLL for (int r = 0; r < rows; r++) {
            w[r] = vec_set(q[r * room + c]);
            vec_keep(&w[r]);
        }
        UNROLL for (int i = 0; i < vectors; i++) {
            vec key = vec_load(turned->keys + c * step + j + i * VEC_N);
            if (rows > 1)
                vec_keep(&key);
            UNROLL for (int r = 0; r < rows; r++)
                s[r][i] = vec_mac(w[r], key, s[r][i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            vec_store(score + r * TURNED + j + i * VEC_N, s[r][i]);
}

/* The same with all keys of a run. */
INLINE void dots_turned(const struct turned *turned, int64_t step, const real *q, int64_t room,
                        int64_t n, int64_t keys, int rows, real *score)
{
    int64_t j = 0;
    for (; j + 4 * VEC_N <= keys; j += 4 * VEC_N)
        dot_turned(turned, step, q, room, n, j, rows, 4, score);
    for (; j < keys; j += VEC_N)
        dot_turned(turned, step, q, room, n, j, rows, 1, score);
}

/* o += p v for some columns of one or two rows, of keys from one step to another: those of the last
 * step that are not there have the weight 0, and the value of the last one, or count as hidden.
 * Rows of o lie `room` apart, those of p TURNED. */
INLINE void mix_turned_columns(real *o, int64_t room, const real *p, const real *v, int64_t step,
                               struct keys keys, int rows, int columns, bool hidden)
{
    vec sum[2][8];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++)
            sum[r][c] = vec_load(o + r * room + c * VEC_N);
    for (int64_t j = keys.from; j < keys.to; j += VEC_N) {
        vec w[2];
        UNROLL for (int r = 0; r < rows; r++) {
            w[r] = vec_load(p + r * TURNED + j);
            vec_keep(&w[r]);
        }
        UNROLL for (int c = 0; c < columns; c++) {
            vec value = vec_load(v + c * step + j);
            if (rows > 1)
                vec_keep(&value);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][c] = add_weighed(sum[r][c], w[r], value, hidden);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++)
            vec_store(o + r * room + c * VEC_N, sum[r][c]);
}

/* The same for all dv columns. */
INLINE void mix_turned(const struct turned *turned, int64_t step, real *o, int64_t room, int64_t dv,
                       const real *p, struct keys keys, int rows, bool hidden)
{
    const int most = rows == 1 || MR * NV >= 16 ? 8 : 4; /* as registers have room for */
    const real *v = turned->values;
    int64_t c = 0;
    for (; c + most <= dv; c += most, v += most * step)
        mix_turned_columns(o + c * VEC_N, room, p, v, step, keys, rows, most, hidden);
    if (most > 4 && c + 4 <= dv) {
        mix_turned_columns(o + c * VEC_N, room, p, v, step, keys, rows, 4, hidden);
        c += 4, v += 4 * step;
    }
    if (c + 2 <= dv) {
        mix_turned_columns(o + c * VEC_N, room, p, v, step, keys, rows, 2, hidden);
        c += 2, v += 2 * step;
    }
    if (c < dv)
        mix_turned_columns(o + c * VEC_N, room, p, v, step, keys, rows, 1, hidden);
}

/* hidden: a constant, too. */
INLINE void mix_turned_row(const struct turned *turned, real *o, int64_t dv, const real *p,
                           struct keys keys, bool hidden)
{
    mix_turned(turned, turned->step, o, 0, dv, p, keys, 1, hidden);
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
