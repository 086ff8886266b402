/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Gradients, for one computing type. Included by head_tmpl.h, with its names.
 *
 * The scores are computed again, and a probability is exp(score - LSE) with the LSE that is given.
 * Which pairs of query and key take part is kept beside them: a weight of 0 does not tell, as that
 * of a key that is seen may be 0 as well, and its NaN shows.
 */

/* Matrices of one query head and of its gradients. */
struct NAME(grads) {
    struct NAME(matrices) m; /* scores: then the probabilities that dropout left */
    REAL *ds;      /* [nq][nk]: dout v^T; then the gradients of the scores, with slope times that */
    uint8_t *seen; /* [nq][nk]: whether the pair takes part */
    REAL *slope;   /* [nk], of softcap in a row; null: none, or ds is that of the capped scores */
    double dsink;  /* what the head's queries add to it */

    const REAL *dout;
    int64_t lddout;
    REAL *share;   /* what the head adds to dk or dv */
};

/* Where the query heads of a group add up what they give to the keys and values of theirs. */
struct NAME(key_grads) {
    REAL *dk, *dv;
    int64_t lddk, lddv;
};

/* The number that a tensor like lse has for query i; 0 where it is not given. */
static double NAME(query_number)(const struct head *t, const struct attn_view *view, int64_t i)
{
    return view->data ? (double)*(const REAL *)attn_view_at(view, &t->s.p->query, t->s.b, i, t->h,
                                                            sizeof(REAL))
                      : 0;
}

static double NAME(dout_out)(const struct head *t, int64_t i)
{
    const struct attn_problem *p = t->s.p;
    const int64_t size = attn_dtype_size(p->dtype);
    const char *dout = attn_view_at(&p->dout, &p->query, t->s.b, i, t->h, size);
    const char *out = attn_view_at(&p->out, &p->query, t->s.b, i, t->h, size);
    double sum = 0;
    for (int64_t c = 0; c < p->head_dim_v; c++)
        sum += attn_number_at(dout, p->dtype, c) * attn_number_at(out, p->dtype, c);
    return sum;
}

/* Marks the keys that take part in the row: those it sees, with a score above -inf, and none where
 * the LSE is infinite. Whether there is one. */
static bool NAME(mark_seen)(const struct NAME(row) *r, double lse, uint8_t *seen)
{
    const double scale = r->t->scale;
    bool any = false;
    memset(seen, 0, (size_t)r->t->s.nk);
    if (isinf(lse))
        return false;
    for (int64_t j = r->see.lo; j < r->see.hi; j++) {
        seen[j] = (REAL)(scale * (double)r->s[j]) != -(REAL)INFINITY;
        any |= seen[j];
    }
    return any;
}

/* Scores become exp(score - LSE); false where NaN takes the place of them all. */
static bool NAME(weigh_by_lse)(const struct NAME(row) *r, double lse)
{
    const struct head *t = r->t;
    REAL *s = r->s + r->see.lo;
    const int64_t n = r->see.hi - r->see.lo;
    double max;
    if (isnan(lse) || isnan(t->softmax->weigh(s, n, t->scale, &max))) {
        for (int64_t j = 0; j < n; j++)
            s[j] = (REAL)NAN;
        return false;
    }
    t->softmax->multiply(s, n, exp(max * t->scale - lse));
    return true;
}

/* What a row adds to dsink; delta: dout . out - dlse. Where nothing but the sink is in the LSE its
 * gradient is all the sink's, and out, which is 0, has none. */
static double NAME(sink_share)(const struct head *t, int64_t i, double lse, double delta, bool any)
{
    if (!any && lse == t->sink && lse > -(double)INFINITY)
        return NAME(query_number)(t, &t->s.p->dlse, i);
    return isinf(lse) ? 0 : -exp(t->sink - lse) * delta;
}

/* Row i of the products becomes probabilities and gradients of scores. */
static void NAME(grad_row)(struct NAME(grads) *g, const struct head *t, int64_t i)
{
    const struct attn_problem *p = t->s.p;
    const int64_t nk = g->m.nk;
    const double lse = NAME(query_number)(t, &p->lse, i);
    const double delta = NAME(dout_out)(t, i) - NAME(query_number)(t, &p->dlse, i);
    REAL *ds = g->ds + i * nk;
    uint8_t *seen = g->seen + i * nk;
    const struct NAME(row) weights =
        NAME(score_row)(t, i, g->m.scores + i * nk, g->m.bias, g->slope);
    const struct NAME(row) grads = {.t = t, .i = i, .see = weights.see, .s = ds};
    const struct attn_range see = weights.see;

    const bool any = NAME(mark_seen)(&weights, lse, seen);
    if (p->dsink.data)
        g->dsink += NAME(sink_share)(t, i, lse, delta, any);
    if (any) {
        const bool sound = NAME(weigh_by_lse)(&weights, lse);
        if (p->dropout.on)
            NAME(drop)(&grads);
        for (int64_t j = see.lo; j < see.hi; j++)
            ds[j] = weights.s[j] * (ds[j] - (REAL)delta);
        for (int64_t j = see.lo; g->slope && j < see.hi; j++)
            ds[j] *= g->slope[j];
        if (p->dropout.on && sound)
            NAME(drop)(&weights);
    }
    for (int64_t j = 0; j < nk; j++) {
        weights.s[j] = seen[j] ? weights.s[j] : 0;
        ds[j] = seen[j] ? ds[j] : 0;
    }
}

/* Probabilities and gradients of scores of a head. */
static void NAME(grad_scores)(struct NAME(grads) *g, const struct head *t)
{
    const struct NAME(matrices) *m = &g->m;
    NAME(multiply)(m, t);
    if (m->nq > 0 && m->nk > 0)
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m->nq, (int)m->nk, (int)m->dv, 1,
             g->dout, (int)g->lddout, m->v, (int)m->ldv, 0, g->ds, (int)m->nk);
    g->dsink = 0;
    for (int64_t i = 0; i < m->nq; i++)
        NAME(grad_row)(g, t, i);
}

/* to = sum of w[s] x[s] over n rows of x, of those that are seen; w and seen lie `step` apart. */
static void NAME(sum_seen)(const REAL *w, const uint8_t *seen, int64_t step, int64_t n,
                           const REAL *x, int64_t ldx, int64_t cols, REAL *to)
{
    for (int64_t c = 0; c < cols; c++)
        to[c] = 0;
    for (int64_t s = 0; s < n; s++)
        for (int64_t c = 0; seen[s * step] && c < cols; c++)
            to[c] += w[s * step] * x[s * ldx + c];
}

/* to = w x, or the transposed w times x, w having a weight for each pair. Pairs that take no part
 * have the weight 0, but 0 * NaN is NaN: what comes out not finite is done again without them. */
static void NAME(mix)(const struct NAME(grads) *g, const REAL *w, CBLAS_TRANSPOSE turn,
                      const REAL *x, int64_t ldx, int64_t cols, REAL *to, int64_t ld)
{
    const int64_t nq = g->m.nq, nk = g->m.nk;
    const bool turned = turn == CblasTrans;
    const int64_t rows = turned ? nk : nq, n = turned ? nq : nk;
    if (rows > 0 && n > 0)
        GEMM(CblasRowMajor, turn, CblasNoTrans, (int)rows, (int)cols, (int)n, 1, w, (int)nk, x,
             (int)ldx, 0, to, (int)ld);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t first = turned ? r : r * nk, step = turned ? nk : 1;
        if (n == 0 || !NAME(all_finite)(to + r * ld, cols))
            NAME(sum_seen)(w + first, g->seen + first, step, n, x, ldx, cols, to + r * ld);
    }
}

/* to += the transposed w times x, for a gradient of keys or values. */
static void NAME(add_mix)(const struct NAME(grads) *g, const REAL *w, const REAL *x, int64_t ldx,
                          int64_t cols, REAL *to, int64_t ld)
{
    NAME(mix)(g, w, CblasTrans, x, ldx, cols, g->share, cols);
    for (int64_t j = 0; j < g->m.nk; j++)
        for (int64_t c = 0; c < cols; c++)
            to[j * ld + c] += g->share[j * cols + c];
}

static void NAME(clear_rows)(REAL *x, int64_t ld, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        memset(x + r * ld, 0, (size_t)cols * sizeof *x);
}

/* Scaled in double, as the scores are. */
static void NAME(scale_rows)(REAL *x, int64_t ld, int64_t rows, int64_t cols, double scale)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            x[r * ld + c] = (REAL)(scale * (double)x[r * ld + c]);
}

static struct NAME(grads) NAME(gather_grads)(const struct head *t, const struct room *room,
                                             char *part)
{
    const struct attn_problem *p = t->s.p;
    struct NAME(grads) g = {.m = NAME(gather)(t, room, part)};
    const struct NAME(matrices) *m = &g.m;
    g.ds = (REAL *)(part + room->ds);
    g.seen = (uint8_t *)(part + room->seen);
    g.slope = p->softcap > 0 ? (REAL *)(part + room->slope) : NULL;
    g.share = (REAL *)(part + room->share);
    if (m->nq > 0)
        g.dout = NAME(as_matrix)(p, &p->dout, &p->query, t->s.b, t->h, m->nq, m->dv,
                                 (REAL *)(part + room->dout), &g.lddout);
    return g;
}

/* Gradients of one query head. dsink: what it adds to it; null: not asked for. */
static void NAME(head_grads)(const struct head *t, const struct room *room, char *part,
                             const struct NAME(key_grads) *to, double *dsink)
{
    const struct attn_problem *p = t->s.p;
    struct NAME(grads) g = NAME(gather_grads)(t, room, part);
    const struct NAME(matrices) *m = &g.m;
    int64_t lddq;
    REAL *dq = NAME(as_result)(p, &p->dq, &p->query, t->s.b, t->h, m->nq, m->d,
                               (REAL *)(part + room->dq), &lddq);
    NAME(grad_scores)(&g, t);
    if (dsink)
        *dsink = g.dsink;
    NAME(mix)(&g, g.ds, CblasNoTrans, m->k, m->ldk, m->d, dq, lddq);
    NAME(scale_rows)(dq, lddq, m->nq, m->d, p->scale);
    NAME(put_back)(p, &p->dq, &p->query, t->s.b, t->h, m->nq, m->d, dq);
    NAME(add_mix)(&g, g.ds, m->q, m->ldq, m->d, to->dk, to->lddk);
    NAME(add_mix)(&g, m->scores, g.dout, g.lddout, m->dv, to->dv, to->lddv);
}

/* Gradients of one key/value head and the query heads of its group. dsink: what each of these adds
 * to it; null: not asked for. */
static void NAME(group)(const struct attn_problem *p, int64_t b, int64_t kv,
                        const struct attn_softmax *softmax, const struct room *room, char *part,
                        double *dsink)
{
    const int64_t nk = attn_axis_len(&p->key, b), d = p->head_dim, size_v = p->head_dim_v;
    struct NAME(key_grads) to;
    to.dk = NAME(as_result)(p, &p->dk, &p->key, b, kv, nk, d, (REAL *)(part + room->dk), &to.lddk);
    to.dv = NAME(as_result)(p, &p->dv, &p->key, b, kv, nk, size_v, (REAL *)(part + room->dv),
                            &to.lddv);
    NAME(clear_rows)(to.dk, to.lddk, nk, d);
    NAME(clear_rows)(to.dv, to.lddv, nk, size_v);
    for (int64_t n = 0; n < p->group; n++) {
        const struct head t = head_of(p, b, kv * p->group + n, softmax);
        NAME(head_grads)(&t, room, part, &to, dsink ? dsink + n : NULL);
    }
    NAME(scale_rows)(to.dk, to.lddk, nk, d, p->scale);
    NAME(put_back)(p, &p->dk, &p->key, b, kv, nk, d, to.dk);
    NAME(put_back)(p, &p->dv, &p->key, b, kv, nk, size_v, to.dv);
}

/* Adds the gradients of the scores of a head to the sums that they belong to. */
static void NAME(add_bias_grads)(const struct NAME(grads) *g, const struct bias_part *to)
{
    for (int64_t i = 0; i < g->m.nq; i++) {
        double *sums = g->m.sums + (to->rows > 1 ? i * to->cols : 0);
        for (int64_t j = 0; j < g->m.nk; j++)
            sums[to->cols > 1 ? j : 0] += (double)g->ds[i * g->m.nk + j];
    }
}

static void NAME(bias_part)(const struct attn_problem *p, const struct bias_part *to,
                            const struct attn_softmax *softmax, const struct room *room, char *part)
{
    double *sums = (double *)(part + room->sums);
    for (int64_t n = 0; n < to->rows * to->cols; n++)
        sums[n] = 0;
    for (int64_t b = to->b; b < to->b_end; b++)
        for (int64_t h = to->h; h < to->h_end; h++) {
            const struct head t = head_of(p, b, h, softmax);
            struct NAME(grads) g = NAME(gather_grads)(&t, room, part);
            g.slope = NULL;
            NAME(grad_scores)(&g, &t);
            NAME(add_bias_grads)(&g, to);
        }
    for (int64_t i = 0; i < to->rows; i++)
        for (int64_t j = 0; j < to->cols; j++)
            attn_put_number(to->to.data, p->bias_dtype, attn_score_at(&to->to, 0, 0, i, j),
                            sums[i * to->cols + j]);
}
