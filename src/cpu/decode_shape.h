/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a call asks for beyond products and a range of keys, where there are few rows: the rules of
 * score.h for the rows of a group and the keys of a run at a time. Lanes are those of a step, see
 * decode_run.h.
 */
#ifndef ATTN_CPU_DECODE_SHAPE_H
#define ATTN_CPU_DECODE_SHAPE_H

#include "cpu/decode.h"

enum { STEPS = RUN / LEAST_KB }; /* of a group in a run, at most */
enum { PAST = VEC_N < 8 ? 8 : (int)VEC_N }; /* bytes that are read past the last key's, at most */

/* ---- Bytes to lanes -------------------------------------------------------------------------- */

/* Eight bytes, 0 or 1 each, to bits: the i-th to bit i. */
INLINE uint32_t eight_bits(const uint8_t *byte)
{
    uint64_t all;
    memcpy(&all, byte, sizeof all);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    all = __builtin_bswap64(all);
#endif
    return (uint32_t)(all * UINT64_C(0x0102040810204080) >> 56);
}

/* to[]: of each step of n keys, lane r * KB + k is byte k of those of row r. */
INLINE void to_lanes(uint32_t *to, const uint8_t (*ok)[RUN + PAST], int64_t n, int rb)
{
    const int kb = VEC_N / rb;
    for (int64_t j = 0; j < n; j += kb) {
        uint32_t lanes = 0;
        UNROLL for (int r = 0; r < rb; r++)
            UNROLL for (int k = 0; k < kb; k += 8) {
                const uint32_t few = (UINT32_C(1) << (kb < 8 ? kb : 8)) - 1;
                lanes |= (eight_bits(ok[r] + j + k) & few) << (r * kb + k);
            }
        *to++ = lanes;
    }
}

static void group_lanes(const struct group *g, uint32_t *to, const uint8_t (*ok)[RUN + PAST],
                        int64_t n)
{
    switch (g->rb) {
    case 1: to_lanes(to, ok, n, 1); break;
    case 2: to_lanes(to, ok, n, 2); break;
#if VEC_N >= 4
    default: to_lanes(to, ok, n, 4); break;
#endif
    }
}

/* ---- Visibility ------------------------------------------------------------------------------ */

/* Which lanes see their key, by all that may hide it but a bias. */
struct seen {
    uint32_t lanes[ROWS * RUN / VEC_N]; /* of each group's steps, one group after the other */
};

INLINE const uint32_t *seen_by(const struct seen *seen, const struct group *g)
{
    return seen ? seen->lanes + g->first * RUN / VEC_N : NULL;
}

/* ok[j], for n keys from `key` on: whether a query sees them, by the masks other than the bias and
 * that of keys. */
static void see_keys(const struct attn_unit *u, int64_t head, int64_t query, int64_t key, int64_t n,
                     uint8_t *ok)
{
    memset(ok, 1, (size_t)n);
    if (u->p->block_mask.data)
        keep_blocks(ok, u, head, query, key, n);
    keep_own(ok, u, head, query, key, n);
}

/* ok[], for the keys of a run, and 0 past them: whether a row sees them. */
static void see_row(const struct item *t, int64_t head_kv, int64_t r, const struct run *run,
                    uint8_t ok[RUN + PAST])
{
    const struct attn_range see = t->see[r];
    const int64_t lo = min64(see.lo > run->j ? see.lo - run->j : 0, run->n);
    const int64_t hi = min64(see.hi > run->j ? see.hi - run->j : 0, run->n);
    const int64_t end = hi > lo ? hi : lo;
    memset(ok, 0, (size_t)lo);
    see_keys(t->u, head_of(t, head_kv, r), t->query[r], run->j + lo, end - lo, ok + lo);
    if (t->u->key_mask)
        keep_true(ok + lo, (const char *)t->u->key_mask + run->j + lo, 1, end - lo);
    memset(ok + end, 0, (size_t)(run->n + PAST - end));
}

/* What the rows of a head see of a run; false: nothing. */
static NOINLINE bool see_run(const struct item *t, int64_t head_kv, const struct run *run,
                             struct seen *seen)
{
    uint8_t ok[MOST_RB][RUN + PAST];
    uint32_t any = 0;
    for (const struct group *g = t->group; g < t->group + t->groups; g++) {
        uint32_t *const lanes = seen->lanes + g->first * RUN / VEC_N;
        for (int64_t r = 0; r < g->rb; r++)
            see_row(t, head_kv, g->first + r, run, ok[r]);
        group_lanes(g, lanes, (const uint8_t(*)[RUN + PAST])ok, run->n);
        for (int64_t j = 0, n = 0; j < run->n; j += g->kb)
            any |= lanes[n++];
    }
    return any != 0;
}

/* ---- Scores and dropout ---------------------------------------------------------------------- */

/* What makes scores of the products of a group's rows and the keys of a run, and drops some. */
struct shaping {
    struct scaling scaling;
    bool biased, sloped, drops;
    int64_t place;             /* of the first row's query among the keys, for ALiBi */
    vec slope, apart;          /* of each lane; what its distance is more than the first one's */
    real bias[MOST_RB * RUN];  /* [steps][VEC_N] */
    uint32_t kept[STEPS];      /* lanes that dropout keeps */
};

/* Biases of rows and keys to lanes; 0 past the last key. */
static void load_biases(const struct item *t, int64_t head_kv, const struct group *g,
                        const struct run *run, real *to)
{
    const struct attn_score_view *b = &t->bias;
    const attn_dtype type = t->u->p->bias_dtype;
    const bool direct = b->key == 1 && type == attn_compute_dtype(t->u->p->dtype);
    for (int64_t r = 0; r < g->rb; r++, to += g->kb) {
        const int64_t row = g->first + r;
        const int64_t at = attn_score_at(b, 0, head_of(t, head_kv, row), t->query[row], run->j);
        const int64_t whole = direct ? run->n / g->kb * g->kb : 0;
        for (int64_t j = 0; j < whole; j += g->kb)
            memcpy(to + j * g->rb, (const real *)(const void *)b->data + at + j,
                   (size_t)g->kb * sizeof *to);
        for (int64_t j = whole; j < run->n; j += g->kb)
            for (int64_t k = 0; k < g->kb; k++)
                to[j * g->rb + k] =
                    j + k < run->n ? (real)attn_number_at(b->data, type, at + (j + k) * b->key) : 0;
    }
}

static void load_alibi(const struct item *t, int64_t head_kv, const struct group *g,
                       struct shaping *shaping)
{
    real slope[VEC_N], apart[VEC_N];
    for (int64_t i = 0; i < VEC_N; i++) {
        const int64_t r = g->first + i / g->kb;
        slope[i] = (real)attn_slope_of(&t->u->seq, head_of(t, head_kv, r));
        apart[i] = (real)(t->query[r] - t->query[g->first] - i % g->kb);
    }
    shaping->slope = vec_load(slope);
    shaping->apart = vec_load(apart);
    shaping->place = t->query[g->first] + t->u->nk - t->u->nq;
}

/* Draws are made for four keys of a row together, and those of all rows one after the other. */
static void draw_group(const struct item *t, int64_t head_kv, const struct group *g,
                      const struct run *run, uint32_t *kept)
{
    const struct attn_dropout *d = &t->u->p->dropout;
    const struct keeping keeping = keeping_of(d);
    const int64_t first_head = (d->first_sequence + t->u->b) * t->u->p->heads_q;
    const int64_t skip = run->j % 4, fours = (skip + run->n + 3) / 4;
    uint8_t ok[MOST_RB][RUN + PAST], drawn[MOST_RB * (RUN / 4 + 1) + BQ][4];
    uint32_t query[MOST_RB], head[MOST_RB];
    for (int64_t r = 0; r < g->rb; r++) {
        query[r] = (uint32_t)t->query[g->first + r];
        head[r] = (uint32_t)(first_head + head_of(t, head_kv, g->first + r));
    }
    for (int64_t i = 0, r = 0, n = 0; i < g->rb * fours; i += BQ) {
        uint32_t x[4][BQ];
        for (int lane = 0; lane < BQ; lane++) {
            x[0][lane] = (uint32_t)(run->j / 4 + n);
            x[1][lane] = query[r];
            x[2][lane] = head[r];
            x[3][lane] = d->offset;
            if (++n == fours) {
                n = 0;
                r = min64(r + 1, g->rb - 1);
            }
        }
        draw(x, d->seed);
        for (int lane = 0; lane < BQ; lane++)
            for (int w = 0; w < 4; w++)
                drawn[i + lane][w] = (uint8_t)is_kept(keeping, x[w][lane]);
    }
    for (int64_t r = 0; r < g->rb; r++) {
        memcpy(ok[r], drawn[r * fours] + skip, (size_t)run->n);
        memset(ok[r] + run->n, 0, PAST);
    }
    group_lanes(g, kept, (const uint8_t(*)[RUN + PAST])ok, run->n);
}

/* For a group of a head's rows and the keys of a run. */
static NOINLINE void shaping_init(const struct item *t, int64_t head_kv, const struct group *g,
                                  const struct run *run, struct shaping *x)
{
    const struct attn_problem *p = t->u->p;
    x->scaling = scaling_of(p);
    x->biased = p->bias.data != NULL;
    x->sloped = p->alibi.data != NULL;
    x->drops = p->dropout.on;
    if (x->biased)
        load_biases(t, head_kv, g, run, x->bias);
    if (x->sloped)
        load_alibi(t, head_kv, g, x);
    if (x->drops)
        draw_group(t, head_kv, g, run, x->kept);
}

/* Products of the step at key n of a run become scores; clears the lanes of `sees` from which a
 * bias hides the key. */
static NOINLINE vec shape(const struct shaping *x, const struct run *run, int64_t n, int64_t rb,
                          vec s, vmask *sees)
{
    s = scaled_scores(x->scaling, s);
    if (x->biased) {
        const vec bias = vec_load(x->bias + n * rb);
        const vec one = vec_set(1), known = vec_select(vec_le(bias, one), bias, one);
        *sees = vmask_and(*sees, vec_lt(vec_set(-INFINITY), known)); /* NaN shows */
        s = vec_add(s, bias);
    }
    if (x->sloped) {
        const vec by = vec_add(vec_set((real)(x->place - run->j - n)), x->apart);
        const vec distance = vec_max(by, vec_sub(vec_zero(), by));
        s = vec_sub(s, vec_mul(x->slope, distance));
    }
    return s;
}

#endif
