/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A row of scores, a pair of a query and a head of the group: what the contract makes of a product
 * of query and key, and what becomes of a row's sums in the end. For all forward kernels; T is
 * their element type with what it computes in, as fwd.h has it.
 */
#ifndef ATTN_CUDA_ROW_H
#define ATTN_CUDA_ROW_H

#include "cuda/device.h"
#include "score.h"

namespace row {

struct row {
    int64_t query, head;
    struct attn_range see; /* empty for a row past the last one */
    bool given;
    double slope;
};

/* n / d of numbers that are not negative: in 32 bits where they have no more, as 64 take several
 * times as long. */
DEVICE int64_t quotient(int64_t n, int64_t d)
{
    return (n | d) >> 32 ? n / d : (int64_t)((uint32_t)n / (uint32_t)d);
}

/* Row `at` of `rows` of a sequence and key/value head. */
DEVICE struct row row_at(const struct attn_sequence *s, int64_t head_kv, int64_t at, int64_t rows)
{
    const struct attn_problem *p = s->p;
    struct row r;
    r.given = at < rows;
    r.query = r.given ? quotient(at, p->group) : 0;
    r.head = head_kv * p->group + (r.given ? at - r.query * p->group : 0);
    r.see = attn_band_row(s->band, r.query);
    if (!r.given)
        r.see.lo = r.see.hi = 0;
    r.slope = attn_slope_of(s, r.head);
    return r;
}

/* Over LANES lanes side by side, a power of two: the four that share a row, or a warp. */
template <int LANES, class real> DEVICE real most_of(real x)
{
    for (int mask = 1; mask < LANES; mask *= 2) {
        const real other = dev::shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

template <int LANES, class real> DEVICE real sum_of(real x)
{
    for (int mask = 1; mask < LANES; mask *= 2)
        x += dev::shuffle_xor(x, mask);
    return x;
}

/* ---- Scores --------------------------------------------------------------------------------- */

/* Whether a score that is seen is no more than the scaled product. */
DEVICE bool is_bare(const struct attn_problem *p)
{
    return !(p->softcap > 0 || p->bias.data || p->alibi.data || attn_is_extreme(fabs(p->scale)));
}

/* Whether, besides, the band is all that hides a key. */
DEVICE bool is_plain(const struct attn_problem *p)
{
    return is_bare(p) &&
           !(p->key_mask.data || p->query_mask.data || p->mask.data || p->block_mask.data ||
             p->query_docs.data);
}

DEVICE double bias_at(const struct attn_sequence *s, const struct row *r, int64_t key)
{
    const struct attn_score_view bias = attn_bias_of(s);
    return attn_number_at(bias.data, s->p->bias_dtype,
                          attn_score_at(&bias, 0, r->head, r->query, key));
}

/* Whether no rule hides a key that is in the row's band. */
DEVICE bool sees(const struct attn_sequence *s, const struct row *r, int64_t key)
{
    return attn_sees(s, r->head, r->query, key) &&
           !(s->p->bias.data && bias_at(s, r, key) == -(double)INFINITY);
}

/* The score of a key in the row's band, -inf if a rule hides it. */
template <class real>
DEVICE real score_of(const struct attn_sequence *s, const struct row *r, real product, int64_t key)
{
    const struct attn_problem *p = s->p;
    if (!sees(s, r, key))
        return -(real)INFINITY;
    real x = attn_is_extreme(fabs(p->scale)) ? (real)(p->scale * (double)product)
                                             : (real)p->scale * product;
    if (p->softcap > 0)
        x = (real)(p->softcap * tanh((double)x / p->softcap));
    if (p->bias.data)
        x += (real)bias_at(s, r, key);
    if (p->alibi.data)
        x -= (real)r->slope * (real)attn_distance(s, r->query, key);
    return x;
}

/* Weight of a score relative to the largest, which may be none itself. */
template <class T>
DEVICE typename T::real weight_of(typename T::real score, typename T::real most)
{
    return score == -(typename T::real)INFINITY ? 0 : T::exp_of(score - most);
}

/* ---- Results -------------------------------------------------------------------------------- */

/* Partial results of a row: from each of `count` parts of its keys the largest score, the sum of
 * weights and the weighted sums of values, `stride` numbers apart. */
template <class real> struct parts {
    const real *data;
    int64_t stride;
    int count;
};

/* The power of two that a sum of weights does not exceed: sums of values that are divided by it are
 * as exact, and stay in the range that the values keep to. */
template <class real> DEVICE real unit_of(real sum)
{
    real unit = 1;
    while (unit < sum)
        unit *= 2;
    return unit;
}

template <class real> DEVICE real most_of(const struct parts<real> *x)
{
    real most = -(real)INFINITY;
    for (int i = 0; i < x->count; i++)
        most = x->data[i * x->stride] > most ? x->data[i * x->stride] : most;
    return most;
}

/* The sum of weights of the parts together. */
template <class T>
DEVICE typename T::real weights_of(const struct parts<typename T::real> *x, typename T::real most)
{
    typename T::real sum = 0;
    for (int i = 0; i < x->count; i++) {
        const typename T::real *const part = x->data + i * x->stride;
        sum += part[1] * weight_of<T>(part[0], most);
    }
    return sum;
}

/* What becomes of a row: its sums of values times `by`, below 0 for zeros; its LSE. */
template <class real> struct outcome {
    real by, lse;
};

/* Of a row whose largest score is `most` and whose weights have that sum. */
template <class real>
DEVICE struct outcome<real> outcome_at(const struct attn_problem *p, int64_t head, real most,
                                       real sum)
{
    struct outcome<real> o;
    const double sink = attn_sink_of(p, head), at = (double)most;
    o.by = sum == 0 ? -(real)1 : 1 / sum;
    o.lse = sum == 0 ? -(real)INFINITY : (real)(at + log((double)sum));
    if (isnan(sink)) {
        o.by = o.lse = (real)sink;
    } else if (sink > -(double)INFINITY && !isnan(sum)) {
        const double top = sum == 0 || sink > at ? sink : at;
        const double weight = sum == 0 ? 0 : exp(at - top);
        const double total = weight * (double)sum + exp(sink - top);
        const bool all = sink == (double)INFINITY;
        o.by = all || sum == 0 ? -(real)1 : (real)(weight / total);
        o.lse = all ? (real)INFINITY : (real)(top + log(total));
    }
    if (p->dropout.on && o.by >= 0)
        o.by = p->dropout.scale == 0 ? -(real)1 : (real)((double)o.by * p->dropout.scale);
    return o;
}

/* A row's place in a tensor of the query side, in elements; no lengths are read for it. */
DEVICE int64_t place_in(const struct attn_view *v, const struct attn_sequence *s,
                        const struct row *r)
{
    const int64_t token = (s->p->query.cu ? s->query0 : 0) + r->query;
    return s->b * v->batch + token * v->token + r->head * v->head;
}

template <class T>
DEVICE typename T::element *out_at(const struct attn_sequence *s, const struct row *r)
{
    return (typename T::element *)s->p->out.data + place_in(&s->p->out, s, r);
}

template <class T>
DEVICE void put_lse(const struct attn_sequence *s, const struct row *r, typename T::real lse)
{
    if (s->p->lse.data)
        ((typename T::real *)s->p->lse.data)[place_in(&s->p->lse, s, r)] = lse;
}

} // namespace row

#endif
