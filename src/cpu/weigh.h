/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scores of a tile and their softmax: weights of a block's rows, beside the products of the next
 * keys or behind those of their own. See fwd_tmpl.c.
 */
#ifndef ATTN_CPU_WEIGH_H
#define ATTN_CPU_WEIGH_H

#include "cpu/block.h"
#include "cpu/tile.h"

/* The largest of MR scores of vector v from j on, which lie in t->s. */
INLINE vec largest(const struct block *t, int64_t j, int v)
{
    vec most = vec_set(-INFINITY);
    for (int i = 0; i < MR; i++)
        most = vec_max(vec_load(t->s + (j + i) * BQ + v * VEC_N), most);
    return most;
}

/* Sums of probabilities so far, of the lanes of vector v; 0: no reference yet. */
INLINE vec sum_of(const struct block *t, int v)
{
    return vec_add(vec_load(t->l + v * VEC_N), vec_load(t->sum + v * VEC_N));
}

/* References of the lanes of vector v, with the limits that go with them. */
INLINE void set_reference(struct block *t, int v, vec r)
{
    vec_store(t->r + v * VEC_N, r);
    vec_store(t->limit + v * VEC_N, limit_of(r, t->span));
}

/* Gives lanes without a reference the largest of MR scores from j on, if they see one above
 * -inf. */
static NOINLINE void first_reference(struct block *t, int64_t j)
{
    for (int v = 0; v < t->vectors; v++) {
        const vec r = vec_load(t->r + v * VEC_N), l = sum_of(t, v);
        const vec most = largest(t, j, v);
        const vmask set = vmask_and(vec_le(l, vec_zero()), vec_lt(vec_set(-INFINITY), most));
        set_reference(t, v, vec_select(set, most, r));
    }
}

/* Gives lanes without a reference the largest of MR scores; -inf is none, and shows as a sum that
 * is not a number. */
INLINE void begin_references(struct block *t, vec s[MR][NV], int nv)
{
    UNROLL for (int v = 0; v < nv; v++) {
        const vec r = vec_load(t->r + v * VEC_N), l = sum_of(t, v);
        vec most = s[0][v];
        UNROLL for (int i = 1; i < MR; i++)
            most = vec_max(s[i][v], most);
        set_reference(t, v, vec_select(vec_le(l, vec_zero()), most, r));
    }
}

/* Whether every lane has a reference. */
INLINE bool settled(const struct block *t)
{
    bool all = true;
    for (int v = 0; v < t->vectors; v++)
        all = all && vmask_all(vec_lt(vec_zero(), sum_of(t, v)));
    return all;
}

/* Columns whose products have room for the probabilities of a vector of MR keys. */
enum { BESIDE = MR / PAIR * DOT_COLUMNS };

/* Whether probabilities are made in steps, as those are that go on beside products. It must not
 * depend on how many rows there are in a block, so that a row's do not, either: a whole one is what
 * there have to be columns for. */
INLINE bool in_steps(const struct block *t)
{
    return MATRIX || EXP2_BESIDE == 3 || (EXP2_BESIDE == 5 && words(t->d) >= BESIDE * NV);
}

/* Whether they are made beside the products of the next keys. In two halves that pays for whole
 * blocks, packed keys and sizes that are constants. */
INLINE bool goes_beside(const struct block *t, const struct place *at)
{
    return EXP2_BESIDE == 3 ? (t->d == 64 || t->d == 128) && t->vectors == NV && !at->direct
                            : in_steps(t);
}

/* Stores the weights p of MR keys of vector v, the first of them j; returns their sum. */
INLINE vec add_keys(struct block *t, int64_t j, int v, vec p[MR])
{
    UNROLL for (int i = 0; i < MR; i += PAIR)
        vec_store(t->p + (j + i) / PAIR * BQ + v * VEC_N, word_pack(p + i));
    vec sum = p[0];
    UNROLL for (int i = 1; i < MR; i++)
        sum = vec_add(sum, p[i]);
    return sum;
}

/* The same for MR scores that lie in t->s. */
INLINE vec exp_scores(struct block *t, int64_t j, int v)
{
    const vec r = vec_load(t->r + v * VEC_N);
    const bool steps = in_steps(t);
    vec p[MR];
    UNROLL for (int i = 0; i < MR; i++) {
        const vec score = vec_load(t->s + (j + i) * BQ + v * VEC_N);
        p[i] = steps ? exp2_by_steps(vec_sub(score, r), t->scale, PAIR > 1)
                     : weigh_scores(score, t->scale, r);
    }
    return add_keys(t, j, v, p);
}

/* Multiplies what was made with vector v's old reference, twice: weights of keys j0 .. j - 1, and
 * the sums. */
static void rescale(struct block *t, int64_t j0, int64_t j, int v, vec root)
{
    const vec least = least_kept(root), lightest = least_weight(root);
    for (int64_t i = j0 / PAIR; i < j / PAIR; i++) {
        real *p = t->p + i * BQ + v * VEC_N;
        const vec w = vec_load(p);
        vec_store(p, PAIR > 1 ? word_times(word_times(w, root), root)
                                 : lower(w, root, lightest));
    }
    for (int64_t c = 0; t->begun && c < t->dv_panels; c++) {
        real *o = t->o + c * BQ + v * VEC_N;
        vec_store(o, lower(vec_load(o), root, least));
    }
    vec_store(t->l + v * VEC_N, lower(vec_load(t->l + v * VEC_N), root, lightest));
    vec_store(t->sum + v * VEC_N, lower(vec_load(t->sum + v * VEC_N), root, lightest));
}

/* Of MR scores from j on, which lie in t->s, lanes of vector v whose weights sum to too much,
 * or to what is not a number, get the firm reference next to the largest. Returns the sums that
 * they have then. j0 is where the tile starts. */
static NOINLINE vec raise_reference(struct block *t, int64_t j0, int64_t j, int v, vmask keep)
{
    const vec r = vec_load(t->r + v * VEC_N);
    const vec most = largest(t, j, v); /* a lane that sees only -inf has no reference */
    const vec to = firm(vec_max(r, most), t->span);
    const vec raised = vec_select(vec_lt(vec_set(-INFINITY), most), to, vec_zero());
    rescale(t, j0, j, v, vec_select(keep, vec_set(1), root_factor(r, t->scale, raised)));
    set_reference(t, v, vec_select(keep, r, raised));
    return exp_scores(t, j, v);
}

/* The softmax of scores j .. j1 - 1, which lie in t->s: weights to t->p, sums to t->sum. */
static void push_scores(struct block *t, int64_t j0, int64_t j, int64_t j1)
{
    bool begun = false;
    for (; j < j1; j += MR) {
        begun = begun || settled(t);
        if (!begun)
            first_reference(t, j);
        for (int v = 0; v < t->vectors; v++) {
            real *sums = t->sum + v * VEC_N;
            vec sum = exp_scores(t, j, v);
            const vmask keep = are_below(sum, vec_load(t->limit + v * VEC_N));
            if (__builtin_expect(!vmask_all(keep), 0))
                sum = raise_reference(t, j0, j, v, keep);
            vec_store(sums, vec_add(vec_load(sums), sum));
        }
    }
}

/* That of MR keys from j on once more, as a reference has to be raised. */
static NOINLINE void push_again(struct block *t, const struct place *at, int64_t j0, int64_t j)
{
    if (!goes_beside(t, at)) { /* else their scores are still there */
        if (t->vectors < NV)
            store_scores(t, at->keys, j, j + MR, at->key_step, words(t->d), HALF);
        else
            store_scores(t, at->keys, j, j + MR, at->key_step, words(t->d), NV);
    }
    push_scores(t, j0, j, j + MR);
}

/* Adds the sums of a tile to those of all. */
INLINE void add_sums(struct block *t)
{
    for (int v = 0; v < t->vectors; v++) {
        vec_store(t->l + v * VEC_N, sum_of(t, v));
        vec_store(t->sum + v * VEC_N, vec_zero());
    }
}

/* Asks for MR keys and values, from the j-th on, of those to be asked for during a tile. */
INLINE void fetch_next(const struct block *t, int64_t j)
{
    if (t->next.lo + j >= t->next.hi)
        return;
    const struct attn_unit *u = t->u;
    const struct attn_problem *p = u->p;
    const int64_t size = (int64_t)sizeof(elem), first = t->next.lo + j;
    const elem *k = (const elem *)attn_view_at(&p->k, &p->key, u->b, first, u->head_kv, size);
    const elem *v = (const elem *)attn_view_at(&p->v, &p->key, u->b, first, u->head_kv, size);
    for (int64_t i = 0; i < min64(MR, t->next.hi - first); i++) {
        fetch_soon(k + i * p->k.token, t->d);
        fetch_soon(v + i * p->v.token, t->dv);
    }
}

#if EXP2_BESIDE == 3
/* n columns from c on. */
INLINE void dot_columns(const real *qt, vec s[MR][NV], const real *k, int64_t step, int64_t c,
                        int64_t n, int nv)
{
    UNROLL_BY(1) for (int64_t m = 0; m < n; m++) {
#ifdef VEC_COLUMN
        if (nv == NV) {
            vec_column(s, k + c + m, step, qt + (c + m) * BQ);
            continue;
        }
#endif
        dot_column(qt, s, k, step, c + m, nv);
    }
}

/* Scores of MR keys from j on, `keys`, to t->s, and beside their products the probabilities of the
 * MR keys before, and the sums of these to `sums`. n words a key. Half of the work on each vector
 * goes before some columns and half behind them. Beside the last columns there is none: the branch
 * of take_sums() waits for the last probabilities. */
INLINE void dot_and_weigh(struct block *t, const real *keys, int64_t step, int64_t n,
                          const real *next, int64_t j, real *sums, int nv)
{
    const struct exponent scale = t->scale;
    const real *const before = t->s + (j - MR) * BQ, *const qt = t->qt, *const r = t->r;
    real *const p = t->p + (j - MR) * BQ;
    const int64_t each = n / (MR * nv), line = LINE / (int64_t)sizeof(real);
    vec s[MR][NV], sum[NV];
    clear_products(s, nv);
    UNROLL for (int v = 0; v < nv; v++)
        sum[v] = vec_zero();
    UNROLL_BY(1) for (int i = 0; i < MR; i++)
        UNROLL for (int v = 0; v < nv; v++) {
            const int lane = i * BQ + v * VEC_N;
            const int64_t c = (i * nv + v) * each;
            const int64_t from = n * v / nv / line * line, to = n * (v + 1) / nv / line * line;
            struct exp2_steps e;
            fetch_ahead(next, i * n + from, (int)(to - from));
            exp2_begin(&e, vec_sub(vec_load(before + lane), vec_load(r + v * VEC_N)), scale, false);
            vec_spill(&e.rest);
            vec_spill(&e.power);
            UNROLL_BY(1) for (int64_t m = 0; m < each / 2; m++) {
                dot_columns(qt, s, keys, step, c + 2 * m, 1, nv);
                dot_columns(qt, s, keys, step, c + 2 * m + 1, 1, nv);
            }
            dot_columns(qt, s, keys, step, c + each / 2 * 2, each % 2, nv);
            const vec w = exp2_end(&e);
            vec_store(p + lane, w);
            sum[v] = vec_add(sum[v], w);
        }
    UNROLL for (int v = 0; v < nv; v++)
        vec_store(sums + v * VEC_N, sum[v]);
    dot_columns(qt, s, keys, step, MR * nv * each, n % (MR * nv), nv);
    keep_products(t->s + j * BQ, s, nv);
}
#else
/* The same with a step of each word after a column; at least BESIDE nv words a key. */
INLINE void dot_and_weigh(struct block *t, const real *keys, int64_t step, int64_t n,
                          const real *next, int64_t j, real *sums, int nv)
{
    const struct exponent scale = t->scale;
    const real *const before = t->s + (j - MR) * BQ;
    real *const p = t->p + (j - MR) / PAIR * BQ;
    int64_t c = 0;
    vec s[MR][NV];
    _Static_assert((int)DOT_COLUMNS == 4, "a column for each step");
    clear_products(s, nv);
    UNROLL for (int v = 0; v < nv; v++) {
        const vec r = vec_load(t->r + v * VEC_N);
        vec sum = vec_zero();
        UNROLL_BY(1) for (int i = 0; i < MR; i += PAIR, c += DOT_COLUMNS) {
            struct exp2_steps e[PAIR];
            vec w[PAIR];
            fetch_ahead(next, c * MR, DOT_COLUMNS * MR);
            dot_column(t->qt, s, keys, step, c, nv);
            UNROLL for (int h = 0; h < PAIR; h++) {
                const vec score = vec_load(before + (i + h) * BQ + v * VEC_N);
                exp2_begin(&e[h], vec_sub(score, r), scale, PAIR > 1);
            }
            dot_column(t->qt, s, keys, step, c + 1, nv);
            UNROLL for (int h = 0; h < PAIR; h++)
                exp2_split(&e[h], scale, PAIR > 1);
            dot_column(t->qt, s, keys, step, c + 2, nv);
            UNROLL for (int h = 0; h < PAIR; h++)
                exp2_square(&e[h]);
            dot_column(t->qt, s, keys, step, c + 3, nv);
            UNROLL for (int h = 0; h < PAIR; h++) {
                w[h] = exp2_end(&e[h]);
                sum = vec_add(sum, w[h]);
            }
            vec_store(p + i / PAIR * BQ + v * VEC_N, word_pack(w));
        }
        vec_store(sums + v * VEC_N, sum);
    }
    dot_from(t->qt, s, keys, step, c, n, next, nv);
    keep_products(t->s + j * BQ, s, nv);
}
#endif

/* Adds the sums of the probabilities of MR keys from j on, unless a reference has to be raised. */
INLINE void take_sums(struct block *t, const struct place *at, int64_t j0, int64_t j,
                      const vec sum[NV], int nv)
{
    bool fits = true;
    UNROLL for (int v = 0; v < nv; v++)
        fits &= vmask_all(are_below(sum[v], vec_load(t->limit + v * VEC_N))) != 0;
    if (__builtin_expect(!fits, 0))
        push_again(t, at, j0, j);
    else
        UNROLL for (int v = 0; v < nv; v++)
            vec_store(t->sum + v * VEC_N, vec_add(vec_load(t->sum + v * VEC_N), sum[v]));
}

/* Scores and softmax of keys j .. j1 - 1, which every lane sees, the probabilities of MR keys
 * beside the products of the next ones: scores of these with probabilities of those, then the sums
 * of those, and only then the references of these. step, n: at->key_step and words of a key, which
 * may be constants. */
INLINE void push_beside(struct block *t, const struct place *at, int64_t j0, int64_t j, int64_t j1,
                        int64_t step, int64_t n, int nv)
{
    const int64_t ahead = t->far ? MR * step : 0;
    bool begun = settled(t);
    real sums[BQ];
    vec sum[NV];
    if (j >= j1)
        return;
    fetch_next(t, j);
    store_scores(t, at->keys, j, j + MR, step, n, nv);
    if (!begun)
        first_reference(t, j);
    for (j += MR; j < j1; j += MR) {
        const real *const keys = at->keys + j * step, *next = at->direct ? t->qt : keys + ahead;
        fetch_next(t, j);
        dot_and_weigh(t, keys, step, n, next, j, sums, nv);
        UNROLL for (int v = 0; v < nv; v++)
            sum[v] = vec_load(sums + v * VEC_N);
        take_sums(t, at, j0, j - MR, sum, nv);
        begun = begun || settled(t);
        if (!begun)
            first_reference(t, j);
    }
    UNROLL for (int v = 0; v < nv; v++)
        sum[v] = exp_scores(t, j - MR, v);
    take_sums(t, at, j0, j - MR, sum, nv);
}

/* That for common sizes and for any: functions, so that compilers find registers for each. */
static NOINLINE void push_beside_64(struct block *t, const struct place *at, int64_t j0, int64_t j,
                                    int64_t j1)
{
    push_beside(t, at, j0, j, j1, 64 / PAIR, 64 / PAIR, NV);
}

static NOINLINE void push_beside_128(struct block *t, const struct place *at, int64_t j0,
                                     int64_t j, int64_t j1)
{
    push_beside(t, at, j0, j, j1, 128 / PAIR, 128 / PAIR, NV);
}

static NOINLINE void push_beside_any(struct block *t, const struct place *at, int64_t j0,
                                     int64_t j, int64_t j1)
{
    push_beside(t, at, j0, j, j1, at->key_step, words(t->d), NV);
}

static NOINLINE void push_beside_half(struct block *t, const struct place *at, int64_t j0,
                                      int64_t j, int64_t j1)
{
    push_beside(t, at, j0, j, j1, at->key_step, words(t->d), HALF);
}

/* The same where scores never leave the registers. */
INLINE void push_products(struct block *t, const struct place *at, int64_t j0, int64_t j,
                          int64_t j1, int64_t step, int64_t n, int nv)
{
    bool begun = false;
    for (; j < j1; j += MR) {
        const real *const keys = at->keys + j * step;
        vec s[MR][NV], sum[NV];
        fetch_next(t, j);
        dot_keys(t->qt, s, keys, step, n, at->direct ? t->qt : keys + (t->far ? MR * step : 0), nv);
        begun = begun || settled(t);
        if (!begun)
            begin_references(t, s, nv);
        UNROLL for (int v = 0; v < nv; v++) {
            const vec r = vec_load(t->r + v * VEC_N);
            vec p[MR];
            UNROLL for (int i = 0; i < MR; i++)
                p[i] = EXP2_BESIDE == 3 ? exp2_all_steps(vec_sub(s[i][v], r), t->scale, false)
                                        : vec_exp2(vec_sub(s[i][v], r), t->scale, WEIGHT_BITS);
            sum[v] = add_keys(t, j, v, p);
        }
        take_sums(t, at, j0, j, sum, nv);
    }
}

/* The same for any keys and scores. hides: some lane does not see some of the keys, and none sees
 * one from `end` on. */
INLINE void push_seen(struct block *t, const real *keys, int64_t k0, int64_t j0, int64_t j,
                      int64_t j1, int64_t end, bool hides, int64_t n, int nv)
{
    const bool half = !MATRIX && end <= j1 - MR / 2; /* of the last ones is seen by nobody */
    const int64_t last = half ? j1 - MR : j1;
    if (j >= j1)
        return;
    store_scores(t, keys, j, last, n, n, nv);
    if (last < j1)
        store_half(t->s, t->qt, keys, last, n, n, nv);
    if (t->shaped)
        shape_scores(t, k0, j, j1);
    if (hides)
        hide(t, k0, j, j1);
    push_scores(t, j0, j, j1);
}

#endif
