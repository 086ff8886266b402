/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernels of one instruction set and element type share. */
#ifndef ATTN_CPU_TMPL_H
#define ATTN_CPU_TMPL_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/word.h"

/*
 * A row's weights are its probabilities relative to a reference, a score, times WEIGHT_ONE. The
 * reference is raised where they pass a limit. What lies far above it costs no accuracy where its
 * difference from it is exact. That is so up to FIRM_LIMIT above firm references, see firm().
 * Others have a limit that differences below lose little by.
 */
enum { FIRM_BITS = 60 };
static const real FIRM_LIMIT = WEIGHT_ONE * (real)(PAIR > 1 ? 0x1p70 : 0x1p60),
                  OTHER_LIMIT = WEIGHT_ONE * (real)0x1p9;

/* The firm reference next to r; a negative r stays, as none of them is firm: scores near 0 are
 * finer than their differences from it. span: a power of two, by which what is above a firm
 * reference passes its limit.
 *
 * Below `span` the firm ones are multiples of its unit in the last place, which is the largest that
 * a score of up to twice `span` has: the difference is a multiple of the score's own unit, and no
 * larger than the score. From `span` on all are: the score is at most twice the reference.
 *
 * For elements of 16 bits that are multiplied as they are all of 0 and more are firm: out has few
 * digits, and LSE is no less than the difference that is rounded. So the limit is higher, too, as
 * far as sums of large values allow. */
INLINE vec firm(vec r, real span)
{
    if (PAIR > 1)
        return r;
    const vec s = vec_set(span), next = vec_sub(vec_add(r, s), s);
    return vec_select(vmask_and(vec_le(vec_zero(), r), vec_lt(r, s)), next, r);
}

/* The limit of weights, and of sums of some of them, relative to r. */
INLINE vec limit_of(vec r, real span)
{
    const vec next = firm(r, span);
    const vmask same = vmask_and(vec_le(next, r), vec_le(r, next));
    return vec_select(vmask_and(vec_le(vec_zero(), r), same), vec_set(FIRM_LIMIT),
                      vec_set(OTHER_LIMIT));
}

/* Whether weights, or sums of them, are below the limit. Those of scores far above their reference
 * may come out with either sign, or NaN. */
INLINE vmask are_below(vec p, vec limit)
{
    return vec_le(vec_max(p, vec_sub(vec_zero(), p)), limit);
}

enum { STEP = MATRIX ? 2 * MATRIX : MR };    /* keys whose products are made together */
enum { COLUMNS = MATRIX ? MATRIX : (int)MR }; /* of values, in a panel */

enum { BQ = NV * VEC_N }; /* rows in a block of the tiled form */
/* Vectors that one of few rows is computed in. Wide ones are whole. */
enum { HALF = WIDE_BLOCKS ? (int)NV : (NV + 1) / 2 };
enum { LEAST_NV = WIDE_BLOCKS ? NV - 1 : (int)NV }; /* in a block of any kernel beside these */

/* Lanes of a block, as bits. */
#if WIDE_BLOCKS && REAL_BITS == 32
typedef uint64_t lane_bits;
#else
typedef uint32_t lane_bits;
#endif
static const lane_bits ALL_LANES = ~(lane_bits)0 >> (8 * sizeof(lane_bits) - BQ);

enum { FAR_BYTES = 1 << 19 }; /* of keys and values: a second cache has room for fewer */

/* Whether nk keys and values are more than so many bytes, as the caller has them. */
INLINE bool are_more(const struct attn_problem *p, int64_t nk, int64_t bytes)
{
    return nk > bytes / ((p->head_dim + p->head_dim_v) * (int64_t)sizeof(elem));
}

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Words of a row of d numbers, those past its end 0. */
INLINE int64_t words(int64_t d)
{
    return round_up(d, MATRIX ? MATRIX * PAIR : (int)PAIR) / PAIR;
}

enum { LINE = 64 }; /* bytes of a cache line */

/* Where the line of p begins. Rows are asked for from there on: one that begins within a line ends
 * in one more than its length tells. */
INLINE uintptr_t line_of(const void *p) { return (uintptr_t)p / LINE * LINE; }

/* |scale| of products of query and key, the sign being in the queries. */
INLINE double product_scale(const struct attn_problem *p) { return fabs(p->scale); }

/* Whether anything but a scale that the exponent can take goes into the scores. Softmax then works
 * on scores as they are, otherwise on products of query and key, with the scale in its exponent. */
INLINE bool shapes_scores(const struct attn_problem *p)
{
    return p->softcap > 0 || p->bias.data || p->alibi.data || attn_is_extreme(product_scale(p));
}

/* Whether a mask that each query has for itself may hide keys; and any other than that of keys. */
INLINE bool has_own_masks(const struct attn_problem *p)
{
    return p->query_mask.data || p->mask.data || p->query_docs.data;
}

INLINE bool hides_keys(const struct attn_problem *p)
{
    return has_own_masks(p) || p->block_mask.data;
}

/* Whether a rule beyond the band and the key mask may hide keys; a bias may, by -inf. */
INLINE bool has_masks(const struct attn_problem *p) { return hides_keys(p) || p->bias.data; }

/* The scale of what the softmax works on. */
INLINE double score_scale(const struct attn_problem *p)
{
    return shapes_scores(p) ? 1 : product_scale(p);
}

INLINE struct exponent score_exponent(const struct attn_problem *p)
{
    return exponent_of(score_scale(p));
}

/* For firm(): a power of two. */
INLINE real score_span(const struct attn_problem *p)
{
    const double span = FIRM_BITS / (double)score_exponent(p).by;
    uint64_t word; /* its exponent, above the other bits, becomes one more and they 0 */
    double next;
    int power;
    memcpy(&word, &span, sizeof word);
    if (word >> 52 == 0 || word >> 52 >= 0x7fe) { /* it, or twice as much, is no normal number */
        (void)frexp(span, &power);
        return (real)ldexp(1, power);
    }
    word = ((word >> 52) + 1) << 52;
    memcpy(&next, &word, sizeof next);
    return (real)next;
}

/* The scale that the probabilities then have, all of them alike: the given one but for the rounding
 * of its multiple of log2(e). */
INLINE double rounded_scale(const struct attn_problem *p)
{
    return (double)score_exponent(p).by / LOG2E;
}

INLINE real vec_first(vec a)
{
    real part[VEC_N];
    vec_store(part, a);
    return part[0];
}

/* What makes scores of products of query and key, before anything is added to them. */
struct scaling {
    double scale, cap; /* cap 0: none */
    double by;         /* the scale, in units of the cap if there is one */
    bool extreme;
};

INLINE struct scaling scaling_of(const struct attn_problem *p)
{
    const double scale = product_scale(p), cap = p->softcap, by = cap > 0 ? scale / cap : scale;
    const bool extreme = attn_is_extreme(scale) || attn_is_extreme(by) ||
                         (cap > 0 && attn_is_extreme(cap));
    const struct scaling c = {scale, cap, by, extreme};
    return c;
}

/* One by one in double, where neither factor leaves the range by itself. */
static NOINLINE __attribute__((unused)) vec extreme_scores(double scale, double cap, vec products)
{
    real s[VEC_N];
    vec_store(s, products);
    for (int i = 0; i < VEC_N; i++) {
        s[i] = (real)(scale * (double)s[i]);
        if (cap > 0)
            s[i] = (real)(cap * tanh((double)s[i] / cap));
    }
    return vec_load(s);
}

INLINE vec scaled_scores(struct scaling c, vec products)
{
    if (__builtin_expect(c.extreme, 0))
        return extreme_scores(c.scale, c.cap, products);
    const vec s = vec_mul(products, vec_set((real)c.by));
    return c.cap > 0 ? vec_mul(vec_set((real)c.cap), vec_tanh(s)) : s;
}

/* What the cap multiplies gradients of scores by: 1 - tanh^2, from the scores it left. */
INLINE __attribute__((unused)) vec cap_slope(struct scaling c, vec capped)
{
    const vec one = vec_set(1), cap = vec_set((real)c.cap);
    if (__builtin_expect(c.extreme, 0)) {
        real t[VEC_N];
        vec_store(t, capped);
        for (int i = 0; i < VEC_N; i++)
            t[i] = (real)((double)t[i] / c.cap);
        return vec_sub(one, vec_mul(vec_load(t), vec_load(t)));
    }
    const vec t = vec_div(capped, cap);
    return vec_sub(one, vec_mul(t, t));
}

/* The probability of scores that may be -inf, relative to the reference r. */
INLINE vec probability(vec s, struct exponent c, vec r)
{
    return vec_exp2(exp2_argument(vec_sub(s, r), c), c, 0);
}

/* Their weight. */
INLINE vec weigh_scores(vec s, struct exponent c, vec r)
{
    return vec_exp2(exp2_argument(vec_sub(s, r), c), c, WEIGHT_BITS);
}

/* The root of what takes sums made with reference r to one with reference `to`: sums may be as
 * large as the whole is small, so that it is multiplied in twice. */
INLINE vec root_factor(vec r, struct exponent c, vec to)
{
    return vec_exp2(exp2_argument(vec_mul(vec_sub(r, to), vec_set((real)0.5)), c), c, 0);
}

/* The size of sums of values that `root`, multiplied in twice, makes denormal; 0 where a reference
 * stays. They count as 0, for the sake of speed: a row's weights come to WEIGHT_ONE and more, and
 * what such sums give is less than half of the least number there is, but for dropout's scale. */
INLINE vec least_kept(vec root)
{
    const vec least = vec_div(vec_div(vec_set(LEAST_NORMAL), root), root);
    return vec_select(vec_lt(root, vec_set(1)), least, vec_zero());
}

/* That of weights, and of sums of them: it makes them weights of what counts as 0. */
INLINE vec least_weight(vec root) { return vec_mul(least_kept(root), vec_set(WEIGHT_ONE)); }

/* The sums of probabilities of rows with references r, from those of weights, when all keys are
 * done: a largest score that is infinite once it is scaled makes a row NaN, or one that sees
 * nothing. */
INLINE vec final_sum(const struct attn_problem *p, vec r, vec weights)
{
    const vec large = vec_set(INFINITY), small = vec_set(-INFINITY);
    const vec score = vec_mul(r, vec_set((real)score_scale(p)));
    vec l = vec_mul(weights, vec_set(1 / WEIGHT_ONE));
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

/* What becomes of a row with reference `ref` and sum l. */
struct outcome {
    real by;    /* multiplies probabilities; below 0: out is 0, whatever values are */
    real share; /* by l: what a sink leaves to the keys, times dropout's scale; see is_small() */
    real lse;   /* if it is wanted */
};

/* Whether a factor of probabilities has lost digits, or WEIGHT_ONE would take some: beside a large
 * sink, far above the reference that probabilities are relative to, it may be 0 where what it
 * multiplies is as large. Then the sum divides first, and the share comes after. */
INLINE bool is_small(real by) { return by >= 0 && by < WEIGHT_ONE * LEAST_NORMAL; }

/* What a finite sink leaves to the keys of a row with reference `ref` and sum l. Probabilities have
 * the rounded scale alike, which cancels but here: the reference's score takes the given one, and l
 * is corrected by its size. */
INLINE double share_beside(const struct attn_problem *p, double sink, double ref, double l)
{
    const double scale = score_scale(p), above = sink - ref * scale;
    if (l > 0)
        l += l * ilogb(l) / LOG2E * (exponent_lost(scale) / (double)score_exponent(p).by);
    l /= attn_exp_lacks(sink, ref, scale);
    if (above <= 0)
        return 1 / (1 + exp(above) / l);
    const double root = above > 700 ? exp(above / -2) : 1; /* or it would be denormal */
    const double odds = l * (above > 700 ? root : exp(-above)) * root;
    return odds < 1 ? odds / (1 + odds) : 1 / (1 + 1 / odds);
}

/* The LSE of a row with a finite sink, reference `at` and sum l. */
INLINE double lse_beside(double sink, double at, double l)
{
    const double top = l == 0 ? sink : fmax(at, sink), weight = l == 0 ? 0 : exp(at - top);
    return top + log(weight == 0 ? exp(sink - top) : weight * l + exp(sink - top));
}

static __attribute__((unused)) struct outcome outcome_of(const struct row *t, real ref, real l)
{
    const struct attn_problem *p = t->u->p;
    const double sink = attn_sink_of(p, t->head);
    const bool wanted = p->lse.data != NULL; /* logarithms take as long as some rows */
    const double scale = wanted ? rounded_scale(p) : 0, at = (double)ref * scale;
    double by = l == 0 ? -1 : 1 / (double)l, share = 1;
    struct outcome r = {.lse = (real)-INFINITY};
    if (wanted && l != 0) /* the product's rounding comes back: its parts may cancel */
        r.lse = (real)(at + log((double)l) + (isfinite(at) ? fma((double)ref, scale, -at) : 0));
    if (isnan(sink)) {
        by = sink;
        r.lse = (real)sink;
    } else if (sink > -(double)INFINITY && !isnan(l)) {
        const bool all = sink == (double)INFINITY;
        share = all ? 0 : share_beside(p, sink, (double)ref, (double)l);
        by = all || l == 0 ? -1 : share / (double)l;
        if (wanted)
            r.lse = all ? (real)INFINITY : (real)lse_beside(sink, at, (double)l);
    }
    if (p->dropout.on && by >= 0) {
        by = p->dropout.scale == 0 ? -1 : by * p->dropout.scale;
        share *= p->dropout.scale;
    }
    r.by = (real)by;
    r.share = (real)share;
    return r;
}

/* What is left to multiply the sums of weighed values by, n of them `step` apart, of a row whose
 * weights sum to WEIGHT_ONE l. */
INLINE real factor_of_sums(const struct outcome *x, real l, real *sums, int64_t n, int64_t step)
{
    if (!is_small(x->by))
        return x->by / WEIGHT_ONE;
    for (int64_t c = 0; c < n; c++)
        sums[c * step] *= 1 / WEIGHT_ONE / l;
    return x->share;
}

/* The LSE, if wanted. */
INLINE void store_lse(const struct row *t, real lse)
{
    const struct attn_problem *p = t->u->p;
    if (p->lse.data)
        *(real *)attn_view_at(&p->lse, &p->query, t->u->b, t->query, t->head, sizeof(real)) = lse;
}

/* How scores of a row become probabilities: by its reference, and two factors. */
struct weight {
    real r, by, share;
};

INLINE struct weight *weight_of(const struct attn_unit *u, int64_t query, int64_t head)
{
    const struct attn_problem *p = u->p;
    return (struct weight *)(void *)u->weights +
           (attn_token_of(&p->query, u->b) + query) * p->heads_q + head;
}

INLINE void store_weight(const struct row *t, real r, real l, const struct outcome *x)
{
    const bool small = is_small(x->by);
    if (t->u->weights)
        *weight_of(t->u, t->query, t->head) = (struct weight){
            r, small ? 1 / l : x->by < 0 ? 0 : x->by, small ? x->share : 1};
}

/* VEC_N words from c on of a row of d elements, 0 past its end. */
INLINE vec words_at(const elem *row, int64_t c, int64_t d)
{
    elem part[sizeof(vec) / sizeof(elem)];
    if ((c + VEC_N) * PAIR <= d)
        return word_load(row + c * PAIR);
    vec_load_some(part, row + c * PAIR, (d - c * PAIR) * (int64_t)sizeof(elem));
    return word_load(part);
}

INLINE vec values_at(const elem *row, int64_t c, int64_t dv)
{
    elem part[sizeof(vec) / sizeof(elem)];
    if (c + VEC_N <= dv)
        return elem_load(row + c);
    vec_load_some(part, row + c, (dv - c) * (int64_t)sizeof(elem));
    return elem_load(part);
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

/* Whether the row sees key j, which is in its band. */
INLINE bool row_sees(const struct row *t, const struct attn_score_view *bias, int64_t j)
{
    return attn_sees(&t->u->seq, t->head, t->query, j) &&
           !(bias->data && attn_number_at(bias->data, t->u->p->bias_dtype,
                                          attn_score_at(bias, 0, t->head, t->query, j)) ==
                               -(double)INFINITY);
}

/* What is added to a score after the cap: bias, and ALiBi's distance. */
INLINE real score_offset(const struct row *t, const struct attn_score_view *bias, real slope,
                         real score, int64_t j)
{
    const struct attn_problem *p = t->u->p;
    if (bias->data)
        score += (real)attn_number_at(bias->data, p->bias_dtype,
                                      attn_score_at(bias, 0, t->head, t->query, j));
    return score - slope * (real)attn_distance(&t->u->seq, t->query, j);
}

/* The score of key j in the plain way; -inf if the row does not see it. */
static double careful_score(const struct row *t, int64_t j)
{
    const struct attn_problem *p = t->u->p;
    const struct attn_score_view bias = attn_bias_of(&t->u->seq);
    if (!row_sees(t, &bias, j))
        return -(double)INFINITY;
    const elem *q = query_row(t);
    const elem *k = (const elem *)attn_view_at(&p->k, &p->key, t->u->b, j, t->head_kv, sizeof *k);
    const real sign = p->scale < 0 ? -1 : 1;
    real s = 0;
    for (int64_t c = 0; c < p->head_dim; c++)
        s += sign * elem_get(q[c]) * elem_get(k[c]);
    if (!shapes_scores(p))
        return (double)s * score_scale(p);
    s = vec_first(scaled_scores(scaling_of(p), vec_set(s)));
    return (double)score_offset(t, &bias, (real)attn_slope_of(&t->u->seq, t->head), s, j);
}

/* A row whose sums are not finite, in the plain way, from the caller's tensors: the maximum, then
 * the sum, then the values times probabilities that are divided by it, which cannot overflow before
 * the result does. Writes the columns of out that are not finite. sums: room for head_dim_v. */
static NOINLINE __attribute__((unused)) void careful_row(const struct row *t, real *sums)
{
    const struct attn_unit *u = t->u;
    const struct attn_problem *p = u->p;
    const double sink = attn_sink_of(p, t->head);
    const struct attn_score_view bias = attn_bias_of(&u->seq);
    elem *out = out_row(t);
    double most = sink, sum;
    for (int64_t j = t->see.lo; j < t->see.hi; j++)
        most = fmax(most, careful_score(t, j));
    sum = exp(sink - most);
    for (int64_t j = t->see.lo; j < t->see.hi; j++)
        sum += exp(careful_score(t, j) - most);

    memset(sums, 0, (size_t)p->head_dim_v * sizeof *sums);
    for (int64_t j = t->see.lo; j < t->see.hi; j++) {
        if (!row_sees(t, &bias, j))
            continue;
        double weight = exp(careful_score(t, j) - most) / sum;
        if (p->dropout.on)
            weight *= attn_drops(p, u->b, t->head, t->query, j) ? 0 : p->dropout.scale;
        const elem *v = (const elem *)attn_view_at(&p->v, &p->key, u->b, j, t->head_kv, sizeof *v);
        for (int64_t c = 0; c < p->head_dim_v; c++)
            sums[c] += (real)weight * elem_get(v[c]);
    }
    for (int64_t c = 0; c < p->head_dim_v; c++)
        if (!isfinite(elem_get(out[c])))
            out[c] = elem_put(sums[c]);
}

#endif
