/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The loops of the true gradients, included once for every REAL after truth_loops.h, with the same
 * definitions: the formulas of docs/semantics.md, row by row.
 */

/* Gradients that rows add to, [heads][nk][width], as they grow; in parts, the part at hand. */
struct LOOPS(sums) {
    REAL *all, *part;
    bool *seen, *open; /* by head and key */
    int64_t width, count;
};

static struct LOOPS(sums) LOOPS(sums_open)(const struct truth_seq *t, int64_t width)
{
    const int64_t rows = t->hkv * t->nk, n = rows * width;
    return (struct LOOPS(sums)){.all = test_alloc((size_t)n * sizeof(REAL)),
                                .part = test_alloc((size_t)n * sizeof(REAL)),
                                .seen = test_alloc((size_t)rows * sizeof(bool)),
                                .open = test_alloc((size_t)rows * sizeof(bool)),
                                .width = width, .count = n};
}

static void LOOPS(sums_close)(struct LOOPS(sums) *x)
{
    void *const arrays[] = {x->all, x->part, x->seen, x->open};

    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        free(arrays[n]);
}

/* Adds weight * y to what the key has. */
static void LOOPS(sums_add)(struct LOOPS(sums) *x, int64_t key, REAL weight, const REAL *y,
                            int style)
{
    REAL *at = x->part + key * x->width;

    x->seen[key] = true;
    for (int64_t c = 0; c < x->width; c++)
        at[c] = LOOPS(add_product)(weight, y[c], at[c], style);
}

/* A gradient as its type keeps it. One that is too large for the type stays the number that it is,
 * which tells how far off it is. */
static long double LOOPS(result)(long double x, attn_dtype kept)
{
    const REAL y = LOOPS(rounded)((REAL)x, kept);
    return isfinite(x) && isinf(y) ? x : y;
}

static void LOOPS(sums_take)(struct LOOPS(sums) *x, long double scale, attn_dtype kept,
                             long double *out)
{
    LOOPS(end_parts)(x->all, x->part, 0, x->count, 1);
    for (int64_t n = 0; n < x->count; n++) {
        const int64_t key = n / x->width;
        const long double y = LOOPS(result)(x->all[n] * scale, kept);
        out[n] = x->seen[key] || x->open[key] ? marked(0, y, x->open[key]) : TRUTH_NONE;
    }
}

/* All that the rows of a sequence need beyond the forward pass. */
struct LOOPS(back) {
    struct LOOPS(room) room;
    REAL *dout, *vt, *k;         /* vt: [hkv][dv][nk], k: [hkv][nk][d] */
    REAL *row, *dq;              /* [2][nk]: dout . v of each key; [2][d] */
    int64_t *order_v, *order_out, part_v, part_out, part_rows; /* of dout . v, dout . out */
    REAL term_scale;             /* of dq and dk, */
    long double sum_scale;       /* whose product is the scale */
    struct LOOPS(sums) dk, dv;
};

/* [heads][rows][columns], as [heads][columns][rows]. */
static REAL *LOOPS(turned)(const double *x, int64_t heads, int64_t rows, int64_t columns)
{
    REAL *y = test_alloc((size_t)(heads * rows * columns) * sizeof *y);

    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                y[(h * columns + j) * rows + i] = (REAL)x[(h * rows + i) * columns + j];
    return y;
}

static struct LOOPS(back) LOOPS(back_open)(const struct truth_seq *t, const struct how *how)
{
    struct LOOPS(back) m = {.room = LOOPS(room_open)(t, how)};
    const bool parts = how->style & STYLE_PARTS, late = how->style & STYLE_LATE;

    m.dout = LOOPS(convert)(t->dout, t->hq * t->nq * t->dv);
    m.vt = LOOPS(turned)(t->v, t->hkv, t->nk, t->dv);
    m.k = LOOPS(turned)(t->kt, t->hkv, t->d, t->nk);
    m.row = test_alloc((size_t)(2 * t->nk) * sizeof *m.row);
    m.dq = test_alloc((size_t)(2 * t->d) * sizeof *m.dq);
    m.order_v = order_of(t->dv, how->r);
    m.order_out = order_of(t->dv, how->r);
    m.part_v = parts ? 1 + rng_below(how->r, t->dv) : t->dv;
    m.part_out = parts ? 1 + rng_below(how->r, t->dv) : t->dv;
    m.part_rows = parts && t->nq ? 1 + rng_below(how->r, t->nq * t->hq) : t->nq * t->hq + 1;
    m.term_scale = late ? 1 : m.room.scale;
    m.sum_scale = (late ? m.room.scale : 1) * m.room.rest;
    m.dk = LOOPS(sums_open)(t, t->d);
    m.dv = LOOPS(sums_open)(t, t->dv);
    return m;
}

static void LOOPS(back_close)(struct LOOPS(back) *m)
{
    void *const arrays[] = {m->dout, m->vt, m->k, m->row, m->dq, m->order_v, m->order_out};

    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        free(arrays[n]);
    LOOPS(sums_close)(&m->dk);
    LOOPS(sums_close)(&m->dv);
    LOOPS(room_close)(&m->room);
}

static void LOOPS(add_marked)(long double *x, REAL y, bool open)
{
    const bool first = *x == TRUTH_NONE || *x == TRUTH_OPEN;
    *x = marked(*x, first ? y : (REAL)((REAL)*x + y), open);
}

static long double *LOOPS(dbias_at)(struct truth_gradients *g, int64_t h, int64_t i, int64_t j)
{
    return g->dbias + h * g->bias_head + i * g->bias_query + j * g->bias_key;
}

/* Whether the LSE, as its type holds it, does not tell the weights. */
static bool LOOPS(vague)(const struct truth_seq *t, const struct LOOPS(row) *w)
{
    const REAL unit = t->dtype == ATTN_F64 ? (REAL)DBL_EPSILON : (REAL)FLT_EPSILON;

    if (w->bad && w->sink == (REAL)INFINITY)
        return true;
    return isfinite(w->lse) && (w->lse < 0 ? -w->lse : w->lse) * unit > (REAL)0x1p-6;
}

/* All that the row touches is open. */
static void LOOPS(open_row)(const struct truth_seq *t, struct LOOPS(back) *m, int64_t h, int64_t i,
                            struct truth_gradients *g)
{
    const struct LOOPS(row) *w = &m->room.row;
    const int64_t first = h / (t->hq / t->hkv) * t->nk;

    LOOPS(fill)(g->dq + (h * t->nq + i) * t->d, t->d, TRUTH_OPEN);
    for (int64_t j = 0; j < w->n; j++) {
        m->dk.open[first + w->see[j]] = m->dv.open[first + w->see[j]] = true;
        if (g->dbias)
            LOOPS(add_marked)(LOOPS(dbias_at)(g, h, i, w->see[j]), 0, true);
    }
    if (g->dsink)
        LOOPS(add_marked)(&g->dsink[h], 0, true);
}

/* p of the j-th key: 0 where its score is -inf. */
static REAL LOOPS(weight)(const struct how *how, const struct LOOPS(row) *w, int64_t j)
{
    return w->s[j] == -(REAL)INFINITY ? 0 : LOOPS(exponential)(w->s[j] - w->lse, how);
}

/* D_i of docs/semantics.md: from the given out, with dlse first or last, fused as other products
 * are or not; or, which is the same, from the weights. w->e: the p of each key; dp: dout . v. */
static REAL LOOPS(row_sum)(const struct truth_seq *t, const struct how *how,
                           const struct LOOPS(back) *m, int64_t at, const REAL *dp)
{
    const struct LOOPS(row) *w = &m->room.row;
    const REAL dlse = t->dlse ? (REAL)t->dlse[at] : 0;
    const bool first = how->style & STYLE_SCALED_QUERY;
    const int style = first ? how->style ^ STYLE_FUSED : how->style;
    REAL part = first ? -dlse : 0, sum = 0;

    if (how->given)
        for (int64_t c = 0; c < t->dv; c++) {
            const int64_t x = at * t->dv + m->order_out[c];
            part = LOOPS(add_product)(m->dout[x], (REAL)t->out[x], part, style);
            if ((c + 1) % m->part_out == 0 || c + 1 == t->dv) {
                sum += part;
                part = 0;
            }
        }
    else
        for (int64_t j = 0; j < w->n && t->dropout != 1; j++)
            sum += w->e[j] * w->keep[j] * dp[w->see[j]];
    /* With a dropout of 1 out is 0. */
    for (int64_t c = 0; !how->given && t->dropout == 1 && c < t->dv; c++)
        sum += 0 * m->dout[at * t->dv + c];
    return first ? sum : LOOPS(jitter)(sum, how) - dlse;
}

/* What the sink's gradient receives from a row. sum: its D_i. */
static void LOOPS(sink_row)(const struct how *how, const struct LOOPS(row) *w, REAL sum,
                            long double *dsink)
{
    if (w->sink == -(REAL)INFINITY)
        LOOPS(add_marked)(dsink, 0, !isfinite(sum) || !isfinite(w->lse));
    else
        LOOPS(add_marked)(dsink, -LOOPS(exponential)(w->sink - w->lse, how) * sum, false);
}

/* A row that sees nothing, or whose LSE is infinite. */
static void LOOPS(no_row)(const struct truth_seq *t, const struct LOOPS(row) *w, int64_t at,
                          int64_t h, struct truth_gradients *g)
{
    const REAL dlse = t->dlse ? (REAL)t->dlse[at] : 0;

    LOOPS(fill)(g->dq + at * t->d, t->d, TRUTH_NONE);
    if (g->dsink && (isnan(w->sink) || w->sink == -(REAL)INFINITY))
        LOOPS(add_marked)(&g->dsink[h], 0, isnan(w->sink));
    else if (g->dsink && w->lse == w->sink)
        LOOPS(add_marked)(&g->dsink[h], dlse, false);
}

/* What the j-th key of a row adds to the gradients. */
static void LOOPS(back_key)(const struct truth_seq *t, const struct how *how,
                            struct LOOPS(back) *m, int64_t h, int64_t i, int64_t j, REAL dp,
                            REAL sum, struct truth_gradients *g)
{
    const struct LOOPS(row) *w = &m->room.row;
    const int64_t at = h * t->nq + i, key = h / (t->hq / t->hkv) * t->nk + w->see[j];
    const bool none = t->dropout == 1, hidden = w->s[j] == -(REAL)INFINITY;
    const attn_dtype type = how->style & STYLE_OWN_ORDER ? ATTN_F32 : how->kept;
    const REAL p = w->e[j], kept = LOOPS(rounded)(p * w->keep[j], type);
    const REAL ds = LOOPS(normal)(
        p * (none ? -sum : LOOPS(add_product)(w->keep[j], dp, -sum, how->style)), how);
    const REAL x = LOOPS(rounded)(w->slope[j] * ds * m->term_scale, type);

    if (hidden && isnan(w->lse)) {
        m->dk.open[key] = m->dv.open[key] = true;
        if (g->dbias)
            LOOPS(add_marked)(LOOPS(dbias_at)(g, h, i, w->see[j]), 0, true);
    }
    if (hidden)
        return;
    if (g->dbias)
        LOOPS(add_marked)(LOOPS(dbias_at)(g, h, i, w->see[j]), ds, false);
    LOOPS(sums_add)(&m->dk, key, x, m->room.q + at * t->d, how->style);
    for (int64_t c = 0; c < t->d; c++)
        m->dq[c] = LOOPS(add_product)(x, m->k[key * t->d + c], m->dq[c], how->style);
    if (!none)
        LOOPS(sums_add)(&m->dv, key, kept, m->dout + at * t->dv, how->style);
    else if (!isfinite(p * sum))
        m->dv.open[key] = true;
}

/* Query i of head h, whose row.n keys are known. */
static void LOOPS(back_row)(const struct truth_seq *t, const struct how *how,
                            struct LOOPS(back) *m, int64_t h, int64_t i, struct truth_gradients *g)
{
    struct LOOPS(row) *w = &m->room.row;
    const int64_t at = h * t->nq + i, head = h / (t->hq / t->hkv), d = t->d;

    LOOPS(score_row)(t, how, &m->room, h, i);
    if (how->given)
        w->lse = (REAL)t->lse[at];
    else
        LOOPS(softmax)(w, how);
    if (w->n == 0 || isinf(w->lse)) {
        LOOPS(no_row)(t, w, at, h, g);
        return;
    }
    if (!how->given && LOOPS(vague)(t, w)) {
        LOOPS(open_row)(t, m, h, i, g);
        return;
    }
    LOOPS(scores)(m->dout + at * t->dv, m->vt + head * t->dv * t->nk, m->order_v, t->dv, t->nk, 1,
                  m->part_v, how->style & ~STYLE_SCALED_QUERY, m->row + t->nk, m->row);
    for (int64_t j = 0; j < w->n; j++) {
        w->e[j] = LOOPS(weight)(how, w, j);
        m->row[w->see[j]] = LOOPS(jitter)(m->row[w->see[j]], how);
    }
    const REAL sum = LOOPS(row_sum)(t, how, m, at, m->row);
    for (int64_t c = 0; c < 2 * d; c++)
        m->dq[c] = 0;
    for (int64_t j = 0; j < w->n; j++) {
        LOOPS(back_key)(t, how, m, h, i, j, m->row[w->see[j]], sum, g);
        if ((j + 1) % m->room.part_k == 0 || j + 1 == w->n)
            LOOPS(end_parts)(m->dq + d, m->dq, 0, d, 1);
    }
    const bool open = !LOOPS(any_score)(w) && !isfinite(sum);
    for (int64_t c = 0; c < d; c++)
        g->dq[at * d + c] = marked(0, LOOPS(result)(m->dq[d + c] * m->sum_scale, how->kept), open);
    if (g->dsink)
        LOOPS(sink_row)(how, w, sum, &g->dsink[h]);
}

/* Rows and heads in any order. Where all heads see the same, it is found out once for each row. */
static void LOOPS(gradients)(const struct truth_seq *t, const struct how *how,
                             struct truth_gradients *g)
{
    struct LOOPS(back) m = LOOPS(back_open)(t, how);
    const bool by_head = truth_by_head(t), heads_first = how->style & STYLE_OWN_ORDER;
    int64_t *rows = order_of(t->nq, how->r);

    for (int64_t n = 0; n < t->nq * t->hq; n++) {
        const int64_t i = rows[heads_first ? n % t->nq : n / t->hq];
        const int64_t h = heads_first ? n / t->nq : n % t->hq;
        if (heads_first || h == 0 || by_head)
            m.room.row.n = visible_keys(t, h, i, how->r, m.room.see);
        LOOPS(back_row)(t, how, &m, h, i, g);
        if ((n + 1) % m.part_rows == 0) {
            LOOPS(end_parts)(m.dk.all, m.dk.part, 0, m.dk.count, 1);
            LOOPS(end_parts)(m.dv.all, m.dv.part, 0, m.dv.count, 1);
        }
    }
    LOOPS(sums_take)(&m.dk, m.sum_scale, how->kept, g->dk);
    LOOPS(sums_take)(&m.dv, 1, how->kept, g->dv);
    free(rows);
    LOOPS(back_close)(&m);
}
