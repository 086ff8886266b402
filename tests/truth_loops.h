/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The loops of the truth, included once for every REAL. Before inclusion define REAL, EXP, LOG,
 * SQRT, FMA (its functions) and LOOPS(name), which pastes the type's suffix.
 */

/* a b + c as the style has it. */
static inline REAL LOOPS(add_product)(REAL a, REAL b, REAL c, int style)
{
    return style & STYLE_FUSED ? FMA(a, b, c) : a * b + c;
}

/* s[j] = scale (q . k_j), each sum over the head's elements in the given order, or from its own
 * place in that order on. */
static void LOOPS(scores)(const REAL *q, const REAL *kt, const int64_t *order, int64_t d,
                          int64_t nk, REAL scale, int style, REAL *s)
{
    const REAL before = style & STYLE_SCALED_QUERY ? scale : 1, after = scale / before;
    for (int64_t j = 0; j < nk; j++)
        s[j] = 0;
    for (int64_t c = 0; c < d; c++)
        for (int64_t j = 0; j < nk; j++) {
            const int64_t at = order[style & STYLE_OWN_ORDER ? (c + j) % d : c];
            s[j] = LOOPS(add_product)(q[at] * before, kt[at * nk + j], s[j], style);
        }
    for (int64_t j = 0; j < nk; j++)
        s[j] *= after;
}

/* x moved at random by up to half of the relative distance between neighbours. */
static inline REAL LOOPS(jitter)(REAL x, struct rng *r, int style)
{
    const REAL ulp = sizeof(REAL) == 4 ? (REAL)0x1p-23 : (REAL)0x1p-52;
    return style & STYLE_JITTER ? x + x * (ulp * (REAL)(rng_uniform(r) - 0.5)) : x;
}

/* A score is a value of the computing type: what lies beyond its range is infinite there. */
static void LOOPS(limit)(REAL *s, int64_t n, REAL range)
{
    for (int64_t j = 0; j < n; j++)
        if (s[j] > range)
            s[j] = (REAL)INFINITY;
        else if (s[j] < -range)
            s[j] = -(REAL)INFINITY;
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

/* The n visible scores become probabilities times *total. Returns the LSE: -inf where no score is
 * above it (the row sees nothing), NaN where a score is NaN or +inf. */
static REAL LOOPS(softmax)(REAL *s, int64_t n, struct rng *r, int style, REAL *total)
{
    REAL max = -(REAL)INFINITY, sum = 0;

    for (int64_t j = 0; j < n; j++) {
        if (isnan(s[j]) || s[j] == (REAL)INFINITY)
            return (REAL)NAN;
        if (s[j] > max)
            max = s[j];
    }
    if (max == -(REAL)INFINITY)
        return max;
    for (int64_t j = 0; j < n; j++) {
        s[j] = LOOPS(jitter)(EXP(s[j] - max), r, style);
        sum += s[j];
    }
    *total = sum;
    return max + LOG(sum);
}

/* One query row. see: the numbers of its n visible keys, s: their scores, in the order of sums. */
static void LOOPS(row)(REAL *s, const int64_t *see, int64_t n, const REAL *v, int64_t dv,
                       const struct how *how, REAL *sums, long double *out, long double *lse)
{
    const int style = how->style;
    REAL total = 1;
    const REAL l = LOOPS(softmax)(s, n, how->r, style, &total);
    const REAL by = style & STYLE_LATE ? total : 1;

    *lse = l;
    if (isnan(l) || isinf(l)) {
        LOOPS(fill)(out, dv, isnan(l) ? (long double)NAN : 0.0L);
        return;
    }
    for (int64_t c = 0; c < dv; c++)
        sums[c] = 0;
    for (int64_t j = 0; j < n; j++) {
        const REAL p = LOOPS(rounded)(style & STYLE_LATE ? s[j] : s[j] / total, how->kept);
        for (int64_t c = 0; c < dv; c++)
            sums[c] = LOOPS(add_product)(p, v[see[j] * dv + c], sums[c], style);
    }
    for (int64_t c = 0; c < dv; c++)
        out[c] = LOOPS(rounded)(sums[c] / by, how->kept);
}

static REAL *LOOPS(convert)(const double *x, int64_t n)
{
    REAL *y = test_alloc((size_t)n * sizeof *y);

    for (int64_t i = 0; i < n; i++)
        y[i] = (REAL)x[i];
    return y;
}

static void LOOPS(attend)(const struct truth_seq *t, const struct how *how,
                          struct truth_values *values)
{
    REAL *q = LOOPS(convert)(t->q, t->hq * t->nq * t->d);
    REAL *kt = LOOPS(convert)(t->kt, t->hkv * t->nk * t->d);
    REAL *v = LOOPS(convert)(t->v, t->hkv * t->nk * t->dv);
    REAL *s = test_alloc((size_t)(2 * t->nk) * sizeof *s), *seen = s + t->nk;
    REAL *sums = test_alloc((size_t)t->dv * sizeof *sums);
    int64_t *order = order_of(t->d, how->r), *see = test_alloc((size_t)t->nk * sizeof *see);
    const REAL scale = t->scale != 0 ? (REAL)t->scale : 1 / SQRT((REAL)t->d);

    for (int64_t i = 0; i < t->nq; i++) {
        const int64_t n = visible_keys(t, i, how->r, see);
        for (int64_t h = 0; h < t->hq; h++) {
            const int64_t g = h / (t->hq / t->hkv), at = h * t->nq + i;
            if (n > 0)
                LOOPS(scores)(q + at * t->d, kt + g * t->d * t->nk, order, t->d, t->nk, scale,
                              how->style, s);
            for (int64_t j = 0; j < n; j++)
                seen[j] = LOOPS(jitter)(s[see[j]], how->r, how->style);
            LOOPS(limit)(seen, n, (REAL)how->range);
            LOOPS(row)(seen, see, n, v + g * t->nk * t->dv, t->dv, how, sums,
                       values->out + at * t->dv, values->lse + at);
        }
    }
    free(q);
    free(kt);
    free(v);
    free(s);
    free(sums);
    free(order);
    free(see);
}
