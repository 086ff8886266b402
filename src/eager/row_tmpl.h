/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A row of products q . k becomes scores, then probabilities: one pass over the row for each thing
 * that is asked for, in the contract's order. Included by head_tmpl.h, with its names.
 */

struct NAME(row) {
    const struct head *t;
    int64_t i;
    struct attn_range see; /* keys_of() the row: no pass goes beyond them */
    REAL *s;               /* [nk] */
    const REAL *bias;      /* of each key, or null */
    REAL *slope;           /* [nk]: gets how steep softcap is at each key; or null */
};

/* n numbers of type t, so many elements apart. */
static void NAME(load)(REAL *to, const void *from, attn_dtype t, int64_t step, int64_t n)
{
    const double *d = from;
    const float *f = from;
    const uint16_t *h = from;
    switch (t) {
    case ATTN_F16:
        for (int64_t j = 0; j < n; j++)
            to[j] = attn_f16_to_f32(h[j * step]);
        break;
    case ATTN_BF16:
        for (int64_t j = 0; j < n; j++)
            to[j] = attn_bf16_to_f32(h[j * step]);
        break;
    case ATTN_F64:
        for (int64_t j = 0; j < n; j++)
            to[j] = (REAL)d[j * step];
        break;
    default:
        for (int64_t j = 0; j < n; j++)
            to[j] = (REAL)f[j * step];
    }
}

static void NAME(store)(void *to, attn_dtype t, int64_t step, const REAL *from, int64_t n)
{
    double *d = to;
    float *f = to;
    uint16_t *h = to;
    switch (t) {
    case ATTN_F16:
        for (int64_t j = 0; j < n; j++)
            h[j * step] = attn_f32_to_f16((float)from[j]);
        break;
    case ATTN_BF16:
        for (int64_t j = 0; j < n; j++)
            h[j * step] = attn_f32_to_bf16((float)from[j]);
        break;
    case ATTN_F64:
        for (int64_t j = 0; j < n; j++)
            d[j * step] = from[j];
        break;
    default:
        for (int64_t j = 0; j < n; j++)
            f[j * step] = (float)from[j];
    }
}

/* The bias of the row's keys: where it is, or brought to `buffer`, [nk]. */
static const REAL *NAME(bias_row)(const struct NAME(row) *r, REAL *buffer)
{
    const struct attn_score_view *bias = &r->t->bias;
    const attn_dtype type = r->t->s.p->bias_dtype;
    const int64_t size = attn_dtype_size(type);
    const char *from = bias->data + attn_score_at(bias, 0, r->t->h, r->i, 0) * size;
    if (bias->key == 1 && type == attn_compute_dtype(r->t->s.p->dtype))
        return (const void *)from;
    NAME(load)(buffer + r->see.lo, from + r->see.lo * bias->key * size, type, bias->key,
               r->see.hi - r->see.lo);
    return buffer;
}

/* Scaled in double, so that no scale over- or underflows by itself. */
static void NAME(scale)(const struct NAME(row) *r)
{
    const double scale = r->t->s.p->scale;
    for (int64_t j = r->see.lo; j < r->see.hi; j++)
        r->s[j] = (REAL)(scale * (double)r->s[j]);
}

static void NAME(cap)(const struct NAME(row) *r)
{
    const double c = r->t->s.p->softcap;
    const REAL cap = (REAL)c;
    if (!attn_is_extreme(c))
        for (int64_t j = r->see.lo; j < r->see.hi; j++) {
            const REAL y = TANH(r->s[j] / cap);
            r->s[j] = cap * y;
            if (r->slope)
                r->slope[j] = (1 - y) * (1 + y);
        }
    else
        for (int64_t j = r->see.lo; j < r->see.hi; j++) {
            const double y = tanh((double)r->s[j] / c);
            r->s[j] = (REAL)(c * y);
            if (r->slope)
                r->slope[j] = (REAL)((1 - y) * (1 + y));
        }
}

static void NAME(add_bias)(const struct NAME(row) *r)
{
    for (int64_t j = r->see.lo; j < r->see.hi; j++)
        r->s[j] += r->bias[j];
}

static void NAME(add_alibi)(const struct NAME(row) *r)
{
    const REAL slope = (REAL)r->t->slope;
    for (int64_t j = r->see.lo; j < r->see.hi; j++)
        r->s[j] -= slope * (REAL)attn_distance(&r->t->s, r->i, j);
}

static void NAME(hide)(REAL *s, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        s[j] = -(REAL)INFINITY;
}

/* Hides keys whose byte is 0; bytes lie `step` apart. */
static void NAME(hide_by_bytes)(const struct NAME(row) *r, const uint8_t *bytes, int64_t step)
{
    if (step == 1)
        for (int64_t j = r->see.lo; j < r->see.hi; j++)
            r->s[j] = bytes[j] ? r->s[j] : -(REAL)INFINITY;
    else
        for (int64_t j = r->see.lo; j < r->see.hi; j++)
            r->s[j] = bytes[j * step] ? r->s[j] : -(REAL)INFINITY;
}

static void NAME(hide_by_blocks)(const struct NAME(row) *r)
{
    const struct attn_problem *p = r->t->s.p;
    const struct attn_score_view *mask = &p->block_mask;
    for (int64_t j = r->see.lo, end; j < r->see.hi; j = end) {
        const int64_t n = j / p->block_k;
        end = (n + 1) * p->block_k < r->see.hi ? (n + 1) * p->block_k : r->see.hi;
        if (!mask->data[attn_score_at(mask, r->t->s.b, r->t->h, r->i / p->block_q, n)])
            NAME(hide)(r->s + j, end - j);
    }
}

static void NAME(hide_by_documents)(const struct NAME(row) *r)
{
    for (int64_t j = r->see.lo; j < r->see.hi; j++)
        r->s[j] = attn_same_document(&r->t->s, r->i, j) ? r->s[j] : -(REAL)INFINITY;
}

static void NAME(hide_by_bias)(const struct NAME(row) *r)
{
    for (int64_t j = r->see.lo; j < r->see.hi; j++)
        r->s[j] = r->bias[j] == -(REAL)INFINITY ? r->bias[j] : r->s[j];
}

/* Products become scores; what stood at hidden places is lost. */
static void NAME(shape)(const struct NAME(row) *r)
{
    const struct attn_problem *p = r->t->s.p;
    if (r->t->shaped)
        NAME(scale)(r);
    if (p->softcap > 0)
        NAME(cap)(r);
    if (r->bias)
        NAME(add_bias)(r);
    if (p->alibi.data)
        NAME(add_alibi)(r);

    if (r->t->s.key_mask)
        NAME(hide_by_bytes)(r, r->t->s.key_mask, 1);
    if (p->mask.data)
        NAME(hide_by_bytes)(r, (const uint8_t *)p->mask.data +
                                   attn_score_at(&p->mask, r->t->s.b, r->t->h, r->i, 0),
                            p->mask.key);
    if (p->block_mask.data)
        NAME(hide_by_blocks)(r);
    if (p->query_docs.data)
        NAME(hide_by_documents)(r);
    if (r->bias)
        NAME(hide_by_bias)(r);
}

/* Row i of the products s, [nk], as scores. bias: room for a row of it. */
static struct NAME(row) NAME(score_row)(const struct head *t, int64_t i, REAL *s, REAL *bias,
                                        REAL *slope)
{
    struct NAME(row) r = {.t = t, .i = i, .see = keys_of(t, i), .s = s, .slope = slope};
    if (t->bias.data)
        r.bias = NAME(bias_row)(&r, bias);
    NAME(shape)(&r);
    return r;
}

/* Scores become probabilities, except in rows without a sound sum; *lse: the row's. The sink is one
 * more score, whose weight only joins the sum. */
static enum row_kind NAME(softmax)(const struct NAME(row) *r, double *lse)
{
    const struct head *t = r->t;
    REAL *s = r->s + r->see.lo;
    const int64_t n = r->see.hi - r->see.lo;
    double max, total = t->softmax->weigh(s, n, t->scale, &max);
    const double top = max * t->scale;
    const bool above = t->sink > top;
    if (isnan(total) || isnan(t->sink) || (REAL)top == (REAL)INFINITY) {
        *lse = NAN;
        return ROW_NAN;
    }
    if ((REAL)top == -(REAL)INFINITY || t->sink == INFINITY) {
        *lse = t->sink;
        return ROW_NONE;
    }
    const double lacks = attn_exp_lacks(t->sink, max, t->scale);
    const double weight = above ? exp(top - t->sink) / lacks : 1;
    total = weight * total + (above ? 1 : exp(t->sink - top) * lacks);
    *lse = (above ? t->sink : top) + log(total);
    t->softmax->multiply(s, n, weight / total);
    return ROW_SOUND;
}

/* Probabilities of a row that has no sound ones: 0, or NaN where a key is seen. */
static void NAME(fill)(const struct NAME(row) *r, enum row_kind kind)
{
    for (int64_t j = r->see.lo; j < r->see.hi; j++)
        r->s[j] = kind == ROW_NAN && head_sees(r->t, r->i, j) ? (REAL)NAN : 0;
}

static void NAME(drop)(const struct NAME(row) *r)
{
    const struct attn_problem *p = r->t->s.p;
    const struct attn_dropout *d = &p->dropout;
    const int64_t bh = (d->first_sequence + r->t->s.b) * p->heads_q + r->t->h;
    const REAL scale = (REAL)d->scale;
    for (int64_t j = r->see.lo; j < r->see.hi;) {
        const struct attn_philox draws = attn_draws(d->seed, d->offset, bh, r->i, j >> 2);
        const int64_t end = (j | 3) + 1 < r->see.hi ? (j | 3) + 1 : r->see.hi;
        for (; j < end; j++)
            r->s[j] = draws.word[j & 3] < d->least ? 0 : r->s[j] * scale;
    }
}

/* Row i of the products s, [nk], becomes probabilities, those of keys that are not seen 0 whatever
 * stands there. bias: room for a row of it. */
static enum row_kind NAME(finish_row)(const struct head *t, int64_t i, REAL *s, REAL *bias,
                                      REAL *lse)
{
    const struct attn_dropout *dropout = &t->s.p->dropout;
    const struct NAME(row) r = NAME(score_row)(t, i, s, bias, NULL);
    double log_sum;
    enum row_kind kind = NAME(softmax)(&r, &log_sum);
    *lse = (REAL)log_sum;
    if (kind == ROW_SOUND && dropout->on && dropout->scale == 0)
        kind = ROW_NONE;
    if (kind != ROW_SOUND)
        NAME(fill)(&r, kind);
    else if (dropout->on)
        NAME(drop)(&r);
    memset(s, 0, (size_t)r.see.lo * sizeof *s);
    memset(s + r.see.hi, 0, (size_t)(t->s.nk - r.see.hi) * sizeof *s);
    return kind;
}
