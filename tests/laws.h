/* SPDX-License-Identifier: BSD-3-Clause */
/* What the laws of test_laws.c share. */
#ifndef TESTS_LAWS_H
#define TESTS_LAWS_H

#include "rng.h"
#include "run.h"
#include "sequences.h"

/* A law at work on one drawn problem and one target. */
struct law {
    const struct options *o;
    struct target *t;
    const struct problem *drawn;
    const char *name;
};

/* Counts a check; `why` is told where it is not good. */
void law_says(const struct law *l, bool good, const char *why);

/* Runs sequences in a plain layout; false, and reported, if they could not. */
bool law_run(const struct law *l, const struct batch *n, const struct arrange *a,
             struct result *r);

/* Whether two results of the same values are as near as their two budgets allow: `allowed` and
 * `more` hold one number for each of the groups of values, row by row of [count][hq]. */
bool law_near(const struct judge *j, enum compare_what what, const double *a, const double *b,
              const long double *allowed, const long double *more, char *why, size_t size);

/* Runs a changed batch, whose truth is that of the first one, and compares. */
void law_changed(struct law *l, struct judge *j, const struct batch *changed,
                 const struct result *first, bool with_lse);

/* Runs both, packed, and compares: bit for bit, or within the two budgets. */
void law_alike(struct law *l, const struct batch *a, const struct batch *b, bool bits);

/* Normal numbers at every place that anybody might see, with out and LSE of these. Those of the
 * keys are so coarse that sums of two are exact; biases keep their -inf. A scale that such numbers
 * are not meant for becomes the default. */
void law_refill(struct batch *n, struct rng *r);
double law_small_step(attn_dtype type, struct rng *r);

/* Takes an array from each sequence. */
enum law_part { LAW_MASK, LAW_BLOCK, LAW_BIAS, LAW_SLOPES, LAW_SINK, LAW_DOCS };
void law_drop(struct batch *n, enum law_part part);

/* The laws of gradients, on sequences that have them. */
void law_gradients(struct law *l, const struct batch *drawn, struct rng *r);

/* The laws of single features, on sequences that were drawn with it or without. */
void law_features(struct law *l, const struct batch *drawn, struct rng *r);

#endif
