/* SPDX-License-Identifier: BSD-3-Clause */
/* Laws that need no reference: what must not change a result, bit by bit or beyond the budget. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"
#include "memory.h"
#include "report.h"
#include "run.h"
#include "sequences.h"

enum { LINE = 1200 };

/* A law at work on one drawn problem and one target. */
struct law {
    const struct options *o;
    struct target *t;
    const struct problem *drawn;
    const char *name;
};

static void law_says(const struct law *l, bool good, const char *why)
{
    char line[LINE], text[LINE];

    if (good) {
        report_pass();
        return;
    }
    problem_print(l->drawn, text, sizeof text);
    report_fail("%s: %s: %s (%s)", run_line(l->o, l->drawn, l->t, line, sizeof line), l->name, why,
                text);
}

static bool run_batch(const struct law *l, const struct batch *n, const struct arrange *a,
                      struct result *r)
{
    struct problem p;

    batch_problem(&p, n, a);
    p.seed = l->drawn->seed;
    const bool good = run_or_report(l->o, &p, l->t, attn_forward, r);
    problem_free(&p);
    return good;
}

static const struct arrange packed = {.packed_q = true, .packed_k = true};

/* Bits of the drawn layout, whatever its strides, and of plain ones with spare rows. */
static void layouts(struct law *l, const struct batch *n, const struct result *first)
{
    static const struct arrange others[] = {{.packed_q = false, .packed_k = false},
                                            {.packed_q = true, .packed_k = false, .spare = 3},
                                            {.packed_q = false, .packed_k = true, .spare = 1}};
    struct result r;
    char why[80];

    l->name = "layout";
    for (int x = -1; x < 3; x++) {
        if (x < 0 ? !run_or_report(l->o, l->drawn, l->t, attn_forward, &r)
                  : !run_batch(l, n, &others[x], &r))
            return;
        snprintf(why, sizeof why, "packed differs from arrangement %d", x);
        law_says(l, compare_bits(first->out, r.out, first->n_out) < 0 &&
                        (!r.lse || compare_bits(first->lse, r.lse, first->n_lse) < 0), why);
        result_free(&r);
    }
}

/* A sequence alone, and among others in another order. */
static void neighbours(struct law *l, const struct batch *n, const struct judge *j,
                       const struct result *first)
{
    int64_t order[MOST_BATCH];
    struct result r;

    l->name = "neighbours";
    for (int64_t b = 0; b <= n->count; b++) {
        const bool alone = b < n->count;
        const int64_t count = alone ? 1 : n->count + 1;
        for (int64_t x = 0; x < count; x++) /* all, last one first, and the last once more */
            order[x] = alone ? b : x < n->count ? n->count - 1 - x : n->count - 1;
        const struct arrange a = {b & 1, b & 1, b & 1 ? 0 : 2, order, count};
        if (!run_batch(l, n, &a, &r))
            return;
        int64_t out = 0, lse = 0;
        bool good = true;
        for (int64_t x = 0; x < count; x++) {
            const int64_t s = order[x], no = j->at_out[s + 1] - j->at_out[s];
            const int64_t nl = j->at_lse[s + 1] - j->at_lse[s];
            good = good && compare_bits(first->out + j->at_out[s], r.out + out, no) < 0 &&
                   compare_bits(first->lse + j->at_lse[s], r.lse + lse, nl) < 0;
            out += no;
            lse += nl;
        }
        law_says(l, good, alone ? "a sequence alone has other bits" : "others change its bits");
        result_free(&r);
    }
}

/* Whether two results of the same values are as near as their two budgets allow: `allowed` and
 * `more` hold one number for each of the groups of values, row by row of [count][hq]. */
static bool near(const struct judge *j, enum compare_what what, const double *a, const double *b,
                 const long double *allowed, const long double *more, char *why, size_t size)
{
    const int64_t *at = what == COMPARE_OUT ? j->at_out : j->at_lse;
    const long double *truth = what == COMPARE_OUT ? j->out : j->lse;
    char where[120];

    for (int64_t s = 0; s < j->count; s++)
        for (int64_t n = at[s]; n < at[s + 1]; n++) {
            const int64_t h = s * j->hq + (n - at[s]) / ((at[s + 1] - at[s]) / j->hq);
            const long double error = fabsl((long double)a[n] - b[n]);
            if (!isfinite(truth[n]) || error <= allowed[h] + more[h])
                continue;
            judge_where(j, what, n, where, sizeof where);
            snprintf(why, size, "%s: %.17g and %.17g differ by %.3Lg, allowed %.3Lg", where, a[n],
                     b[n], error, allowed[h] + more[h]);
            return false;
        }
    return true;
}

/* Runs a changed batch, whose truth is that of the first one, and compares. */
static void compare_changed(struct law *l, struct judge *j, const struct batch *changed,
                            const struct result *first, bool with_lse)
{
    struct judge k;
    struct result r;
    char why[LINE] = "";
    bool good = false;

    judge_open(&k, changed, l->o->orders);
    if (run_batch(l, changed, &packed, &r)) {
        for (int wide = 0; wide < 2 && !good; wide++) {
            if (wide) {
                judge_widen(j);
                judge_widen(&k);
            }
            good = near(j, COMPARE_OUT, first->out, r.out, j->allowed_out, k.allowed_out, why,
                        sizeof why) &&
                   (!with_lse || near(j, COMPARE_LSE, first->lse, r.lse, j->allowed_lse,
                                      k.allowed_lse, why, sizeof why));
        }
        law_says(l, good, why);
        result_free(&r);
    }
    judge_close(&k);
}

static void swap(double *a, double *b)
{
    const double x = *a;

    *a = *b;
    *b = x;
}

static void swap_keys(struct truth_seq *s, int64_t i, int64_t j)
{
    for (int64_t row = 0; row < s->hkv * s->d; row++)
        swap(s->kt + row * s->nk + i, s->kt + row * s->nk + j);
    for (int64_t g = 0; g < s->hkv; g++)
        for (int64_t c = 0; c < s->dv; c++)
            swap(s->v + (g * s->nk + i) * s->dv + c, s->v + (g * s->nk + j) * s->dv + c);
    if (s->key_mask) {
        const uint8_t x = s->key_mask[i];
        s->key_mask[i] = s->key_mask[j];
        s->key_mask[j] = x;
    }
}

/* A normal number so coarse that sums of two are exact, in bf16 as well. */
static double small_step(attn_dtype type, struct rng *r)
{
    const double steps = type == ATTN_BF16 ? 16 : 256;
    return rint(rng_normal(r) * steps) / steps;
}

/* Normal numbers; those of the keys are small steps. */
static void refill(struct batch *n, struct rng *r)
{
    for (int64_t b = 0; b < n->count; b++) {
        struct truth_seq *s = &n->seq[b];
        for (int64_t x = 0; x < s->hq * s->nq * s->d; x++)
            s->q[x] = element_round(s->dtype, rng_normal(r));
        for (int64_t x = 0; x < s->hkv * s->d * s->nk; x++)
            s->kt[x] = small_step(s->dtype, r);
        for (int64_t x = 0; x < s->hkv * s->nk * s->dv; x++)
            s->v[x] = element_round(s->dtype, rng_normal(r));
    }
}

/* The keys in another order, where no index plays a part. */
static void permuted(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result first;
    struct judge j;

    l->name = "permuted keys";
    if (n.seq[0].causal || n.seq[0].window)
        refill(&n, r); /* what nobody saw is seen now */
    for (int64_t b = 0; b < n.count; b++)
        n.seq[b].causal = n.seq[b].window = false;
    judge_open(&j, &n, l->o->orders);
    if (run_batch(l, &n, &packed, &first)) {
        struct batch changed = batch_copy(&n);
        for (int64_t b = 0; b < n.count; b++)
            for (int64_t i = n.seq[b].nk - 1; i > 0; i--)
                swap_keys(&changed.seq[b], i, rng_below(r, i + 1));
        compare_changed(l, &j, &changed, &first, true);
        batch_free(&changed);
        result_free(&first);
    }
    judge_close(&j);
    batch_free(&n);
}

/* All keys moved by one vector: each row's scores move by one number, and `out` does not. The sums
 * are exact, so that nothing but the rounding of two runs is left: the two budgets together. */
static void shifted(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn), changed;
    struct result first;
    struct judge j;

    l->name = "shifted keys";
    refill(&n, r);
    changed = batch_copy(&n);
    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &changed.seq[b];
        for (int64_t row = 0; row < s->hkv * s->d; row++) {
            const double step = small_step(s->dtype, r);
            for (int64_t k = 0; k < s->nk; k++)
                s->kt[row * s->nk + k] += step;
        }
    }
    judge_open(&j, &n, l->o->orders);
    if (run_batch(l, &n, &packed, &first)) {
        compare_changed(l, &j, &changed, &first, false);
        result_free(&first);
    }
    judge_close(&j);
    batch_free(&n);
    batch_free(&changed);
}

/* All values of a sequence and head equal: that is what comes out. */
static void equal_values(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result x;
    struct judge j;
    char why[LINE];

    l->name = "equal values";
    refill(&n, r);
    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &n.seq[b];
        for (int64_t g = 0; g < s->hkv; g++)
            for (int64_t k = 1; k < s->nk; k++)
                memcpy(s->v + (g * s->nk + k) * s->dv, s->v + g * s->nk * s->dv,
                       (size_t)s->dv * sizeof *s->v);
    }
    judge_open(&j, &n, l->o->orders);
    for (int64_t b = 0; b < n.count; b++) { /* that value itself takes the truth's place */
        const struct truth_seq *s = &n.seq[b];
        for (int64_t row = 0; row < s->hq * s->nq; row++)
            for (int64_t c = 0; c < s->dv && isfinite(j.lse[j.at_lse[b] + row]); c++)
                j.out[j.at_out[b] + row * s->dv + c] =
                    s->v[row / s->nq / (s->hq / s->hkv) * s->nk * s->dv + c];
    }
    if (run_batch(l, &n, &packed, &x)) {
        free(x.lse);
        x.lse = NULL;
        law_says(l, judge_result(&j, &x, NULL, why, sizeof why), why);
        result_free(&x);
    }
    judge_close(&j);
    batch_free(&n);
}

/* Each query head with keys and values of its own. */
static struct truth_seq spread_heads(const struct truth_seq *s)
{
    const int64_t group = s->hq / s->hkv;
    struct truth_seq x = *s;

    x.hkv = s->hq;
    x.q = test_alloc((size_t)(s->hq * s->nq * s->d) * sizeof *x.q);
    x.kt = test_alloc((size_t)(s->hq * s->nk * s->d) * sizeof *x.kt);
    x.v = test_alloc((size_t)(s->hq * s->nk * s->dv) * sizeof *x.v);
    memcpy(x.q, s->q, (size_t)(s->hq * s->nq * s->d) * sizeof *x.q);
    for (int64_t h = 0; h < s->hq; h++) {
        const int64_t k = s->nk * s->d, v = s->nk * s->dv, g = h / group;
        memcpy(x.kt + h * k, s->kt + g * k, (size_t)k * sizeof *x.kt);
        memcpy(x.v + h * v, s->v + g * v, (size_t)v * sizeof *x.v);
    }
    if (s->key_mask) {
        x.key_mask = test_alloc((size_t)s->nk);
        memcpy(x.key_mask, s->key_mask, (size_t)s->nk);
    }
    return x;
}

static void grouped(struct law *l, const struct batch *n, struct judge *j,
                    const struct result *first)
{
    struct batch changed = {.count = n->count};

    l->name = "grouped heads";
    if (n->seq[0].hq == n->seq[0].hkv)
        return;
    for (int64_t b = 0; b < n->count; b++)
        changed.seq[b] = spread_heads(&n->seq[b]);
    compare_changed(l, j, &changed, first, true);
    batch_free(&changed);
}

/* The batch with the keys from `cut` on hidden, or those before it. */
static struct batch half_of(const struct batch *whole, const int64_t *cut, bool upper)
{
    struct batch n = batch_copy(whole);

    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &n.seq[b];
        if (!s->key_mask) {
            s->key_mask = test_alloc((size_t)s->nk);
            memset(s->key_mask, 1, (size_t)s->nk);
        }
        for (int64_t k = 0; k < s->nk; k++)
            if ((k >= cut[b]) != upper)
                s->key_mask[k] = 0;
    }
    return n;
}

/* Makes *a the merged result. spread [count][hq]: the largest distance between the two values. */
static void merge(const struct judge *j, struct result *a, const struct result *b,
                  long double *spread)
{
    for (int64_t s = 0; s < j->count; s++)
        for (int64_t row = j->at_lse[s]; row < j->at_lse[s + 1]; row++) {
            const int64_t rows = (j->at_lse[s + 1] - j->at_lse[s]) / j->hq;
            const int64_t h = s * j->hq + (row - j->at_lse[s]) / rows;
            const double top = fmax(a->lse[row], b->lse[row]);
            if (top == -INFINITY)
                continue;
            const long double x = expl((long double)a->lse[row] - top);
            const long double y = expl((long double)b->lse[row] - top);
            for (int64_t c = 0; c < j->dv; c++) {
                double *p = a->out + row * j->dv + c;
                const double other = b->out[row * j->dv + c];
                if (x > 0 && y > 0)
                    spread[h] = fmaxl(spread[h], fabsl((long double)*p - other));
                *p = (double)((*p * x + other * y) / (x + y));
            }
            a->lse[row] = (double)(top + logl(x + y));
        }
}

/*
 * Two halves of the keys, merged by their LSE, are the whole. If each half keeps its budget, the
 * merged one is off by at most the larger of them, plus the error of the weights: that of the two
 * LSE times how far the two values lie apart.
 */
static bool merged_near(const struct judge *j, const struct judge *half, const long double *spread,
                        const struct result *whole, const struct result *x, char *why, size_t size)
{
    const size_t heads = (size_t)(j->count * j->hq);
    long double *out = test_alloc(heads * sizeof *out), *lse = test_alloc(heads * sizeof *lse);

    for (size_t h = 0; h < heads; h++) {
        out[h] = spread[h] * (half[0].allowed_lse[h] + half[1].allowed_lse[h]) +
                 fmaxl(half[0].allowed_out[h], half[1].allowed_out[h]);
        lse[h] = fmaxl(half[0].allowed_lse[h], half[1].allowed_lse[h]);
    }
    const bool good =
        near(j, COMPARE_OUT, whole->out, x->out, j->allowed_out, out, why, size) &&
        near(j, COMPARE_LSE, whole->lse, x->lse, j->allowed_lse, lse, why, size);
    free(out);
    free(lse);
    return good;
}

static void merged(struct law *l, const struct batch *n, struct judge *j,
                   const struct result *first, struct rng *r)
{
    int64_t cut[MOST_BATCH];
    struct judge k[2];
    struct batch half[2];
    struct result x[2] = {{0}, {0}};
    char why[LINE] = "";

    l->name = "merged halves";
    for (int64_t b = 0; b < n->count; b++)
        cut[b] = rng_below(r, n->seq[b].nk + 1);
    for (int s = 0; s < 2; s++) {
        half[s] = half_of(n, cut, s == 1);
        judge_open(&k[s], &half[s], l->o->orders);
    }
    if (run_batch(l, &half[0], &packed, &x[0]) && run_batch(l, &half[1], &packed, &x[1])) {
        long double *spread = test_alloc((size_t)(j->count * j->hq) * sizeof *spread);
        merge(j, &x[0], &x[1], spread);
        bool good = merged_near(j, k, spread, first, &x[0], why, sizeof why);
        if (!good) {
            judge_widen(j);
            judge_widen(&k[0]);
            judge_widen(&k[1]);
            good = merged_near(j, k, spread, first, &x[0], why, sizeof why);
        }
        law_says(l, good, why);
        free(spread);
    }
    for (int s = 0; s < 2; s++) {
        result_free(&x[s]);
        judge_close(&k[s]);
        batch_free(&half[s]);
    }
}

static void check_target(struct law *l, const struct batch *n, struct judge *j)
{
    struct rng r = rng_seeded(~l->drawn->seed);
    struct result first;

    if (!run_batch(l, n, &packed, &first))
        return;
    layouts(l, n, &first);
    neighbours(l, n, j, &first);
    grouped(l, n, j, &first);
    merged(l, n, j, &first, &r);
    permuted(l, n, &r);
    shifted(l, n, &r);
    equal_values(l, n, &r);
    result_free(&first);
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "laws", 300);
    struct target targets[MOST_TARGETS];
    struct problem p;
    struct judge j;

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    for (int64_t seed = 0; seed < o.count; seed++) {
        gen_problem(&p, o.seed + (uint64_t)seed);
        struct batch n = batch_of(&p);
        judge_open(&j, &n, o.orders);
        for (int t = 0; t < count && n.count > 0; t++) {
            struct law l = {&o, &targets[t], &p, "packed"};
            if (targets[t].exact)
                check_target(&l, &n, &j);
        }
        judge_close(&j);
        batch_free(&n);
        problem_free(&p);
    }
    targets_close(targets, count);
    return report_end();
}
