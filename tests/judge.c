/* SPDX-License-Identifier: BSD-3-Clause */
/* Results against the truth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "judge.h"
#include "memory.h"

/* Values of one kind that a sequence has per head. */
static int64_t values_per_head(const struct truth_seq *s, enum compare_what what)
{
    switch (what) {
    case COMPARE_DQ: return s->nq * s->d;
    case COMPARE_DK: return s->nk * s->d;
    case COMPARE_DV: return s->nk * s->dv;
    case COMPARE_OUT: return s->nq * s->dv;
    case COMPARE_LSE: return s->nq;
    case COMPARE_SUMS: return s->nk;
    default: return s->nq * s->nk;
    }
}

static bool wants_matrix(const struct batch *n)
{
    return n->wanted[COMPARE_PROBS] || n->wanted[COMPARE_TILES];
}

static struct truth_values values_open(const struct batch *n, const struct truth_seq *s)
{
    struct truth_values x = {test_alloc((size_t)(s->hq * s->nq * s->dv) * sizeof *x.out),
                             test_alloc((size_t)(s->hq * s->nq) * sizeof *x.lse), NULL, NULL};

    if (wants_matrix(n))
        x.probs = test_alloc((size_t)(s->hq * s->nq * s->nk) * sizeof *x.probs);
    if (n->wanted[COMPARE_SUMS])
        x.sums = test_alloc((size_t)(s->hq * s->nk) * sizeof *x.sums);
    return x;
}

static long double *values_of(struct truth_values *x, enum compare_what what)
{
    switch (what) {
    case COMPARE_OUT: return x->out;
    case COMPARE_LSE: return x->lse;
    case COMPARE_SUMS: return x->sums;
    default: return x->probs;
    }
}

static void values_close(struct truth_values *x)
{
    free(x->out);
    free(x->lse);
    free(x->probs);
    free(x->sums);
}

/* The heads that a kind is of; 0: it is one for the whole batch. */
static int64_t heads_of(const struct truth_seq *s, enum compare_what what)
{
    switch (what) {
    case COMPARE_DK:
    case COMPARE_DV: return s->hkv;
    case COMPARE_DBIAS:
    case COMPARE_DSINK: return 0;
    default: return s->hq;
    }
}

static double given(attn_dtype type, long double x)
{
    return x == TRUTH_OPEN ? (double)NAN : element_round(type, (double)x);
}

void batch_results(struct batch *n)
{
    for (int64_t b = 0; b < n->count; b++) {
        struct truth_seq *s = &n->seq[b];
        struct truth_values x = values_open(n, s);
        truth_compute(s, &x);
        for (int64_t i = 0; i < s->hq * s->nq * s->dv; i++)
            s->out[i] = given(s->dtype, x.out[i]);
        for (int64_t i = 0; i < s->hq * s->nq; i++)
            s->lse[i] = given(element_computing(s->dtype), x.lse[i]);
        values_close(&x);
    }
}

/* Raises what is allowed of one kind to what one run of the plain loops asks for. */
static void allow_part(struct judge *j, int64_t b, enum compare_what what,
                       const long double *eager)
{
    struct judge_part *part = &j->part[what];
    const int64_t n = values_per_head(&j->batch->seq[b], what);

    for (int64_t h = 0; h < j->hq; h++) {
        long double *x = &part->allowed[b * j->hq + h];
        *x = fmaxl(*x, compare_allowed(what, j->dtype, part->truth + part->at[b] + h * n,
                                       eager + h * n, n));
    }
}

/* Raises what is allowed to what the plain loops in one order ask for. */
static void allow(struct judge *j, int64_t b, int order)
{
    const struct truth_seq *s = &j->batch->seq[b];
    struct truth_values eager = values_open(j->batch, s);

    truth_eager_in_type(s, order, &eager);
    for (int what = 0; what < COMPARES; what++)
        if (j->batch->wanted[what] && what != COMPARE_PROBS)
            allow_part(j, b, (enum compare_what)what, values_of(&eager, (enum compare_what)what));
    if (j->batch->wanted[COMPARE_PROBS]) {
        for (int64_t n = 0; n < s->hq * s->nq * s->nk; n++)
            if (eager.probs[n] != TRUTH_OPEN)
                eager.probs[n] = element_round(s->dtype, (double)eager.probs[n]);
        allow_part(j, b, COMPARE_PROBS, eager.probs);
    }
    values_close(&eager);
}

/* Allows what twice as many orders ask for, for a sequence, or, in the backward pass, for all. */
static bool widen(struct judge *j, int64_t b)
{
    const bool backward = j->batch->backward;
    int *const ran = &j->ran[backward ? 0 : b];
    const int before = *ran, end = 2 * before < j->orders ? 2 * before : j->orders;

    for (; *ran < end; ++*ran)
        if (backward)
            judge_allow_gradients(j, *ran);
        else
            allow(j, b, *ran);
    return *ran > before;
}

bool judge_widen(struct judge *j)
{
    bool more = false;

    for (int64_t b = 0; b < (j->batch->backward ? 1 : j->count); b++)
        more = widen(j, b) || more;
    return more;
}

/* Where the groups of values begin that have a budget each. */
static void open_part(struct judge *j, enum compare_what what)
{
    struct judge_part *part = &j->part[what];
    const struct truth_seq *seq = j->batch->seq;
    const int64_t heads = j->count ? heads_of(&seq[0], what) : 0;

    part->groups = heads ? j->count * heads : 1;
    part->from = test_alloc((size_t)(part->groups + 1) * sizeof *part->from);
    if (!heads)
        part->from[1] = what == COMPARE_DBIAS ? j->batch->dbias_count : j->hq;
    for (int64_t g = 0; heads && g < part->groups; g++) {
        part->from[g + 1] = part->from[g] + values_per_head(&seq[g / heads], what);
        part->at[g / heads + 1] = part->from[g + 1];
    }
    part->truth = test_alloc((size_t)part->from[part->groups] * sizeof *part->truth);
    part->allowed = test_alloc((size_t)part->groups * sizeof *part->allowed);
}

/* The truth of a sequence, and what one order of the plain loops allows. */
static void open_sequence(struct judge *j, int64_t b)
{
    const struct batch *n = j->batch;
    struct truth_values x = values_open(n, &n->seq[b]);

    truth_compute(&n->seq[b], &x);
    for (int what = 0; what < COMPARES; what++) {
        const struct judge_part *part = &j->part[what];
        if (n->wanted[what])
            memcpy(part->truth + part->at[b], values_of(&x, (enum compare_what)what),
                   (size_t)(part->at[b + 1] - part->at[b]) * sizeof *part->truth);
    }
    values_close(&x);
    allow(j, b, 0);
    j->ran[b] = 1;
}

void judge_open(struct judge *j, const struct batch *n, int orders)
{
    *j = (struct judge){.batch = n, .count = n->count, .orders = orders};
    if (n->count > 0) {
        j->hq = n->seq[0].hq;
        j->dv = n->seq[0].dv;
        j->dtype = n->seq[0].dtype;
    }
    for (int what = 0; what < COMPARES; what++)
        if (n->wanted[what])
            open_part(j, (enum compare_what)what);
    for (int64_t b = 0; b < n->count && !n->backward; b++)
        open_sequence(j, b);
    if (n->backward) {
        judge_gradients(j);
        judge_allow_gradients(j, 0);
        j->ran[0] = 1;
    }
}

void judge_close(struct judge *j)
{
    for (int what = 0; what < COMPARES; what++) {
        free(j->part[what].from);
        free(j->part[what].truth);
        free(j->part[what].allowed);
    }
    memset(j, 0, sizeof *j);
}

/* Tells a place among the values that a head has. */
static void place_of(const struct truth_seq *s, enum compare_what what, int64_t index, char *text,
                     size_t size)
{
    const bool by_key = what == COMPARE_DK || what == COMPARE_DV;
    const bool matrix = what == COMPARE_PROBS || what == COMPARE_TILES;
    const int64_t width = what == COMPARE_OUT || what == COMPARE_DV   ? s->dv
                          : what == COMPARE_DQ || what == COMPARE_DK ? s->d
                                                                     : s->nk;

    if (what == COMPARE_SUMS || what == COMPARE_LSE)
        snprintf(text, size, "%s %lld", what == COMPARE_LSE ? "query" : "key", (long long)index);
    else
        snprintf(text, size, "%s %lld, %s%lld", by_key ? "key" : "query",
                 (long long)(index / width), matrix ? "key " : "", (long long)(index % width));
}

void judge_where(const struct judge *j, enum compare_what what, int64_t index, char *text,
                 size_t size)
{
    const struct judge_part *part = &j->part[what];
    const int64_t heads = heads_of(&j->batch->seq[0], what);
    char tail[64] = "";
    int64_t g = 0;

    while (index >= part->from[g + 1])
        g++;
    if (!heads) {
        snprintf(text, size, "%s[%lld]", compare_names[what], (long long)index);
        return;
    }
    place_of(&j->batch->seq[g / heads], what, index - part->from[g], tail, sizeof tail);
    snprintf(text, size, "%s[sequence %lld, head %lld, %s]", compare_names[what],
             (long long)(g / heads), (long long)(g % heads), tail);
}

static bool judge_part(struct judge *j, enum compare_what what, const double *got, double *worst,
                       char *why, size_t size)
{
    const struct judge_part *part = &j->part[what];
    struct compare_fault f;
    char where[120];

    for (int64_t g = 0; g < part->groups; g++) {
        const int64_t from = part->from[g], most = part->from[g + 1] - from;
        if (compare_values(what, part->truth + from, part->allowed[g], got + from, most, worst, &f))
            continue;
        if (widen(j, j->batch->backward ? 0 : g / j->hq)) {
            g--; /* once more */
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
    for (int what = 0; what < COMPARES; what++)
        if (r->part[what] && j->batch->wanted[what] &&
            !judge_part(j, (enum compare_what)what, r->part[what], worst, why, size))
            return false;
    return true;
}

enum compare_what judge_same(const struct judge *j, const struct result *a, const struct result *b,
                             char *where, size_t size)
{
    for (int n = 0; n < COMPARES; n++) {
        const enum compare_what what = (enum compare_what)n;
        if (!a->part[n] || !b->part[n])
            continue;
        const int64_t at = compare_bits(a->part[n], b->part[n], a->count[n]);
        if (at < 0)
            continue;
        judge_where(j, what, at, where, size);
        return what;
    }
    return COMPARES;
}
