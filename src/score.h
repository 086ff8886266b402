/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the contract says of one query and one key, beyond their product: whether the key is seen,
 * and what goes into the score. The plain form, one pair at a time; kernels for CPUs have their own
 * for tiles and are held to this one. Compiles as C11 and as CUDA.
 */
#ifndef ATTN_SCORE_H
#define ATTN_SCORE_H

#include <math.h>

#include "half.h"
#include "philox.h"
#include "problem.h"

/* One sequence of a problem: its lengths, and its part of what is given per token. */
struct attn_sequence {
    const struct attn_problem *p;
    int64_t b, nq, nk;
    struct attn_band band;
    const uint8_t *key_mask, *query_mask; /* [nk], [nq]; null: not given */
    int64_t query0, key0;                 /* of its first tokens in arrays of integers per token */
};

static inline ATTN_HD struct attn_sequence attn_sequence_of(const struct attn_problem *p, int64_t b)
{
    struct attn_sequence s;
    s.p = p;
    s.b = b;
    s.nq = attn_axis_len(&p->query, b);
    s.nk = attn_axis_len(&p->key, b);
    s.band = attn_band_at(p, b);
    s.key_mask = attn_token_bytes_of(&p->key_mask, &p->key, b);
    s.query_mask = attn_token_bytes_of(&p->query_mask, &p->query, b);
    s.query0 = attn_token_of(&p->query, b);
    s.key0 = attn_token_of(&p->key, b);
    return s;
}

/* Offset in elements of a place in a tensor over scores. */
static inline ATTN_HD int64_t attn_score_at(const struct attn_score_view *v, int64_t b, int64_t h,
                                            int64_t i, int64_t j)
{
    return b * v->batch + h * v->head + i * v->query + j * v->key;
}

/* Whether the query is of the key's document. */
static inline ATTN_HD bool attn_same_document(const struct attn_sequence *s, int64_t i, int64_t j)
{
    const struct attn_integers *q = &s->p->query_docs, *k = &s->p->key_docs;
    return attn_index_at(q->data, q->is64, s->query0 + i) ==
           attn_index_at(k->data, k->is64, s->key0 + j);
}

/* Whether query i of head h sees key j, which is in its band, by all the other rules. */
static inline ATTN_HD bool attn_sees(const struct attn_sequence *s, int64_t h, int64_t i, int64_t j)
{
    const struct attn_problem *p = s->p;
    const struct attn_score_view *mask = &p->mask, *block = &p->block_mask;
    if (s->key_mask && !s->key_mask[j])
        return false;
    if (s->query_mask && !s->query_mask[i])
        return false;
    if (mask->data && !mask->data[attn_score_at(mask, s->b, h, i, j)])
        return false;
    if (block->data && !block->data[attn_score_at(block, s->b, h, i / p->block_q, j / p->block_k)])
        return false;
    return !p->query_docs.data || attn_same_document(s, i, j);
}

/* The number at `at` of an array of type t. */
static inline ATTN_HD double attn_number_at(const void *data, attn_dtype t, int64_t at)
{
    switch (t) {
    case ATTN_F64: return ((const double *)data)[at];
    case ATTN_F16: return (double)attn_f16_to_f32(((const uint16_t *)data)[at]);
    case ATTN_BF16: return (double)attn_bf16_to_f32(((const uint16_t *)data)[at]);
    default: return (double)((const float *)data)[at];
    }
}

/* x as the number at `at` of an array of type t. */
static inline ATTN_HD void attn_put_number(void *data, attn_dtype t, int64_t at, double x)
{
    switch (t) {
    case ATTN_F64: ((double *)data)[at] = x; break;
    case ATTN_F16: ((uint16_t *)data)[at] = attn_f32_to_f16((float)x); break;
    case ATTN_BF16: ((uint16_t *)data)[at] = attn_f32_to_bf16((float)x); break;
    default: ((float *)data)[at] = (float)x;
    }
}

/* What a bias, or its gradient, has for sequence s, seen as a tensor over scores in which b counts
 * as 0; data is null where it is not given. */
static inline ATTN_HD struct attn_score_view attn_sequence_bias(const struct attn_sequence *s,
                                                                struct attn_score_view v)
{
    const struct attn_problem *p = s->p;
    if (!v.data)
        return v;
    int64_t at = s->b * v.batch;
    if (p->bias_offset.data) {
        at = attn_index_at(p->bias_offset.data, p->bias_offset.is64, s->b);
        v.head = p->bias_per_head ? s->nq * s->nk : 0;
        v.query = s->nk;
        v.key = 1;
    }
    v.data += at * attn_dtype_size(p->bias_dtype);
    v.batch = 0;
    return v;
}

static inline ATTN_HD struct attn_score_view attn_bias_of(const struct attn_sequence *s)
{
    return attn_sequence_bias(s, s->p->bias);
}

/* Whether a scale or softcap is so small or large that it, or what it makes of a product, may leave
 * the range of the computing type before the score does. Such scores are formed in double. */
static inline ATTN_HD bool attn_is_extreme(double x) { return !(x >= 0x1p-100 && x <= 0x1p100); }

/* Slope of head h; 0 without ALiBi. */
static inline ATTN_HD double attn_slope_of(const struct attn_sequence *s, int64_t h)
{
    const struct attn_view *a = &s->p->alibi;
    return a->data ? attn_number_at(a->data, attn_compute_dtype(s->p->dtype),
                                    s->b * a->batch + h * a->head)
                   : 0;
}

/* What ALiBi multiplies the slope by: the distance of key j from query i, whose positions end at
 * the same place whatever alignment the masks have. */
static inline ATTN_HD int64_t attn_distance(const struct attn_sequence *s, int64_t i, int64_t j)
{
    const int64_t n = i + s->nk - s->nq - j;
    return n < 0 ? -n : n;
}

/* Sink of head h; -inf without one. */
static inline ATTN_HD double attn_sink_of(const struct attn_problem *p, int64_t h)
{
    return p->sink.data ? attn_number_at(p->sink.data, attn_compute_dtype(p->dtype),
                                         h * p->sink.head)
                        : -(double)__builtin_inff();
}

/* The factor that exp(sink - x scale) lacks, as double has the difference: rounding takes from it
 * what shows where it is hundreds, and all where sink and score are beyond 1e16. 1 where the factor
 * would be beyond what double holds. */
static inline double attn_exp_lacks(double sink, double x, double scale)
{
    const double at = x * scale, above = sink - at, part = above - sink;
    const double lost = (sink - (above - part)) - (at + part) - fma(x, scale, -at);
    return fabs(lost) < 600 ? exp(lost) : 1;
}

/* Whether dropout drops the probability of query i and key j. */
static inline ATTN_HD bool attn_drops(const struct attn_problem *p, int64_t b, int64_t h, int64_t i,
                              int64_t j)
{
    const struct attn_dropout *d = &p->dropout;
    const int64_t bh = (d->first_sequence + b) * p->heads_q + h;
    return d->on && attn_draws(d->seed, d->offset, bh, i, j >> 2).word[j & 3] < d->least;
}

#endif
