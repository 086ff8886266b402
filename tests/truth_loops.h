/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The loops of the truth, included once for every REAL. Before inclusion define REAL, EXP, LOG,
 * SQRT, TANH, FMA (its functions) and LOOPS(name), which pastes the type's suffix.
 */

/* a b + c as the style has it. */
static inline REAL LOOPS(add_product)(REAL a, REAL b, REAL c, int style)
{
    return style & STYLE_FUSED ? FMA(a, b, c) : a * b + c;
}

/* What has been summed since the last time goes to every step-th x. */
static inline void LOOPS(end_parts)(REAL *x, REAL *sums, int64_t from, int64_t n, int64_t step)
{
    for (int64_t j = from; j < n; j += step) {
        x[j] += sums[j];
        sums[j] = 0;
    }
}

/* s[j] = scale (q . k_j), each sum over the head's elements in the given order, or from its own
 * place in that order on; in parts of so many elements, then for every second key. sums: [nk] to
 * work in. */
static void LOOPS(scores)(const REAL *q, const REAL *kt, const int64_t *order, int64_t d,
                          int64_t nk, REAL scale, int64_t part, int style, REAL *sums, REAL *s)
{
    const REAL before = style & STYLE_SCALED_QUERY ? scale : 1, after = scale / before;
    const int own = style & STYLE_OWN_ORDER ? 1 : 0;
    for (int64_t j = 0; j < nk; j++)
        s[j] = sums[j] = 0;
    for (int64_t c = 0; c < d; c++) {
        if (own) {
            for (int64_t j = 0, at = c; j < nk; j++, at = at + 1 < d ? at + 1 : 0)
                sums[j] = LOOPS(add_product)(q[order[at]] * before, kt[order[at] * nk + j],
                                             sums[j], style);
        } else {
            const REAL x = q[order[c]] * before, *const k = kt + order[c] * nk;
            for (int64_t j = 0; j < nk; j++)
                sums[j] = LOOPS(add_product)(x, k[j], sums[j], style);
        }
        if ((c + 1) % part == 0)
            LOOPS(end_parts)(s, sums, own, nk, 1 + own);
    }
    LOOPS(end_parts)(s, sums, 0, nk, 1);
    for (int64_t j = 0; j < nk; j++)
        s[j] *= after;
}

/* x moved at random by up to half of the relative distance between neighbours. */
static inline REAL LOOPS(jitter)(REAL x, const struct how *how)
{
    const REAL ulp = sizeof(REAL) == 4 ? (REAL)0x1p-23 : (REAL)0x1p-52;
    return how->style & STYLE_JITTER && isfinite(x)
               ? x + x * (ulp * (REAL)(rng_uniform(how->r) - 0.5))
               : x;
}

/* x, or 0 where the style has it so and it is below the normal numbers. */
static inline REAL LOOPS(normal)(REAL x, const struct how *how)
{
    const REAL least = sizeof(REAL) == 4 ? (REAL)FLT_MIN : (REAL)DBL_MIN;

    return how->style & STYLE_JITTER && x < least && -x < least ? 0 : x;
}

/* e^x; where the style has it off as above, as its argument is. */
static inline REAL LOOPS(exponential)(REAL x, const struct how *how)
{
    return LOOPS(normal)(LOOPS(jitter)(EXP(LOOPS(jitter)(x, how)), how), how);
}

/* A score, at each of its steps, is a value of the computing type: what lies beyond its range is
 * infinite there. */
static inline REAL LOOPS(limited)(REAL x, const struct how *how)
{
    const REAL range = (REAL)how->range;
    return x > range ? (REAL)INFINITY : x < -range ? -(REAL)INFINITY : x;
}

/* A scaled product under the softcap. A cap that the type may not hold is applied in the widest. */
static REAL LOOPS(capped)(const struct truth_seq *t, const struct how *how, REAL x)
{
    const REAL cap = (REAL)t->softcap;

    x = LOOPS(limited)(LOOPS(jitter)(x, how), how);
    if (t->softcap == 0)
        return x;
    x = extreme(t->softcap) ? (REAL)(t->softcap * tanhl((long double)x / t->softcap))
                            : cap * LOOPS(jitter)(TANH(x / cap), how);
    return LOOPS(limited)(LOOPS(jitter)(x, how), how);
}

/* The score of query i of head h and key j, whose scaled and capped product is x. */
static REAL LOOPS(shaped)(const struct truth_seq *t, const struct how *how, int64_t h, int64_t i,
                          int64_t j, REAL x)
{
    if (t->bias.x)
        x = LOOPS(limited)(LOOPS(jitter)(x + (REAL)truth_plane_at(&t->bias, h, i, j), how), how);
    if (t->slopes) {
        const int64_t after = i + t->nk - t->nq - j;
        const REAL distance = (REAL)(after < 0 ? -after : after);
        x = LOOPS(add_product)(-(REAL)t->slopes[h], distance, x, how->style);
        x = LOOPS(limited)(LOOPS(jitter)(x, how), how);
    }
    return x;
}

static void LOOPS(fill)(long double *out, int64_t n, long double x)
{
    for (int64_t c = 0; c < n; c++)
        out[c] = x;
}

/* x as a 16-bit type keeps it; other types are computed in. */
static inline REAL LOOPS(rounded)(REAL x, attn_dtype kept)
{
    return element_size(kept) == 2 ? (REAL)element_round(kept, (double)x) : x;
}

/* One query row of one head. */
struct LOOPS(row) {
    const int64_t *see; /* the numbers of the n keys that it sees, in the order of sums */
    int64_t n;
    REAL *s;    /* their scores */
    REAL *e;    /* exp(s - max) */
    REAL *keep; /* what dropout makes of each: times 0 or 1 / (1 - p) */
    REAL *slope; /* of the softcap, at each score */
    REAL sink, lse, total; /* total: the sum of e, sink included */
    bool bad;   /* a score is NaN or +inf */
};

/* Sets the LSE: -inf where no score and no sink is above it (the row sees nothing), NaN where a
 * score is NaN or +inf or the sink is NaN; and where it is finite e and the total. */
static void LOOPS(softmax)(struct LOOPS(row) *w, const struct how *how)
{
    REAL max = w->sink;

    w->bad = false;
    for (int64_t j = 0; j < w->n; j++) {
        w->bad = w->bad || isnan(w->s[j]) || w->s[j] == (REAL)INFINITY;
        if (w->s[j] > max)
            max = w->s[j];
    }
    w->lse = w->bad ? (REAL)NAN : max;
    if (w->bad || isnan(max) || isinf(max))
        return;
    w->total = LOOPS(exponential)(w->sink - max, how);
    for (int64_t j = 0; j < w->n; j++) {
        w->e[j] = LOOPS(exponential)(w->s[j] - max, how);
        w->total += w->e[j];
    }
    w->lse = max + LOG(w->total);
}

static bool LOOPS(any_score)(const struct LOOPS(row) *w)
{
    for (int64_t j = 0; j < w->n; j++)
        if (w->s[j] > -(REAL)INFINITY)
            return true;
    return false;
}

/* `out` of a row whose LSE is not finite. v: [nk][dv]. */
static void LOOPS(mix_odd)(const struct truth_seq *t, const struct LOOPS(row) *w, const REAL *v,
                           long double *out)
{
    const bool open = w->bad ? w->sink == (REAL)INFINITY : !LOOPS(any_score)(w);

    if (isnan(w->lse)) {
        LOOPS(fill)(out, t->dv, open || t->dropout == 1 ? TRUTH_OPEN : (long double)NAN);
        return;
    }
    LOOPS(fill)(out, t->dv, 0);
    for (int64_t j = 0; w->lse > 0 && t->dropout < 1 && j < w->n; j++)
        for (int64_t c = 0; c < t->dv; c++)
            if (!isfinite(v[w->see[j] * t->dv + c]))
                out[c] = TRUTH_OPEN;
}

/* What weights are rounded relative to where that is x: powers of two change no rounding. */
static REAL LOOPS(unit)(REAL x)
{
    int exponent;
    return x > 0 ? (REAL)frexpl(x, &exponent) : 1;
}

/* `out` of a row; the sums over keys in parts of so many. sums: [2][dv] to work in. */
static void LOOPS(mix)(const struct truth_seq *t, const struct how *how,
                       const struct LOOPS(row) *w, const REAL *v, int64_t part, REAL *sums,
                       long double *out)
{
    REAL *const all = sums + t->dv;
    const bool late = how->style & STYLE_LATE;
    const attn_dtype type = how->style & STYLE_OWN_ORDER ? ATTN_F32 : how->kept;
    const bool by_part = late && how->style & STYLE_PARTS && element_size(type) == 2;
    REAL unit = 1;
    const REAL grown = t->dropout < 1 ? (REAL)(1 / (1 - t->dropout)) : 0; /* what dropout keeps */

    if (!isfinite(w->lse)) {
        LOOPS(mix_odd)(t, w, v, out);
        return;
    }
    LOOPS(fill)(out, t->dv, 0);
    if (t->dropout == 1 || !LOOPS(any_score)(w))
        return;
    for (int64_t c = 0; c < t->dv; c++)
        sums[c] = all[c] = 0;
    for (int64_t j = 0; j < w->n; j++) {
        if (by_part && j % part == 0)
            unit = LOOPS(unit)(w->e[j]);
        const REAL e = late ? (w->keep[j] != 0 ? w->e[j] : 0) : w->e[j] / w->total * w->keep[j];
        const REAL p = LOOPS(rounded)(e / unit, type) * unit;
        for (int64_t c = 0; c < t->dv; c++)
            sums[c] = LOOPS(add_product)(p, v[w->see[j] * t->dv + c], sums[c], how->style);
        if ((j + 1) % part == 0 || j + 1 == w->n)
            LOOPS(end_parts)(all, sums, 0, t->dv, 1);
    }
    for (int64_t c = 0; c < t->dv; c++)
        out[c] = LOOPS(rounded)(late ? all[c] / w->total * grown : all[c], how->kept);
}

/* The probability of the j-th key that a row sees: 0 where it is dropped, or all are 0, and not
 * where it is too small to be told from that. */
static long double LOOPS(probability)(const struct how *how, const struct LOOPS(row) *w, int64_t j)
{
    if (w->bad && w->sink == (REAL)INFINITY)
        return TRUTH_OPEN;
    if (isnan(w->lse))
        return w->keep[j] == 0 || w->s[j] == -(REAL)INFINITY ? TRUTH_OPEN : (long double)NAN;
    if (isinf(w->lse) || w->keep[j] == 0)
        return 0;
    const REAL e = how->style & STYLE_LATE ? LOOPS(exponential)(w->s[j] - w->lse, how)
                                           : w->e[j] / w->total;
    return e > 0 ? e * w->keep[j] : (REAL)(sizeof(REAL) > 8 ? LDBL_MIN : DBL_TRUE_MIN);
}

/* Puts a row's probabilities to those of its head, and to the sums of its columns. */
static void LOOPS(spread)(const struct how *how, const struct LOOPS(row) *w, long double *probs,
                          REAL *sums, bool *open)
{
    for (int64_t j = 0; (probs || sums) && j < w->n; j++) {
        const long double p = LOOPS(probability)(how, w, j);
        if (probs)
            probs[w->see[j]] = p;
        if (sums && p == TRUTH_OPEN)
            open[w->see[j]] = true;
        else if (sums)
            sums[w->see[j]] += (REAL)p;
    }
}

static REAL *LOOPS(convert)(const double *x, int64_t n)
{
    REAL *y = test_alloc((size_t)n * sizeof *y);

    for (int64_t i = 0; i < n; i++)
        y[i] = (REAL)x[i];
    return y;
}

/* All that the rows of a sequence need. */
struct LOOPS(room) {
    REAL *q, *kt, *v, *products, *numbers, *sums, *key_sums, scale;
    long double rest; /* of the scale, where the type may not hold it: `scale` is then 1 */
    int64_t *order, *see, part_d, part_k; /* parts of sums over a head's elements, over keys */
    bool *open;
    struct LOOPS(row) row;
};

static struct LOOPS(room) LOOPS(room_open)(const struct truth_seq *t, const struct how *how)
{
    struct LOOPS(room) m = {.q = LOOPS(convert)(t->q, t->hq * t->nq * t->d),
                            .kt = LOOPS(convert)(t->kt, t->hkv * t->nk * t->d),
                            .v = LOOPS(convert)(t->v, t->hkv * t->nk * t->dv),
                            .order = order_of(t->d, how->r)};

    const bool parts = how->style & STYLE_PARTS;
    m.part_d = parts ? 1 + rng_below(how->r, t->d) : t->d;
    m.part_k = parts && t->nk ? 1 + rng_below(how->r, t->nk) : t->nk + 1;
    m.numbers = test_alloc((size_t)(6 * t->nk) * sizeof *m.numbers);
    m.products = m.numbers + 4 * t->nk;
    m.sums = test_alloc((size_t)(2 * t->dv) * sizeof *m.sums);
    m.key_sums = test_alloc((size_t)(t->hq * t->nk) * sizeof *m.key_sums);
    m.open = test_alloc((size_t)(t->hq * t->nk) * sizeof *m.open);
    m.see = test_alloc((size_t)t->nk * sizeof *m.see);
    m.rest = extreme(t->scale) ? t->scale : 1;
    m.scale = extreme(t->scale) ? 1
              : LOOPS(jitter)(t->scale != 0 ? (REAL)t->scale : 1 / SQRT((REAL)t->d), how);
    m.row = (struct LOOPS(row)){.see = m.see, .s = m.numbers, .e = m.numbers + t->nk,
                                .keep = m.numbers + 2 * t->nk, .slope = m.numbers + 3 * t->nk};
    return m;
}

static void LOOPS(room_close)(struct LOOPS(room) *m)
{
    void *const arrays[] = {m->q, m->kt, m->v, m->numbers, m->sums, m->key_sums, m->order, m->see,
                            m->open};

    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        free(arrays[n]);
}

/* The scores of query i of head h, whose row.n keys are known, with what dropout makes of them. */
static void LOOPS(score_row)(const struct truth_seq *t, const struct how *how,
                             struct LOOPS(room) *m, int64_t h, int64_t i)
{
    const int64_t g = h / (t->hq / t->hkv), at = h * t->nq + i;
    struct LOOPS(row) *w = &m->row;

    if (w->n > 0)
        LOOPS(scores)(m->q + at * t->d, m->kt + g * t->d * t->nk, m->order, t->d, t->nk, m->scale,
                      m->part_d, how->style, m->products + t->nk, m->products);
    for (int64_t j = 0; j < w->n; j++) {
        const int64_t key = w->see[j];
        const REAL x = LOOPS(capped)(t, how, (REAL)(m->products[key] * m->rest));
        const REAL part = t->softcap == 0 ? 0 : (REAL)((long double)x / t->softcap);
        w->s[j] = LOOPS(shaped)(t, how, h, i, key, x);
        w->slope[j] = 1 - part * part;
        w->keep[j] = t->dropout == 0 ? 1 : 0;
        if (t->dropout > 0 && t->dropout < 1 && truth_kept(t, h, i, key))
            w->keep[j] = (REAL)(1 / (1 - t->dropout));
    }
    w->sink = t->sink ? (REAL)t->sink[h] : -(REAL)INFINITY;
}

/* Query i of head h, whose row.n keys are known. */
static void LOOPS(attend_row)(const struct truth_seq *t, const struct how *how,
                              struct LOOPS(room) *m, int64_t h, int64_t i,
                              struct truth_values *values)
{
    const int64_t g = h / (t->hq / t->hkv), at = h * t->nq + i;
    struct LOOPS(row) *w = &m->row;
    const REAL *v = m->v + g * t->nk * t->dv;

    LOOPS(score_row)(t, how, m, h, i);
    LOOPS(softmax)(w, how);
    values->lse[at] = w->bad && w->sink == (REAL)INFINITY ? TRUTH_OPEN : (long double)w->lse;
    LOOPS(mix)(t, how, w, v, m->part_k, m->sums, values->out + at * t->dv);
    LOOPS(spread)(how, w, values->probs ? values->probs + at * t->nk : NULL,
                  values->sums ? m->key_sums + h * t->nk : NULL, m->open + h * t->nk);
}

static void LOOPS(attend)(const struct truth_seq *t, const struct how *how,
                          struct truth_values *values)
{
    struct LOOPS(room) m = LOOPS(room_open)(t, how);
    const bool by_head = truth_by_head(t);

    if (values->probs)
        LOOPS(fill)(values->probs, t->hq * t->nq * t->nk, 0);
    int64_t *rows = order_of(t->nq, values->sums ? how->r : NULL);
    for (int64_t n = 0; n < t->nq; n++)
        for (int64_t h = 0; h < t->hq; h++) {
            if (h == 0 || by_head)
                m.row.n = visible_keys(t, h, rows[n], how->r, m.see);
            LOOPS(attend_row)(t, how, &m, h, rows[n], values);
        }
    free(rows);
    for (int64_t n = 0; values->sums && n < t->hq * t->nk; n++)
        values->sums[n] = m.open[n] && !isnan(m.key_sums[n]) ? TRUTH_OPEN : m.key_sums[n];
    LOOPS(room_close)(&m);
}
