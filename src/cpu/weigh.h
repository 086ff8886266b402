/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scores of a tile and their softmax: weights of a block's rows, beside the products of the next
 * keys or behind those of their own. See fwd_tmpl.c.
 */
#ifndef ATTN_CPU_WEIGH_H
#define ATTN_CPU_WEIGH_H

#include "cpu/block.h"
#include "cpu/tile.h"

/* The largest of scores j .. end - 1 of vector v, which lie in t->s: some times MR. */
INLINE vec largest(const struct block *t, int64_t j, int64_t end, int v)
{
    vec most[MR];
    UNROLL for (int i = 0; i < MR; i++)
        most[i] = vec_set(-INFINITY);
    for (; j < end; j += MR)
        UNROLL for (int i = 0; i < MR; i++)
            most[i] = vec_max(vec_load(scores_at(t, j + i) + v * VEC_N), most[i]);
    UNROLL for (int i = 1; i < MR; i++)
        most[0] = vec_max(most[i], most[0]);
    return most[0];
}

/* Of those that references are chosen by: MR from j on, with matrices the rest of a piece; of
 * scores that are shaped the rest of the tile, as a bias may make them rise and rise. */
INLINE vec largest_soon(const struct block *t, int64_t j, int v)
{
    return largest(t, j, t->shaped ? t->scored : MATRIX ? t->piece : j + MR, v);
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

/* Which lanes have a score below so many powers of 2. Where the first scores of a row are larger
 * others may pass a limit soon. */
INLINE vmask are_narrow(const struct block *t, vec scores)
{
    enum { WIDE = 128 };
    return vec_lt(vec_mul(scores, vec_set(t->scale.by)), vec_set(WIDE));
}

/* Gives lanes without a reference the largest of the scores from j on, if they see one above
 * -inf. So has a lane that got one before which made all its weights 0. */
static NOINLINE void first_reference(struct block *t, int64_t j)
{
    for (int v = 0; v < t->vectors; v++) {
        const vec r = vec_load(t->r + v * VEC_N), l = sum_of(t, v);
        vec most = largest_soon(t, j, v);
        if (MATRIX)
            most = vec_select(are_narrow(t, most), most, largest(t, j, t->scored, v));
        const vmask set = vmask_and(vec_le(l, vec_zero()), vec_lt(vec_set(-INFINITY), most));
        set_reference(t, v, vec_select(set, most, r));
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

/* Whether probabilities are made in steps, as those are that go on beside products, with n words a
 * key. It must not depend on how many rows there are in a block, so that a row's do not, either: a
 * whole one is what there have to be columns for. */
INLINE bool in_steps(int64_t n)
{
    return EXP2_BESIDE == 3 || (EXP2_BESIDE == 5 && n >= BESIDE * LEAST_NV);
}

/* Stores the weights p of MR keys of vector v, the first of them j; returns their sum. */
INLINE vec add_keys(struct block *t, int64_t j, int v, vec p[MR])
{
    real *const w = weights_at(t, j) + v * VEC_N;
    UNROLL for (int i = 0; i < MR; i += PAIR)
        vec_store(w + i / PAIR * BQ, word_pack(p + i));
    vec sum = p[0];
    UNROLL for (int i = 1; i < MR; i++)
        sum = vec_add(sum, p[i]);
    return sum;
}

/* Weights of scores relative to the reference r. */
INLINE vec weights_of(const struct block *t, vec scores, vec r)
{
#if MATRIX
    return word_weigh(vec_sub(scores, r), t->scale);
#else
    return in_steps(words(t->d)) ? exp2_by_steps(vec_sub(scores, r), t->scale, PAIR > 1)
                                 : weigh_scores(scores, t->scale, r);
#endif
}

/* The same for MR scores that lie in t->s. */
INLINE vec exp_scores(struct block *t, int64_t j, int v)
{
    const real *const scores = scores_at(t, j) + v * VEC_N;
    const vec r = vec_load(t->r + v * VEC_N);
    vec p[MR];
    UNROLL for (int i = 0; i < MR; i++)
        p[i] = weights_of(t, vec_load(scores + i * BQ), r);
    return add_keys(t, j, v, p);
}

/* Multiplies what was made with vector v's old reference, twice: weights of keys j0 .. j - 1, and
 * the sums. */
static void rescale(struct block *t, int64_t j0, int64_t j, int v, vec root)
{
    const vec least = least_kept(root), lightest = least_weight(root);
    for (int64_t i = j0; i < j; i += PAIR) {
        real *p = weights_at(t, i) + v * VEC_N;
        vec_store(p, word_lower(vec_load(p), root, lightest));
    }
    for (int64_t c = 0; t->begun && c < t->dv_panels; c++) {
        real *o = t->o + c * BQ + v * VEC_N;
        vec_store(o, lower(vec_load(o), root, least));
    }
    vec_store(t->l + v * VEC_N, lower(vec_load(t->l + v * VEC_N), root, lightest));
    vec_store(t->sum + v * VEC_N, lower(vec_load(t->sum + v * VEC_N), root, lightest));
}

/* Lanes of vector v but those in `keep` get the firm reference next to the largest of the scores
 * from j on; j0 is where the tile starts. */
static void raise_lanes(struct block *t, int64_t j0, int64_t j, int v, vmask keep)
{
    const vec r = vec_load(t->r + v * VEC_N);
    const vec most = largest_soon(t, j, v); /* a lane that sees only -inf has no reference */
    const vec to = firm(vec_max(r, most), t->span);
    const vec raised = vec_select(vec_lt(vec_set(-INFINITY), most), to, vec_zero());
    rescale(t, j0, j, v, vec_select(keep, vec_set(1), root_factor(r, t->scale, raised)));
    set_reference(t, v, vec_select(keep, r, raised));
}

/* The same of those of which MR scores from j on, which lie in t->s, have weights that sum to too
 * much, or to what is not a number. Returns the sums that they have then. */
static NOINLINE vec raise_reference(struct block *t, int64_t j0, int64_t j, int v, vmask keep)
{
    raise_lanes(t, j0, j, v, keep);
    return exp_scores(t, j, v);
}

/* The same before weights of a tile are made, from whose scores, from j0 on, one would be too large
 * by itself. With ALiBi scores rise tile by tile, and pass limits in each row at other keys. */
static NOINLINE void raise_ahead(struct block *t, int64_t j0)
{
    for (int v = 0; v < t->vectors; v++) {
        const vec weight = weights_of(t, largest(t, j0, t->scored, v), vec_load(t->r + v * VEC_N));
        const vmask keep = are_below(weight, vec_load(t->limit + v * VEC_N));
        if (!vmask_all(keep)) /* those without sums, or whose become 0, get a first one anyway */
            raise_lanes(t, j0, j0, v, keep);
    }
}

/* Weights of 0 for MR keys from j on. */
INLINE void clear_weights(struct block *t, int64_t j, int v)
{
    UNROLL for (int i = 0; i < MR; i += PAIR)
        vec_store(weights_at(t, j + i) + v * VEC_N, vec_zero());
}

/* The softmax of scores j .. j1 - 1, which lie in t->s: weights to t->p, sums to t->sum. */
static void push_scores(struct block *t, int64_t j0, int64_t j, int64_t j1)
{
    bool begun = false;
    for (; j < j1; j += MR) {
        begun = begun || settled(t);
        if (!begun)
            first_reference(t, j);
        begun = begun || MATRIX || t->shaped; /* what it looked at is all there is */
        for (int v = 0; v < t->vectors; v++) {
            real *sums = t->sum + v * VEC_N;
            if (j >= t->ends[v]) {
                clear_weights(t, j, v);
                continue;
            }
            vec sum = exp_scores(t, j, v);
            const vmask keep = are_below(sum, vec_load(t->limit + v * VEC_N));
            if (__builtin_expect(!vmask_all(keep), 0))
                sum = raise_reference(t, j0, j, v, keep);
            vec_store(sums, vec_add(vec_load(sums), sum));
        }
    }
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

#endif
