/* SPDX-License-Identifier: BSD-3-Clause */
/* The gradients of a batch by plain loops: their truth, and what the budget allows. */
#include <math.h>
#include <stdlib.h>

#include "element.h"
#include "judge.h"
#include "memory.h"

/* The type that a kind of gradients is written in. */
static attn_dtype type_of(const struct judge *j, enum compare_what what)
{
    return what == COMPARE_DBIAS   ? j->batch->dbias.dtype
           : what == COMPARE_DSINK ? element_computing(j->dtype)
                                   : j->dtype;
}

/* Those of sequence b, among all that there are in x. */
static struct truth_gradients gradients_of(const struct judge *j, int64_t b, long double *const *x)
{
    const struct plane *t = &j->batch->dbias;

    return (struct truth_gradients){
        .dq = x[COMPARE_DQ] + j->part[COMPARE_DQ].at[b],
        .dk = x[COMPARE_DK] + j->part[COMPARE_DK].at[b],
        .dv = x[COMPARE_DV] + j->part[COMPARE_DV].at[b],
        .dbias = x[COMPARE_DBIAS] ? x[COMPARE_DBIAS] + b * t->batch : NULL,
        .dsink = x[COMPARE_DSINK],
        .bias_head = t->head, .bias_query = t->query, .bias_key = t->key};
}

static int64_t values_in(const struct judge_part *part) { return part->from[part->groups]; }

void judge_gradients(struct judge *j)
{
    long double *x[COMPARES] = {NULL};

    for (int what = COMPARE_DQ; what < COMPARES; what++)
        x[what] = j->part[what].truth;
    for (int what = COMPARE_DBIAS; what <= COMPARE_DSINK; what++)
        if (x[what])
            truth_none(x[what], values_in(&j->part[what]));
    for (int64_t b = 0; b < j->count; b++) {
        struct truth_gradients g = gradients_of(j, b, x);
        truth_gradients(&j->batch->seq[b], &g);
    }
    for (int what = COMPARE_DQ; what < COMPARES; what++) {
        const long double most = element_format(type_of(j, (enum compare_what)what))->most / 8;
        for (int64_t n = 0; x[what] && n < values_in(&j->part[what]); n++)
            if (isfinite(x[what][n]) && fabsl(x[what][n]) > most)
                x[what][n] = TRUTH_OPEN;
    }
}

void judge_allow_gradients(struct judge *j, int order)
{
    long double *x[COMPARES] = {NULL};

    for (int what = COMPARE_DQ; what < COMPARES; what++)
        if (j->part[what].truth) {
            x[what] = test_alloc((size_t)values_in(&j->part[what]) * sizeof *x[what]);
        }
    for (int64_t b = 0; b < j->count; b++) {
        struct truth_gradients g = gradients_of(j, b, x);
        truth_gradients_in_type(&j->batch->seq[b], order, &g);
    }
    for (int n = COMPARE_DQ; n < COMPARES; n++) {
        const enum compare_what what = (enum compare_what)n;
        const struct judge_part *part = &j->part[n];
        const attn_dtype type = type_of(j, what);
        for (int64_t i = 0; what >= COMPARE_DBIAS && x[n] && i < values_in(part); i++)
            x[n][i] = element_round(type, (double)x[n][i]);
        for (int64_t g = 0; x[n] && g < part->groups; g++)
            part->allowed[g] = fmaxl(part->allowed[g],
                                     compare_allowed(what, type, part->truth + part->from[g],
                                                     x[n] + part->from[g],
                                                     part->from[g + 1] - part->from[g]));
        free(x[n]);
    }
}
