/* SPDX-License-Identifier: BSD-3-Clause */
/* Laws that need no reference: what must not change a result, bit by bit or beyond the budget. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "gen.h"
#include "laws.h"
#include "memory.h"
#include "report.h"
#include "run.h"
#include "sequences.h"

enum { LINE = 1200 };

static const struct arrange packed = {.packed_q = true, .packed_k = true};

/* Bits of the drawn layout, whatever its strides, and of plain ones with spare rows, and pages. */
static void layouts(struct law *l, const struct batch *n, const struct judge *j,
                    const struct result *first)
{
    static const struct arrange others[] = {{.packed_q = false, .packed_k = false},
                                            {.packed_q = true, .packed_k = false, .spare = 3},
                                            {.packed_q = false, .packed_k = true, .spare = 1},
                                            {.packed_q = true, .page_size = 16},
                                            {.packed_q = false, .page_size = 3, .spare = 2}};
    struct result r;
    char why[200], where[120];

    l->name = "layout";
    for (int x = -1; x < (int)(sizeof others / sizeof *others); x++) {
        if (x >= 0 && n->backward && others[x].page_size) /* not offered */
            continue;
        if (x < 0 ? !run_or_report(l->o, l->drawn, l->t, run_pass(l->drawn), &r)
                  : !law_run(l, n, &others[x], &r))
            continue;
        const bool good = judge_same(j, first, &r, where, sizeof where) == COMPARES;
        if (!good)
            snprintf(why, sizeof why, "packed differs from arrangement %d at %s", x, where);
        law_says(l, good, why);
        result_free(&r);
    }
}

/* Whether the sequences in `order` have the bits that they have in the whole batch. */
static bool same_bits(const struct judge *j, const struct result *first, const struct result *r,
                      const int64_t *order, int64_t count)
{
    for (int what = 0; what < COMPARES; what++) {
        const int64_t *at = j->part[what].at;
        int64_t from = 0;
        for (int64_t x = 0; r->part[what] && x < count; x++) {
            const int64_t n = at[order[x] + 1] - at[order[x]];
            if (compare_bits(first->part[what] + at[order[x]], r->part[what] + from, n) >= 0)
                return false;
            from += n;
        }
    }
    return true;
}

/* A sequence alone, and among others in another order, which dropout would tell apart. */
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
        const struct arrange a = {.packed_q = b & 1, .packed_k = b & 1, .spare = b & 1 ? 0 : 2,
                                  .order = order, .count = count};
        if ((!alone && n->seq[0].dropout > 0) || !law_run(l, n, &a, &r))
            continue;
        law_says(l, same_bits(j, first, &r, order, count),
                 alone ? "a sequence alone has other bits" : "others change its bits");
        result_free(&r);
    }
}

/* Hides half of the rows, more or less, by the query mask. */
static void hide_rows(struct truth_seq *s, struct rng *r)
{
    if (!s->query_mask) {
        s->query_mask = test_alloc((size_t)s->nq);
        memset(s->query_mask, 1, (size_t)s->nq);
    }
    for (int64_t i = 0; i < s->nq; i++)
        s->query_mask[i] = s->query_mask[i] && rng_chance(r, 50);
}

/* Whether the rows of a head that s sees have the same bits, so many numbers a row. */
static bool same_rows(const struct truth_seq *s, const double *a, const double *b, int64_t width)
{
    for (int64_t i = 0; i < s->nq; i++)
        if (s->query_mask[i] && compare_bits(a + i * width, b + i * width, width) >= 0)
            return false;
    return true;
}

/* A row is the same whichever others there are to see something. */
static void other_rows(struct law *l, const struct batch *n, const struct judge *j,
                       const struct result *first, struct rng *r)
{
    static const enum compare_what by_row[] = {COMPARE_OUT, COMPARE_LSE, COMPARE_DQ};
    struct batch fewer = batch_copy(n);
    struct result x;
    bool good = true;

    l->name = "other rows";
    for (int64_t b = 0; b < n->count; b++)
        hide_rows(&fewer.seq[b], r);
    if (law_run(l, &fewer, &packed, &x)) {
        for (size_t k = 0; k < sizeof by_row / sizeof *by_row; k++) {
            const double *a = first->part[by_row[k]], *c = x.part[by_row[k]];
            for (int64_t b = 0; a && c && b < n->count; b++) {
                const struct truth_seq *s = &fewer.seq[b];
                const int64_t at = j->part[by_row[k]].at[b];
                const int64_t width = by_row[k] == COMPARE_OUT  ? s->dv
                                      : by_row[k] == COMPARE_DQ ? s->d
                                                                : 1;
                for (int64_t h = 0; h < s->hq; h++)
                    good = good && same_rows(s, a + at + h * s->nq * width,
                                             c + at + h * s->nq * width, width);
            }
        }
        law_says(l, good, "a row has other bits where others are hidden");
        result_free(&x);
    }
    batch_free(&fewer);
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
    if (s->key_docs) {
        const int64_t x = s->key_docs[i];
        s->key_docs[i] = s->key_docs[j];
        s->key_docs[j] = x;
    }
    struct truth_plane *const planes[] = {&s->bias, &s->mask};
    for (int n = 0; n < 2; n++)
        for (int64_t row = 0; planes[n]->key && row < planes[n]->count; row += s->nk)
            swap(planes[n]->x + row + i, planes[n]->x + row + j);
}

/* The keys in another order, where no index plays a part. */
static void permuted(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result first;
    struct judge j;

    l->name = "permuted keys";
    if (n.seq[0].causal || n.seq[0].window || n.seq[0].block.x)
        law_refill(&n, r); /* what nobody saw is seen now */
    law_drop(&n, LAW_BLOCK);
    law_drop(&n, LAW_SLOPES);
    n.wanted[COMPARE_PROBS] = n.wanted[COMPARE_TILES] = n.wanted[COMPARE_SUMS] = false;
    for (int64_t b = 0; b < n.count; b++) {
        n.seq[b].causal = n.seq[b].window = n.seq[b].has_prefix = false;
        n.seq[b].dropout = 0;
    }
    judge_open(&j, &n, l->o->orders);
    if (law_run(l, &n, &packed, &first)) {
        struct batch changed = batch_copy(&n);
        for (int64_t b = 0; b < n.count; b++)
            for (int64_t i = n.seq[b].nk - 1; i > 0; i--)
                swap_keys(&changed.seq[b], i, rng_below(r, i + 1));
        law_changed(l, &j, &changed, &first, true);
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
    law_refill(&n, r);
    law_drop(&n, LAW_SINK);
    for (int64_t b = 0; b < n.count; b++)
        n.seq[b].softcap = 0;
    changed = batch_copy(&n);
    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &changed.seq[b];
        for (int64_t row = 0; row < s->hkv * s->d; row++) {
            const double step = law_small_step(s->dtype, r);
            for (int64_t k = 0; k < s->nk; k++)
                s->kt[row * s->nk + k] += step;
        }
    }
    judge_open(&j, &n, l->o->orders);
    if (law_run(l, &n, &packed, &first)) {
        law_changed(l, &j, &changed, &first, false);
        result_free(&first);
    }
    judge_close(&j);
    batch_free(&n);
    batch_free(&changed);
}

/* All values of a sequence and head equal: that is what comes out, of rows that see anything. */
static void equal_values(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result x;
    struct judge j;
    char why[LINE];

    l->name = "equal values";
    law_refill(&n, r);
    law_drop(&n, LAW_SINK);
    memset(n.wanted, 0, sizeof n.wanted);
    n.wanted[COMPARE_OUT] = n.wanted[COMPARE_LSE] = true;
    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &n.seq[b];
        s->dropout = 0;
        for (int64_t g = 0; g < s->hkv; g++)
            for (int64_t k = 1; k < s->nk; k++)
                memcpy(s->v + (g * s->nk + k) * s->dv, s->v + g * s->nk * s->dv,
                       (size_t)s->dv * sizeof *s->v);
    }
    judge_open(&j, &n, l->o->orders);
    const struct judge_part *out = &j.part[COMPARE_OUT], *lse = &j.part[COMPARE_LSE];
    for (int64_t b = 0; b < n.count; b++) { /* that value itself takes the truth's place */
        const struct truth_seq *s = &n.seq[b];
        for (int64_t row = 0; row < s->hq * s->nq; row++)
            for (int64_t c = 0; c < s->dv && isfinite(lse->truth[lse->at[b] + row]); c++)
                out->truth[out->at[b] + row * s->dv + c] =
                    s->v[row / s->nq / (s->hq / s->hkv) * s->nk * s->dv + c];
    }
    n.wanted[COMPARE_LSE] = false;
    if (law_run(l, &n, &packed, &x)) {
        law_says(l, judge_result(&j, &x, NULL, why, sizeof why), why);
        result_free(&x);
    }
    judge_close(&j);
    batch_free(&n);
}

/* Each query head with keys and values of its own. */
static struct truth_seq spread_heads(const struct truth_seq *s)
{
    const int64_t group = s->hq / s->hkv, k = s->nk * s->d, v = s->nk * s->dv;
    struct truth_seq x = truth_seq_copy(s);

    free(x.kt);
    free(x.v);
    x.hkv = s->hq;
    x.kt = test_alloc((size_t)(s->hq * k) * sizeof *x.kt);
    x.v = test_alloc((size_t)(s->hq * v) * sizeof *x.v);
    for (int64_t h = 0; h < s->hq; h++) {
        memcpy(x.kt + h * k, s->kt + h / group * k, (size_t)k * sizeof *x.kt);
        memcpy(x.v + h * v, s->v + h / group * v, (size_t)v * sizeof *x.v);
    }
    return x;
}

static void grouped(struct law *l, const struct batch *n, struct judge *j,
                    const struct result *first)
{
    struct batch changed = *n;

    l->name = "grouped heads";
    if (n->seq[0].hq == n->seq[0].hkv)
        return;
    for (int64_t b = 0; b < n->count; b++)
        changed.seq[b] = spread_heads(&n->seq[b]);
    law_changed(l, j, &changed, first, true);
    batch_free(&changed);
}

/* The batch with the keys from `cut` on hidden, or those before it; the sink counts in one half
 * only. */
static struct batch half_of(const struct batch *whole, const int64_t *cut, bool upper)
{
    struct batch n = batch_copy(whole);

    n.wanted[COMPARE_PROBS] = n.wanted[COMPARE_TILES] = n.wanted[COMPARE_SUMS] = false;
    if (upper)
        law_drop(&n, LAW_SINK);
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
    const int64_t *at = j->part[COMPARE_LSE].at;
    double *lse = a->part[COMPARE_LSE];

    for (int64_t s = 0; s < j->count; s++)
        for (int64_t row = at[s]; row < at[s + 1]; row++) {
            const int64_t h = s * j->hq + (row - at[s]) / ((at[s + 1] - at[s]) / j->hq);
            const double top = fmax(lse[row], b->part[COMPARE_LSE][row]);
            if (top == -INFINITY)
                continue;
            const long double x = expl((long double)lse[row] - top);
            const long double y = expl((long double)b->part[COMPARE_LSE][row] - top);
            for (int64_t c = 0; c < j->dv; c++) {
                double *p = a->part[COMPARE_OUT] + row * j->dv + c;
                const double other = b->part[COMPARE_OUT][row * j->dv + c];
                if (x > 0 && y > 0)
                    spread[h] = fmaxl(spread[h], fabsl((long double)*p - other));
                *p = (double)((*p * x + other * y) / (x + y));
            }
            lse[row] = (double)(top + logl(x + y));
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
    long double *more[2] = {test_alloc(heads * sizeof **more), test_alloc(heads * sizeof **more)};
    bool good = true;

    for (size_t h = 0; h < heads; h++) {
        const long double *out[] = {half[0].part[COMPARE_OUT].allowed,
                                    half[1].part[COMPARE_OUT].allowed};
        const long double *lse[] = {half[0].part[COMPARE_LSE].allowed,
                                    half[1].part[COMPARE_LSE].allowed};
        more[COMPARE_OUT][h] = spread[h] * (lse[0][h] + lse[1][h]) + fmaxl(out[0][h], out[1][h]);
        more[COMPARE_LSE][h] = fmaxl(lse[0][h], lse[1][h]);
    }
    for (int n = COMPARE_OUT; n <= COMPARE_LSE; n++) {
        good = good && law_near(j, (enum compare_what)n, whole->part[n], x->part[n],
                                j->part[n].allowed, more[n], why, size);
        free(more[n]);
    }
    return good;
}

/* Whether a sink takes a whole row: no weights can be told from its LSE. */
static bool infinite_sink(const struct batch *n)
{
    for (int64_t h = 0; n->seq[0].sink && h < n->seq[0].hq; h++)
        if (n->seq[0].sink[h] == INFINITY)
            return true;
    return false;
}

static void merged(struct law *l, const struct batch *n, struct judge *j,
                   const struct result *first, struct rng *r)
{
    int64_t cut[MOST_BATCH];
    struct judge k[2];
    struct batch half[2];
    struct result x[2] = {{{0}, {0}}, {{0}, {0}}};
    char why[LINE] = "";

    l->name = "merged halves";
    if (infinite_sink(n))
        return;
    for (int64_t b = 0; b < n->count; b++)
        cut[b] = rng_below(r, n->seq[b].nk + 1);
    for (int s = 0; s < 2; s++) {
        half[s] = half_of(n, cut, s == 1);
        judge_open(&k[s], &half[s], l->o->orders);
    }
    if (law_run(l, &half[0], &packed, &x[0]) && law_run(l, &half[1], &packed, &x[1])) {
        long double *spread = test_alloc((size_t)(j->count * j->hq) * sizeof *spread);
        merge(j, &x[0], &x[1], spread);
        bool good = merged_near(j, k, spread, first, &x[0], why, sizeof why);
        while (!good && judge_widen(j) + judge_widen(&k[0]) + judge_widen(&k[1]) > 0)
            good = merged_near(j, k, spread, first, &x[0], why, sizeof why);
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

    if (!law_run(l, n, &packed, &first))
        return;
    layouts(l, n, j, &first);
    neighbours(l, n, j, &first);
    other_rows(l, n, j, &first, &r);
    grouped(l, n, j, &first);
    merged(l, n, j, &first, &r);
    permuted(l, n, &r);
    shifted(l, n, &r);
    equal_values(l, n, &r);
    law_features(l, n, &r);
    result_free(&first);
}

static void check_gradients(struct law *l, const struct batch *n, struct judge *j)
{
    struct rng r = rng_seeded(~l->drawn->seed);
    struct result first;

    if (l->t->exact && law_run(l, n, &packed, &first)) {
        layouts(l, n, j, &first);
        neighbours(l, n, j, &first);
        other_rows(l, n, j, &first, &r);
        result_free(&first);
    }
    law_gradients(l, n, &r);
}

/* A set of wide blocks has the bits of the one that it extends. */
static void wide_blocks(struct law *l, const struct batch *n, const struct judge *j,
                        struct target *wide, struct target *other)
{
    struct result r[2];

    l->name = "wide blocks";
    l->t = other;
    if (!law_run(l, n, &packed, &r[0]))
        return;
    l->t = wide;
    if (law_run(l, n, &packed, &r[1])) {
        char why[200], where[120];
        const bool good = judge_same(j, &r[0], &r[1], where, sizeof where) == COMPARES;
        if (!good)
            snprintf(why, sizeof why, "%s has other bits at %s", other->isa, where);
        law_says(l, good, why);
        result_free(&r[1]);
    }
    result_free(&r[0]);
}

static struct target *target_of(struct target *targets, int count, const char *isa)
{
    for (int t = 0; t < count; t++)
        if (targets[t].isa && strcmp(targets[t].isa, isa) == 0)
            return &targets[t];
    return NULL;
}

static void check_problem(const struct options *o, struct target *targets, int count,
                          const struct problem *p)
{
    struct batch n = batch_of(p);
    struct judge j;

    judge_open(&j, &n, o->orders);
    for (int t = 0; t < count && n.count > 0; t++) {
        struct law l = {o, &targets[t], p, "packed"};
        if (p->backward)
            check_gradients(&l, &n, &j);
        else if (targets[t].exact)
            check_target(&l, &n, &j);
    }
    struct target *const wide = target_of(targets, count, "avx512wide");
    struct target *const other = target_of(targets, count, "avx512");
    if (wide && other && n.count > 0 && !p->backward) {
        struct law l = {o, wide, p, "packed"};
        wide_blocks(&l, &n, &j, wide, other);
    }
    judge_close(&j);
    batch_free(&n);
}

/* Heads of few numbers in one key head, so that rows follow each other, in pages do so only within
 * one: which is rarely drawn. */
static void check_narrow(const struct options *o, struct target *targets, int count)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const int64_t widths[] = {1, 2, 3, 4, 5};
    enum { KEYS = 133, WIDTHS = sizeof widths / sizeof *widths };

    for (uint64_t n = 0; n < 4 * WIDTHS; n++) {
        struct rng r = rng_seeded(n);
        struct batch b = {.count = 1};
        struct truth_seq *s = &b.seq[0];
        struct problem p;
        *s = (struct truth_seq){.dtype = types[n % 4], .nq = 1, .nk = KEYS, .hq = 2, .hkv = 1,
                                .d = widths[n / 4], .dv = widths[WIDTHS - 1 - n / 4]};
        s->q = element_numbers(s->dtype, s->hq * s->d, &r);
        s->kt = element_numbers(s->dtype, s->d * s->nk, &r);
        s->v = element_numbers(s->dtype, s->nk * s->dv, &r);
        batch_problem(&p, &b, &packed);
        check_problem(o, targets, count, &p);
        problem_free(&p);
        batch_free(&b);
    }
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "laws", 55);
    struct target targets[MOST_TARGETS];
    struct problem p;

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    for (int64_t n = 0; n < o.count; n++) {
        o.gen(&p, o.seed + (uint64_t)n);
        check_problem(&o, targets, count, &p);
        problem_free(&p);
        gen_backward(&p, o.seed + (uint64_t)n);
        check_problem(&o, targets, count, &p);
        problem_free(&p);
    }
    check_narrow(&o, targets, count);
    targets_close(targets, count);
    return report_end();
}
