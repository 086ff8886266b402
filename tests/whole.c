/* SPDX-License-Identifier: BSD-3-Clause */
#include "whole.h"

#include "compare.h"
#include "memory.h"

static struct truth_values values_of(const struct truth_seq *s)
{
    const size_t rows = (size_t)(s->hq * s->nq), width = (size_t)s->dv;
    return (struct truth_values){.out = test_alloc(rows * width * sizeof(long double)),
                                 .lse = test_alloc(rows * sizeof(long double)),
                                 .sums = test_alloc((size_t)(s->hq * s->nk) * sizeof(long double))};
}

static void values_free(struct truth_values *v)
{
    free(v->out);
    free(v->lse);
    free(v->sums);
}

struct whole whole_make(attn_dtype dtype, int64_t nq, int64_t nk, int64_t hq, int64_t hkv,
                        int64_t d, int64_t dv)
{
    struct whole w = {.s = {.dtype = dtype, .nq = nq, .nk = nk, .hq = hq, .hkv = hkv, .d = d,
                            .dv = dv, .causal = true, .align = ATTN_BOTTOM_RIGHT}};
    w.s.q = test_alloc((size_t)(hq * nq * d) * sizeof *w.s.q);
    w.s.kt = test_alloc((size_t)(hkv * nk * d) * sizeof *w.s.kt);
    w.s.v = test_alloc((size_t)(hkv * nk * dv) * sizeof *w.s.v);
    w.out = test_alloc((size_t)(hq * nq * dv) * sizeof *w.out);
    w.lse = test_alloc((size_t)(hq * nq) * sizeof *w.lse);
    w.sums = test_alloc((size_t)(hq * nk) * sizeof *w.sums);
    return w;
}

void whole_free(struct whole *w)
{
    free(w->s.q);
    free(w->s.kt);
    free(w->s.v);
    free(w->out);
    free(w->lse);
    free(w->sums);
    values_free(&w->truth);
    free(w->out_allowed);
    free(w->lse_allowed);
    free(w->sums_allowed);
}

void whole_query(struct whole *w, int64_t i, const struct strided *q, int64_t b, int64_t token)
{
    for (int64_t h = 0; h < w->s.hq; h++)
        for (int64_t n = 0; n < w->s.d; n++)
            w->s.q[(h * w->s.nq + i) * w->s.d + n] = strided_get(q, b, token, h, n);
}

void whole_key(struct whole *w, int64_t j, const struct strided *k, const struct strided *v,
               int64_t b, int64_t token)
{
    for (int64_t h = 0; h < w->s.hkv; h++) {
        for (int64_t n = 0; n < w->s.d; n++)
            w->s.kt[(h * w->s.d + n) * w->s.nk + j] = strided_get(k, b, token, h, n);
        for (int64_t n = 0; n < w->s.dv; n++)
            w->s.v[(h * w->s.nk + j) * w->s.dv + n] = strided_get(v, b, token, h, n);
    }
}

void whole_result(struct whole *w, int64_t i, const struct strided *out, const struct strided *lse,
                  int64_t b, int64_t token)
{
    for (int64_t h = 0; h < w->s.hq; h++) {
        const int64_t row = h * w->s.nq + i;
        for (int64_t n = 0; n < w->s.dv; n++)
            w->out[row * w->s.dv + n] = strided_get(out, b, token, h, n);
        w->lse[row] = strided_get(lse, b, token, h, 0);
    }
}

/* Raises what each head is allowed to what one order of the plain loops asks for. */
static void allow(struct whole *w, int order)
{
    const struct truth_seq *s = &w->s;
    const struct truth_values *truth = &w->truth;
    long double *const out = w->out_allowed, *const lse = w->lse_allowed;
    long double *const sums = w->sums_allowed;
    struct truth_values eager = values_of(s);
    truth_eager_in_type(s, order, &eager);
    for (int64_t h = 0; h < s->hq; h++) {
        const int64_t l = h * s->nq, o = l * s->dv, k = h * s->nk;
        out[h] = fmaxl(out[h], compare_allowed(COMPARE_OUT, s->dtype, truth->out + o, eager.out + o,
                                               s->nq * s->dv));
        lse[h] = fmaxl(lse[h], compare_allowed(COMPARE_LSE, s->dtype, truth->lse + l, eager.lse + l,
                                               s->nq));
        sums[h] = fmaxl(sums[h], compare_allowed(COMPARE_SUMS, s->dtype, truth->sums + k,
                                                 eager.sums + k, s->nk));
    }
    values_free(&eager);
}

static void know(struct whole *w)
{
    const struct truth_seq *s = &w->s;
    w->truth = values_of(s);
    w->out_allowed = test_alloc((size_t)s->hq * sizeof *w->out_allowed);
    w->lse_allowed = test_alloc((size_t)s->hq * sizeof *w->lse_allowed);
    w->sums_allowed = test_alloc((size_t)s->hq * sizeof *w->sums_allowed);
    truth_compute(s, &w->truth);
    allow(w, w->orders++);
}

/* Allows what twice as many orders ask for; whether there are more. */
static bool widen(struct whole *w)
{
    const int before = w->orders;
    while (w->orders < 2 * before && w->orders < BUDGET_ORDERS)
        allow(w, w->orders++);
    return w->orders > before;
}

/* Heads with a fault by what is allowed so far. */
static int64_t count_faults(const struct whole *w)
{
    const struct truth_seq *s = &w->s;
    struct compare_fault fault;
    int64_t faults = 0;
    for (int64_t h = 0; h < s->hq; h++) {
        const int64_t l = h * s->nq, o = l * s->dv, k = h * s->nk;
        faults += (w->summed && !compare_values(COMPARE_SUMS, w->truth.sums + k,
                                                w->sums_allowed[h], w->sums + k, s->nk, NULL,
                                                &fault)) ||
                  !compare_values(COMPARE_OUT, w->truth.out + o, w->out_allowed[h], w->out + o,
                                  s->nq * s->dv, NULL, &fault) ||
                  !compare_values(COMPARE_LSE, w->truth.lse + l, w->lse_allowed[h], w->lse + l,
                                  s->nq, NULL, &fault);
    }
    return faults;
}

int64_t whole_faults(struct whole *w)
{
    if (!w->truth.out)
        know(w);
    int64_t faults = count_faults(w);
    while (faults > 0 && widen(w))
        faults = count_faults(w);
    return faults;
}
