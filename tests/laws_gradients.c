/* SPDX-License-Identifier: BSD-3-Clause */
/* Laws of the backward pass. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "laws.h"
#include "memory.h"
#include "report.h"

enum { LINE = 1200, EACH = 4 }; /* one problem in so many shows the slower laws */

static const struct arrange packed = {.packed_q = true, .packed_k = true};

/* Whether x is twice as much as `once`, but for numbers next to the end of the range. */
static bool is_double(attn_dtype type, double once, double x)
{
    const double least = type == ATTN_F64 ? 0x1p-900 : 0x1p-100;

    return fabs(once) < least ? fabs(x) <= 2 * least : x == 2 * once;
}

/* Whether one of some gradients is so large that twice as much, or sums on the way to it, may leave
 * the type's range. */
static bool has_large(attn_dtype type, const double *x, int64_t count)
{
    const double most = type == ATTN_F64 ? 0x1p1016 : 0x1p120;

    for (int64_t n = 0; n < count; n++)
        if (isfinite(x[n]) && fabs(x[n]) > most)
            return true;
    return false;
}

/* Without dlse, all gradients are linear in dout, and twice is exact. */
static void doubled(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result once, twice;
    char why[LINE] = "";
    bool good = true;

    l->name = "dout doubled";
    if (n.seq[0].dtype == ATTN_F16) {
        report_skip("dout doubled: products of f16 leave its normal range");
        batch_free(&n);
        return;
    }
    law_refill(&n, r);
    for (int64_t b = 0; b < n.count; b++) {
        free(n.seq[b].dlse);
        n.seq[b].dlse = NULL;
    }
    if (law_run(l, &n, &packed, &once)) {
        for (int64_t b = 0; b < n.count; b++)
            for (int64_t x = 0; x < n.seq[b].hq * n.seq[b].nq * n.seq[b].dv; x++)
                n.seq[b].dout[x] *= 2;
        if (law_run(l, &n, &packed, &twice)) {
            for (int what = COMPARE_DQ; what < COMPARES; what++) {
                const attn_dtype type =
                    what == COMPARE_DBIAS ? n.dbias.dtype : n.seq[0].dtype;
                if (has_large(type, once.part[what], once.count[what])) {
                    report_skip("dout doubled: gradients near the end of their range");
                    continue;
                }
                for (int64_t x = 0; x < once.count[what] && good; x++)
                    if (isfinite(once.part[what][x]) &&
                        !is_double(type, once.part[what][x], twice.part[what][x])) {
                        snprintf(why, sizeof why, "%s, value %lld: %.17g becomes %.17g",
                                 compare_names[what], (long long)x, once.part[what][x],
                                 twice.part[what][x]);
                        good = false;
                    }
            }
            law_says(l, good, why);
            result_free(&twice);
        }
        result_free(&once);
    }
    batch_free(&n);
}

/* Whether the sums of two results are the third, within their three budgets. */
static bool sums_near(const struct judge *j, const struct result *x, char *why, size_t size)
{
    char where[120];

    for (int what = COMPARE_DQ; what < COMPARES; what++) {
        const struct judge_part *part[3] = {&j[0].part[what], &j[1].part[what], &j[2].part[what]};
        for (int64_t g = 0; x[0].part[what] && g < part[0]->groups; g++) {
            const long double allowed =
                part[0]->allowed[g] + part[1]->allowed[g] + part[2]->allowed[g];
            for (int64_t n = part[0]->from[g]; n < part[0]->from[g + 1]; n++) {
                const long double sum = (long double)x[0].part[what][n] + x[1].part[what][n];
                bool known = true;
                for (int k = 0; k < 3; k++)
                    known = known && isfinite(part[k]->truth[n]) &&
                            part[k]->truth[n] != TRUTH_OPEN;
                if (!known || fabsl(sum - x[2].part[what][n]) <= allowed)
                    continue;
                judge_where(&j[2], (enum compare_what)what, n, where, sizeof where);
                snprintf(why, size, "%s: %.17Lg, of both %.17g, allowed %.3Lg", where, sum,
                         x[2].part[what][n], allowed);
                return false;
            }
        }
    }
    return true;
}

/* Numbers for dout whose sums are exact. */
static void coarse_dout(struct batch *n, struct rng *r)
{
    for (int64_t b = 0; b < n->count; b++)
        for (int64_t x = 0; x < n->seq[b].hq * n->seq[b].nq * n->seq[b].dv; x++)
            n->seq[b].dout[x] = law_small_step(n->seq[b].dtype, r);
}

/* The gradients of the sum of two dout, one of which comes with dlse, are the sums of theirs. */
static void added(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n[3] = {batch_copy(drawn)};
    struct result x[3] = {{{0}, {0}}, {{0}, {0}}, {{0}, {0}}};
    struct judge j[3];
    char why[LINE] = "";
    bool ran = true;

    l->name = "sum of two dout";
    law_refill(&n[0], r);
    coarse_dout(&n[0], r);
    n[1] = batch_copy(&n[0]);
    coarse_dout(&n[1], r);
    n[2] = batch_copy(&n[0]);
    for (int64_t b = 0; b < drawn->count; b++) {
        free(n[1].seq[b].dlse);
        n[1].seq[b].dlse = NULL;
        for (int64_t i = 0; i < n[2].seq[b].hq * n[2].seq[b].nq * n[2].seq[b].dv; i++)
            n[2].seq[b].dout[i] += n[1].seq[b].dout[i];
    }
    for (int k = 0; k < 3; k++) {
        ran = ran && law_run(l, &n[k], &packed, &x[k]);
        judge_open(&j[k], &n[k], l->o->orders);
    }
    if (ran) {
        bool good = sums_near(j, x, why, sizeof why);
        while (!good && judge_widen(&j[0]) + judge_widen(&j[1]) + judge_widen(&j[2]) > 0)
            good = sums_near(j, x, why, sizeof why);
        law_says(l, good, why);
    }
    for (int k = 0; k < 3; k++) {
        judge_close(&j[k]);
        result_free(&x[k]);
        batch_free(&n[k]);
    }
}

/* What column c of the values of key head g gets from the rows that see a key. */
static long double dout_sum(const struct truth_seq *s, const bool *sees, int64_t g, int64_t c)
{
    const int64_t group = s->hq / s->hkv;
    long double sum = 0;

    for (int64_t row = g * group * s->nq; row < (g + 1) * group * s->nq; row++)
        if (sees[row])
            sum += s->dout[row * s->dv + c];
    return sum;
}

static bool *rows_seeing(const struct truth_seq *s)
{
    bool *sees = test_alloc((size_t)(s->hq * s->nq) * sizeof *sees);

    for (int64_t row = 0; row < s->hq * s->nq; row++)
        for (int64_t j = 0; j < s->nk && !sees[row]; j++)
            sees[row] = truth_visible(s, row / s->nq, row % s->nq, j);
    return sees;
}

/* Columns of dv add up to those of dout, within what all keys together are allowed. */
static bool adds_up(const struct judge *j, const struct result *x, char *why, size_t size)
{
    const struct judge_part *part = &j->part[COMPARE_DV];
    bool good = true;

    for (int64_t b = 0; b < j->count && good; b++) {
        const struct truth_seq *s = &j->batch->seq[b];
        bool *sees = rows_seeing(s);
        for (int64_t g = 0; g < s->hkv && good; g++)
            for (int64_t c = 0; c < s->dv && good; c++) {
                const double *dv = x->part[COMPARE_DV] + part->at[b] + g * s->nk * s->dv + c;
                const long double *truth = part->truth + (dv - x->part[COMPARE_DV]);
                const long double want = dout_sum(s, sees, g, c);
                long double sum = 0;
                bool open = false;
                for (int64_t k = 0; k < s->nk; k++) {
                    sum += dv[k * s->dv];
                    open = open || truth[k * s->dv] == TRUTH_OPEN;
                }
                if (open)
                    report_skip("sum of dv: a column's truth is open");
                good = open || fabsl(sum - want) <=
                                   (long double)s->nk * part->allowed[b * s->hkv + g];
                if (!good)
                    snprintf(why, size, "column %lld of dv of sequence %lld, head %lld: %.9Lg, "
                             "dout %.9Lg", (long long)c, (long long)b, (long long)g, sum, want);
            }
        free(sees);
    }
    return good;
}

static void values_sum(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result x;
    struct judge j;
    char why[LINE] = "";

    l->name = "sum of dv";
    law_drop(&n, LAW_SINK);
    n.wanted[COMPARE_DSINK] = false;
    for (int64_t b = 0; b < n.count; b++)
        n.seq[b].dropout = 0;
    law_refill(&n, r);
    if (!law_run(l, &n, &packed, &x)) {
        batch_free(&n);
        return;
    }
    judge_open(&j, &n, l->o->orders);
    bool good = adds_up(&j, &x, why, sizeof why);
    while (!good && judge_widen(&j))
        good = adds_up(&j, &x, why, sizeof why);
    law_says(l, good, why);
    judge_close(&j);
    result_free(&x);
    batch_free(&n);
}

/* Queries of 0, each of which sees the key at its own place, with a large bias: its LSE then. */
static void see_one_key(struct truth_seq *s, struct rng *r)
{
    s->causal = s->has_prefix = false;
    s->align = ATTN_TOP_LEFT;
    s->window = true;
    s->left = s->right = 0;
    s->dropout = 0;
    memset(s->q, 0, (size_t)(s->hq * s->nq * s->d) * sizeof *s->q);
    if (!s->bias.x) {
        s->bias = (struct truth_plane){.x = test_alloc(sizeof *s->bias.x), .count = 1};
        s->bias_type = element_computing(s->dtype);
    }
    for (int64_t x = 0; x < s->bias.count; x++)
        if (s->bias.x[x] != -INFINITY)
            s->bias.x[x] = element_round(s->bias_type, 1000 * rng_normal(r));
}

/* Whether the gradient of a value is the sum of dout over the heads whose query sees its key. */
static bool takes_all(const struct truth_seq *s, const double *dv, int64_t g, int64_t j)
{
    const int64_t group = s->hq / s->hkv;

    for (int64_t c = 0; c < s->dv; c++) {
        long double want = 0, size = 0;
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            if (j < s->nq && truth_visible(s, h, j, j)) {
                want += s->dout[(h * s->nq + j) * s->dv + c];
                size += fabs(s->dout[(h * s->nq + j) * s->dv + c]);
            }
        if (!(fabsl(dv[c] - want) <= (long double)group * compare_ulp(s->dtype, size)))
            return false;
    }
    return true;
}

/* The weight of the only key is 1, whatever the size of its score. */
static void one_key(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result x;
    bool good = true;

    l->name = "one key to a row";
    law_drop(&n, LAW_SINK);
    law_drop(&n, LAW_SLOPES);
    n.wanted[COMPARE_DSINK] = false;
    law_refill(&n, r);
    for (int64_t b = 0; b < n.count; b++)
        see_one_key(&n.seq[b], r);
    batch_results(&n);
    if (law_run(l, &n, &packed, &x)) {
        const double *dv = x.part[COMPARE_DV];
        for (int64_t b = 0; b < n.count; b++)
            for (int64_t row = 0; row < n.seq[b].hkv * n.seq[b].nk; row++, dv += n.seq[b].dv)
                good = good && takes_all(&n.seq[b], dv, row / n.seq[b].nk, row % n.seq[b].nk);
        law_says(l, good, "dv is not the dout of the rows that see nothing but its key");
        result_free(&x);
    }
    batch_free(&n);
}

/* Runs the batch, and holds it to its truth. */
static void judged(struct law *l, const struct batch *n)
{
    struct result x;
    struct judge j;
    char why[LINE];

    judge_open(&j, n, l->o->orders);
    if (law_run(l, n, &packed, &x)) {
        law_says(l, judge_result(&j, &x, NULL, why, sizeof why), why);
        result_free(&x);
    }
    judge_close(&j);
}

/* Where an infinite sink takes all of a row, its dout and out matter to nobody. */
static void sink_takes_all(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);

    l->name = "infinite sink";
    law_refill(&n, r);
    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &n.seq[b];
        if (!s->sink) {
            s->sink = test_alloc((size_t)s->hq * sizeof *s->sink);
            for (int64_t h = 1; h < s->hq; h++)
                s->sink[h] = -INFINITY; /* none */
        }
        s->sink[0] = INFINITY;
    }
    batch_results(&n);
    for (int64_t b = 0; b < n.count; b++)
        for (int64_t c = 0; c < n.seq[b].nq * n.seq[b].dv; c++)
            n.seq[b].dout[c] = n.seq[b].out[c] = NAN;
    judged(l, &n);
    batch_free(&n);
}

/* A cap that no f32 holds is none to divide by. */
static void tiny_cap(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);

    l->name = "tiny softcap";
    for (int64_t b = 0; b < n.count; b++)
        n.seq[b].softcap = 1e-300;
    law_refill(&n, r);
    judged(l, &n);
    batch_free(&n);
}

void law_gradients(struct law *l, const struct batch *drawn, struct rng *r)
{
    doubled(l, drawn, r);
    values_sum(l, drawn, r);
    if (l->drawn->seed % EACH == 0)
        added(l, drawn, r);
    if (l->drawn->seed % EACH == 1)
        sink_takes_all(l, drawn, r);
    if (l->drawn->seed % EACH == 2)
        tiny_cap(l, drawn, r);
    one_key(l, drawn, r);
}
