/* SPDX-License-Identifier: BSD-3-Clause */
/* What the computation of a head needs besides its matrices, whatever it is computed in. */
#ifndef ATTN_EAGER_HEAD_H
#define ATTN_EAGER_HEAD_H

#include <limits.h>
#include <math.h>

#include "backend.h"
#include "cpu/softmax.h"
#include "score.h"

/* Where a thread's matrices lie in its part of the workspace, in bytes; of the longest sequences.
 * Those of tokens are empty where the BLAS works on the tensor itself. */
struct room {
    int64_t scores;  /* [nq][nk] */
    int64_t bias;    /* [nk]; empty without a bias */
    int64_t q, k, v; /* [nq][d], [nk][d], [nk][dv] */
    int64_t sums;    /* of f64: [nk] for key_sums; one part of dbias */
    int64_t bytes;   /* of the part, a multiple of ATTN_ALIGN */

    /* Forward. */
    int64_t lse, kind; /* [nq], [nq] bytes */
    int64_t out;       /* [nq][dv] */

    /* Backward. */
    int64_t ds, seen;         /* [nq][nk], [nq][nk] bytes */
    int64_t slope;            /* [nk]; empty without a softcap */
    int64_t dout, dq, dk, dv; /* as out, q, k, v */
    int64_t share;            /* [nk][d] or [nk][dv] */
};

/* Whether the BLAS can work on the tensor itself, as a matrix with so many columns. */
static inline bool in_place(const struct attn_problem *p, const struct attn_view *view,
                            const struct attn_axis *axis, int64_t cols)
{
    return p->dtype == attn_compute_dtype(p->dtype) && !axis->page_size && view->token >= cols &&
           view->token <= INT_MAX;
}

/* One query head of one sequence. */
struct head {
    struct attn_sequence s;
    int64_t h;
    struct attn_score_view bias; /* as attn_bias_of() has it */
    double slope, sink;
    /* Where nothing but a scale that is not extreme goes into the scores, and no sink joins them,
     * products of `sign` times q with k stay as they are and the softmax applies `scale`; else sign
     * and scale are 1. */
    bool shaped;
    double sign, scale;
    const struct attn_softmax *softmax;
};

static inline struct head head_of(const struct attn_problem *p, int64_t b, int64_t h,
                                  const struct attn_softmax *softmax)
{
    struct head t = {.s = attn_sequence_of(p, b), .h = h, .sign = 1, .scale = 1,
                     .softmax = softmax};
    const double scale = fabs(p->scale);
    t.bias = attn_bias_of(&t.s);
    t.slope = attn_slope_of(&t.s, h);
    t.sink = attn_sink_of(p, h);
    t.shaped = p->softcap > 0 || t.bias.data || p->alibi.data || p->sink.data ||
               attn_is_extreme(scale);
    if (!t.shaped) {
        t.sign = p->scale < 0 ? -1 : 1;
        t.scale = scale;
    }
    return t;
}

/* The keys that query i may see, by the rules that are a range of keys. */
static inline struct attn_range keys_of(const struct head *t, int64_t i)
{
    struct attn_range see = attn_band_row(t->s.band, i);
    if (t->s.query_mask && !t->s.query_mask[i])
        see.hi = see.lo;
    return see;
}

/* Whether query i sees key j, which is among keys_of() it. */
static inline bool head_sees(const struct head *t, int64_t i, int64_t j)
{
    const struct attn_score_view *bias = &t->bias;
    return attn_sees(&t->s, t->h, i, j) &&
           !(bias->data && attn_number_at(bias->data, t->s.p->bias_dtype,
                                          attn_score_at(bias, 0, t->h, i, j)) == -INFINITY);
}

/* A part of dbias, the sums of whose elements are made of these heads of these sequences. */
struct bias_part {
    int64_t b, b_end, h, h_end;
    struct attn_score_view to;
    int64_t rows, cols; /* 1 where it is summed over queries or keys */
};

/* What a row came to. */
enum row_kind {
    ROW_SOUND,
    ROW_NONE, /* no key has weight: out is 0 */
    ROW_NAN   /* a score that is seen, or the sink, makes it NaN */
};

#endif
