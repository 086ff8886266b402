/* SPDX-License-Identifier: BSD-3-Clause */
#include "laws.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "element.h"
#include "report.h"
#include "rng.h"

enum { LINE = 1200 };

static const struct arrange packed = {.packed_q = true, .packed_k = true};

void law_says(const struct law *l, bool good, const char *why)
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

bool law_run(const struct law *l, const struct batch *n, const struct arrange *a, struct result *r)
{
    struct problem p;

    batch_problem(&p, n, a);
    p.seed = l->drawn->seed;
    const bool good = run_or_report(l->o, &p, l->t, run_pass(&p), r);
    problem_free(&p);
    return good;
}

bool law_near(const struct judge *j, enum compare_what what, const double *a, const double *b,
              const long double *allowed, const long double *more, char *why, size_t size)
{
    const struct judge_part *part = &j->part[what];
    const int64_t *at = part->at;
    char where[120];

    for (int64_t s = 0; s < j->count; s++)
        for (int64_t n = at[s]; n < at[s + 1]; n++) {
            const int64_t h = s * j->hq + (n - at[s]) / ((at[s + 1] - at[s]) / j->hq);
            const long double error = fabsl((long double)a[n] - b[n]), truth = part->truth[n];
            if (!isfinite(truth) || truth == TRUTH_OPEN || error <= allowed[h] + more[h])
                continue;
            judge_where(j, what, n, where, sizeof where);
            snprintf(why, size, "%s: %.17g and %.17g differ by %.3Lg, allowed %.3Lg", where, a[n],
                     b[n], error, allowed[h] + more[h]);
            return false;
        }
    return true;
}

static bool all_near(const struct judge *j, const struct judge *k, const struct result *a,
                     const struct result *b, bool with_lse, char *why, size_t size)
{
    for (int n = 0; n < COMPARES; n++)
        if (a->part[n] && b->part[n] && (with_lse || n != COMPARE_LSE) &&
            !law_near(j, (enum compare_what)n, a->part[n], b->part[n], j->part[n].allowed,
                      k->part[n].allowed, why, size))
            return false;
    return true;
}

void law_changed(struct law *l, struct judge *j, const struct batch *changed,
                 const struct result *first, bool with_lse)
{
    struct judge k;
    struct result r;
    char why[LINE] = "";

    judge_open(&k, changed, l->o->orders);
    if (law_run(l, changed, &packed, &r)) {
        bool good = all_near(j, &k, first, &r, with_lse, why, sizeof why);
        while (!good && judge_widen(j) + judge_widen(&k) > 0)
            good = all_near(j, &k, first, &r, with_lse, why, sizeof why);
        law_says(l, good, why);
        result_free(&r);
    }
    judge_close(&k);
}

void law_alike(struct law *l, const struct batch *a, const struct batch *b, bool bits)
{
    struct result first, r;
    struct judge j;
    char where[120] = "";

    if (!law_run(l, a, &packed, &first))
        return;
    judge_open(&j, a, l->o->orders);
    if (!bits) {
        law_changed(l, &j, b, &first, true);
    } else if (law_run(l, b, &packed, &r)) {
        law_says(l, judge_same(&j, &first, &r, where, sizeof where) == COMPARES, where);
        result_free(&r);
    }
    judge_close(&j);
    result_free(&first);
}

double law_small_step(attn_dtype type, struct rng *r)
{
    const double steps = type == ATTN_BF16 ? 16 : 256;
    return rint(rng_normal(r) * steps) / steps;
}

static void fill_vectors(struct batch *n, struct rng *r)
{
    for (int64_t b = 0; b < n->count; b++) {
        struct truth_seq *s = &n->seq[b];
        for (int64_t x = 0; x < s->hq * s->nq * s->d; x++)
            s->q[x] = element_round(s->dtype, rng_normal(r));
        for (int64_t x = 0; x < s->hkv * s->d * s->nk; x++)
            s->kt[x] = law_small_step(s->dtype, r);
        for (int64_t x = 0; x < s->hkv * s->nk * s->dv; x++)
            s->v[x] = element_round(s->dtype, rng_normal(r));
        for (int64_t x = 0; x < s->bias.count; x++)
            if (s->bias.x[x] != -INFINITY)
                s->bias.x[x] = element_round(s->bias_type, rng_normal(r));
        if (fabs(s->scale) > 0x1p100 || fabs(s->scale) < 0x1p-100)
            s->scale = 0;
        for (int64_t x = 0; s->dout && x < s->hq * s->nq * s->dv; x++)
            s->dout[x] = element_round(s->dtype, rng_normal(r));
        for (int64_t x = 0; s->dlse && x < s->hq * s->nq; x++)
            s->dlse[x] = element_round(element_computing(s->dtype), rng_normal(r));
    }
}

void law_refill(struct batch *n, struct rng *r)
{
    fill_vectors(n, r);
    if (n->backward)
        batch_results(n);
}

static void drop_plane(struct truth_plane *p)
{
    free(p->x);
    *p = (struct truth_plane){0};
}

void law_drop(struct batch *n, enum law_part part)
{
    for (int64_t b = 0; b < n->count; b++) {
        struct truth_seq *s = &n->seq[b];
        void *array = NULL;
        switch (part) {
        case LAW_MASK: drop_plane(&s->mask); break;
        case LAW_BLOCK: drop_plane(&s->block); break;
        case LAW_BIAS: drop_plane(&s->bias); break;
        case LAW_SLOPES: array = s->slopes; s->slopes = NULL; break;
        case LAW_SINK: array = s->sink; s->sink = NULL; break;
        case LAW_DOCS:
            free(s->query_docs);
            array = s->key_docs;
            s->query_docs = s->key_docs = NULL;
        }
        free(array);
    }
}
