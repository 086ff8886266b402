/* SPDX-License-Identifier: BSD-3-Clause */
/* Results against the truth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sequences.h"
#include "memory.h"

/* Raises what is allowed to what the plain loops in one order ask for. */
static void allow(struct judge *j, int64_t b, int order)
{
    const struct truth_seq *s = &j->batch->seq[b];
    const int64_t rows = s->nq, width = s->nq * s->dv;
    const long double *out = j->out + j->at_out[b], *lse = j->lse + j->at_lse[b];
    struct truth_values eager = {test_alloc((size_t)(s->hq * width) * sizeof *eager.out),
                                 test_alloc((size_t)(s->hq * rows) * sizeof *eager.lse)};

    truth_eager_in_type(s, order, &eager);
    for (int64_t h = 0; h < s->hq; h++) {
        const int64_t o = h * width, l = h * rows;
        long double *x = &j->allowed_out[b * j->hq + h], *y = &j->allowed_lse[b * j->hq + h];
        *x = fmaxl(*x, compare_allowed(COMPARE_OUT, s->dtype, out + o, eager.out + o, width));
        *y = fmaxl(*y, compare_allowed(COMPARE_LSE, s->dtype, lse + l, eager.lse + l, rows));
    }
    free(eager.out);
    free(eager.lse);
}

static void widen(struct judge *j, int64_t b)
{
    for (int order = 1; order < j->orders && !j->wide[b]; order++)
        allow(j, b, order);
    j->wide[b] = true;
}

void judge_widen(struct judge *j)
{
    for (int64_t b = 0; b < j->count; b++)
        widen(j, b);
}

void judge_open(struct judge *j, const struct batch *n, int orders)
{
    *j = (struct judge){.batch = n, .count = n->count, .orders = orders};
    for (int64_t b = 0; b < n->count; b++) {
        const struct truth_seq *s = &n->seq[b];
        j->hq = s->hq;
        j->dv = s->dv;
        j->dtype = s->dtype;
        j->wide[b] = orders < 2;
        j->at_out[b + 1] = j->at_out[b] + s->hq * s->nq * s->dv;
        j->at_lse[b + 1] = j->at_lse[b] + s->hq * s->nq;
    }
    j->out = test_alloc((size_t)j->at_out[n->count] * sizeof *j->out);
    j->lse = test_alloc((size_t)j->at_lse[n->count] * sizeof *j->lse);
    j->allowed_out = test_alloc((size_t)(n->count * j->hq) * sizeof *j->allowed_out);
    j->allowed_lse = test_alloc((size_t)(n->count * j->hq) * sizeof *j->allowed_lse);
    for (int64_t b = 0; b < n->count; b++) {
        truth_compute(&n->seq[b],
                      &(struct truth_values){j->out + j->at_out[b], j->lse + j->at_lse[b]});
        allow(j, b, 0);
    }
}

void judge_close(struct judge *j)
{
    free(j->out);
    free(j->lse);
    free(j->allowed_out);
    free(j->allowed_lse);
    memset(j, 0, sizeof *j);
}

void judge_where(const struct judge *j, enum compare_what what, int64_t index, char *text,
                 size_t size)
{
    const int64_t *at = what == COMPARE_OUT ? j->at_out : j->at_lse;
    const int64_t width = what == COMPARE_OUT ? j->dv : 1;
    int64_t b = 0;

    while (b + 1 < j->count && index >= at[b + 1])
        b++;
    index -= at[b];
    const int64_t row = index / width, nq = (at[b + 1] - at[b]) / (j->hq * width);
    const int used = snprintf(text, size, "%s[sequence %lld, head %lld, query %lld",
                              what == COMPARE_OUT ? "out" : "lse", (long long)b,
                              (long long)(row / nq), (long long)(row % nq));
    if (used < 0 || (size_t)used >= size)
        return;
    if (what == COMPARE_OUT)
        snprintf(text + used, size - (size_t)used, ", %lld]", (long long)(index % width));
    else
        snprintf(text + used, size - (size_t)used, "]");
}

static bool judge_part(struct judge *j, enum compare_what what, const double *got, double *worst,
                       char *why, size_t size)
{
    const int64_t *at = what == COMPARE_OUT ? j->at_out : j->at_lse;
    const long double *truth = what == COMPARE_OUT ? j->out : j->lse;
    const long double *allowed = what == COMPARE_OUT ? j->allowed_out : j->allowed_lse;
    struct compare_fault f;
    char where[120];

    for (int64_t n = 0; n < j->count * j->hq; n++) {
        const int64_t b = n / j->hq, most = (at[b + 1] - at[b]) / j->hq;
        const int64_t from = at[b] + n % j->hq * most;
        if (compare_values(what, truth + from, allowed[n], got + from, most, worst, &f))
            continue;
        if (!j->wide[b]) {
            widen(j, b);
            n--; /* once more */
            continue;
        }
        judge_where(j, what, from + f.index, where, sizeof where);
        snprintf(why, size, "%s: got %.17g, expected %.17Lg, error %.3Lg, allowed %.3Lg", where,
                 f.got, f.expected, f.error, f.allowed);
        return false;
    }
    return true;
}

bool judge_result(struct judge *j, const struct result *r, double *worst, char *why, size_t size)
{
    return judge_part(j, COMPARE_OUT, r->out, worst, why, size) &&
           (!r->lse || judge_part(j, COMPARE_LSE, r->lse, worst, why, size));
}
