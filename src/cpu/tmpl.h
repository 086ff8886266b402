/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernels of one instruction set and element type share. */
#ifndef ATTN_CPU_TMPL_H
#define ATTN_CPU_TMPL_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/word.h"

#define PASTE3_(a, b, c) a##_##b##_##c
#define PASTE3(a, b, c) PASTE3_(a, b, c)
#define KERNEL(name) PASTE3(name, ATTN_ELEM, ATTN_ISA)

static const double LOG2E = 0x1.71547652b82fep+0, LOG2E_REST = 0x1.777d0ffda0d24p-56;

/* A row's reference is raised where its probabilities pass this; see fwd_tmpl.c. */
static const real RAISE_ABOVE = (real)0x1p60;

/* Whether probabilities, or sums of them, are below RAISE_ABOVE. Those of scores far above the
 * reference may come out with either sign, or NaN. */
INLINE vmask below_limit(vec p)
{
    return vec_le(vec_max(p, vec_sub(vec_zero(), p)), vec_set(RAISE_ABOVE));
}

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t words(int64_t d) { return round_up(d, PAIR) / PAIR; }

/* |scale|, its sign being in the queries, brought to where its multiple of log2(e) times -inf is
 * far below 0, and times 0 is 0. */
INLINE double score_scale(const struct attn_problem *p)
{
    const double most = sizeof(real) == 4 ? 0x1p127 : 0x1p1023;
    return fmax(0x1p-101, fmin(most, fabs(p->scale)));
}

INLINE struct exponent score_exponent(const struct attn_problem *p)
{
    const double scale = score_scale(p), c = scale * LOG2E;
    struct exponent e;
    e.hi = (real)c;
    e.lo = (real)(c - (double)e.hi + fma(scale, LOG2E, -c) + scale * LOG2E_REST);
    e.low = (real)(EXP2_LOW / c);
    return e;
}

INLINE real vec_first(vec a)
{
    real part[VEC_N];
    vec_store(part, a);
    return part[0];
}

/* The sums of rows with references m, when all keys are done: a largest score that is infinite once
 * it is scaled makes a row NaN, or one that sees nothing. */
INLINE vec final_sum(const struct attn_problem *p, vec m, vec l)
{
    const vec large = vec_set(INFINITY), small = vec_set(-INFINITY);
    const vec score = vec_mul(m, vec_set((real)score_scale(p)));
    l = vec_select(vmask_and(vec_le(score, small), vec_lt(vec_zero(), l)), vec_zero(), l);
    return vec_select(vec_le(large, score), vec_set(NAN), l);
}

/* One row of a unit, when its sums are known. */
struct row {
    const struct attn_unit *u;
    int64_t head_kv, query, head;
    struct attn_range see;
};

static __attribute__((unused)) const elem *query_row(const struct row *t)
{
    const struct attn_problem *p = t->u->p;
    return (const elem *)attn_view_at(&p->q, &p->query, t->u->b, t->query, t->head, sizeof(elem));
}

INLINE elem *out_row(const struct row *t)
{
    const struct attn_problem *p = t->u->p;
    return (elem *)attn_view_at(&p->out, &p->query, t->u->b, t->query, t->head, sizeof(elem));
}

/* The LSE, if wanted, of a row with reference m, a score without scale, and sum l of
 * probabilities. */
INLINE void store_lse(const struct row *t, real m, real l)
{
    const struct attn_problem *p = t->u->p;
    if (p->lse.data)
        *(real *)attn_view_at(&p->lse, &p->query, t->u->b, t->query, t->head, sizeof(real)) =
            (real)(l == 0 ? -INFINITY : (double)m * score_scale(p) + log((double)l));
}

/* n numbers to a row of out. */
INLINE void store_row(elem *to, const real *from, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N)
        elem_store(to + i, vec_load(from + i));
    for (; i < n; i++)
        to[i] = elem_put(from[i]);
}

/* The score of key j, without scale. */
static real careful_score(const struct row *t, int64_t j)
{
    const struct attn_problem *p = t->u->p;
    const elem *q = query_row(t);
    const elem *k = (const elem *)attn_view_at(&p->k, &p->key, t->u->b, j, t->head_kv, sizeof *k);
    const real sign = p->scale < 0 ? -1 : 1;
    real s = 0;
    for (int64_t c = 0; c < p->head_dim; c++)
        s += sign * elem_get(q[c]) * elem_get(k[c]);
    return s;
}

/* Its probability, with `most` as the reference and not divided by the sum. */
static real careful_weight(const struct row *t, int64_t j, real most, struct exponent scale)
{
    return vec_first(vec_exp2(vec_set(careful_score(t, j) - most), scale));
}

/* A row whose sums are not finite, in the plain way, from the caller's tensors: the maximum, then
 * the sum, then the values times probabilities that are divided by it, which cannot overflow before
 * the result does. Writes the columns of out that are not finite. sums: room for head_dim_v. */
static NOINLINE __attribute__((unused)) void careful_row(const struct row *t, real *sums)
{
    const struct attn_unit *u = t->u;
    const struct attn_problem *p = u->p;
    const struct exponent scale = score_exponent(p);
    elem *out = out_row(t);
    real most = -INFINITY, sum = 0;
    for (int64_t j = t->see.lo; j < t->see.hi; j++) {
        const real s = u->key_mask && !u->key_mask[j] ? (real)-INFINITY : careful_score(t, j);
        most = s > most ? s : most;
    }
    for (int64_t j = t->see.lo; j < t->see.hi; j++)
        if (!u->key_mask || u->key_mask[j])
            sum += careful_weight(t, j, most, scale);

    memset(sums, 0, (size_t)p->head_dim_v * sizeof *sums);
    for (int64_t j = t->see.lo; j < t->see.hi; j++) {
        if (u->key_mask && !u->key_mask[j])
            continue;
        const real weight = careful_weight(t, j, most, scale) / sum;
        const elem *v = (const elem *)attn_view_at(&p->v, &p->key, u->b, j, t->head_kv, sizeof *v);
        for (int64_t c = 0; c < p->head_dim_v; c++)
            sums[c] += weight * elem_get(v[c]);
    }
    for (int64_t c = 0; c < p->head_dim_v; c++)
        if (!isfinite(elem_get(out[c])))
            out[c] = elem_put(sums[c]);
}

#endif
