/* SPDX-License-Identifier: BSD-3-Clause */
/* How a row of partial results is merged. Compiles as C11 and as CUDA. */
#ifndef ATTN_MERGE_H
#define ATTN_MERGE_H

#include <math.h>

#include "score.h"

/* Partial results to be merged. Everything has been checked. */
struct attn_partials {
    attn_dtype dtype;
    int64_t batch, seqlen, heads, head_dim, parts;
    const attn_input *part_out, *part_lse;
    struct attn_view contiguous_out, contiguous_lse; /* strides of parts that name none */
    struct attn_view out, lse;
};

static inline ATTN_HD struct attn_view attn_part_view(attn_input x, struct attn_view contiguous)
{
    struct attn_view v = contiguous;
    if (x.batch_stride | x.token_stride | x.head_stride) {
        v.batch = x.batch_stride == ATTN_BROADCAST ? 0 : x.batch_stride;
        v.token = x.token_stride == ATTN_BROADCAST ? 0 : x.token_stride;
        v.head = x.head_stride == ATTN_BROADCAST ? 0 : x.head_stride;
    }
    v.data = (char *)x.data;
    return v;
}

static inline ATTN_HD int64_t attn_row_at(const struct attn_view *v, int64_t b, int64_t s,
                                          int64_t h)
{
    return b * v->batch + s * v->token + h * v->head;
}

static inline ATTN_HD double attn_part_lse(const struct attn_partials *m, int64_t part, int64_t b,
                                           int64_t s, int64_t h)
{
    const struct attn_view v = attn_part_view(m->part_lse[part], m->contiguous_lse);
    return attn_number_at(v.data, attn_compute_dtype(m->dtype), attn_row_at(&v, b, s, h));
}

static inline ATTN_HD void attn_put_merged_lse(const struct attn_partials *m, int64_t b, int64_t s,
                                               int64_t h, double lse)
{
    if (m->lse.data)
        attn_put_number(m->lse.data, attn_compute_dtype(m->dtype), attn_row_at(&m->lse, b, s, h),
                        lse);
}

/* Of one row: first every part is seen, then the terms are summed, part by part. */
struct attn_weights {
    double max, sum; /* of the LSEs; of exp(LSE - max) */
    bool nan;        /* an LSE is */
};

static inline ATTN_HD struct attn_weights attn_weights_begin(void)
{
    struct attn_weights w;
    w.max = -(double)INFINITY;
    w.sum = 0;
    w.nan = false;
    return w;
}

static inline ATTN_HD void attn_weights_see(struct attn_weights *w, double lse)
{
    w->nan = w->nan || isnan(lse);
    w->max = lse > w->max ? lse : w->max;
}

/* Nothing was seen: neutral; +inf: a sink that takes everything; NaN. No part is looked at. */
static inline ATTN_HD bool attn_weights_are_special(const struct attn_weights *w)
{
    return w->nan || isinf(w->max);
}
static inline ATTN_HD double attn_special_out(const struct attn_weights *w)
{
    return w->nan ? (double)NAN : 0;
}
static inline ATTN_HD double attn_special_lse(const struct attn_weights *w)
{
    return w->nan ? (double)NAN : w->max;
}

static inline ATTN_HD double attn_part_term(const struct attn_weights *w, double lse)
{
    return exp(lse - w->max);
}

/* A part's weight; -1 if it saw nothing: then its out is not looked at. */
static inline ATTN_HD double attn_part_weight(const struct attn_weights *w, double lse)
{
    return lse == -(double)INFINITY ? -1 : attn_part_term(w, lse) / w->sum;
}

static inline ATTN_HD double attn_merged_lse(const struct attn_weights *w)
{
    return w->max + log(w->sum);
}

#endif
